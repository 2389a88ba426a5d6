"""Calls of report, plots and papers."""

from pathlib import Path

import numpy as np

import jaxflow as jf
from jaxflow import papers, plots, report
from jaxflow.papers.claims import ROWS, Claim, Finding, findings_markdown, with_evidence
from jaxflow.papers.verdicts import Evidence, common_rate, count_evidence, decide, evidence_json, fit
from tests.arguments.harness import Call, call, part
from tests.arguments.kinds import (
    NAN,
    boolean,
    choice,
    count,
    function,
    instance,
    mapping,
    number,
    path,
    seed,
    sequence,
    text,
    values,
)

EVIDENCE = Evidence(3)
FINDING = Finding("Theorem 1", "All margins are positive.", "3 of 3", EVIDENCE)
CLAIM, ROW = Claim.of(FINDING), papers.Row.of(FINDING)
WAY = {name: np.ones(3) for name in ("log_time", "log_log_time", "log_norm", "log_gradient_norm", "turning")}
LIMIT = {"log_times": [1.0], "gaps": [0.1], "gap_label": "gap", "limit": np.eye(2), "limit_label": "W", "title": "a"}
BARS = {"x": [2], "x_label": "d", "panels": ["W"], "names": ["failed"], "percentage": [[[1.0]]], "denominator": [[1]]}
CURVES = {"x": [2], "x_label": "d", "panels": ["W"], "curves": ["W"], "y_label": "%"}
CURVES |= {name: [[[1.0]]] for name in ("percentage", "low", "high")}
CELLS = {"x": [2], "x_label": "d", "y": [3], "y_label": "n", "panels": ["W"], "value": [[[1.0]]], "value_label": "%"}
NAMED = {"combined", "factored", "diagonal"}
LIMITS = {f"{kind}_{name}": np.ones(1) for kind in NAMED for name in ("certified", "excess", "flow_gap")}


def lacking(data: dict) -> tuple:
    """The same with one of its names missing, for each of them."""
    return tuple({name: value for name, value in data.items() if name != left} for left in data)


RUN = {
    "scale": ("quick", choice()),
    "seed": (0, seed()),
    "out": (None, path(nothing=True)),
    "overwrite": (False, boolean()),
    "progress": (False, boolean()),
    "say": (print, function()),
}
PAPER = {"paper": ("yun2021", choice())}
PLANNED = {"scale": ("quick", choice()), "out": ("o", path(nothing=True)), "overwrite": (False, boolean())}
CALLS: list[Call] = [
    part("reproduce", papers.reproduce, **PAPER, figure=("fig1", choice()), **RUN),
    part("verify", papers.verify, **PAPER, only=((), sequence("single", ["no such"], [3])), **RUN),
    call("plan", papers.plan, **PAPER, figure=("fig1", choice()), **PLANNED),
    call("plan_verify", papers.plan_verify, **PAPER, only=((), sequence(["no such"], [None])), **PLANNED),
    call("find_paper", lambda paper: papers.find_paper(paper), paper=("yun2021", choice())),
    call("find_figure", lambda paper, figure: papers.find_figure(paper, figure), **PAPER, figure=("fig1", choice())),
    *(call(f.__name__, f, **PAPER) for f in (papers.entries_of, papers.figures_of, papers.checks_of)),
    call("draw_path", plots.draw_path, data=(WAY, mapping(*lacking(WAY)))),
    call("draw_limit", plots.draw_limit, data=(LIMIT, mapping(*lacking(LIMIT)))),
    call("draw_percentage_bars", plots.draw_percentage_bars, data=(BARS, mapping(*lacking(BARS)))),
    call("draw_percentage_curves", plots.draw_percentage_curves, data=(CURVES, mapping(*lacking(CURVES)))),
    call("draw_heat_map", plots.draw_heat_map, data=(CELLS, mapping(*lacking(CELLS)))),
    part("draw_limits", plots.draw_limits, data=({}, mapping(LIMITS))),
    call(
        "new_figure",
        plots.new_figure,
        columns=(1, count()),
        width=(3.0, number(positive=True)),
        height=(3.0, number(positive=True)),
        shared=(False, boolean()),
    ),
    call(
        "new_grid",
        plots.new_grid,
        rows=(1, count()),
        columns=(1, count()),
        width=(3.0, number(positive=True)),
        height=(3.0, number(positive=True)),
        shared=(False, boolean()),
    ),
    part("save_figure", lambda figure: plots.save_figure(figure, Path("a.png")), figure=(None, instance())),
    part("save_figure", lambda paths: plots.save_figure(plots.new_figure(1)[0], paths), paths=("a.png", path())),
    call(
        "count_evidence",
        count_evidence,
        good=(np.ones(3, bool), values(None, "abc", {}, np.ones(3), [NAN, 1.0])),
        decided=(None, values("abc", {}, np.ones(2, bool))),
        limit=(False, boolean()),
        rate=(None, instance(nothing=True)),
        checked_by=("", text()),
    ),
    call(
        "common_rate",
        common_rate,
        fitted=(np.ones(4), values(None, "abc", {})),
        predicted=(1.0, None),
        bias=(0.0, number()),
        law=("", text()),
    ),
    call(
        "fit",
        fit,
        x=(np.arange(4.0), values(None, "abc", {}, 3.0, np.eye(4))),
        y=(np.ones(4), values(None, "abc", {}, 3.0, np.ones(3))),
    ),
    call("decide", decide, evidence=(EVIDENCE, instance())),
    call("evidence_json", evidence_json, evidence=(EVIDENCE, instance())),
    call("with_evidence", with_evidence, measured=("a", text()), evidence=(EVIDENCE, instance())),
    call("told", papers.told, found=(ROW, instance())),
    call("counted", papers.counted, found=(ROW, instance())),
    call("worst", papers.worst, found=(ROW, instance())),
    call("as_json", papers.as_json, view=(CLAIM, instance())),
    call(
        "manifest",
        report.manifest,
        arguments=({}, values(None, "abc", 3, [])),
        seed=(0, count(0)),
        seconds=(1.0, number(least=0.0)),
    ),
    part("study_html", report.study_html, store_path=("r.zarr", path())),
    part(
        "write_study_report",
        report.write_study_report,
        store_path=("r.zarr", path()),
        out=("r.html", path()),
        overwrite=(False, boolean()),
    ),
    call("refuse_existing", report.refuse_existing, paths=([Path("a")], values(None, 3)), overwrite=(False, boolean())),
    part(
        "diagnose", jf.diagnose, trajectory=(None, instance()), risk=(None, None), clock=(None, None), until=(1, None)
    ),
    part(
        "findings_markdown",
        findings_markdown,
        title=("a", text()),
        columns=(ROWS, values(None, 3, "a")),
        findings=([], None),
    ),
    call("write_json", report.write_json, path=("a.json", path()), value=({}, None)),
]

"""Calls of theory, report, plots and papers."""

from pathlib import Path

import jax.numpy as jnp
import numpy as np

import jaxflow as jf
from jaxflow import papers, plots, report
from jaxflow.papers.claims import Finding
from jaxflow.papers.verdicts import Evidence
from tests.arguments.harness import Call, call
from tests.arguments.kinds import (
    array,
    boolean,
    choice,
    count,
    function,
    instance,
    mapping,
    mask,
    number,
    path,
    seed,
    sequence,
    values,
)
from tests.arguments.usual import (
    HADAMARD,
    INPUTS,
    LABELS,
    LINEAR,
    LINEAR_RISK,
    MATRIX,
    MODEL,
    NETWORK,
    SELECTION,
    VECTOR,
)

th = jf.theory
ETAS = ((VECTOR, VECTOR), sequence((), ("a", "b"), (VECTOR, None)))
ONE_PAIR = (th.pairs_of(NETWORK, INPUTS[:1]), instance())
RISK = (LINEAR_RISK, instance())
WORDS = (jf.EmpiricalRisk((np.array([[0, 1, 2]]), np.array([0])), "cross_entropy"), instance())
NEXT_TOKEN = (jf.models.NextTokenAttention(MATRIX, INPUTS), values(None, 3, "abc", MODEL))
THEORY: list[Call] = [
    call(
        th.all_hold,
        assumptions=((th.Assumption("a", jnp.asarray(True), jnp.asarray(1.0)),), sequence((3,), ("a",))),
    ),
    call(th.below_one, "network", risk=RISK),
    call(th.primal_map, "network", risk=RISK),
    call(th.equal_layers, etas=ETAS),
    call(th.layer_gap, etas=ETAS),
    call(th.small_layer, "theorem", etas=ETAS),
    call(th.theorem_or_failures, "theorem", assumptions=((), sequence((3,)))),
    call(th.fully_connected_start, network=(jf.models.DeepLinearNetwork((MATRIX, VECTOR)), instance())),
    *(call(f, risk=WORDS, model=NEXT_TOKEN) for f in (th.graph_svm, th.priority_graphs)),
    call(
        th.incremental_learning,
        risk=(jf.EmpiricalRisk(LINEAR, "squared"), instance()),
        model=(HADAMARD, instance()),
        max_stages=(2, count(nothing=True)),
        max_time=(3.0, number(positive=True, infinite=True)),
        log_alpha=(-3.0, values(0.0, 1.0, kind=number(nothing=True))),
        decay=(0.0, number(least=0.0)),
    ),
    call(th.interpolation_limit, "targets", "start", "depth", rows=(INPUTS, array())),
    call(th.interpolation_program, "network", data=(LINEAR, instance())),
    call(th.pairs_of, "network", "inputs"),
    call(
        th.predict,
        "risk",
        model=(MODEL, values(None, 3, "abc")),
        selection=(SELECTION, mask(nothing=True)),
    ),
    call(th.push_direction, "inputs", multipliers=(LABELS, array())),
    call(th.register, model=(type(MODEL), values(None, 3, "abc", MODEL))),
    call(th.rule_of, model=(MODEL, values(None, 3, "abc", {}))),
    call(th.singular_residual, "network", data=(LINEAR, instance()), multipliers=(LABELS, array())),
    *(call(f, "network", pairs=ONE_PAIR, target=(1.0, number())) for f in (th.datum_direction, th.datum_limit)),
    call(th.pair_limit, "network", pairs=ONE_PAIR, targets=(LABELS[:1], array()), dual=(LABELS[:1], array())),
]

FINDING = Finding("Theorem 1", "All margins are positive.", "3 of 3", Evidence(3))
VIEW = (FINDING, instance())
WAY = {name: np.ones(3) for name in ("log_time", "log_log_time", "log_norm", "log_gradient_norm", "turning")}
LIMIT = {"log_times": [1.0], "gaps": [0.1], "gap_label": "gap", "limit": np.eye(2), "limit_label": "W", "title": "a"}
BARS = {"x": [2], "x_label": "d", "panels": ["W"], "names": ["failed"], "percentage": [[[1.0]]], "denominator": [[1]]}
CURVES = {"x": [2], "x_label": "d", "panels": ["W"], "curves": ["W"], "y_label": "%"}
CURVES |= {name: [[[1.0]]] for name in ("percentage", "low", "high")}
CELLS = {"x": [2], "x_label": "d", "y": [3], "y_label": "n", "panels": ["W"], "value": [[[1.0]]], "value_label": "%"}
DRAWINGS = {
    plots.draw_path: WAY,
    plots.draw_limit: LIMIT,
    plots.draw_percentage_bars: BARS,
    plots.draw_percentage_curves: CURVES,
    plots.draw_heat_map: CELLS,
}


def lacking(data: dict) -> tuple:
    """The same with one of its names missing, for each of them."""
    return tuple({name: value for name, value in data.items() if name != left} for left in data)


PAPER, FIGURE = ("yun2021", choice()), ("fig1", choice())
PLANNED = {"scale": ("quick", choice()), "out": ("o", path(nothing=True)), "overwrite": (False, boolean())}
RUN = PLANNED | {"seed": (0, seed()), "progress": (False, boolean()), "say": (print, function())}
STORE = ("r.zarr", path())
CALLS: list[Call] = [
    call(papers.reproduce, paper=PAPER, figure=FIGURE, **RUN),
    call(papers.verify, paper=PAPER, only=((), sequence("single", ["no such"], [3])), **RUN),
    call(papers.plan, paper=PAPER, figure=FIGURE, **PLANNED),
    call(papers.plan_verify, paper=PAPER, only=((), sequence(["no such"], [None])), **PLANNED),
    call(lambda paper: papers.find_paper(paper), row="find_paper", paper=PAPER),
    call(lambda paper, figure: papers.find_figure(paper, figure), row="find_figure", paper=PAPER, figure=FIGURE),
    *(call(f, paper=PAPER) for f in (papers.entries_of, papers.figures_of, papers.checks_of)),
    *(call(f, found=VIEW) for f in (papers.counted, papers.worst, papers.as_json)),
    call(papers.told, found=VIEW, with_worst=(False, boolean())),
    *(call(draw, data=(data, mapping(*lacking(data)))) for draw, data in DRAWINGS.items()),
    call(plots.draw_limits, data=({}, mapping())),
    call(plots.new_figure, "width", "height", "shared", columns=(1, count())),
    call(plots.new_grid, "width", "height", "shared", rows=(1, count()), columns=(1, count())),
    call(lambda figure: plots.save_figure(figure, Path("a.png")), row="save_figure", figure=(None, instance())),
    call(lambda paths: plots.save_figure(plots.new_figure(1)[0], paths), row="save_figure", paths=("a.png", path())),
    call(
        report.manifest,
        arguments=({}, values(None, "abc", 3, [])),
        seed=(0, count(0)),
        seconds=(1.0, number(least=0.0)),
    ),
    call(report.study_html, store_path=STORE),
    call(report.write_study_report, "overwrite", store_path=STORE, out=("r.html", path())),
    call(report.refuse_existing, "overwrite", paths=([Path("a")], values(None, 3))),
    call(report.write_json, path=("a.json", path()), value=({}, None)),
    call(jf.diagnose, trajectory=(None, instance()), risk=(None, None), clock=(None, None), until=(1, None)),
]

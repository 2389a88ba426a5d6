"""Commands from the name to the files, at sizes of seconds: figures, and checks that no smaller test reaches."""

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxflow import papers
from jaxflow.papers.boix2023 import beyond_assumptions, full_heads, small_instances, toy
from jaxflow.papers.results import adam_order, hypotheses, multistart, rate_law
from jaxflow.papers.sheen2024 import diagonal_flows
from jaxflow.papers.table import Table, stacked
from jaxflow.papers.tarzanagh2023 import (
    bias_runs,
    concave,
    conjecture,
    factored,
    fig1,
    fig5,
    fig9,
    fig10,
    fig12,
    percent,
    ranks,
)
from jaxflow.papers.tarzanagh2023.verify import cones, descents, follow, smooth
from jaxflow.papers.tarzanagh2023.verify.instances import explicit_case, instance, padded
from jaxflow.papers.verdicts import Verdict
from jaxflow.papers.yun2021 import dual_form
from tests.papers.recorded import entry_of, numbers_of

# Sizes by what is patched. Selections of figure 5 settle early, so that the scout is all that is compiled; figures 9
# and 12 have one batch width, and the dimensions of the conjecture one padded size: their programs compile once.
# Descents that are still on their way go on ten times as long, not a hundred.
SIZES: list[tuple[dict[str, Any], Any]] = [
    (fig1.SIZES, (4, 300)),
    (fig10.SIZES, fig10.SIZE.replace(trials=3, shapes=((3, 3),), columns=(1, 3), d=4, length=12.0, steps=300)),
    (
        bias_runs.SIZES,
        bias_runs.SIZE.replace(trials=2, reach=30.0, n=2, T=3, d=3, steps=20, grid=9, saves=17, fast=True),
    ),
    (ranks.SIZES, ranks.SIZE.replace(trials=4, shapes=((2, 3), (3, 3)), dimensions=(2, 4))),
    (conjecture.SIZES, conjecture.SIZE.replace(trials=4, d=(3, 20), steps=50, n=2, T=3)),
    (factored.SIZES, (6, ((3, 3),), 6)),
    (fig5.SIZES, percent.SIZE.replace(trials=4, d=(4,), settings=((2, 3),))),
    (fig9.SIZES, (4, (0.0, 0.3, 2.5))),
    (fig12.SIZES, (4, 200, (3, 9))),
    (toy.SIZES, Table(n=8, T=3, d=2, stages=2, alphas=(toy.PAPER[-1], toy.BEYOND[-1]), saves=256)),
    (smooth.TRIALS, 50),
    (descents.LATER, 10 * descents.STEPS["quick"]),
    # Of Adam's order several instances are ranked.
    (adam_order.TRIALS, 2),
    (multistart.STARTS, 2),
    *(
        (module.TRIALS, 1)
        for module in (
            diagonal_flows,
            multistart,
            rate_law,
            hypotheses,
            beyond_assumptions,
            full_heads,
            cones,
            dual_form,
        )
    ),
]
# Figures of one data set stand one after another, and only the first of them computes.
FIGURES = {
    "tarzanagh2023": ("fig1", "fig4", "conjecture", "factored", "fig5", "fig7", "fig9", "fig10", "fig12"),
    "boix2023": ("fig2", "fig8", "fig9", "fig3"),
    "sheen2024": ("equivalence",),
    "yun2021": ("fig1",),
    "results": ("adam-order", "multistart", "rates", "hypotheses"),
}
# One to two minutes of compiling each on a slow machine, for a way of running that others here have too: studies
# (figure 5), blocks (figures 10 and 12), parts on the host (multistart) and together (figure 1 of Yun et al.).
COSTLY = {("tarzanagh2023", name) for name in ("fig1", "fig4", "conjecture", "factored", "fig7", "fig9")} | {
    ("sheen2024", "equivalence"),
    ("results", "rates"),
    ("results", "hypotheses"),
}
CHECKS = {
    "tarzanagh2023": ["assumptions", "cone-lemmas", "cones", "descents"],
    "yun2021": ["dual-form", "ensemble", "structure"],
    "boix2023": ["outside", "heads", "stages", "supports"],
}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for sizes, size in SIZES:
        monkeypatch.setitem(sizes, "quick", size)
    # Of (K, Q) each shape is a program of its own: the one with the fewest columns. Searches are tested by themselves.
    monkeypatch.setattr(multistart, "SHAPES", ((1, 2, 3, 4),))
    monkeypatch.setattr(multistart, "FEWER", np.array([True]))
    monkeypatch.setattr(hypotheses, "DRAWS", 40)
    monkeypatch.setattr(hypotheses, "SEARCH", 5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


def written(paths: dict[str, Path], findings: list[papers.Finding], kind: str) -> None:
    """All files are there, and both tables have every finding with its verdict."""
    assert all(path.stat().st_size > 0 for path in paths.values())
    rows = json.loads(paths[kind].read_text(encoding="utf-8"))[kind]
    assert [row["verdict"] for row in rows] == [found.verdict.value for found in findings]
    table = paths["table"].read_text(encoding="utf-8")
    # A bar within a cell of the table is escaped.
    assert all(found.source in table and found.says.replace("|", "\\|") in table for found in findings)
    assert any(found.evidence.inside for found in findings)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    ("paper", "name"),
    [
        pytest.param(paper, name, marks=pytest.mark.release if (paper, name) in COSTLY else ())
        for paper, names in FIGURES.items()
        for name in names
    ],
)
def test_figures_leave_their_files(paper: str, name: str, folder: Path) -> None:
    # As in a user's process: numbers of experiments are NumPy-like and broadcast.
    with jax.numpy_rank_promotion("allow"):
        paths, claims = papers.reproduce(paper, name, out=folder / paper, say=lambda line: None)
    written(paths, claims, "claims")
    # Drawing and claims see the saved file alone, which has all columns of a run at another scale.
    with np.load(paths["data"]) as saved:
        kept = {f"{part}.{field}" for part, table in numbers_of(paper, name).named.items() for field in table.named}
        assert set(saved.files) == kept


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("paper", CHECKS)
def test_checks_leave_their_rows(paper: str, tmp_path: Path) -> None:
    with jax.numpy_rank_promotion("allow"):
        paths, rows = papers.verify(paper, only=CHECKS[paper], out=tmp_path, say=lambda line: None)
    written(paths, rows, "rows")
    if paper == "boix2023":
        by_source = {row.source: row for row in rows}
        assert by_source["Lemma 4.2"].verdict is Verdict.holds and by_source["Lemma 4.2"].worst <= 1e-8
        # The instances of every family.
        sparsity = by_source["Theorem 4.1 (sparsity)"]
        assert sparsity.evidence.inside + sparsity.outside == 2 * small_instances.TRIALS["quick"]
    if paper == "yun2021":
        # The display of (38) without conjugates.
        others = [row for row in rows if row.verdict is not Verdict.holds]
        assert [(row.source, row.verdict) for row in others] == [("Equation (38)", Verdict.counterexample_found)]


@pytest.mark.usefixtures("small")
def test_the_constant_of_W_holds_and_those_of_K_and_Q_want_a_square(tmp_path: Path) -> None:
    paths, rows = papers.verify("tarzanagh2023", only=["smoothness"], out=tmp_path, say=lambda line: None)
    written(paths, rows, "rows")
    lemma = [row for row in rows if row.source == "Lemma 4"]
    assert sum("as printed" in row.says for row in lemma) == 2 and len(lemma) == 5
    for row in lemma:
        printed = "as printed" in row.says
        assert row.verdict is (Verdict.counterexample_found if printed else Verdict.holds)
        assert (row.worst > 1.0) == printed


# Experiments whose parts are programs for one instance.
TRACED = [("yun2021", name) for name in ("connected", "directions", "dual-form", "ensemble", "points", "single")]
TRACED += [("sheen2024", name) for name in ("equivalence", "general", "norms")]


@pytest.mark.slow
@pytest.mark.parametrize(("paper", "name"), TRACED)
def test_parts_give_the_columns_that_were_kept(paper: str, name: str) -> None:
    """Programs are traced, and not compiled: the first and the last cell of each part."""
    numbers = numbers_of(paper, name)
    for kind, part in entry_of(paper, name).dataset.parts.items():
        if not isinstance(part, papers.Part) or part.way not in ("together", "in turn"):
            continue
        first, *others = part.settings("quick").values()
        made = {column: np.ndim(value) - 2 for column, value in getattr(numbers, kind).named.items()}
        for setting in (first, *others[-1:]):
            given = jax.tree.map(lambda x: jnp.asarray(x) if isinstance(x, np.ndarray) else x, setting)
            with jax.numpy_rank_promotion("allow"):
                found = jax.eval_shape(lambda key, one=part.one, given=given: one(key, given), jax.random.key(0))
            assert {column: value.ndim for column, value in found.named.items()} == made


@pytest.mark.slow
def test_the_explicit_case_by_the_flow_certifies_another_direction() -> None:
    # By the program that the checks have compiled.
    end = follow.follow(stacked([padded(instance(*explicit_case()))]))
    assert not end.selected[0]
    assert end.target_attention[0] < follow.UNSELECTED
    assert end.flow_gap[0] < follow.CERTIFIED
    assert end.misaligned[0] > 0.5
    # Without the second sequence e_1 e_1ᵀ is the solution, and leaves its optimal token 1.5 behind.
    assert end.lost_gap[0] < follow.CERTIFIED


@pytest.mark.slow
@pytest.mark.release
def test_a_token_that_comes_late_is_waited_for() -> None:
    """By the program of figure 9: s* gives it 0.0075; at log t = 30 it has 5e-12 and is still losing."""
    key = jax.random.split(jax.random.fold_in(jax.random.key(0), 9), 20)[8]
    found = concave.flow_batch(concave.draw_batch(10, 10, jnp.stack([key] * 4), jnp.full(4, 0.1)))
    assert np.all(found.late) and np.all(found.good)
    assert float(jnp.max(found.error)) <= 1e-8
    np.testing.assert_array_equal(np.sum(np.asarray(found.attention) > concave.SELECTED, axis=1), 2)

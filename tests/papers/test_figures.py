"""Figures from the name to the files, at sizes of seconds: what is computed is what the figure is about."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxflow import papers
from jaxflow._core import Outcome
from jaxflow.margin import AssumptionStatus, ProgramResult
from jaxflow.papers.boix2023 import toy
from jaxflow.papers.claims import Finding
from jaxflow.papers.sheen2024 import diagonal_flows, multipliers
from jaxflow.papers.table import Table
from jaxflow.papers.tarzanagh2023 import (
    bias_runs,
    concave,
    conjecture,
    factored,
    fig1,
    fig5,
    fig7,
    fig9,
    fig10,
    fig12,
    percent,
    ranks,
)
from jaxflow.papers.tarzanagh2023.bias_runs import Size
from jaxflow.papers.tarzanagh2023.percent import table, tally
from jaxflow.papers.verdicts import Verdict
from jaxflow.papers.yun2021 import plane
from jaxflow.papers.yun2021.starts import DIRECTIONS, directions
from jaxflow.study import TokenSelection, trial_key

HOLDS, RATE, OPEN = Verdict.holds, Verdict.holds_at_this_rate, Verdict.not_settled
OUTSIDE = Verdict.outside_hypotheses


def verdicts(claims: list[Finding]) -> list[Verdict]:
    return [claim.verdict for claim in claims]


def again(name: str, numbers: Any) -> list[tuple[str, Verdict]]:
    """What a figure of the first paper says of other numbers: sources and verdicts."""
    return [(one.source, one.verdict) for one in papers.find_figure("tarzanagh2023", name).find(numbers)[0]]


# Figures 1, 7 and 10: flows and descent against the programs


def runs_in_the_plane(numbers: Table, claims: list[Finding]) -> None:
    assert len(claims) == 16
    for setting, tokens in (("described", 3), ("published", 5)):
        runs = fig1.runs_of(numbers, setting, "combined", "flow")
        assert (runs.visible.sum(axis=-1) == tokens).all()
        # Cross-attention: queries drawn apart from the tokens, of length one like these.
        assert np.array_equal(runs.queries, runs.tokens[:, :, 0]) == (setting == "published")
        assert np.allclose(np.linalg.norm(runs.queries, axis=-1), 1.0) == (setting == "described")
        # The same instances for all.
        assert all(
            np.array_equal(fig1.runs_of(numbers, setting, "factored", way).tokens, runs.tokens) for way in fig1.WAYS
        )
        assert fig1.decided(runs).any() and runs.path.shape == (4, fig1.POINTS, 2, 2)
        # Hidden tokens are never selected.
        assert not (runs.selection & ~runs.visible).any()
        # The distance that an arc length of 1,000 leaves.
        assert runs.own[fig1.decided(runs)].max() < 1e-3


def columns_of_the_factors(numbers: Table, claims: list[Finding]) -> None:
    assert len(claims) == 8
    for way in fig10.NAMES:
        runs = fig10.runs_of(numbers, way)
        usable = fig10.usable(runs)
        assert runs.misalignment.shape == (1, 2, 3) and usable.any()
        # No matrix with m columns correlates better than its rank allows.
        assert np.all((runs.misalignment >= runs.floor - 1e-9)[usable])
        assert np.all(runs.floor[:, 1][usable[:, 1]] <= 1e-12)


def biases_of_both_kinds(numbers: Table, claims: list[Finding]) -> None:
    for runs in bias_runs.both(numbers):
        assert len(runs.outcome) == 2 and not bias_runs.among(runs, (Outcome.not_run, Outcome.failed)).any()
        kept, last = bias_runs.among(runs, fig7.DIRECTIONS), bias_runs.last(runs)
        # The flow of either parametrisation approaches the program of its own norm.
        assert np.all(last[kept] < runs.distance[kept, runs.own, 0])
        assert np.all(runs.excess[kept, runs.own, -1] > 0)
        if runs.own == 0:
            local = bias_runs.among(runs, fig7.LOCAL)
            assert local.any() and runs.log_time[-1] == 1e6
            # The paper's curve of W ends near a correlation of 0.997.
            assert last[local].max() <= 1e-10


# Figure 5: percentages


def outcomes_of_every_instance(numbers: Table, claims: list[Finding]) -> None:
    assert table(numbers).shape == (1, 2, 1, 4) and (table(numbers) != Outcome.not_run).all()
    assert [percent.cell(numbers, 0, p, 0) for p in range(2)] == ["W, n=2, T=3, d=4", "(K, Q), n=2, T=3, d=4"]
    assert tally(numbers, tuple(code for code in Outcome if code))[0].sum() == 8
    solved = table(numbers, "optimal_program") == ProgramResult.optimal
    mean, largest = table(numbers, "mean_margin")[solved], table(numbers, "largest_margin")[solved]
    assert solved.any() and (largest >= mean).all() and (mean >= 1 - 1e-9).all()
    # The second pass meets the instances of the first, which are those of a study of its own.
    factors = {"n": 2, "T": 3, "d": 4, "score_gap": percent.SCORE_GAP}
    trial = int(np.flatnonzero(solved[0, 0, 0])[0])
    key = trial_key(0, TokenSelection().name(), factors, trial)
    found = fig5._support("frobenius", *fig5.EXPERIMENT.setup(key, **factors, parametrization="W"))
    assert int(found["optimal_program"]) == ProgramResult.optimal
    np.testing.assert_allclose(found["largest_margin"], table(numbers, "largest_margin")[0, 0, 0, trial], rtol=1e-9)


# Figures 9 and 12: the concave loss


def penalties(numbers: Table, claims: list[Finding]) -> None:
    size, scores = numbers.targets.size, numbers.targets.scores
    assert numbers.flow.attention.shape == (3, 4, 10)
    assert np.all(numbers.flow.good) and numbers.flow.error.max() <= 1e-8
    np.testing.assert_array_equal(fig9.lambdas(numbers), (0.0, 0.3, 2.5))
    np.testing.assert_array_equal(size[0], 1)
    assert size[1].min() >= 2
    # The same heads for every λ.
    np.testing.assert_array_equal(scores[0], scores[2])
    found = {claim.source: claim.verdict for claim in claims}
    assert found["Figure 9(a)"] == found["(9), Figure 9"] == HOLDS and found["(6), Figure 9"] == RATE
    # Attention between masked and selected: the filter keeps none.
    descent = numbers.descent.replace(attention=np.full_like(numbers.descent.attention, 1e-5))
    other = again("fig9", numbers.replace(targets=numbers.targets.replace(size=size[::-1]), descent=descent))
    assert ("Figure 9(a)", OPEN) in other
    assert ("Figure 9(a), survivors", OUTSIDE) in other and ("Figure 9(b), survivors", OUTSIDE) in other


def conditions_of_lemma_6(numbers: Table, claims: list[Finding]) -> None:
    assert numbers.exact.size.shape == (2, 200)
    assert np.all(numbers.flow.good) and numbers.flow.error.max() <= 1e-8
    found = {claim.source: claim.verdict for claim in claims}
    assert found["Lemma 6"] == found["Figure 12(c), flow"] == HOLDS
    # Four tokens are too many for τ = 3; an error of 2e-8 is none of the flow's tokens.
    exact = numbers.exact.replace(size=np.where(np.arange(200) == 7, 4, numbers.exact.size))
    flow = numbers.flow.replace(error=np.full_like(numbers.flow.error, 2e-8))
    other = dict(again("fig12", numbers.replace(exact=exact, flow=flow)))
    assert other["Lemma 6"] == other["(9), Figure 12"] == OPEN and other["Figure 12(c), flow"] == HOLDS


# Figure 4, sections 5.2 and 9


def ranks_of_solutions(numbers: Table, claims: list[Finding]) -> None:
    assert numbers.nuclear.rank.shape == (2 * 2, 4)
    solved = numbers.nuclear.result == ProgramResult.optimal
    # Infeasible programs are counted and have no rank; nothing else is without one.
    assert solved.any() and np.all((numbers.nuclear.rank >= 0) == solved)
    assert np.all(solved | (numbers.nuclear.result == ProgramResult.infeasible))
    assert verdicts(claims) == [HOLDS] * 5


def every_choice_enumerated(numbers: Table, claims: list[Finding]) -> None:
    found, yes, no = numbers.instances, AssumptionStatus.holds, AssumptionStatus.violated
    assert found.outcome.shape == (2, 4) and np.all(found.outcome != Outcome.not_run)
    # What implies the other does so on every instance that was enumerated.
    assert not np.any((found.support == yes) & (found.D == no))
    assert not np.any((found.D == yes) & (found.unique == no) & (found.locally_optimal > 0))
    assert len(claims) == 5


def limits_of_the_factors(numbers: Table, claims: list[Finding]) -> None:
    assert numbers.ends.outcome.shape == (1, 6)
    # No pair has fewer columns than rows: the question is asked once.
    assert len(claims) == 2 and claims[1].verdict is HOLDS
    # An instance comes back by its number, with the same outcome.
    limit = factored.study_of("quick", int(numbers.pairs.seed), 3, 3).replay(trial=2)
    assert int(limit.outcome) == numbers.ends.outcome[0, 2]


# The other papers


def stages(numbers: Table, claims: list[Finding]) -> None:
    assert numbers.paths.ok.all() and numbers.paths.crossings.shape == (2, 1, 2)
    # The same stages from e^(−10000) take at most three times the steps that they take from 1e-8.
    small, same, own = numbers.paths.effort[1, 0]
    assert 0 < small <= 3 * min(same, own)
    # The distance of the first stage shrinks like 1/log(1/α): the ratio of the scales, 10000 to 73.7.
    shifts = np.abs(numbers.paths.crossings[:, 0, 0] - numbers.stages.times[0, 0, 0])
    assert shifts[0] / shifts[1] == pytest.approx(10_000 / -toy.PAPER[-1], rel=0.05)
    # Of the head's four products, K Q before V O, one of the values is learned first.
    assert numbers.stages.coordinates[0, 0, 0] >= 2
    # Two stages are too few for an interval; the weights and the order are there.
    assert verdicts(claims[:3]) == [OPEN, HOLDS, HOLDS]


def trajectories(numbers: Table, claims: list[Finding]) -> None:
    assert claims[1].verdict is HOLDS


def perturbations(numbers: Any, claims: list[Finding]) -> None:
    noise = numbers.noise
    there = ~np.isnan(noise.start)
    assert there[:, 0].any(axis=1).all() and noise.followed[there].all()
    assert noise.noise[0, 0, -1] > 1e-3
    assert [claim.source for claim in claims] == ["Figure 3 (a)", "Figure 3 (b)"]


def equivalence(numbers: Table, claims: list[Finding]) -> None:
    assert verdicts(claims[:2]) == [HOLDS, HOLDS]
    assert numbers.flows.apart.shape == (3, 1, 25) and numbers.flows.ok.all()
    # Where the multipliers of the flow are still off at log t = 1e6, it is certified where it ends, far beyond.
    on = numbers.continued
    assert on.gap.shape == (1, 1) and on.optimal.all() and on.gap.max() <= multipliers.INSTANT
    assert on.log_time.min() > 1e10 and diagonal_flows.LOG_TIMES[-1] == pytest.approx(1e6)


def one_datum(numbers: Table, claims: list[Finding]) -> None:
    flow = numbers.regression.flow
    assert flow.shape == (3, 1, 2, DIRECTIONS, plane.SAVES, 2)
    # Every path starts at α² z̄: the first save point is t = e^−6.
    wanted = np.array(plane.SCALES_1)[:, None, None] ** 2 * directions()[None]
    np.testing.assert_allclose(flow[:, 0, :, :, 0], np.broadcast_to(wanted, (3, 2, 4, 2)), atol=0.1)
    assert verdicts(claims) == [HOLDS] * 3


# Sizes by what is patched. Selections of figure 5 settle early, so that the scout is all that is compiled; figures 9
# and 12 have one batch width, and the dimensions of the conjecture one padded size: their programs compile once.
SIZES = [
    (fig1.SIZES, (4, 300)),
    (fig10.SIZES, fig10.Size(3, shapes=((3, 3),), columns=(1, 3), d=4, length=12.0, steps=300)),
    (bias_runs.SIZES, Size(trials=2, reach=30.0, n=2, T=3, d=3, steps=20, grid=9, saves=17, fast=True)),
    (ranks.SIZES, ranks.Size(4, shapes=((2, 3), (3, 3)), dimensions=(2, 4))),
    (conjecture.SIZES, conjecture.Size(4, (3, 20), steps=50, n=2, T=3)),
    (factored.SIZES, (6, ((3, 3),), 6)),
    (fig5.SIZES, percent.Size(trials=4, d=(4,), settings=((2, 3),))),
    (fig9.SIZES, (4, (0.0, 0.3, 2.5))),
    (fig12.SIZES, (4, 200, (3, 9))),
    (toy.SIZES, toy.Size(8, 3, 2, 2, (toy.PAPER[-1], toy.BEYOND[-1]), 256)),
    (diagonal_flows.TRIALS, 1),
]
# Figures of one data set stand one after another, and only the first of them computes.
FIGURES: dict[tuple[str, str], Callable[[Any, list[Finding]], None]] = {
    ("tarzanagh2023", "fig1"): runs_in_the_plane,
    ("tarzanagh2023", "fig4"): ranks_of_solutions,
    ("tarzanagh2023", "conjecture"): every_choice_enumerated,
    ("tarzanagh2023", "factored"): limits_of_the_factors,
    ("tarzanagh2023", "fig5"): outcomes_of_every_instance,
    ("tarzanagh2023", "fig7"): biases_of_both_kinds,
    ("tarzanagh2023", "fig9"): penalties,
    ("tarzanagh2023", "fig10"): columns_of_the_factors,
    ("tarzanagh2023", "fig12"): conditions_of_lemma_6,
    ("boix2023", "fig2"): stages,
    ("boix2023", "fig8"): trajectories,
    ("boix2023", "fig9"): trajectories,
    ("boix2023", "fig3"): perturbations,
    ("sheen2024", "equivalence"): equivalence,
    ("yun2021", "fig1"): one_datum,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("figures")


@pytest.mark.slow
@pytest.mark.parametrize(("paper", "name"), FIGURES)
def test_from_the_name_to_the_files(paper: str, name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for sizes, small in SIZES:
        monkeypatch.setitem(sizes, "quick", small)
    paths, claims = papers.reproduce(paper, name, out=folder / paper, say=lambda line: None)
    assert all(path.stat().st_size > 0 for path in paths.values())
    # Drawing and claims see the saved file alone.
    table = json.loads(paths["claims"].read_text(encoding="utf-8"))
    assert [row["verdict"] for row in table["claims"]] == [claim.verdict.value for claim in claims]
    # A bar within a cell of the table is escaped.
    assert all(claim.says.replace("|", "\\|") in paths["table"].read_text(encoding="utf-8") for claim in claims)
    dataset = papers.find_figure(paper, name).dataset
    saved: dict[str, dict[str, np.ndarray]] = {part: {} for part in dataset.parts}
    with np.load(paths["data"]) as archive:
        for place, values in archive.items():
            part, field = place.split(".")
            saved[part][field] = values
    FIGURES[paper, name](dataset.typed(saved), claims)


@pytest.mark.slow
def test_a_token_that_comes_late_is_waited_for() -> None:
    """By the program of figure 9: s* gives it 0.0075; at log t = 30 it has 5e-12 and is still losing."""
    key = jax.random.split(jax.random.fold_in(jax.random.key(0), 9), 20)[8]
    found = concave.flow_batch(concave.draw_batch(10, 10, jnp.stack([key] * 4), jnp.full(4, 0.1)))
    assert np.all(found.late) and np.all(found.good)
    assert float(found.error_early[0]) > 7e-3
    assert float(jnp.max(found.error)) <= 1e-8
    np.testing.assert_array_equal(np.sum(np.asarray(found.attention) > concave.SELECTED, axis=1), 2)

"""`verify`: a tiny run end to end, the counterexamples, and what checks draw, follow and enumerate."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxflow import papers
from jaxflow._core import Outcome
from jaxflow.data import optimal_tokens
from jaxflow.losses import Logistic
from jaxflow.margin import attention_svm, solve
from jaxflow.models import CombinedAttention, token_scores
from jaxflow.papers import registry
from jaxflow.papers.dataset import Draw
from jaxflow.papers.statement import hold
from jaxflow.papers.table import Table, joined, stacked
from jaxflow.papers.tarzanagh2023.verify import (
    descents,
    equal_scores,
    feasibility,
    follow,
    hypotheses,
    inequalities,
    instances,
    local_convergence,
    path_limits,
    sequences,
)
from jaxflow.papers.tarzanagh2023.verify.follow import misalignment
from jaxflow.papers.tarzanagh2023.verify.instances import equal_scores as draw_equal_scores
from jaxflow.papers.verdicts import Verdict
from jaxflow.risk import EmpiricalRisk
from tests.docs.pages import DOCS
from tests.papers.recorded import entry_of


def test_lemma_10_fails_along_the_wrong_limit() -> None:
    ratios = inequalities._lemma10()
    # cos of the angle between e_1 and (1, 2.5/1.3), by hand.
    assert float(ratios[-1]) == pytest.approx(float(np.hypot(1.0, 2.5 / 1.3)), abs=1e-6)


def test_padding_changes_no_gradient() -> None:
    start = jax.random.normal(jax.random.key(5), (2, 2))
    given = instances.instance(*draw_equal_scores(jax.random.key(4), 2, 3, 2), start)

    @jax.jit
    def gradient(given: Table) -> Any:
        risk = EmpiricalRisk(given.data, Logistic(), reduction="sum")
        scaled: Any = risk.scaled_gradient(CombinedAttention(given.start, given.head))
        return jnp.exp(scaled.log_scale) * scaled.gradient.W

    narrow, wide = (np.asarray(gradient(one)) for one in (given, instances.padded(given, (3, 4, 5))))
    assert np.allclose(wide[:2, :2], narrow, atol=1e-14)
    assert np.all(wide[2:] == 0) and np.all(wide[:, 2:] == 0)


def test_drawn_programs_have_the_sizes_asked_for() -> None:
    batch = feasibility._draw(3, 4, 2, True, jax.random.split(jax.random.key(0), 2))
    tokens = np.asarray(batch.data.tokens)[0, 0]
    assert np.all(tokens[:, :, 2:] == 0)
    assert np.allclose(np.linalg.norm(tokens, axis=-1), 1.0)
    assert np.array_equal(np.asarray(batch.data.queries)[0, 0], tokens[:, 0])
    seen = np.asarray(batch.data.visible)[0, 0]
    assert list(seen.sum(axis=1)) == [4, 4, 4, 1, 1, 1]
    assert np.all(np.asarray(batch.target)[..., :].sum(axis=-1) == 1)
    assert not np.any(np.asarray(batch.target) & ~np.asarray(batch.data.visible))


@pytest.mark.slow
def test_descent_from_near_a_direction_goes_on_towards_it() -> None:
    # Equal scores and one sequence: the optimal token's direction is the only one.
    data, head = draw_equal_scores(jax.random.key(1), 1, 5, 4)
    given = instances.instance(data, head)
    aim = solve(attention_svm(data, given.target, "frobenius")).primal
    given = instances.instance(data, head, 20.0 * aim + jax.random.normal(jax.random.key(2), aim.shape))
    near = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], given)
    after, found = local_convergence.descents(near, 5)
    # A thousand times the share of a step squared.
    assert float(found["near_last"][0]) < 0.1 * float(found["near_first"][0])
    # So far out, steps of plain descent are shorter than rounding.
    assert float(jnp.linalg.norm(after.start[0] - given.start)) < 1e-6


def test_a_flow_that_runs_out_of_steps_goes_on_from_where_it_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    data, head = draw_equal_scores(jax.random.key(1), 1, 5, 4)
    given = stacked([instances.padded(instances.instance(data, head)) for _ in range(3)])
    starts = []

    def block(part: Any) -> Table:
        """From zero all but the first run out of steps at W = 1; from there the second one is certified."""
        starts.append(np.asarray(part.start[:3, 0, 0]))
        width = part.head.shape[0]
        first = bool(starts[-1][0] == 0.0)
        gap = [1e-12, 1.0, 1.0] if first else [1e-12, 1.0]
        gap = jnp.asarray([*gap, *[1.0] * (width - len(gap))])
        outcome = jnp.where(gap <= follow.CERTIFIED, Outcome.globally_optimal.value, Outcome.undecided.value)
        names = ("feasible", "selected", "target_attention", "misaligned", "lost_gap")
        ones = {name: jnp.ones(width) for name in names}
        return Table(ones, outcome=outcome, flow_gap=gap, weights=jnp.ones_like(part.start))

    monkeypatch.setattr(follow, "_block", block)
    found = follow.follow(given)
    assert [list(one) for one in starts] == [[0.0] * 3, [1.0] * 3]
    assert (found.outcome == Outcome.globally_optimal.value).tolist() == [True, True, False]


def test_a_start_has_the_angle_and_the_norm_asked_for() -> None:
    W, noise = np.asarray(jax.random.normal(jax.random.key(0), (2, 3, 3)))
    start = local_convergence.near(W, noise, 0.1, 7.0)
    assert float(misalignment(jnp.asarray(start), jnp.asarray(W))) == pytest.approx(0.1)
    assert np.linalg.norm(start) == pytest.approx(7.0 * np.linalg.norm(W))


def test_inequalities_hold_or_not_at_a_few_points(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(inequalities.TRIALS, "quick", 20)
    raw = {
        name: part.compute("quick", inequalities.INEQUALITIES.key(name, 0)).named
        for name, part in inequalities.INEQUALITIES.parts.items()
        if isinstance(part, papers.Sweep)
    }
    numbers = inequalities.INEQUALITIES.typed(jax.tree.map(np.asarray, raw))
    found, _ = entry_of("tarzanagh2023", "inequalities").find(numbers, Draw(inequalities.INEQUALITIES, "quick", 0))
    broken, true = (
        [row.source for row in found if row.verdict is one] for one in (Verdict.counterexample_found, Verdict.holds)
    )
    assert broken == ["Lemma 9", "Lemma 10", "§4.1"]
    assert true == ["Theorem 3", "Lemma 2", "Lemma 2", "Lemma 9", "Lemma 6", "Lemma 7"]


def test_a_paper_without_checks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_ENTRIES", {})
    with pytest.raises(ValueError, match="nothing of tarzanagh2023 is verified yet"):
        papers.verify("tarzanagh2023")


def test_points_of_paths_are_compared_with_their_program() -> None:
    radii = 2.0 ** np.arange(12)
    columns = {name: np.ones((3, radii.size)) for name in ("found", "margin", "balance")}
    weights = np.broadcast_to(np.eye(2), (3, radii.size, 2, 2))
    given = Table(columns, weights=weights)
    paths = path_limits.paths_of(given, radii, np.ones(3, bool), np.stack([np.eye(2)] * 3))
    assert not paths.distance.any()
    assert np.allclose(paths.size, 2.0 / radii) and np.isnan(paths.above).all()
    # A norm of R at margin one, where the optimum is two.
    assert np.allclose(path_limits.above_optimum(radii, given.margin, np.stack([np.eye(2)] * 3)), radii / 2.0 - 1.0)


def test_factors_are_balanced_and_multiply_to_the_matrix() -> None:
    W = np.random.default_rng(0).normal(size=(2, 3, 3))
    K, Q = instances.factors(W, 3)
    assert np.allclose(K @ np.swapaxes(Q, 1, 2), W)
    assert np.allclose(np.swapaxes(K, 1, 2) @ K, np.swapaxes(Q, 1, 2) @ Q)
    assert np.allclose(instances.apart(W, -3.0 * W), 2.0) and np.all(instances.unit(np.zeros((1, 2, 2))) == 0)
    choices = instances.choices_of_tokens(2, 3)
    assert choices.shape == (9, 2) and len(np.unique(choices, axis=0)) == 9


@pytest.mark.parametrize("spread", [0.0, 1e-3])
def test_drawn_scores_differ_by_no_more_than_the_spread(spread: float) -> None:
    """Without a spread they are equal to the last bit."""
    given = equal_scores._near(2, 4, 3, jax.random.split(jax.random.key(0), 3), spread)
    ordered = np.sort(np.asarray(jax.vmap(token_scores)(given.data, given.head))[:, :2, :4], axis=-1)
    apart = ordered[..., -2] - ordered[..., 0]
    assert np.all(apart <= spread) and np.any(apart > 0) == (spread > 0)
    assert np.all(ordered[..., -1] > ordered[..., -2])
    best = jax.vmap(lambda a, v: optimal_tokens(token_scores(a, v), a.visible))(given.data, given.head)
    assert jnp.array_equal(best, given.target)


def test_descents_that_do_not_grow_yet_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def growing(name: str, shape: Any, keys: Any, steps: int) -> tuple[np.ndarray, ...]:
        asked.append((keys.shape[0], steps))
        log_gradient = np.log(np.array([[1e-2, 1e-3, 1e-4], [1e-2, 1e-3, 9e-4]]))[-keys.shape[0] :]
        norm = np.array([[1.0, 2.0, 3.0], [1.0, 2.0, 2.1]])[-keys.shape[0] :]
        return np.ones(keys.shape[0], bool), norm, log_gradient

    monkeypatch.setattr(descents, "_growing", growing)
    part = descents.growing_longer(jax.random.split(jax.random.key(0), 2), ("B.1", 100, 1000))
    assert asked == [(2, 100), (1, 1000)]
    assert np.isnan(part.norm[0, 1]).all() and part.norm[1, 1, 2] == 2.1


def test_losses_satisfy_assumption_A_and_a_wrong_constant_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    def found() -> Any:
        slopes = stacked([hypotheses.losses(name, jax.random.key(0), 2) for name in hypotheses.LOSSES])
        return hold(hypotheses.A, Table(slopes=slopes))

    assert found().verdict is Verdict.holds
    loss, _, M1 = hypotheses.LOSSES["logistic"]
    monkeypatch.setitem(hypotheses.LOSSES, "logistic", (loss, 0.2, M1))
    assert found().verdict is Verdict.not_settled and found().evidence.contradicted > 0


def test_heads_of_assumption_E() -> None:
    keys = jax.random.split(jax.random.key(0), 4)
    found = {name: np.asarray(hypotheses.top_score(name, keys)) for name in ("linear", "concave")}
    assert np.all(found["linear"] <= hypotheses.ROUNDING) and np.any(found["concave"] > hypotheses.ROUNDING)


def test_every_statement_has_a_row_in_the_table_of_claims() -> None:
    table = (DOCS / "claims" / "tarzanagh2023-theorems.md").read_text(encoding="utf-8")
    sources = {line.split("|")[1].strip() for line in table.splitlines() if line.startswith("| ")}
    wanted = {f"Theorem {k}" for k in range(1, 11)} | {f"Lemma {k}" for k in range(1, 7)}
    wanted |= {f"Assumption {name}" for name in ("A", "B.1", "B.2", "C", "D", "E")}
    assert wanted <= sources


def test_sequences_are_separated_as_lemma_16_says_or_not() -> None:
    keys = jax.random.split(jax.random.key(0), 2)
    parts = [sequences.choices_of(0, key) for key in keys]
    found = joined(parts)
    assert found.optimal.sum() == 2 and np.isposinf(found.anywhere[found.optimal]).all()
    said = [hold(statement, Table(choices=found)) for statement in sequences.lemma16(0)]
    assert [one.evidence.inside + one.outside for one in said] == [len(found.status)] * 4


@pytest.mark.slow
def test_a_few_paths_of_sequences_tend_to_their_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequences, "LEVELS", 6)
    keys = jax.random.split(jax.random.key(0), 2)
    cells = [(sequences.PATHS[0], factored) for factored in (False, True)]
    combined, factored = (sequences.paths_on(keys, cell) for cell in cells)
    assert combined.inside.any() and np.all(combined.radii[:, -1] == 4.0**5)
    # Distances fall like the size of W^mm over R, which is about a thousand.
    assert combined.distance[combined.inside, -1].max() < 0.1
    # Lemma 15.
    assert np.allclose(factored.size[factored.found], 1.0) and factored.balance[factored.found].max() < 1e-5

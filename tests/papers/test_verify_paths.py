"""Checks by regularisation paths, nearly equal scores, descent and cones: verdicts follow made-up numbers."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxflow
from jaxflow._core import Outcome, SelectionStatus
from jaxflow.data import optimal_tokens
from jaxflow.limits import PathStatus
from jaxflow.margin import ProgramResult
from jaxflow.models import token_scores
from jaxflow.papers.statement import hold
from jaxflow.papers.tarzanagh2023.verify import (
    cone_lemmas,
    descents,
    hypotheses,
    local_paths,
    nearly_equal,
    paths,
    sequence_paths,
    sequences,
)
from jaxflow.papers.tarzanagh2023.verify.follow import Ends
from jaxflow.papers.tarzanagh2023.verify.nearly_equal import NearlyEqualNumbers
from jaxflow.papers.tarzanagh2023.verify.path_instances import apart, choices_of_tokens, factors, unit
from jaxflow.papers.tarzanagh2023.verify.path_rows import rate_of, row_of_path
from jaxflow.report import Finding, Verdict

OPTIMAL, INFEASIBLE = ProgramResult.optimal.value, ProgramResult.infeasible.value
RADII = 2.0 ** np.arange(12)


def path_data(**more: Any) -> dict[str, Any]:
    shape = (3, 3, RADII.size)
    data = {
        "radii": RADII,
        "P_status": np.full(shape, PathStatus.stationary.value),
        "P_objective": np.zeros(shape),
        "P_residual": np.full((3, RADII.size), 1e-12),
        "P_found": np.ones((3, RADII.size), bool),
    }
    return data | more


INSIDE = np.ones(3, bool)


def test_distances_that_fall_like_one_over_R_hold_at_this_rate() -> None:
    row = row_of_path("Theorem 2", "", path_data(), "P", INSIDE, np.stack([3.0 / RADII] + [1.0 / RADII] * 2), "")
    assert row.verdict is Verdict.holds_at_this_rate and row.values["reached"] == 3
    assert row.worst == pytest.approx(3.0 / 2048)


@pytest.mark.parametrize(
    ("distance", "inside", "verdict"),
    [
        ([np.full(12, 0.5)] * 3, INSIDE, Verdict.not_settled),
        ([np.full(12, 0.5), 1.0 / RADII, 1.0 / RADII], INSIDE, Verdict.not_settled),
        ([RADII**-0.6] * 3, INSIDE, Verdict.not_settled),
        ([1.0 / RADII] * 3, ~INSIDE, Verdict.outside_hypotheses),
    ],
)
def test_what_does_not_fall_does_not_hold(distance: list[np.ndarray], inside: np.ndarray, verdict: Verdict) -> None:
    row = row_of_path("Theorem 2", "", path_data(), "P", inside, np.stack(distance), "")
    assert row.verdict is verdict
    assert row.instances + row.outside == 3


def test_a_path_without_stationary_points_is_not_counted_as_reached() -> None:
    found = np.ones((3, RADII.size), bool)
    found[1, -1] = False
    row = row_of_path("Theorem 2", "", path_data(P_found=found), "P", INSIDE, np.stack([1.0 / RADII] * 3), "")
    assert row.values["reached"] == 2 and row.verdict is Verdict.not_settled


def test_another_solution_of_equal_norm_belongs_to_the_set() -> None:
    distance, above = np.stack([np.full(12, 0.5)] + [1.0 / RADII] * 3), np.stack([2.0 / RADII] * 4)
    four = {name: np.concatenate([x, x[:1]]) if name != "radii" else x for name, x in path_data().items()}
    every = np.ones(4, bool)
    row = row_of_path("Theorem 2", "", four, "P", every, distance, "", above)
    assert row.verdict is Verdict.holds_at_this_rate and "1 tend to another solution" in row.measured
    off = row_of_path("Theorem 2", "", four, "P", every, distance, "", above + 0.3)
    assert off.verdict is not Verdict.holds_at_this_rate


def test_starts_that_end_higher_are_counted() -> None:
    objective = np.zeros((3, 3, RADII.size))
    objective[0, 1, -1] = 5.0
    status = np.full(objective.shape, PathStatus.stationary.value)
    status[1, 0, -1] = PathStatus.flat.value
    data = path_data(P_objective=objective, P_status=status)
    row = row_of_path("Theorem 2", "", data, "P", INSIDE, np.stack([1.0 / RADII] * 3), "")
    assert row.values["local"] == 2


def test_rates_are_exponents() -> None:
    assert rate_of(RADII, 7.0 * RADII[None] ** -1.5) == pytest.approx(np.array([-1.5]))


def test_factors_are_balanced_and_multiply_to_the_matrix() -> None:
    W = np.random.default_rng(0).normal(size=(2, 3, 3))
    K, Q = factors(W, 3)
    assert np.allclose(K @ np.swapaxes(Q, 1, 2), W)
    assert np.allclose(np.swapaxes(K, 1, 2) @ K, np.swapaxes(Q, 1, 2) @ Q)
    assert np.allclose(apart(W, -3.0 * W), 2.0) and np.all(unit(np.zeros((1, 2, 2))) == 0)
    assert choices_of_tokens(2, 3).shape == (9, 2) and len({tuple(x) for x in choices_of_tokens(2, 3)}) == 9


def lemma3(value: float, rank: int, result: int = ProgramResult.stationary.value) -> Any:
    data = {"shape": np.array([3, 3, 3])}
    for name, part in (("", {"value": 2.0, "rank": rank, "result": OPTIMAL}), ("2", {"value": value, "rank": 2})):
        full = {"result": result} | part
        data |= {f"nuclear{name}_{what}": np.array([x]) for what, x in full.items()}
        data[f"nuclear{name}_weights"] = np.eye(3)[None]
    return paths._row_lemma3(data)


def test_lemma_3_compares_values_where_the_convex_solution_has_the_rank() -> None:
    assert lemma3(2.0, 2).verdict is Verdict.holds
    assert lemma3(2.1, 2).verdict is Verdict.not_settled and lemma3(2.1, 2).evidence.contradicted == 1
    unanswered = lemma3(2.0, 2, ProgramResult.budget_spent.value)
    assert unanswered.verdict is Verdict.not_settled and unanswered.evidence.undecided == 1
    larger = lemma3(2.1, 3)
    assert (larger.verdict, larger.values["larger"], larger.outside) == (Verdict.outside_hypotheses, 1, 1)


def ends(selected: Any, gap: Any = 1e-12, **more: Any) -> Ends:
    """Flows to the target in its direction where it is selected, and far from it elsewhere."""
    chosen = np.asarray(selected)
    found: dict[str, Any] = {"outcome": 0, "log_time": 500.0, "feasible": OPTIMAL, "selected": chosen}
    found |= {"target_attention": 1.0, "misaligned": np.where(chosen, 1e-15, 0.4), "flow_gap": gap, "norm": 1.0}
    found |= {"lost_gap": np.inf, "continued": False} | more
    return Ends(**{name: np.broadcast_to(np.asarray(value), chosen.shape).copy() for name, value in found.items()})


def flows(name: str, selected: list[bool], gap: float = 1e-12) -> dict[str, np.ndarray]:
    return {f"{name}_{what}": value for what, value in ends(selected, gap)._asdict().items()}


def near(columns: list[list[bool]], gap: Any = 1e-12) -> NearlyEqualNumbers:
    """Of both sizes the same two instances at every spread."""
    cells = np.stack([np.array(columns)] * 2)
    return NearlyEqualNumbers(ends(cells, np.broadcast_to(np.asarray(gap), cells.shape)), ends([True]))


def test_theorem_5_wants_some_delta() -> None:
    said = nearly_equal.near(0)
    columns = [[False, True], [True, True], [False, True], [False, False]]
    assert hold(said, near(columns)).verdict is Verdict.holds
    columns[1] = [False, True]
    found = hold(said, near(columns))
    assert found.verdict is Verdict.counterexample_found and found.evidence.contradicted == 1
    # Not certified elsewhere: open, not lost.
    gaps = np.full((4, 2), 1e-12)
    gaps[1] = 1.0
    assert hold(said, near(columns, gaps)).verdict is Verdict.not_settled


def test_with_two_tokens_every_delta_will_do() -> None:
    def pairs(selected: list[bool], gap: float = 1e-12) -> Any:
        return hold(nearly_equal.TWO_TOKENS, near([[True]] * 4)._replace(pairs=ends(selected, gap)))

    assert pairs([True, True, True]).verdict is Verdict.holds
    lost = pairs([False, True, True])
    assert lost.verdict is Verdict.counterexample_found and "the explicit case is certified" in lost.measured
    open_ = pairs([False, True, True], gap=1.0)
    assert open_.verdict is Verdict.not_settled and open_.evidence.undecided == 3


def test_drawn_scores_differ_by_no_more_than_the_spread() -> None:
    keys = jax.random.split(jax.random.key(0), 3)
    given = nearly_equal._near(2, 4, 3, keys, 1e-3)
    scores = np.asarray(jax.vmap(token_scores)(given.data, given.head))[:, :2, :4]
    ordered = np.sort(scores, axis=-1)
    assert np.all(ordered[..., -2] - ordered[..., 0] <= 1e-3) and np.any(ordered[..., -2] > ordered[..., 0])
    best = jax.vmap(lambda a, v: optimal_tokens(token_scores(a, v), a.visible))(given.data, given.head)
    assert jnp.array_equal(best, given.target)


LATER = {"later_log_gradient": np.full((3, 3), np.nan), "later_norm": np.full((3, 3), np.nan), "later": np.asarray(10)}


def growing(log_gradient: list[float], norm: list[float], later: Any = None, optimal: bool = True) -> Any:
    """Three instances alike."""
    part = LATER | {"result": np.full(3, OPTIMAL if optimal else OPTIMAL + 1), "support": np.ones(3, bool)}
    part |= {"log_gradient": np.log(np.array([log_gradient] * 3)), "norm": np.array([norm] * 3)}
    if later is not None:
        part |= {"later_log_gradient": np.log(np.array([later[0]] * 3)), "later_norm": np.array([later[1]] * 3)}
    return descents._row_3({f"B.2_{name}": x for name, x in part.items()} | {"steps": np.asarray(1000)}, "B.2")


def test_theorem_3_wants_a_falling_gradient_and_a_growing_norm() -> None:
    assert growing([1e-2, 1e-3, 1e-4], [1.0, 2.0, 3.0]).verdict is Verdict.holds_at_this_rate
    slow = ([1e-2, 1e-3, 9e-4], [1.0, 2.0, 2.1])
    assert growing(*slow).verdict is Verdict.not_settled and growing(*slow).evidence.undecided == 3
    # At rest: against it, and checked by nothing else.
    rest = growing([1e-2, 1e-3, 1e-9], [1.0, 2.0, 2.0])
    assert rest.verdict is Verdict.not_settled and rest.evidence.contradicted == 3
    # Falling, but not like 1/k.
    assert growing([1e-2, 1e-3, 4e-4], [1.0, 2.0, 3.0]).verdict is Verdict.not_settled
    # Those that were still on their way are asked again, after many more steps.
    row = growing(*slow, later=([9e-4, 1e-5, 1e-6], [2.1, 3.0, 4.0]))
    assert row.verdict is Verdict.holds_at_this_rate and "in 3 of the other 3" in row.measured
    assert growing(*slow, later=([9e-4, 9e-4, 8e-4], [2.1, 3.0, 4.0])).verdict is Verdict.not_settled
    assert growing(*slow, later=([9e-4, 1e-5, 1e-6], [2.1, 3.0, 3.0])).evidence.contradicted == 3
    assert growing(*slow, optimal=False).verdict is Verdict.outside_hypotheses


def test_descents_that_do_not_grow_yet_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def growing(name: str, shape: Any, keys: Any, steps: int) -> dict[str, np.ndarray]:
        asked.append((keys.shape[0], steps))
        log_gradient = np.log(np.array([[1e-2, 1e-3, 1e-4], [1e-2, 1e-3, 9e-4]]))[-keys.shape[0] :]
        norm = np.array([[1.0, 2.0, 3.0], [1.0, 2.0, 2.1]])[-keys.shape[0] :]
        size = keys.shape[0]
        return {
            "result": np.full(size, OPTIMAL),
            "support": np.ones(size, bool),
            "log_gradient": log_gradient,
            "norm": norm,
        }

    monkeypatch.setattr(descents, "_growing", growing)
    part = descents._growing_longer("B.1", (2, 3, 4), jax.random.split(jax.random.key(0), 2), 100, 1000)
    assert asked == [(2, 100), (1, 1000)]
    assert np.isnan(part["later_norm"][0]).all() and part["later_norm"][1, 2] == 2.1


def test_theorem_6_is_judged_where_assumption_C_holds() -> None:
    ends = {name.removeprefix("0_"): x for name, x in flows("0", [True, False]).items()}
    data = {f"C0_0_{name}": x for name, x in ends.items()}
    data |= {"C0_result": np.full(2, OPTIMAL), "C0_first": np.ones((2, 3)), "lead": np.asarray(10)}
    data |= {"C0_ratio": np.array([60.0, 60.0])}
    holds = data | {"C0_holds": np.array([True, False])}
    assert descents._row_6(holds, 0, 0).verdict is Verdict.holds
    both = data | {"C0_holds": np.array([True, True])}
    row = descents._row_6(both, 0, 0)
    assert (row.verdict, row.values["elsewhere"]) == (Verdict.counterexample_found, 1)
    # Not certified elsewhere: open.
    still = both | {"C0_0_flow_gap": np.ones(2)}
    assert descents._row_6(still, 0, 0).verdict is Verdict.not_settled
    # The proof's first step is larger than the statement allows, whatever becomes of it.
    large = {name.replace("C0_0_", "C0_2_"): x for name, x in both.items()}
    assert descents._row_6(large, 0, 2).verdict is Verdict.outside_hypotheses
    assert descents._row_6(large | {"C0_ratio": np.array([0.5, 60.0])}, 0, 2).verdict is Verdict.holds


def cone(**more: Any) -> cone_lemmas.Cone:
    """One instance at the norms of the check, its push within the bounds and its π falling like 1/R."""
    ones, yes = np.ones((1, 4)), np.ones(1, bool)
    pi = np.array([[0.64, 0.16, 0.04, 0.01]])
    found = cone_lemmas.Cone(yes, ~yes, ones, 1.0 + pi, 0.5 * ones, 2.0 * ones, ones[:, 0], ones[:, 0])
    return found._replace(**{name: np.broadcast_to(value, (1, 4)) for name, value in more.items()})


def judged(number: int, optimal: cone_lemmas.Cone, ranks: cone_lemmas.Ranks) -> Finding:
    local = cone_lemmas.Cone(*(np.stack([x] * 2) for x in optimal))
    return hold(cone_lemmas.STATEMENTS[number], cone_lemmas.ConeLemmaNumbers(optimal, local, ranks))


RANKS = cone_lemmas.matrices(np.random.default_rng(1), 20)


@pytest.mark.parametrize("number", [1, 2])
def test_bounds_are_bounds(number: int) -> None:
    found = judged(number, cone(), RANKS)
    assert found.verdict is Verdict.holds and found.worst == 0.5
    for name, value in (("push", -1.0), ("push", 0.0), ("lower", 1.1), ("upper", 0.9)):
        found = judged(number, cone(**{name: [1.0 if name == "push" else 0.5, 1.0, value, 1.0]}), RANKS)
        assert found.verdict is Verdict.not_settled and found.evidence.contradicted == 1
    # What is not known contradicts nothing.
    assert judged(number, cone(push=np.nan), RANKS).evidence.undecided == 1


@pytest.mark.parametrize("number", [0, 4])
def test_pi_must_fall_with_the_radius(number: int) -> None:
    found = judged(number, cone(), RANKS)
    assert found.verdict is Verdict.holds_at_this_rate and found.worst == pytest.approx(0.01)
    found = judged(number, cone(ratio=1.6), RANKS)
    assert found.verdict is Verdict.not_settled and found.evidence.undecided == 1


def test_a_sign_is_judged_where_a_support_set_is_empty() -> None:
    assert judged(3, cone(), RANKS).verdict is Verdict.outside_hypotheses
    empty = cone()._replace(empty=np.ones(1, bool))
    assert judged(3, empty, RANKS).verdict is Verdict.holds
    # At the largest norm alone.
    for push, wrong in ((np.array([[-1.0, -1.0, -1.0, 1.0]]), 0), (np.array([[1.0, 1.0, 1.0, 0.0]]), 1)):
        assert judged(3, empty._replace(push=push), RANKS).evidence.contradicted == wrong
    assert judged(1, empty, RANKS).verdict is Verdict.holds
    assert judged(2, empty, RANKS).verdict is Verdict.outside_hypotheses


def test_lemma_17_on_random_matrices() -> None:
    assert judged(5, cone(), RANKS).verdict is Verdict.holds
    assert judged(5, cone(), RANKS._replace(least=np.zeros(20))).evidence.contradicted == 20


@pytest.mark.parametrize("number", range(len(sequences.CELLS)))
def test_limits_of_sequences_are_certified_local_and_those_of_their_program(number: int) -> None:
    gap = 1e-4 if sequences.CELLS[number].factored else 1e-10
    plain = {"outcome": 1, "status": 2, "flow_gap": gap, "certificate_gap": 0.0, "misaligned": gap, "unmasked": 1.1}
    plain |= {"first": True, "log_time": 30.0}

    def judged(**more: Any) -> Finding:
        cell = sequences.Limits(**{name: np.full(2, value) for name, value in (plain | more).items()})
        combined, factored = (sequences.Limits(*(np.stack([x] * cells) for x in cell)) for cells in (3, 1))
        return hold(sequences.solves(number), sequences.SequenceNumbers(combined, factored))

    # Of (K, Q) no rate is measured.
    assert judged().verdict is (Verdict.not_settled if sequences.CELLS[number].factored else Verdict.holds)
    assert judged().evidence.confirmed == 2 and judged().worst == gap
    for wrong in ({"misaligned": 0.1}, {"status": SelectionStatus.not_local.value}):
        assert judged(**wrong).verdict is Verdict.counterexample_found
    for unknown in ({"flow_gap": 0.1}, {"status": SelectionStatus.ambiguous.value}, {"misaligned": np.nan}):
        assert judged(**unknown).evidence.undecided == 2
    still = {"outcome": Outcome.finite_stationary_point.value}
    assert judged(**still, flow_gap=0.1).verdict is Verdict.outside_hypotheses
    assert judged(**still).evidence.confirmed == 2


@pytest.fixture
def assumed() -> Any:
    """Numbers that satisfy all assumptions."""
    # Made-up numbers are made by functions of this module among others.
    from tests.papers.made_up import tarzanagh2023

    return tarzanagh2023.hypotheses_data()[0]


def test_losses_satisfy_assumption_A_and_a_wrong_constant_shows(assumed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def found() -> Any:
        slopes = [hypotheses.losses(name, jax.random.key(0), 2) for name in hypotheses.LOSSES]
        return hold(hypotheses.A, assumed._replace(slopes=jax.tree.map(lambda *values: np.stack(values), *slopes)))

    assert found().verdict is Verdict.holds
    loss, _, M1 = hypotheses.LOSSES["logistic"]
    monkeypatch.setitem(hypotheses.LOSSES, "logistic", (loss, 0.2, M1))
    assert found().verdict is Verdict.not_settled and found().evidence.contradicted > 0


def test_heads_of_assumption_E() -> None:
    keys = jax.random.split(jax.random.key(0), 4)
    found = {name: np.asarray(hypotheses.top_score(name, keys)) for name in ("linear", "concave")}
    assert np.all(found["linear"] <= hypotheses.ROUNDING) and np.any(found["concave"] > hypotheses.ROUNDING)


def test_assumption_D_leaves_one_locally_optimal_direction(assumed: Any) -> None:
    support = jax.tree.map(np.copy, assumed.support)
    numbers = assumed._replace(support=support)
    support.meets[:, 1], support.others[:, 1] = False, 1
    assert hold(hypotheses.D, numbers).verdict is Verdict.holds
    support.others[0] = 1
    found = hold(hypotheses.D, numbers)
    assert found.verdict is Verdict.not_settled and found.evidence.contradicted == 1
    support.others[0, 0], support.unsure[:, 0] = 0, True
    assert hold(hypotheses.D, numbers).evidence.undecided == len(hypotheses.DIMENSIONS)


def test_assumption_C_is_empty_where_nothing_satisfies_it(assumed: Any) -> None:
    support = jax.tree.map(np.copy, assumed.support)
    numbers = assumed._replace(support=support)
    support.separating[:, 1] = False
    assert hold(hypotheses.C, numbers).verdict is Verdict.holds
    support.separating[0] = False
    assert hold(hypotheses.C, numbers).verdict is Verdict.not_settled


def test_local_paths_count_choices_outside_of_their_cones() -> None:
    n, T, d = local_paths.CELLS["frobenius"][1].shape
    m = local_paths.LEVELS
    part = {
        "depth": np.array([0.2, 0.2, 0.2, -0.1]),
        "weights": np.eye(d)[None, None]
        + np.ones((4, 1, d, d)) / (local_paths.GROWTH ** np.arange(m))[None, :, None, None],
        "aim": np.stack([np.eye(d)] * 4),
        "radii": 30.0 * np.stack([local_paths.GROWTH ** np.arange(m)] * 4),
        "bound": np.full(4, 30.0),
        "slack": np.full((4, m), 0.1),
        "empty": np.array([False, False, False, True]),
        "status": np.full((4, 5, m), PathStatus.stationary.value),
        "objective": np.zeros((4, 5, m)),
        "residual": np.full((4, m), 1e-12),
        "found": np.ones((4, m), bool),
    }
    data = {f"frobenius_{name}": x for name, x in part.items()}
    row = local_paths._row(data, "frobenius", *local_paths.CELLS["frobenius"])
    assert (row.verdict, row.instances, row.outside) == (Verdict.holds_at_this_rate, 3, 1)
    assert "outside of every cone_ε(α) in 1" in row.measured


def test_every_statement_has_a_row_in_the_table_of_claims() -> None:
    table = (Path(jaxflow.__file__).parents[1] / "docs/claims/tarzanagh2023-theorems.md").read_text(encoding="utf-8")
    sources = {line.split("|")[1].strip() for line in table.splitlines() if line.startswith("| ")}
    wanted = {f"Theorem {k}" for k in range(1, 11)} | {f"Lemma {k}" for k in range(1, 7)}
    wanted |= {f"Assumption {name}" for name in ("A", "B.1", "B.2", "C", "D", "E")}
    assert wanted <= sources


def test_sequences_are_separated_as_lemma_16_says_or_not() -> None:
    shape = sequence_paths.CONES[0]
    found = sequence_paths.choices_of(shape, jax.random.split(jax.random.key(0), 2))
    assert found.optimal.sum() == 2 and np.isposinf(found.anywhere[found.optimal]).all()
    rows = sequence_paths._rows_of_cones(found, shape)
    assert [row.instances + row.outside for row in rows] == [len(found.status)] * 4
    by_hand = sequence_paths.Choices(*(np.asarray(column) for column in zip(*CONE_ROWS, strict=True)))
    verdicts = [row.verdict for row in sequence_paths._rows_of_cones(by_hand, shape)]
    # The second choice has an empty set and is not in the cone; the last is too close to call.
    assert verdicts == [Verdict.holds, Verdict.counterexample_found, Verdict.not_settled, Verdict.holds]


LOCAL, OTHER = SelectionStatus.local.value, SelectionStatus.not_local.value
# Status, empty, near, depth, optimal, anywhere.
CONE_ROWS = [
    (LOCAL, False, False, 0.3, True, np.inf),
    (LOCAL, True, False, -np.inf, False, 0.1),
    (OTHER, False, False, -0.2, False, 0.1),
    (OTHER, False, True, 1e-7, False, 0.1),
]


def test_a_few_paths_of_sequences_tend_to_their_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequence_paths, "LEVELS", 6)
    shape = sequence_paths.PATHS[0]
    keys = jax.random.split(jax.random.key(0), 3)
    part = sequence_paths._paths(shape, keys[:-1], keys[-1])
    inside = part.result == OPTIMAL
    assert inside.any() and part.radii[-1] == 4.0**5
    end = apart(np.asarray(part.W["weights"]), part.aim[:, None])[:, -1]
    # Distances fall like the size of W^mm over R, which is about a thousand.
    assert end[inside].max() < 0.1

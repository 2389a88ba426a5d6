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
from jaxflow.margin import ProgramResult
from jaxflow.models import token_scores
from jaxflow.papers.claims import Finding
from jaxflow.papers.statement import Statement, hold
from jaxflow.papers.table import Table, joined, stacked
from jaxflow.papers.tarzanagh2023.verify import (
    cone_lemmas,
    descents,
    hypotheses,
    local_paths,
    nearly_equal,
    path_limits,
    paths,
    sequence_paths,
    sequences,
)
from jaxflow.papers.tarzanagh2023.verify.path_instances import apart, choices_of_tokens, factors, unit
from jaxflow.papers.tarzanagh2023.verify.regularization_path import PathStatus
from jaxflow.papers.verdicts import Verdict

OPTIMAL, INFEASIBLE = ProgramResult.optimal.value, ProgramResult.infeasible.value
RADII = 2.0 ** np.arange(12)


INSIDE = np.ones(3, bool)
# Numbers that are one set of paths.
TENDS: Statement[Any] = path_limits.tends("Theorem 2", "", lambda paths: paths)


def made_up(distance: Any, radii: np.ndarray = RADII, **more: Any) -> Table:
    """Paths from three starts at these distances `(b, m)`, all found."""
    distance = np.stack(distance)
    shape, plain = distance.shape, np.zeros(distance.shape)
    found: dict[str, Any] = {
        "radii": np.tile(radii, (shape[0], 1)),
        "starts": np.full(shape[0], 3),
        "inside": np.ones(shape[0], bool),
    }
    found |= {"found": np.ones(shape, bool), "residual": plain + 1e-12, "distance": distance, "above": plain + np.nan}
    found |= {"elsewhere": np.zeros(shape[0], int), "size": plain + 1.0, "balance": plain, "slack": plain + 0.1}
    return Table(found | {"flows": np.ones((shape[0], 2), bool)} | more)


def test_distances_that_fall_like_one_over_R_hold_at_this_rate() -> None:
    found = hold(TENDS, made_up([3.0 / RADII] + [1.0 / RADII] * 2))
    assert found.verdict is Verdict.holds_at_this_rate and found.evidence.confirmed == 3
    assert found.worst == pytest.approx(3.0 / 2048)


@pytest.mark.parametrize(
    ("distance", "inside", "verdict"),
    [
        ([np.full(12, 0.5)] * 3, INSIDE, Verdict.not_settled),
        ([np.full(12, 0.5), 1.0 / RADII, 1.0 / RADII], INSIDE, Verdict.not_settled),
        ([RADII**-0.6] * 3, INSIDE, Verdict.not_settled),
        # Near, but no longer on its way.
        ([np.full(12, 1e-3), 1.0 / RADII, 1.0 / RADII], INSIDE, Verdict.not_settled),
        ([1.0 / RADII] * 3, ~INSIDE, Verdict.outside_hypotheses),
    ],
)
def test_what_does_not_fall_does_not_hold(distance: list[np.ndarray], inside: np.ndarray, verdict: Verdict) -> None:
    found = hold(TENDS, made_up(distance, inside=inside))
    assert found.verdict is verdict and found.evidence.contradicted == 0
    assert found.evidence.inside + found.outside == 3


def test_a_path_without_stationary_points_is_not_counted_as_reached() -> None:
    paths = made_up([1.0 / RADII] * 3)
    paths.found[1, -1] = False
    found = hold(TENDS, paths)
    assert found.evidence.confirmed == 2 and found.verdict is Verdict.not_settled


def test_another_solution_of_equal_norm_belongs_to_the_set() -> None:
    above = np.stack([2.0 / RADII] * 4)
    four = made_up([np.full(12, 0.5)] + [1.0 / RADII] * 3, above=above)
    found = hold(TENDS, four)
    assert found.verdict is Verdict.holds_at_this_rate
    assert hold(TENDS, four.replace(above=above + 0.3)).verdict is Verdict.not_settled


def test_starts_that_end_higher_are_counted() -> None:
    objective = np.zeros((3, 3, RADII.size))
    objective[0, 1, -1] = 5.0
    status = np.full(objective.shape, PathStatus.stationary.value)
    status[1, 0, -1] = PathStatus.flat.value
    plain = np.ones((3, RADII.size))
    weights = np.broadcast_to(np.eye(2), (3, RADII.size, 2, 2))
    names = ("weights", "margin", "status", "objective", "found", "residual", "slack", "balance")
    columns = (weights, plain, status, objective, plain > 0, plain, plain, plain)
    given = Table(zip(names, columns, strict=True))
    paths = path_limits.paths_of(given, RADII, INSIDE, np.stack([np.eye(2)] * 3))
    assert paths.elsewhere.tolist() == [1, 1, 0] and not paths.distance.any()
    assert np.allclose(paths.size, 2.0 / RADII) and np.isnan(paths.above).all()
    # A norm of R at margin one, where the optimum is two.
    assert np.allclose(path_limits.above_optimum(RADII, plain, np.stack([np.eye(2)] * 3)), RADII / 2.0 - 1.0)


def test_factors_are_balanced_and_multiply_to_the_matrix() -> None:
    W = np.random.default_rng(0).normal(size=(2, 3, 3))
    K, Q = factors(W, 3)
    assert np.allclose(K @ np.swapaxes(Q, 1, 2), W)
    assert np.allclose(np.swapaxes(K, 1, 2) @ K, np.swapaxes(Q, 1, 2) @ Q)
    assert np.allclose(apart(W, -3.0 * W), 2.0) and np.all(unit(np.zeros((1, 2, 2))) == 0)
    assert choices_of_tokens(2, 3).shape == (9, 2) and len({tuple(x) for x in choices_of_tokens(2, 3)}) == 9


def lemma3(value: float, rank: int, result: int = ProgramResult.stationary.value) -> Any:
    given = Table(
        result=np.array([[OPTIMAL], [result]]),
        value=np.array([[2.0], [value]]),
        rank=np.array([[rank], [2]]),
        weights=np.stack([np.eye(3)[None]] * 2),
        shape=np.array([3, 3, 3]),
        columns=np.array([3]),
    )
    none = made_up(np.ones((1, 4)))
    return hold(paths.lemma3(2), Table(combined=none, factored=none, programs=given))


def test_lemma_3_compares_values_where_the_convex_solution_has_the_rank() -> None:
    assert lemma3(2.0, 2).verdict is Verdict.holds
    assert lemma3(2.1, 2).verdict is Verdict.not_settled and lemma3(2.1, 2).evidence.contradicted == 1
    unanswered = lemma3(2.0, 2, ProgramResult.budget_spent.value)
    assert unanswered.verdict is Verdict.not_settled and unanswered.evidence.undecided == 1
    larger = lemma3(2.1, 3)
    assert (larger.verdict, larger.outside) == (Verdict.outside_hypotheses, 1)


def ends(selected: Any, gap: Any = 1e-12, **more: Any) -> Table:
    """Flows to the target in its direction where it is selected, and far from it elsewhere."""
    chosen = np.asarray(selected)
    found: dict[str, Any] = {"outcome": 0, "log_time": 500.0, "feasible": OPTIMAL, "selected": chosen}
    found |= {"target_attention": 1.0, "misaligned": np.where(chosen, 1e-15, 0.4), "flow_gap": gap, "norm": 1.0}
    found |= {"lost_gap": np.inf, "continued": False} | more
    return Table({name: np.broadcast_to(np.asarray(value), chosen.shape).copy() for name, value in found.items()})


def near(columns: list[list[bool]], gap: Any = 1e-12) -> Table:
    """Of both sizes the same two instances at every spread."""
    cells = np.array(columns)
    several = ends(cells, np.broadcast_to(np.asarray(gap), cells.shape))
    return Table(single=several, several=several, pairs=ends([True]))


def test_theorem_5_wants_some_delta() -> None:
    said = nearly_equal.near(0)
    columns = [[False, True], [True, True], [False, True], [False, False]]
    assert hold(said, near(columns)).verdict is Verdict.holds
    columns[1] = [False, True]
    found = hold(said, near(columns))
    assert found.verdict is Verdict.not_settled and found.evidence.contradicted == 1
    # Not certified elsewhere: open, not lost.
    gaps = np.full((4, 2), 1e-12)
    gaps[1] = 1.0
    assert hold(said, near(columns, gaps)).verdict is Verdict.not_settled


def test_with_two_tokens_every_delta_will_do() -> None:
    def pairs(selected: list[bool], gap: float = 1e-12) -> Any:
        return hold(nearly_equal.TWO_TOKENS, near([[True]] * 4).replace(pairs=ends(selected, gap)))

    assert pairs([True, True, True]).verdict is Verdict.holds
    assert pairs([False, True, True]).verdict is Verdict.not_settled
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


def descended(growing: Any = None, **first: Any) -> Table:
    """Two instances of each size that satisfy Assumption C, with flows to W^mm, and what grows."""
    two, flows = np.ones((2, 2)), ends(np.ones((2, 3, 2), bool))
    found: dict[str, Any] = {"solved": two > 0, "holds": two > 0, "first": np.ones((2, 2, 3)), "ratio": 0.5 * two}
    found |= {"push": two, "least": two, "lead": np.asarray(10)}
    return Table(growing=growing or grown([1e-2, 1e-3, 1e-4]), first=Table(found | first), flows=flows)


def grown(gradient: Any, norm: Any = (1.0, 2.0, 3.0), later: Any = None, inside: bool = True) -> Table:
    """Three instances alike, under both assumptions; `later`: gradient and norm of the second run."""
    again = later or [[np.nan] * 3] * 2
    norms, gradients = (np.tile(both, (2, 3, 1, 1)) for both in ([norm, again[1]], [gradient, again[0]]))
    steps = np.tile([1000, 10_000], (2, 3, 1))
    return Table(inside=np.full((2, 3), inside), norm=norms, log_gradient=np.log(gradients), steps=steps)


def growing(*what: Any, **more: Any) -> Any:
    return hold(descents.grows("B.2"), descended(grown(*what, **more)))


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
    assert row.verdict is Verdict.holds_at_this_rate
    assert growing(*slow, later=([9e-4, 9e-4, 8e-4], [2.1, 3.0, 4.0])).verdict is Verdict.not_settled
    assert growing(*slow, later=([9e-4, 1e-5, 1e-6], [2.1, 3.0, 3.0])).evidence.contradicted == 3
    assert growing(*slow, inside=False).verdict is Verdict.outside_hypotheses


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


def test_theorem_6_is_judged_where_assumption_C_holds() -> None:
    def found(index: int, flows: Table, **first: Any) -> Any:
        return hold(descents.stepped(0, index), descended(**first).replace(flows=flows))

    flows = ends(np.broadcast_to([True, False], (2, 3, 2)))
    large = np.full((2, 2), 60.0)
    one = np.broadcast_to([True, False], (2, 2))
    assert found(0, flows, ratio=large, holds=one).verdict is Verdict.holds
    both = found(0, flows, ratio=large)
    assert (both.verdict, both.evidence.contradicted) == (Verdict.not_settled, 1)
    # Not certified elsewhere: open.
    assert found(0, ends(flows.selected, 1.0), ratio=large).verdict is Verdict.not_settled
    # The proof's first step is larger than the statement allows, whatever becomes of it.
    assert found(2, flows, ratio=large).verdict is Verdict.outside_hypotheses
    assert found(2, flows, ratio=np.array([[0.5, 60.0]] * 2)).verdict is Verdict.holds


def cone(**more: Any) -> Table:
    """One instance at the norms of the check, its push within the bounds and its π falling like 1/R."""
    ones, yes = np.ones((1, 4)), np.ones(1, bool)
    pi = np.array([[0.64, 0.16, 0.04, 0.01]])
    found = Table(inside=yes, empty=~yes, push=ones, ratio=1.0 + pi, lower=0.5 * ones, upper=2.0 * ones)
    found = Table(found.named, bound=ones[:, 0], mu=ones[:, 0], slope=ones)
    return found.replace(**{name: np.broadcast_to(value, (1, 4)) for name, value in more.items()})


def judged(number: int, optimal: Table, ranks: Table) -> Finding:
    numbers = Table(optimal=optimal, local=stacked([optimal] * 2), ranks=ranks)
    return hold(cone_lemmas.STATEMENTS[number], numbers)


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


@pytest.mark.parametrize("number", [0, 5])
def test_pi_must_fall_with_the_radius(number: int) -> None:
    found = judged(number, cone(), RANKS)
    assert found.verdict is Verdict.holds_at_this_rate and found.worst == pytest.approx(0.5, rel=1e-6)
    found = judged(number, cone(ratio=1.6), RANKS)
    assert found.verdict is Verdict.not_settled and found.evidence.undecided == 1


def test_a_sign_is_judged_where_a_support_set_is_empty() -> None:
    assert judged(3, cone(), RANKS).verdict is Verdict.outside_hypotheses
    empty = cone().replace(empty=np.ones(1, bool))
    assert judged(3, empty, RANKS).verdict is Verdict.holds
    # At the largest norm alone.
    for push, wrong in ((np.array([[-1.0, -1.0, -1.0, 1.0]]), 0), (np.array([[1.0, 1.0, 1.0, 0.0]]), 1)):
        assert judged(3, empty.replace(push=push), RANKS).evidence.contradicted == wrong
    assert judged(1, empty, RANKS).verdict is Verdict.holds
    assert judged(2, empty, RANKS).verdict is Verdict.outside_hypotheses


def test_a_cone_without_stationary_points_is_judged_at_its_smallest_slope() -> None:
    assert judged(4, cone(), RANKS).verdict is Verdict.holds
    assert judged(4, cone(slope=[1.0, 1.0, 1e-20, 1.0]), RANKS).evidence.contradicted == 1
    assert judged(4, cone(slope=[1.0, 1.0, 1e-8, 1.0]), RANKS).evidence.undecided == 1


def test_lemma_17_on_random_matrices() -> None:
    assert judged(6, cone(), RANKS).verdict is Verdict.holds
    assert judged(6, cone(), RANKS.replace(least=np.zeros(20))).evidence.contradicted == 20


@pytest.mark.parametrize("number", range(len(sequences.CELLS)))
def test_limits_of_sequences_are_certified_local_and_those_of_their_program(number: int) -> None:
    # The better bound certifies (K, Q), whose own dual is late.
    own, which = (1e-4, "certificate_gap") if sequences.CELLS[number].factored else (1e-10, "flow_gap")
    plain = {"outcome": 1, "status": 2, "flow_gap": own, "certificate_gap": 0.0, "misaligned": 1e-10}
    plain |= {"log_time": 30.0}

    def judged(**more: Any) -> Finding:
        cell = Table({name: np.full(2, value) for name, value in (plain | more).items()})
        return hold(sequences.solves(number), Table(combined=stacked([cell] * 4), factored=stacked([cell])))

    assert judged().verdict is Verdict.holds
    assert judged().evidence.confirmed == 2 and judged().worst == 1e-10
    for wrong in ({"misaligned": 0.1}, {"status": SelectionStatus.not_local.value}):
        # The flow's own dual is no independent check.
        assert (judged(**wrong).verdict, judged(**wrong).evidence.contradicted) == (Verdict.not_settled, 2)
    for unknown in ({which: 0.1}, {"status": SelectionStatus.ambiguous.value}, {"misaligned": np.nan}):
        assert judged(**unknown).evidence.undecided == 2
    still = {"outcome": Outcome.finite_stationary_point.value}
    assert judged(**still, **{which: 0.1}).verdict is Verdict.outside_hypotheses
    assert judged(**still).evidence.confirmed == 2


@pytest.fixture
def assumed() -> Any:
    """Numbers that satisfy all assumptions."""
    # Made-up numbers are made by functions of this module among others.
    from tests.papers.made_up import tarzanagh2023

    return tarzanagh2023.assumed()[0]


def test_losses_satisfy_assumption_A_and_a_wrong_constant_shows(assumed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def found() -> Any:
        slopes = [hypotheses.losses(name, jax.random.key(0), 2) for name in hypotheses.LOSSES]
        return hold(hypotheses.A, assumed.replace(slopes=jax.tree.map(lambda *values: np.stack(values), *slopes)))

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
    numbers = assumed.replace(support=support)
    support.meets[:, 1], support.others[:, 1] = False, 1
    assert hold(hypotheses.D, numbers).verdict is Verdict.holds
    support.others[0] = 1
    found = hold(hypotheses.D, numbers)
    assert found.verdict is Verdict.not_settled and found.evidence.contradicted == 1
    support.others[0, 0], support.unsure[:, 0] = 0, True
    assert hold(hypotheses.D, numbers).evidence.undecided == len(hypotheses.DIMENSIONS)


def test_assumption_C_is_empty_where_nothing_satisfies_it(assumed: Any) -> None:
    support = jax.tree.map(np.copy, assumed.support)
    numbers = assumed.replace(support=support)
    support.separating[:, 1] = False
    assert hold(hypotheses.C, numbers).verdict is Verdict.holds
    support.separating[0] = False
    assert hold(hypotheses.C, numbers).verdict is Verdict.not_settled


def local_numbers(paths: Table, depth: float = 0.2) -> Table:
    """The same paths in every cell; choices outside of their cones have an empty T_i."""
    total = len(paths.inside)
    cell = np.repeat(np.arange(4), total)
    inside = np.tile(paths.inside, 4)
    deep = np.where(inside, depth, -depth)
    choices = Table(cell=cell, depth=deep, empty=~inside, first=np.full(4 * total, 30.0))
    return Table(frobenius=paths, nuclear=paths, sequence=paths, optimal=paths, choices=choices)


def test_local_paths_count_choices_outside_of_their_cones() -> None:
    radii = local_paths.GROWTH ** np.arange(local_paths.LEVELS)
    paths = made_up([1.0 / radii] * 4, radii, inside=np.array([True, True, True, False]))
    found = hold(local_paths.tend("frobenius"), local_numbers(paths))
    assert (found.verdict, found.evidence.inside, found.outside) == (Verdict.holds_at_this_rate, 3, 1)


def test_every_statement_has_a_row_in_the_table_of_claims() -> None:
    table = (Path(jaxflow.__file__).parents[1] / "docs/claims/tarzanagh2023-theorems.md").read_text(encoding="utf-8")
    sources = {line.split("|")[1].strip() for line in table.splitlines() if line.startswith("| ")}
    wanted = {f"Theorem {k}" for k in range(1, 11)} | {f"Lemma {k}" for k in range(1, 7)}
    wanted |= {f"Assumption {name}" for name in ("A", "B.1", "B.2", "C", "D", "E")}
    assert wanted <= sources


def test_sequences_are_separated_as_lemma_16_says_or_not() -> None:
    keys = jax.random.split(jax.random.key(0), 2)
    parts = [sequence_paths.choices_of(0, key) for key in keys]
    found = joined(parts)
    assert found.optimal.sum() == 2 and np.isposinf(found.anywhere[found.optimal]).all()
    said = [hold(statement, separated(found)) for statement in sequence_paths.lemma16(0)]
    assert [one.evidence.inside + one.outside for one in said] == [len(found.status)] * 4
    names = ("status", "empty", "near", "depth", "optimal", "anywhere")
    columns = zip(names, map(np.asarray, zip(*CONE_ROWS, strict=True)), strict=True)
    by_hand = Table(columns, size=np.zeros(4, int), trial=np.zeros(4, int), choice=np.arange(4))
    verdicts = [hold(statement, separated(by_hand)).verdict for statement in sequence_paths.lemma16(0)]
    # The second choice has an empty set and is not in the cone; the last is too close to call.
    assert verdicts == [Verdict.holds, Verdict.not_settled, Verdict.not_settled, Verdict.holds]


def separated(choices: Table) -> Table:
    return Table(paths=made_up(np.ones((1, 4))), choices=choices)


LOCAL, OTHER = SelectionStatus.local.value, SelectionStatus.not_local.value
# Status, empty, near, depth, optimal, anywhere.
CONE_ROWS = [
    (LOCAL, False, False, 0.3, True, np.inf),
    (LOCAL, True, False, -np.inf, False, 0.1),
    (OTHER, False, False, -0.2, False, 0.1),
    (OTHER, False, True, 1e-7, False, 0.1),
]


@pytest.mark.slow
def test_a_few_paths_of_sequences_tend_to_their_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequence_paths, "LEVELS", 6)
    keys = jax.random.split(jax.random.key(0), 2)
    cells = [(sequence_paths.PATHS[0], factored) for factored in (False, True)]
    combined, factored = (sequence_paths.paths_on(keys, cell) for cell in cells)
    assert combined.inside.any() and np.all(combined.radii[:, -1] == 4.0**5)
    # Distances fall like the size of W^mm over R, which is about a thousand.
    assert combined.distance[combined.inside, -1].max() < 0.1
    # Lemma 15.
    assert np.allclose(factored.size[factored.found], 1.0) and factored.balance[factored.found].max() < 1e-5

"""Checks of tarzanagh2023: their verdicts on numbers made by hand."""

from typing import Any

import numpy as np
import pytest

from jaxflow._core import Outcome, SelectionStatus
from jaxflow.margin import ProgramResult
from jaxflow.papers.statement import Statement, hold
from jaxflow.papers.table import Table, stacked
from jaxflow.papers.tarzanagh2023.verify import (
    cone_lemmas,
    descents,
    equal_scores,
    feasibility,
    hypotheses,
    local_convergence,
    local_paths,
    path_limits,
    paths,
    sequences,
)
from tests.papers.findings import judge, row
from tests.papers.made_up import tarzanagh2023_checks as made_up
from tests.papers.made_up.records import changed
from tests.papers.made_up.tarzanagh2023_checks import LOCAL, OTHER, RADII, cone, descended, ends, grown, near, path

OPTIMAL, INFEASIBLE = ProgramResult.optimal.value, ProgramResult.infeasible.value
UNSURE = SelectionStatus.ambiguous.value


def equal(selected: bool, gap: float = 1e-12, **more: Any) -> Table:
    """One instance in each cell of random data with equal scores."""
    return made_up.equal_scores(True, 1.0).replace(cells=ends(np.full((6, 1), selected), gap, **more))


# Numbers that are one set of paths; distances that fall like one over the radius; one that stays.
TENDS: Statement[Any] = path_limits.tends("Theorem 2", "", lambda paths: paths)
FALLS, STAYS = 1.0 / RADII, np.full(12, 0.5)
FOUR = path([STAYS, FALLS, FALLS, FALLS], above=np.stack([2.0 / RADII] * 4))
CHOICES = made_up.choices(
    [LOCAL, LOCAL, LOCAL, OTHER, UNSURE], [False, True, True, False, False], [0.2, -0.1, -np.inf, -1e-14, 0.3], 4
)


def programs(*results: int) -> Table:
    """Two cells of one instance with n = T = 3, at the bound and above."""
    result = np.array(results)[:, None, None] * np.ones((1, 1, 5), int)
    (numbers,) = made_up.feasibility()
    sizes = numbers.programs.replace(d=np.array([2, 3]), kind=np.zeros(2, int))
    part = sizes.at(np.s_[:]).replace(**{name: sizes.named[name][:, :1] for name in ("gap", "least")})
    return Table(programs=part.replace(result=result, separated=result != INFEASIBLE))


def lemma3(value: float, rank: int, result: int = ProgramResult.stationary.value) -> Table:
    """A convex solution with the value 2 and this rank, and one with two columns."""
    none = path(np.ones((1, 4)))
    given = Table(
        result=np.array([[OPTIMAL], [result]]), value=np.array([[2.0], [value]]), rank=np.array([[rank], [2]]),
        weights=np.stack([np.eye(3)[None]] * 2), shape=np.array([3, 3, 3]), columns=np.array([3]),
    )  # fmt: skip
    return Table(combined=none, factored=none, programs=given)


def pairs(selected: list[bool], gap: float = 1e-12) -> Table:
    return near([[True]] * 4).replace(pairs=ends(selected, gap))


# One δ at which both instances go to the target; none; elsewhere not certified.
SOME = [[False, True], [True, True], [False, True], [False, False]]
NONE = [[False, True], [False, True], [False, True], [False, False]]
SLOW = ([1e-2, 1e-3, 9e-4], [1.0, 2.0, 2.1])


def growing(*what: Any, **more: Any) -> Table:
    return descended(grown(*what, **more))


# The first step over the one that the statement allows; half of the flows go to W^mm.
LARGE, ONE = np.full((2, 2), 60.0), np.broadcast_to([True, False], (2, 2))


def stepped(gap: float = 1e-12, ratio: Any = LARGE, **first: Any) -> Table:
    return descended(ratio=ratio, **first).replace(flows=ends(np.broadcast_to([True, False], (2, 3, 2)), gap))


RANKS = cone_lemmas.matrices(np.random.default_rng(1), 20)
EMPTY = cone().replace(empty=np.ones(1, bool))


def lemma(optimal: Table, ranks: Table = RANKS) -> Table:
    return Table(optimal=optimal, local=stacked([optimal] * 2), ranks=ranks)


def cone_rows() -> list[tuple[Any, ...]]:
    """Of the lemmas about one cone, by their places in the table."""
    said = cone_lemmas.STATEMENTS
    rows = [
        # A sign is judged where a support set is empty, at the largest norm alone.
        row(said[3], lemma(cone()), "N"),
        row(said[3], lemma(EMPTY), "H"),
        row(said[3], lemma(EMPTY.replace(push=np.array([[-1.0, -1.0, -1.0, 1.0]]))), ".", contradicted=0),
        row(said[3], lemma(EMPTY.replace(push=np.array([[1.0, 1.0, 1.0, 0.0]]))), ".", contradicted=1),
        row(said[1], lemma(EMPTY), "H"),
        row(said[2], lemma(EMPTY), "N"),
        # A cone without stationary points is judged at its smallest slope.
        row(said[4], lemma(cone()), "H"),
        row(said[4], lemma(cone(slope=[1.0, 1.0, 1e-20, 1.0])), "O", contradicted=1),
        row(said[4], lemma(cone(slope=[1.0, 1.0, 1e-8, 1.0])), "O", undecided=1),
        row(said[6], lemma(cone()), "H"),
        row(said[6], lemma(cone(), RANKS.replace(least=np.zeros(20))), "O", contradicted=20),
    ]
    for number in (1, 2):
        bounds = {"push": (-1.0, 0.0), "lower": (1.1,), "upper": (0.9,)}
        wrong = [(name, value) for name, values in bounds.items() for value in values]
        numbers = [cone(**{name: [1.0 if name == "push" else 0.5, 1.0, value, 1.0]}) for name, value in wrong]
        rows += [row(said[number], lemma(one), "O", contradicted=1) for one in numbers]
        # What is not known contradicts nothing.
        rows += [row(said[number], lemma(cone(push=np.nan)), "O", undecided=1), row(said[number], lemma(cone()), "H")]
    for number in (0, 5):
        # π falls with the radius, or it does not.
        rows += [row(said[number], lemma(cone()), "R"), row(said[number], lemma(cone(ratio=1.6)), "O", undecided=1)]
    return rows


def sequence_rows(number: int) -> list[tuple[Any, ...]]:
    """Limits of sequences are certified, local, and those of their program."""
    said = sequences.solves(number)
    # The better bound certifies (K, Q), whose own dual is late.
    own, which = (1e-4, "certificate_gap") if sequences.CELLS[number].factored else (1e-10, "flow_gap")
    plain = {"outcome": 1, "status": 2, "flow_gap": own, "certificate_gap": 0.0, "misaligned": 1e-10}
    rest = {"outcome": Outcome.finite_stationary_point.value}
    wrong = ({"misaligned": 0.1}, {"status": OTHER})
    unknown = ({which: 0.1}, {"status": UNSURE}, {"misaligned": np.nan})
    return [
        row(said, made_up.sequences(**plain), "H", inside=2, undecided=0),
        # The flow's own dual is no independent check.
        *(row(said, made_up.sequences(**plain | change), "O", contradicted=2) for change in wrong),
        *(row(said, made_up.sequences(**plain | change), "O", undecided=2) for change in unknown),
        row(said, made_up.sequences(**plain | rest | {which: 0.1}), "N"),
        row(said, made_up.sequences(**plain | rest), "H", inside=2, undecided=0),
    ]


ASSUMED = made_up.assumed()
ALONE = changed(ASSUMED, ("support.meets", False, np.s_[:, 1]), ("support.others", 1, np.s_[:, 1]))
TWO = changed(ALONE, ("support.others", 1, 0))
SEPARATE = changed(ASSUMED, ("support.separating", False, np.s_[:, 1]))
# The second choice has an empty set and is not in the cone; the last is too close to call.
CONE_CHOICES = made_up.choices(
    [LOCAL, LOCAL, OTHER, OTHER], [False, True, False, False], [0.3, -np.inf, -0.2, 1e-7], 4
).choices.named | {
    "near": np.arange(4) == 3,
    "optimal": np.array([True, False, False, False]),
    "anywhere": np.array([np.inf, 0.1, 0.1, 0.1]),
    "size": np.zeros(4, int),
}
SEQUENCES = Table(paths=path(np.ones((1, 4))), choices=Table(CONE_CHOICES))

EQUAL = equal_scores.random_data(0)
# Whether flows select the target, are certified, and descents select it; and what is said of those that start near.
STARTS = [
    ((True, True, True), "H"),
    ((False, True, False), "O"),
    ((True, False, True), "O"),
    ((True, True, False), "O"),
]

ROWS = [
    # Theorem 4 is judged inside its hypotheses only; neither selected to the tolerance nor left is undecided.
    row(EQUAL, equal(True), "H", inside=1, outside=0),
    row(EQUAL, equal(False, target_attention=1e-30), "O", contradicted=1, outside=0),
    row(EQUAL, equal(False, target_attention=1e-30, feasible=INFEASIBLE), "N", outside=1),
    row(EQUAL, equal(False, target_attention=0.5), "O", undecided=1),
    # A lost sequence counts where the rest is certified.
    row(EQUAL, equal(False, 1.0, target_attention=1e-30), "O", undecided=1),
    row(EQUAL, equal(False, 1.0, target_attention=1e-30, lost_gap=1e-12), "O", contradicted=1),
    # Lemma 5's rows follow the depth.
    row("cones", CHOICES, "HO.NHN", inside={0: 1, 2: 2, 4: 1}, contradicted={1: 2}),
    row("cones", changed(CHOICES, ("choices.depth", [-0.2, 0.2], [0, 3])), "O...O."),
    # Feasibility is asked at the bound and above.
    row(feasibility.feasible(True, 0), programs(INFEASIBLE, OPTIMAL), "H"),
    row(feasibility.feasible(False, 0), programs(OPTIMAL, INFEASIBLE), "O", contradicted=4, inside=4, outside=4),
    # Theorem 7 counts every start by flow and by descent; starts beyond the proof's μ are the theorem's to exclude.
    *(row(local_convergence.converges(0), made_up.near_starts(*how), said, inside=3) for how, said in STARTS),
    *(row(local_convergence.converges(1), made_up.near_starts(*how), "N", outside=3) for how, _ in STARTS),
    row(TENDS, path([3.0 * FALLS, FALLS, FALLS]), "R", inside=3, undecided=0),
    row(TENDS, path([STAYS] * 3), "O", contradicted=0, inside=3),
    row(TENDS, path([STAYS, FALLS, FALLS]), "O", contradicted=0, inside=3),
    row(TENDS, path([RADII**-0.6] * 3), "O", contradicted=0),
    # Near, but no longer on its way; outside; a path without stationary points.
    row(TENDS, path([np.full(12, 1e-3), FALLS, FALLS]), "O", contradicted=0),
    row(TENDS, path([FALLS] * 3, inside=np.zeros(3, bool)), "N", outside=3),
    row(TENDS, changed(path([FALLS] * 3), ("found", False, (1, -1))), "O", inside=3, contradicted=0, undecided=1),
    # Another solution of equal norm belongs to the set.
    row(TENDS, FOUR, "R"),
    row(TENDS, FOUR.replace(above=FOUR.above + 0.3), "O"),
    # Lemma 3 compares values where the convex solution has the rank.
    row(paths.lemma3(2), lemma3(2.0, 2), "H"),
    row(paths.lemma3(2), lemma3(2.1, 2), "O", contradicted=1),
    row(paths.lemma3(2), lemma3(2.0, 2, ProgramResult.budget_spent.value), "O", undecided=1),
    row(paths.lemma3(2), lemma3(2.1, 3), "N", outside=1),
    # Theorem 5 wants some δ; with two tokens every δ will do. What is not certified elsewhere is open, not lost.
    row(equal_scores.near(0), near(SOME), "H"),
    row(equal_scores.near(0), near(NONE), "O", contradicted=1),
    row(equal_scores.near(0), near(NONE, np.array([1e-12, 1.0, 1e-12, 1e-12])[:, None]), "O", contradicted=0),
    row(equal_scores.TWO_TOKENS, pairs([True, True, True]), "H"),
    row(equal_scores.TWO_TOKENS, pairs([False, True, True]), "O", contradicted=1),
    row(equal_scores.TWO_TOKENS, pairs([False, True, True], gap=1.0), "O", undecided=3),
    # Theorem 3 wants a falling gradient and a growing norm; at rest: against it, and checked by nothing else.
    row(descents.grows("B.2"), growing([1e-2, 1e-3, 1e-4], [1.0, 2.0, 3.0]), "R"),
    row(descents.grows("B.2"), growing(*SLOW), "O", undecided=3),
    row(descents.grows("B.2"), growing([1e-2, 1e-3, 1e-9], [1.0, 2.0, 2.0]), "O", contradicted=3),
    # Falling, but not like 1/k.
    row(descents.grows("B.2"), growing([1e-2, 1e-3, 4e-4], [1.0, 2.0, 3.0]), "O"),
    # Those that were still on their way are asked again, after many more steps.
    row(descents.grows("B.2"), growing(*SLOW, later=([9e-4, 1e-5, 1e-6], [2.1, 3.0, 4.0])), "R"),
    row(descents.grows("B.2"), growing(*SLOW, later=([9e-4, 9e-4, 8e-4], [2.1, 3.0, 4.0])), "O"),
    row(descents.grows("B.2"), growing(*SLOW, later=([9e-4, 1e-5, 1e-6], [2.1, 3.0, 3.0])), "O", contradicted=3),
    row(descents.grows("B.2"), growing(*SLOW, inside=False), "N"),
    # Theorem 6 is judged where Assumption C holds; what is not certified elsewhere is open.
    row(descents.stepped(0, 0), stepped(holds=ONE), "H"),
    row(descents.stepped(0, 0), stepped(), "O", contradicted=1),
    row(descents.stepped(0, 0), stepped(1.0), "O", contradicted=0),
    # The proof's first step is larger than the statement allows, whatever becomes of it.
    row(descents.stepped(0, 2), stepped(), "N"),
    row(descents.stepped(0, 2), stepped(ratio=np.array([[0.5, 60.0]] * 2)), "H"),
    *cone_rows(),
    *(line for number in range(len(sequences.CELLS)) for line in sequence_rows(number)),
    # Assumption D leaves one locally optimal direction; Assumption C is empty where nothing satisfies it.
    row(hypotheses.D, ALONE, "H"),
    row(hypotheses.D, TWO, "O", contradicted=1),
    row(hypotheses.D, changed(TWO, ("support.others", 0, (0, 0)), ("support.unsure", True, np.s_[:, 0])), ".",
        undecided=len(hypotheses.DIMENSIONS)),
    row(hypotheses.C, SEPARATE, "H"),
    row(hypotheses.C, changed(SEPARATE, ("support.separating", False, 0)), "O"),
    # Local paths count choices outside of their cones.
    row(
        local_paths.tend("frobenius"),
        made_up.on_local_paths(
            changed(made_up.falling(local_paths.GROWTH, local_paths.LEVELS), ("inside", False, 2))
        ),
        ".", inside=2, outside=1,
    ),
    *(row(said, SEQUENCES, verdict) for said, verdict in zip(sequences.lemma16(0), "HOOH", strict=True)),
]  # fmt: skip


@pytest.mark.parametrize(("statement", "numbers", "verdict", "counts"), ROWS)
def test_verdicts_follow_the_numbers(statement: Any, numbers: Table, verdict: str, counts: dict[str, Any]) -> None:
    judge("tarzanagh2023", statement, numbers, verdict, counts)


def test_the_worst_of_a_row_is_that_of_its_numbers() -> None:
    assert hold(TENDS, path([3.0 * FALLS, FALLS, FALLS])).worst == pytest.approx(3.0 / 2048)
    assert [hold(cone_lemmas.STATEMENTS[k], lemma(cone())).worst for k in (0, 1, 2, 5)] == pytest.approx([0.5] * 4)
    assert hold(sequences.solves(0), made_up.sequences(misaligned=1e-10)).worst == 1e-10

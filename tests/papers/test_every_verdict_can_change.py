"""No statement whose verdict ignores its data: one column after another is changed, until every verdict has changed
and every statement has been contradicted.

Every registered figure and check has numbers in `made_up`. A statement whose verdict stays the same stands in `FIXED`
with the reason, one that no single column can contradict in `SEVERAL`. Numbers with no instance inside the hypotheses
do not count as a change.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import pytest

from jaxflow import papers
from jaxflow.papers.statement import hold
from jaxflow.papers.verdicts import Verdict
from tests.papers.findings import entry_of
from tests.papers.made_up.probes import PAPERS, PROBES

BY_NATURE = "measured outside of the hypotheses, to show what becomes of the conclusion there"

# Statements by their place in the table whose verdict no change of these numbers changes, with the reason.
FIXED: dict[tuple[str, str], dict[int, str]] = {
    ("boix2023", "supports"): {1: BY_NATURE},
    ("sheen2024", "alignment"): {2: BY_NATURE},
    ("sheen2024", "failures"): {1: BY_NATURE, 2: BY_NATURE, 4: BY_NATURE, 5: BY_NATURE, 6: BY_NATURE},
    ("sheen2024", "general"): {5: BY_NATURE},
    ("tarzanagh2023", "fig6"): {4: "said of Assumption B.1, of which these numbers say nothing"},
    ("tarzanagh2023", "local-convergence"): {1: BY_NATURE},
}

# Statements that one column alone cannot contradict, with the columns that have to be wrong together.
SEVERAL: dict[tuple[str, str], tuple[set[int], str]] = {
    ("boix2023", "lora"): ({0, 1, 2, 3}, "a correlation of the other sign, and a small p-value"),
    ("boix2023", "fig9"): ({1}, "products that jump, at one time and not at another"),
    ("sheen2024", "divergence"): ({0, 1}, "an outcome at rest, and a small gradient"),
    ("tarzanagh2023", "regularization-paths"): ({2}, "a solution of low rank, and another value"),
    ("tarzanagh2023", "descents"): ({2, 3, 4, 5, 6, 7}, "another selection, certified, and another direction"),
    ("tarzanagh2023", "assumptions"): ({3, 4}, "another selection, certified, and another direction"),
    ("tarzanagh2023", "nearly-equal-scores"): ({0, 1, 2}, "another selection, certified, and another direction"),
    ("tarzanagh2023", "fig4"): ({1}, "ranks above n and d, further from those made up than by one"),
    ("tarzanagh2023", "fig2"): ({0}, "shares that fall from one d to the next, and not everywhere"),
    ("tarzanagh2023", "fig5"): (
        {0, 1, 2, 3, 5, 6, 7, 8, 11},
        "shares that fall from one d to the next, and not everywhere",
    ),
    ("tarzanagh2023", "fig6"): ({0, 1, 2, 3, 5}, "shares that fall from one d to the next, and not everywhere"),
    ("yun2021", "alpha-sweep"): ({1}, "an excess that rises towards one end of the scales alone"),
    ("tarzanagh2023", "hypotheses"): ({2}, "an assumption that no instance satisfies"),
}

# Columns that are given with an experiment, not measured: its statements look things up by them.
GIVEN = {"scales", "log_alpha", "alphas", "lengths", "shape", "own", "cell", "d", "m"}

# What becomes of columns of these kinds. What is known of nothing comes last: it is the least of changes.
WAYS: tuple[tuple[str, Callable[[np.ndarray], np.ndarray]], ...] = (
    ("iu", lambda column: column + 1),
    ("iu", lambda column: 0 * column),
    ("f", lambda column: -column),
    ("f", lambda column: 100.0 * column),
    ("f", lambda column: column / 100.0),
    ("f", lambda column: column + 1.0),
    ("f", np.flip),
    ("b", np.logical_not),
    ("f", lambda column: column + np.inf),
    ("f", lambda column: column - np.inf),
    ("f", lambda column: 1e3 * column),
    ("f", lambda column: column + 1e3),
    ("f", lambda column: 0.0 * column),
    ("f", lambda column: 1e6 * np.sort(np.atleast_1d(column)).reshape(column.shape)),
    ("f", lambda column: np.nan * column),
)


def columns(numbers: Any) -> tuple[list[str], list[np.ndarray], Any]:
    """Names, arrays, and what makes numbers of such arrays again."""
    leaves, tree = jax.tree_util.tree_flatten_with_path(numbers)
    return [path[-1].name for path, _ in leaves], [np.asarray(leaf) for _, leaf in leaves], tree


def is_given(name: str, column: np.ndarray) -> bool:
    """The own program of a limit is given; of Figure 1 it is a distance that was measured."""
    return name in GIVEN and not (name == "own" and column.dtype.kind == "f")


def in_every_way(numbers: Any) -> Iterator[Any]:
    """The same numbers but for one column that is not given."""
    names, found, tree = columns(numbers)
    for kinds, way in WAYS:
        for at, (name, column) in enumerate(zip(names, found, strict=True)):
            if column.dtype.kind in kinds and not is_given(name, column):
                yield jax.tree.unflatten(tree, [*found[:at], way(column), *found[at + 1 :]])


def test_every_figure_and_check_is_fed() -> None:
    assert PROBES.keys() == {(paper, entry.name) for paper in PAPERS for entry in papers.entries_of(paper)}
    assert FIXED.keys() | SEVERAL.keys() <= PROBES.keys()


# Numbers of the wrong sign and order: NumPy warns of logarithms and of fits that these make NaN.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("paper", "name"), list(PROBES))
def test_every_verdict_follows_its_numbers_and_every_statement_can_be_contradicted(paper: str, name: str) -> None:
    entry, given = entry_of(paper, name), PROBES[paper, name]()
    said = entry.said(given[0])
    verdicts: list[set[Verdict]] = [set() for _ in said]
    free = set(range(len(said))) - FIXED.get((paper, name), {}).keys()
    left = free - SEVERAL.get((paper, name), (set(), ""))[0]
    for numbers in itertools.chain(given, *map(in_every_way, given)):
        said = entry.said(numbers)
        assert len(said) == len(verdicts), "the same statements for all numbers"
        for at, one in enumerate(said):
            # One that has changed needs no more numbers.
            if len(verdicts[at]) < 2 or at in left:
                found = hold(one, numbers)
                verdicts[at] |= {found.verdict} - {Verdict.outside_hypotheses, Verdict.not_run}
                left -= {at} if found.evidence.contradicted else set()
        if not left and {at for at, seen in enumerate(verdicts) if len(seen) > 1} == free:
            return
    for at, seen in enumerate(verdicts):
        assert (len(seen) > 1) == (at in free), f"{at}: {said[at].source}, {sorted(seen)}"
    assert not left, [said[at].source for at in left]


@pytest.mark.parametrize(("paper", "name"), list(PROBES))
def test_no_row_is_outside_that_was_not_run(paper: str, name: str) -> None:
    entry = entry_of(paper, name)
    for one in entry.find(PROBES[paper, name]()[0])[0]:
        assert (one.verdict is Verdict.not_run) == one.measured.startswith("not run"), one.source


# Of a kind: that nothing was found.
NOTHING = {"f": lambda column: np.nan * column, "b": np.zeros_like, "i": lambda column: 0 * column}
NOTHING["u"] = NOTHING["i"]


def without(numbers: Any) -> Iterator[Any]:
    """The same numbers without one column, without those of one kind, and without any."""
    names, found, tree = columns(numbers)
    gone = [at for at, name in enumerate(names) if name not in GIVEN and found[at].dtype.kind in NOTHING]
    kinds = [[at for at in gone if found[at].dtype.kind in kind] for kind in ("f", "b", "iu")]
    for some in (*([at] for at in gone), *kinds, gone):
        lost = [NOTHING[column.dtype.kind](column) if at in some else column for at, column in enumerate(found)]
        yield jax.tree.unflatten(tree, lost)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("paper", "name"), list(PROBES))
def test_numbers_that_are_missing_are_read_all_the_same(paper: str, name: str) -> None:
    """A failed run is data: no verdict raises, and where no number is known none holds at a rate."""
    entry = entry_of(paper, name)
    given = PROBES[paper, name]()[0]
    *_, nothing = [entry.find(numbers)[0] for numbers in without(given)]
    assert all(finding.evidence.rate is None or not finding.evidence.rate.agrees for finding in nothing)


def test_a_head_that_never_moves_has_no_stages() -> None:
    from jaxflow.papers.boix2023.full_heads import stages_of

    times, flat = np.arange(4.0), np.zeros(4)
    assert stages_of(times, np.zeros((4, 2, 3)), flat) == []
    # One that is there from the start has learned all of it in one stage.
    assert stages_of(times, np.ones((4, 2, 1)), flat) == [[0, 1]]

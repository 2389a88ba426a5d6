"""Two methods on the same instances: McNemar's test and Newcombe's interval, against enumeration."""

import itertools
import math

import numpy as np
import pytest
import xarray

from jaxflow._core import Outcome
from jaxflow.study import paired, wilson
from jaxflow.study.pairs import comparisons

GLOBAL, LOCAL = int(Outcome.globally_optimal), int(Outcome.locally_optimal)


def of_counts(both: int, only_a: int, only_b: int, neither: int, not_run: int = 0) -> xarray.Dataset:
    """Results of two methods with these counts."""
    ends = [(GLOBAL, GLOBAL)] * both + [(GLOBAL, LOCAL)] * only_a + [(LOCAL, GLOBAL)] * only_b
    ends += [(LOCAL, LOCAL)] * neither + [(GLOBAL, 0)] * not_run
    return xarray.Dataset({"outcome": (("method", "trial"), np.array(ends).T)}, {"method": ["new", "old"]})


def test_counts_and_the_exact_test():
    found = paired(of_counts(5, 8, 2, 4, not_run=3), "method", "new", "old")
    assert [int(found[name]) for name in ("pairs", "both", "only_a", "only_b", "neither")] == [19, 5, 8, 2, 4]
    tail = sum(math.comb(10, k) for k in range(3)) / 2**10
    assert math.isclose(float(found.p_value), 2 * tail)
    assert math.isclose(float(found.difference), 100 * 6 / 19)
    assert float(found.low) < float(found.difference) < float(found.high)
    turned = paired(of_counts(5, 8, 2, 4, not_run=3), "method", "old", "new")
    assert math.isclose(float(turned.low), -float(found.high)) and math.isclose(float(turned.p_value), 2 * tail)
    assert (found.attrs["a"], found.attrs["b"]) == ("new", "old")
    # Methods that agree, and methods that never met.
    agreed = paired(of_counts(7, 0, 0, 3), "method", "new", "old")
    assert float(agreed.p_value) == 1.0 and float(agreed.low) < float(agreed.difference) == 0.0 < float(agreed.high)
    never = paired(of_counts(0, 0, 0, 0, not_run=4), "method", "new", "old")
    assert int(never.pairs) == 0 and np.isnan([never[name] for name in ("difference", "low", "high", "p_value")]).all()


def test_without_pairs_in_common_the_interval_is_that_of_two_samples():
    """A correlation of zero: Newcombe's interval is then that of his method for independent samples."""
    found = paired(of_counts(4, 4, 4, 4), "method", "new", "old")
    low, high = wilson(8, 16)
    half = math.hypot(0.5 - low, high - 0.5)
    np.testing.assert_allclose([float(found.low), float(found.high)], [-100 * half, 100 * half], rtol=1e-12)


def test_the_interval_covers():
    """Over all tables of 12 pairs, in distributions near the middle and near the corners."""
    n = 12
    tables = [t for t in itertools.product(range(n + 1), repeat=4) if sum(t) == n]
    found = paired(xarray.concat([of_counts(*t) for t in tables], "table"), "method", "new", "old")
    intervals = dict(zip(tables, zip(found.low.values / 100, found.high.values / 100, strict=True), strict=True))
    for p in [(0.4, 0.2, 0.1, 0.3), (0.7, 0.1, 0.1, 0.1), (0.25, 0.25, 0.25, 0.25)]:
        covered = 0.0
        for t, (low, high) in intervals.items():
            weight = math.factorial(n) * math.prod(q**k / math.factorial(k) for q, k in zip(p, t, strict=True))
            covered += weight * (low <= p[1] - p[2] <= high)
        # 12 pairs are few: an interval of 95% on discrete counts covers a little more or less.
        assert 0.92 <= covered <= 1.0


def test_of_a_study_by_cell_and_as_tables(small):
    _, results = small
    found = paired(results, "parametrization", "W", "KQ", outcome=["globally_optimal", "locally_optimal"])
    assert found["p_value"].dims == ("d",) and found["pairs"].values.tolist() == [10, 10]
    # The outcome of this experiment does not depend on the method.
    assert found["only_a"].values.tolist() == found["only_b"].values.tolist() == [0, 0]
    (table,) = comparisons(results)
    assert table.columns[:3] == ("d", "outcome", "pairs") and "W alone" in table.columns
    assert len(table.rows) > 2 and all(row[2] == "10" for row in table.rows)
    with pytest.raises(ValueError, match="factor: the instances of 'd' differ"):
        paired(results, "d", 2, 3)
    # A factor of three values has no table.
    assert comparisons(results.sel(parametrization=["W", "KQ", "W"])) == []

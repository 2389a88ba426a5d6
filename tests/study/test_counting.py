"""Percentages: every instance counted once, with the intervals of Wilson and named denominators."""

import numpy as np
import pytest
import xarray

from jaxflow._core import Outcome, SelectionStatus
from jaxflow.study import DECIDED, decode, percentages, quantities, settled_selections, summary, wilson
from jaxflow.study.counting import DEFINITIONS, RULES

# Newcombe (1998), Statistics in Medicine 17, table I, the score method; to four digits.
PUBLISHED = [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)]


def test_wilson():
    for count, total, low, high in PUBLISHED:
        np.testing.assert_allclose(wilson(count, total), (low, high), atol=0.51e-4)
    # The ends are where the standardised distance to the proportion is z; of nothing they are 0 and 1.
    assert [float(end) for end in wilson(0, 0)] == [0.0, 1.0]
    count, total, z2 = np.arange(41), 40.0, 1.6448536269514722**2
    for end in wilson(count, total, 0.9):
        np.testing.assert_allclose((count / total - end) ** 2, z2 * end * (1 - end) / total, rtol=1e-12, atol=1e-16)


def results(codes, **data) -> xarray.Dataset:
    """`codes` (d, method, trial)."""
    codes = np.asarray(codes, np.uint8)
    dims = ("d", "kind", "trial")
    return xarray.Dataset(
        {"outcome": (dims, codes), **{name: (dims, np.asarray(value)) for name, value in data.items()}},
        coords={"d": [2, 4], "kind": ["W", "KQ"]},
    )


ONE = [[[1, 1, 2, 9, 8, 0], [1, 2, 3, 4, 5, 6]], [[7, 7, 8, 9, 7, 8], [0, 0, 0, 0, 0, 0]]]


def test_every_instance_is_counted_once():
    table = percentages(results(ONE))
    np.testing.assert_array_equal(table["count"].sum("outcome") + table.not_run, 6)
    np.testing.assert_array_equal(table.ran, [[5, 6], [6, 0]])
    np.testing.assert_array_equal(table.given, [[3, 6], [0, 0]])
    one = table.sel(d=2, kind="W", outcome="globally_optimal")
    assert (float(one.percentage), int(one["count"])) == (40.0, 2)
    assert float(one.given_percentage) == pytest.approx(200 / 3)
    np.testing.assert_allclose([one.low / 100, one.high / 100], wilson(2, 5))
    np.testing.assert_allclose([one.given_low / 100, one.given_high / 100], wilson(2, 3))
    # Of nothing decided, or nothing run, there is no percentage.
    assert np.isnan(table.given_percentage.sel(d=4)).all()
    np.testing.assert_array_equal(np.isnan(table.percentage).all("outcome"), [[False, False], [False, True]])


def test_conditional_percentages_are_of_the_decided_only():
    table = percentages(results(ONE))
    assert set(DEFINITIONS) == set(Outcome)
    undecided = [code.name for code in Outcome if code not in DECIDED and code != Outcome.not_run]
    assert undecided == ["ambiguous", "undecided", "failed", "selection_settled"]
    np.testing.assert_array_equal(table.given_percentage.sel(d=2, outcome=undecided), 0)
    np.testing.assert_allclose(table.given_percentage.sel(d=2).sum("outcome"), 100)
    np.testing.assert_allclose(table.percentage.sel(d=2).sum("outcome"), 100)
    assert "all instances that ran" in table.percentage.attrs["long_name"]
    chosen = percentages(results(ONE), given=["globally_optimal", Outcome.locally_optimal])
    assert chosen.given.attrs["long_name"].endswith("globally_optimal, locally_optimal")
    assert float(chosen.given_percentage.sel(d=2, kind="KQ", outcome="locally_optimal")) == 50.0


def test_groups_may_overlap_and_axes_be_pooled():
    groups = {"global": ["globally_optimal"], "local": ["globally_optimal", "locally_optimal"]}
    table = percentages(results(ONE), over=("trial", "d"), groups=groups)
    np.testing.assert_array_equal(table["count"].sel(kind="W"), [2, 3])
    np.testing.assert_array_equal(table.ran, [11, 6])
    assert table.ran.dims == ("kind",)


# Settled and global, settled and local, settled and neither, certified, undecided whatever its status, contradicted.
SETTLED = [[[11, 11, 11, 1, 8, 10]] * 2] * 2
STATUS = [[[1, 2, 3, 1, 1, 1]] * 2] * 2


def test_both_rules_count_every_instance_and_say_which_they_are():
    data = results(SETTLED, selection_status=np.asarray(STATUS, np.uint8))
    strict, wide = percentages(data), percentages(data, rule="settled")
    assert (strict.attrs["rule"], wide.attrs["rule"]) == ("certified", "settled")
    assert RULES["settled"] in wide["count"].attrs["long_name"]

    def counts(table, name):
        return table["count"].sel(d=2, kind="W", outcome=name).item()

    names = ("globally_optimal", "locally_optimal", "selection_settled", "undecided", "prediction_contradicted")
    assert [counts(strict, name) for name in names] == [1, 0, 3, 1, 1]
    assert [counts(wide, name) for name in names] == [2, 1, 1, 1, 1]
    for table in (strict, wide):
        np.testing.assert_array_equal(table["count"].sum("outcome"), table.ran)
    np.testing.assert_array_equal(strict.given, 2)  # the certified one and the contradicted one
    np.testing.assert_array_equal(wide.given, 4)


def test_the_rule_for_settled_selections_needs_their_status():
    with pytest.raises(ValueError, match="rule: settled selections are counted by their `selection_status`"):
        percentages(results(SETTLED), rule="settled")
    assert percentages(results(ONE), rule="settled")["count"].equals(percentages(results(ONE))["count"])
    found = settled_selections([11, 11, 3], [SelectionStatus.local, SelectionStatus.ambiguous, SelectionStatus.local])
    assert found.tolist() == [Outcome.locally_optimal, Outcome.selection_settled, Outcome.not_locally_optimal]


def test_decode():
    assert decode(3) == "not_locally_optimal"
    assert decode(np.array([[0], [9]])).tolist() == [["not_run"], ["failed"]]
    codes = xarray.DataArray([2, 5], dims="d", attrs={"flag_values": [2, 5], "flag_meanings": "two five", "u": 1})
    named = decode(codes)
    assert named.values.tolist() == ["two", "five"] and named.dims == ("d",) and named.attrs == {"u": 1}


def test_tables_lose_nobody():
    data = results(ONE, gap=np.where(np.asarray(ONE) == 9, np.nan, 0.5))
    table = summary(data)
    assert table.columns[:3] == ("d", "kind", "not_run") and table.columns[-1] == "instances"
    for row in table.rows:
        assert sum(map(int, row[2:-1])) == int(row[-1]) == 6
    lines = {row[:2]: row[2:] for row in quantities(data).rows}
    assert lines["2", "W"] == ("gap", "0.5", "0.5", "0.5", "1", "5")
    assert lines["4", "KQ"] == ("gap", "-", "-", "-", "0", "0")
    assert "globally_optimal" in str(table) and "<td>W</td>" in table.to_html()

"""Codes of outcomes, and what `print` and a notebook show of results."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxflow._core import Code, Outcome, SelectionStatus, as_html, in_numbers
from jaxflow.margin import Certificate, max_margin, solve

# Stored results hold these numbers, in this order: a change here breaks every file written before.
OUTCOMES = """
    not_run globally_optimal locally_optimal not_locally_optimal finite_stationary_point limit_point infeasible_program
    ambiguous undecided failed prediction_contradicted selection_settled kkt_point
""".split()
GOLDEN = {
    Outcome: {name: number for number, name in enumerate(OUTCOMES)},
    SelectionStatus: {"global_": 1, "local": 2, "not_local": 3, "ambiguous": 4, "not_applicable": 5},
}


@pytest.mark.parametrize("names", GOLDEN)
def test_stored_values_never_change(names):
    assert {member.name: member.value for member in names} == GOLDEN[names]


@pytest.mark.parametrize("same", ["failed", Outcome.failed, 9, Code(9, Outcome)])
def test_equal_by_name_member_number_and_code_and_elementwise(same):
    batch = Code([1, 9, 8, 9], Outcome)
    np.testing.assert_array_equal(batch == same, [False, True, False, True])
    np.testing.assert_array_equal(batch != same, [True, False, True, False])
    assert batch[1] == same and not (batch[1] != same)
    np.testing.assert_array_equal(batch == Code([1, 2, 8, 3], Outcome), [True, False, True, False])


def test_a_batch_is_stored_as_bytes_indexed_printed_and_iterated():
    batch = Code([[1], [9]], Outcome)
    assert batch.name.tolist() == [["globally_optimal"], ["failed"]] and repr(batch[1, 0]) == "Outcome(failed)"
    assert str(batch[jnp.asarray([True, False])][0, 0]) == "globally_optimal"
    assert [str(one) for one in batch[:, 0]] == ["globally_optimal", "failed"]
    stored = np.asarray(batch)
    assert stored.dtype == np.uint8 and np.asarray(batch, dtype=np.int64).dtype == np.int64
    assert stored.tolist() == [[1], [9]] and int(batch[1, 0]) == 9


@pytest.mark.parametrize(
    ("use", "error", "message"),
    [
        (lambda code: iter(code), TypeError, "0-d"),
        # It is an error, not false.
        (lambda code: code == "fialed", ValueError, "'fialed' is not one of not_run, globally_optimal"),
        (lambda code: str(Code(77, Outcome)), ValueError, "77 is not a valid Outcome"),
        # A hash would have to be that of 9, and that of its name.
        (hash, TypeError, "unhashable"),
    ],
)
def test_what_one_code_is_not_for_is_refused(use, error, message):
    with pytest.raises(error, match=message):
        use(Code(9, Outcome))


def test_a_certificate_prints_its_numbers_a_batch_ranges_and_a_trace_says_so():
    inputs = jnp.array([[1.0, 2.0], [2.0, 1.0], [-1.0, -3.0]])
    solution = solve(max_margin(inputs, jnp.array([1.0, 1.0, -1.0]), "l2"))
    one, text = solution.certificate, str(solution.certificate)
    assert text.startswith("Certificate(primal value ") and "duality gap" in text and "source program" in text
    assert f"{float(one.primal_value):.6g}" in text and "f64[" not in text and "result optimal" in str(solution)
    batch = jax.tree.map(lambda x: jnp.stack([x, 2 * x if eqx.is_inexact_array(x) else x]), one)
    assert f"[{float(one.primal_value):.6g}, {2 * float(one.primal_value):.6g}]" in str(batch)
    many = jax.tree.map(lambda x: jnp.repeat(x, 3, axis=0) if eqx.is_array(x) else x, batch)
    assert f"(6,) from {float(one.primal_value):.6g} to {2 * float(one.primal_value):.6g}" in str(many)
    seen = []
    jax.jit(lambda value: seen.append(str(eqx.tree_at(lambda c: c.primal_value, one, value))))(1.0)
    assert seen == ["a traced Certificate"]
    assert in_numbers(Certificate.none()).count("inf") >= 3


def test_html_is_escaped():
    assert as_html("a < b") == "<pre style='white-space: pre-wrap'>a &lt; b</pre>"

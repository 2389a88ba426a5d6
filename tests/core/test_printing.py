"""What `print` and a notebook show of results."""

import equinox as eqx
import jax
import jax.numpy as jnp

from jaxflow._core import as_html, in_numbers
from jaxflow.margin import Certificate, max_margin, solve


def solved():
    inputs = jnp.array([[1.0, 2.0], [2.0, 1.0], [-1.0, -3.0]])
    return solve(max_margin(inputs, jnp.array([1.0, 1.0, -1.0]), "l2"))


def test_a_certificate_prints_its_numbers_in_a_few_lines():
    solution = solved()
    text = str(solution.certificate)
    assert text.startswith("Certificate(primal value ") and "duality gap" in text and "source program" in text
    assert f"{float(solution.certificate.primal_value):.6g}" in text
    assert len(str(solution).splitlines()) <= 6 and "result optimal" in str(solution)
    assert "f64[" not in text and "Certificate(primal value" in solution.certificate._repr_html_()


def test_a_batch_prints_ranges_and_a_trace_says_so():
    one = solved().certificate
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

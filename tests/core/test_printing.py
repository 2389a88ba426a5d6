"""What `print` and a notebook show of results."""

import equinox as eqx
import jax
import jax.numpy as jnp

from jaxflow._core import as_html, in_numbers
from jaxflow.margin import Certificate, max_margin, solve


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

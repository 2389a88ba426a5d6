"""Cross-entropy over many classes: its values where they underflow, its derivatives, its labels and their refusals."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxflow as jf

KEY = jax.random.key(0)
INPUTS, LABELS = jax.random.normal(KEY, (12, 4)), np.arange(12) % 3
LAYER = eqx.nn.Linear(4, 3, key=jax.random.key(1))
LOSS = jf.losses.CrossEntropy()


def test_it_is_minus_the_logarithm_of_softmax() -> None:
    outputs = 3.0 * jax.random.normal(KEY, (5, 2, 4))
    labels = jax.random.randint(KEY, (5, 2), 0, 4)

    def plain(outputs: jax.Array) -> jax.Array:
        return -jnp.take_along_axis(jax.nn.log_softmax(outputs), labels[..., None], axis=-1)[..., 0]

    value = LOSS.value(outputs, labels)
    np.testing.assert_allclose(value, plain(outputs), rtol=1e-12)
    np.testing.assert_allclose(LOSS.log_value(outputs, labels), jnp.log(value), rtol=1e-12)
    margins = jf.losses.margins_of(LOSS, outputs, labels)
    np.testing.assert_allclose(jf.losses.value_of_margins(LOSS, margins), value, rtol=1e-12)
    scale, weights = LOSS.scaled_derivative(outputs, labels)
    slopes = jax.grad(lambda f: jnp.sum(plain(f)))(outputs)
    np.testing.assert_allclose(jnp.exp(scale) * weights, slopes, atol=1e-14)
    by_margins = jnp.exp(jf.losses.log_slope_excess(LOSS, margins) - margins)
    np.testing.assert_allclose(by_margins.sum(-1), jnp.abs(slopes).sum(-1) / 2, rtol=1e-12)


def test_the_tail_has_all_of_its_digits() -> None:
    """Softmax is one from leads of 37 on, and the loss zero from 746 on."""
    outputs, labels = jnp.array([[0.0, 1000.0, -1.0], [5000.0, 0.0, 0.0]]), jnp.array([1, 0])
    logs = np.array([-1000.0 + np.log1p(np.exp(-1.0)), -5000.0 + np.log(2.0)])
    np.testing.assert_allclose(LOSS.log_value(outputs, labels), logs, rtol=1e-15)
    scale, weights = LOSS.scaled_derivative(outputs, labels)
    share = 1.0 / (1.0 + np.exp(-1.0))
    np.testing.assert_allclose(scale, logs[0], rtol=1e-15)
    np.testing.assert_allclose(weights[0], [share, -1.0, 1.0 - share], rtol=1e-12)
    scale, weights = LOSS.scaled_derivative(outputs[1:], labels[1:])
    np.testing.assert_allclose(scale, logs[1], rtol=1e-15)
    np.testing.assert_allclose(weights[0], [-1.0, 0.5, 0.5], rtol=1e-12)


def test_two_classes_are_the_logistic_loss_of_a_difference() -> None:
    class Difference(eqx.Module):
        layer: eqx.nn.Linear

        def __call__(self, x: jax.Array) -> jax.Array:
            f = self.layer(x)
            return f[1] - f[0]

    labels = LABELS % 2
    for size in (1.0, 1e3):
        layer = eqx.nn.Linear(4, 2, key=KEY)
        layer = eqx.tree_at(lambda m: m.weight, layer, size * layer.weight)
        many = jf.EmpiricalRisk((INPUTS, labels), "cross_entropy")
        two = jf.EmpiricalRisk((INPUTS, labels), "logistic")
        np.testing.assert_allclose(many.margins(layer), two.margins(Difference(layer)), rtol=1e-14)
        np.testing.assert_allclose(many.log_value(layer), two.log_value(Difference(layer)), rtol=1e-14)
        a, b = many.scaled_gradient(layer), two.scaled_gradient(Difference(layer))
        np.testing.assert_allclose(a.log_scale, b.log_scale, rtol=1e-14)
        np.testing.assert_allclose(a.gradient.weight, b.gradient.layer.weight, atol=1e-14)


def test_its_third_derivative_is_bounded_by_its_second() -> None:
    bound = 2.0
    assert jf.losses.self_concordance(LOSS) == bound

    def ratio(q: Any, u: Any, v: Any) -> Any:
        def second(s: Any) -> Any:
            return jax.hessian(lambda t: jf.losses.value_of_margins(LOSS, q + s * u + t * v))(0.0)

        return jnp.abs(jax.grad(second)(0.0)) / (jnp.max(jnp.abs(u)) * second(0.0))

    q, u, v = 3.0 * jax.random.normal(KEY, (3, 2000, 3))
    found = jax.jit(jax.vmap(ratio))(q, jnp.sign(u), v)
    assert 1.0 < jnp.max(found) <= bound
    # And no smaller bound holds: nearly all weight on one class, and what moves against it.
    edge = ratio(jnp.array([-20.0, -10.0]), jnp.array([1.0, -1.0]), jnp.array([0.0, 1.0]))
    np.testing.assert_allclose(edge, bound, rtol=1e-3)


def test_every_position_of_a_sequence_has_a_class() -> None:
    inputs, labels = jax.random.normal(KEY, (5, 7, 4)), np.arange(35).reshape(5, 7) % 3
    risk = jf.EmpiricalRisk((inputs, labels), "cross_entropy")

    def model(x: jax.Array) -> jax.Array:
        return jax.vmap(LAYER)(x)

    flat = jf.EmpiricalRisk((inputs.reshape(-1, 4), labels.reshape(-1)), "cross_entropy")
    np.testing.assert_allclose(risk(model), flat(LAYER), rtol=1e-13)
    assert risk.margins(model).shape == (5, 7, 2)


def test_data_keep_classes_as_integers_and_give_them_back() -> None:
    for data in (jf.data.LinearData(INPUTS, LABELS), jf.data.SampleData(INPUTS, LABELS.astype(float))):
        many: Any = jf.EmpiricalRisk(data, "cross_entropy").data
        assert jnp.issubdtype(many.targets.dtype, jnp.integer)
        again: Any = jf.EmpiricalRisk(many, "squared").data
        assert jnp.issubdtype(again.targets.dtype, jnp.floating)
    labels = jnp.stack([jnp.asarray(LABELS), jnp.asarray(LABELS).at[0].set(5), jnp.asarray(LABELS).at[1].set(-2)])
    values = jax.jit(jax.vmap(lambda y: jf.EmpiricalRisk((INPUTS, y), "cross_entropy")(LAYER)))(labels)
    # In a batch a class that does not exist is an outcome of its own.
    assert jnp.isfinite(values).tolist() == [True, False, False]


REFUSED = {
    "strings": (["a", "b", "c"] * 4, LAYER, "^labels: expected class numbers 0, 1, 2, .*got strings"),
    "Booleans": (LABELS > 0, LAYER, "^labels: expected class numbers .*got Booleans"),
    "signs": (LABELS - 1, LAYER, "^labels: expected class numbers .*got -1"),
    "shares": (LABELS + 0.5, LAYER, "^labels: expected class numbers .*got 0.5"),
    "NaN": (np.where(LABELS == 1, np.nan, LABELS), LAYER, "^labels: expected class numbers .*got nan"),
    "a class too many": (LABELS + 1, LAYER, "^labels: class 3, and outputs are of classes 0 to 2"),
    "rows": (np.eye(3)[LABELS], LAYER, r"^model: expected an output of shape \(3, C\).*not rows of them"),
    "one output": (LABELS, eqx.nn.Linear(4, "scalar", key=KEY), r"^model: expected an output of shape \(C\)"),
    "a network of one output": (
        LABELS,
        jf.models.DiagonalLinearNetwork((jnp.ones(4), jnp.ones(4))),
        r"^model: cross_entropy needs outputs of shape \(12, C\), C > 1 classes, got \(12,\)",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_class_is_refused_by_name(name: str) -> None:
    labels, model, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        jf.find_limit(jf.EmpiricalRisk((INPUTS, labels), "cross_entropy"), model)


def test_risks_without_classes_are_refused() -> None:
    with pytest.raises(ValueError, match="^loss: CrossEntropy is not a margin loss of one margin"):
        jf.EmpiricalRisk.from_margins(lambda theta: theta, "cross_entropy")
    tokens, _ = jf.data.random_tokens(KEY, 2, 3, 4)
    with pytest.raises(ValueError, match="^loss: cross_entropy needs class numbers; labels of TokenData are -1 and 1"):
        jf.EmpiricalRisk(tokens, "cross_entropy")
    with pytest.raises(ValueError, match="^loss: Squared is not a margin loss"):
        jf.EmpiricalRisk((INPUTS, np.eye(3)[LABELS]), "squared").margins(LAYER)

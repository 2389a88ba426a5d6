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


CLASSES = jnp.array([0, 3, 3, 1])
FREQUENCIES = jnp.array([[0.5, 0.5, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0], [0.25] * 4, [0.1, 0.0, 0.2, 0.7]])


@pytest.mark.parametrize("labels", [CLASSES, pytest.param(FREQUENCIES, marks=pytest.mark.slow)], ids=["one", "many"])
def test_it_is_minus_the_logarithm_of_softmax(labels: jax.Array) -> None:
    """Of the class, or weighted by the frequencies of all of them."""
    outputs = 3.0 * jax.random.normal(KEY, (4, 4))
    shares = labels if labels.ndim == 2 else jnp.eye(4)[labels]

    def plain(outputs: jax.Array) -> jax.Array:
        return -jnp.sum(shares * jax.nn.log_softmax(outputs), axis=-1)

    value = LOSS.value(outputs, labels)
    np.testing.assert_allclose(value, plain(outputs), rtol=1e-12)
    np.testing.assert_allclose(LOSS.log_value(outputs, labels), jnp.log(value), rtol=1e-12, atol=1e-14)
    scale, weights = LOSS.scaled_derivative(outputs, labels)
    slopes = jax.grad(lambda f: jnp.sum(plain(f)))(outputs)
    np.testing.assert_allclose(jnp.exp(scale) * weights, slopes, atol=1e-14)
    # And what is differentiated again, as an implicit solver does.
    bent = jax.jacobian(lambda f: jnp.exp(scale) * LOSS.scaled_derivative(f, labels)[1])
    np.testing.assert_allclose(bent(outputs), jax.hessian(lambda f: jnp.sum(plain(f)))(outputs), atol=1e-14)
    margins = jf.losses.margins_of(LOSS, outputs, labels)
    of_margins = jf.losses.value_of_margins(LOSS, margins)
    if labels.ndim == 1:
        np.testing.assert_allclose(of_margins, value, rtol=1e-12)
        by_margins = jnp.exp(jf.losses.log_slope_excess(LOSS, margins) - margins)
        np.testing.assert_allclose(by_margins.sum(-1), jnp.abs(slopes).sum(-1) / 2, rtol=1e-12)
        return
    assert margins.shape == (4, 4, 3)
    weighted = jnp.sum(jf.losses.weights_of(LOSS, outputs, labels) * of_margins, axis=-1)
    np.testing.assert_allclose(weighted, value, rtol=1e-12)
    # A word that does not occur has the margins of the most frequent one.
    own = outputs[1, 1] - outputs[1, jnp.array([0, 2, 3])]
    np.testing.assert_array_equal(margins[1], jnp.broadcast_to(own, (4, 3)))


def test_the_tail_has_all_of_its_digits() -> None:
    """Softmax is one from leads of 37 on, and the loss zero from 746 on."""
    outputs, labels = jnp.array([[0.0, 1000.0, -1.0], [5000.0, 0.0, 0.0]]), jnp.array([1, 0])
    logs = np.array([-1000.0 + np.log1p(np.exp(-1.0)), -5000.0 + np.log(2.0)])
    share = 1.0 / (1.0 + np.exp(-1.0))
    slopes = [[share, -1.0, 1.0 - share], [-1.0, 0.5, 0.5]]
    for form in (labels, jnp.eye(3)[labels]):
        np.testing.assert_allclose(LOSS.log_value(outputs, form), logs, rtol=1e-15)
        for row in range(2):
            scale, weights = LOSS.scaled_derivative(outputs[row:], form[row:])
            np.testing.assert_allclose(scale, logs[row], rtol=1e-15)
            np.testing.assert_allclose(weights[0], slopes[row], rtol=1e-12)
    # On the odds of the table only the share of other words is left, where 1 - p has no digits.
    outputs, often = jnp.array([[0.0, 0.0, -1000.0]]), jnp.array([[0.5, 0.5, 0.0]])
    scale, weights = LOSS.scaled_derivative(outputs, often)
    np.testing.assert_allclose(scale, -1000.0 - np.log(2.0), rtol=1e-15)
    np.testing.assert_allclose(weights[0], [-0.5, -0.5, 1.0], rtol=1e-12)
    np.testing.assert_allclose(LOSS.value(outputs, often), np.log(2.0), rtol=1e-15)


@pytest.mark.slow
def test_frequencies_in_a_risk() -> None:
    often = np.eye(3)[LABELS]
    soft, hard = (jf.EmpiricalRisk((INPUTS, y), "cross_entropy") for y in (often, LABELS))
    assert soft.soft and not hard.soft and soft.count(jax.vmap(LAYER)(INPUTS)) == 12
    for f in (lambda r: r(LAYER), lambda r: r.log_value(LAYER), lambda r: r.scaled_gradient(LAYER).log_scale):
        np.testing.assert_allclose(f(soft), f(hard), rtol=1e-14)
    a, b = (r.scaled_gradient(LAYER).gradient for r in (soft, hard))
    np.testing.assert_allclose(a.weight, b.weight, atol=1e-15)
    # A table of counts in single precision is divided by its sum again.
    third: Any = jf.EmpiricalRisk((INPUTS, np.full((12, 3), 1 / 3, np.float32)), "cross_entropy").data
    np.testing.assert_allclose(third.targets.sum(axis=1), 1.0, rtol=1e-15)
    rows = jnp.stack([jnp.asarray(often), jnp.asarray(often).at[0, 0].set(0.5), jnp.asarray(often).at[1].set(-1.0)])
    values = jax.jit(jax.vmap(lambda y: jf.EmpiricalRisk((INPUTS, y), "cross_entropy")(LAYER)))(rows)
    assert jnp.isfinite(values).tolist() == [True, False, False]


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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
    "signs": (LABELS - 1, LAYER, "^labels: expected class numbers .*got -1"),
    "NaN": (np.where(LABELS == 1, np.nan, LABELS), LAYER, "^labels: expected class numbers .*got nan"),
    "a class too many": (LABELS + 1, LAYER, "^labels: class 3, and outputs are of classes 0 to 2"),
    "rows": (np.eye(3, dtype=int)[LABELS], LAYER, r"^model: expected an output of shape \(3, C\).*not rows of them"),
    "rows of another sum": (
        0.9 * np.eye(3)[LABELS],
        LAYER,
        "^labels: expected .* frequencies that sum to one, got 0.9",
    ),
    "rows of other words": (np.eye(4)[LABELS], LAYER, r"^model: expected an output of shape \(4,\) for one input"),
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


@pytest.mark.slow
def test_the_slope_of_frequencies_has_a_derivative_where_it_is_zero() -> None:
    """At softmax f = y the slope p - y vanishes and its Jacobian, diag(p) - p p^T, does not."""
    outputs, often = jnp.zeros((1, 3)), jnp.array([[1 / 3, 1 / 3, 1 / 3]])

    def slope(f: jax.Array) -> jax.Array:
        scale, weights = jf.losses.CrossEntropy().scaled_derivative(f[None], often)
        return jnp.exp(scale) * weights[0]

    assert np.max(np.abs(slope(outputs[0]))) <= 1e-16
    np.testing.assert_allclose(jax.jacfwd(slope)(outputs[0]), (np.eye(3) - 1 / 3) / 3, atol=1e-15)

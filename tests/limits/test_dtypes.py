"""Floating-point types and integers side by side: one dtype inside of every loop, whatever the parts have."""

import itertools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxflow as jf

RANDOM = np.random.default_rng(0)
TOKENS, QUERIES, HEAD, W = (RANDOM.normal(size=shape) for shape in ((2, 3, 2), (2, 2), 2, (2, 2)))
LABELS = np.array([1, -1])
DTYPES = ("float32", "float64", "int32")


def problem(*dtypes: str) -> tuple[jf.EmpiricalRisk, jf.models.CombinedAttention]:
    """Tokens, queries, head and weights of these dtypes."""
    pairs = zip((TOKENS, QUERIES, HEAD, W), dtypes, strict=True)
    tokens, queries, head, weights = (jnp.asarray(2 * x if dtype == "int32" else x, dtype) for x, dtype in pairs)
    risk = jf.EmpiricalRisk(jf.data.TokenData(tokens, queries, LABELS), "logistic")
    return risk, jf.models.CombinedAttention(weights, head)


def dtypes_of_ends(risk: jf.EmpiricalRisk, model: Any) -> set[Any]:
    """Traced alone: a loop whose carry changes its type is refused there."""

    def followed(risk: jf.EmpiricalRisk, model: Any) -> Any:
        flow = jf.integrate(risk, model, clock="log_time", until=1.0, throw=False)
        return risk(model), flow.final.model.W, jf.descend(risk, model, steps=2, throw=False).final.model.W

    return {x.dtype for x in eqx.filter_eval_shape(followed, risk, model)[1:]}


@pytest.mark.parametrize(("one", "other"), list(itertools.product(DTYPES, repeat=2)))
def test_data_are_of_one_dtype_which_integers_follow(one, other):
    known = [dtype for dtype in (one, other) if dtype != "int32"]
    wanted = jnp.result_type(*known) if known else jnp.result_type(float)
    tokens = problem(one, other, "float64", "float64")[0].data
    first, second = (np.asarray(2 * QUERIES, dtype) for dtype in (one, other))
    linear, samples = jf.data.LinearData(first, second[:, 0]), jf.data.SampleData(first, second)
    assert {x.dtype for x in jax.tree.leaves((tokens, linear, samples))} == {wanted}


# One argument in single precision, and some that differ together.
MIXED = [
    *(tuple("float32" if k == at else "float64" for k in range(4)) for at in range(4)),
    ("float32", "float32", "float32", "float32"),
    ("int32", "int32", "float32", "float32"),
    ("int32", "float32", "float64", "int32"),
]


@pytest.mark.parametrize("dtypes", MIXED, ids="-".join)
def test_every_mixture_is_followed(dtypes):
    assert dtypes_of_ends(*problem(*dtypes)) == {jnp.dtype("float64")}


@pytest.mark.slow
def test_mixed_types_and_a_common_first_token_have_a_certified_limit():
    """Such as one for the class: no sequence selects it here, and it must not count as the same token elsewhere."""
    data, head = jf.data.random_tokens(jax.random.key(0), n=3, T=4, d=4)
    tokens = np.round(4 * np.asarray(data.tokens)).astype("int64")
    tokens[:, 0] = tokens[0, 0]
    queries = np.round(4 * np.asarray(data.queries)).astype("float32")
    mixed = jf.data.TokenData.validated(tokens, queries, np.asarray(data.labels) > 0)
    model = jf.models.CombinedAttention(np.zeros((4, 4), np.float32), np.asarray(head))
    limit = jf.find_limit(jf.EmpiricalRisk(mixed, "logistic"), model)
    assert limit.direction.dtype == np.float64 and limit.outcome in ("globally_optimal", "locally_optimal")
    chosen = np.argmax(limit.selection, axis=-1)
    assert np.all(chosen > 0)
    best = jf.margin.solve_cvxpy(jf.margin.attention_svm(mixed, chosen)).certificate.primal_value
    np.testing.assert_allclose(jnp.linalg.norm(limit.direction), best, rtol=1e-6)


def test_single_precision_stays_single_where_that_is_the_default():
    with jax.enable_x64(False):
        assert dtypes_of_ends(*problem(*["float32"] * 4)) == {jnp.dtype("float32")}


class Network(eqx.Module):
    inner: jax.Array
    outer: jax.Array

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.outer @ jnp.tanh(self.inner @ x)


# Layers of a network take one dtype, as data do; a callable keeps what it has.
@pytest.mark.parametrize(
    ("name", "dtypes"),
    [
        ("layers", ("float32", "float32", "float64")),
        pytest.param("layers", ("float64", "int32", "float32"), marks=pytest.mark.slow),
        ("callable", ("float32", "float32", "float64")),
        pytest.param("callable", ("float64", "float32", "float64"), marks=pytest.mark.slow),
        pytest.param("callable", ("float32", "float64", "float32"), marks=pytest.mark.slow),
    ],
)
def test_networks_of_mixed_layers_have_limits(name: str, dtypes: tuple[str, ...]) -> None:
    inputs, inner, outer = (jnp.asarray(QUERIES, dtype) for dtype in dtypes)
    layers = jf.models.DiagonalLinearNetwork((1 + inner[0], outer[1]))
    model: Any = layers if name == "layers" else Network(inner, outer[0])
    risk = jf.EmpiricalRisk((inputs, LABELS), "logistic")
    found = eqx.filter_eval_shape(lambda r, m: jf.find_limit(r, m, throw=False), risk, model)
    assert found.trajectory.final.log_norm.dtype == jnp.float64

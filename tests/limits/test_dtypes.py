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
NUMBERS = {
    "tokens": RANDOM.normal(size=(2, 3, 2)),
    "queries": RANDOM.normal(size=(2, 2)),
    "head": RANDOM.normal(size=2),
    "W": RANDOM.normal(size=(2, 2)),
}
LABELS = np.array([1, -1])
DTYPES = ("float32", "float64", "int32")
SINGLE, DOUBLE = ("float32",) * 4, ("float64",) * 4


def problem(dtypes: tuple[str, ...]) -> tuple[jf.EmpiricalRisk, jf.models.CombinedAttention]:
    """Tokens, queries, head and weights of these dtypes."""
    pairs = zip(NUMBERS.values(), dtypes, strict=True)
    tokens, queries, head, W = (jnp.asarray(2 * x if dtype == "int32" else x, dtype) for x, dtype in pairs)
    risk = jf.EmpiricalRisk(jf.data.TokenData(tokens, queries, LABELS), "logistic")
    return risk, jf.models.CombinedAttention(W, head)


def followed(risk: jf.EmpiricalRisk, model: Any) -> tuple[Any, ...]:
    flow = jf.integrate(risk, model, clock="log_time", until=1.0, throw=False)
    return risk(model), flow.final, jf.descend(risk, model, steps=2, throw=False).final


@pytest.mark.parametrize(("one", "other"), list(itertools.product(DTYPES, repeat=2)))
def test_data_are_of_one_dtype_which_integers_follow(one, other):
    known = [dtype for dtype in (one, other) if dtype != "int32"]
    wanted = jnp.result_type(*known) if known else jnp.result_type(float)
    tokens = problem((one, other, "float64", "float64"))[0].data
    first, second = (np.asarray(2 * NUMBERS["queries"], dtype) for dtype in (one, other))
    linear, samples = jf.data.LinearData(first, second[:, 0]), jf.data.SampleData(first, second)
    assert {x.dtype for x in jax.tree.leaves((tokens, linear, samples))} == {wanted}


# One argument in single precision, and some that differ together.
MIXED = [
    *(tuple("float32" if k == at else "float64" for k in range(4)) for at in range(4)),
    SINGLE,
    ("int32", "int32", "float32", "float32"),
    ("int32", "float32", "float64", "int32"),
]


# Tokens and queries have one dtype by then: with it every other combination.
OTHERS = [
    (one, one, head, W)
    for one, head, W in itertools.product(("float32", "float64"), DTYPES, DTYPES)
    if (one, one, head, W) not in (*MIXED, DOUBLE)
]


@pytest.mark.parametrize("dtypes", [*MIXED, *(pytest.param(d, marks=pytest.mark.slow) for d in OTHERS)], ids="-".join)
def test_every_mixture_is_followed(dtypes):
    """Traced alone: a loop whose carry changes its type is refused there."""
    _, flow, descent = eqx.filter_eval_shape(followed, *problem(dtypes))
    assert flow.model.W.dtype == descent.model.W.dtype == jnp.float64


class Network(eqx.Module):
    inner: jax.Array
    outer: jax.Array

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.outer @ jnp.tanh(self.inner @ x)


# Layers of a network take one dtype, as data do; a callable keeps what it has.
KEPT = [
    ("layers", ("float32", "float32", "float64")),
    ("layers", ("float64", "int32", "float32")),
    *(("callable", dtypes) for dtypes in itertools.product(("float32", "float64"), repeat=3)),
]
QUICK = [("layers", ("float32", "float32", "float64")), ("callable", ("float32", "float32", "float64"))]


@pytest.mark.parametrize(
    ("name", "dtypes"),
    [case if case in QUICK else pytest.param(*case, marks=pytest.mark.slow) for case in KEPT],
)
def test_networks_of_mixed_layers_have_limits(name: str, dtypes: tuple[str, ...]) -> None:
    inputs, inner, outer = (jnp.asarray(NUMBERS["queries"], dtype) for dtype in dtypes)
    if name == "layers":
        model: Any = jf.models.DiagonalLinearNetwork((1 + inner[0], outer[1]))
    else:
        model = Network(inner, outer[0])
    risk = jf.EmpiricalRisk((inputs, LABELS), "logistic")
    found = eqx.filter_eval_shape(lambda r, m: jf.find_limit(r, m, throw=False), risk, model)
    assert found.trajectory.final.log_norm.dtype == jnp.float64


def test_single_precision_stays_single_where_that_is_the_default():
    with jax.enable_x64(False):
        _, flow, descent = eqx.filter_eval_shape(followed, *problem(SINGLE))
        assert flow.model.W.dtype == descent.model.W.dtype == jnp.float32

"""All coordinates give back the weights, and their field is that of the weights: so all trace one path. Mirror flows
have another one, that of their dual variable."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp
from scipy.optimize import minimize

import jaxflow as jf
from jaxflow import models
from jaxflow.data import TokenData
from jaxflow.flow import Factors, Halves, LayerScores, Mirror, OneLayer, Scores, Spectrum
from jaxflow.flow.coordinates.halves import pair_growth
from jaxflow.flow.solvers import state_norm
from tests.limits.models import Linear, Matrix

KEY = jax.random.key(1)


def tokens(n, T, d, queries=None, hidden=False):
    data, head = jf.data.random_tokens(jax.random.key(0), n, T, d, score_gap=0.1)
    if queries is not None:
        asked = jax.random.normal(jax.random.key(2), (n, queries, d))
        labels = jnp.where(jnp.arange(queries) % 2 == 0, 1.0, -1.0)[None, :] * data.labels[:, None]
        data = TokenData(data.tokens, asked, labels)
    if hidden:
        data = TokenData(data.tokens, data.queries, data.labels, jnp.arange(T)[None] < jnp.array([[T], [2], [T - 1]]))
    return data, head


def case(coordinates, kind, *shape, m=None, **how):
    data, head = tokens(*shape, **how)
    more = {} if m is None else {"m": m}
    heads = jnp.stack([head, jnp.roll(head, 1)]) if kind is models.MultiHeadAttention else head
    return coordinates, data, kind.init(KEY, data, heads, **more)


def network(coordinates, depth, kind=models.DiagonalLinearNetwork, d=3):
    data = jf.data.LinearData(jax.random.normal(KEY, (5, d)), jnp.array([1.0, -1.0, 1.0, 1.0, -1.0]))
    return coordinates, data, kind.init(KEY, data, depth=depth, alpha=0.7, scheme="random")


CASES = {
    "scores": lambda: case(Scores(3.0), models.CombinedAttention, 3, 4, 3),
    # d is one more than tokens span: rows of n(T - 1) n entries in frames of tokens and queries in place of d².
    "scores in frames": lambda: case(Scores(), models.CombinedAttention, 2, 3, 5),
    "scores of layers": lambda: case(LayerScores(), models.MultiHeadAttention, 3, 4, 3),
    # Token differences span 4 dimensions, queries 2, rows 6 of 7 columns.
    "factors": lambda: case(Factors(), models.FactoredAttention, 2, 3, 9, m=7),
    "factors, two queries": lambda: case(Factors(), models.FactoredAttention, 2, 3, 9, m=7, queries=2),
    "factors, all dimensions": lambda: case(Factors(), models.FactoredAttention, 4, 4, 3),
    "halves": lambda: case(Halves(), models.DiagonalAttention, 3, 4, 3),
    "halves, hidden tokens": lambda: case(Halves(), models.DiagonalAttention, 3, 4, 3, hidden=True),
    "halves, two queries": lambda: case(Halves(), models.DiagonalAttention, 3, 4, 3, queries=2),
    "halves of a network": lambda: network(Halves(), 2),
    "one layer of three": lambda: network(OneLayer(), 3),
    "modes of three filters": lambda: network(Spectrum(), 3, models.LinearConvolutionalNetwork),
    # An even number of modes has two that are real.
    "modes of two filters": lambda: network(Spectrum(), 2, models.LinearConvolutionalNetwork, 4),
}
SHAPES = {
    "scores in frames": [(4,)],
    "factors": [(4, 6), (2, 6)],
    "factors, two queries": [(4, 7), (4, 7)],
    "factors, all dimensions": [(3, 3), (3, 3)],
}
QUICK = ("scores", "factors", "halves, hidden tokens")


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in CASES])
def test_the_field_is_that_of_the_weights(name):
    coordinates, data, model = CASES[name]()
    risk = jf.EmpiricalRisk(data, "logistic")
    state, context = coordinates.encode(risk, model)
    assert name != "scores in frames" or context[0].frames is not None
    assert name not in SHAPES or [x.shape for x in jax.tree.leaves(state)] == SHAPES[name]
    for ours, theirs in zip(jax.tree.leaves(coordinates.decode(context, state)), jax.tree.leaves(model), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-14)

    @eqx.filter_jit
    def both(risk, context, state):
        ours = coordinates.field(context, state)
        # The gradient pushed forward, not only its norm.
        there, pushed = eqx.filter_jvp(lambda x: coordinates.decode(context, x), (state,), (ours.gradient,))
        theirs = risk.scaled_gradient(there)
        moves = eqx.filter(pushed, risk.filter(there))
        return (ours.log_scale, ours.multipliers, moves), (theirs.log_scale, theirs.multipliers, theirs.gradient)

    # At the start, and further on in the context of the start; far out attention is of the order of e^-1e4.
    for size in (1.0, 3.0, 1e4):
        at = state if size == 1.0 else jax.tree.map(lambda x, size=size: size * jnp.sin(3 * x), state)
        (scale, *ours), (expected, *theirs) = both(risk, context, at)
        np.testing.assert_allclose(scale, expected, rtol=1e-12, atol=1e-12)
        factor, digits = jnp.exp(scale - expected), 1e-13 * max(10.0, abs(float(scale)))
        for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
            # Sums of some fifty products each, and roundings of exponents, of their size times 1e-16.
            np.testing.assert_allclose(factor * a, b, rtol=0, atol=digits * float(jnp.max(jnp.abs(b))))


def test_an_origin_behind_the_start_lies_against_its_velocity():
    coordinates, data, model = CASES["scores"]()
    state, context = coordinates.encode(jf.EmpiricalRisk(data, "logistic"), model)
    gradient = coordinates.field(context, state).gradient
    np.testing.assert_allclose(state, -3.0 * gradient / jnp.linalg.norm(gradient), atol=1e-14)


def test_padding_changes_neither_coordinates_nor_the_size_of_an_error():
    n, T, d, extra = 2, 3, 4, 2
    # Of the first sequence the first token is hidden, of the second one in between and the last.
    shown = np.array([[False, True, False, True, True], [True, False, True, True, False]])
    data, head = tokens(n, T, d)
    model = models.CombinedAttention.init(KEY, data, head)
    long = np.full((n, T + extra, d), np.nan)
    long[shown] = np.asarray(data.tokens).reshape(-1, d)
    padded = TokenData(long, data.queries, data.labels, shown)

    size = n * (T - 1)
    state = jax.random.normal(jax.random.key(2), (size,))
    longer = jnp.pad(state, (0, n * extra))
    fields = []
    for given, at in ((data, state), (padded, longer)):
        _, context = Scores().encode(jf.EmpiricalRisk(given, "logistic"), model)
        fields.append(Scores().field(context, at).gradient)
    np.testing.assert_allclose(np.abs(fields[1][:size]), np.abs(fields[0]), rtol=1e-12)
    np.testing.assert_array_equal(fields[1][size:], 0.0)
    # Of what never moves the error is zero, which does not count.
    assert state_norm((longer,)) == state_norm((state,))


def test_halves_take_the_smaller_half_from_what_is_conserved():
    ones = jnp.ones(6)
    data, head = jf.data.random_tokens(jax.random.key(1), 4, 4, 6)
    risk = jf.EmpiricalRisk(data, "logistic")
    lost = models.DiagonalAttention(3.0 * ones, -3.0 * ones, head)
    (u, v), _ = Halves(1e-20 * ones).encode(risk, lost)
    np.testing.assert_allclose(u * v, 0.5e-20, rtol=1e-12)
    assert np.all(np.abs(np.asarray(v)) > 4.0)
    # Of a start whose squares underflow they are its own.
    tiny = models.DiagonalAttention(3e-170 * ones, 1e-170 * ones, head)
    (u, v), _ = Halves(tiny.conserved()).encode(risk, tiny)
    np.testing.assert_allclose([u, v], np.outer([4e-170, 2e-170], ones) / np.sqrt(2.0), rtol=1e-12)


def test_a_pair_remembers_what_rounding_has_lost():
    pair, moving = (jnp.array([1.0, 1e-3]), jnp.array([1.0, -1e-3])), (jnp.array([1.0, -3e-3]), jnp.array([1.0, 3e-3]))
    # u = 0 in the second coordinate, whose v shrinks: nothing grows faster than the first.
    assert pair_growth(pair, moving) == 1.0
    assert pair_growth(pair, moving, jnp.array([0.0, 1e-40])) == 3.0


def mirror(x: np.ndarray, p: float) -> np.ndarray:
    return np.sign(x) * np.abs(x) ** (p - 1)


def spectral(matrix: np.ndarray, p: float) -> np.ndarray:
    u, s, vt = np.linalg.svd(matrix, full_matrices=False)
    return (u * s ** (p - 1)) @ vt


# What eight data push with at margins q, of labels of size one: a sum, and a mean, which is not at its end so soon.
PUSHES = {
    "logistic": ("sum", lambda q: 1.0 / (1.0 + np.exp(q))),
    "squared": ("mean", lambda q: (1.0 - q) / 8.0),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("p", "shape", "loss", "solver"),
    [
        (1.2, (3,), "squared", None),
        (3.0, (3,), "logistic", None),
        (1.5, (2, 3), "squared", "tsit5"),
        (3.0, (2, 3), "logistic", "kvaerno5"),
    ],
)
def test_the_path_is_that_of_scipy_in_the_dual_variable(p: float, shape: Any, loss: str, solver: Any) -> None:
    """Of the entries of a vector, and of the singular values of a matrix."""
    model, potential, of = (Linear, p, mirror) if len(shape) == 1 else (Matrix, jf.margin.Schatten(p), spectral)
    (reduction, push), rng = PUSHES[loss], np.random.default_rng(2)
    inputs, start, labels = rng.normal(size=(8, *shape)), rng.normal(size=shape), rng.choice([-1.0, 1.0], 8)
    signed, q = labels[:, None] * inputs.reshape(8, -1), p / (p - 1)

    def field(t: float, state: np.ndarray) -> np.ndarray:
        """Of z and its length."""
        slope = signed.T @ push(signed @ of(state[:-1].reshape(shape), q).ravel())
        return np.append(slope, np.linalg.norm(slope))

    begin = np.append(of(start, p), 0.0)
    *there, length = solve_ivp(field, (0.0, np.exp(2.0)), begin, method="LSODA", rtol=1e-10, atol=1e-12).y[:, -1]
    risk = jf.EmpiricalRisk((inputs, labels), loss, reduction=reduction)
    how: Any = {"clock": "log_time", "until": 2.0, "solver": solver, "coordinates": Mirror(potential)}
    path = jf.integrate(risk, model(jnp.asarray(start)), **how)
    [end], [velocity] = (jax.tree.leaves(x) for x in (path.final.model, path.final.velocity))
    # A step's error of 1e-6 in z, the default, is that times dw/dz in the weights, which is of order one here.
    np.testing.assert_allclose(end, of(np.reshape(there, shape), q), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(jnp.exp(path.final.log_arc_length), length, rtol=1e-5)
    z = of(np.asarray(end), p)
    *slope, rate = field(0.0, np.append(z, 0.0))
    # Central differences err by h² and by rounding over h.
    h = 1e-5 * np.reshape(slope, shape) / rate
    speed = of(z + h, q) - of(z - h, q)
    np.testing.assert_allclose(velocity, speed / np.linalg.norm(speed), atol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("p", [1.5, 3.0])
def test_squared_error_ends_at_the_least_bregman_divergence(p: float) -> None:
    rng = np.random.default_rng(1)
    rows, start, targets = rng.normal(size=(3, 6)), rng.normal(size=6), rng.normal(size=3)
    risk = jf.EmpiricalRisk((rows, targets), "squared", reduction="sum")
    path = jf.integrate(
        risk, Linear(jnp.asarray(start)), clock="log_time", until=7.0, solver="kvaerno5", coordinates=Mirror(p)
    )
    end = np.asarray(path.final.model.w)
    found = minimize(
        lambda w: np.sum(np.abs(w) ** p) / p - mirror(start, p) @ w,
        np.linalg.pinv(rows) @ targets,
        jac=lambda w: mirror(w, p) - mirror(start, p),
        constraints={"type": "eq", "fun": lambda w: rows @ w - targets, "jac": lambda w: rows},
        method="SLSQP",
        options={"ftol": 1e-15, "maxiter": 500},
    )
    np.testing.assert_allclose(rows @ end, targets, atol=1e-6)
    # Of a divergence known to 1e-14 the minimiser has half of the digits.
    np.testing.assert_allclose(end, found.x, atol=1e-5)

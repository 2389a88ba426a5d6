"""Errors of limit points beside the true ones: python benchmarks/printed_errors.py [--count 1000] [--only "hinge" ...].

Families of instances whose limit point is known: by an equation for it, solved in extended precision, or by a plain
integration at a tolerance of 1e-13 (`known_points.py`, which imports nothing of the library). Counted are the instances
whose true relative error is at most `limit.error`; a point whose error `print` bounds by *at most* is in a row of its
own, and there every one of them has to be covered.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import known_points as known
import numpy as np
from _common import Linear, begun

import jaxflow as jf
from jaxflow.models import DeepLinearNetwork, DeepMatrixSensing, DiagonalLinearNetwork, LinearConvolutionalNetwork

BLOCK = 20


class Neuron(eqx.Module):
    """One unit, of which the weights are trained."""

    w: jax.Array

    def __call__(self, x: jax.Array) -> jax.Array:
        return jnp.tanh(self.w @ x)


def squared_hinge(q: jax.Array) -> jax.Array:
    """A loss that is flat from a margin of one on."""
    return jnp.maximum(1.0 - q, 0.0) ** 2


def of_network(x: jax.Array, y: jax.Array, *layers: jax.Array, kind: Any) -> Any:
    """The limit of a regression by a linear network."""
    limit = jf.find_limit(jf.EmpiricalRisk(jf.data.LinearData(x, y), "squared"), kind(layers), throw=False)
    bound = limit.error_source.value == jf.limits.ErrorSource.pairs
    return limit.outcome.value, limit.flow_direction, limit.error, bound


def of_own(x: jax.Array, y: jax.Array, w: jax.Array, model: Any, loss: Any) -> Any:
    """The limit of a model of one's own, whose only weights are `w`."""
    limit = jf.find_limit(jf.EmpiricalRisk(jf.data.LinearData(x, y), loss), model(w), throw=False)
    return limit.outcome.value, limit.end.module.w, limit.error, limit.linear is not None


def of_component(x: jax.Array, y: jax.Array, w: jax.Array) -> Any:
    """The point to which the path of a quasi-separable regression adds its direction."""
    limit = jf.find_limit(jf.EmpiricalRisk(jf.data.LinearData(x, y), "logistic"), Linear(w), throw=False)
    facts = limit.linear
    return limit.outcome.value, facts.component.module.w, facts.error, True


class Family(NamedTuple):
    """`draw(rng, count)`: the arrays that `find` takes, instance by instance; `truth` of one instance, and of the point
    that was found there; `ends`: outcomes whose point is claimed."""

    draw: Callable[[np.random.Generator, int], list[np.ndarray]]
    find: Callable[..., Any]
    truth: Callable[..., np.ndarray | None]
    ends: tuple[str, ...] = ("limit_point",)
    words: str = "about"


def networks(n: int, *shapes: tuple[int, ...], inputs: tuple[int, ...] = (5,), least: float = -3.0) -> Any:
    """Draws `n` data, targets of order one, and layers of size 10^least to 3."""

    def draw(rng: np.random.Generator, count: int) -> list[np.ndarray]:
        size = 10.0 ** rng.uniform(least, 0.5, size=count)
        layers = [size.reshape(-1, *[1] * len(s)) * rng.normal(size=(count, *s)) for s in shapes]
        x = rng.normal(size=(count, n, *inputs))
        return [x, rng.uniform(0.5, 2.0, (count, n)) * rng.choice([-1.0, 1.0], (count, n)), *layers]

    return draw


def regressions(rng: np.random.Generator, count: int, n: int, d: int = 3) -> list[np.ndarray]:
    """Inputs in columns of different scales, real targets, and starts of order one."""
    x = rng.normal(size=(count, n, d)) * np.exp(rng.normal(size=(count, 1, d)))
    return [x, rng.normal(size=(count, n)), rng.normal(size=(count, d))]


def classes(rng: np.random.Generator, count: int, scale: float, random_start: bool) -> list[np.ndarray]:
    """Data with random labels: nearly all overlap."""
    x, y, w = regressions(rng, count, 24)
    return [scale * x, np.sign(y), random_start * w]


def nearly_even(rng: np.random.Generator, count: int) -> list[np.ndarray]:
    """Each input with both labels, and nearly so: the minimum is from 1e-12 to 1 away from zero."""
    x, y, w = regressions(rng, count, 24)
    y[:, :12], y[:, 12:] = 1.0, -1.0
    x[:, 12:] = x[:, :12] + 10.0 ** rng.uniform(-12, 0, (count, 1, 1)) * rng.normal(size=(count, 12, 3))
    return [x, y, w]


def quasi_separable(rng: np.random.Generator, count: int) -> list[np.ndarray]:
    """Overlapping data in a plane, and six more on one side of it."""
    x, y, w = regressions(rng, count, 24)
    y = np.sign(y)
    x[:, :18, 2], x[:, 18:, 2] = 0.0, y[:, 18:] * np.abs(x[:, 18:, 2])
    return [x, y, w]


def neurons(rng: np.random.Generator, count: int, noise: float) -> list[np.ndarray]:
    """Targets of a neuron, and starts near its weights."""
    x, w = rng.normal(size=(count, 12, 3)), rng.normal(size=(count, 3))
    y = np.tanh(np.einsum("cnd,cd->cn", x, w)) + noise * rng.normal(size=(count, 12))
    return [x, y, w + 0.5 * rng.normal(size=(count, 3))]


def hinges(rng: np.random.Generator, count: int) -> list[np.ndarray]:
    """Orthogonal data, of which each margin rises to one by itself."""
    frames = np.linalg.qr(rng.normal(size=(count, 4, 4)))[0][:, :3]
    x = frames * np.exp(0.3 * rng.normal(size=(count, 3, 1)))
    return [x, rng.choice([-1.0, 1.0], (count, 3)), rng.normal(size=(count, 4))]


POINT, BOUND = ("finite_stationary_point",), "at most"
DIAGONAL, CONNECTED, CONVOLUTION, SENSING = (
    partial(of_network, kind=kind)
    for kind in (DiagonalLinearNetwork, DeepLinearNetwork, LinearConvolutionalNetwork, DeepMatrixSensing)
)
SQUARED, NEURON = partial(of_own, model=Linear, loss="squared"), partial(of_own, model=Neuron, loss="squared")
LOGISTIC, EXPONENTIAL = (
    (partial(of_own, model=Linear, loss=loss), partial(known.minimum, loss=loss), POINT, BOUND)
    for loss in ("logistic", "exponential")
)
FAMILIES = {
    "diagonal network, one datum": Family(networks(1, (5,), (5,)), DIAGONAL, known.diagonal, words=BOUND),
    "diagonal network, three data": Family(networks(3, (5,), (5,)), DIAGONAL, known.diagonal, words=BOUND),
    "fully connected network, one datum": Family(networks(1, (5, 3), (3,)), CONNECTED, known.connected, words=BOUND),
    "convolutional network, one datum": Family(networks(1, (5,), (5,)), CONVOLUTION, known.convolution, words=BOUND),
    "matrix sensing, one measurement": Family(
        networks(1, (3, 3), (3, 3), inputs=(9,)),
        SENSING,
        known.sensing,
        words=BOUND,
    ),
    "logistic regression": Family(partial(classes, scale=1.0, random_start=False), *LOGISTIC),
    "logistic regression, inputs of 100": Family(partial(classes, scale=100.0, random_start=True), *LOGISTIC),
    "logistic regression, inputs of 0.01": Family(partial(classes, scale=0.01, random_start=True), *LOGISTIC),
    "logistic regression, nearly even": Family(nearly_even, *LOGISTIC),
    "exponential loss": Family(partial(classes, scale=1.0, random_start=True), *EXPONENTIAL),
    "quasi-separable: the component": Family(
        quasi_separable, of_component, known.component, ("globally_optimal",), BOUND
    ),
    "least squares, 12 data": Family(partial(regressions, n=12, d=3), SQUARED, known.projection, POINT),
    "least squares, 3 data of 6 weights": Family(partial(regressions, n=3, d=6), SQUARED, known.projection),
    "neuron": Family(partial(neurons, noise=0.0), NEURON, known.neuron),
    "neuron, noisy targets": Family(partial(neurons, noise=0.1), NEURON, known.neuron, POINT),
    "squared hinge": Family(hinges, partial(of_own, model=Linear, loss=squared_hinge), known.hinge),
    "diagonal network of three layers, two data": Family(
        networks(2, (4,), (4,), (4,), inputs=(4,), least=-0.5), DIAGONAL, known.followed
    ),
}


def row(name: str, count: int) -> dict[str, Any]:
    """Of the instances of one family that have a point: how many errors are at least the true ones."""
    family = FAMILIES[name]
    given = family.draw(np.random.default_rng([0, list(FAMILIES).index(name)]), count)
    run = jax.jit(lambda given: jax.lax.map(lambda arrays: family.find(*arrays), given))
    # In blocks of one shape, the last one filled up.
    blocks = np.minimum(np.arange(-(-count // BLOCK) * BLOCK), count - 1).reshape(-1, BLOCK)
    parts = [run(tuple(jnp.asarray(x[at]) for x in given)) for at in blocks]
    codes, found, error, bound = (np.concatenate(part)[:count] for part in zip(*jax.device_get(parts), strict=True))
    names = np.asarray([jf.Outcome(int(code)).name for code in codes])
    true = np.full(count, np.nan)
    for i in np.flatnonzero(np.isin(names, family.ends) & np.isfinite(error)):
        point = np.asarray(found[i], np.longdouble)
        exact = family.truth(*(np.asarray(x[i], np.longdouble) for x in given), point)
        if exact is not None:
            true[i] = np.linalg.norm((point - exact).astype(float)) / np.linalg.norm(exact.astype(float))
    judged = np.isfinite(true)
    ratio = true[judged] / np.maximum(error[judged], np.finfo(float).tiny)
    said = {True: "at most", False: "about"}
    return {
        "family": name,
        "words": ", ".join(sorted({said[bool(b)] for b in bound[judged]})) or family.words,
        "instances": count,
        "judged": int(np.sum(judged)),
        "covered": int(np.sum(ratio <= 1.0)),
        "ratio": float(np.max(ratio, initial=0.0)),
        "true": float(np.max(true[judged], initial=0.0)),
        "error": float(np.median(error[judged])) if judged.any() else None,
    }


if __name__ == "__main__":
    asked, record = begun(__doc__, "printed_errors", same=("family",), cached=True, count=1000, only=tuple(FAMILIES))
    for name in asked.only:
        record.add(row(name, asked.count))

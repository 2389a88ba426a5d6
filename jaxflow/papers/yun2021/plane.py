r"""Paths of linear coefficients in the plane: the flow, gradient descent and the predicted limits, three networks."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxflow.data import LinearData
from jaxflow.flow import integrate
from jaxflow.losses import Exponential, Squared
from jaxflow.margin import max_margin, minimum_norm, solve
from jaxflow.models import AbstractLinearNetwork
from jaxflow.papers.registry import Data
from jaxflow.papers.yun2021.starts import NETWORKS, start_at
from jaxflow.papers.yun2021.verify.shared import DIRECTIONS as DIRECTIONS_CONTROLLER
from jaxflow.risk import EmpiricalRisk
from jaxflow.theory import point_limit

# §6: one point for regression, two for classification.
X_REGRESSION, Y_REGRESSION = np.array([[1.0, 2.0]]), np.array([1.0])
X_CLASSIFICATION, Y_CLASSIFICATION = np.array([[1.0, 2.0], [0.0, -3.0]]), np.array([1.0, -1.0])
NORMS = {"fully connected": ("l2", None), "diagonal": ("l1", None), "convolutional": ("l1", "dft")}
RATE = {"regression": 1e-3, "classification": 5e-4}
DIRECTIONS = 4
SAVES = 200
# Arc length of the classification paths: ‖β‖ of 1e40, far beyond any picture.
FAR = 1e20


class Size(NamedTuple):
    """Steps of gradient descent: the paper's 5,000 (regression) and 2,000,000 (classification) at its scale."""

    regression: int
    classification: int


SIZES = {"quick": Size(5_000, 20_000), "paper": Size(5_000, 2_000_000), "large": Size(5_000, 2_000_000)}


def directions() -> np.ndarray:
    r"""The four $\bar z_j$ (the paper's are random and not given): one in each quadrant, of different length."""
    key = jax.random.key(2021)
    angle_key, size_key = jax.random.split(key)
    angles = 0.5 * np.pi * (np.arange(DIRECTIONS) + np.asarray(jax.random.uniform(angle_key, (DIRECTIONS,))))
    sizes = np.asarray(jax.random.uniform(size_key, (DIRECTIONS,), minval=0.4, maxval=1.0))
    return sizes[:, None] * np.stack([np.cos(angles), np.sin(angles)], axis=1)


def compute_plane(task: str, alphas: tuple[float, ...], steps: int, say: Callable[[str], None]) -> Data:
    """Arrays over (network, α, z̄): `flow` `(.., saves, 2)`, `descent` `(.., saves, 2)`, `limit` and more."""
    regression = task == "regression"
    X, y = (X_REGRESSION, Y_REGRESSION) if regression else (X_CLASSIFICATION, Y_CLASSIFICATION)
    zs = directions()
    grid = jnp.asarray([(alpha, *z) for alpha in alphas for z in zs])
    data: dict[str, Any] = {"alphas": np.asarray(alphas), "directions": zs, "inputs": X, "targets": y}
    data |= {"steps": np.asarray(steps), "learning_rate": np.asarray(RATE[task])}
    rows: dict[str, list[np.ndarray]] = {}
    for network in NETWORKS:
        say(f"{task}, {network}: {len(grid)} starts, flow and {steps:,} steps of gradient descent")
        found = _runs(network, task, steps)(jnp.asarray(X), jnp.asarray(y), grid)
        for name, value in found.items():
            rows.setdefault(name, []).append(np.asarray(value).reshape(len(alphas), len(zs), *value.shape[1:]))
        norm, transform = NORMS[network]
        build = minimum_norm if regression else max_margin
        program = build(X, y, norm, transform)
        rows.setdefault("program", []).append(np.asarray(program.coefficients(solve(program).primal)))
    return data | {name: np.stack(values) for name, values in rows.items()}


def _runs(network: str, task: str, steps: int) -> Callable[..., dict[str, Any]]:
    one = _regress if task == "regression" else _classify
    return jax.jit(jax.vmap(partial(one, network, steps), in_axes=(None, None, 0)))


def _risk(task: str, X: Any, y: Any) -> EmpiricalRisk:
    return EmpiricalRisk(LinearData(X, y), Squared() if task == "regression" else Exponential(), reduction="sum")


def _regress(network: str, steps: int, X: Any, y: Any, entry: Any) -> dict[str, Any]:
    risk = _risk("regression", X, y)
    start = start_at(network, X[0], entry[1:], entry[0])
    predicted = point_limit(start, X[0], y[0])
    # From here to interpolation the loss falls by e^(-2 ‖x‖² ‖β‖ t): log t of 6 is far beyond for every α here.
    path = integrate(risk, start, clock="log_time", until=6.0, save_at=jnp.linspace(-6.0, 6.0, SAVES), throw=False)
    descent = _descend(risk, start, RATE["regression"], steps)
    return {
        "flow": jax.vmap(lambda m: m.linear_coefficients())(path.points.model),
        "flow_end": path.final.model.linear_coefficients(),
        "limit": predicted.coefficients,
        "slack": predicted.slack,
        "descent": descent,
        "num_steps": path.stats["num_steps"],
    }


def _classify(network: str, steps: int, X: Any, y: Any, entry: Any) -> dict[str, Any]:
    risk = _risk("classification", X, y)
    start = start_at(network, X[0], entry[1:], entry[0])
    readings = jnp.concatenate([jnp.linspace(0.01, 6.0, SAVES - 40), jnp.geomspace(7.0, 1e3, 40)])
    path = integrate(
        risk, start, clock="arc_length", controller=DIRECTIONS_CONTROLLER, until=1e3, save_at=readings, throw=False
    )
    far = integrate(
        risk,
        start,
        clock="log_arc_length",
        solver="Tsit5",
        controller=DIRECTIONS_CONTROLLER,
        until=float(np.log(FAR)),
        throw=False,
    )
    descent = _descend(risk, start, RATE["classification"], steps)
    end = jax.vmap(lambda b: jnp.sum(jnp.exp(-y * (X @ b))))(descent)[-1]
    return {
        "flow": jax.vmap(lambda m: m.linear_coefficients())(path.points.model),
        "flow_end": _unit(far.final.model.linear_coefficients()),
        "log_time": far.final.log_time,
        "descent": descent,
        "descent_loss": end,
        "num_steps": far.stats["num_steps"],
    }


def _unit(x: Any) -> Any:
    return x / jnp.linalg.norm(x)


def _descend(risk: EmpiricalRisk, start: AbstractLinearNetwork, rate: float, steps: int) -> Any:
    """β at `SAVES` equally spaced steps of plain gradient descent."""
    every = max(1, steps // SAVES)

    def loss(layers: Any, frozen: AbstractLinearNetwork) -> Any:
        return risk(eqx.tree_at(lambda n: n.weights, frozen, layers))

    slope = jax.grad(loss)

    def block(layers: Any, _: Any) -> tuple[Any, Any]:
        layers = jax.lax.fori_loop(
            0, every, lambda _, w: jax.tree.map(lambda a, g: a - rate * g, w, slope(w, start)), layers
        )
        return layers, layers

    _, saved = jax.lax.scan(block, start.layers, None, length=steps // every)
    return jax.vmap(lambda layers: eqx.tree_at(lambda n: n.weights, start, layers).linear_coefficients())(saved)

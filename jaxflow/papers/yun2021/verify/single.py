r"""Theorems 3 and 5, Corollary 4: one data point, two layers, any network."""

from collections.abc import Callable
from typing import Any, NamedTuple

import diffrax
import jax
import jax.numpy as jnp
import numpy as np

from jaxflow._core import good, linalg
from jaxflow.data import LinearData
from jaxflow.flow import integrate
from jaxflow.limits.linear_method import Interpolated
from jaxflow.models import LinearConvolutionalNetwork, as_tensor_network
from jaxflow.papers.checks import AbstractCheck, Row, register_check
from jaxflow.papers.registry import Data
from jaxflow.papers.yun2021.starts import NETWORKS, start_at
from jaxflow.papers.yun2021.verify.shared import (
    DIRECTIONS,
    classification,
    direction_distance,
    distance,
    fit,
    map_instances,
    regression,
    residual_row,
)
from jaxflow.report import common_rate
from jaxflow.theory import direction_limit, filtered_direction, point_limit
from jaxflow.theory.single_datum import data_singular

# Dopri8 at rtol 1e-13 keeps three digits of this.
CLOSED = 1e-10
# Directions at the end of the path, where the singular gap allows.
DIRECTION = 1e-8
# Lengths of the classification paths: log‖β‖ = 2 log ℓ, about 300.
FAR = 150.0
SAVES = 60
# Errors between 1e-9 and 1e-2 still have their next terms in them: exponents are fitted to this.
FITTED = 0.02


class Size(NamedTuple):
    """Data of dimension d for each network; scales α of Theorem 5."""

    trials: int
    d: int
    alphas: tuple[float, ...]


SIZES = {
    "quick": Size(4, 4, (1e-4, 1.0, 10.0)),
    "paper": Size(100, 5, (1e-4, 1e-2, 1.0, 10.0)),
    "large": Size(1000, 5, (1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0)),
}


@register_check("yun2021", "single", statements="Theorems 3 and 5, Corollary 4")
class Single(AbstractCheck):
    """Random data; starts with the larger first layer that the theorems ask for."""

    def compute(self, scale: str, key: Any, say: Callable[[str], None]) -> Data:
        size = SIZES[scale]
        data: Data = {"alphas": np.asarray(size.alphas)}
        for i, network in enumerate(NETWORKS):
            say(f"Theorem 5, {network}: {size.trials} data, {len(size.alphas)} scales")
            keys = jnp.repeat(jax.random.split(jax.random.fold_in(key, i), size.trials), len(size.alphas))
            alphas = jnp.tile(jnp.asarray(size.alphas), size.trials)
            found = map_instances(lambda k, a, name=network: _point(k, a, name, size.d), keys, alphas)
            data |= {f"{network}.{name}": value for name, value in found.items()}
        for length in (1, 2, 3):
            say(f"Theorem 3, convolutional, filters of length {length}: {size.trials} data")
            keys = jax.random.split(jax.random.fold_in(key, 10 + length), size.trials)
            found = map_instances(lambda k, length=length: _direction(k, length, size.d), keys)
            data |= {f"filter{length}.{name}": value for name, value in found.items()}
        return data | {f"tie.{k}": v for k, v in _tied(key).items()}

    def rows(self, data: Data) -> list[Row]:
        rows = [
            residual_row(
                "Theorem 5",
                f"{network} network, L = 2, n = 1: both layers' limit points in closed form, α from "
                f"{data['alphas'].min():g} to {data['alphas'].max():g}",
                np.where(data[f"{network}.followed"], data[f"{network}.error"], np.nan),
                data[f"{network}.slack"] > 0,
                CLOSED,
                "relative distance of the layers",
            )
            for network in NETWORKS
        ]
        rows.append(_small_scale(data))
        for length in (1, 2, 3):
            part = {k.removeprefix(f"filter{length}."): v for k, v in data.items() if k.startswith(f"filter{length}.")}
            rows += _direction_rows(part, length)
        rows.append(_tie_row(data))
        return rows


def _point(key: Any, alpha: Any, network: str, d: int) -> dict[str, Any]:
    x_key, y_key, z_key, s_key = jax.random.split(key, 4)
    x, z = jax.random.normal(x_key, (d,)), jax.random.normal(z_key, (d,))
    y = jax.random.uniform(y_key, (), minval=0.5, maxval=2.0) * jax.random.rademacher(s_key, ()).astype(float)
    start = start_at(network, x, z, alpha)
    closed = point_limit(start, x, y)
    path = integrate(
        regression(x[None], y[None]),
        start,
        clock="physical_time",
        # The residual decays at the rate ‖x‖|y| or α²‖x‖² or faster, once the plateau, log(1/α)/‖x‖ long, is passed.
        # (Much longer, and the explicit method only hovers at its stability limit.)
        until=(20.0 + 2 * jnp.log(1.0 / alpha) + 40.0 / jnp.abs(y)) / jnp.linalg.norm(x) / jnp.maximum(1.0, alpha**2),
        solver=diffrax.Dopri8(),
        controller=diffrax.PIDController(rtol=1e-13, atol=1e-16),
        stop=Interpolated(1e-12),
        # For α = 10 the step that Diffrax would begin with can overflow, from which its controller does not come back.
        dt0=1e-5,
        throw=False,
    )
    end = path.final.model
    layers = as_tensor_network(end).layers
    errors = [distance(a, b) for a, b in zip(layers, closed.layers, strict=True)]
    direction = end.linear_coefficients()
    return {
        "error": jnp.maximum(*errors),
        "coefficients": distance(end.linear_coefficients(), closed.coefficients),
        "followed": good(path.result),
        "slack": closed.slack,
        "along": jnp.abs(direction @ x) / jnp.linalg.norm(direction) / jnp.linalg.norm(x),
        "steps": path.stats["num_steps"],
    }


def _small_scale(data: Data) -> Row:
    """As α → 0 top singular vectors dominate; fully connected: β tends to the multiple of x."""
    count = len(data["alphas"])
    along = data["fully connected.along"].reshape(-1, count)
    smallest, largest = int(np.argmin(data["alphas"])), int(np.argmax(data["alphas"]))
    gap = 1.0 - along[:, smallest]
    order = np.argsort(data["alphas"])[:2]
    # Of the two smallest scales; below a rounding nothing can be seen to fall, which makes exponents smaller.
    small = np.log(np.maximum(1.0 - along[:, order], np.finfo(float).eps))
    exponents = (small[:, 1] - small[:, 0]) / float(np.diff(np.log(data["alphas"][order]))[0])
    return residual_row(
        "Theorem 5",
        f"α → 0: limits become independent of the start (fully connected, α = {data['alphas'][smallest]:g}: β is "
        "parallel to x)",
        gap,
        np.ones(gap.shape, bool),
        1e-3,
        "1 − cos(β, x)",
        more=f"; at α = {data['alphas'][largest]:g} it is up to {1 - along[:, largest].min():.1e}",
        limit=True,
        rate=common_rate(exponents, None, law="1 − cos against α"),
    )


def _direction(key: Any, length: int, d: int) -> dict[str, Any]:
    x_key, z_key, y_key = jax.random.split(key, 3)
    x = jax.random.normal(x_key, (d,))
    y = jax.random.rademacher(y_key, ()).astype(float)
    data = LinearData(x[None], y[None])
    start = LinearConvolutionalNetwork.init(z_key, data, sizes=(length,), scheme="zero_last")
    return _follow(start, x, y)


def _follow(start: Any, x: Any, y: Any) -> dict[str, Any]:
    predicted = direction_limit(start, x, y)
    path = integrate(
        classification(x[None], y[None]),
        start,
        clock="log_arc_length",
        solver="Tsit5",
        controller=DIRECTIONS,
        until=FAR,
        save_at=jnp.linspace(0.5, FAR, SAVES),
        throw=False,
    )

    _, found = data_singular(start, x)

    def look(model: Any) -> tuple[Any, Any, Any]:
        beta = model.linear_coefficients()
        first, second = model.layers
        rho = jnp.abs((found.left.T @ first) * (found.right.T @ second))
        errors = (
            direction_distance(first, predicted.first),
            direction_distance(second, predicted.second),
            direction_distance(beta, predicted.coefficients),
        )
        # The slowest component alone: a third one, which decays faster, would bend the line.
        second = rho[1] / rho[0] if len(rho) > 1 else jnp.asarray(0.0)
        return jnp.stack(errors), jnp.log(jnp.linalg.norm(beta)), second

    errors, sizes, second = jax.vmap(look)(path.points.model)
    filtered, correlation = filtered_direction(x, y)
    return {
        "errors": errors,
        "second": second,
        "sizes": sizes,
        "rate": predicted.rate,
        "slack": predicted.slack,
        "filtered": direction_distance(predicted.coefficients, filtered),
        "data": direction_distance(predicted.coefficients, y * x),
        "correlation": correlation,
        "followed": good(path.result),
    }


def _direction_rows(data: Data, length: int) -> list[Row]:
    last, sizes, rate = data["errors"][:, -1], data["sizes"][:, -1], data["rate"]
    # ‖β‖ to half the power s₂/s₁ − 1 must be below the tolerance, with a factor for constants.
    allowed = 0.5 * rate * sizes < np.log(DIRECTION) - 5.0
    # Where it is not, the end of the path decides nothing.
    followed = (data["followed"] & allowed)[:, None]
    reach = f"; the singular gap allows that at the end of {int(allowed.sum())} paths of {allowed.size}"
    rows = [
        residual_row(
            "Theorem 3",
            f"convolutional network, filters of length {length}: directions of v_1, v_2 and β, signs included",
            np.where(followed, last, np.nan).max(axis=1),
            data["slack"] > 0,
            DIRECTION,
            "distance of unit vectors",
            more=reach,
        )
    ]
    if length > 1:
        rows.append(_rate_row(data["second"], data, length, 1.0, "ρ, the product of both layers' second components, "))
        rows.append(_rate_row(data["errors"][:, :, 2], data, length, 0.5, "β, in which mixed products remain, "))
    if length <= 2:
        aim = data["data"] if length == 1 else data["filtered"]
        rows.append(
            residual_row(
                "Corollary 4",
                "k_1 = 1: β converges in direction to yx"
                if length == 1
                else "k_1 = 2: β converges in direction to 2yx ± (y←x + y→x) by the sign of the autocorrelation",
                np.where(followed[:, 0], np.maximum(aim, last[:, 2]), np.nan),
                np.ones(allowed.shape, bool),
                DIRECTION,
                "distance of unit vectors",
                more=reach,
            )
        )
    return rows


def _rate_row(errors: np.ndarray, data: Data, length: int, share: float, what: str) -> Row:
    slopes, predicted = np.full(len(errors), np.nan), share * np.asarray(data["rate"], float)
    for i, (error, sizes) in enumerate(zip(errors, data["sizes"], strict=True)):
        use = (error < 1e-2) & (error > 1e-9) & np.isfinite(sizes)
        if use.sum() >= 5:
            slopes[i] = fit(sizes[use], np.log(error[use]))[0]
    off, known = np.abs(slopes - predicted), slopes[~np.isnan(slopes)]
    power = "‖β‖^(s_2/s_1 − 1)" if share == 1.0 else "‖β‖^((s_2/s_1 − 1)/2)"
    return residual_row(
        "Theorem 3",
        f"filters of length {length}: the rest of {what}decays like {power}, exponents fitted",
        off,
        np.ones(off.shape, bool),
        FITTED,
        "fitted − predicted exponent",
        more=f"; exponents from {known.min():.3f} to {known.max():.3f}" if len(known) else "",
        limit=True,
        rate=common_rate(-slopes, -predicted, bias=FITTED, law="what is left against ‖β‖"),
    )


def _tied(key: Any) -> dict[str, np.ndarray]:
    """x with $x^\\top\\overleftarrow x=(x_1+x_3)(x_2+x_4)=0$: both singular values are equal, d = 4."""
    x, y = jnp.asarray([1.0, 2.0, -1.0, 3.0]), jnp.asarray(1.0)
    keys = jax.random.split(jax.random.fold_in(key, 99), 4)

    def one(k: Any) -> dict[str, Any]:
        data = LinearData(x[None], y[None])
        start = LinearConvolutionalNetwork.init(k, data, sizes=(2,), scheme="zero_last")
        path = integrate(
            classification(x[None], y[None]),
            start,
            clock="log_arc_length",
            solver="Tsit5",
            controller=DIRECTIONS,
            until=60.0,
            throw=False,
        )
        beta = path.final.model.linear_coefficients()
        both = jnp.stack([2 * x + s * (jnp.roll(x, 1) + jnp.roll(x, -1)) for s in (1.0, -1.0)])
        off = jax.vmap(lambda aim: direction_distance(beta, aim))(both)
        # Any nonnegative combination of both is a limit.
        mix = linalg.lstsq(both.T, beta / jnp.linalg.norm(beta))
        rest = jnp.linalg.norm(both.T @ mix - beta / jnp.linalg.norm(beta))
        return {"apart": jnp.min(off), "rest": rest, "least": jnp.min(mix)}

    return map_instances(one, keys)


def _tie_row(data: Data) -> Row:
    rest = np.maximum(data["tie.rest"], -np.minimum(data["tie.least"], 0.0))
    return residual_row(
        "Corollary 4",
        "k_1 = 2 at a tie, x^T ←x = 0, of which the corollary does not speak: the limit is a combination of both "
        "filtered versions, chosen by the start",
        rest,
        np.ones(rest.shape, bool),
        1e-8,
        "rest outside of their cone",
        more=f"; at least {data['tie.apart'].min():.2f} away from either",
    )

r"""Theorem 6: fully connected networks on regression; the bias as α → 0, with a fitted exponent."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxflow.data import LinearData
from jaxflow.margin import minimum_norm, solve
from jaxflow.models import DeepLinearNetwork
from jaxflow.papers.checks import AbstractCheck, Row, register_check
from jaxflow.papers.registry import Data
from jaxflow.papers.yun2021.verify.shared import distance, fit, flow_end, map_instances, regression, residual_row
from jaxflow.report import Rate
from jaxflow.theory import fully_connected_start

# Errors below this are none: from W̄ = I, w̄ = 0 the flow of two layers never leaves the row space of X.
ROUNDING = 1e-10


class Size(NamedTuple):
    """Data sets, n in d dimensions, and the scales α for each depth."""

    trials: int
    n: int
    d: int
    alphas: tuple[float, ...]
    depths: tuple[int, ...]


SIZES = {
    "quick": Size(1, 2, 3, (0.3, 0.1, 0.03), (2,)),
    "paper": Size(5, 3, 6, (0.3, 0.1, 0.03, 0.01), (2, 3)),
    "large": Size(50, 5, 10, (0.3, 0.1, 0.03, 0.01, 0.003), (2, 3)),
}


@register_check("yun2021", "connected", statements="Theorem 6")
class Connected(AbstractCheck):
    """Zero-asymmetric starts, which satisfy part 1, and random ones, of which only part 2 speaks."""

    def compute(self, scale: str, key: Any, say: Callable[[str], None]) -> Data:
        size = SIZES[scale]
        data: Data = {"alphas": np.asarray(size.alphas), "depths": np.asarray(size.depths)}
        for depth in size.depths:
            for scheme in ("identity", "random"):
                say(f"Theorem 6, L = {depth}, {scheme} start: {size.trials} data sets, {len(size.alphas)} scales")
                keys = jnp.repeat(jax.random.split(jax.random.fold_in(key, depth), size.trials), len(size.alphas))
                alphas = jnp.tile(jnp.asarray(size.alphas), size.trials)
                found = map_instances(lambda k, a, L=depth, scheme=scheme: _end(k, a, L, scheme, size), keys, alphas)
                shape = (size.trials, len(size.alphas))
                data |= {f"{scheme}{depth}.{name}": value.reshape(shape) for name, value in found.items()}
        return data

    def rows(self, data: Data) -> list[Row]:
        rows = []
        for depth in data["depths"]:
            part = _part(data, f"identity{depth}")
            rows.append(
                residual_row(
                    "Theorem 6",
                    f"part 1, L = {depth}: from W̄_l = I, w̄_L = 0 the loss tends to zero, for every α",
                    np.where(part["followed"], part["residual"], np.nan),
                    part["last"] > 0,
                    1e-12,
                    "relative residual of the outputs",
                    more=f"; λα² is {part['last'].min():.0e} or more",
                )
            )
            for scheme in ("identity", "random"):
                rows.append(_bias_row(data["alphas"], _part(data, f"{scheme}{depth}"), int(depth), scheme))
        return rows


def _end(key: Any, alpha: Any, depth: int, scheme: str, size: Size) -> dict[str, Any]:
    x_key, y_key, start_key = jax.random.split(key, 3)
    X, y = jax.random.normal(x_key, (size.n, size.d)), jax.random.normal(y_key, (size.n,))
    start = DeepLinearNetwork.init(start_key, LinearData(X, y), depth=depth, alpha=alpha, scheme=scheme)
    inner, last = fully_connected_start(start)
    aim = solve(minimum_norm(X, y)).primal
    found = flow_end(regression(X, y), start)
    return {
        "error": distance(found["beta"], aim),
        "residual": found["residual"],
        "followed": found["followed"],
        "inner": inner.slack,
        "last": last.slack,
    }


def _part(data: Data, name: str) -> Data:
    return {key.removeprefix(f"{name}."): value for key, value in data.items() if key.startswith(f"{name}.")}


def _bias_row(alphas: np.ndarray, part: Data, depth: int, scheme: str) -> Row:
    """The error against the minimum-norm solution falls with α; its exponent with an interval."""
    done = np.asarray(part["followed"]).all(axis=1)
    falls = np.diff(part["error"], axis=1) if alphas[0] < alphas[-1] else -np.diff(part["error"], axis=1)
    grows = np.where(done, -falls.min(axis=1), np.nan)
    order = np.argsort(alphas)[: max(3, len(alphas) - 1)]
    chosen = part["error"][np.flatnonzero(done & (np.min(part["error"], axis=1) > ROUNDING))]
    fits = [fit(np.log(alphas[order]), np.log(error[order])) for error in chosen]
    slopes = np.asarray([slope for slope, _ in fits])
    halves = np.asarray([half for _, half in fits])
    exact = int(np.sum(done & (np.max(part["error"], axis=1) <= ROUNDING)))
    text = f"; {exact} of {done.size} are there at every α" if exact else ""
    if len(slopes):
        text += f"; the error falls like α^{slopes.mean():.2f} (95% interval ±{halves.max():.2f}, {len(slopes)} fits)"
    start = "W̄_l = I, w̄_L = 0" if scheme == "identity" else "random W̄_l, w̄_L"
    return residual_row(
        "Theorem 6",
        f"part 2, L = {depth}, {start}: as α → 0, β tends to the minimum l2-norm solution",
        grows,
        np.ones(grows.shape, bool),
        ROUNDING,
        "growth of the error from one α to a smaller one",
        # Errors that are rounding at every α are no limit any more.
        limit=exact < int(done.sum()),
        rate=Rate(float(slopes.mean()), float(halves.max()), None, law="the error against α") if len(slopes) else None,
        more=text + f"; error at α = {alphas.min():g}: {part['error'][:, np.argmin(alphas)].max():.0e} at most",
    )

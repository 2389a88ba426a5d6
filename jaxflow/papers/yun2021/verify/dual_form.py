r"""Equation (66): the n-dimensional dual form, $\dot\nu=-r$, held against the flow of the layers."""

from collections.abc import Callable
from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np

from jaxflow._core import good
from jaxflow.data import LinearData
from jaxflow.flow import integrate
from jaxflow.models import DiagonalLinearNetwork
from jaxflow.papers.checks import AbstractCheck, Row, register_check
from jaxflow.papers.registry import Data
from jaxflow.papers.yun2021.verify.shared import classification, distance, map_instances, residual_row, separable

TRIALS = {"quick": 3, "paper": 100, "large": 1000}
DEPTHS = (2, 3)
N, D = 5, 20
# Two integrations at rtol 1e-11.
SAME = 1e-8
CONTROLLER = diffrax.PIDController(rtol=1e-11, atol=1e-13)
# The loss is below one from log t of about one on.
END = 12.0


@register_check("yun2021", "dual-form", statements="equation (66)")
class DualForm(AbstractCheck):
    """Random separable data with the exponential loss, diagonal networks: both forms to log t = 12."""

    def compute(self, scale: str, key: Any, say: Callable[[str], None]) -> Data:
        data: Data = {}
        for depth in DEPTHS:
            say(f"L = {depth}: {TRIALS[scale]} flows in both forms, n = {N}, d = {D}")
            keys = jax.random.split(jax.random.fold_in(key, depth), TRIALS[scale])
            found = map_instances(lambda k, depth=depth: _both(k, depth), keys)
            data |= {f"depth{depth}.{name}": value for name, value in found.items()}
        return data

    def rows(self, data: Data) -> list[Row]:
        rows = []
        for depth in DEPTHS:
            followed, error = data[f"depth{depth}.followed"], data[f"depth{depth}.error"]
            least = data[f"depth{depth}.least"]
            rows.append(
                residual_row(
                    "Equation (66)",
                    f"diagonal networks, L = {depth}, exponential loss: β of the layers' flow and of the dual form at "
                    f"log t = {END:g}; multipliers y_i r_i < 0 on the flow",
                    # A multiplier of the wrong sign counts as a whole.
                    np.where(followed, np.where(least > 0, error, 1.0), np.nan),
                    np.ones(error.shape, bool),
                    SAME,
                    "relative distance of β",
                    more=f"; the least multiplier is {least[followed].min(initial=np.inf):.1e} of the largest, or more",
                )
            )
        return rows


def _both(key: Any, depth: int) -> dict[str, Any]:
    data_key, start_key = jax.random.split(key)
    X, y = separable(data_key, N, D)
    scheme = "equal" if depth > 2 else "zero_last"
    start = DiagonalLinearNetwork.init(start_key, LinearData(X, y), depth=depth, alpha=0.7, scheme=scheme)

    def end(coordinates: str) -> Any:
        return integrate(
            classification(X, y),
            start,
            clock="log_time",
            until=END,
            coordinates=coordinates,
            controller=CONTROLLER,
            throw=False,
        )

    layers, dual = end("weights"), end("dual")
    multipliers = -y * layers.final.multipliers  # pyright: ignore[reportOperatorIssue, reportOptionalOperand]
    beta = [path.final.model.linear_coefficients() for path in (layers, dual)]
    return {
        "error": distance(*beta),
        "followed": good(layers.result) & good(dual.result),
        "least": jnp.min(multipliers) / jnp.max(jnp.abs(multipliers)),
    }

r"""Equation (66): the n-dimensional dual form, $\dot\nu=-r$, held against the flow of the layers."""

from typing import Any

import diffrax
import jax.numpy as jnp
import numpy as np

from jaxflow._core import good
from jaxflow.data import LinearData
from jaxflow.flow import integrate
from jaxflow.models import DiagonalLinearNetwork
from jaxflow.papers.experiment import Dataset, Part, Statement, Table, register
from jaxflow.papers.yun2021.flows import classification, distance, separable
from jaxflow.study import subkey

TRIALS = {"quick": 3, "paper": 100, "large": 1000}
DEPTHS = (2, 3)
N, D = 5, 20
# Two integrations at rtol 1e-11.
SAME = 1e-8
CONTROLLER = diffrax.PIDController(rtol=1e-11, atol=1e-13)
# The loss is below one from log t of about one on.
END = 12.0


def follow(key: Any, depth: int) -> Table:
    """Random separable data with the exponential loss, a diagonal network in both forms.

    Both flows of one instance at the end: relative distance `error` of their β, whether both are `ok`, and the `least`
    of the multipliers −y_i r_i over the largest.
    """
    X, y = separable(subkey(key, "data"), N, D)
    scheme = "equal" if depth > 2 else "zero_last"
    data = LinearData(X, y)
    start = DiagonalLinearNetwork.init(subkey(key, "start"), data, depth=depth, alpha=0.7, scheme=scheme)

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
    smallest = jnp.min(multipliers) / jnp.max(jnp.abs(multipliers))
    return Table(error=distance(*beta), ok=good(layers.result) & good(dual.result), least=smallest)


DUAL_FORM = Dataset(
    "yun2021",
    "dual-form",
    {"pairs": Part(follow, {f"L={depth}": depth for depth in DEPTHS}, TRIALS, block=25, way="in turn")},
)


def equation_66(row: int) -> Statement[Table]:
    """Of networks of one depth; a multiplier of the wrong sign counts as a whole."""
    return Statement(
        source="Equation (66)",
        says=f"Diagonal networks, L = {DEPTHS[row]}, exponential loss: β of the layers' flow and of the dual form at "
        f"log t = {END:g}; multipliers y_i r_i < 0 on the flow.",
        of=lambda n: n.pairs.at(row),
        residual=lambda pairs: np.where(pairs.ok, np.where(pairs.least > 0, pairs.error, 1.0), np.nan),
        bound=(SAME, "relative distance of β"),
    )


register(DUAL_FORM, title="equation (66)", statements=[equation_66(row) for row in range(len(DEPTHS))])

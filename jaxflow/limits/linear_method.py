"""How `find_limit` follows the flow of a linear network: to its limit point, or out along its limit direction."""

from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp

from jaxflow._core import checked, require
from jaxflow.flow import AbstractCoordinates, Halves, OneLayer, Spectrum, Weights
from jaxflow.flow.coordinates.halves import has_pairs
from jaxflow.limits.method import AbstractMethod
from jaxflow.limits.network_gears import NetworkGears
from jaxflow.limits.path import follow
from jaxflow.limits.regression_gears import RegressionGears
from jaxflow.limits.stages import Count, Positive, kept
from jaxflow.limits.units import largest_entry
from jaxflow.models import DeepLinearNetwork, DiagonalLinearNetwork, LinearConvolutionalNetwork
from jaxflow.risk import EmpiricalRisk
from jaxflow.trajectory import Trajectory


@checked(positive=["near", "far", "log_time", "rtol"], least={"saves": 3})
class LinearStaged(AbstractMethod):
    r"""The default for linear networks.

    **Classification**: the gears of `jaxflow.limits.network_gears`.

    **Regression**: the gear of `jaxflow.limits.regression_gears`, at falling tolerances.

    **Arguments:** `near`, `far`: arc lengths of classification, `far` of two layers (None: $e^{10^6}$); `log_time`: end
    of regression; `rtol`: its tolerance (errors of β are up to a few hundred times `rtol`, from α = 0.1 or less);
    `saves`: save points for the rate, three at least; `coordinates`: of regression, None for `OneLayer` of diagonal
    networks and `coordinates_of` others; `Dual` where the network allows it; `report`: receives a line a second (see
    `find_limit`'s `progress`).

    **Example:**

    ```python
    jf.find_limit(jf.EmpiricalRisk(linear, "exponential"), network, method=jf.LinearStaged())  # the default
    ```
    """

    takes_arrays: ClassVar[bool] = True
    near: float = 10.0
    far: float | None = None
    log_time: float = 200.0
    rtol: float = 1e-9
    saves: int = 8
    coordinates: AbstractCoordinates | None = None
    report: Callable[[str], None] | None = eqx.field(static=True, default=None)

    def __check_init__(self) -> None:
        ordered = self.far is None or self.near < self.far
        require(ordered, "near", f"expected near < far, got {self.near} and {self.far}")
        require(self.rtol < 1, "rtol", f"expected a small positive number, got {self.rtol}")

    def follow(self, risk: EmpiricalRisk, model: Any, max_steps: Count, gap: Positive = 1e-8) -> Trajectory:
        problem = self.problem(risk, model, gap) if risk.loss.margin else self.regression(risk, model)
        return follow(problem, risk, model, max_steps)

    @property
    def usual_lengths(self) -> bool:
        """Whether all lengths are the defaults, which are those of data of order one."""
        return (self.near, self.far) == (LinearStaged.near, None)

    def problem(self, risk: EmpiricalRisk, model: Any, gap: Positive) -> NetworkGears:
        """The gears of a network under a margin loss."""
        del risk
        return NetworkGears(
            coordinates=coordinates_of(model),
            size=largest_entry(model.layers),
            gap=gap,
            near=self.near,
            far=self.far,
            saves=self.saves,
            degree=model.degree,
            mixes=isinstance(model, DeepLinearNetwork),
            report=self.report,
        )

    def regression(self, risk: EmpiricalRisk, model: Any) -> RegressionGears:
        """The gear of a network under the squared loss."""
        data: Any = risk.data
        # In `Halves` coefficients are differences of squares, with the roundings of a large start.
        usual = OneLayer(model) if isinstance(model, DiagonalLinearNetwork) else coordinates_of(model)
        return RegressionGears(
            # In single precision steps are judged where rounding begins.
            rtol=max(self.rtol, 1000.0 * float(jnp.finfo(jnp.result_type(float)).eps)),
            size=largest_entry(model.layers),
            missed=jnp.sum(jnp.abs(data.targets)) / risk.count(data.targets),
            coordinates=usual if self.coordinates is None else self.coordinates,
            log_time=self.log_time,
            report=self.report,
        )


def coordinates_of(model: Any) -> AbstractCoordinates:
    """Those of a diagonal network, or of a convolutional one of three layers and more, in which entries or modes do not
    mix and what the flow conserves is exact; `Weights` of others."""
    if has_pairs(model):
        return Halves(kept(model))
    if isinstance(model, LinearConvolutionalNetwork) and model.full_length and model.depth > 2:
        return Spectrum(model)
    return OneLayer(model) if isinstance(model, DiagonalLinearNetwork) else Weights()

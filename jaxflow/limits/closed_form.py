"""Theorems 3 and 5 of Yun, Krishnan, Mobahi (2021) beside a flow: limits of one datum and two layers in closed form."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxflow._core import AbstractPrinted, positive_or_one
from jaxflow.losses import Exponential, Logistic
from jaxflow.models import AbstractLinearNetwork
from jaxflow.risk import EmpiricalRisk
from jaxflow.theory import (
    AbstractPairs,
    Assumption,
    all_hold,
    datum_direction,
    datum_limit,
    theorem_or_failures,
)


class ClosedForm(AbstractPrinted):
    r"""A limit from data and start alone.

    - `coefficients`: $\beta(\Theta^\infty)$; of a direction, at margin one.
    - `distance`: $\|\beta-\beta^\infty\|/\|\beta^\infty\|$ for the flow's own end β (its direction at margin one).
    - `theorem`, `assumptions`: of the proof. The formula of a point holds for every start for which its equation has a
      root; that of a direction only where the assumptions hold.
    """

    coefficients: Float[Array, " d"]
    distance: Float[Array, ""]
    theorem: str = eqx.field(static=True)
    assumptions: tuple[Assumption, ...]

    @property
    def applies(self) -> Bool[Array, ""]:
        """Whether all assumptions hold for this datum and this start."""
        return all_hold(self.assumptions)

    def sentence(self) -> str:
        """For one instance: the theorem where it applies, else the assumptions that fail, and by how much."""
        return theorem_or_failures(self.theorem, self.assumptions)


def closed_form(
    risk: EmpiricalRisk, model: AbstractLinearNetwork, pairs: AbstractPairs | None, beta: Float[Array, " d"]
) -> ClosedForm | None:
    """Theorem 5 of a limit point, Theorem 3 of a direction; None for several data or where no pairs are known. `beta`:
    the flow's own end, of a direction at margin one."""
    data: Any = risk.data
    if pairs is None or data.targets.shape[0] != 1:
        return None
    slack = pairs.slack()

    def larger(theorem: int) -> Assumption:
        what = f"the first layer is larger in every singular component (Theorem {theorem})"
        return Assumption(what, slack > 0, slack)

    if risk.loss.margin:
        found, tied = datum_direction(pairs, model, data.targets[0])
        theorem = (
            "Yun et al. (2021), Theorem 3: from one data point both layers of a two-layer network converge in "
            "direction to the top singular vectors of M(x)"
        )
        smooth = jnp.asarray(isinstance(risk.loss, Exponential | Logistic))
        tail = Assumption("the loss is exponential (or logistic, with the same tail)", smooth, smooth - 1.0)
        single = Assumption("one singular value is the largest", ~tied, -tied.astype(slack.dtype))
        return ClosedForm(found, relative_distance(beta, found), theorem, (tail, larger(3), single))
    point = datum_limit(pairs, model, data.targets[0])
    theorem = (
        "Yun et al. (2021), Theorem 5: from one data point both layers of a two-layer network converge to the points "
        "that g^(-1)(y / alpha^2) gives"
    )
    # A root found by bisection misses by roundings; half of the digits are no rounding.
    most = jnp.sqrt(jnp.finfo(point.missed.dtype).eps)
    root = Assumption("g takes the value y (Theorem 5)", point.missed <= most, most - point.missed)
    return ClosedForm(point.coefficients, relative_distance(beta, point.coefficients), theorem, (larger(5), root))


def relative_distance(beta: Float[Array, " d"], aim: Float[Array, " d"]) -> Float[Array, ""]:
    r"""$\|\beta-\beta^\infty\|/\|\beta^\infty\|$; the numerator itself where the limit is zero."""
    size = jnp.linalg.norm(aim)
    return jnp.linalg.norm(beta - aim) / positive_or_one(size)

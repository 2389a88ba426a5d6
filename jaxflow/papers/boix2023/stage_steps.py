"""Step sizes that end where a product is about to be learned (floor 6)."""

from typing import Any

import diffrax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from jaxflow._core import checked, linalg
from jaxflow.flow.solvers import state_norm

# Of logarithms, so that a weight's relative error in a step is 1e-4. What is learned attracts and forgets it; to what
# is not it adds to logarithms of thousands, and to the time of a stage 1e-8 of it. The share of a logarithm is what
# keeps that so down to logarithms of 1e4.
ATOL = 1e-4
SHARE = 1e-4


class StageSteps(diffrax.AbstractStepSizeController):
    r"""A controller for `LogHadamard` whose steps do not run over the beginning of a stage.

    On a plateau $\omega$ moves on straight lines; errors are nil and steps grow, until one of them lands behind the
    moment at which a product becomes of order one. A controller of errors finds that out by rejecting, once a stage
    and for every factor between the length of a plateau and that of a stage, $\log(1/\alpha)$. Here the lines are
    continued. With $m_i=\max(\omega_i,\log c_i-\omega_i)$, the logarithm of the larger of $|u_i\pm v_i|$, and x the
    way from $m_i$ to 0, a step ends at the latest where the first of the $m_i$ comes within
    $\tfrac12\log(x/\epsilon)$ of 0: there the product is of order $\epsilon/x$, and what it adds to a step of x e-folds
    of order ε. Nearer than twice that, half of the way is a step, and from −2 on one e-fold, over which the cubic
    between two steps is right to 1/384. What is learned has rates so small that nothing is left of that.

    Measured on a head of ten dimensions at α = e^(−10000), twelve stages: 203 steps, none of them rejected. Kvaerno5
    under a controller of errors alone takes 552, 188 of them rejected.

    **Arguments:** `inner`: what controls the error; `log_conserved` `(p,)`: $\log c=\log(u^2-v^2)$ of the start;
    `reach`: where the solver evaluates the field at most, in steps; `tolerance`: ε.
    """

    inner: diffrax.AbstractStepSizeController
    log_conserved: Float[Array, " p"]
    reach: float = 1.0
    tolerance: float = ATOL

    def wrap(self, direction: Any) -> "StageSteps":
        return StageSteps(self.inner.wrap(direction), self.log_conserved, self.reach, self.tolerance)

    def init(self, *args: Any, **kwargs: Any) -> tuple[Any, PyTree]:
        return self.inner.init(*args, **kwargs)

    def adapt_step_size(self, t0: Any, t1: Any, y0: PyTree, y1_candidate: PyTree, *rest: Any) -> tuple[Any, ...]:
        keep, start, end, jumped, state, result = self.inner.adapt_step_size(t0, t1, y0, y1_candidate, *rest)
        before, after = self._sizes(y0), self._sizes(y1_candidate)
        rate = (after - before) / (t1 - t0)
        rising = rate > 0
        x = jnp.maximum(-after, 2.0)
        way = jnp.maximum(x - 0.5 * jnp.log(x / self.tolerance), 0.5 * x)
        wait = jnp.min(jnp.where(rising, way / jnp.where(rising, rate, 1.0), jnp.inf)) / self.reach
        # A rejected step says nothing about the lines.
        return keep, start, jnp.where(keep, jnp.minimum(end, start + wait), end), jumped, state, result

    def _sizes(self, extended: PyTree) -> Float[Array, " p"]:
        sums = extended[0]
        return jnp.maximum(sums, self.log_conserved - sums)


@checked(positive=["tolerance"])
def stage_solver(tolerance: float = ATOL) -> diffrax.AbstractSolver:
    """KenCarp5 with one Jacobian a step: the method of highest order that looks at nothing beyond the end of a step."""
    # The step's own tolerances, written out: a lane's root finder is not told them.
    return diffrax.KenCarp5(root_finder=linalg.chord(rtol=SHARE * tolerance, atol=tolerance))


@checked(positive=["tolerance"])
def stage_controller(
    solver: diffrax.AbstractSolver, log_conserved: Float[Array, " p"], tolerance: float = ATOL
) -> StageSteps:
    """`StageSteps` around a PI controller with this absolute tolerance on the logarithms of weights."""
    inner = diffrax.PIDController(rtol=SHARE * tolerance, atol=tolerance, pcoeff=0.3, icoeff=0.4, norm=state_norm)
    return StageSteps(inner, log_conserved, _reach(solver), tolerance)


def _reach(solver: diffrax.AbstractSolver) -> float:
    """The largest of a Runge-Kutta method's nodes, and 1 at least: Kvaerno5 looks 23% beyond the end of a step."""
    tableau: Any = getattr(solver, "tableau", None)
    parts = getattr(tableau, "tableaus", (tableau,))
    return max([1.0, *(float(np.max(part.c)) for part in parts if part is not None)])

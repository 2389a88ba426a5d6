r"""Algorithm 1 of Boix-Adserà et al. (2023): the stages of the flow from a vanishing start."""

import enum
from typing import Any

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jaxflow._core import AbstractPrinted, Code, checked, is_concrete, require
from jaxflow._core.linalg import ROUNDED
from jaxflow.models import HadamardNetwork
from jaxflow.risk import EmpiricalRisk
from jaxflow.theory.incremental_limit import PUSH, limit_from, product_slopes, support_curvature


class StageResult(enum.IntEnum):
    """How a stage ended.

    - `not_run`: an earlier one was the last.
    - `learned`: $\\theta^{k+1}$ is stationary to rounding.
    - `finished`: no further coordinate becomes active, $T_{k+1}=\\infty$, or not before `max_time`.
    - `not_converged`: the inner limit (13) was not reached; later stages are not computed.
    - `degenerate`: two coordinates become active at once, which Assumption 4.3 excludes.
    """

    not_run = 0
    learned = 1
    finished = 2
    not_converged = 3
    degenerate = 4


class Stages(AbstractPrinted):
    r"""The result of Algorithm 1: row k belongs to the step from stage k to stage k + 1.

    - `times` `(m,)`: $T_{k+1}$ in rescaled time $t/\log(1/\alpha)$; +inf where not learned.
    - `coordinates` `(m,)`: $i_k$, −1 where there is none.
    - `products` `(m, p)`: $u\odot v$ at $\theta^{k+1}$; `support` `(m, p)`.
    - `exponents` `(m, p)`: $b^{k+1}$, the limit of $\log_\alpha w$.
    - `losses` `(m,)`: $L(\theta^{k+1})$; `initial_loss`: $L(0)$.
    - `gaps` `(m,)`: between the two smallest $\Delta_k$ (Assumption 4.3).
    - `curvatures` `(m,)`: twice the largest $c_{k+1}$ for which Assumption 4.4 holds in a small ball, the smallest
      eigenvalue of the Hessian of $u\mapsto L(u,s\odot u)$ on the support.
    - `leaving` `(m,)`: the smallest $|g_i|$ over the coordinates that left (last clause of Assumption 4.3), with decay
      $|g_i-\lambda s_i|$ for the sign $s_i$ that they had; +inf where none left.
    - `residuals` `(m,)`: $\max|g_i|$ ($|g_i-\lambda s_i|$) on the support, relative to the largest $|g_i(0)|$.
    - `results` `(m,)`: a `StageResult` each; `count`: how many were learned.
    """

    times: Float[Array, " m"]
    coordinates: Int[Array, " m"]
    products: Float[Array, "m p"]
    exponents: Float[Array, "m p"]
    losses: Float[Array, " m"]
    gaps: Float[Array, " m"]
    curvatures: Float[Array, " m"]
    leaving: Float[Array, " m"]
    residuals: Float[Array, " m"]
    results: Code
    initial_loss: Float[Array, ""]

    @property
    def count(self) -> Int[Array, "..."]:
        """How many stages were learned."""
        return jnp.sum(self.results == StageResult.learned, axis=-1)

    @property
    def support(self) -> Bool[Array, "..."]:
        r"""$\mathrm{supp}(\theta^{k+1})$."""
        return self.products != 0.0

    def weights_at(self, time: Any) -> Float[Array, " p"]:
        r"""$u\odot v$ of the stage at this rescaled time, Theorem 4.1."""
        passed = jnp.sum(self.times <= time)
        return jnp.concatenate([jnp.zeros_like(self.products[:1]), self.products])[passed]


@checked(least={"max_stages": 1}, positive=["max_time"], infinite=["max_time"], nonnegative=["decay"])
def incremental_learning(
    risk: EmpiricalRisk,
    model: HadamardNetwork,
    *,
    max_stages: int | None = None,
    max_time: float | Float[Array, ""] = jnp.inf,
    log_alpha: float | Float[Array, ""] | None = None,
    decay: float | Float[Array, ""] = 0.0,
) -> Stages:
    r"""Algorithm 1: the sequence of coordinates, times and stationary points that the flow passes as α → 0.

    $$\Delta_k(i)=\frac{b_i^k-1+\mathrm{sgn}\,g_i(\theta^k)}{g_i(\theta^k)},\quad i_k=\arg\min_i\Delta_k(i),\quad
    T_{k+1}=T_k+\Delta_k(i_k),\quad b^{k+1}=b^k-g(\theta^k)\Delta_k(i_k)$$

    and $\theta^{k+1}$ the limit of the flow from $\theta^k$ perturbed along $i_k$ (equations (10) to (13)). As printed
    the algorithm starts from $b^0=0$; but $\log_\alpha w(0)\to1$, so $b^0=1$, which gives the paper's own
    $T_1=\min_i1/|g_i(0)|$. On the support g = 0 is imposed, and b is 0 (where v = u) or 2 (where v = −u). Coordinates
    may leave the support; a coordinate that has left can return with the other sign.

    With weight decay, the flow of $L+\frac\lambda2(|u|^2+|v|^2)$ (beyond the paper), $\frac{d}{dt}\log(u+v)=g-\lambda$
    and $\frac{d}{dt}\log(u-v)=-g-\lambda$. With $\tilde b_i=2+2\lambda T-b_i$, the limit of $\log_\alpha(u-v)$,

    $$\Delta_k(i)=\begin{cases}b_i^k/(g_i-\lambda)&g_i>\lambda\\\tilde b_i^k/(-g_i-\lambda)&g_i<-\lambda\\
    \infty&\text{else}\end{cases},\qquad b^{k+1}=b^k-(g-\lambda)\Delta_k(i_k),$$

    and $\theta^{k+1}$ is a limit for $L+\lambda\|a\|_1$, because $\frac12(u^2+v^2)=|a|$ once $u^2-v^2$ has decayed:
    $g_i=\lambda s_i$ on the support. Where L is bounded below every stage has a limit; where it is convex in a, the
    last one minimises $L+\lambda\|a\|_1$, since it is only the last if $|g_i|\le\lambda$ off the support.

    Written for one instance; `jax.vmap` gives a batch.

    **Arguments:**

    - `risk`: on `LinearData` or `SampleData`; `model`: only its h and p are used (but see `log_alpha`).
    - `max_stages`: rows to compute, 2p by default; `max_time`: stop before a stage that starts later.
    - `log_alpha`: predict for this finite α, from the model's own weights: $b^0=\log_\alpha w(0)$, and a
      coordinate turns negative at $\log_\alpha c$ instead of 2.
    - `decay`: λ ≥ 0. `losses` are those without the penalty.

    **Raises:** `ValueError` for a model that is no `HadamardNetwork`, or a negative `decay`.

    **Example:**

    ```python
    start = jf.models.HadamardNetwork.init(jax.random.key(0), jf.models.DiagonalLinear(), p=3)
    squared = jf.EmpiricalRisk(linear, "squared")
    jf.theory.incremental_learning(squared, start).times  # when each entry is learned, in rescaled time
    ```
    """
    p = model.u.shape[0]
    stages = 2 * p if max_stages is None else max_stages
    negative = log_alpha is None or not is_concrete(log_alpha) or log_alpha < 0
    require(bool(negative), "log_alpha", "expected a negative number", got=log_alpha)
    plain = product_slopes(risk, model.h)

    def slopes(products: Float[Array, " p"]) -> Float[Array, " p"]:
        return plain(products) - decay * jnp.sign(products)

    if log_alpha is None:
        b, lowest = jnp.ones(p), jnp.full(p, 2.0)
    else:
        logs = model.log_weights
        b, lowest = logs.log_sum / log_alpha, logs.log_conserved / log_alpha
    start = jnp.zeros(p)
    scale = jnp.max(jnp.abs(slopes(start)))

    def blank(value: Any, *shape: int) -> Array:
        return jnp.full((stages, *shape), value)

    rows = {name: blank(jnp.nan) for name in ("losses", "gaps", "curvatures", "residuals")}
    rows |= {"times": blank(jnp.inf), "leaving": blank(jnp.inf), "coordinates": blank(-1)}
    rows |= {"products": blank(0.0, p), "exponents": blank(jnp.nan, p)}
    rows |= {"results": jnp.full(stages, StageResult.not_run.value, jnp.uint8)}

    def unfinished(carry: Any) -> Any:
        k, *_, going, _ = carry
        return going & (k < stages)

    def stage(carry: Any) -> Any:
        k, time, b, lowest, products, _, rows = carry
        on = products != 0.0
        g = jnp.where(on, 0.0, slopes(products))
        waits = _waiting_times(g, b, lowest, decay, scale)
        first = jnp.argmin(waits)
        wait = waits[first]
        gap = jnp.min(jnp.where(jnp.arange(p) == first, jnp.inf, waits)) - wait
        until = time + wait
        goes_on = until < max_time
        # Equation (13): the limit of the flow pushed along i_k, as the push vanishes.
        inner = limit_from(slopes, products.at[first].set(jnp.sign(g[first]) * PUSH), scale, stages)
        found = inner.products
        left = on & (found == 0.0)
        passed = jnp.where(goes_on, wait, 0.0)
        lowest = lowest + 2.0 * decay * passed
        # On the support one of the two exponents is zero, before and after.
        exponents = jnp.where(on, jnp.where(products < 0.0, lowest, b), b - (g - decay) * passed)
        exponents = jnp.where(found > 0.0, 0.0, jnp.where(found < 0.0, lowest, exponents))
        # From the side on which the sign still was: the penalty's derivative jumps at zero.
        after = plain(found) - decay * jnp.sign(products)
        # Equal to the roundings of Hessians and inner limits.
        tied = gap <= ROUNDED * wait
        result = jnp.where(inner.converged, StageResult.learned.value, StageResult.not_converged.value)
        result = jnp.where(tied, StageResult.degenerate.value, result)
        result = jnp.where(goes_on, result, StageResult.finished.value).astype(jnp.uint8)
        learned = result == StageResult.learned.value
        new = {
            "times": jnp.where(learned, until, jnp.inf),
            "coordinates": jnp.where(goes_on, first, -1),
            "products": jnp.where(learned, found, 0.0),
            "exponents": exponents,
            "losses": jnp.where(learned, risk_of(risk, model, found), jnp.nan),
            "gaps": gap,
            "curvatures": jnp.where(learned, support_curvature(slopes, found, stages), jnp.nan),
            "leaving": jnp.min(jnp.where(left & learned, jnp.abs(after), jnp.inf)),
            "residuals": jnp.where(goes_on, inner.residual, jnp.nan),
            "results": result,
        }
        rows = {name: value.at[k].set(new[name].astype(value.dtype)) for name, value in rows.items()}
        return k + 1, until, exponents, lowest, found, learned, rows

    *_, rows = lax.while_loop(unfinished, stage, (0, jnp.zeros(()), b, lowest, start, jnp.asarray(True), rows))
    rows["results"] = Code(rows["results"], StageResult)
    return Stages(initial_loss=risk_of(risk, model, start), **rows)


def _waiting_times(
    g: Float[Array, " p"], b: Float[Array, " p"], lowest: Float[Array, " p"], decay: Any, scale: Float[Array, ""]
) -> Float[Array, " p"]:
    """Equation (10); infinite where |g| does not exceed the decay. `lowest` is 2 + 2λT as α → 0."""
    excess = jnp.abs(g) - decay
    # Sums over samples and tokens, relative to the largest at zero, have some thousand roundings.
    moves = excess > 4000.0 * jnp.finfo(excess.dtype).eps * scale
    # A coordinate that has just left the support sits at its bound and moves away from it.
    way = jnp.maximum(jnp.where(g > 0, b, lowest - b), 0.0)
    return jnp.where(moves, way / jnp.where(moves, excess, 1.0), jnp.inf)


def risk_of(risk: EmpiricalRisk, model: HadamardNetwork, products: Float[Array, " p"]) -> Float[Array, ""]:
    """The risk at these products."""
    size = jnp.sqrt(jnp.abs(products))
    return risk(HadamardNetwork(model.h, size, jnp.sign(products) * size))

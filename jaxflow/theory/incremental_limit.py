r"""The nonlinear part (B) of a stage: the limit (13), its curvature, and what perturbations do to it."""

import math
import sys
from collections.abc import Callable
from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import optimistix
from jax import lax
from jaxtyping import Array, Bool, Float

from jaxflow._core import RESULTS, AbstractPrinted, by_columns, linalg
from jaxflow.models import ProductNetwork
from jaxflow.models.hadamard import ProductFunction
from jaxflow.risk import EmpiricalRisk

Slopes = Callable[[Float[Array, " p"]], Float[Array, " p"]]

# Size of the push, and of what counts as having left the support: half of the digits. Products of order one are learned
# to rounding afterwards, so that the push only has to be small against the distance to other valleys.
PUSH = math.sqrt(sys.float_info.epsilon)

# The flow hands over to Newton's method when slopes on the support are this small against those at zero.
HANDOVER = 1e-6


class InnerLimit(AbstractPrinted):
    """`products` `(p,)` of the limit; `residual`: slopes on the support relative to the scale; `converged`."""

    products: Float[Array, " p"]
    residual: Float[Array, ""]
    converged: Bool[Array, ""]


def product_slopes(risk: EmpiricalRisk, h: ProductFunction) -> Slopes:
    r"""$a\mapsto g=-\partial L/\partial a$ at the products a, equation (4)."""
    # The network's own default, its products, is what is differentiated.
    plain = EmpiricalRisk(risk.source, risk.loss, None, risk.reduction)

    # Not the scaled gradient: where residuals vanish exactly its scale is zero, and Hessians with it.
    return jax.grad(lambda products: -plain(ProductNetwork(h, products)))


def limit_from(
    slopes: Slopes, start: Float[Array, " p"], scale: Float[Array, ""], width: int | None = None
) -> InnerLimit:
    r"""The limit of the flow with $|u|=|v|$ from these products; coordinates at zero stay there.

    **Arguments:** `slopes`; `start`: products; `scale`: of slopes; `width`: at least the number of products that are
    not zero, where that is known beforehand. Jacobians then have so many columns instead of p.
    """
    few, gather, embed = _compressed(slopes, start, width)
    inner = _limit(few, gather(start), scale)
    return InnerLimit(embed(inner.products), inner.residual, inner.converged)


def _compressed(slopes: Slopes, products: Float[Array, " p"], width: int | None) -> tuple[Slopes, Any, Any]:
    """Slopes as a function of the products on the support alone, padded to `width`; to those and back."""
    p = products.shape[0]
    if width is None or width >= p:
        return slopes, lambda x: x, lambda x: x
    # Padding points past the end: it reads zero, and what is written there is dropped.
    (index,) = jnp.nonzero(products, size=width, fill_value=p)

    def gather(x: Float[Array, " p"]) -> Float[Array, " w"]:
        return x.at[index].get(mode="fill", fill_value=0.0)

    def embed(y: Float[Array, " w"]) -> Float[Array, " p"]:
        return jnp.zeros(p, y.dtype).at[index].set(y, mode="drop")

    return lambda y: gather(slopes(embed(y))), gather, embed


def _limit(slopes: Slopes, start: Float[Array, " p"], scale: Float[Array, ""]) -> InnerLimit:
    r"""The flow from `start`, then Newton's method.

    With $a_j=\sigma_je^{x_j}$ the flow is $\dot x_j=2\sigma_jg_j(a)$. It is followed until the slopes of all
    coordinates that have not fallen below `PUSH` are small; those that have are set to zero, and Newton's
    method takes the others to rounding. The result counts as converged if the slopes there are rounding, no sign
    has changed, and every coordinate that was set to zero is pushed towards it.
    """
    on = start != 0.0
    sign = jnp.sign(start)

    def at(x: Float[Array, " p"]) -> Float[Array, " p"]:
        return jnp.where(on, sign * jnp.exp(x), 0.0)

    def field(t: Any, x: Any, args: Any) -> Any:
        # Of p or `width` coordinates one more moves at each stage.
        products = at(x)
        return jnp.where(on, 2.0 * sign * by_columns(slopes, products, jnp.abs(products)) / scale, 0.0)

    def settled(t: Any, x: Any, args: Any, **kwargs: Any) -> Bool[Array, ""]:
        alive = on & (x > jnp.log(PUSH))
        speed = jnp.where(on, jnp.abs(field(t, x, args)), 0.0)
        leaves = ~alive & (field(t, x, args) < 0.0)
        return jnp.max(jnp.where(leaves, 0.0, speed)) <= HANDOVER

    x0 = jnp.where(on, jnp.log(jnp.where(on, jnp.abs(start), 1.0)), 0.0)
    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(field),
        diffrax.Kvaerno3(
            root_finder=diffrax.with_stepsize_controller_tols(optimistix.Chord)(linear_solver=linalg.LU())
        ),
        0.0,
        # Slopes of 1e-6 of the scale have decayed by then, or the limit does not exist.
        1e9,
        None,
        x0,
        # Which valley the path ends in is decided while it moves by factors; Newton's method does the rest. Measured:
        # 25 steps a stage against 80 at 1e-5, the same limits.
        stepsize_controller=diffrax.PIDController(rtol=1e-3, atol=1e-3),
        event=diffrax.Event(settled),
        max_steps=2000,
        throw=False,
    )
    x = solution.ys[0]  # pyright: ignore[reportOptionalSubscript]
    arrived = RESULTS.promote(solution.result) == RESULTS.event_occurred
    alive = on & (x > jnp.log(PUSH))
    found, last = _polish(slopes, jnp.where(alive, at(x), 0.0), alive)
    # What has left is looked at from its own side of zero, where a penalty may have a kink.
    end = slopes(jnp.where(on & ~alive, sign * jnp.finfo(found.dtype).tiny, found))
    size = jnp.maximum(jnp.max(jnp.abs(found)), jnp.finfo(found.dtype).tiny)
    residual = jnp.max(jnp.where(alive, jnp.abs(end), 0.0)) / scale
    kept = jnp.all(jnp.where(alive, jnp.sign(found) == sign, True))
    pushed_back = jnp.all(jnp.where(on & ~alive, sign * end < 0.0, True))
    # Newton's last step is rounding of the products, times the condition of the Hessian: 1e-10 leaves six digits.
    good = arrived & kept & pushed_back & (last <= 1e-10 * size) & (residual <= 1e-9)
    return InnerLimit(found, residual, good)


def hessian(slopes: Slopes, products: Float[Array, " p"]) -> Float[Array, "p p"]:
    r"""$\partial^2L/\partial a^2$, symmetric up to rounding and made so."""
    _, linear = jax.linearize(slopes, products)
    # One column after the other: all at once need as many copies of the data.
    matrix = -jax.lax.map(linear, jnp.eye(products.shape[0], dtype=products.dtype))
    return 0.5 * (matrix + matrix.T)


def support_curvature(slopes: Slopes, products: Float[Array, " p"], width: int | None = None) -> Float[Array, ""]:
    r"""The smallest eigenvalue of the Hessian of $u\mapsto L(u\odot(s\odot u))$ on the support (Assumption 4.4).

    At a stationary point with $a=s\odot u\odot u$ it is $4\,\mathrm{diag}(su)\,\partial^2_aL\,\mathrm{diag}(su)$.
    """
    slopes, gather, _ = _compressed(slopes, products, width)
    products = gather(products)
    on = products != 0.0
    root = 2.0 * jnp.sign(products) * jnp.sqrt(jnp.abs(products))
    matrix = root[:, None] * hessian(slopes, products) * root[None, :]
    # Off the support: above every eigenvalue on it.
    above = 1.0 + jnp.sum(jnp.abs(matrix))
    return jnp.min(linalg.eigvalsh(matrix + jnp.diag(jnp.where(on, 0.0, above))))


def _polish(
    slopes: Slopes, products: Float[Array, " p"], alive: Bool[Array, " p"]
) -> tuple[Float[Array, " p"], Float[Array, ""]]:
    """Newton's method on the coordinates alive, and the size of its last step."""
    size = jnp.maximum(jnp.max(jnp.abs(products)), jnp.finfo(products.dtype).tiny)
    both = alive[:, None] & alive[None, :]

    def unfinished(carry: Any) -> Any:
        _, last, before, count = carry
        # Quadratic convergence has ended where a small step is followed by one that is hardly smaller: rounding.
        rounding = (last <= 1e-10 * size) & (last >= 0.1 * before)
        return (last > 1e-15 * size) & ~rounding & (count < linalg.NEWTON_STEPS)

    def step(carry: Any) -> Any:
        products, last, _, count = carry
        matrix = jnp.where(both, hessian(slopes, products), jnp.diag(jnp.where(alive, 0.0, 1.0)))
        move = linalg.solve(matrix, jnp.where(alive, slopes(products), 0.0))
        # Not finite (a singular Hessian): stay, and let the residual tell.
        move = jnp.where(jnp.all(jnp.isfinite(move)), move, 0.0)
        return products + move, jnp.max(jnp.abs(move)), last, count + 1

    endless = jnp.asarray(jnp.inf, products.dtype)
    found, last, *_ = lax.while_loop(unfinished, step, (products, endless, endless, 0))
    return found, last

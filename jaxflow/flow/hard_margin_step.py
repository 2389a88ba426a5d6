r"""One projection of the hard-margin flow: Newton's method on an active set, with a matrix or with products alone.

The unknowns of a step (`jaxflow.flow.hard_margin`) are the move d of the weights, the changes of the multipliers on the
active rows A (gradients of margins), and of the gates times their worths on the normals N of the kinks that the flow
slides on. With the Hessian H of $\sum_k\lambda_kq_k$ they solve the symmetric system

$$\begin{pmatrix}I-H&-A^\top&-N^\top\\A&0&0\\N&0&0\end{pmatrix}.$$

Of few weights it is a matrix, to be factorised. Of many there is no matrix of their number. But for signs and I it has
the second derivatives of $L=\sum_k\lambda_kq_k+\sum_jt_jz_j$ in weights, λ and t = 0, where z are the switches of
kinks. They are symmetric, so that reverse mode makes all products from ∇L, and MINRES solves. Units that are alike have
the same eigenvalues, so that a network with ten times the units takes no more products, at ten times the cost.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jaxflow._core import AbstractPrinted, linalg, minres, positive_or_one
from jaxflow._core.kinks import gated
from jaxflow.flow.margins import nonzero

Margins = Callable[[Float[Array, " p"]], Float[Array, " n"]]

# Weights up to which a step factorises its matrix. On digits at 520 both take less than half a minute, with compiling.
DENSE = 500
# MINRES takes a residual down to this share, and projections are solved to its square times the KKT residual: on digits
# of ten classes systems solved to 1e-10 took six times as many products, for steps that came as far.
INEXACT = 0.1
# Products of one system; of 100 digits with 5,032 weights ten classes reach it in the last steps, two take 50.
MOST_PRODUCTS = 2000
# Vectors of MINRES have all weights, and room for kinks. Room for an eighth of as many adds little to them, and digits
# need no more: of 1,000 data with 5,005 weights a product took 0.8 ms, and with room for all kinks 1.8 ms.
FEW = 8
# Newton steps of one projection. Each changes the active set; on the right one three to six converge.
NEWTON_STEPS = 20
# A projection is solved where a Newton step is this small, and the active set is consistent to `CONSISTENT`: what
# rounding leaves of a margin of one after a system of a few hundred unknowns.
SOLVED, CONSISTENT = 1e-10, 1e-9
# What a margin of one may be off by and still be one: without it a constraint that has just left the active set comes
# back by a rounding, without an end. What multipliers and gates push has a tenth of it, relative to the weights.
ROUNDING = 1e-12


class HardMarginState(AbstractPrinted):
    r"""A point of the hard-margin flow, scaled to margin one.

    `weights` ψ `(p,)`; `multipliers` λ `(n,)`, those of $\min\frac12\|\psi\|^2$; `gates` `(g,)`; `sliding` `(g,)`: the
    kinks that it is on.
    """

    weights: Float[Array, " p"]
    multipliers: Float[Array, " n"]
    gates: Float[Array, " g"]
    sliding: Bool[Array, " g"]


def project(
    margins: Margins,
    present: Bool[Array, " n"],
    origin: HardMarginState,
    base: Float[Array, " p"],
    length: Float[Array, ""],
    residual: Float[Array, ""],
) -> tuple[HardMarginState, Bool[Array, ""]]:
    """ψ with ψ = base + `length` (G(ψ) − ψ), found from `origin`, and whether it was found. `residual` is that of the
    last step."""
    share = length / (1.0 + length)
    pulled = (1.0 - share) * base
    # What multipliers and gates push is known to this share of the weights.
    loose = 0.0 if origin.weights.size <= DENSE else INEXACT**2 * jnp.minimum(residual, 1.0)
    accuracy = jnp.maximum(SOLVED, loose)
    consistent = jnp.maximum(CONSISTENT, accuracy * share)

    def going(carry: tuple[HardMarginState, Array, Array]) -> Array:
        _, status, count = carry
        return (status == 0) & (count < NEWTON_STEPS)

    def body(carry: tuple[HardMarginState, Array, Array]) -> tuple[HardMarginState, Array, Array]:
        state, _, count = carry
        new, move, push = _newton(margins, present, state, pulled, share, accuracy, consistent)
        size = jnp.linalg.norm(new.weights)
        lost = ~(move <= 10.0 * size)
        # What multipliers and gates push is a share of the weights, and the residual is measured in it.
        known = accuracy * share
        settled = (move <= jnp.maximum(SOLVED, known) * size) & (push <= (known + 0.1 * ROUNDING) * size)
        done = settled & _consistent(margins, present, new, consistent)
        return new, jnp.where(lost, 2, jnp.where(done, 1, 0)), count + 1

    # Multipliers of the step are those of the program times the share.
    begun = eqx.tree_at(lambda s: s.multipliers, origin, share * origin.multipliers)
    state, status, _ = lax.while_loop(going, body, (begun, jnp.zeros((), int), jnp.zeros((), int)))
    state = eqx.tree_at(lambda s: s.multipliers, state, state.multipliers / share)
    return state, status == 1


def _consistent(margins: Margins, present: Array, state: HardMarginState, tolerance: Array) -> Array:
    value, z, *_ = gated(margins, state.weights, state.gates)
    rounding = tolerance * jnp.max(jnp.abs(z), initial=0.0, where=jnp.isfinite(z))
    at = jnp.where(state.gates > 0.5, z >= -rounding, z <= rounding)
    fits = jnp.all(jnp.where(state.sliding, jnp.abs(z) <= rounding, at))
    enough = jnp.all(jnp.where(present, value, 1.0) >= 1.0 - tolerance)
    return fits & enough & jnp.all(state.multipliers >= 0.0)


def _newton(
    margins: Margins,
    present: Array,
    state: HardMarginState,
    pulled: Array,
    share: Array,
    accuracy: Array,
    consistent: Array,
) -> tuple[HardMarginState, Array, Array]:
    """A Newton step for weights, multipliers and gates on the active set; how far it moves the weights, and how much
    multipliers and gates push differently."""
    psi, lam, gates = state.weights, state.multipliers, state.gates
    size, none = jnp.linalg.norm(psi), jnp.zeros_like(gates)

    def lagrangian(psi: Array, lam: Array, turns: Array, offsets: Array) -> Array:
        found = gated(margins, psi, gates, offsets)
        return jnp.dot(lam, jnp.where(present, found.value, 0.0)) + jnp.dot(turns, found.switches)

    def fields(*at: Array) -> Any:
        *found, worths = jax.grad(lagrangian, argnums=(0, 1, 2, 3))(*at, none)
        return tuple(found), worths

    # Second derivatives are symmetric, so that these products with their transpose are those with them. In forward mode
    # a product at 50,024 weights takes an eighth more: XLA then transposes sums of products of matrices.
    (pushes, q, z), products, worths = jax.vjp(fields, psi, lam, none, has_aux=True)
    # By how much a gate turns the slope by the switch: once for a ReLU, twice for |z|, minus once for a minimum.
    anywhere = jax.random.normal(jax.random.key(0), psi.shape, psi.dtype)
    moved = jax.jvp(lambda x: gated(margins, x, gates), (psi,), (anywhere,))[1]
    worths = worths * jnp.where(moved.switches != 0, moved.jumps / nonzero(moved.switches), 1.0)
    active = present & (lam - share * (q - 1.0) > share * ROUNDING)
    # Where the gate is on the wrong side the flow slides if the kink attracts, and crosses if it does not. A switch
    # that a solved step may have is on no side: kinks of units that fade out would change with every system.
    largest = jnp.max(jnp.abs(z), initial=0.0, where=jnp.isfinite(z))
    tiny = consistent * largest
    wrong = ~state.sliding & jnp.where(gates > 0.5, z < -tiny, z > tiny)
    sliding = state.sliding | (wrong & (worths < 0))
    crossed = jnp.where(wrong & (worths >= 0), 1.0 - gates, gates)
    jumps = jnp.where(wrong & (worths >= 0), worths * (2.0 * crossed - 1.0), 0.0)
    # The rows are asked for in units of the weights' norm, of margins of one, and of the largest switch.
    allowed = accuracy * share * jnp.minimum(jnp.minimum(size, 1.0), positive_or_one(largest))
    task = _Task(active, sliding, jumps, psi - pulled - pushes, 1.0 - q, -lam, -z, allowed)
    solved = _by_matrix if psi.size <= DENSE else _by_products
    change, lams, turns, pushed = solved(products, task)
    turned = jnp.where(sliding & (worths != 0), turns / nonzero(worths), 0.0)
    moved = crossed + turned
    new = HardMarginState(psi + change, lam + lams, jnp.clip(moved, 0.0, 1.0), sliding & (moved >= 0) & (moved <= 1))
    return new, jnp.linalg.norm(change), jnp.linalg.norm(pushed)


class _Task(NamedTuple):
    """What a Newton step is to do: the active margins and the kinks that it slides on; what crossed kinks push
    (`jumps`); what is left of the equation of the weights (`rest`); margins below one (`short`), what takes
    multipliers to zero (`dropped`), and what takes switches there (`missed`); the residual that its system may have
    (`allowed`)."""

    active: Bool[Array, " n"]
    sliding: Bool[Array, " g"]
    jumps: Float[Array, " g"]
    rest: Float[Array, " p"]
    short: Float[Array, " n"]
    dropped: Float[Array, " n"]
    missed: Float[Array, " g"]
    allowed: Float[Array, ""]


def _sliding(one: _Task, m: int) -> tuple[Int[Array, " m"], Bool[Array, " m"]]:
    """Where `m` kinks are, those first that it slides on, and which of them these are."""
    chosen = jnp.argsort(~one.sliding, stable=True)[:m]
    return chosen, one.sliding[chosen]


def _by_matrix(products: Any, one: _Task) -> tuple[Array, Array, Array, Array]:
    """The changes of weights, multipliers and gates times worths, and their push, by an LU factorisation."""
    p, n, g = one.rest.size, one.active.size, one.sliding.size
    columns = jax.vmap(lambda x: products((x, jnp.zeros_like(one.short), jnp.zeros_like(one.missed))), out_axes=-1)
    hessian, rows, kinks = columns(jnp.eye(p))
    # Rows of more kinks than weights are dependent.
    m = min(g, p)
    chosen, on = _sliding(one, m)
    normals = jnp.where(on[:, None], kinks[chosen], 0.0)
    # Unknowns of a kink are gate times worth, which keeps the matrix symmetric; the floor is that of rounding, for
    # rows that depend on each other.
    floor = 1e-14 * jnp.maximum(1.0, jnp.max(jnp.abs(rows)))
    held = jnp.where(one.active[:, None], rows, 0.0)
    matrix = jnp.block(
        [
            [jnp.eye(p) - hessian, -held.T, -normals.T],
            [held, jnp.diag(jnp.where(one.active, floor, 1.0)), jnp.zeros((n, m))],
            [normals, jnp.zeros((m, n)), jnp.diag(jnp.where(on, floor, 1.0))],
        ]
    )
    rest = one.rest - kinks.T @ one.jumps
    lams = jnp.where(one.active, one.short, one.dropped)
    change = linalg.solve(matrix, jnp.concatenate([-rest, lams, jnp.where(on, one.missed[chosen], 0.0)]))
    pushed = rows.T @ change[p : p + n] + normals.T @ change[p + n :]
    turns = jnp.zeros(g, change.dtype).at[chosen].set(jnp.where(on, change[p + n :], 0.0))
    return change[:p], change[p : p + n], turns, pushed


def _by_products(products: Any, one: _Task) -> tuple[Array, Array, Array, Array]:
    """The same by MINRES, to the residual that is allowed or a share of the right side."""
    none, p, g = jnp.zeros_like(one.missed), one.rest.size, one.sliding.size

    def push(lams: Array, turns: Array) -> Array:
        return products((jnp.zeros_like(one.rest), lams, turns))[0]

    dropped = jnp.where(one.active, 0.0, one.dropped)
    rest = one.rest - push(dropped, one.jumps)

    def solved(m: int, most: Array) -> tuple[Array, Array, Array]:
        """With room for `m` kinks; zero where `most` is."""
        chosen, on = _sliding(one, m)

        def everywhere(turns: Array) -> Array:
            return none.at[chosen].set(turns, unique_indices=True)

        def product(x: Any) -> Any:
            change, lams, turns = x
            bent, rows, kinks = products((change, lams, everywhere(turns)))
            return change - bent, -jnp.where(one.active, rows, 0.0), -jnp.where(on, kinks[chosen], 0.0)

        right = -rest, -jnp.where(one.active, one.short, 0.0), -jnp.where(on, one.missed[chosen], 0.0)
        (change, lams, turns), _ = minres(product, right, rtol=INEXACT, atol=one.allowed, max_steps=most)
        return change, lams, everywhere(turns)

    # One loop for each room, one of which takes products: lanes of a batch run only those that one of them is in.
    rooms = sorted({min(g, p // FEW), min(g, p)})
    which = jnp.sum(jnp.sum(one.sliding) > jnp.asarray(rooms[:-1], int))
    parts = [solved(m, jnp.where(which == i, MOST_PRODUCTS, 0)) for i, m in enumerate(rooms)]
    change, lams, turns = jax.tree.map(lambda *x: sum(x), *parts)
    lams = jnp.where(one.active, lams, dropped)
    return change, lams, turns, push(lams, turns)

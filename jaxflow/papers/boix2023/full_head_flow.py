"""The flow of a head with full matrices from a start of any size: triangular factors with logarithmic diagonals."""

from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxflow._core import RESULTS, linalg
from jaxflow.data import SampleData
from jaxflow.losses import Squared
from jaxflow.risk import EmpiricalRisk

# Directions are of order one, logarithms of sizes of order log(1/α); an absolute error of either is a relative one of
# the weights. Against 1e-6 and 1e-9 the products at the end are the same (one instance), for a third fewer steps.
ATOL = 1e-4
RTOL = 1e-7

# Some 300 are taken at e^(-1000); what is not at the end by then is counted as failed.
STEPS = 2048


class HeadProducts(eqx.Module):
    r"""$\mathrm{softmax}(XAX^\top)XB$ with $A=W_KW_Q^\top$ and $B=W_VW_O^\top$, `(2, d, d)`: equation (1)."""

    products: Float[Array, "2 d d"]

    def outputs(self, data: SampleData) -> Float[Array, "n T d"]:
        """Of every sequence."""
        left, right = self.products
        return jax.vmap(lambda x: jax.nn.softmax(x @ left @ x.T, axis=-1) @ x @ right)(data.inputs)


class Factors(eqx.Module):
    r"""$\binom{W_K}{W_Q}=U\,\mathrm{diag}(e^s)\,R$ and the same of $W_V,W_O$: a pair in the leading axis.

    - `frames` `(2, 2d, d)`: U, orthonormal columns; `logs` `(2, d)`: s; `rows` `(2, d, d)`: R, unit upper triangular.
    """

    frames: Float[Array, "2 n d"]
    logs: Float[Array, "2 d"]
    rows: Float[Array, "2 d d"]

    @classmethod
    def of(cls, weights: Float[Array, "2 n d"], log_scale: Any) -> "Factors":
        r"""Of $e^{c}$ times these weights, c the `log_scale`."""
        frames, upper = linalg.qr(weights)
        diagonal = jnp.diagonal(upper, axis1=-2, axis2=-1)
        signs = jnp.sign(diagonal)
        return cls(frames * signs[:, None, :], jnp.log(jnp.abs(diagonal)) + log_scale, upper / diagonal[..., None])

    def products(self) -> Float[Array, "2 d d"]:
        r"""$W_KW_Q^\top$ and $W_VW_O^\top$."""
        d = self.logs.shape[-1]
        scaled = jnp.exp(self.logs)[..., None] * self.rows
        weights = self.frames @ scaled
        return weights[:, :d] @ jnp.swapaxes(weights[:, d:], -1, -2)


def head_risk(inputs: Float[Array, "n T d"], targets: Float[Array, "n T d"]) -> EmpiricalRisk:
    """The mean squared error of a head, by its products."""
    return EmpiricalRisk(SampleData(inputs, targets), Squared(), lambda head: jax.tree.map(lambda x: True, head))


def field(risk: EmpiricalRisk, state: Factors) -> Factors:
    r"""Velocities of the factors under the gradient flow of $K,Q$ (and $V,O$).

    With $G=-\partial L/\partial(KQ^\top)$ the flow $\dot K=GQ,\dot Q=G^\top K$ is linear in $M=\binom KQ$:
    $\dot M=HM$, $H=\left(\begin{smallmatrix}0&G\\G^\top&0\end{smallmatrix}\right)$. With $A=U^\top HU$,

    $$\dot U=(I-UU^\top)HU+US,\quad\dot s=\mathrm{diag}A,\quad\dot R_{i\cdot}=\sum_{j>i}2A_{ij}e^{s_j-s_i}R_{j\cdot},$$

    S antisymmetric with A below the diagonal (the continuous QR method of Lyapunov exponents; U is pulled back to
    orthonormal columns). Columns of M alone would all turn to the fastest direction, and what is not learned yet
    would drown in rounding; here it is a logarithm.
    """
    scaled = risk.scaled_gradient(HeadProducts(state.products()))
    slopes = -jnp.exp(scaled.log_scale) * scaled.gradient.products

    def one(slope: Any, frame: Any, logs: Any, rows: Any) -> Any:
        d = logs.shape[0]
        moved = jnp.concatenate([slope @ frame[d:], slope.T @ frame[:d]])
        inner = frame.T @ moved
        below = jnp.tril(inner, -1)
        turning = moved - frame @ inner + frame @ (below - below.T) + frame @ (jnp.eye(d) - frame.T @ frame)
        # A later direction is hardly ever above an earlier one, and then by order one.
        shear = 2.0 * jnp.triu(inner, 1) * jnp.exp(jnp.minimum(logs[None, :] - logs[:, None], 50.0))
        return turning, jnp.diagonal(inner), shear @ rows

    return Factors(*jax.vmap(one)(slopes, state.frames, state.logs, state.rows))


def follow_head(risk: EmpiricalRisk, start: Factors, log_alpha: Any, until: Any) -> dict[str, Array]:
    r"""The flow to rescaled time $\tau=t/\log(1/\alpha)$ `until`, at every accepted step (the last one repeated).

    **Returns:** `good`; `times` `(m,)`; `singular` `(m, 2, d)` values of $W_KW_Q^\top$ and $W_VW_O^\top$;
    `log_gradient` `(m,)`: $\log\|\nabla L\|$ by the weights; `steps`.
    """
    unit = -jnp.asarray(log_alpha, float)
    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(lambda time, state, args: jax.tree.map(lambda x: unit * x, field(risk, state))),
        diffrax.Kvaerno5(root_finder=linalg.chord(rtol=RTOL, atol=ATOL)),
        0.0,
        until,
        None,
        start,
        saveat=diffrax.SaveAt(steps=True),
        stepsize_controller=diffrax.PIDController(rtol=RTOL, atol=ATOL),
        max_steps=STEPS,
        throw=False,
    )
    steps = solution.stats["num_accepted_steps"]
    last = jnp.maximum(steps - 1, 0)
    states = jax.tree.map(lambda x: x[jnp.minimum(jnp.arange(STEPS), last)], (solution.ts, solution.ys))
    singular, log_gradient = jax.lax.map(lambda state: _look(risk, state), states[1], batch_size=256)
    return {
        "good": RESULTS.promote(solution.result) == RESULTS.successful,
        "times": states[0],
        "singular": singular,
        "log_gradient": log_gradient,
        "steps": steps,
    }


def _look(risk: EmpiricalRisk, state: Factors) -> tuple[Array, Array]:
    scaled = risk.scaled_gradient(HeadProducts(state.products()))
    slopes = jnp.exp(scaled.log_scale) * scaled.gradient.products
    d = state.logs.shape[-1]
    weights = state.frames @ (jnp.exp(state.logs)[..., None] * state.rows)
    squares = jnp.sum((slopes @ weights[:, d:]) ** 2) + jnp.sum((jnp.swapaxes(slopes, -1, -2) @ weights[:, :d]) ** 2)
    tiny = jnp.finfo(squares.dtype).tiny
    return linalg.singular_values(state.products()), 0.5 * jnp.log(jnp.maximum(squares, tiny))

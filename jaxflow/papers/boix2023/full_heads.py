"""A head whose matrices are full, not diagonal: do its ranks still grow one at a time?

Its flow from a start of any size is that of triangular factors with logarithmic diagonals.
"""

from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxflow._core import RESULTS, linalg
from jaxflow.data import SampleData
from jaxflow.losses import Squared
from jaxflow.papers.experiment import Dataset, Part, Statement, Table, met, register
from jaxflow.risk import EmpiricalRisk
from jaxflow.study import subkey

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


def follow_head(risk: EmpiricalRisk, start: Factors, log_alpha: Any, until: Any) -> Table:
    r"""The flow to rescaled time $\tau=t/\log(1/\alpha)$ `until`, at every accepted step (the last one repeated).

    **Returns:** `times` `(m,)`; `singular` `(m, 2, d)` values of $W_KW_Q^\top$ and $W_VW_O^\top$; `log_gradient`
    `(m,)`: $\log\|\nabla L\|$ by the weights; whether it was followed to its end, `ok`.
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
    last = jnp.maximum(solution.stats["num_accepted_steps"] - 1, 0)
    states = jax.tree.map(lambda x: x[jnp.minimum(jnp.arange(STEPS), last)], (solution.ts, solution.ys))
    singular, log_gradient = jax.lax.map(lambda state: _look(risk, state), states[1], batch_size=256)
    ok = RESULTS.promote(solution.result) == RESULTS.successful
    return Table(times=states[0], singular=singular, log_gradient=log_gradient, ok=ok)


def _look(risk: EmpiricalRisk, state: Factors) -> tuple[Array, Array]:
    scaled = risk.scaled_gradient(HeadProducts(state.products()))
    slopes = jnp.exp(scaled.log_scale) * scaled.gradient.products
    d = state.logs.shape[-1]
    weights = state.frames @ (jnp.exp(state.logs)[..., None] * state.rows)
    squares = jnp.sum((slopes @ weights[:, d:]) ** 2) + jnp.sum((jnp.swapaxes(slopes, -1, -2) @ weights[:, :d]) ** 2)
    tiny = jnp.finfo(squares.dtype).tiny
    return linalg.singular_values(state.products()), 0.5 * jnp.log(jnp.maximum(squares, tiny))


D, T, SAMPLES = 3, 4, 20
TRIALS = {"quick": 6, "paper": 60, "large": 1000}

LOG_ALPHAS = (-10.0, -100.0, -1000.0)

# In units of the time that the fastest direction takes from α to order one.
HORIZON = 20.0

# Two singular values are learned in one stage unless the gradient falls in between to a tenth of what it is at both:
# a plateau.
PLATEAU = 0.1

# Singular values of the products of less than this, relative to the largest of both, have not been learned at the end.
LEARNED = 0.05


def draw(key: Any) -> tuple[EmpiricalRisk, Any]:
    """The risk, and the weights of a start of size one as pairs `(2, 2d, d)`."""
    inputs = jax.random.normal(subkey(key, "X"), (SAMPLES, T, D))
    # Products of order one: entries of the four matrices have variance 1/d.
    left, right = jax.random.normal(subkey(key, "teacher"), (2, 2, D, D)) / D**0.5
    teacher = HeadProducts(left @ jnp.swapaxes(right, -1, -2))
    targets = teacher.outputs(SampleData(inputs, jnp.zeros(SAMPLES)))
    return head_risk(inputs, targets), jax.random.normal(subkey(key, "start"), (2, 2 * D, D))


def follow(key: Any, log_alpha: Any) -> Table:
    """`follow_head` of one head."""
    risk, weights = draw(key)
    # At zero attention is uniform: the slope of W_K W_Qᵀ is zero there.
    slopes = jax.grad(risk)(HeadProducts(jnp.zeros((2, D, D)))).products
    until = HORIZON / linalg.singular_values(slopes[1])[0]
    return follow_head(risk, Factors.of(weights, log_alpha), log_alpha, until)


# `paths` `(3, b)`: from each of `LOG_ALPHAS`, on the same instances: heads of dimension three taught by a head, four
# Gaussian tokens, the flow from α times Gaussian matrices.
HEADS = Dataset(
    "boix2023",
    "heads",
    {"paths": Part(follow, {f"log alpha={a:g}": np.asarray(a) for a in LOG_ALPHAS}, TRIALS, block=20, way="in turn")},
)


def stages_of(times: np.ndarray, singular: np.ndarray, log_gradient: np.ndarray) -> list[list[int]]:
    """What each stage learns, in order: the singular values (K Q first, then V O) that pass half of their final size.

    **Arguments:** readings `(m,)`, singular values `(m, 2, d)`, logarithm of the gradient's norm `(m,)`.
    """
    final = singular[-1].ravel()
    paths = singular.reshape(len(times), -1)
    learned = np.flatnonzero((final > 0) & (final >= LEARNED * final.max()))
    # The last time from below: what grows early and shrinks again has not been learned then. 0: it starts above.
    passed = [int(np.flatnonzero(np.append(False, paths[:, i] < 0.5 * final[i])).max(initial=0)) for i in learned]
    found: list[list[int]] = []
    before = -1
    for at, i in sorted(zip(passed, learned.tolist(), strict=True)):
        between = log_gradient[before : at + 1]
        apart = not found or between.min() <= np.log(PLATEAU) + min(between[0], between[-1])
        found = [*found, [i]] if apart else [*found[:-1], [*found[-1], i]]
        before = at
    return found


def stages_by_instance(numbers: Table) -> list[list[list[int]] | None]:
    """What the stages learn at the smallest α; None where the integration failed."""
    paths = numbers.paths.at(-1)
    rows = zip(paths.times, paths.singular, paths.log_gradient, paths.ok, strict=True)
    return [stages_of(*path) if ok else None for *path, ok in rows]


def _most(numbers: Table) -> np.ndarray:
    """The most that one stage learns; NaN where nothing is known. One singular value alone is no sequence of stages: 0.
    Not integrated to the end, a head may have stages."""
    found = stages_by_instance(numbers)
    return np.asarray([
        np.nan if stages is None else 0 if sum(map(len, stages)) < 2 else max(map(len, stages)) for stages in found
    ])  # fmt: skip


ONE_AT_A_TIME = Statement[Table](
    source="Beyond: full heads",
    says="the ranks of W_K W_Qᵀ and W_V W_Oᵀ together grow by at most one a stage (between plateaus of the gradient)",
    inside=lambda n: ~(_most(n) == 0),
    residual=_most,
    bound=1.0,
    found=lambda n, known: f"{met(1.0, _most(n)[known])}; these α were chosen after 1e-2, 1e-4, 1e-8 gave 0 of 3",
)
VALUES_FIRST = Statement[Table](
    source="Beyond: full heads (first stage)",
    says="the first stage is the largest singular value of W_V W_Oᵀ alone: at zero the slope of W_K W_Qᵀ vanishes",
    residual=lambda n: np.asarray(
        [0.0 if stages and stages[0] == [D] else 1.0 if stages else np.nan for stages in stages_by_instance(n)]
    ),  # fmt: skip
)

register(HEADS, title="§6: heads that are not diagonal", statements=[ONE_AT_A_TIME, VALUES_FIRST])

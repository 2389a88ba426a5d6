r"""Regularisation paths: minima of the risk over growing balls, (W-RP) and (KQ-RP), and local ones over cones."""

import enum
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int

from jaxflow._core import Code, checked, exp_nonpositive, positive_or_one, tree_norm
from jaxflow.data import TokenData
from jaxflow.models import AbstractAttention, AbstractModel, head_outputs, log_attention
from jaxflow.papers.table import Table
from jaxflow.papers.tarzanagh2023.verify.sphere import minimize_on_sphere
from jaxflow.risk import EmpiricalRisk

# Gauss-Legendre is exact to rounding for losses and heads that are smooth over score gaps of order one.
NODES, WEIGHTS = np.polynomial.legendre.leggauss(16)


@checked()
def log_excess(risk: EmpiricalRisk, model: AbstractAttention, selection: Bool[Array, "n ..."]) -> Float[Array, ""]:
    r"""$\log(L(\theta)-L_\alpha)$ with $L_\alpha=\frac1n\sum_i\ell(Y_ih(x_{i\alpha_i}))$; NaN where $L\le L_\alpha$.

    L tends to $L_\alpha$ exponentially where attention saturates on α, and the difference of the two is rounding
    from margins of about 36 on. Here $X_i^\top s_i=x_{i\alpha_i}+e^{m_i}\hat e_i$ with
    $e^{m_i}\hat e_i=\sum_{t\ne\alpha_i}s_{it}(x_{it}-x_{i\alpha_i})$ on a logarithmic scale, and

    $$L-L_\alpha=\frac1n\sum_ie^{m_i}\int_0^1\ell'\left(Y_ih(x_u)\right)Y_i\langle\nabla h(x_u),\hat e_i\rangle\,du,
    \qquad x_u=x_{i\alpha_i}+u\,e^{m_i}\hat e_i$$

    by a Gauss rule. Its derivatives by the weights are ordinary autodiff: nothing in them underflows or cancels
    while α has most of the attention.

    **Arguments:** `risk` on `TokenData`, with a head and a loss that are smooth between the tokens; `model`;
    `selection`: one token α for each query, Booleans in the shape of the logits.
    """
    data = risk.data
    assert isinstance(data, TokenData)
    visible = data.visible
    log_s = log_attention(model.logits(data), visible)
    tokens = data.tokens if data.single_query else data.tokens[:, None]
    anchor = jnp.sum(jnp.where(selection[..., None], tokens, 0.0), axis=-2)
    others = jnp.where(visible & ~selection, log_s, -jnp.inf)
    largest = jnp.max(others, axis=-1)
    # A query that sees one token only has no excess.
    scale = lax.stop_gradient(jnp.where(jnp.isneginf(largest), 0.0, largest))
    shares = exp_nonpositive(others - scale[..., None])
    step = jnp.sum(shares[..., None] * (tokens - anchor[..., None, :]), axis=-2)
    # The finite part of the step may underflow: then the integrand is constant.
    far = jnp.exp(scale)[..., None] * step

    def slope(u: Array) -> tuple[Array, Array]:
        return jax.jvp(lambda x: head_outputs(model.head, x), (anchor + u * far,), (step,))

    nodes, weights = jnp.asarray(0.5 * (NODES + 1.0)), jnp.asarray(0.5 * WEIGHTS)
    values, slopes = jax.vmap(slope)(nodes)
    targets = jnp.broadcast_to(data.labels, values.shape)
    log_size, derivative = risk.loss.scaled_derivative(values, targets)
    parts = jnp.tensordot(weights, derivative * slopes, axes=1)
    total = log_size + jax.nn.logsumexp(scale, b=parts)
    return total - (jnp.log(parts.size) if risk.reduction == "mean" else 0.0)


# Residuals of accepted points: searches stop at 1e-9, and exponents of size A leave A roundings in the gradient,
# which reach this at A of about 1e9.
STATIONARY = 1e-6
# Of the start's direction in the point from which the next radius is entered: far more than the roundings of which a
# search may not leave a saddle in its steps, and so little that Newton's method takes few to a minimum nearby.
ASIDE = 1e-3
# A constraint at slack c costs −log(c) times this: its multiplier is at most this over c, beside a gradient that
# grows like the radius.
BARRIER = 1e-3


class PathStatus(enum.IntEnum):
    """What is known of a point of a path.

    `stationary`: a minimum of the search, stationary over the ball with a nonnegative multiplier. `interior`: the
    risk falls towards the inside of the ball. `flat`: the gradient has vanished beside the excess (attention is on
    other tokens than the reference's). `unfinished`: the search ran out of steps. `outside`: the start lies
    outside of the constraint, or where the risk is below its reference.
    """

    stationary = 1
    interior = 2
    flat = 3
    unfinished = 4
    outside = 5


class RegularizationPath(eqx.Module):
    r"""Minima of $\log(L-L_\alpha)$ on spheres of growing radius, from S starts. m radii.

    - `models`: one model for each start and radius, arrays `(S, m, ...)`.
    - `objective` `(S, m)`: $\log(L-L_\alpha)$; +inf where no number.
    - `status` `(S, m)`: see `PathStatus`.
    """

    models: Any
    objective: Float[Array, "S m"]
    status: Code

    @property
    def best(self) -> Int[Array, " m"]:
        """For each radius the start that leads to the least objective, among stationary points."""
        usable = self.status.value == PathStatus.stationary.value
        return jnp.argmin(jnp.where(usable, self.objective, jnp.inf), axis=0)

    @property
    def found(self) -> Bool[Array, " m"]:
        """Whether any start led to a stationary point."""
        return jnp.any(self.status.value == PathStatus.stationary.value, axis=0)

    @property
    def path(self) -> Any:
        """The models of `best`, arrays `(m, ...)`."""
        column = jnp.arange(self.objective.shape[1])
        arrays, static = eqx.partition(self.models, eqx.is_array)
        return eqx.combine(jax.tree.map(lambda x: x[self.best, column], arrays), static)


def regularization_path(
    risk: EmpiricalRisk,
    starts: Sequence[AbstractModel],
    radii: Float[Array, " m"],
    *,
    reference: Bool[Array, "n ..."],
    constraint: Callable[[Any], Float[Array, " c"]] | None = None,
) -> RegularizationPath:
    r"""Minimises the risk over balls of the trained parameters, by continuation in the radius from several starts.

    $$\bar\theta_\rho\in\arg\min_{\|\theta\|\le\rho}L(\theta)$$

    This is (W-RP) with $\rho=R$ for `CombinedAttention` and (KQ-RP) with $\rho=\sqrt{2R}$ for `FactoredAttention`
    (Tarzanagh et al. 2023, §2); by their Lemma 15 the latter are the minima over $\|W\|_\star\le R$,
    $\mathrm{rank}\,W\le m$. The risk is not convex: a start leads to a local minimum (the zero of (K, Q) is a
    saddle), so give several, such as one for each choice of tokens, and read `path`, the least of them. A search
    of this kind proves no minimum global; each point is certified stationary by its own residual.

    What is minimised is $\log(L-L_\alpha)$, see `log_excess`: at $\|W\|=10^4$ the differences of L are
    $e^{-1000}$ and less. Points are scaled to the next radius, moved a little towards the start and refined by
    Newton's method. A minimum of (K, Q) may have a column that is zero: it is stationary at all radii, but a saddle
    from that on at which the minimum has a larger rank, and a search that starts in it stays. At small radii paths
    of different tokens merge, so each radius is also entered from the start's own direction, and the lower of the
    two minima goes on.

    **Arguments:**

    - `risk`: of one instance; batch with `jax.vmap`, and wrap in `jax.jit` what runs more than once.
    - `starts`: models of the same kind; only their directions matter.
    - `radii` `(m,)`: increasing bounds on the Euclidean norm of all parameters, R for W and $\sqrt{2R}$ for (K, Q).
    - `reference`: α, Booleans in the shape of the logits.
    - `constraint`: slacks of a model `(c,)`, positive inside (`SeparatingCone`), kept so by a logarithmic
      barrier of weight 1e-3 in log L; they should not change with the model's norm. Starts must be inside.

    **Returns:** a `RegularizationPath`.
    """
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *[eqx.filter(model, eqx.is_array) for model in starts])
    static = eqx.filter(starts[0], eqx.is_array, inverse=True)

    def one(arrays: Any) -> tuple[Any, ...]:
        return _follow(risk, eqx.combine(arrays, static), radii, reference, constraint)

    found, values, status = jax.vmap(one)(stacked)
    objective = jnp.where(jnp.isfinite(values), values, jnp.inf)
    return RegularizationPath(eqx.combine(found, static), objective, Code(status, PathStatus))


def _follow(
    risk: EmpiricalRisk,
    model: Any,
    radii: Float[Array, " m"],
    reference: Bool[Array, "..."],
    constraint: Callable[[Any], Float[Array, " c"]] | None,
) -> tuple[Any, Float[Array, " m"], Array]:
    """Of one start: models (arrays alone), objectives and statuses, each with the radii first."""
    params, frozen = eqx.partition(model, risk.filter(model))
    start, unravel = ravel_pytree(params)

    def at(vector: Array) -> Any:
        return eqx.combine(unravel(vector), frozen)

    def objective(vector: Array) -> Float[Array, ""]:
        there = at(vector)
        value = log_excess(risk, there, reference)
        if constraint is None:
            return value
        slacks = constraint(there)
        barrier = -BARRIER * jnp.sum(jnp.log(positive_or_one(slacks)))
        return jnp.where(jnp.all(slacks > 0), value + barrier, jnp.nan)

    def refine(u: Array, radius: Array) -> tuple[Array, tuple[Any, ...]]:
        aside = u + ASIDE * first
        aside = aside / tree_norm(aside)
        aside = jnp.where(jnp.isfinite(objective(radius * aside)), aside, u)
        both = jax.vmap(lambda v: minimize_on_sphere(lambda w: objective(radius * w), v))(jnp.stack([aside, first]))
        lower = jnp.argmin(jnp.where(jnp.isfinite(both.value), both.value, jnp.inf))
        found = jax.tree.map(lambda x: x[lower], both)
        return found.point, (eqx.filter(at(radius * found.point), eqx.is_array), found.value, _status(found))

    size = jnp.where(tree_norm(start) > 0, tree_norm(start), 1.0)
    first = start / size
    return lax.scan(refine, first, radii)[1]


def _status(found: Table) -> Array:
    # The gradient by the unit vector grows like the radius where the excess is an exponential of the margin.
    flat = jnp.abs(found.multiplier) <= STATIONARY
    status = jnp.where(found.residual <= STATIONARY, PathStatus.stationary.value, PathStatus.unfinished.value)
    status = jnp.where(found.multiplier < 0, PathStatus.interior.value, status)
    status = jnp.where(flat, PathStatus.flat.value, status)
    return jnp.where(jnp.isfinite(found.value), status, PathStatus.outside.value)


class SeparatingCone(eqx.Module):
    r"""$\mathrm{cone}_\varepsilon(\alpha)$, equation (5) of Tarzanagh et al. (2023), as slacks of a model.

    W is in it if for every query some token with a lower score than α has logits above those of all tokens with a
    higher score, by $\varepsilon\|W\|_F$ at least: a union of cones, one for each choice of the barring tokens.
    This is one of them, with barring tokens `low`. With no token above α there is no condition.

    **Arguments:** `data`; `low`: one barring token for each query, Booleans in the shape of the logits; `high`: the
    tokens with scores no less than α's, but α; `epsilon`.
    """

    data: TokenData
    low: Bool[Array, "n ..."]
    high: Bool[Array, "n ..."]
    epsilon: Float[Array, ""]

    def __call__(self, model: Any) -> Float[Array, " c"]:
        r"""Slacks $(x_{it}-x_{i\tau})^\top Wz_i/\|W\|_F-\varepsilon$ for all τ above; 1 where there is none to bar."""
        W = model.combined_weights()
        norm = tree_norm(W)
        logits = model.logits(self.data) / positive_or_one(norm)
        bar = jnp.sum(jnp.where(self.low, logits, 0.0), axis=-1, keepdims=True)
        return jnp.where(self.high, bar - logits - self.epsilon, 1.0).reshape(-1)


@checked()
def low_and_high(
    scores: Float[Array, "*n T"], visible: Bool[Array, "*n T"], selection: Bool[Array, "*n T"]
) -> tuple[Bool[Array, "*n T"], Bool[Array, "*n T"]]:
    """Tokens with lower, and with no lower, scores than the selected ones: Definition 3 of Tarzanagh et al."""
    own = jnp.sum(jnp.where(selection, scores, 0.0), axis=-1, keepdims=True)
    others = visible & ~selection
    return others & (scores < own), others & (scores >= own)


@checked()
def cone_depth(
    logits: Float[Array, "*n T"], low: Bool[Array, "*n T"], high: Bool[Array, "*n T"]
) -> tuple[Float[Array, ""], Bool[Array, "*n T"]]:
    r"""$\min_i\max_{t\in\mathrm{low}}\min_{\tau\in\mathrm{high}}(a_{it}-a_{i\tau})$ of (5), and the barring tokens t.

    +inf where no query has a token above; −inf where one has and none below.
    """
    barred = jnp.max(jnp.where(high, logits, -jnp.inf), axis=-1)
    best = jnp.max(jnp.where(low, logits, -jnp.inf), axis=-1)
    apart = jnp.where(jnp.any(high, axis=-1), best - jnp.where(jnp.isneginf(barred), 0.0, barred), jnp.inf)
    first = jax.nn.one_hot(jnp.argmax(jnp.where(low, logits, -jnp.inf), axis=-1), logits.shape[-1], dtype=bool)
    return jnp.min(apart), first & low

r"""Two layers whose components move in pairs: the limit of regression by the n numbers $\nu=-\int_0^\infty r\,dt$.

Where $f(x_i)=\sum_jA_{ij}\,a_jb_j$ in orthonormal coordinates $a=U_1^\top v_1$, $b=U_2^\top v_2$, gradient flow of any
loss keeps to

$$a_j\pm b_j=(a_j(0)\pm b_j(0))\,e^{\pm g_j},\qquad g=A^\top\nu .$$

Its limit point is a root of $A\rho(\nu)=y$, $\rho_j=\tfrac14[(a_j+b_j)^2-(a_j-b_j)^2]$: the gradient of a convex
function of ν, so that the point is unique. This holds for *every* start. In Theorems 4 and 5 of Yun, Krishnan, Mobahi
(2021) it is known beforehand that a root exists.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxflow._core import AbstractPrinted, checked, linalg, positive_or_one, require
from jaxflow._core.linalg import ROUNDED
from jaxflow.models import (
    AbstractLinearNetwork,
    DeepLinearNetwork,
    DeepMatrixSensing,
    DiagonalLinearNetwork,
    LinearConvolutionalNetwork,
    LinearTensorNetwork,
    as_tensor_network,
)
from jaxflow.theory.linear_assumptions import with_layers

# Roundings that a direction of ν may show in β and still count as none: eigenvectors are known to a few.
HIDDEN = 1000.0
# Roundings of one component: an exponential, two products, a sum and the factors U.
ROUNDINGS = 8.0


class Pairs(AbstractPrinted):
    r"""`rows`: A `(n, m)`; `first`, `second`: a(0) and b(0), `(m,)`; `base`: both layers at the start.

    `factors`: $U_1$ and $U_2$, None where both are the identity. Layers that are matrices stand for $f(X)=\langle
    X,W_1W_2\rangle$ at one $X=U_1\,\mathrm{diag}(\sigma)\,U_2^\top$, with $a=U_1^\top W_1$ and $b=(W_2U_2)^\top$: every
    σ stands once for each hidden unit. A fully connected network has $X=x$, one column.
    """

    rows: Float[Array, "n m"]
    first: Float[Array, " m"]
    second: Float[Array, " m"]
    base: tuple[Array, Array]
    factors: tuple[Float[Array, "p r"], Float[Array, "q r"]] | None

    @property
    def width(self) -> int:
        """How many pairs belong to one singular value."""
        return 1 if self.factors is None else self.first.size // self.factors[0].shape[1]

    def split(self, layers: tuple[Array, ...]) -> tuple[Float[Array, " m"], Float[Array, " m"]]:
        """a and b of any two layers."""
        return _split(self.factors, layers)

    def lift(self, first: Float[Array, " m"], second: Float[Array, " m"]) -> tuple[Array, Array]:
        """The two layers with these a and b, and zero elsewhere."""
        if self.factors is None:
            return first, second
        a, b = (U @ x.reshape(U.shape[1], -1) for U, x in zip(self.factors, (first, second), strict=True))
        return a.reshape(self.base[0].shape), b.T.reshape(self.base[1].shape)

    def spread(self, layer: Array) -> Array:
        """The size to which the roundings of an entry of a layer are relative."""
        return jnp.abs(layer) if self.factors is None else jnp.abs(layer) + jnp.sqrt(jnp.mean(layer**2))

    def slack(self) -> Float[Array, ""]:
        r"""$\min_ja_j^2-b_j^2$ over components that move, at the start: λ of Theorem 5 times α².

        Singular values that tie because of the network's form do not determine the basis. There is a basis in which all
        these differences equal their mean (Schur, Horn), so for them the mean is used.
        """
        means = jnp.mean((self.first**2 - self.second**2).reshape(-1, self.width), axis=1)
        moves = jnp.any(self.rows.reshape(-1, means.size, self.width) != 0, axis=(0, 2))
        return jnp.min(jnp.where(moves, means, jnp.inf))

    def layers(self, dual: Float[Array, " n"]) -> tuple[Array, Array]:
        """Both layers at ν. What is orthogonal to the columns of U never moves."""
        plus, minus = self._halves(dual)
        moved = self.lift(0.5 * (plus + minus) - self.first, 0.5 * (plus - minus) - self.second)
        return self.base[0] + moved[0], self.base[1] + moved[1]

    def outputs(self, dual: Float[Array, " n"]) -> Float[Array, " n"]:
        r"""$A\rho(\nu)$."""
        plus, minus = self._halves(dual)
        return self.rows @ (0.25 * (plus**2 - minus**2))

    def slopes(self, dual: Float[Array, " n"]) -> Float[Array, " m"]:
        r"""$d\rho_j/dg_j=\tfrac12[(a_j+b_j)^2+(a_j-b_j)^2]$, which is also the size to which the roundings of ρ are
        relative."""
        plus, minus = self._halves(dual)
        return 0.5 * (plus**2 + minus**2)

    def dual_of(self, layers: tuple[Array, ...]) -> Float[Array, " n"]:
        r"""ν of a point of the flow: least squares for $A^\top\nu=g$, g from the larger of $|a_j\pm b_j|$."""
        a, b = self.split(layers)
        ends, starts = (a + b, a - b), (self.first + self.second, self.first - self.second)
        up = jnp.abs(ends[0]) >= jnp.abs(ends[1])
        end, start = (jnp.abs(jnp.where(up, *x)) for x in (ends, starts))
        g = jnp.where(up, 1.0, -1.0) * jnp.log(positive_or_one(end) / positive_or_one(start))
        weights = jnp.abs(ends[0]) + jnp.abs(ends[1])
        # A component that is zero has never moved and says nothing.
        known = (start > 0) & (end > 0) & jnp.isfinite(g) & jnp.isfinite(weights)
        weights = jnp.where(known, weights, 0.0)
        return linalg.lstsq((self.rows * weights[None, :]).T, jnp.where(known, g, 0.0) * weights)

    def _halves(self, dual: Float[Array, " n"]) -> tuple[Array, Array]:
        push = self.rows.T @ dual
        # Sum and difference grow and decay by themselves: nothing cancels.
        return (self.first + self.second) * jnp.exp(push), (self.first - self.second) * jnp.exp(-push)


# Its former name.
AbstractPairs = Pairs


@checked()
def pairs_of(network: AbstractLinearNetwork, inputs: Float[Array, "n d"]) -> Pairs | None:
    """The pairs in which the two layers move on these inputs; None where they do not move in pairs, or where no formula
    is known.

    One datum: every two-layer network (Theorem 5). Several, no more than there are pairs: diagonal networks, and
    tensor networks with a real decomposition (Assumption 1). The answer depends on types and shapes alone.
    """
    if network.depth != 2 or getattr(network, "activation", None) is not None:
        return None
    given = getattr(network, "decomposition", None)
    if isinstance(network, DiagonalLinearNetwork):
        return _pairs(network, inputs, None)
    if given is not None and given.is_real:
        return _pairs(network, inputs @ given.transform.T, given.factors)
    if inputs.shape[0] > 1:
        return None
    x, (first, last), width = inputs[0], network.layers, 1
    if isinstance(network, LinearConvolutionalNetwork):
        k, d = first.shape[0], last.shape[0]
        matrix = x[(jnp.arange(k)[:, None] + jnp.arange(d)[None, :]) % d]
    elif isinstance(network, LinearTensorNetwork):
        matrix = network.at(x)
    elif isinstance(network, DeepLinearNetwork | DeepMatrixSensing):
        matrix, width = x.reshape(first.shape[0], -1), first.shape[1]
    else:
        return None
    left, values, right = linalg.svd(matrix)
    # Rounding of the decomposition times the dimension.
    values = jnp.where(values > 400.0 * jnp.finfo(values.dtype).eps * values[0], values, 0.0)
    return _pairs(network, jnp.repeat(values, width)[None, :], (left, right.T))


class PairLimit(AbstractPrinted):
    r"""The limit of the pairs.

    - `dual`: ν; `coefficients`: β there; `missed`: $\max_i|A\rho-y|_i/\max_i|y_i|$.
    - `error`: a bound of the relative error of β to first order, $\||\partial_\nu\beta\,H^{+}|\,r+\epsilon_g\,
      |\beta|\|/\|\beta\|$ with $H=A\,\mathrm{diag}(\rho')A^\top$: r is $|A\rho-y|$ (its part in the range of H)
      plus its roundings $\epsilon_g|A|\rho'+\epsilon|y|$, $\epsilon_g=\epsilon(8+2\max_j|g_j|)$ the rounding of a
      component with exponent g, and |β| the coefficients of the absolute values of both layers. +inf where H is
      singular to rounding along a direction on which β depends, as for data that are nearly equal.
    """

    dual: Float[Array, " n"]
    coefficients: Float[Array, " d"]
    missed: Float[Array, ""]
    error: Float[Array, ""]


@checked()
def pair_limit(
    pairs: Pairs, network: AbstractLinearNetwork, targets: Float[Array, " n"], dual: Float[Array, " n"]
) -> PairLimit:
    r"""The root of $A\rho(\nu)=y$ by Newton's method from `dual`, such as `pairs.dual_of` of the end of a flow.

    **Arguments:** `network`: of the kind and shape that `pairs` was made of; `targets`: y.

    **Example:**

    ```python
    pairs = jf.theory.pairs_of(network, linear.inputs)
    found = jf.theory.pair_limit(pairs, network, linear.targets, jnp.zeros(2))
    assert jnp.allclose(linear.inputs @ found.coefficients, linear.targets)
    ```
    """

    def newton(_: Any, dual: Array) -> Array:
        move = _pseudo(pairs, dual)[0] @ (targets - pairs.outputs(dual))
        size = jnp.max(jnp.abs(pairs.rows.T @ move))
        # More than a factor e in a component is no Newton step.
        return dual + move / jnp.maximum(size, 1.0)

    # From the end of a flow, which knows ν to some digits: quadratic, at rounding after three.
    dual = jax.lax.fori_loop(0, 8, newton, dual)
    return _judged(pairs, network, targets, dual)


@checked()
def datum_limit(pairs: Pairs, network: AbstractLinearNetwork, target: Float[Array, ""]) -> PairLimit:
    """Theorem 5 in closed form, from data and start alone: ν by bisection. **Arguments:** `pairs` of one datum.

    **Example:**

    ```python
    pairs = jf.theory.pairs_of(network, linear.inputs[:1])
    found = jf.theory.datum_limit(pairs, network, jnp.asarray(1.0))
    assert jnp.allclose(linear.inputs[0] @ found.coefficients, 1.0)
    ```
    """
    plus, minus = pairs.first + pairs.second, pairs.first - pairs.second
    return _judged(pairs, network, target[None], invert(pairs.rows[0], plus, minus, target)[None])


@checked()
def datum_direction(
    pairs: Pairs, network: AbstractLinearNetwork, target: Float[Array, ""]
) -> tuple[Float[Array, " d"], Bool[Array, ""]]:
    r"""Theorem 3: β at margin one along the top singular vectors of one datum, y = ±1, and whether others tie.

    Values that tie because of the network's form (one for each hidden unit) lead to the same β.

    **Example:**

    ```python
    pairs = jf.theory.pairs_of(network, linear.inputs[:1])
    direction, tied = jf.theory.datum_direction(pairs, network, jnp.asarray(1.0))
    ```
    """
    s = pairs.rows[0]
    top = jnp.argmax(jnp.abs(s))
    first = jax.nn.one_hot(top, s.shape[0], dtype=s.dtype)
    beta = with_layers(network, pairs.lift(first, target * jnp.sign(s[top]) * first)).linear_coefficients()
    ordered = jnp.sort(jnp.abs(s)[:: pairs.width])
    # A smaller gap than this separates only at ‖β‖ = e^(1/gap).
    tied = jnp.asarray(False) if ordered.size == 1 else ordered[-2] > (1.0 - 10.0 * ROUNDED) * ordered[-1]
    # y x^T β = |s_top| for unit vectors.
    return beta / positive_or_one(jnp.abs(s[top])), tied


def _judged(pairs: Pairs, network: AbstractLinearNetwork, targets: Array, dual: Array) -> PairLimit:
    def coefficients(dual: Array) -> Array:
        return with_layers(network, pairs.layers(dual)).linear_coefficients()

    eps = float(jnp.finfo(dual.dtype).eps)
    beta = coefficients(dual)
    slopes, (inverse, dropped) = pairs.slopes(dual), _pseudo(pairs, dual)
    off = pairs.outputs(dual) - targets
    # What lies outside of the range of H no flow removes: the end is then a least squares solution.
    weighted = (pairs.rows * slopes[None, :]) @ pairs.rows.T
    seen = jnp.abs(weighted @ (inverse @ off))
    rounding = eps * (ROUNDINGS + 2.0 * jnp.max(jnp.abs(pairs.rows.T @ dual)))
    left = seen + rounding * (jnp.abs(pairs.rows) @ slopes) + eps * jnp.abs(targets)
    jacobian = jax.jacfwd(coefficients)(dual)
    sensitive = jnp.abs(jacobian @ inverse)
    layers = pairs.layers(dual)
    sizes = [pairs.spread(end) + pairs.spread(start) for end, start in zip(layers, pairs.base, strict=True)]
    error = sensitive @ left + rounding * with_layers(_absolute(network), sizes).linear_coefficients()
    size = jnp.linalg.norm(beta)
    relative = jnp.linalg.norm(error) / positive_or_one(size)
    # A direction of ν that rounding hides from H must be one that β does not see (data that repeat each other): of data
    # that nearly do, the residual says nothing along it, and neither does this bound.
    unseen = jnp.max(jnp.linalg.norm(jacobian @ dropped, axis=0)) <= HIDDEN * eps * jnp.linalg.norm(jacobian)
    known = jnp.isfinite(relative) & (size > 0) & unseen
    missed = jnp.max(jnp.abs(off)) / positive_or_one(jnp.max(jnp.abs(targets)))
    return PairLimit(dual, beta, missed, jnp.where(known, relative, jnp.inf))


def _pseudo(pairs: Pairs, dual: Array) -> tuple[Float[Array, "n n"], Float[Array, "n n"]]:
    r"""$H^+$, scaled to a unit diagonal, and as columns of length one the directions that it drops (zero elsewhere);
    NaN where H has any, without asking LAPACK."""
    matrix = (pairs.rows * pairs.slopes(dual)[None, :]) @ pairs.rows.T
    finite = jnp.all(jnp.isfinite(matrix))
    count = matrix.shape[0]
    matrix = jnp.where(finite, matrix, jnp.eye(count, dtype=matrix.dtype))
    root = jnp.sqrt(positive_or_one(jnp.diagonal(matrix)))
    values, vectors = linalg.eigh(matrix / root[:, None] / root[None, :])
    # Roundings of the product that makes H.
    null = values <= 10.0 * count * float(jnp.finfo(matrix.dtype).eps) * values[-1]
    inverse = jnp.where(null, 0.0, 1.0 / jnp.where(null, 1.0, values))
    dropped = vectors / root[:, None]
    dropped = jnp.where(null[None, :], dropped / jnp.linalg.norm(dropped, axis=0, keepdims=True), 0.0)
    both = (vectors * inverse[None, :]) @ vectors.T / root[:, None] / root[None, :], dropped
    return jnp.where(finite, both[0], jnp.nan), jnp.where(finite, both[1], jnp.nan)


def _pairs(network: AbstractLinearNetwork, rows: Array, factors: Any) -> Pairs | None:
    if rows.shape[0] > rows.shape[1]:
        return None
    return Pairs(rows, *_split(factors, network.layers), (network.layers[0], network.layers[1]), factors)


def _split(factors: tuple[Array, ...] | None, layers: tuple[Array, ...]) -> tuple[Array, Array]:
    first, second = layers
    if factors is None:
        return first, second
    left, right = factors
    a, b = left.T @ first.reshape(left.shape[0], -1), right.T @ second.reshape(-1, right.shape[0]).T
    return a.reshape(-1), b.reshape(-1)


def _absolute(network: AbstractLinearNetwork) -> AbstractLinearNetwork:
    if not isinstance(network, LinearTensorNetwork):
        return network
    return eqx.tree_at(lambda n: n.data_tensor, network, jnp.abs(network.data_tensor))


class DataSingular(AbstractPrinted):
    r"""$\mathsf M(x)=U_1\mathrm{diag}(s)U_2^\top$ with s > 0 decreasing; `left` $U_1$, `values` s, `right` $U_2$."""

    left: Float[Array, "k1 m"]
    values: Float[Array, " m"]
    right: Float[Array, "k2 m"]


def data_singular(network: AbstractLinearNetwork, x: Float[Array, " d"]) -> tuple[LinearTensorNetwork, DataSingular]:
    """The network in tensor form and the singular value decomposition of its data tensor at x. L = 2."""
    tensor = as_tensor_network(network)
    require(tensor.depth == 2, "network", f"expected two layers, got {tensor.depth}")
    left, values, right = linalg.svd(tensor.at(x))
    return tensor, DataSingular(left, values, right.T)


def invert(s: Float[Array, " m"], plus: Float[Array, " m"], minus: Float[Array, " m"], y: Array) -> Float[Array, ""]:
    r"""ν with $\tfrac14\sum_js_j[p_j^2e^{2s_j\nu}-m_j^2e^{-2s_j\nu}]=y$, p = a + b and m = a − b, s of any signs.

    By bisection; the left side is increasing. Source: $g^{-1}$ of Theorem 5.
    """

    def g(nu: Array) -> Array:
        return jnp.sum(0.25 * s * (plus**2 * jnp.exp(2 * s * nu) - minus**2 * jnp.exp(-2 * s * nu))) - y

    # Exponents up to 700: beyond, the start is below 1e-150 of the target.
    widest = 350.0 / jnp.max(jnp.abs(s))

    def halve(_: Any, ends: tuple) -> tuple:
        low, high = ends
        middle = 0.5 * (low + high)
        above = g(middle) > 0
        return jnp.where(above, low, middle), jnp.where(above, middle, high)

    # To the roundings of a ν that is 1e-20 of the widest.
    low, high = jax.lax.fori_loop(0, 120, halve, (-widest, widest))
    return 0.5 * (low + high)

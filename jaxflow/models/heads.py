r"""Prediction heads $h:\mathbb R^d\to\mathbb R$ that follow the attention layer.

Any function or callable module is a head; an array of shape `(d,)` means `LinearHead`, a tuple or list a head for each
output position.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from jaxflow._core import AbstractPrinted, as_array, as_matrix, as_vector, checked, positive_or_one, require
from jaxflow._core.kinks import gated
from jaxflow.data import TokenData


def arrays_and_rest(name: str, tree: Any) -> tuple[PyTree, PyTree]:
    """The arrays of a tree, those of NumPy as JAX's, and the rest. **Raises:** `ValueError` where that has no hash."""
    arrays = jax.tree.map(lambda x: jnp.asarray(x) if isinstance(x, np.ndarray) else x, tree)
    params, rest = eqx.partition(arrays, eqx.is_array)
    hashable = all(getattr(leaf, "__hash__", None) is not None for leaf in jax.tree.leaves(rest))
    require(hashable, name, f"what is no array in {rest!r} must be hashable")
    return params, rest


class FunctionHead(AbstractPrinted):
    r"""A callable $h:\mathbb R^d\to\mathbb R$ as a pytree of arrays.

    Arrays of the callable (the weights of a module) are `params`; everything else, including a plain function itself
    and activation functions, is `rest`, fixed when a program is compiled. Models with such a head can be mapped over,
    stacked and indexed like any other.

    **Raises:** `ValueError` naming `head` where a fixed part has no hash (for example a list of arrays in a static
    field).
    """

    params: PyTree
    rest: PyTree = eqx.field(static=True)

    def __init__(self, function: Any):
        require(callable(function), "head", "expected a function of a token", got=function)
        self.params, self.rest = arrays_and_rest("head", function)

    @property
    def function(self) -> Any:
        """The callable."""
        return eqx.combine(self.params, self.rest)

    def __call__(self, x: Float[Array, " d"]) -> Float[Array, ""]:
        return self.function(x)


class LinearHead(AbstractPrinted):
    r"""$h(x) = v^\top x$, with `v` of shape `(d,)`. Tarzanagh et al. (2023) §2, Sheen et al. (2024) §3.1."""

    v: Float[Array, " d"] = eqx.field(converter=partial(as_vector, "v"))

    def __call__(self, x: Float[Array, " d"]) -> Float[Array, ""]:
        return jnp.dot(self.v, x)


class MLPHead(AbstractPrinted):
    r"""$h(x) = \mathbf 1^\top\mathrm{ReLU}(Vx)$, with `V` of shape `(r, d)`. Tarzanagh et al. (2023) §6.

    The gradient is piecewise constant: it jumps across the kinks and vanishes where all units are off. The flow slides
    along kinks, where a smooth integrator steps back and forth: `jaxflow.Filippov` follows it, `jaxflow.find_limit`
    reports it.
    """

    V: Float[Array, "r d"] = eqx.field(converter=partial(as_matrix, "V"))

    def __call__(self, x: Float[Array, " d"]) -> Float[Array, ""]:
        return jnp.sum(jax.nn.relu(self.V @ x))

    def kinks(self, x: Float[Array, " d"]) -> Float[Array, " r"]:
        r"""$V_jx/(\|V_j\|\|x\|)$: signed distances from the kinks, relative to sizes."""
        size = jnp.linalg.norm(self.V, axis=-1) * jnp.linalg.norm(x)
        return (self.V @ x) / positive_or_one(size)


class ConcaveHead(AbstractPrinted):
    r"""$h(x) = v^\top x-\lambda\|x\|^2$. Tarzanagh et al. (2023) §6 (Lemma 6, Figs. 9 and 12)."""

    v: Float[Array, " d"]
    lam: Float[Array, ""]

    def __init__(self, v: Any, lam: Any):
        self.v = as_vector("v", v)
        self.lam = as_array("lam", lam).astype(self.v.dtype)

    def __call__(self, x: Float[Array, " d"]) -> Float[Array, ""]:
        return jnp.dot(self.v, x) - self.lam * jnp.dot(x, x)


Head = Callable[[Float[Array, " d"]], Float[Array, ""]]


class PositionHeads(AbstractPrinted):
    r"""A head for each output position, $(h_k)_{k=1}^K$. Tarzanagh et al. (2023), App. D.

    **Arguments:** `heads`: K heads (anything that is a head by itself), or an array `(K, d)` of linear ones.

    As a function it maps K points `(K, d)` to `(K,)`.
    """

    heads: tuple[Head, ...]

    def __init__(self, heads: Any):
        listed = isinstance(heads, tuple | list) or getattr(heads, "ndim", 0) >= 2
        require(listed, "heads", "expected a head for each output position", got=heads)
        self.heads = tuple(as_head(head) for head in heads)

    def __check_init__(self) -> None:
        require(len(self.heads) > 0, "head", "expected a head for each output position, got none")
        nested = any(isinstance(head, PositionHeads) for head in self.heads)
        require(not nested, "head", "a position has one head, not several")

    def __call__(self, x: Float[Array, "K d"]) -> Float[Array, " K"]:
        return jnp.stack([head(x[k]) for k, head in enumerate(self.heads)])


def as_head(head: Any) -> Head:
    """A head from the argument of a caller.

    A callable whose leaves are arrays stays as it is, any other becomes a `FunctionHead`; a tuple or list of heads
    becomes `PositionHeads`; an array `(d,)`, or a list of numbers, becomes a `LinearHead`.

    **Raises:** `ValueError` naming `head`.
    """
    if isinstance(head, tuple | list) and not _numbers(head):
        return cast(Head, PositionHeads(head))
    if callable(head):
        plain = isinstance(head, eqx.Module) and all(eqx.is_array(leaf) for leaf in jax.tree.leaves(head))
        return cast(Head, head if plain else FunctionHead(head))
    array = as_array("head", head)
    require(array.ndim >= 1, "head", "expected a callable or an array of shape (d,)")
    return LinearHead(array)


def _numbers(parts: Any) -> bool:
    return len(parts) > 0 and all(
        isinstance(x, float | int) or (eqx.is_array_like(x) and jnp.ndim(x) == 0) for x in parts
    )


class GatedHead(AbstractPrinted):
    r"""A head at all outputs together, with the gates of its kinks `(g,)` given (`jaxflow._core.kinks`).

    One piece of a piecewise smooth head, or on a kink a convex combination of the neighbouring pieces: `head_outputs`
    and `head_gradients` are those of that piece.
    """

    head: Any
    gates: Float[Array, " g"]

    def __call__(self, points: Float[Array, "*n d"]) -> Float[Array, "*n"]:
        return gated(lambda x: head_outputs(self.head, x), points, self.gates).value


@checked()
def head_outputs(head: Any, points: Float[Array, "*n d"]) -> Float[Array, "*n"]:
    r"""$h(x_i)$, or $h_k(x_{ik})$, at one point for each output."""
    if isinstance(head, GatedHead):
        return head(points)
    return _each_output(head, points, lambda h: h)


@checked()
def head_gradients(head: Any, points: Float[Array, "*n d"]) -> Float[Array, "*n d"]:
    r"""$\nabla h(x_i)$, or $\nabla h_k(x_{ik})$, at one point for each output."""
    if isinstance(head, GatedHead):
        # An output knows no point but its own.
        return jax.grad(lambda x: jnp.sum(head(x)))(points)
    return _each_output(head, points, jax.grad)


def _each_output(head: Any, points: Float[Array, "*n d"], turn: Callable[[Head], Any]) -> Float[Array, "..."]:
    if isinstance(head, PositionHeads):
        return jnp.stack([jax.vmap(turn(h))(points[:, k]) for k, h in enumerate(head.heads)], axis=1)
    one: Any = head if callable(head) else as_head(head)
    function = turn(one)
    for _ in range(points.ndim - 1):
        function = jax.vmap(function)
    return function(points)


@checked()
def token_scores(data: TokenData, head: Any) -> Float[Array, "*n T"]:
    r"""Token scores $\gamma_{it}=Y_i\,h(x_{it})$ (Definition 1 of Tarzanagh et al. 2023).

    With several outputs a sequence $\gamma_{ikt}=Y_{ik}\,h_k(x_{it})$ (Definition 4); hidden tokens have scores too,
    and `data.visible` marks the tokens that count.

    **Returns:** `(n, T)`, or `(n, k, T)` for k outputs per sequence.
    """
    head = as_head(head)
    check_head(head, data)
    if isinstance(head, PositionHeads):
        values = jnp.stack([jax.vmap(jax.vmap(h))(data.tokens) for h in head.heads], axis=1)
    else:
        values = jax.vmap(jax.vmap(head))(data.tokens)
        values = values if data.single_query else values[:, None, :]
    return data.labels[..., None] * values


def is_linear(head: Any) -> bool:
    """Whether the head, or that of every position, is a `LinearHead`."""
    heads = head.heads if isinstance(head, PositionHeads) else (head,)
    return all(isinstance(h, LinearHead) for h in heads)


def check_head(head: Any, data: TokenData) -> None:
    """Compares a head with the data.

    **Raises:** `ValueError` naming `head` unless it (or that of every position) maps `(d,)` to a number, and
    there are as many heads as positions.
    """
    if isinstance(head, PositionHeads):
        outputs = 1 if data.single_query else data.labels.shape[-1]
        require(
            not data.single_query and outputs == len(head.heads),
            "head",
            f"{len(head.heads)} heads for {outputs} outputs a sequence",
        )
    token = jax.ShapeDtypeStruct(data.tokens.shape[-1:], data.tokens.dtype)
    for h in head.heads if isinstance(head, PositionHeads) else (head,):
        if isinstance(h, LinearHead) and jnp.shape(h.v) == token.shape:
            continue  # a product of two vectors, without a trace
        try:
            shape = eqx.filter_eval_shape(h, token).shape
        except TypeError as error:
            raise ValueError(f"head: does not accept a token of shape {token.shape} ({error})") from error
        require(shape == (), "head", f"expected a number for a token of shape {token.shape}, got shape {shape}")

"""What a batch on CPU does one lane after the other.

Under `vmap` a loop goes on until its slowest lane has ended, and every lane pays for every iteration, those of the
loops within it too. A core of a CPU gains nothing by doing them together: 8 limit directions of convolutional networks
(three layers, 157 to 4,096 steps) took 51 s side by side, and 4 s one after the other.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar, cast

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import custom_vmap
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

from jaxflow._core.checks import is_concrete

P = ParamSpec("P")
R = TypeVar("R")


def one_lane_at_a_time(function: Callable[P, R]) -> Callable[P, R]:
    """A function of which `vmap` makes a loop over its lanes on CPU, and on every other device what it always makes.

    For functions with loops whose lengths differ from lane to lane. Arguments and results are of any structure. The
    answers of a lane are those that it has alone, whatever its neighbours are. Concrete arguments change nothing.
    Forward-mode derivatives pass through; reverse mode does not (JAX has none for a rule of its own under `vmap`).
    """

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if is_concrete(args, kwargs, jnp.zeros(())):
            return function(*args, **kwargs)
        # Python is traced once for the places of a program that want it: alone, looped, and side by side. What the
        # function closes over comes out as constants, which the batching rule needs as arguments. (Equinox's own
        # `filter_closure_convert` refuses to be called inside `shard_map`, where types carry the mesh.)
        dynamic, static = eqx.partition((args, kwargs), eqx.is_array)
        leaves, tree = jax.tree.flatten(dynamic)

        def flat(*leaves: Any) -> Any:
            args, kwargs = eqx.combine(jax.tree.unflatten(tree, leaves), static)
            return cast(Any, function)(*args, **kwargs)

        jaxpr, shapes, rest = eqx.filter_make_jaxpr(flat)(*leaves)
        number = len(jaxpr.consts)

        def arrays(*given: Any) -> Any:
            closed = ClosedJaxpr(jaxpr.jaxpr, list(given[:number]))
            return jax.tree.unflatten(jax.tree.structure(shapes), jaxpr_as_fun(closed)(*given[number:]))

        return eqx.combine(looped_on_cpu(arrays)(*jaxpr.consts, *leaves), rest)

    return call


def looped_on_cpu(function: Callable[..., Any], width: Callable[..., int | None] | None = None) -> Callable[..., Any]:
    """`one_lane_at_a_time` for arrays in, and a tree of arrays out.

    `width`: how many lanes of the stacked arrays go together on CPU; one (None) unless it is given.
    """

    @custom_vmap
    def stacked(*stacks: Any) -> Any:
        def looped(*stacks: Any) -> Any:
            few = None if width is None else width(*stacks)
            return lax.map(lambda slices: function(*slices), stacks, batch_size=few)

        return lax.platform_dependent(*stacks, cpu=looped, default=jax.vmap(function))

    @stacked.def_vmap
    def _(axis_size: int, in_batched: list[bool], *stacks: Any) -> Any:
        # Two axes of a batch are one longer one.
        filled = _filled(axis_size, in_batched, stacks)
        out = stacked(*(x.reshape(-1, *x.shape[2:]) for x in filled))
        out = jax.tree.map(lambda x: x.reshape(axis_size, -1, *x.shape[1:]), out)
        return out, jax.tree.map(lambda _: True, out)

    single = custom_vmap(function)

    @single.def_vmap
    def _(axis_size: int, in_batched: list[bool], *leaves: Any) -> Any:
        out = stacked(*_filled(axis_size, in_batched, leaves))
        return out, jax.tree.map(lambda _: True, out)

    return single


def _filled(axis_size: int, in_batched: list[bool], arrays: tuple[Any, ...]) -> list[Any]:
    """The arrays (of NumPy too) with a leading axis of the batch, repeated where they have none."""
    return [
        x if mapped else jnp.broadcast_to(x, (axis_size, *x.shape))
        for x, mapped in zip(arrays, in_batched, strict=True)
    ]

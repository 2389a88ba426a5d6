r"""Kinks of any function: where it is not smooth, and its pieces there.

ReLU, absolute values, maxima, minima and choices by a comparison are the kinks of the networks in use. Read off the
function's jaxpr, each is a *switch* z, a *gate* c, and an output of $\text{low}+c(\text{high}-\text{low})$ (of a
maximum of a and b: low = b, high = a, $z=a-b$). Away from its kink a gate is one where z > 0 and zero where z < 0. On
it, z = 0, any c in [0, 1] gives the same value, and the derivatives at fixed gates run through the convex combinations
of the neighbouring pieces'. They contain Clarke's subdifferential; for a network with one hidden layer they are it (for
deeper ones the set may be larger: a conservative field, Bolte and Pauwels 2020).

What a loop (`scan`, `while_loop`, `cond`) computes is taken as it is, and so is the largest of many (`reduce_max`).
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core
from jaxtyping import Array, Float

# Comparisons: the order of the operands in which the switch is positive where the comparison holds.
_COMPARISONS = {"gt": 1.0, "ge": 1.0, "lt": -1.0, "le": -1.0}
# What joins them, and the switch of what is joined.
_JOINED: dict[str, Callable[..., Array]] = {"not": jnp.negative, "and": jnp.minimum, "or": jnp.maximum}
# What a function with a derivative of its own may be made of if it is piecewise linear, as ReLU is. Others (softplus,
# logaddexp) hide a maximum in something smooth and are left alone.
_LINEAR = {
    *("max", "min", "abs", "neg", "add", "sub", "mul", "select_n", "convert_element_type", "broadcast_in_dim"),
    *("jit", "pjit", "reshape", "squeeze", "copy", *_COMPARISONS),
}
# What moves the entries of an array and no number. `vmap` puts such operations between a comparison and its choice.
_REARRANGED = {"transpose", "reshape", "broadcast_in_dim", "squeeze", "slice", "rev", "copy"}
# What no derivative passes through. A kink whose value goes on through these alone, as the largest entry that softmax
# subtracts does, is none.
_CONSTANT = {"stop_gradient", "sign", "floor", "ceil", "round"}


class Gated(NamedTuple):
    """The value of a function, its switches `(g,)`, the gates that were used, and what each kink jumps by from its low
    side to its high one, zero on it: a multiple of the switch close to it, which a derivative along any direction
    tells."""

    value: Any
    switches: Float[Array, " g"]
    gates: Float[Array, " g"]
    jumps: Float[Array, " g"]


class _Choice(NamedTuple):
    """A Boolean that compares numbers: true where the switch is positive."""

    holds: Array
    switch: Array

    @staticmethod
    def of(value: Any) -> "_Choice":
        """A Boolean that compares nothing has no kink: its switch is infinite."""
        return value if isinstance(value, _Choice) else _Choice(value, jnp.where(value, jnp.inf, -jnp.inf))


class _Kinks:
    """Hands out gates in the order in which kinks are met, and collects their switches."""

    def __init__(self, gates: Array | None, offsets: Array | None):
        self.gates, self.offsets = gates, offsets
        self.switches: list[Array] = []
        self.used: list[Array] = []
        self.jumps: list[Array] = []
        self.count = 0

    def combine(self, low: Array, high: Array, switch: Array) -> Array:
        """low where the gate is zero, high where it is one, between them on the kink."""
        size, start = switch.size, self.count
        self.count += size
        if self.gates is None:
            gate = jax.lax.stop_gradient(switch > 0).astype(switch.dtype)
        else:
            gate = self.gates[start : start + size].reshape(switch.shape)
        self.switches.append(switch.reshape(-1))
        self.used.append(gate.reshape(-1))
        self.jumps.append((high - low).reshape(-1))
        # Zero where the other piece counts alone: it may be infinite there, and its derivative then NaN.
        out = (1.0 - gate) * jnp.where(gate == 1.0, 0.0, low) + gate * jnp.where(gate == 0.0, 0.0, high)
        return out if self.offsets is None else out + self.offsets[start : start + size].reshape(switch.shape)


def gated(function: Callable[[Any], Any], x: Any, gates: Any = None, offsets: Any = None) -> Gated:
    """`function(x)` with the gates of its kinks given; None: those that x itself has.

    **Arguments:** `gates` `(g,)`, each in [0, 1]; `offsets` `(g,)` are added to the kinks' outputs: derivatives by them
    say what each is worth.
    """
    closed, shape = jax.make_jaxpr(function, return_shape=True)(x)
    kinks = _Kinks(gates, offsets)
    leaves, passed = jax.tree.leaves(x), _passed(closed.jaxpr, closed.jaxpr.outvars)
    out = _run(closed.jaxpr, closed.consts, leaves, [True] * len(leaves), kinks, passed)[0]
    empty = jnp.zeros(0)
    return Gated(
        jax.tree.unflatten(jax.tree.structure(shape), [_plain(value) for value in out]),
        jnp.concatenate([empty, *kinks.switches]),
        jnp.concatenate([empty, *kinks.used]),
        jnp.concatenate([empty, *kinks.jumps]),
    )


def _plain(value: Any) -> Any:
    return value.holds if isinstance(value, _Choice) else value


def _passed(jaxpr: Any, outputs: Any) -> set[Any]:
    """The variables of which derivatives reach one of the outputs."""
    passed = {variable for variable in outputs if not isinstance(variable, core.Literal)}
    for equation in reversed(jaxpr.eqns):
        name, operands = equation.primitive.name, equation.invars
        if passed.isdisjoint(equation.outvars) or name in _CONSTANT:
            continue
        inner = _inner(name, equation.params)
        if inner is not None:
            within = _within(inner, equation, passed)
            operands = [x for x, own in zip(operands, inner.jaxpr.invars, strict=True) if own in within]
        passed.update(x for x in operands if not isinstance(x, core.Literal))
    return passed


def _within(inner: Any, equation: Any, passed: set[Any]) -> set[Any]:
    """`_passed` of the jaxpr of an equation."""
    outputs = zip(inner.jaxpr.outvars, equation.outvars, strict=True)
    return _passed(inner.jaxpr, [own for own, variable in outputs if variable in passed])


def _run(
    jaxpr: Any, consts: Any, args: Any, moving: list[bool], kinks: _Kinks, passed: set[Any]
) -> tuple[list[Any], list[bool]]:
    """Values and whether they depend on the point and have `passed` on to an output; a kink of what does not is
    none."""
    known: dict[Any, tuple[Any, bool]] = {}
    for variable, value in zip(jaxpr.constvars, consts, strict=True):
        known[variable] = (value, False)
    for variable, value, moves in zip(jaxpr.invars, args, moving, strict=True):
        known[variable] = (value, moves)

    def read(atom: Any) -> tuple[Any, bool]:
        return (atom.val, False) if isinstance(atom, core.Literal) else known[atom]

    for equation in jaxpr.eqns:
        values, moves = zip(*map(read, equation.invars), strict=True) if equation.invars else ((), ())
        moves = [x and not passed.isdisjoint(equation.outvars) for x in moves]
        results, depend = _apply(equation, list(values), moves, kinks, passed)
        for variable, result, moves_too in zip(equation.outvars, results, depend, strict=True):
            known[variable] = (result, moves_too)
    found = [read(atom) for atom in jaxpr.outvars]
    return [value for value, _ in found], [moves for _, moves in found]


def _apply(
    equation: Any, values: list[Any], moves: list[bool], kinks: _Kinks, passed: set[Any]
) -> tuple[list[Any], list[bool]]:
    name, params = equation.primitive.name, equation.params
    moving = any(moves)
    inner = _inner(name, params)
    if inner is not None and moving:
        return _run(inner.jaxpr, inner.consts, values, moves, kinks, _within(inner, equation, passed))
    inexact = all(jnp.issubdtype(jnp.result_type(_plain(v)), jnp.inexact) for v in values)
    if moving and inexact and name in ("max", "min"):
        a, b = jnp.broadcast_arrays(*values)
        out = kinks.combine(b, a, a - b) if name == "max" else kinks.combine(a, b, a - b)
        return [out], [True]
    if moving and inexact and name == "abs":
        (a,) = values
        return [kinks.combine(-a, a, a)], [True]
    if name == "select_n" and len(values) == 3 and isinstance(values[0], _Choice) and moves[0]:
        low, high = (jnp.broadcast_to(v, values[0].switch.shape) for v in map(_plain, values[1:]))
        return [kinks.combine(low, high, values[0].switch)], [True]
    bind = partial(equation.primitive.bind, **equation.primitive.get_bind_params(params))
    if moving and any(isinstance(v, _Choice) for v in values):
        if name in _REARRANGED:
            return [_Choice(*map(bind, values[0]))], [True]
        if name in _JOINED:
            choices = [_Choice.of(v) for v in values]
            holds = bind(*(choice.holds for choice in choices))
            return [_Choice(holds, _JOINED[name](*(choice.switch for choice in choices)))], [True]
        if name == "convert_element_type" and jnp.issubdtype(params["new_dtype"], jnp.bool_):
            return [values[0]], [True]
        if name == "convert_element_type" and jnp.issubdtype(params["new_dtype"], jnp.inexact):
            zero, one = (jnp.full(values[0].switch.shape, x, params["new_dtype"]) for x in (0.0, 1.0))
            return [kinks.combine(zero, one, values[0].switch)], [True]
    values = [_plain(v) for v in values]
    out = bind(*values)
    out = list(out) if equation.primitive.multiple_results else [out]
    if moving and inexact and name in _COMPARISONS:
        return [_Choice(out[0], _COMPARISONS[name] * (values[0] - values[1]))], [True]
    return out, [moving and name not in _CONSTANT for _ in out]


def _inner(name: str, params: dict[str, Any]) -> Any:
    """The jaxpr to look into, or None for what is taken as it is."""
    if name in ("jit", "pjit"):
        return params["jaxpr"]
    if name == "custom_jvp_call" and _primitives(params["call_jaxpr"].jaxpr) <= _LINEAR:
        # softplus and its like have no exponential in this set; ReLU, ReLU6 and leaky ReLU are in it.
        return params["call_jaxpr"]
    return None


def _primitives(jaxpr: Any) -> set[str]:
    found = set()
    for equation in jaxpr.eqns:
        found.add(equation.primitive.name)
        for inner in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns")):
            inner = getattr(inner, "jaxpr", inner)
            if hasattr(inner, "eqns"):
                found |= _primitives(inner)
    return found


def kink_count(function: Callable[[Any], Any], x: Any) -> int:
    """How many kinks a function has, whether x is near them or not."""
    return int(np.prod(jax.eval_shape(lambda y: gated(function, y).switches, x).shape))

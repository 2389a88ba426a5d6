"""Whether a function is affine, read off its program and not off some of its values."""

from collections.abc import Callable
from typing import Any

import jax
from jax.extend import core
from jaxtyping import Array, Float


def is_affine(function: Callable[[Float[Array, " p"]], Array], x: Float[Array, " p"]) -> bool:
    r"""Whether the derivative $\partial f(x)v$ does not depend on x, as its jaxpr shows: $f(x)=f(0)+Ax$.

    The answer is the same under every transformation, and true is a proof. False is none: loops are not looked into,
    and a dependence that cancels is not seen.
    """
    closed = jax.make_jaxpr(lambda x, v: jax.jvp(function, (x,), (v,))[1])(x, x)
    return not any(_depend(closed.jaxpr, [True, False]))


def _depend(jaxpr: Any, inputs: list[bool]) -> list[bool]:
    """Which outputs of a jaxpr depend on the inputs that are marked."""
    marked = {variable for variable, mark in zip(jaxpr.invars, inputs, strict=True) if mark}

    def depends(atom: Any) -> bool:
        return not isinstance(atom, core.Literal) and atom in marked

    for equation in jaxpr.eqns:
        given = [depends(atom) for atom in equation.invars]
        if not any(given):
            continue
        inner = equation.params.get("jaxpr") if equation.primitive.name in ("jit", "pjit") else None
        found = [True] * len(equation.outvars) if inner is None else _depend(inner.jaxpr, given)
        marked |= {variable for variable, mark in zip(equation.outvars, found, strict=True) if mark}
    return [depends(atom) for atom in jaxpr.outvars]

"""Explicit steps whose stages stand one after the other, and whose last gradient is kept (floor 6)."""

from typing import Any, ClassVar

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from jaxflow._core import ScaledGradient, check_kind, require
from jaxflow.flow.system import System


class Carried(eqx.Module):
    """What goes on from step to step: the rate of the whole state where the last step ended, and the gradient there."""

    rate: PyTree
    scaled: ScaledGradient


class Unrolled(diffrax.AbstractSolver):
    r"""A method of Diffrax whose last stage is the first of the next step (`Tsit5`), for many small lanes.

    The same steps up to rounding, for two thirds of the time (8 lanes of attention, n = T = 5, on a CPU). Diffrax loops
    over the stages: that is half of what a small lane is compiled to, and longer to run, since each stage is written
    to an array and read from it. Stopping rules look at the gradient at the end of a step, which its last stage
    has found: here they are handed that one.

    **Arguments:** `method`: an explicit method with the property that its last stage is the first of the next step.

    **Example:**

    ```python
    jf.integrate(risk, model, clock="arc_length", until=1.0, solver=jf.flow.Unrolled())
    ```
    """

    method: diffrax.AbstractERK = diffrax.Tsit5()
    term_structure: ClassVar[Any] = diffrax.AbstractTerm
    interpolation_cls: ClassVar[Any] = diffrax.Tsit5.interpolation_cls

    def __check_init__(self) -> None:
        check_kind("method", self.method, diffrax.Tsit5, "Tsit5 of Diffrax")

    def order(self, terms: Any) -> int | None:
        return self.method.order(terms)

    def func(self, terms: Any, t0: Any, y0: PyTree, args: Any) -> PyTree:
        return terms.vf(t0, y0, args)

    def init(self, terms: Any, t0: Any, t1: Any, y0: PyTree, args: Any) -> Carried:
        return Carried(*_system_of(terms).flow(t0, y0))

    def step(
        self, terms: Any, t0: Any, t1: Any, y0: PyTree, args: Any, solver_state: Carried, made_jump: Any
    ) -> tuple[PyTree, PyTree, Any, Carried, Any]:
        system, tableau, h = _system_of(terms), self.method.tableau, t1 - t0
        rates, scaled, y = [solver_state.rate], solver_state.scaled, y0
        for row, node in zip(tableau.a_lower, tableau.c, strict=True):
            y = _moved(y0, h, row, rates)
            rate, scaled = system.flow(t0 + node * h, y)
            rates.append(rate)
        error = jax.tree.map(lambda y, *k: h * _sum(tableau.b_error, k), y0, *rates)
        stages = jax.tree.map(lambda *k: h * jnp.stack(k), *rates)
        # The last stage is the end of the step.
        return y, error, dict(y0=y0, y1=y, k=stages), Carried(rates[-1], scaled), diffrax.RESULTS.successful

    def scaled_gradient(self, system: System, s: Array, extended: PyTree, solver_state: Carried) -> ScaledGradient:
        """The gradient in the coordinates where the last step ended."""
        return solver_state.scaled


def _sum(weights: np.ndarray, terms: Any) -> Array:
    found = [float(w) * k for w, k in zip(weights, terms, strict=True) if w != 0]
    require(len(found) > 0, "method", "expected a stage with weights")
    return sum(found[1:], found[0])


def _moved(y0: PyTree, h: Array, weights: np.ndarray, rates: list[PyTree]) -> PyTree:
    return jax.tree.map(lambda y, *k: y + h * _sum(weights, k), y0, *rates)


def _system_of(terms: Any) -> System:
    # `diffeqsolve` wraps the term that it is given.
    term = getattr(terms, "term", terms)
    system = getattr(getattr(term, "vector_field", None), "__self__", None)
    if not isinstance(system, System):
        raise ValueError("solver: Unrolled belongs to `integrate` and to `Drive`")
    return system

"""The steps of gears: the first one, the controllers of explicit and implicit ones, and an implicit method."""

from collections.abc import Callable
from functools import partial
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from jaxflow._core import linalg, positive_or_one, tree_norm
from jaxflow.flow.solvers import state_norm
from jaxflow.limits.stages import Positive

# Steps of implicit methods: of linear networks in all, and of any budget for a caller's own model, for which one costs
# as much as some fifty explicit ones and more.
IMPLICIT_STEPS = 4096
# The share of a budget, one over this number, of a stretch that may come to nothing, or not arrive. Explicit steps of a
# network that have not arrived by then are on barely separable data or at a saddle, which takes 160 to 440 steps.
# Multipliers take 10 to 120 steps, and up to 300 where tokens that pull away take over far out, one after the other.
SHARE = 4
# Less sensitive than Diffrax's default, as its documentation suggests for stiff problems.
implicit_control = partial(diffrax.PIDController, pcoeff=0.3, icoeff=0.4, norm=state_norm)


def share_of(steps: Int[Array, ""]) -> Int[Array, ""]:
    """One share of a budget, a step at least."""
    return jnp.maximum(steps // SHARE, 1)


def explicit_control(rtol: Positive) -> diffrax.AbstractStepSizeController:
    """The steps of an explicit method."""
    return _Seen(diffrax.PIDController(rtol=rtol, atol=1e-2 * rtol, norm=state_norm), _moved)


def relative_control(rtol: Positive) -> diffrax.AbstractStepSizeController:
    """Those of an implicit method whose absolute tolerance is one of a state of size one.

    Of weights in units of a clock's length: where pushes cancel the clock goes on and the weights stand. With 1e-8 of
    that length (1.8 for weights of 1,400) W at (20, 5, 4) left a saddle on the other side in three of eight runs from
    starts 1e-13 apart.
    """
    return _Seen(implicit_control(rtol=rtol, atol=1e-2 * rtol), _relative)


def _moved(state: Any, start: Any) -> tuple[Any, Any]:
    """Errors are relative to what an entry is, or to how far it has moved if that is less. Far out a token takes over
    within a length that is rounding beside the weights."""

    def smaller(y: Any) -> Any:
        return jax.tree.map(lambda y, y0: jnp.where(jnp.abs(y) < jnp.abs(y - y0), y, y - y0), y, start)

    return smaller, lambda error: error


def _relative(state: Any, start: Any) -> tuple[Any, Any]:
    """All in units of the size of the state."""
    size = positive_or_one(tree_norm(state[0]))

    def scaled(y: Any) -> Any:
        return jax.tree.map(lambda y: y / size, y)

    return scaled, scaled


class _Seen(diffrax.AbstractStepSizeController):
    """`steps` that see states and errors through two functions, which `look` makes of the state before a step and of
    the first one."""

    steps: diffrax.PIDController
    look: Callable[[Any, Any], tuple[Any, Any]] = eqx.field(static=True)

    def wrap(self, direction: Any) -> "_Seen":
        return _Seen(self.steps.wrap(direction), self.look)

    def init(self, terms: Any, t0: Any, t1: Any, y0: Any, *args: Any) -> tuple[Any, Any]:
        step, state = self.steps.init(terms, t0, t1, y0, *args)
        return step, (state, y0)

    def adapt_step_size(
        self,
        t0: Any,
        t1: Any,
        y0: Any,
        y1_candidate: Any,
        args: Any,
        y_error: Any,
        error_order: Any,
        controller_state: Any,
    ) -> tuple[Any, ...]:
        state, start = controller_state
        seen, erred = self.look(y0, start)
        *said, state, result = self.steps.adapt_step_size(
            t0, t1, seen(y0), seen(y1_candidate), args, erred(y_error), error_order, state
        )
        return *said, (state, start), result


def kvaerno(
    rtol: Positive, atol: Positive, finder: Callable[..., Any] = linalg.newton, iterations: int = 10
) -> diffrax.Kvaerno5:
    """Kvaerno5 with Newton's method to tolerances well below those of a step, or another root `finder`, and so many
    iterations of it at most."""
    root_finder = finder(rtol=rtol, atol=atol, norm=state_norm)
    return diffrax.Kvaerno5(root_finder=root_finder, root_find_max_steps=iterations)

r"""Stiffness, measured by an explicit method on its way.

Of a method whose last two stages lie at the end of the step, $y_6$ and $y_7$ with rates $f_6$ and $f_7$,

$$h\lambda\approx h\,\frac{\|f_7-f_6\|}{\|y_7-y_6\|}$$

estimates the step length times the largest rate λ of the field (Shampine 1977; Hairer and Wanner, *Solving Ordinary
Differential Equations II*, IV.2), and costs no evaluation. Where accuracy chooses the step, hλ is small. Where
stability does, it stays at the end of the real stability interval, and an implicit method takes longer steps.
"""

import functools
from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree

from jaxflow._core import positive_or_one, tree_norm
from jaxflow.flow.filippov import Filippov

# The share of the stability interval from which on a step counts as limited by stability. Steps of selection flows
# that accuracy limits stay below 0.6 of it; those at the limit go between 0.8 and 1.2 (40 instances, d = 2).
LIMITED = 0.75


def estimates_stiffness(solver: Any) -> bool:
    """Whether the solver is an explicit one whose last two stages lie at the end of the step (Tsit5, Dopri5)."""
    if not isinstance(solver, diffrax.AbstractERK):
        return False
    tableau: Any = solver.tableau
    return bool(tableau.fsal and tableau.num_stages > 2 and tableau.c[-2] == 1.0)


def at_stability_limit(solver: Any, step: dict[str, Any]) -> Bool[Array, ""]:
    """Whether a step was as long as stability allows; `step`: what the solver says of it for interpolation. False of a
    solver that estimates nothing. The bookkeeping of lengths and times beside the coordinates does not count."""
    if isinstance(solver, Filippov):
        # The last piece of the step.
        last = jnp.argmax(step["ends"])
        solver, step = solver.method, jax.tree.map(lambda x: x[last], step["dense"])
    if not estimates_stiffness(solver):
        return jnp.asarray(False)
    return stability_share(solver, step["k"][0]) >= LIMITED


def stability_share(solver: Any, stages: PyTree) -> Float[Array, ""]:
    r"""$h\lambda$ over the length of the real stability interval, from the stages $hf_i$ of a step `(stages, ...)`."""
    tableau: Any = solver.tableau
    before, last = np.asarray(tableau.a_lower[-2]), np.asarray(tableau.a_lower[-1])
    # y_7 - y_6 in terms of the stages before the last.
    weights = last.copy()
    weights[: before.size] -= before
    apart = jax.tree.map(lambda k: jnp.tensordot(weights, k[: weights.size], axes=1), stages)
    turned = jax.tree.map(lambda k: k[-1] - k[-2], stages)
    size = tree_norm(apart)
    ratio = tree_norm(turned) / positive_or_one(size)
    return jnp.where(size > 0, ratio, 0.0) / real_stability_interval(type(solver))


@functools.cache
def real_stability_interval(method: type) -> float:
    r"""The largest x such that $|R(-\xi)|\le1$ for $0\le\xi\le x$, with $R(z)=1+\sum_kz^kb^\top A^{k-1}\mathbb 1$."""
    tableau: Any = method.tableau  # pyright: ignore[reportAttributeAccessIssue]
    stages = tableau.num_stages
    A = np.zeros((stages, stages))
    for row, entries in enumerate(tableau.a_lower):
        A[row + 1, : len(entries)] = entries
    powers, vector = [1.0], np.ones(stages)
    for _ in range(stages):
        powers.append(float(np.asarray(tableau.b_sol) @ vector))
        vector = A @ vector
    # Bracketed to a thousandth: the estimate of λ itself is good to some tenths.
    x = 0.0
    while abs(np.polynomial.polynomial.polyval(-(x + 1e-3), powers)) <= 1.0:
        x += 1e-3
    return x

r"""Implicit steps whose stages are solved for the logarithms of the multipliers."""

from typing import Any, ClassVar

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optimistix
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int, PyTree

from jaxflow._core import ScaledGradient, checked, linalg, require, tree_norm, tree_scale
from jaxflow.flow.clocks import LogArcLength
from jaxflow.flow.coordinates.base import LOG_ZERO
from jaxflow.flow.margins import AbstractConstraints
from jaxflow.flow.system import System, system_of

# Newton's method ends where multipliers change by this share of their sum. It converges quadratically: what is left is
# the square of it.
CHANGE = 1e-4
# ... and where logarithms agree to it with those that the margins give, for multipliers above this share of the sum.
# (Without it 4 of 13 instances ended at gaps of 7e-4 to 6e-1 with nothing to show for it.)
MATTERS = 1e-9
# Rounding errors of the exponents that a residual is not asked to be below: this many, and as many for each unit of the
# multipliers, whose pushes cancel but for a length of one.
ROUNDINGS = 16.0
# A multiplier that stays below this share of the sum may grow by any factor in one iteration.
SMALL = 1e-3


class BackwardEuler(diffrax.AbstractESDIRK):
    """$y_1=y_0+hf(y_1)$ as a tableau with an explicit first stage: one stage a step, L-stable, of order one.

    Its error is estimated by half of $h(f(y_1)-f(y_0))$, the difference from the trapezoidal rule. For
    `MultiplierNewton` where only the limit is needed: the certificate at the end does not depend on how closely the
    path was followed. A long step may pass over a selection that the flow would leave again.
    """

    tableau: ClassVar[diffrax.ButcherTableau] = diffrax.ButcherTableau(
        a_lower=(np.array([0.0]),),
        a_diagonal=np.array([0.0, 1.0]),
        a_predictor=(np.array([1.0]),),
        b_sol=np.array([0.0, 1.0]),
        b_error=np.array([-0.5, 0.5]),
        c=np.array([1.0]),
    )
    interpolation_cls: ClassVar[Any] = diffrax.Kvaerno3.interpolation_cls

    root_finder: optimistix.AbstractRootFinder = diffrax.Kvaerno3().root_finder
    root_find_max_steps: int = 10

    def order(self, terms: Any) -> int:
        return 1


class StageState(eqx.Module):
    """What is passed from step to step: the rate $f=d-y$ at the end of the last step, and the multipliers there."""

    rate: PyTree
    log_multipliers: Float[Array, " N"]
    shift: Float[Array, ""]


class _Newton(eqx.Module):
    logs: Float[Array, " N"]
    shift: Float[Array, ""]
    state: PyTree
    settled: Bool[Array, ""]
    regular: Bool[Array, ""]
    count: Int[Array, ""]


@checked(positive=["change"], least={"max_iterations": 1})
class MultiplierNewton(diffrax.AbstractSolver):
    r"""An implicit method in `LogArcLength`, with stages solved for $\log\pi$ in place of the weights.

    In log arc length the state $y=x/\rho$ obeys $y'=d-y$ with the unit vector $d=S(\pi)y/\|S(\pi)y\|$, and multipliers
    $\log\pi_k=-\rho^Lq_k(y)+\dots$ that change by many orders within one step: Newton's method for y fails there, and
    only its failures limit the steps of Kvaerno5 (671 steps, a third of them failed, against 39 here). Given π, with
    $\kappa=\gamma h$ and π scaled to $\|S(\pi)y\|=1$, the stage $y=b+\kappa(d-y)$ is the linear system
    $((1+\kappa)I-\kappa S(\pi))y=b$. What is left are the unknowns $\ell=\log|\pi|$, one for each margin, and μ:

    $$\ell_k-\log|p_k|\big(q(\rho\,y(\ell))\big)-\mu=0,\qquad\log\|S(\pi)\,y(\ell)\|=0,$$

    whose Jacobian is $I+\kappa\rho^LC\,\mathrm{diag}(\pi)$ with C of `AbstractMargins.gram`. Steps are
    taken linearly in π, as S is: multipliers of equal margins, of which only the sum has an effect, would else change
    it by the square of their difference, times $\rho^L$. Where one falls to less than half its logarithm is. Beyond
    the clock's cap $\rho^L$ is constant in the exponents. Multipliers stay exact there, since they are part of the
    state and are not computed from exponents with rounding errors of $\rho^L\varepsilon$.

    For coordinates with constraints (`AbstractCoordinates.constraints`), saturated attention, and a clock
    `LogArcLength(timed=False)` without a floor. A step whose stages do not converge is rejected.

    **Arguments:** `method`: one of Diffrax's singly diagonal methods with an explicit first stage, whose tableau is
    used (`Kvaerno3()` has half of the stages, `BackwardEuler()` one); `change`: Newton's method ends where multipliers
    change by this share of their sum; `max_iterations`: of Newton's method for one stage.

    **Raises:** `ValueError` naming the argument, from the first step, for other clocks and coordinates.

    **Example:**

    ```python
    near = jf.integrate(risk, model, clock="arc_length", until=20.0)
    jf.integrate(
        risk,
        near.model,
        clock=jf.LogArcLength(unit=20.0, cap=1e6, timed=False),
        until=5.0,
        coordinates="scores",
        solver=jf.MultiplierNewton(),
    )
    ```
    """

    method: diffrax.AbstractImplicitSolver = diffrax.Kvaerno5()
    change: float = CHANGE
    max_iterations: int = 20
    term_structure: ClassVar[Any] = diffrax.AbstractTerm
    interpolation_cls: ClassVar[Any] = diffrax.Kvaerno5.interpolation_cls

    def order(self, terms: Any) -> int | None:
        return self.method.order(terms)

    def func(self, terms: Any, t0: Any, y0: PyTree, args: Any) -> PyTree:
        return terms.vf(t0, y0, args)

    def init(self, terms: Any, t0: Any, t1: Any, y0: PyTree, args: Any) -> StageState:
        system = _system(terms)
        constraints = constraints_at(system, t0, y0)
        state = y0[0]
        _, margins = _at(system, constraints, t0)
        # Nothing where there is no constraint, whatever the scale of the others.
        logs = jnp.where(constraints.signs != 0, constraints.log_multipliers(margins(state)), LOG_ZERO)
        largest = jnp.max(logs)
        g = constraints.margins.pull(constraints.signs * jnp.exp(logs - largest), state)
        size = tree_norm(g)
        rate = jax.tree.map(lambda g, y: g / size - y, g, state)
        shift = -largest - jnp.log(size)
        return StageState(rate, logs + shift, shift)

    def step(
        self, terms: Any, t0: Any, t1: Any, y0: PyTree, args: Any, solver_state: StageState, made_jump: Any
    ) -> tuple[PyTree, PyTree, Any, StageState, Any]:
        system = _system(terms)
        state, w, b = y0
        h = t1 - t0
        tableau: Any = self.method.tableau  # pyright: ignore[reportAttributeAccessIssue]
        stages = tableau.num_stages
        gamma = float(tableau.a_diagonal[-1])
        lower = jnp.zeros((stages, stages))
        for i, row in enumerate(tableau.a_lower):
            lower = lower.at[i + 1, : len(row)].set(row)
        nodes = jnp.concatenate([jnp.zeros(1), jnp.asarray(tableau.c)])
        constraints = constraints_at(system, t0, y0)

        first = tree_scale(h, solver_state.rate)
        rates = jax.tree.map(lambda k: jnp.zeros((stages, *k.shape), k.dtype).at[0].set(k), first)

        def stage(carry: Any, i: Array) -> tuple[Any, None]:
            rates, logs, shift, good = carry
            known = jnp.where(jnp.arange(stages) < i, lower[i], 0.0)
            base = jax.tree.map(lambda y, k: y + jnp.tensordot(known, k, axes=1), state, rates)
            found = self._solve(system, constraints, t0 + nodes[i] * h, gamma * h, base, logs, shift, good)
            rates = jax.tree.map(lambda k, u, b: k.at[i].set((u - b) / gamma), rates, found.state, base)
            return (rates, found.logs, found.shift, found.regular & found.settled), None

        start = (rates, solver_state.log_multipliers, solver_state.shift, jnp.asarray(True))
        (rates, logs, shift, good), _ = jax.lax.scan(stage, start, jnp.arange(1, stages))

        def weighted(weights: Any) -> PyTree:
            return jax.tree.map(lambda k: jnp.tensordot(jnp.asarray(weights), k, axes=1), rates)

        after = jax.tree.map(jnp.add, state, weighted(tableau.b_sol))
        # Multipliers belong to the tokens selected at the start of the step: none may be passed over.
        _, margins_at = _at(system, constraints, t1)
        good = good & jnp.all(jnp.where(constraints.keeps, margins_at(after) > 0, True))
        error = jax.tree.map(lambda e: jnp.where(good, e, jnp.inf), weighted(tableau.b_error))
        # Lengths grow like rho by the choice of the clock: b' = 1 - b.
        grown = b - jnp.expm1(-h) * (1.0 - b)
        y1 = (after, w, grown)
        y_error = (error, None if w is None else jnp.zeros_like(w), jnp.zeros_like(grown))
        # For the interpolation, which looks at the rates at the two ends.
        lengths = jnp.zeros((stages,), grown.dtype).at[0].set(h * (1.0 - b)).at[-1].set(h * (1.0 - grown))
        k = (rates, None if w is None else jnp.zeros((stages, *w.shape)), lengths)
        new = StageState(jax.tree.map(lambda k: k[-1] / h, rates), logs, shift)
        return y1, y_error, dict(y0=y0, y1=y1, k=k), new, diffrax.RESULTS.successful

    def scaled_gradient(self, system: System, s: Array, extended: PyTree, solver_state: StageState) -> ScaledGradient:
        """The gradient in the coordinates, with the multipliers that the last stage was solved for."""
        constraints = constraints_at(system, s, extended)
        y = extended[0]
        d = jax.tree.map(jnp.add, solver_state.rate, y)
        weights = constraints.signs * jnp.exp(solver_state.log_multipliers)
        rho, _, _ = system.scale(s)
        # S(π)y is of length one; the gradient is at ρy.
        grown = rho ** (constraints.margins.degree - 1)
        # log|p| = ℓ − μ.
        return ScaledGradient(-solver_state.shift, tree_scale(-grown, d), constraints.as_multipliers(weights))

    def certifies(
        self, system: System, s: Array, extended: PyTree, solver_state: StageState, gap: Any
    ) -> Bool[Array, ""]:
        r"""Whether the flow certifies its own direction to a relative duality gap, by the structure of the margins.

        The limit of a model of degree 2 solves $\min\tfrac12\|x\|^2$ s.t. $q_k(x)\ge1$; for λ ≥ 0 with
        $S(\lambda)\preceq I$ every feasible x has $\tfrac12\|x\|^2\ge\tfrac12x^\top S(\lambda)x\ge\sum_k\lambda_k$. The
        bound holds for all x, convex or not, and the largest eigenvalue of S is compared with $1+\delta$ by whether
        a Cholesky factor exists. (The nuclear norm is the least $\tfrac12(\|K\|^2+\|Q\|^2)$.) For affine margins it is
        $\|d\|\,\|A^\top\lambda\|/(\min_kA_kd\sum\lambda)$ with the velocity d, in each block of A.
        """
        constraints = constraints_at(system, s, extended)
        margins: Any = constraints.margins
        y = extended[0]
        weights = jnp.maximum(constraints.signs, 0.0) * jnp.exp(solver_state.log_multipliers)
        if margins.degree == 1:
            d = jax.tree.map(jnp.add, solver_state.rate, y)
            slopes = jnp.where(constraints.present, margins.slopes(y, d), jnp.inf)
            flat = [ravel_pytree(x)[0] for x in (slopes, weights, margins.pull(weights, d), d)]
            parts = [x.reshape(margins.blocks, -1) for x in flat]
            smallest, total = jnp.min(parts[0], axis=1), jnp.sum(parts[1], axis=1)
            size = jnp.linalg.norm(parts[2], axis=1) * jnp.linalg.norm(parts[3], axis=1)
            return jnp.all((smallest > 0) & (size <= (1.0 + gap) * smallest * total))
        smallest = jnp.min(jnp.where(constraints.present, margins(y), jnp.inf))
        size = tree_norm(y)
        weights = weights * size
        bounded = margins.bounded(weights, jnp.asarray(4.0 / gap))
        value = 0.5 * size**2 * (1.0 + 0.25 * gap)
        return (smallest > 0) & bounded & (value <= (1.0 + gap) * smallest * jnp.sum(weights))

    def _solve(
        self,
        system: System,
        constraints: AbstractConstraints,
        s: Array,
        kappa: Array,
        base: PyTree,
        logs: Array,
        shift: Array,
        good: Array,
    ) -> _Newton:
        power, margins_at = _at(system, constraints, s)
        margins, signs = constraints.margins, constraints.signs
        live = signs != 0
        N = logs.size

        def weights_of(logs: Array) -> Array:
            return signs * jnp.exp(logs)

        rho, _, _ = system.scale(s)
        # The size of the exponents; those of a start far out are not of the order of rho^L.
        sizes = (rho * jnp.maximum(tree_norm(base), 1.0)) ** margins.degree
        rounding = ROUNDINGS * jnp.finfo(sizes.dtype).eps * sizes

        def going(now: _Newton) -> Array:
            return now.regular & ~now.settled & (now.count < self.max_iterations)

        def solved(logs: Array, shift: Array) -> tuple[Any, PyTree, Array]:
            """The factors and the state that belong to multipliers, and what is left of their equations."""
            weights = weights_of(logs)
            factors, right = margins.factored(weights, kappa), base
            if margins.degree == 1:
                # Of affine margins all of the push stands on this side.
                right = jax.tree.map(lambda b, p: b + kappa * p, base, margins.pull(weights, base))
            u = margins.solve(factors, right)
            says = constraints.log_multipliers(margins_at(u))
            return factors, u, jnp.where(live, logs - says - shift, 0.0)

        def body(carry: tuple[_Newton, Array, Any]) -> tuple[_Newton, Array, Any]:
            now, F, factors = carry
            u = now.state
            weights = weights_of(now.logs)
            g = margins.pull(weights, u)
            size = tree_norm(g)
            J = jnp.eye(N) + jnp.where(live[:, None], power * kappa * margins.gram(factors, u) * weights[None, :], 0.0)
            # Lanes of a batch iterate together: one that has converged waits for the others, without a factorisation.
            both = linalg.solve_where(J, jnp.stack([-F, live.astype(F.dtype)], axis=1), going(now))
            # log|S(π)y|: by π itself, and by y through π.
            by_state = margins.slopes(u, margins.solve(factors, margins.curved(weights, g)))
            by_weights = (margins.slopes(u, g) + kappa * by_state) * weights / size**2
            dot = by_weights @ both
            move_shift = -(jnp.log(size) + dot[0]) / dot[1]
            move = both[:, 0] + move_shift * both[:, 1]
            total = jnp.sum(jnp.abs(weights))
            room = jnp.log(SMALL * total) - now.logs
            step = jnp.where(move < -0.5, move, jnp.log1p(jnp.maximum(move, -0.5)))
            step = jnp.where(move > 0, jnp.minimum(move, jnp.maximum(step, room)), step)
            # That of a constraint that will not be felt again stays finite.
            new = jnp.maximum(now.logs + step, LOG_ZERO)
            change = jnp.max(jnp.where(live, jnp.abs(weights_of(jnp.minimum(new, 50.0)) - weights), 0.0)) / total
            fine = jnp.all(jnp.isfinite(move)) & jnp.isfinite(change)
            new = jnp.where(fine, new, now.logs)
            new_shift = jnp.where(fine, now.shift + move_shift, now.shift)
            # The equations are looked at where the multipliers have come to: what would have to be done there for the
            # next iteration, but for the factorisation, is what tells that there is none.
            factors, u, F = solved(new, new_shift)
            pushes = jnp.abs(weights_of(new))
            pushed = jnp.sum(pushes)
            left = jnp.max(jnp.where(live & (pushes > MATTERS * pushed), jnp.abs(F), 0.0))
            settled = (change <= self.change) & (left <= jnp.maximum(CHANGE, rounding * (1.0 + pushed)))
            regular = fine & margins.regular(factors)
            return _Newton(new, new_shift, u, settled, regular, now.count + 1), F, factors

        factors, u, F = solved(logs, shift)
        # A step that has failed in an earlier stage is not worth more iterations.
        start = _Newton(logs, shift, u, jnp.asarray(False), good & margins.regular(factors), jnp.zeros((), int))
        return jax.lax.while_loop(lambda carry: going(carry[0]), body, (start, F, factors))[0]


def _system(terms: Any) -> System:
    """**Raises:** `ValueError` for another field or clock."""
    system = system_of(terms, "MultiplierNewton")
    clock = system.clock
    fits = isinstance(clock, LogArcLength) and not clock.timed and clock.floor == 0.0
    require(fits, "clock", "MultiplierNewton needs LogArcLength(timed=False) without a floor")
    return system


def constraints_at(system: System, s: Array, extended: PyTree) -> AbstractConstraints:
    """The constraints of the tokens that have the attention at a state."""
    rho, _, _ = system.scale(s)
    return _constraints(system.coordinates, system.context, tree_scale(rho, extended[0]))


@eqx.filter_jit
def _constraints(coordinates: Any, context: PyTree, x: PyTree) -> AbstractConstraints:
    """Traced once for the half dozen places of a program that want them."""
    return coordinates.constraints(context, x)


def _at(system: System, constraints: AbstractConstraints, s: Array) -> tuple[Array, Any]:
    """ρ^L at s, and the margins as a function of y."""
    rho, _, _ = system.scale(s)
    return rho**constraints.margins.degree, lambda y: constraints.margins(tree_scale(rho, y))

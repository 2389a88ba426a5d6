"""Where the flow and the published descent of a concave head end, and what the programs say of it: one row each."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from jaxflow._core import good
from jaxflow.flow import ArcLength, LogTime, integrate
from jaxflow.gradient_descent import descend, published_protocol
from jaxflow.margin import ProgramResult, attention_svm, best_combination, finite_component, solve
from jaxflow.papers.tarzanagh2023.concave import Instance, problem, scores_of, support_sizes, target
from jaxflow.papers.tarzanagh2023.concave_flow import Mixture, Near, mixture_solver

# The paper's criterion: attention above the first is selected, below the second masked; between them the
# instance is filtered out.
SELECTED, MASKED = 1e-3, 1e-8

# A masked token decays like 1/(δt) with its multiplier δ in (9): 1e-13/δ at the end of the first part.
REACH = 30.0
# The first part is enough for those that end this near s*. The second ends this close to it, at most after this
# arc length; the third takes as long as the first.
NEAR = 5e-9
CLOSE = 1e-6
FARTHEST = 1000.0
# How W moves is measured over the last two stretches of this length in log t.
STRETCH = 8.0
# (Gen-SVM) for orthonormal tokens treats all masked tokens alike, and so degenerate a program is solved to 1e-11.
PROGRAM_GAP = 1e-10


def flow_end(instance: Instance) -> dict[str, Array]:
    r"""Where the flow of W ends, in up to three parts.

    The first goes to log t = `REACH`, and says how W moved over the last two stretches. Attention may then still
    give (almost) nothing to a token of the support: with k tokens in place its share s decays like $t^{-1+k/T}$
    as long as $ts$ is small against $1/\delta$, δ its multiplier in (9), and explodes when that is reached, at
    $\log t\sim(T/k)\log(1/\delta)$. Steps in log t cannot follow that; the second part goes on along the arc
    length until s* is near. (Its log t is not read: the explosion takes no time.)
    """
    risk, model = problem(instance)
    exact = target(scores_of(instance), instance.lam)
    solver, controller = mixture_solver(0.5)
    path = integrate(
        risk,
        model,
        clock=LogTime(),
        until=REACH,
        save_at=jnp.asarray([REACH - 2 * STRETCH, REACH - STRETCH, REACH]),
        coordinates=Mixture(exact > 0),
        solver=solver,
        controller=controller,
        max_steps=400,
        throw=False,
    )
    way = path.points.model.W
    first = path.final.model
    early = first.attention(risk.data)[0]
    # Steps that stall did so at an explosion: the second part takes over where they stand.
    there = jnp.asarray(good(path.result)) & (jnp.max(jnp.abs(early - exact)) <= NEAR)
    solver, controller = mixture_solver()
    rest = integrate(
        risk,
        first,
        clock=ArcLength(),
        until=FARTHEST,
        coordinates=Mixture(exact > 0),
        stop=Near(exact, CLOSE),
        solver=solver,
        controller=controller,
        max_steps=1000,
        throw=False,
    )
    solver, controller = mixture_solver(0.5)
    last = integrate(
        risk,
        rest.final.model,
        clock=LogTime(),
        # No time at all where the first part was enough.
        until=jnp.where(there, -REACH, REACH),
        coordinates=Mixture(exact > 0),
        solver=solver,
        controller=controller,
        max_steps=400,
        throw=False,
    )
    late = last.final.model
    attention = jnp.where(there, early, late.attention(risk.data)[0])
    return {
        "attention": attention,
        "target": exact,
        "error": jnp.max(jnp.abs(attention - exact)),
        "error_early": jnp.max(jnp.abs(early - exact)),
        "late": ~there,
        "length": jnp.where(there, 0.0, jnp.exp(rest.final.log_arc_length)),
        "weights": jnp.where(there, first.combined_weights(), late.combined_weights()),
        "moved": jnp.stack([way[1] - way[0], way[2] - way[1]]),
        "good": there | (jnp.asarray(good(rest.result)) & jnp.asarray(good(last.result))),
        "num_steps": jnp.asarray(path.stats["num_steps"]),
        "num_steps_late": jnp.asarray(rest.stats["num_steps"]),
    }


def descent_end(instance: Instance) -> dict[str, Array]:
    """Where the published protocol ends: normalised descent, η = 0.1, 2,000 steps."""
    risk, model = problem(instance)
    path = descend(risk, model, throw=False, **published_protocol(model))
    return {
        "attention": path.final.model.attention(risk.data)[0],
        "weights": path.final.model.combined_weights(),
        "good": jnp.asarray(good(path.result)),
    }


def _correlation(a: Array, b: Array) -> Array:
    size = jnp.linalg.norm(a) * jnp.linalg.norm(b)
    return jnp.where(size > 0, jnp.sum(a * b) / jnp.where(size > 0, size, 1.0), jnp.nan)


def predictivity(
    instance: Instance, selection: Bool[Array, " T"], attention: Float[Array, " T"], weights: Any, moved: Any
) -> dict[str, Array]:
    r"""Correlations of W with the solution of (Gen-SVM) and with $W^{SVMeq}$ for a set of selected tokens.

    Where all tokens are selected (Gen-SVM) has no constraint and is solved by zero: no correlation with it (NaN),
    and $W^{SVMeq}=W^{fin}$. `spanned` takes of W only what attention sees, its part in the span of
    $(x_t-x_\tau)z^\top$. Every matrix of `moved` is correlated with the direction, too.
    """
    data = problem(instance)[0].data
    program = attention_svm(data, selection[None])  # pyright: ignore[reportArgumentType]
    direction = solve(program, tolerance=PROGRAM_GAP)
    finite = solve(finite_component(data, selection[None], attention[None]))  # pyright: ignore[reportArgumentType]
    everything = jnp.all(selection)
    some = jnp.where(everything, jnp.eye(weights.shape[0]), direction.primal)

    def equivalent(weights: Array) -> Array:
        combined = best_combination(weights, finite.primal, some).correlation
        return jnp.where(everything, _correlation(weights, finite.primal), combined)

    logits = instance.tokens @ weights @ instance.query
    spanned = jnp.outer((logits - jnp.mean(logits)) @ instance.tokens, instance.query)
    return {
        "direction": jnp.where(everything, jnp.nan, _correlation(weights, direction.primal)),
        "combined": equivalent(weights),
        "spanned": equivalent(spanned),
        "moved": jnp.where(everything, jnp.nan, jax.vmap(_correlation, (0, None))(moved, direction.primal)),
        "solved": jnp.asarray(direction.result == ProgramResult.optimal)
        & jnp.asarray(finite.result == ProgramResult.optimal),
    }


flow_batch = jax.jit(jax.vmap(flow_end))
_descent = jax.jit(jax.vmap(descent_end))
_predict = jax.jit(jax.vmap(predictivity))


def kept(attention: np.ndarray) -> np.ndarray:
    """Whether the paper's criterion keeps an instance: no probability between masked and selected."""
    return ~np.any((attention <= SELECTED) & (attention >= MASKED), axis=-1)


def table(instances: Instance) -> dict[str, np.ndarray]:
    """The per-instance table of a batch of instances: flow, exact target, published descent, programs.

    The flow is held against the programs of the exact support of $s^\\star$, descent against those of the tokens
    that the paper's criterion calls selected.
    """
    flow, steps = flow_batch(instances), _descent(instances)
    scores = np.asarray(jax.vmap(scores_of)(instances))
    size, near = support_sizes(scores, np.asarray(instances.lam))
    chosen = flow["target"] > 0
    flow_fit = _predict(instances, chosen, flow["target"], flow["weights"], flow["moved"])
    found = steps["attention"] > SELECTED
    descent_fit = _predict(instances, found, steps["attention"], steps["weights"], flow["moved"])
    del descent_fit["moved"]
    columns: dict[str, Any] = {"lam": instances.lam, "scores": scores, "size": size, "near_tie": near}
    for name, path, fit in (("flow", flow, flow_fit), ("descent", steps, descent_fit)):
        attention = np.asarray(path["attention"])
        columns |= {f"{name}_{key}": value for key, value in path.items() if key not in ("weights", "moved")}
        columns |= {f"{name}_corr_{key}": value for key, value in fit.items()}
        columns |= {
            f"{name}_selected": np.sum(attention > SELECTED, axis=-1),
            f"{name}_kept": kept(attention) & np.asarray(path["good"]),
        }
    return {name: np.asarray(value) for name, value in columns.items()}

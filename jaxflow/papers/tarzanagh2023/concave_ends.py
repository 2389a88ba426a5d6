"""Where the flow and the published descent of a concave head end, and what the programs say of it: figures 9 and 12."""

from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from jaxflow._core import good, positive_or_one
from jaxflow.flow import ArcLength, LogTime, integrate
from jaxflow.gradient_descent import descend
from jaxflow.margin import ProgramResult, attention_svm, finite_component, solve
from jaxflow.papers.dataset import Part, Say, Sweep
from jaxflow.papers.statement import Mask, Statement
from jaxflow.papers.table import Table, stacked
from jaxflow.papers.tarzanagh2023.combination import best_combination
from jaxflow.papers.tarzanagh2023.concave import problem, scores_of, support_sizes, target
from jaxflow.papers.tarzanagh2023.mixture import Mixture, Near, mixture_solver
from jaxflow.papers.tarzanagh2023.protocol import published_protocol

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
# What is asked of the flow's end: its attention within this of s*.
REACHED = 1e-8

NAMES = {"flow": "the flow", "descent": "the published descent"}


def selected(ends: Table) -> np.ndarray:
    """How many tokens the paper's criterion calls selected where flow or descent ends."""
    return np.sum(ends.attention > SELECTED, axis=-1)


def kept(ends: Table) -> Mask:
    """Whether the paper's criterion keeps an instance: no probability between masked and selected."""
    return ends.good & ~np.any((ends.attention <= SELECTED) & (ends.attention >= MASKED), axis=-1)


def flow_end(instance: Table) -> Table:
    r"""Where the flow of W ends, in up to three parts.

    The first goes to log t = `REACH`, and says how W moved over the last two stretches. Attention may then still
    give (almost) nothing to a token of the support: with k tokens in place its share s decays like $t^{-1+k/T}$
    as long as $ts$ is small against $1/\delta$, δ its multiplier in (9), and explodes when that is reached, at
    $\log t\sim(T/k)\log(1/\delta)$. Steps in log t cannot follow that; the second part goes on along the arc
    length until s* is near. (Its log t is not read: the explosion takes no time.)

    **Returns:** the last `attention`, the exact `target` `(T,)`, and whether all went well, `good`.

    - `error`: how far attention is from the target, at most, at the end, and (`error_early`) at log t = `REACH`.
    - `late`: it was not there by then, and had to be followed along the arc length, for this `length`.
    - `weights` `(d, d)`; `moved` `(2, d, d)`: their motion over the last two stretches of log t.
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
    return Table(
        attention=attention,
        target=exact,
        error=jnp.max(jnp.abs(attention - exact)),
        error_early=jnp.max(jnp.abs(early - exact)),
        late=~there,
        length=jnp.where(there, 0.0, jnp.exp(rest.final.log_arc_length)),
        good=there | (jnp.asarray(good(rest.result)) & jnp.asarray(good(last.result))),
        weights=jnp.where(there, first.combined_weights(), late.combined_weights()),
        moved=jnp.stack([way[1] - way[0], way[2] - way[1]]),
    )


def descent_end(instance: Table) -> tuple[Array, Array, Array]:
    """Where the published protocol (normalised descent, η = 0.1, 2,000 steps) ends: attention, `good`, weights."""
    risk, model = problem(instance)
    path = descend(risk, model, throw=False, **published_protocol(model))
    final = path.final.model
    return final.attention(risk.data)[0], jnp.asarray(good(path.result)), final.combined_weights()


def _correlation(a: Array, b: Array) -> Array:
    size = jnp.linalg.norm(a) * jnp.linalg.norm(b)
    return jnp.where(size > 0, jnp.sum(a * b) / positive_or_one(size), jnp.nan)


def predictivity(
    instance: Table, selection: Bool[Array, " T"], attention: Float[Array, " T"], weights: Float[Array, "d d"]
) -> tuple[Array, ...]:
    r"""How well the programs of a set of selected tokens predict W, and the solution of (Gen-SVM).

    `direction`, `combined`: correlations of W with that solution and with $W^{SVMeq}$; `spanned`: with the latter of
    what attention sees of W; `solved`: whether the programs are.

    Where all tokens are selected (Gen-SVM) has no constraint and is solved by zero: no correlation with it (NaN),
    and $W^{SVMeq}=W^{fin}$. `spanned` takes of W only what attention sees, its part in the span of
    $(x_t-x_\tau)z^\top$.
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
    solution = jnp.where(everything, 0.0, direction.primal)
    solved = jnp.asarray((direction.result == ProgramResult.optimal) & (finite.result == ProgramResult.optimal))
    return _correlation(weights, solution), equivalent(weights), equivalent(spanned), solved, solution


flow_batch = jax.jit(jax.vmap(flow_end))
_descent = jax.jit(jax.vmap(descent_end))
_predict = jax.jit(jax.vmap(predictivity))
_correlations = jax.jit(jax.vmap(jax.vmap(_correlation, (0, None))))


def targets(instances: Table) -> Table:
    """Of a batch: λ `lam`, the `scores` γ `(T,)`, how many tokens s* has, `size`, and whether that was decided in
    rational arithmetic, `near_tie`."""
    scores = np.asarray(jax.vmap(scores_of)(instances))
    size, near = support_sizes(scores, np.asarray(instances.lam))
    return Table(lam=instances.lam, scores=scores, size=size, near_tie=near)


def flows(instances: Table) -> Table:
    """Of a batch, held against the programs of the exact support of s*: columns of `flow_end` and `predictivity`, with
    the correlations of `moved` with the solution of (Gen-SVM), `(2,)`, and without `weights`."""
    end = flow_batch(instances)
    direction, combined, spanned, solved, solution = _predict(instances, end.target > 0, end.target, end.weights)
    fit = {"direction": direction, "combined": combined, "spanned": spanned, "solved": solved}
    found = {name: column for name, column in end.named.items() if name != "weights"}
    return Table(found | fit | {"moved": _correlations(end.moved, solution)})


def descents(instances: Table) -> Table:
    """Of a batch, held against the programs of the tokens that the paper's criterion calls selected: `attention`
    `(T,)`, `good`, and columns of `predictivity`."""
    attention, ended, weights = _descent(instances)
    direction, combined, spanned, solved, _ = _predict(instances, attention > SELECTED, attention, weights)
    fit = {"direction": direction, "combined": combined, "spanned": spanned, "solved": solved}
    return Table(fit, attention=attention, good=ended)


def parts(
    batches: Callable[[str, Any], Iterable[tuple[str, Table]]], draw_from: Callable[[int], Any]
) -> dict[str, Part | Sweep]:
    """`targets`, `flow` and `descent` of the batches of a scale and a key, a cell for each, by what it is called."""

    def sweep(what: str, of: Callable[[Table], Table]) -> Sweep:
        def compute(scale: str, key: Any, say: Say) -> Table:
            rows = []
            for name, instances in batches(scale, key):
                say(f"{name}: {what} of {len(instances.lam)} instances")
                rows.append(of(instances))
            return stacked(rows)

        return Sweep(compute, draw_from)

    return {
        "targets": sweep("exact targets", targets),
        "flow": sweep("flow and programs", flows),
        "descent": sweep("published descent and programs", descents),
    }


def reaches(source: str) -> Statement[Any]:
    """Of numbers with `flow`."""

    return Statement(
        source=source,
        says="The eventual token composition is s*, the solution of the unconstrained softmax optimization (9).",
        residual=lambda n: np.where(n.flow.good, n.flow.error, np.nan),
        bound=REACHED,
    )


def notes_of(numbers: Table) -> list[str]:
    """The filter, where descent ends, and late flows."""
    flow, descent = numbers.flow, numbers.descent
    error = np.max(np.abs(descent.attention - flow.target), axis=-1)
    return [
        *(
            f"The paper's filter (no attention between 1e-8 and 1e-3) keeps {int(kept(ends).sum())} of "
            f"{ends.good.size} ends of {NAMES[name]}; {int(np.sum(~ends.good))} failed, {int(np.sum(~ends.solved))} "
            "have a program without a certified solution."
            for name, ends in (("flow", flow), ("descent", descent))
        ),
        f"The published descent ends at a distance from s* of {np.median(error):.1e} (median) and {error.max():.1e} "
        "(largest).",
        f"{int(flow.late.sum())} of {error.size} flows are not within 5e-9 of s* at log t = 30, and are followed along "
        "the arc length.",
    ]


def pearson(a: np.ndarray, b: np.ndarray) -> float:
    """The correlation coefficient; 0 where one of the two does not vary."""
    if a.size < 2 or not np.ptp(a) > 0 or not np.ptp(b) > 0:
        return 0.0
    return float(np.corrcoef(a, b)[0, 1])

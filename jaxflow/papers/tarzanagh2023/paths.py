"""Paths of W and of (K, Q) on random instances: by the flow and by the published descent."""

from dataclasses import dataclass
from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Key

from jaxflow._core import RESULTS, good, linalg
from jaxflow.data import random_tokens
from jaxflow.flow import ArcLength, Budget, LogArcLength, Scores, StationaryPoint, Weights, integrate
from jaxflow.gradient_descent import descend
from jaxflow.losses import Logistic
from jaxflow.margin import ProgramResult, attention_svm, is_locally_optimal, solve
from jaxflow.models import CombinedAttention, FactoredAttention
from jaxflow.papers.table import Table
from jaxflow.papers.tarzanagh2023.protocol import published_protocol
from jaxflow.risk import EmpiricalRisk
from jaxflow.trajectory import Point

MODELS: dict[str, Any] = {"combined": CombinedAttention, "factored": FactoredAttention}

# ‖∇L‖/Σ|p| below this is a stationary point: saturated limits of unit-sphere instances end between 1e-2 and 1.
STATIONARY = 1e-6
# Every sequence gives its top token all but this: attention has settled.
SETTLED = 1e-3
# The stationary points of small dimension have a finite length before them; the floor lets time pass there.
FLOOR = 0.03


@dataclass(frozen=True)
class Size:
    """How much is computed: `trials` instances, (K, Q) to log t = `reach`, W, by implicit steps that cost nothing
    more, to log t = `far`; `grid` points are drawn, `saves` computed.

    `fast`: compile for a run that is shorter than its compilation.
    """

    trials: int
    reach: float
    far: float = 1e6
    n: int = 6
    T: int = 8
    d: int = 10
    steps: int = 2000
    grid: int = 81
    saves: int = 97
    max_steps: int = 30_000
    fast: bool = False

    def until(self, kind: str) -> float:
        """The last log t of one parametrisation."""
        return self.far if kind == "combined" else self.reach


def _instance(kind: str, size: Size, key: Key[Array, ""]) -> tuple[EmpiricalRisk, Any]:
    """W and (K, Q) see the same data: the data's key does not depend on the parametrisation."""
    key_data, key_model = jax.random.split(key)
    data, head = random_tokens(key_data, size.n, size.T, size.d)
    return EmpiricalRisk(data, Logistic()), MODELS[kind].init(key_model, data, head)


def _measure(risk: EmpiricalRisk, point: Point, selection: Bool[Array, "n T"]) -> Table:
    """Combined `weights` `(d, d)`, their `margin` for a selection, the mean over the sequences of the largest
    `attention`, and `log_time`."""
    logits = point.model.logits(risk.data)
    selected = jnp.max(jnp.where(selection, logits, -jnp.inf), axis=-1)
    others = jnp.max(jnp.where(selection, -jnp.inf, logits), axis=-1)
    return Table(
        weights=point.model.combined_weights(),
        margin=jnp.min(selected - others),
        attention=jnp.mean(jnp.max(point.model.attention(risk.data), axis=-1)),
        log_time=point.log_time,
    )


def _top(attention: Float[Array, "n T"]) -> Bool[Array, "n T"]:
    return attention == jnp.max(attention, axis=-1, keepdims=True)


def flow_path(kind: str, size: Size, key: Key[Array, ""]) -> Table:
    """The flow at `saves` + 1 points, the last of which is its end, and how it ended.

    - `way`: columns of `_measure` at these points; `selection` `(n, T)`: the tokens of largest attention; `smallest`:
      the least of these attentions over the sequences.
    - `settled`: attention is on one token a sequence; `stationary`: the gradient vanishes.
    - `good`: the flow was followed to where it was to end; `spent`: its steps were used up.
    """
    risk, model = _instance(kind, size, key)
    stop = StationaryPoint(STATIONARY) | Budget(log_time=size.until(kind))
    # log t grows like 0.3 of the arc length of W and like 0.07 of the square of that of (K, Q). `until` is far
    # beyond: the budget on log t ends the path.
    if kind == "combined":
        # In log arc length the flow of W is stiff; an implicit method takes the decades in its stride.
        grid = jnp.linspace(np.log(0.3), np.log(100.0 * size.far), size.saves)
        how: dict[str, Any] = {
            "clock": LogArcLength(floor=FLOOR),
            "coordinates": Scores(),
            "solver": diffrax.Kvaerno5(root_finder=linalg.chord(rtol=1e-6, atol=1e-8)),
        }
    else:
        # 2d² unknowns make implicit steps dear, and explicit ones cost about one per unit of log t.
        grid = jnp.geomspace(0.3, 30.0 * np.sqrt(size.reach), size.saves)
        how = {"clock": ArcLength(floor=FLOOR), "coordinates": Weights(), "solver": diffrax.Tsit5()}
    # A hundred-thousandth of the path: what is drawn needs no more, and selections are made long before.
    controller = diffrax.PIDController(rtol=1e-5, atol=1e-7, pcoeff=0.3, icoeff=0.4)
    how |= {"controller": controller, "max_steps": size.max_steps, "throw": False}
    path = integrate(risk, model, until=grid[-1], stop=stop, save_at=grid, **how)
    final = path.final
    attention = final.model.attention(risk.data)
    top = _top(attention)
    ends = _measure(risk, final, top)
    saved = jax.vmap(lambda point: _measure(risk, point, top))(path.saved)
    # Past the end every save point repeats the end.
    reached = path.points.reached

    def joined(points: Array, end: Array) -> Array:
        mask = reached.reshape(reached.shape + (1,) * (points.ndim - 1))
        return jnp.concatenate([jnp.where(mask, points, end[None]), end[None]])

    multipliers = jnp.sum(jnp.abs(final.multipliers))  # pyright: ignore[reportArgumentType]
    return Table(
        way=jax.tree.map(joined, saved, ends),
        selection=top,
        smallest=jnp.min(jnp.max(attention, axis=-1)),
        settled=jnp.all(jnp.max(attention, axis=-1) >= 1.0 - SETTLED),
        stationary=jnp.asarray(final.log_gradient_norm - final.log_scale <= jnp.log(STATIONARY) + jnp.log(multipliers)),
        good=jnp.asarray(good(path.result)),
        spent=(path.result == RESULTS.max_steps_reached) | (path.result == RESULTS.max_steps_rejected),
    )


def descent_path(kind: str, size: Size, key: Key[Array, ""]) -> tuple[Table, Bool[Array, "n T"]]:
    """The published protocol on the same instance from the same start, at log-spaced steps; the selected tokens."""
    grid = jnp.asarray(np.unique(np.geomspace(1, size.steps, 60).astype(int)))
    risk, model = _instance(kind, size, key)
    protocol = {**published_protocol(model), "steps": size.steps}
    path = descend(risk, model, save_at=grid, throw=False, **protocol)
    top = _top(path.final.model.attention(risk.data))
    return jax.vmap(lambda point: _measure(risk, point, top))(path.saved), top


def reference(norm: str, size: Size, key: Key[Array, ""], selection: Bool[Array, "n T"]) -> Table:
    """The program of the selected tokens of an instance in one norm: `solution` `(d, d)`, `optimum`, duality `gap`,
    whether it is `solved` or `infeasible`, and what Definition 2 (or 4) says of the selection, `status`
    (`SelectionStatus`)."""
    risk, model = _instance("combined", size, key)  # the data; the start does not matter
    solution = solve(attention_svm(risk.data, selection, norm))  # pyright: ignore[reportArgumentType]
    return Table(
        solution=solution.primal,
        optimum=solution.certificate.primal_value,
        gap=solution.certificate.duality_gap,
        solved=jnp.asarray(solution.result == ProgramResult.optimal),
        infeasible=jnp.asarray(solution.result == ProgramResult.infeasible),
        status=is_locally_optimal(risk.data, model.head, selection, solution).status.value,  # pyright: ignore
    )

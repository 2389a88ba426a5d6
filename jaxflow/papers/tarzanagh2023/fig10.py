"""`reproduce tarzanagh2023 fig10`: alignment of K Qᵀ with (Att-SVM*) against the number of columns m."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxflow._core import good, linalg
from jaxflow.data import random_tokens
from jaxflow.flow import ArcLength, Drive, StationaryPoint, Weights, run_queue
from jaxflow.flow.solvers import state_norm
from jaxflow.gradient_descent import descend, published_protocol
from jaxflow.losses import Logistic
from jaxflow.margin import ProgramResult, attention_svm, is_locally_optimal, solve
from jaxflow.models import FactoredAttention
from jaxflow.papers.registry import AbstractFigure, Data, register_figure
from jaxflow.papers.tarzanagh2023.column_claims import claims_of
from jaxflow.plots import CURVES, new_figure
from jaxflow.risk import EmpiricalRisk

WAYS = ("flow", "descent")

# Every sequence gives its top token all but this: attention has settled.
SETTLED = 1e-3
# ‖∇L‖/Σ|p| below this is a finite stationary point (saturated ends of unit-sphere instances have 1e-2 to 1).
STATIONARY = 1e-6


class Size(NamedTuple):
    """Instances of one scale: `trials` for each (n, T) of `shapes`; every m of `columns` meets the same ones.

    `length`: of the flow's path; `steps`: of the published descent.
    """

    trials: int
    shapes: tuple[tuple[int, int], ...] = ((5, 5), (5, 10), (5, 15), (10, 5), (15, 5))
    columns: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 8, 10)
    d: int = 20
    length: float = 60.0
    steps: int = 2000


SIZES = {
    "quick": Size(6, shapes=((5, 5), (10, 5)), columns=(1, 2, 4, 10), length=30.0),
    "paper": Size(50, columns=(1, 2, 3, 4, 5, 6, 7, 8, 9, 10)),
    "large": Size(1000, columns=(1, 2, 3, 4, 5, 6, 7, 8, 9, 10)),
}


@register_figure(
    "tarzanagh2023",
    "fig10",
    title="Alignment of K Q^T with (Att-SVM*) against the number m of columns of K and Q",
    run_times={
        "quick": "6 instances for each of 2 sizes and 4 values of m, about a minute",
        "paper": "50 instances for each of 5 sizes and 10 values of m, some minutes",
        "large": "1,000 instances for each of 5 sizes and 10 values of m, hours on two cores",
    },
)
class Figure10(AbstractFigure):
    r"""Figure 10 of Tarzanagh et al. (2023): $1-\mathrm{corr}(W^{mm}_{\star,\alpha},KQ^\top)$ against m, d = 20.

    α are the tokens selected at the end of the run, and $W^{mm}_{\star,\alpha}$ solves (Att-SVM*) for them with
    m = d. Upper panel: n = 5, T in {5, 10, 15}; lower: T = 5, n in {5, 10, 15}. The paper names m from 1 to 10.
    A matrix of rank m correlates with $W^{mm}_\star$ at most by
    $(\sum_{i\le m}\sigma_i^2/\sum_i\sigma_i^2)^{1/2}$, which is drawn as a floor.
    """

    def compute(self, scale: str, seed: int, say: Callable[[str], None]) -> Data:
        return compute(SIZES[scale], seed, say)

    def draw(self, data: Data) -> Any:
        return draw_columns(data)

    def claims(self, data: Data) -> tuple[list[Any], list[str]]:
        return claims_of(data)


def compute(size: Size, seed: int, say: Callable[[str], None]) -> Data:
    """Arrays `(shape, column, trial)` for flow and descent: misalignment, its floor, rank of the program, codes."""
    key = jax.random.fold_in(jax.random.key(seed), 10)
    data: Data = {
        "shapes": np.asarray(size.shapes),
        "columns": np.asarray(size.columns),
        "d": np.asarray(size.d),
        "length": np.asarray(size.length),
        "steps": np.asarray(size.steps),
    }
    table: dict[str, list[list[np.ndarray]]] = {}
    for n, T in size.shapes:
        say(
            f"n = {n}, T = {T}, d = {size.d}: {size.trials} instances for each m of {', '.join(map(str, size.columns))}"
        )
        keys = jax.random.split(jax.random.fold_in(key, 100 * n + T), size.trials)
        row: dict[str, list[np.ndarray]] = {}
        for m in size.columns:
            risks, models = _start(size, n, T, keys, jnp.asarray(m))
            for way, run in (("flow", _flow), ("descent", _descent)):
                for name, value in run(size, risks, models).items():
                    row.setdefault(f"{way}_{name}", []).append(np.asarray(value))
        for name, values in row.items():
            table.setdefault(name, []).append(values)
    return data | {name: np.asarray(values) for name, values in table.items()}


@partial(jax.jit, static_argnums=(0, 1, 2))
def _start(size: Size, n: int, T: int, keys: Any, m: Any) -> Any:
    """Columns beyond m are zero in K and in Q: they stay so, and one compiled program serves every m."""

    def one(key: Any) -> Any:
        key_data, key_model = jax.random.split(key)
        data, head = random_tokens(key_data, n, T, size.d)
        model = FactoredAttention.init(key_model, data, head, m=max(size.columns))
        used = jnp.arange(max(size.columns)) < m
        model = eqx.tree_at(
            lambda x: (x.K, x.Q), model, (jnp.where(used[None], model.K, 0.0), jnp.where(used[None], model.Q, 0.0))
        )
        return EmpiricalRisk(data, Logistic()), model

    return jax.vmap(one)(keys)


@eqx.filter_jit
def _flow(size: Size, risks: Any, models: Any) -> dict[str, Any]:
    controller = diffrax.PIDController(rtol=1e-5, atol=1e-7, norm=state_norm)
    # Explicit steps cost about the square of the length: this many are enough for a length of 60.
    drive = Drive(diffrax.Tsit5(), controller, StationaryPoint(STATIONARY), 20_000)

    def start(risk: Any, model: Any) -> Any:
        how: Any = {"clock": ArcLength(floor=0.03), "coordinates": Weights(), "until": size.length}
        return drive.start(risk, model, save_at=jnp.asarray([0.5 * size.length]), **how)

    lanes = run_queue(drive, eqx.filter_vmap(start)(risks, models), width=16)
    return eqx.filter_vmap(_measure)(risks, eqx.filter_vmap(drive.trajectory)(lanes))


@eqx.filter_jit
def _descent(size: Size, risks: Any, models: Any) -> dict[str, Any]:
    def one(risk: Any, model: Any) -> dict[str, Any]:
        protocol = {**published_protocol(model), "steps": size.steps}
        return _measure(risk, descend(risk, model, throw=False, **protocol))

    return eqx.filter_vmap(one)(risks, models)


def _measure(risk: Any, trajectory: Any) -> dict[str, Any]:
    model, data = trajectory.final.model, risk.data
    attention = model.attention(data)
    top = jnp.max(attention, axis=-1, keepdims=True)
    selection = jax.nn.one_hot(jnp.argmax(attention, axis=-1), attention.shape[-1], dtype=bool)
    solution: Any = solve(attention_svm(data, selection, "nuclear"))
    solved = solution.result == ProgramResult.optimal
    reference = jnp.where(solved, solution.primal, 0.0)
    values = linalg.singular_values(reference)
    rank = jnp.sum(values > 1e-8 * jnp.maximum(values[0], 1e-300))
    m = jnp.sum(jnp.any(model.K != 0, axis=0))
    kept = jnp.sum(jnp.where(jnp.arange(values.shape[0]) < m, values, 0.0) ** 2) / jnp.sum(values**2)

    def misalignment(point: Any) -> Any:
        weights = point.model.combined_weights()
        cosine = jnp.sum(weights * reference) / (jnp.linalg.norm(weights) * jnp.linalg.norm(reference))
        return jnp.where(solved, 1.0 - cosine, jnp.nan)

    halfway = {}
    if trajectory.saved is not None:
        point = jax.tree.map(lambda x: x[0] if eqx.is_array(x) else x, trajectory.saved)
        halfway = {"halfway": misalignment(point), "halfway_log_time": point.log_time}
    return {
        **halfway,
        "misalignment": misalignment(trajectory.final),
        "floor": jnp.where(solved, 1.0 - jnp.sqrt(kept), jnp.nan),
        "rank": jnp.where(solved, rank, -1),
        "result": solution.result.value,
        "settled": jnp.all(top >= 1.0 - SETTLED),
        "good": good(trajectory.result),
        "status": is_locally_optimal(data, model.head, selection, solution).status.value,
        "log_time": trajectory.final.log_time,
    }


def draw_columns(data: dict[str, np.ndarray]) -> Any:
    r"""Mean of $1-\mathrm{corr}(W^{mm}_{\star,\alpha},KQ^\top)$ against m: flow solid, descent dashed, floor dotted.

    **Arguments:** `data` with `shapes` `(s, 2)` of n and T, `columns` `(k,)`, and for p in flow and descent
    `p_misalignment`, `p_floor`, `p_rank` (−1 without solution) and `p_settled`, each `(s, k, b)`.
    """
    shapes, columns = data["shapes"], data["columns"]
    fixed_n, fixed_T = shapes[0]
    panels = [
        ([i for i, (n, _) in enumerate(shapes) if n == fixed_n], "T", 1, rf"(a) $n={fixed_n}$"),
        ([i for i, (_, T) in enumerate(shapes) if T == fixed_T], "n", 0, rf"(b) $T={fixed_T}$"),
    ]
    panels = [panel for panel in panels if len(panel[0]) > 1] or panels[:1]
    figure, axes = new_figure(len(panels), width=5.2 * len(panels), height=4.0, shared=True)
    for axis, (rows, varied, index, title) in zip(axes, panels, strict=True):
        for color, row in zip(CURVES, rows, strict=False):
            value = shapes[row][index]
            for way, line in (("flow", "-o"), ("descent", "--s")):
                mean = _mean(data, way, "misalignment", row)
                axis.plot(columns, mean, line, color=color, markersize=4, label=rf"{way}, ${varied}={value}$")
            axis.plot(columns, np.maximum(_mean(data, "flow", "floor", row), 1e-16), ":", color=color, linewidth=1)
        axis.set_yscale("log")
        axis.set_ylim(bottom=1e-4)
        axis.set_xlabel(r"$m$")
        axis.set_xticks(columns)
        axis.set_title(title + "; dotted: what rank m allows", fontsize=10)
        axis.legend(frameon=False, fontsize=8)
    axes[0].set_ylabel(r"$1-\mathrm{corr}(W^{mm}_{\star,\alpha},\,KQ^\top)$")
    return figure


def _mean(data: dict[str, np.ndarray], way: str, name: str, row: int) -> np.ndarray:
    kept = data[f"{way}_settled"][row] & (data[f"{way}_rank"][row] >= 0)
    values = np.where(kept, data[f"{way}_{name}"][row], 0.0)
    count = kept.sum(axis=1)
    return np.where(count > 0, values.sum(axis=1) / np.maximum(count, 1), np.nan)

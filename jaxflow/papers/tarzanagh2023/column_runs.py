"""Figure 10's runs: the flow and the published descent of K and Q with m columns, to where they end."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxflow._core import good, linalg
from jaxflow.data import random_tokens
from jaxflow.flow import ArcLength, Drive, StationaryPoint, Weights, run_queue
from jaxflow.flow.solvers import state_norm
from jaxflow.gradient_descent import descend
from jaxflow.losses import Logistic
from jaxflow.margin import ProgramResult, attention_svm, is_locally_optimal, solve
from jaxflow.models import FactoredAttention
from jaxflow.papers.dataset import Dataset, Part, Sweep
from jaxflow.papers.statement import Mask
from jaxflow.papers.table import Table
from jaxflow.papers.tarzanagh2023.protocol import published_protocol
from jaxflow.risk import EmpiricalRisk

NAMES = {"flow": "the flow", "descent": "the published descent"}

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
    "quick": Size(6, shapes=((5, 5), (5, 10), (10, 5)), columns=(1, 2, 4, 10), length=30.0),
    "paper": Size(50, columns=(1, 2, 3, 4, 5, 6, 7, 8, 9, 10)),
    "large": Size(1000, columns=(1, 2, 3, 4, 5, 6, 7, 8, 9, 10)),
}


def runs_of(numbers: Table, way: str) -> Table:
    """By flow or descent, for each (n, T) and m `(s, k, b)`."""
    return getattr(numbers, way).split(len(numbers.grid.shapes), len(numbers.grid.columns))


def feasible(runs: Table) -> Mask:
    """The program has a solution."""
    return runs.rank >= 0


def usable(runs: Table) -> Mask:
    """Attention settled on one token a sequence and the program has a solution."""
    return runs.settled & feasible(runs)


def _grid(scale: str, key: Any, say: Callable[[str], None]) -> Table:
    """The pairs (n, T), the numbers m of columns, and d. Of its own shape: `shapes` `(s, 2)`; `columns` `(k,)`."""
    size = SIZES[scale]
    return Table(shapes=np.asarray(size.shapes), columns=np.asarray(size.columns), d=np.asarray(size.d))


Cell = tuple[Size, int, int, int]


def _cells(scale: str) -> dict[str, Cell]:
    size = SIZES[scale]
    return {f"n = {n}, T = {T}, m = {m}": (size, n, T, m) for n, T in size.shapes for m in size.columns}


def compute(run: Callable[..., dict[str, Any]], keys: Array, cell: Cell) -> Table:
    r"""Where flow or descent ends for one (n, T) and m.

    - `misalignment`: $1-\mathrm{corr}(W^{mm}_{\star,\alpha},KQ^\top)$; `floor`: the least that m columns allow.
    - `rank` of $W^{mm}_\star$, −1 without a solution; `result`: of its program (`ProgramResult`).
    - `settled`: attention is on one token a sequence; `good`: of the run; `status`: of the selection; `log_time`.
    - `halfway`, `halfway_log_time`: misalignment and log t at half of the flow's length; NaN of descent.
    """
    size, n, T, m = cell
    return Table(run(size, *_start(size, n, T, keys, jnp.asarray(m))))


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

    halfway = halfway_log_time = jnp.asarray(jnp.nan)
    if trajectory.saved is not None:
        point = jax.tree.map(lambda x: x[0] if eqx.is_array(x) else x, trajectory.saved)
        halfway, halfway_log_time = misalignment(point), point.log_time
    return {
        "halfway": halfway,
        "halfway_log_time": halfway_log_time,
        "misalignment": misalignment(trajectory.final),
        "floor": jnp.where(solved, 1.0 - jnp.sqrt(kept), jnp.nan),
        "rank": jnp.where(solved, rank, -1),
        "result": solution.result.value,
        "settled": jnp.all(top >= 1.0 - SETTLED),
        "good": good(trajectory.result),
        "status": is_locally_optimal(data, model.head, selection, solution).status.value,
        "log_time": trajectory.final.log_time,
    }


FIGURE10 = Dataset(
    "tarzanagh2023",
    "fig10",
    {"grid": Sweep(_grid)}
    | {
        way: Part(
            partial(compute, run),
            _cells,
            lambda scale: SIZES[scale].trials,
            block=50,
            draw_from=lambda seed, cell: jax.random.fold_in(
                jax.random.fold_in(jax.random.key(seed), 10), 100 * cell[1] + cell[2]
            ),
            way="as a block",
        )
        for way, run in (("flow", _flow), ("descent", _descent))
    },
    where=f"{__name__}:FIGURE10",
)

"""`reproduce tarzanagh2023 fig1`: paths of W z and K Qᵀz in the plane, and the directions of their programs."""

from collections.abc import Callable
from typing import Any, NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxflow._core import good
from jaxflow.data import TokenData, optimal_tokens
from jaxflow.flow import ArcLength, Drive, Scores, StationaryPoint, Weights
from jaxflow.flow.solvers import state_norm
from jaxflow.gradient_descent import descend, published_protocol
from jaxflow.losses import Logistic
from jaxflow.margin import ProgramResult, attention_svm, is_locally_optimal, solve
from jaxflow.models import CombinedAttention, FactoredAttention, LinearHead, token_scores
from jaxflow.papers.registry import AbstractFigure, Data, register_figure
from jaxflow.papers.tarzanagh2023.plane_claims import claims_of
from jaxflow.plots import draw_plane
from jaxflow.risk import EmpiricalRisk

KINDS = {"combined": "frobenius", "factored": "nuclear"}
SEQUENCES, TOKENS = 2, 5
SETTLED = 1e-3
STATIONARY = 1e-6
# Arc lengths: the distance left falls like 1/length for W. Factors soon are stiff: log t grows like the square.
LENGTHS = {"combined": 1e3, "factored": 60.0}
POINTS = 121


class Size(NamedTuple):
    """Instances of one scale and steps of the published descent; the first decided instance is drawn."""

    trials: int
    steps: int = 2000


SIZES = {"quick": Size(16), "paper": Size(200), "large": Size(5000)}


@register_figure(
    "tarzanagh2023",
    "fig1",
    title="Paths of W and (K, Q) in the plane, and the directions of (Att-SVM) and (Att-SVM*)",
    run_times={
        "quick": "16 instances, under a minute",
        "paper": "200 instances, about a minute",
        "large": "5,000 instances, half an hour",
    },
)
class Figure1(AbstractFigure):
    r"""Figure 1 of Tarzanagh et al. (2023): n = 2, d = 2, $X_i=0.3N+(\mp1,0)$, from W = 0 and from K = 0.1 N, Q = 0.

    Lines: the directions $W^{mm}z_i$ of (Att-SVM, solid) and $W^{mm}_\star z_i$ of (Att-SVM*, dashed) for the
    tokens selected; curves: $W(t)z_i$ and $K(t)Q(t)^\top z_i$ along the flow, with the published descent beside
    them. The paper does not say how $z_i$, v and T are chosen: here $z_i$ is the first token (self-attention),
    v uniform on the circle, T = 5.
    """

    def compute(self, scale: str, seed: int, say: Callable[[str], None]) -> Data:
        return compute(SIZES[scale], seed, say)

    def draw(self, data: Data) -> Any:
        return draw_plane(data)

    def claims(self, data: Data) -> tuple[list[Any], list[str]]:
        return claims_of(data)


def compute(size: Size, seed: int, say: Callable[[str], None]) -> Data:
    """For each kind and way: paths `(trial, point, 2, 2)`, 1 − corr to both programs, codes; and the instances."""
    keys = jax.random.split(jax.random.fold_in(jax.random.key(seed), 1), size.trials)
    data: Data = {"steps": np.asarray(size.steps)}
    for kind in KINDS:
        say(f"{kind}: {size.trials} instances by the flow and by {size.steps} steps of descent")
        for way, run in (("flow", _flow), ("descent", _descent)):
            found = run(kind, size, keys)
            data |= {f"{kind}_{way}_{name}": np.asarray(value) for name, value in found.items()}
    return data | {name: np.asarray(value) for name, value in _instances(keys).items()}


def _instance(kind: str, key: Any) -> tuple[Any, Any]:
    key_tokens, key_head, key_model = jax.random.split(key, 3)
    centres = jnp.asarray([[-1.0, 0.0], [1.0, 0.0]])
    tokens = 0.3 * jax.random.normal(key_tokens, (SEQUENCES, TOKENS, 2)) + centres[:, None, :]
    angle = jax.random.uniform(key_head, (), maxval=2 * jnp.pi)
    head = LinearHead(jnp.stack([jnp.cos(angle), jnp.sin(angle)]))
    risk = EmpiricalRisk(TokenData(tokens, tokens[:, 0], jnp.ones(SEQUENCES)), Logistic())
    if kind == "combined":
        return risk, CombinedAttention(jnp.zeros((2, 2)), head)
    return risk, FactoredAttention(0.1 * jax.random.normal(key_model, (2, 2)), jnp.zeros((2, 2)), head)


@jax.jit
def _instances(keys: Any) -> dict[str, Any]:
    def one(key: Any) -> dict[str, Any]:
        risk, model = _instance("combined", key)
        best = optimal_tokens(token_scores(risk.data, model.head), risk.data.visible)
        return {"tokens": risk.data.tokens, "queries": risk.data.queries, "optimal": best, "v": model.head.v}

    return jax.vmap(one)(keys)


@eqx.filter_jit
def _flow(kind: str, size: Size, keys: Any) -> dict[str, Any]:
    controller = diffrax.PIDController(rtol=1e-6, atol=1e-8, norm=state_norm)
    drive = Drive(diffrax.Tsit5(), controller, StationaryPoint(STATIONARY), 50_000)
    grid = jnp.geomspace(0.05, LENGTHS[kind], POINTS)
    coordinates = Scores() if kind == "combined" else Weights()

    def one(key: Any) -> dict[str, Any]:
        risk, model = _instance(kind, key)
        lane = drive.start(
            risk, model, clock=ArcLength(floor=0.03), coordinates=coordinates, until=grid[-1], save_at=grid
        )
        return _measure(kind, risk, drive.trajectory(drive.run(lane)))

    return jax.vmap(one)(keys)


@eqx.filter_jit
def _descent(kind: str, size: Size, keys: Any) -> dict[str, Any]:
    grid = jnp.asarray(np.unique(np.geomspace(1, size.steps, 60).astype(int)))

    def one(key: Any) -> dict[str, Any]:
        risk, model = _instance(kind, key)
        protocol = {**published_protocol(model), "steps": size.steps}
        return _measure(kind, risk, descend(risk, model, save_at=grid, throw=False, **protocol))

    return jax.vmap(one)(keys)


def _measure(kind: str, risk: Any, trajectory: Any) -> dict[str, Any]:
    model, data = trajectory.final.model, risk.data
    attention = model.attention(data)
    selection = jax.nn.one_hot(jnp.argmax(attention, axis=-1), TOKENS, dtype=bool)
    weights = model.combined_weights()
    measured: dict[str, Any] = {
        "path": jax.vmap(lambda point: data.queries @ point.model.combined_weights().T)(trajectory.saved),
        "reached": trajectory.points.reached,
        "selection": selection,
        "settled": jnp.all(jnp.max(attention, axis=-1) >= 1.0 - SETTLED),
        "good": good(trajectory.result),
        "log_time": trajectory.final.log_time,
    }
    for name in KINDS.values():
        solution: Any = solve(attention_svm(data, selection, name))
        size = jnp.linalg.norm(weights) * jnp.linalg.norm(solution.primal)
        solved = solution.result == ProgramResult.optimal
        measured |= {
            f"{name}_misalignment": jnp.where(solved, 1.0 - jnp.sum(weights * solution.primal) / size, jnp.nan),
            f"{name}_direction": data.queries @ solution.primal.T,
            f"{name}_solved": solved,
        }
        if name == KINDS[kind]:
            measured["status"] = is_locally_optimal(data, model.head, selection, solution).status.value
    return measured

"""`reproduce tarzanagh2023 fig1`: paths of W z and K Qᵀz in the plane, and the directions of their programs."""

from collections.abc import Callable
from typing import Any, NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxflow._core import RESULTS, good
from jaxflow.data import TokenData, optimal_tokens
from jaxflow.flow import ArcLength, Drive, Scores, StationaryPoint, Weights, run_queue
from jaxflow.flow.solvers import state_norm
from jaxflow.gradient_descent import descend, published_protocol
from jaxflow.losses import Logistic
from jaxflow.margin import ProgramResult, attention_svm, is_locally_optimal, solve
from jaxflow.models import CombinedAttention, FactoredAttention, LinearHead, token_scores
from jaxflow.papers.registry import AbstractFigure, Data, register_figure
from jaxflow.papers.tarzanagh2023.plane_claims import (
    ALIGNED,
    KINDS,
    SETTINGS,
    WAYS,
    Cloud,
    Runs,
    claims_of,
    record,
    records,
)
from jaxflow.papers.tarzanagh2023.verify.follow import misalignment
from jaxflow.plots import new_figure, new_grid
from jaxflow.risk import EmpiricalRisk
from jaxflow.study.keys import as_keys, key_data

SEQUENCES = 2
# Tokens of the larger setting; the smaller one hides the rest, so that one compiled program serves both.
TOKENS = 5
SETTLED = 1e-3
STATIONARY = 1e-6
# Arc lengths: the distance left falls like 1/length for W. Factors soon are stiff: log t grows like the square.
LENGTHS = {"combined": 1e3, "factored": 60.0}
POINTS = 121
# Lanes of a batch: a wider one waits longer for its slowest member.
WIDTH = 16


class Size(NamedTuple):
    """Instances of one scale and steps of the published descent."""

    trials: int
    steps: int = 2000


SIZES = {"quick": Size(16), "paper": Size(200), "large": Size(5000)}


class PlanePanel(NamedTuple):
    r"""One instance, trained one way.

    - `title`, `symbol`: what is trained.
    - `tokens`, `optimal`: of each sequence, `(k, 2)`.
    - `flow`, `descent` `(point, 2, 2)`: $Wz_i$ along the flow and the descent.
    - `solid`, `dashed` `(2, 2)`: $W^{mm}z_i$ of (Att-SVM) and (Att-SVM*).
    """

    title: str
    symbol: str
    tokens: tuple[np.ndarray, ...]
    optimal: tuple[np.ndarray, ...]
    flow: np.ndarray
    descent: np.ndarray
    solid: np.ndarray
    dashed: np.ndarray


@register_figure(
    "tarzanagh2023",
    "fig1",
    title="Paths of W and (K, Q) in the plane, and the directions of (Att-SVM) and (Att-SVM*)",
    run_times={
        "quick": "16 instances of 2 settings, about a minute",
        "paper": "200 instances of 2 settings, some minutes",
        "large": "5,000 instances of 2 settings, an hour",
    },
)
class Figure1(AbstractFigure):
    r"""Figure 1 of Tarzanagh et al. (2023), n = d = 2, in two settings.

    - `described`: as §3 describes it: "We consider a scenario where n = d = 2 and T = 3, and employ cross-attention,
      where tokens (z_1, z_2) are generated independently of the inputs (X_1, X_2)". By which law is not said: here
      tokens, queries and head are uniform on the unit circle, as in the paper's other random data (Figures 4, 7).
    - `published`: self-attention ($z_i$ is the first token) with T = 5, $X_i=0.3N+(\mp1,0)$, v uniform on the circle.

    Both start from W = 0, and from K = 0.1 N, Q = 0. Lines: the directions $W^{mm}z_i$ of (Att-SVM, solid) and
    $W^{mm}_\star z_i$ of (Att-SVM*, dashed) for the tokens selected; curves: $W(t)z_i$ and $K(t)Q(t)^\top z_i$ along
    the flow, with the published descent beside them.
    """

    def compute(self, scale: str, seed: int, say: Callable[[str], None]) -> Data:
        return compute(SIZES[scale], seed, say)

    def draw(self, data: Data) -> Any:
        return draw_plane([panel for setting in SETTINGS for panel in panels_of(data, setting)])

    def claims(self, data: Data) -> tuple[list[Any], list[str]]:
        return claims_of(data)


def compute(size: Size, seed: int, say: Callable[[str], None]) -> Data:
    """For each setting its instances (`Cloud`), and for each kind and way their `Runs`, as arrays by name."""
    data: Data = {}
    for setting in SETTINGS:
        words = key_data(seed, "tarzanagh2023 fig1", {"setting": setting}, range(size.trials))
        described = jnp.full(size.trials, setting == "described")
        say(f"{setting}: {size.trials} instances of W and (K, Q), by the flow and by {size.steps} steps of descent")
        risks, models = _start(as_keys(words), described)
        data |= record(setting, Cloud(*map(np.asarray, _cloud(risks, models["combined"]))))
        for kind in KINDS:
            for way, run in zip(WAYS, (_flow, _descent), strict=True):
                runs = run(kind, size, risks, models[kind])
                data |= record(f"{setting}_{kind}_{way}", Runs(*map(np.asarray, runs)))
    return data


@jax.jit
def _start(keys: Any, described: Any) -> tuple[Any, dict[str, Any]]:
    """Risks and starts of a batch; which setting is a value, so that both have the same shapes."""

    def one(key: Any, described: Any) -> tuple[Any, dict[str, Any]]:
        key_tokens, key_queries, key_head, key_model = jax.random.split(key, 4)
        noise = jax.random.normal(key_tokens, (SEQUENCES, TOKENS, 2))
        on_circle = noise / jnp.linalg.norm(noise, axis=-1, keepdims=True)
        centres = jnp.asarray([[-1.0, 0.0], [1.0, 0.0]])
        tokens = jnp.where(described, on_circle, 0.3 * noise + centres[:, None, :])
        apart = jax.random.normal(key_queries, (SEQUENCES, 2))
        apart = apart / jnp.linalg.norm(apart, axis=-1, keepdims=True)
        angle = jax.random.uniform(key_head, (), maxval=2 * jnp.pi)
        head = LinearHead(jnp.stack([jnp.cos(angle), jnp.sin(angle)]))
        visible = jnp.broadcast_to(jnp.arange(TOKENS) < jnp.where(described, 3, TOKENS), (SEQUENCES, TOKENS))
        queries = jnp.where(described, apart, tokens[:, 0])
        models = {
            "combined": CombinedAttention(jnp.zeros((2, 2)), head),
            "factored": FactoredAttention(0.1 * jax.random.normal(key_model, (2, 2)), jnp.zeros((2, 2)), head),
        }
        return EmpiricalRisk(TokenData(tokens, queries, jnp.ones(SEQUENCES), visible), Logistic()), models

    return eqx.filter_vmap(one)(keys, described)


@eqx.filter_jit
def _cloud(risks: Any, models: Any) -> Cloud:
    def one(risk: Any, model: Any) -> Cloud:
        data = risk.data
        best = optimal_tokens(token_scores(data, model.head), data.visible)
        return Cloud(data.tokens, data.visible, best, data.queries)

    return eqx.filter_vmap(one)(risks, models)


@eqx.filter_jit
def _flow(kind: str, size: Size, risks: Any, models: Any) -> Runs:
    controller = diffrax.PIDController(rtol=1e-6, atol=1e-8, norm=state_norm)
    drive = Drive(diffrax.Tsit5(), controller, StationaryPoint(STATIONARY), 50_000)
    grid = jnp.geomspace(0.05, LENGTHS[kind], POINTS)
    coordinates = Scores() if kind == "combined" else Weights()

    def start(risk: Any, model: Any) -> Any:
        how: Any = {"clock": ArcLength(floor=0.03), "coordinates": coordinates, "until": grid[-1], "save_at": grid}
        return drive.start(risk, model, **how)

    lanes = run_queue(drive, eqx.filter_vmap(start)(risks, models), width=min(WIDTH, size.trials))
    return eqx.filter_vmap(lambda risk, lane: _measure(kind, risk, drive.trajectory(lane)))(risks, lanes)


@eqx.filter_jit
def _descent(kind: str, size: Size, risks: Any, models: Any) -> Runs:
    grid = jnp.asarray(np.unique(np.geomspace(1, size.steps, 60).astype(int)))

    def one(risk: Any, model: Any) -> Runs:
        protocol = {**published_protocol(model), "steps": size.steps}
        return _measure(kind, risk, descend(risk, model, save_at=grid, throw=False, **protocol))

    return eqx.filter_vmap(one)(risks, models)


def _measure(kind: str, risk: Any, trajectory: Any) -> Runs:
    model, data = trajectory.final.model, risk.data
    attention = model.attention(data)
    selection = jax.nn.one_hot(jnp.argmax(attention, axis=-1), TOKENS, dtype=bool)
    weights = jax.vmap(lambda point: point.model.combined_weights())(trajectory.saved)
    solutions: dict[str, Any] = {name: solve(attention_svm(data, selection, name)) for name in KINDS.values()}
    (own,) = (solution for name, solution in solutions.items() if name == KINDS[kind])
    (other,) = (solution for name, solution in solutions.items() if name != KINDS[kind])
    own_solved, other_solved = (one.result == ProgramResult.optimal for one in (own, other))
    final = model.combined_weights()
    return Runs(
        path=jax.vmap(lambda W: data.queries @ W.T)(weights),
        reached=trajectory.points.reached,
        log_length=trajectory.points.log_arc_length,
        distances=jnp.where(own_solved, jax.vmap(lambda W: misalignment(W, own.primal))(weights), jnp.nan),
        own=jnp.where(own_solved, misalignment(final, own.primal), jnp.nan),
        other=jnp.where(other_solved, misalignment(final, other.primal), jnp.nan),
        frobenius=data.queries @ solutions["frobenius"].primal.T,
        nuclear=data.queries @ solutions["nuclear"].primal.T,
        selection=selection,
        settled=good(trajectory.result) & jnp.all(jnp.max(attention, axis=-1) >= 1.0 - SETTLED),
        # Descent has no rule that stops it.
        stationary=trajectory.result == RESULTS.event_occurred,
        status=is_locally_optimal(data, model.head, selection, own).status.value,
        log_time=trajectory.final.log_time,
    )


def panels_of(data: Data, setting: str) -> list[PlanePanel]:
    """Panels of W and (K, Q) for the instance whose two programs differ most, none where no instance will do.

    Of the instances on which both flows have settled on the same tokens and arrived (1 − corr at most `ALIGNED`).
    """
    cloud = records(Cloud, data, setting)
    flows = {kind: records(Runs, data, f"{setting}_{kind}_flow") for kind in KINDS}
    ready = np.all([runs.decided & (runs.own <= ALIGNED) for runs in flows.values()], axis=0)
    ready &= (flows["combined"].selection == flows["factored"].selection).all(axis=(1, 2))
    if not ready.any():
        return []
    rays = [ray.reshape(len(ready), -1) for ray in (flows["combined"].frobenius, flows["combined"].nuclear)]
    rays = [ray / np.maximum(np.linalg.norm(ray, axis=1, keepdims=True), 1e-300) for ray in rays]
    at = int(np.argmax(np.where(ready, -np.sum(rays[0] * rays[1], axis=1), -np.inf)))
    shown, best = cloud.visible[at], cloud.optimal[at]
    panels = []
    for kind, symbol in (("combined", r"$W$"), ("factored", r"$KQ^\top$")):
        runs = flows[kind]
        panels.append(
            PlanePanel(
                title=f"{SETTINGS[setting]}, training {symbol}",
                symbol=symbol,
                tokens=tuple(cloud.tokens[at, i][shown[i] & ~best[i]] for i in range(SEQUENCES)),
                optimal=tuple(cloud.tokens[at, i][best[i]] for i in range(SEQUENCES)),
                flow=runs.path[at][runs.reached[at]],
                descent=records(Runs, data, f"{setting}_{kind}_descent").path[at],
                solid=runs.frobenius[at],
                dashed=runs.nuclear[at],
            )
        )
    return panels


# Okabe and Ito (2008): the two sequences' tokens, and their queries' paths.
TOKEN_COLORS = ("#009E73", "#E69F00")
PATH_COLORS = ("#D55E00", "#0072B2")


def draw_plane(panels: list[PlanePanel]) -> Any:
    r"""Tokens, the optimal ones as stars; lines $W^{mm}z_i$ (solid) and $W^{mm}_\star z_i$ (dashed); curves $W(t)z_i$.

    Two panels a row. Lengths of the curves are drawn as $r\mapsto\log(1+r)$, which keeps directions.
    """
    if not panels:
        return new_figure(1, width=5.0, height=4.8)[0]
    figure, grid = new_grid((len(panels) + 1) // 2, 2, width=10.0, height=4.7 * ((len(panels) + 1) // 2))
    for axis, panel in zip(grid.ravel(), panels, strict=False):
        _draw(axis, panel)
    figure.suptitle(
        "green, orange: tokens of $X_1$, $X_2$, optimal ones starred; red, blue: $z_1$, $z_2$, curves by the flow,\n"
        "dots by the published descent; grey: (Att-SVM) solid, (Att-SVM*) dashed; radii as log(1 + r)",
        fontsize=9,
    )
    return figure


def _draw(axis: Any, panel: PlanePanel) -> None:
    axis.set_title(panel.title, fontsize=10)
    axis.set_aspect("equal", adjustable="datalim")
    axis.set_xlabel(r"first coordinate of $x_{it}$, " + panel.symbol + r"$z_i$")
    axis.set_ylabel("second coordinate")
    for i, color in enumerate(PATH_COLORS):
        axis.plot(*panel.tokens[i].T, "o", color=TOKEN_COLORS[i], markersize=5)
        axis.plot(*panel.optimal[i].T, "*", color=TOKEN_COLORS[i], markersize=13, markeredgecolor="black")
        path, steps = _shrunk(panel.flow[:, i]), _shrunk(panel.descent[:, i])
        reach = np.linalg.norm(path, axis=-1).max()
        for ray, line in ((panel.solid[i], "-"), (panel.dashed[i], "--")):
            end = 1.15 * reach * ray / np.linalg.norm(ray)
            axis.plot([0, end[0]], [0, end[1]], line, color="#8C8C8C", linewidth=1.2)
        axis.plot(*path.T, color=color, linewidth=2)
        axis.annotate("", path[-1], path[-2], arrowprops={"arrowstyle": "-|>", "color": color, "lw": 2})
        axis.plot(*steps.T, ".", color=color, markersize=3)
        axis.annotate(rf"$z_{i + 1}$", 1.05 * path[-1], color=color)


def _shrunk(points: np.ndarray) -> np.ndarray:
    radius = np.linalg.norm(points, axis=-1, keepdims=True)
    return points * np.log1p(radius) / np.where(radius > 0, radius, 1.0)

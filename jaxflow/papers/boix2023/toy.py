"""The toy task of Appendix A: an attention head with diagonal weights learns from another one.

Its flows from starts of many sizes, with Algorithm 1 beside them, behind figures 2, 8 and 9.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxflow._core import checked
from jaxflow.losses import Squared
from jaxflow.models import DiagonalHead, HadamardNetwork
from jaxflow.papers.boix2023.product_paths import ProductPath, algorithm_1, follow_products, stage_solver
from jaxflow.papers.experiment import Dataset, Part, Table
from jaxflow.plots import COLORS
from jaxflow.risk import EmpiricalRisk
from jaxflow.study import subkey
from jaxflow.teachers import diagonal_head_task
from jaxflow.theory import StageResult, Stages

# The scales of the paper, and two that no floating-point weight could have.
PAPER = tuple(math.log(alpha) for alpha in (0.1, 0.01, 1e-4, 1e-8, 1e-16, 1e-32))
BEYOND = (math.log(1e-300), -10_000.0)

# A start of which ordinary weights hold the products, for comparing the number of steps; its stages are late by up
# to a tenth of their time.
ORDINARY = math.log(1e-8)
LATER = 1.15

# Stages of which the next follows after this share of their own time, or later, are well separated.
SEPARATED = 0.05


# `n` samples of `T` tokens in dimension `d`; the first `stages` stages; `alphas` by their logarithms; paths are kept at
# up to `saves` of their steps.
SIZE = Table(n=1000, T=10, d=50, stages=12, alphas=PAPER + BEYOND, saves=512)
QUICK_ALPHAS = (PAPER[1], PAPER[3], PAPER[5], BEYOND[1])
SIZES = {
    "quick": SIZE.replace(n=60, T=5, d=4, stages=5, alphas=QUICK_ALPHAS, saves=256),
    "paper": SIZE,
    "large": SIZE.replace(stages=40, saves=2048),
}
ONCE = {"quick": 1, "paper": 1, "large": 1}
# What is kept of each stage as Algorithm 1 has it.
OF_PLATEAUS = ("products", "losses", "gaps", "curvatures", "leaving")


def make_task(key: Any, size: Table) -> Table:
    """The instance of a key: its `risk`, the `student`'s direction $\\theta_0$, the predicted `stages`, and the horizon
    `until`, within which all of them are and the flow is followed."""
    return _task(tuple(jax.random.key_data(key).tolist()), size)


# All parts use the same task one after another, and Algorithm 1 takes minutes at the size of the paper.
@functools.lru_cache(maxsize=1)
def _task(words: tuple[int, ...], size: Table) -> Table:
    key = jax.random.wrap_key_data(jnp.asarray(words, jnp.uint32))
    data, _ = diagonal_head_task(subkey(key, "task"), size.n, size.T, size.d)
    risk = EmpiricalRisk(data, Squared())
    student = HadamardNetwork.init(subkey(key, "student"), DiagonalHead(), DiagonalHead.size(size.d))
    stages = jax.device_get(algorithm_1(risk, student, max_stages=size.stages + 1))
    times, count = np.asarray(stages.times), int(stages.count)
    # To the middle of the last plateau whose end is known.
    until = 0.5 * (times[count - 2] + times[count - 1]) if count > size.stages else 1.1 * times[count - 1]
    return Table(risk=risk, student=student, stages=stages, until=float(until))


def predict(key: Any, size: Table) -> Table:
    r"""Algorithm 1: stages k that begin within the horizon `until`, filled up with infinite times.

    `times` $T_{k+1}$ and the `next` ones, `coordinates`, `losses` and `products` `(k, p)` on the plateau; `gaps`,
    `curvatures`, `leaving`: slacks of Assumptions 4.3 and 4.4, `(k,)` each, and `slacks` of their clauses over all
    stages `(4,)`; `initial_loss`.
    """
    task = make_task(key, size)
    stages, k = task.stages, size.stages
    inside = np.asarray(stages.times)[:k] <= task.until

    def kept(values: Any, rest: float | int) -> np.ndarray:
        first = np.asarray(values)[:k]
        return np.where(inside.reshape(-1, *[1] * (first.ndim - 1)), first, rest)

    return Table(
        times=kept(stages.times, np.inf),
        next=kept(np.asarray(stages.times)[1:], np.inf),
        coordinates=kept(stages.coordinates, -1).astype(int),
        **{name: kept(getattr(stages, name), np.nan) for name in OF_PLATEAUS},
        slacks=np.asarray(stage_slacks(stages, task.student)),
        initial_loss=np.asarray(stages.initial_loss),
        until=np.asarray(task.until),
    )


@checked()
def stage_slacks(stages: Stages, model: HadamardNetwork) -> tuple[Array, ...]:
    r"""Slacks of Assumptions 4.3 (all three clauses) and 4.4 over the stages that were learned, positive where they
    hold.

    They are: $|u_i(0)|\ne|v_i(0)|$ for all i; the smallest waiting time has no equal; $g_i\ne0$ where a coordinate has
    left; stationary points are strict minima on their support. Assumption 2.1 (smooth loss, bounded data) is met by
    every finite sample and every loss here whose derivative is continuous.

    **Arguments:** `stages` of `model`, whose weights at the start are looked at.
    """
    logs = model.log_weights
    # (u - v)/(u + v) or its inverse, whichever is smaller: zero where |u| = |v|.
    balance = jnp.min(jnp.exp(-jnp.abs(logs.log_sum - logs.log_difference)))
    learned = stages.results == StageResult.learned
    tied = jnp.any(stages.results == StageResult.degenerate)
    gap = jnp.where(tied, 0.0, jnp.min(jnp.where(learned, stages.gaps, jnp.inf)))
    rest = (jnp.min(jnp.where(learned, one, jnp.inf)) for one in (stages.leaving, stages.curvatures))
    return balance, gap, *rest


def path_of(task: Table, log_alpha: float, until: float, **how: Any) -> ProductPath:
    """The flow of the task from a start of this size."""
    return follow_products(task.risk, task.student.scaled(log_alpha), log_alpha, until, **how)


def follow(key: Any, setting: tuple[Table, float]) -> Table:
    r"""The flow from a start of this size: times, losses `(m,)` and products `(m, p)` at its steps, the last one
    repeated; whether it got to its end, `ok`;
    `crossings` of half of the predicted product of $i_k$ (nearest to $T_{k+1}$; NaN where
    there is none); in the middle of each plateau the products, `plateaus`, and their `distances`
    $\max_i|a_i-a_i^{k+1}|$ (NaN beyond the end).

    `effort`: accepted steps until every stage has reached half of its product, from here, and for the smallest α also
    from a start of 1e-8 by the solver of the smallest scales and by its own (NaN for the others).
    """
    size, log_alpha = setting
    task, predicted = make_task(key, size), predict(key, size)
    path = path_of(task, log_alpha, task.until)
    effort = [steps_to_stages(path, predicted), np.nan, np.nan]
    if log_alpha == min(size.alphas):
        # What a start costs that no number holds.
        for at, solver in enumerate((stage_solver(), None)):
            ordinary = path_of(task, ORDINARY, LATER * task.until, solver=solver)
            effort[1 + at] = steps_to_stages(ordinary, predicted)
    times, losses, products = (filled(values, size.saves) for values in (path.times, path.losses, path.products))
    crossings, plateaus = compare(path, predicted)
    return Table(
        log_alpha=np.asarray(log_alpha),
        times=times,
        losses=losses,
        products=products,
        ok=np.asarray(path.reached(task.until)),
        crossings=crossings,
        plateaus=plateaus,
        distances=np.max(np.abs(plateaus - predicted.products), axis=1),
        effort=np.asarray(effort),
    )


def filled(values: Any, count: int) -> np.ndarray:
    """The first axis filled up with the last entry; of longer ones as many, evenly, with both ends."""
    values = np.asarray(values)
    if len(values) > count:
        return values[np.linspace(0, len(values) - 1, count).round().astype(int)]
    return np.concatenate([values, np.repeat(values[-1:], count - len(values), axis=0)])


def _half(predicted: Table, k: int) -> tuple[int, float]:
    """The coordinate of a stage, and half of its predicted product; NaN of what was filled up."""
    i = int(predicted.coordinates[k])
    return i, 0.5 * float(predicted.products[k, i])


def steps_to_stages(path: ProductPath, predicted: Table) -> float:
    """Accepted steps until every predicted stage has reached half of its product; NaN where one has not."""
    halves = [path.crossings(*_half(predicted, k)) for k in np.flatnonzero(predicted.coordinates >= 0).tolist()]
    if not all(map(len, halves)):
        return math.nan
    return float(np.sum(path.times <= max(passed[0] for passed in halves)))


def compare(path: ProductPath, predicted: Table) -> tuple[np.ndarray, np.ndarray]:
    """Crossings and plateaus of a path. The last plateau ends at the horizon where nothing follows."""
    crossings = [path.passes(*_half(predicted, k), time) for k, time in enumerate(predicted.times)]
    ends = np.where(np.isfinite(predicted.next), predicted.next, predicted.until)
    middles = 0.5 * (predicted.times + ends)
    there = middles <= path.times[-1] * (1.0 + 1e-12)
    return np.asarray(crossings), np.where(there[:, None], path.products_at(np.where(there, middles, 0.0)), np.nan)


TOY = Dataset(
    "boix2023",
    "toy",
    {
        "stages": Part(predict, lambda scale: {"Algorithm 1": SIZES[scale]}, ONCE, 1, way="on host"),
        "paths": Part(
            follow,
            lambda scale: {f"log alpha={alpha:.6g}": (SIZES[scale], alpha) for alpha in SIZES[scale].alphas},
            ONCE,
            instances="stages",
            way="on host",
        ),
    },
)


def toy(numbers: Table) -> Table:
    """The one task: what was predicted, k stages, and the paths of a scales, without what was filled up.

    With the row of the `smallest` α, relative errors of the times, `lateness` `(a, k)`, and which stages have both
    neighbours at a distance, `separated`.
    """
    found, paths = numbers.stages.at((0, 0)), numbers.paths.at((slice(None), 0))
    real = found.coordinates >= 0
    kept = {name: getattr(found, name)[real] for name in ("times", "next", *OF_PLATEAUS)}
    kept |= {name: getattr(paths, name)[:, real] for name in ("crossings", "plateaus", "distances")}
    times, after = kept["times"], kept["next"]
    apart = (times - np.append(0.0, times)[:-1] > SEPARATED * times) & (after - times > SEPARATED * times)
    return Table(
        kept,
        initial_loss=float(found.initial_loss),
        until=float(found.until),
        log_alphas=paths.log_alpha,
        ok=paths.ok,
        smallest=int(np.argmin(paths.log_alpha)),
        lateness=kept["crossings"] / times - 1.0,
        separated=apart,
    )


# Both products of matrices with their colour and symbol, and the label of the time axis.
PARTS = {
    "KQ": (COLORS["combined"], r"\mathrm{diag}(w_K)\,\mathrm{diag}(w_Q)"),
    "VO": (COLORS["factored"], r"\mathrm{diag}(w_V)\,\mathrm{diag}(w_O)"),
}
TIME = r"rescaled time $t/\log(1/\alpha)$"


def entries(products: np.ndarray, part: str) -> np.ndarray:
    """The products of $w_K\\odot w_Q$ (`KQ`) or of $w_V\\odot w_O$ (`VO`)."""
    d = products.shape[-1] // 2
    return products[..., :d] if part == "KQ" else products[..., d:]

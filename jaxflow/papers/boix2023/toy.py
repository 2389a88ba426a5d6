"""The toy task of Appendix A: an attention head with diagonal weights learns from another one."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxflow.flow import ProductPath, follow_products, stage_solver
from jaxflow.losses import Squared
from jaxflow.models import DiagonalHead, HadamardNetwork
from jaxflow.papers.registry import Data
from jaxflow.risk import EmpiricalRisk
from jaxflow.teachers import diagonal_head_task
from jaxflow.theory import Stages, incremental_learning

# The scales of the paper, and two that no floating-point weight could have.
PAPER = tuple(math.log(alpha) for alpha in (0.1, 0.01, 1e-4, 1e-8, 1e-16, 1e-32))
BEYOND = (math.log(1e-300), -10_000.0)

# A start of which ordinary weights hold the products, for comparing the number of steps; its stages are late by up
# to a tenth of their time.
ORDINARY = math.log(1e-8)
LATER = 1.15


class Size(NamedTuple):
    """`n` samples of `T` tokens in dimension `d`; the first `stages` stages; `alphas` by their logarithms."""

    n: int
    T: int
    d: int
    stages: int
    alphas: tuple[float, ...]


SIZES = {
    "quick": Size(60, 5, 4, 5, (PAPER[1], PAPER[3], PAPER[5], BEYOND[1])),
    "paper": Size(1000, 10, 50, 12, PAPER + BEYOND),
    "large": Size(1000, 10, 50, 40, PAPER + BEYOND),
}


class Task(NamedTuple):
    """The risk, the student's direction $\\theta_0$, and how far the flow is followed."""

    risk: EmpiricalRisk
    student: HadamardNetwork
    stages: Stages
    until: float


def make_task(size: Size, seed: int, say: Callable[[str], None]) -> Task:
    """The instance of a seed with its predicted stages, all of them within the horizon."""
    key_task, key_student = jax.random.split(jax.random.fold_in(jax.random.key(seed), 2))
    data, _ = diagonal_head_task(key_task, size.n, size.T, size.d)
    risk = EmpiricalRisk(data, Squared())
    student = HadamardNetwork.init(key_student, DiagonalHead(), DiagonalHead.size(size.d))
    stages = jax.device_get(_predict(risk, student, size.stages + 1))
    times = np.asarray(stages.times)
    count = int(stages.count)
    say(f"Algorithm 1: {count} stages, T_1 = {times[0]:.4g}, T_{count} = {times[count - 1]:.4g}")
    # To the middle of the last plateau whose end is known.
    until = 0.5 * (times[count - 2] + times[count - 1]) if count > size.stages else 1.1 * times[count - 1]
    return Task(risk, student, stages, float(until))


@partial(jax.jit, static_argnums=2)
def _predict(risk: Any, student: Any, stages: int) -> Stages:
    return incremental_learning(risk, student, max_stages=stages)


def follow(task: Task, log_alpha: float, say: Callable[[str], None]) -> ProductPath:
    """The flow of the task from a start of this size."""
    path = follow_products(task.risk, task.student.scaled(log_alpha), log_alpha, task.until)
    steps = int(path.trajectory.stats["num_steps"])
    say(f"α = {alpha_text(log_alpha)}: {steps} steps")
    return path


def alpha_text(log_alpha: float) -> str:
    """α in words: a power of ten where it is one, of e otherwise."""
    exponent = log_alpha / math.log(10.0)
    if exponent < -400:
        return f"e^({log_alpha:.0f})"
    return f"{math.exp(log_alpha):.3g}" if exponent > -4.5 else f"1e{round(exponent)}"


def paths_data(task: Task, size: Size, say: Callable[[str], None]) -> Data:
    """The flow at every α, and the prediction."""
    stages = task.stages
    inside = np.asarray(stages.times) <= task.until
    data: Data = {
        "log_alphas": np.asarray(size.alphas),
        "d": np.asarray(size.d),
        "until": np.asarray(task.until),
        "stage_times": np.asarray(stages.times)[inside],
        "stage_coordinates": np.asarray(stages.coordinates)[inside],
        "stage_products": np.asarray(stages.products)[inside],
        "stage_losses": np.asarray(stages.losses)[inside],
        "stage_gaps": np.asarray(stages.gaps)[inside],
        "stage_curvatures": np.asarray(stages.curvatures)[inside],
        "stage_leaving": np.asarray(stages.leaving)[inside],
        "stage_next": np.append(np.asarray(stages.times), np.inf)[1:][inside],
        "initial_loss": np.asarray(stages.initial_loss),
        "succeeded": np.zeros(len(size.alphas), bool),
        "steps": np.zeros(len(size.alphas), int),
        "accepted": np.zeros(len(size.alphas), int),
        "crossings": np.full((len(size.alphas), int(inside.sum())), np.nan),
        "distances": np.full((len(size.alphas), int(inside.sum())), np.nan),
    }
    for row, log_alpha in enumerate(size.alphas):
        path = follow(task, log_alpha, say)
        data[f"times_{row}"] = path.times
        data[f"losses_{row}"] = path.losses
        data[f"products_{row}"] = path.products
        data["succeeded"][row] = reached(path, task.until)
        data["steps"][row] = int(path.trajectory.stats["num_steps"])
        data["accepted"][row] = int(path.trajectory.stats["num_accepted_steps"])
        data["crossings"][row], data["distances"][row] = compare(path, data)
        if log_alpha == min(size.alphas):
            data["steps_to_stages"] = np.asarray([steps_to_stages(path, data), *_ordinary(task, data, say)])
    return data


def steps_to_stages(path: ProductPath, data: Data) -> float:
    """Accepted steps until every predicted stage has reached half of its product; NaN where one has not."""
    halves = [
        path.crossings(int(coordinate), 0.5 * float(products[coordinate]))
        for coordinate, products in zip(data["stage_coordinates"], data["stage_products"], strict=True)
    ]
    if not all(len(passed) for passed in halves):
        return math.nan
    return float(np.sum(path.times <= max(passed[0] for passed in halves)))


def _ordinary(task: Task, data: Data, say: Callable[[str], None]) -> list[float]:
    """The same from a start of 1e-8, with the solver of the smallest scales and with the one of this: what a start
    costs that no number holds."""
    student = task.student.scaled(ORDINARY)
    found = []
    for solver in (stage_solver(), None):
        path = follow_products(task.risk, student, ORDINARY, LATER * task.until, solver=solver)
        name = "the solver of the smallest scales" if solver else "its own solver"
        say(f"α = {alpha_text(ORDINARY)} by {name}: {len(path.times) - 1} accepted steps")
        found.append(steps_to_stages(path, data))
    return found


def reached(path: ProductPath, until: float) -> bool:
    """Whether the integration came to its end."""
    return bool(path.times[-1] >= until * (1.0 - 1e-12))


def compare(path: ProductPath, data: Data) -> tuple[np.ndarray, np.ndarray]:
    r"""For each stage the time at which the flow passes half the predicted product of $i_k$ (nearest to $T_{k+1}$;
    NaN where it never does), and $\max_i|a_i-a_i^{k+1}|$ in the middle of the plateau (NaN where its end is
    beyond the horizon)."""
    crossings, distances = [], []
    ends = np.minimum(data["stage_next"], data["until"] if np.isinf(data["stage_next"][-1]) else np.inf)
    for time, end, coordinate, products in zip(
        data["stage_times"], ends, data["stage_coordinates"], data["stage_products"], strict=True
    ):
        passed = path.crossings(int(coordinate), 0.5 * float(products[coordinate]))
        crossings.append(passed[np.argmin(np.abs(passed - time))] if len(passed) else np.nan)
        middle = 0.5 * (time + end)
        known = middle <= path.times[-1] * (1.0 + 1e-12)
        distances.append(np.max(np.abs(path.products_at(middle)[0] - products)) if known else np.nan)
    return np.asarray(crossings), np.asarray(distances)


def entries(data: Data, part: str) -> slice:
    """Which products are those of $w_K\\odot w_Q$ (`KQ`) or of $w_V\\odot w_O$ (`VO`)."""
    d = int(data["d"])
    return slice(0, d) if part == "KQ" else slice(d, 2 * d)

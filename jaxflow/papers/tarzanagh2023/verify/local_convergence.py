"""Theorem 7: from close to a locally-optimal direction, W converges to it."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxflow._core import Outcome
from jaxflow.papers.checks import AbstractCheck, Row, register_check
from jaxflow.papers.registry import Data
from jaxflow.papers.tarzanagh2023.verify.choices import CHOICES as TOKENS
from jaxflow.papers.tarzanagh2023.verify.choices import N, T, all_choices, random_instance
from jaxflow.papers.tarzanagh2023.verify.cones import LOCAL
from jaxflow.papers.tarzanagh2023.verify.follow import CERTIFIED, SHAPE, follow
from jaxflow.papers.tarzanagh2023.verify.instances import Instance
from jaxflow.report import Evidence

INSTANCES = {"quick": 3, "paper": 12, "large": 200}
D = 4
# Locally-optimal choices tried on each instance; where there are fewer, all.
CHOICES = 4
# 1 − corr of the starts. 0 stands for the proof's own μ(α) of (67); the other asks how far one may go.
CORRELATIONS = (0.0, 1e-1)
# The proof wants R so large that T exp(−RΘδ) is small, δ of (67) and Θ = 1/‖W^mm_α‖: RΘδ is this.
EXPONENT = 20.0
ALIGNED = 1e-8


@register_check("tarzanagh2023", "local-convergence", statements="Theorem 7")
class LocalConvergence(AbstractCheck):
    """Locally-optimal choices by enumeration; starts at a given angle from each in a random direction."""

    def compute(self, scale: str, key: Any, say: Callable[[str], None]) -> Data:
        say(f"Theorem 7: up to {CHOICES} locally-optimal choices of each of {INSTANCES[scale]} instances")
        starts, cones, empties, available = [], [], [], []
        for one in jax.random.split(key, INSTANCES[scale]):
            key_data, key_pick, key_start = jax.random.split(one, 3)
            given = random_instance(key_data, D)
            every = all_choices(given)
            local = np.flatnonzero(np.isin(every["status"], LOCAL))
            available.append(len(local))
            for number in np.asarray(jax.random.permutation(key_pick, local))[:CHOICES]:
                support, excess, W = (every[name][number] for name in ("support", "excess", "weights"))
                empties.append(bool((~support.any(axis=1)).any()))
                mu, radius = cone_of(given, support, excess, W)
                cones.append((mu, radius))
                target = np.arange(T) == TOKENS[number][:, None]
                noise = np.asarray(jax.random.normal(jax.random.fold_in(key_start, int(number)), (D, D)))
                noise = np.pad(noise, [(0, SHAPE[2] - D)] * 2)
                for apart in CORRELATIONS:
                    start = jnp.asarray(_near(W, noise, apart or mu, radius))
                    starts.append(Instance(given.data, given.head, start, jnp.asarray(target)))
        followed = follow(jax.tree.map(lambda *leaves: np.stack([np.asarray(leaf) for leaf in leaves]), *starts))
        table = {name: value.reshape(len(cones), len(CORRELATIONS)) for name, value in followed.items()}
        mu, radius = np.asarray(cones).T
        return table | {"empty": np.asarray(empties), "available": np.asarray(available), "mu": mu, "radius": radius}

    def rows(self, data: Data) -> list[Row]:
        return [_row(data, column) for column in range(len(CORRELATIONS))]


def cone_of(given: Instance, support: np.ndarray, excess: np.ndarray, W: np.ndarray) -> tuple[float, float]:
    r"""$\mu(\alpha)=\frac18(\min(\frac12,\delta)/A)^2$ of (67), and R in units of $\|W^{mm}_\alpha\|$.

    δ is half the least distance between the margins of a support and of another token of the same sequence; a
    sequence without support tokens has none.
    """
    beyond = np.where(support, np.inf, excess).min(axis=1)
    delta = 0.5 * float(np.where(support.any(axis=1), beyond, np.inf).min())
    tokens, queries = np.asarray(given.data.tokens), np.asarray(given.data.queries)
    sizes = np.linalg.norm(tokens, axis=2) * np.linalg.norm(queries, axis=1)[:, None]
    A = float(sizes.max()) * float(np.linalg.norm(W))
    return (min(0.5, delta) / A) ** 2 / 8, EXPONENT / min(delta, 1.0)


def _near(W: np.ndarray, noise: np.ndarray, apart: float, radius: float) -> np.ndarray:
    """A start with 1 − corr = `apart` in the direction of the noise, of norm `radius` times that of W."""
    size = np.linalg.norm(W)
    across = noise - np.sum(noise * W) / size**2 * W
    across = across / np.linalg.norm(across)
    corr = 1.0 - apart
    return radius * (corr * W + (1.0 - corr**2) ** 0.5 * size * across)


def _row(data: Data, column: int) -> Row:
    found = {name: value[:, column] for name, value in data.items() if value.ndim == 2}
    total = len(found["selected"])
    reached = found["selected"] & (found["misaligned"] <= ALIGNED) & (found["flow_gap"] <= CERTIFIED)
    left = ~found["selected"] & (found["flow_gap"] <= CERTIFIED)
    stationary = found["outcome"] == Outcome.finite_stationary_point.value
    other = total - int(reached.sum()) - int(left.sum()) - int(stationary.sum())
    share = 100 * float(reached.mean()) if total else float("nan")
    empty = data["empty"]
    median = float(np.median(data["mu"])) if total else float("nan")
    where = f"μ(α) of (67) (median {median:.0e})" if column == 0 else f"{CORRELATIONS[column]:g}"
    worst_gap = float(found["flow_gap"][reached].max(initial=0.0))
    # μ and R are the theorem's to choose: starts beyond the proof's own μ are outside, whatever becomes of them.
    proven = column == 0
    astray = int((left | stationary).sum())
    means = "the dual solutions of the programs that the flows do solve" if left.any() else ""
    evidence = Evidence(total, astray, total - int(reached.sum()) - astray, checked_by=means)
    return Row(
        "Theorem 7",
        f"starts with 1 − corr(W(0), W^mm_α) = {where} and ‖W(0)‖ = {EXPONENT:g} ‖W^mm_α‖/min(δ, 1), n = {N}, T = {T}, "
        f"d = {D}: the flow",
        f"{int(reached.sum())} of {total} ({share:.1f}%) converge to W^mm_α (largest gap of the flow {worst_gap:.0e}), "
        f"{int(left.sum())} to another direction, {int(stationary.sum())} to a stationary point, {other} undecided; "
        f"of {int(empty.sum())} with an empty T_i, {int((reached & empty).sum())} converge to it",
        total if proven else 0,
        0 if proven else total,
        float(found["misaligned"][reached].max(initial=0.0)) if reached.any() else float("inf"),
        "1 − corr with W^mm_α of those that converge to it",
        evidence if proven else Evidence(0),
        {"reached": int(reached.sum()), "starts": total, "left": int(left.sum()), "stationary": int(stationary.sum())},
    )

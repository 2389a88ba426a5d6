"""Theorem 7: from close to a locally-optimal direction, W converges to it: descent, and the flow beside it."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxflow._core import Outcome
from jaxflow.gradient_descent import descend
from jaxflow.losses import Logistic
from jaxflow.margin import attention_svm, solve
from jaxflow.models import CombinedAttention
from jaxflow.papers.checks import AbstractCheck, Row, register_check
from jaxflow.papers.registry import Data
from jaxflow.papers.tarzanagh2023.verify.choices import CHOICES as TOKENS
from jaxflow.papers.tarzanagh2023.verify.choices import N, T, all_choices, random_instance
from jaxflow.papers.tarzanagh2023.verify.cones import LOCAL
from jaxflow.papers.tarzanagh2023.verify.follow import CERTIFIED, SHAPE, follow_each, misalignment
from jaxflow.papers.tarzanagh2023.verify.instances import Instance, smoothness
from jaxflow.report import Evidence, count_evidence
from jaxflow.risk import EmpiricalRisk

INSTANCES = {"quick": 3, "paper": 12, "large": 200}
D = 4
# Locally-optimal choices tried on each instance; where there are fewer, all.
CHOICES = 4
# 1 − corr of the starts. 0 stands for the proof's own μ(α) of (67); the other asks how far one may go.
CORRELATIONS = (0.0, 1e-1)
# The proof requires R so large that T exp(−RΘδ) is small, δ of (67) and Θ = 1/‖W^mm_α‖: RΘδ is this.
EXPONENT = 20.0
ALIGNED = 1e-8
# Logistic loss: |l''| <= 1/4 and |l'| <= 1 (Assumption A).
M0, M1 = 0.25, 1.0
# Steps of descent with η = 1/L_W before the flow takes over. At these norms ∇L is about e^-20: what is left of the way
# is further than any number of steps of this size.
STEPS = {"quick": 500, "paper": 5_000, "large": 50_000}
# Normalised steps, of this share of ‖W(0)‖: 1 − corr falls like the norm to the power −2, down to that share squared.
NORMALISED, SHARE = 2_000, 0.01
# Attention that a token keeps while it is selected.
KEPT = 0.5


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
        every_start = jax.tree.map(lambda *leaves: np.stack([np.asarray(leaf) for leaf in leaves]), *starts)
        say(f"Theorem 7: {STEPS[scale]} steps of descent from each start, and {NORMALISED} normalised ones")
        after, descents = _descents(every_start, STEPS[scale])
        followed = follow_each({"flow": every_start, "descent": after})
        found = {name.removeprefix("flow_"): value for name, value in followed.items() if name.startswith("flow_")}
        found |= {name: value for name, value in followed.items() if name.startswith("descent_")}
        found |= {name: np.asarray(value) for name, value in descents.items()}
        table = {name: value.reshape(len(cones), len(CORRELATIONS)) for name, value in found.items()}
        mu, radius = np.asarray(cones).T
        more = {"empty": np.asarray(empties), "available": np.asarray(available), "steps": np.asarray(STEPS[scale])}
        return table | more | {"mu": mu, "radius": radius}

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


@partial(jax.jit, static_argnums=1)
def _descents(starts: Instance, steps: int) -> tuple[Instance, dict[str, Any]]:
    r"""Plain descent with $\eta=1/L_W$ (where it ends is an instance's new start) and normalised descent.

    **Returns:** besides, `rate` η; `moved` $\|W(k)-W(0)\|$ of plain descent; `near_first`, `near_last`: 1 − corr with
    $W^{mm}_\alpha$ before and after the normalised steps; `attention`: the least that a target token then has.
    """

    def one(given: Instance) -> tuple[Instance, dict[str, Any]]:
        risk, model = EmpiricalRisk(given.data, Logistic()), CombinedAttention(given.start, given.head)
        rate = 1.0 / smoothness(given.data, given.head, M0, M1)
        plain = descend(risk, model, steps=steps, learning_rate=rate, normalised=False, throw=False)
        share = SHARE * jnp.linalg.norm(given.start)
        unit = descend(risk, model, steps=NORMALISED, learning_rate=share, normalised="jointly", throw=False)
        aim = solve(attention_svm(given.data, given.target, "frobenius")).primal
        attention = unit.model.attention(given.data)
        found = {
            "rate": rate,
            "moved": jnp.linalg.norm(plain.model.W - given.start),
            "near_first": misalignment(given.start, aim),
            "near_last": misalignment(unit.model.W, aim),
            "attention": jnp.min(jnp.where(given.target, attention, jnp.inf)),
        }
        return Instance(given.data, given.head, plain.model.W, given.target), found

    return jax.vmap(one)(starts)


def _near(W: np.ndarray, noise: np.ndarray, apart: float, radius: float) -> np.ndarray:
    """A start with 1 − corr = `apart` in the direction of the noise, of norm `radius` times that of W."""
    size = np.linalg.norm(W)
    across = noise - np.sum(noise * W) / size**2 * W
    across = across / np.linalg.norm(across)
    corr = 1.0 - apart
    return radius * (corr * W + (1.0 - corr**2) ** 0.5 * size * across)


class Fate(NamedTuple):
    r"""Where runs from all starts ended: at $W^{mm}_\alpha$, in another direction, at a stationary point."""

    reached: np.ndarray
    left: np.ndarray
    stationary: np.ndarray

    @classmethod
    def of(cls, found: Data, prefix: str = "") -> "Fate":
        """By the flow, from the start itself or from where descent has ended."""
        selected, gap = found[f"{prefix}selected"], found[f"{prefix}flow_gap"]
        reached = selected & (found[f"{prefix}misaligned"] <= ALIGNED) & (gap <= CERTIFIED)
        stationary = found[f"{prefix}outcome"] == Outcome.finite_stationary_point.value
        return cls(reached, ~selected & (gap <= CERTIFIED), stationary)


def _row(data: Data, column: int) -> Row:
    found = {name: value[:, column] for name, value in data.items() if value.ndim == 2}
    total = len(found["selected"])
    flow, descent = Fate.of(found), Fate.of(found, "descent_")
    reached = flow.reached
    other = total - int((reached | flow.left | flow.stationary).sum())
    share = 100 * float(reached.mean()) if total else float("nan")
    empty = data["empty"]
    median = float(np.median(data["mu"])) if total else float("nan")
    where = f"μ(α) of (67) (median {median:.0e})" if column == 0 else f"{CORRELATIONS[column]:g}"
    worst_gap = float(found["flow_gap"][reached].max(initial=0.0))
    # μ and R are the theorem's to choose: starts beyond the proof's own μ are outside, whatever becomes of them.
    proven = column == 0
    both = reached & descent.reached
    astray = flow.left | flow.stationary | descent.left | descent.stationary
    means = "the dual solutions of the programs that the flows do solve" if (flow.left | descent.left).any() else ""
    kept = found["attention"] >= KEPT
    return Row(
        "Theorem 7",
        f"starts with 1 − corr(W(0), W^mm_α) = {where} and ‖W(0)‖ = {EXPONENT:g} ‖W^mm_α‖/min(δ, 1), n = {N}, T = {T}, "
        f"d = {D}: the flow, and descent with η = 1/L_W, which the flow takes over",
        f"the flow: {int(reached.sum())} of {total} ({share:.1f}%) converge to W^mm_α (largest gap of the flow "
        f"{worst_gap:.0e}), {int(flow.left.sum())} to another direction, {int(flow.stationary.sum())} to a stationary "
        f"point, {other} undecided; of {int(empty.sum())} with an empty T_i, {int((reached & empty).sum())} converge "
        f"to it; {int(data['steps'])} steps of descent (η {_median(found['rate'])} in the median) move W by "
        f"{found['moved'].max(initial=0.0):.0e} at most, and then {int(descent.reached.sum())} converge to it, "
        f"{int(descent.left.sum())} to another direction, {int(descent.stationary.sum())} to a stationary point; "
        f"{NORMALISED} normalised steps of {SHARE:g} ‖W(0)‖: the tokens of α keep their attention in {int(kept.sum())} "
        f"of {total}, 1 − corr falls in {int((found['near_last'] < found['near_first']).sum())}, from "
        f"{_median(found['near_first'])} to {_median(found['near_last'])} in the median",
        total if proven else 0,
        0 if proven else total,
        float(found["misaligned"][reached].max(initial=0.0)) if reached.any() else float("inf"),
        "1 − corr with W^mm_α of those that converge to it",
        count_evidence(both & ~astray, decided=both | astray, checked_by=means) if proven else Evidence(0),
        {
            "reached": int(reached.sum()),
            "starts": total,
            "left": int(flow.left.sum()),
            "stationary": int(flow.stationary.sum()),
            "descent_reached": int(descent.reached.sum()),
            "normalised_kept": int(kept.sum()),
        },
    )


def _median(values: np.ndarray) -> str:
    return f"{np.median(values):.1e}" if len(values) else "-"

"""How often the assumptions hold, which imply which, and what Assumption 3 asks of the score gap."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxflow.data import equal_score_tokens, random_tokens
from jaxflow.losses import Exponential
from jaxflow.models import CombinedAttention
from jaxflow.papers.checks import AbstractCheck, Row, register_check
from jaxflow.papers.registry import Data
from jaxflow.papers.sheen2024.blocks import in_blocks
from jaxflow.report import count_evidence
from jaxflow.risk import EmpiricalRisk
from jaxflow.study import wilson
from jaxflow.theory import assumption_1, assumption_3, diagonal_separability, score_gap_needed

TRIALS = {"quick": 64, "paper": 1024, "large": 8192}
SHAPE = (6, 8, 10)
WIDTH = 32
# (n, L) and multiples of the needed gap, of which the middle one is the bound itself.
SIZES = ((2, 3), (3, 5), (4, 4), (6, 8), (10, 10))
MULTIPLES = (0.5, 0.99, 1.0 - 1e-9, 1.0 + 1e-9, 1.01, 2.0)


@register_check("sheen2024", "assumptions", statements="Assumptions 1 and 3, diagonal separability")
class Assumptions(AbstractCheck):
    """Random unit-sphere data for separability; data of Assumption 2 for the bound on the loss."""

    def compute(self, scale: str, key: Any, say: Callable[[str], None]) -> Data:
        say(f"separability: {TRIALS[scale]} instances with n, L, d = {SHAPE}")
        data = in_blocks(_block, jax.random.split(key, TRIALS[scale]), WIDTH)
        slacks = np.asarray([[_slack(n, T, multiple) for multiple in MULTIPLES] for n, T in SIZES])
        needed = np.asarray([score_gap_needed(n, T) for n, T in SIZES])
        return data | {
            "small": slacks,
            "needed": needed,
            "sizes": np.asarray(SIZES),
            "multiples": np.asarray(MULTIPLES),
        }

    def rows(self, data: Data) -> list[Row]:
        return [_separable(data), _gap(data)]


@jax.jit
def _block(keys: Array) -> dict[str, Any]:
    return jax.vmap(partial(_one, *SHAPE))(keys)


def _one(n: int, T: int, d: int, key: Any) -> dict[str, Any]:
    data, head = random_tokens(key, n, T, d)
    general = assumption_1(data, head).slack
    return {"general": general, "diagonal": diagonal_separability(data, head).slack}


def _slack(n: int, T: int, multiple: float) -> float:
    """Slack of Assumption 3 at W = 0 for equal gaps of `multiple` times what it needs."""
    data, head = equal_score_tokens(jax.random.key(0), n, T, 4, multiple * score_gap_needed(n, T))
    return float(assumption_3(EmpiricalRisk(data, Exponential()), CombinedAttention(jnp.zeros((4, 4)), head)).slack)


def _separable(data: Data) -> Row:
    general, diagonal = data["general"] > 0, data["diagonal"] > 0
    decided = np.isfinite(data["general"]) & np.isfinite(data["diagonal"])
    # Where separability is open the instance may be inside: it is counted, and decides nothing.
    inside = general | ~decided
    total, count = int(inside.sum()), int((inside & decided & ~diagonal).sum())
    low, high = wilson(count, total)
    return Row(
        "ℓ1-SVM",
        "Assumption 1 makes the diagonal program feasible (it is what §4 works with); unit-sphere data, n, L, d "
        f"= {SHAPE}",
        f"{count} of {total} instances of Assumption 1 have an infeasible ℓ1-SVM "
        f"({100 * count / max(total, 1):.0f}%, Wilson "
        f"95% [{100 * float(low):.0f}, {100 * float(high):.0f}]), proven by a Farkas ray; {int((~decided).sum())} "
        "undecided, "
        f"{int((decided & ~general).sum())} without Assumption 1",
        total,
        int(inside.size - total),
        float("inf"),
        "",
        count_evidence(diagonal[inside], decided=decided[inside], checked_by="Farkas rays"),
        {"infeasible": count, "instances": total},
    )


def _gap(data: Data) -> Row:
    above = data["multiples"] > 1.0
    right = (data["small"] >= 0) == above[None]
    wrong = int(np.sum(~right))
    ratios = data["needed"] / (data["sizes"][:, 1] * np.log(data["sizes"][:, 0]))
    listing = ", ".join(
        f"{gap:.2f} at n, L = {n}, {T}" for gap, (n, T) in zip(data["needed"], data["sizes"], strict=True)
    )
    return Row(
        "Assumption 3",
        '"if we start with β(0) = 0, Assumption 3 holds when the gap ... is sufficiently large": from which gap on',
        f"Δ = {listing}, {ratios.min():.2f} to {ratios.max():.2f} times L ln n; {wrong} of {data['small'].size} "
        "gaps about "
        "these bounds are on the other side. Scores of unit tokens and heads are at most 2 apart",
        int(data["small"].size),
        0,
        float(np.max(np.abs(data["small"][:, 2:4]))),
        "|slack| at 1 ± 1e-9 times the bound",
        count_evidence(right, decided=~np.isnan(data["small"])),
        {"wrong": wrong},
    )

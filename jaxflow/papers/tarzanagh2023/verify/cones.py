r"""Lemma 5 (Lemma 16): $W^{mm}_\alpha\in\mathrm{cone}_\varepsilon(\alpha)$ for small ε iff α is locally optimal."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jaxflow._core import SelectionStatus
from jaxflow.margin import ProgramResult
from jaxflow.papers.checks import AbstractCheck, Row, register_check
from jaxflow.papers.registry import Data
from jaxflow.papers.tarzanagh2023.verify.choices import CHOICES, N, T, all_choices, random_instance
from jaxflow.report import count_evidence

TRIALS = {"quick": 3, "paper": 20, "large": 300}
DIMENSIONS = (4, 6)
# A margin within this of one is support; solutions are certified to better. As in Definition 2's decision.
SUPPORT = 1e-9
CLEAR = 1e-6

LOCAL = (SelectionStatus.local.value, SelectionStatus.global_.value)
DECIDED = (*LOCAL, SelectionStatus.not_local.value)


@register_check("tarzanagh2023", "cones", statements="Lemma 5")
class Cones(AbstractCheck):
    """Every feasible choice of tokens of random instances, separated by empty support sets."""

    def compute(self, scale: str, key: Any, say: Callable[[str], None]) -> Data:
        parts: list[Data] = []
        for d in DIMENSIONS:
            say(f"Lemma 5: all {T**N} choices of {TRIALS[scale]} instances with n = {N}, T = {T}, d = {d}")
            for number, one in enumerate(jax.random.split(jax.random.fold_in(key, d), TRIALS[scale])):
                found = choices_of(one, d)
                size = len(found["status"])
                parts.append(found | {"d": np.full(size, d), "instance": np.full(size, number)})
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def rows(self, data: Data) -> list[Row]:
        local = np.isin(data["status"], LOCAL)
        rows = [
            _row(data, local & ~data["empty"], "locally optimal α, every T_i non-empty: in the cone", True),
            _row(data, local & data["empty"], "locally optimal α, some T_i empty: in the cone", True),
        ]
        rows += [
            _row(data, local & data["empty"] & (data["d"] == d), f"the same with d = {d} alone", True)
            for d in DIMENSIONS
        ]
        not_local = data["status"] == SelectionStatus.not_local.value
        return [*rows, _row(data, not_local, "α not locally optimal: outside of cone_ε(α) for all ε > 0", False)]


def choices_of(key: Any, d: int) -> Data:
    r"""For all feasible choices of one random instance: Definition 2, empty support sets, distance to the cone.

    `depth` is the largest ε (before the division by $\|W\|_F$) with $W^{mm}_\alpha$ in the cone,
    $\min_i\max_{t\in\mathrm{low}}\min_{\tau\in\mathrm{high}}$ of (5): +inf where no token scores higher, −inf
    where one does and none scores lower.
    """
    found = all_choices(random_instance(key, d))
    feasible = found["result"] == ProgramResult.optimal.value
    excess, scores = found["excess"][feasible], found["scores"]
    index = CHOICES[feasible][:, :, None]
    scores = np.broadcast_to(scores, excess.shape)
    own = np.take_along_axis(scores, index, axis=2)
    other = np.arange(T) != index
    low, high = other & (scores < own), other & (scores >= own)
    nearest_low = np.where(low, excess, np.inf).min(axis=2)
    nearest_high = np.where(high, excess, np.inf).min(axis=2, initial=np.inf)
    barred = high.any(axis=2)
    # inf − inf would be a sequence of one token.
    depth = np.where(barred, np.where(barred, nearest_high, 0.0) - nearest_low, np.inf)
    return {
        "status": found["status"][feasible],
        "empty": np.any(~np.any(found["support"][feasible], axis=2), axis=1),
        "near": np.any(other & (excess > SUPPORT) & (excess <= CLEAR), axis=(1, 2)),
        "depth": depth.min(axis=1),
        "infeasible": np.full(len(excess), int((~feasible).sum())),
    }


def _row(data: Data, group: np.ndarray, checked: str, member: bool) -> Row:
    decided = np.isin(data["status"], DECIDED) & ~data["near"]
    inside = group & decided
    depth = data["depth"][inside]
    # Out of the cone for all ε: the depth is at most zero, to the rounding of margins.
    wrong = int(((depth <= CLEAR) if member else (depth > SUPPORT)).sum())
    count, apart = int(inside.sum()), int((group & ~decided).sum())
    finite = depth[np.isfinite(depth)]
    # How far the statement is broken, or by how little it is not.
    residual = float((-finite if member else finite).max(initial=-np.inf))
    good = (data["depth"] > CLEAR) if member else (data["depth"] <= SUPPORT)
    # Choices are those whose programs were solved to a duality gap; the rest is arithmetic on their margins.
    means = "the duality gaps of the programs, on whose margins the rest is arithmetic"
    bottom = int(np.isneginf(depth).sum())
    endless = f", {bottom} of them select a token with the lowest score of its sequence" if bottom and member else ""
    return Row(
        "Lemma 5",
        checked,
        f"{wrong} of {count} are not{endless}" + (f"; {apart} too close to call" if apart else ""),
        int(group.sum()),
        int(np.sum(~group)),
        residual if count else float("inf"),
        "−ε‖W‖, the cone's slack" if member else "ε‖W‖, the cone's slack",
        count_evidence(good[group], decided=decided[group], checked_by=means),
        {"wrong": wrong, "instances": count, "too_close": apart},
    )

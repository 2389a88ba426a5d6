"""Lemma 4.2 as printed: without a feasible ℓ1-SVM the flow of diagonal weights rests at a finite point."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jaxflow._core import Outcome
from jaxflow.papers.checks import AbstractCheck, Row, register_check
from jaxflow.papers.registry import Data
from jaxflow.papers.sheen2024.three_limits import SHAPE, follow_limits
from jaxflow.report import count_evidence
from jaxflow.study import wilson

TRIALS = {"quick": 24, "paper": 128, "large": 4096}
# |grad L| / sum |p| of a point at rest; saturated limits end between 1e-2 and 1.
RESTS = 1e-6


@register_check("sheen2024", "divergence", statements="Lemma 4.2 and Assumption 1")
class Divergence(AbstractCheck):
    """Random data of Assumptions 1 and 2, split by diagonal separability, which the paper does not ask for."""

    def compute(self, scale: str, key: Any, say: Callable[[str], None]) -> Data:
        say(f"Lemma 4.2: {TRIALS[scale]} instances with n, L, d = {SHAPE}")
        found = follow_limits("diagonal", jax.random.split(key, TRIALS[scale]))
        general, _, diagonal = found["separable"].T
        kept = {name: found[name] for name in ("outcome", "stationarity", "size", "log_norm", "equal")}
        return kept | {"separable": general, "diagonal": diagonal}

    def rows(self, data: Data) -> list[Row]:
        return [_printed(data), _with_separability(data)]


def _rests(data: Data) -> np.ndarray:
    return (data["outcome"] == Outcome.finite_stationary_point) & (data["stationarity"] <= RESTS)


def _diverges(data: Data) -> np.ndarray:
    """Flows that select tokens go to infinity; what became of the others is not known."""
    selected = (Outcome.globally_optimal, Outcome.locally_optimal, Outcome.not_locally_optimal)
    return np.isin(data["outcome"], [outcome.value for outcome in selected])


def _printed(data: Data) -> Row:
    inside = (data["separable"] > 0) & (data["equal"] >= 0)
    rests = inside & _rests(data)
    total, count = int(inside.sum()), int(rests.sum())
    infeasible = int((inside & (data["diagonal"] == 0)).sum())
    proven = int((rests & (data["diagonal"] == 0)).sum())
    low, high = wilson(count, total)
    return Row(
        "Lemma 4.2",
        f"‖β(t)‖ → ∞ under Assumptions 1 and 2 alone, as printed; n, L, d = {SHAPE}",
        f"{count} of {total} flows rest at a finite stationary point (Wilson 95% [{100 * float(low):.0f}, "
        f"{100 * float(high):.0f}]%), with ‖β‖ up to {data['size'][rests].max(initial=0.0):.3g}; the ℓ1-SVM is proven "
        f"infeasible on {infeasible} of {total}, and on {proven} of those "
        "at rest. "
        "The proof takes a feasible β_f, which Assumption 1 does not give",
        total,
        int(inside.size - total),
        float(data["stationarity"][rests].max(initial=0.0)) if count else float("inf"),
        "‖∇L‖/Σ|p| of those at rest",
        count_evidence(
            ~rests[inside],
            decided=(rests | _diverges(data))[inside],
            checked_by=f"Farkas rays, which prove the ℓ1-SVM of {proven} of them infeasible" if proven else "",
        ),
        {"rests": count, "instances": total, "infeasible": infeasible},
    )


def _with_separability(data: Data) -> Row:
    inside = (data["diagonal"] > 0) & (data["equal"] >= 0)
    rests = inside & (data["outcome"] == Outcome.finite_stationary_point)
    optimal = inside & (data["outcome"] == Outcome.globally_optimal)
    total, count = int(inside.sum()), int(rests.sum())
    return Row(
        "Lemma 4.2",
        f"the same where the ℓ1-SVM is feasible; n, L, d = {SHAPE}",
        f"{count} of {total} rest at a finite point; {int(optimal.sum())} are certified to solve the ℓ1-SVM of "
        "the optimal "
        f"tokens, at log ‖(ξ_k, ξ_q)‖ = {data['log_norm'][optimal].min(initial=np.inf):.0f} or more; the other "
        f"{total - count - int(optimal.sum())} are undecided",
        total,
        int(inside.size - total),
        float("inf"),
        "",
        count_evidence(~rests[inside], decided=(rests | _diverges(data))[inside]),
        {"rests": count, "optimal": int(optimal.sum()), "instances": total},
    )

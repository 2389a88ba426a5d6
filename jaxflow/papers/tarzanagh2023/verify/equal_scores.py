"""Theorem 4: descent from any start finds the optimal tokens if all others have equal scores (Assumption B.2)."""

from collections.abc import Callable
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxflow.data import optimal_tokens
from jaxflow.gradient_descent import descend
from jaxflow.losses import Logistic
from jaxflow.margin import ProgramResult, attention_svm, solve
from jaxflow.models import CombinedAttention, token_scores
from jaxflow.papers.checks import AbstractCheck, Row, register_check
from jaxflow.papers.registry import Data
from jaxflow.papers.tarzanagh2023.verify.follow import CERTIFIED, SHAPE, UNSELECTED, follow, follow_each, misalignment
from jaxflow.papers.tarzanagh2023.verify.instances import (
    equal_scores,
    explicit_case,
    instance,
    padded,
    smoothness,
    stack,
)
from jaxflow.report import Evidence
from jaxflow.risk import EmpiricalRisk
from jaxflow.study import wilson

# Logistic loss: |l''| <= 1/4 and |l'| <= 1 (Assumption A).
M0, M1 = 0.25, 1.0
# Scores moved onto each other agree to rounding.
EQUAL = 1e-12
# The flow's certified directions agree with the program's solution to about 1e-10.
ALIGNED = 1e-8

# Six cells, followed in batches of 32: the quick sizes fill three.
TRIALS = {"quick": 16, "paper": 256, "large": 4096}
STEPS = {"quick": 30_000, "paper": 1_000_000, "large": 10_000_000}
# (n, T, d, random start): the statement is for any n and any start.
CELLS = ((5, 5, 4, False), (5, 5, 6, False), (5, 2, 4, False), (5, 2, 6, False), (1, 5, 4, False), (1, 5, 4, True))


@register_check("tarzanagh2023", "equal-scores", statements="Theorem 4")
class EqualScores(AbstractCheck):
    """The explicit counterexample by flow and descent, and random instances that satisfy Assumption B.2."""

    def compute(self, scale: str, key: Any, say: Callable[[str], None]) -> Data:
        parts = {}
        for number, (n, T, d, anywhere) in enumerate(CELLS):
            say(f"Theorem 4: {TRIALS[scale]} instances with n = {n}, T = {T}, d = {d}")
            keys = jax.random.split(jax.random.fold_in(key, number), TRIALS[scale])
            parts[f"cell{number}"] = _random(n, T, d, anywhere, keys)
        return _explicit(STEPS[scale]) | follow_each(parts)

    def rows(self, data: Data) -> list[Row]:
        return [_flow_row(data), _descent_row(data), *(_cell_row(data, i) for i in range(len(CELLS)))]


@partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _random(n: int, T: int, d: int, anywhere: bool, keys: Array) -> Any:
    def one(key: Array) -> Any:
        key_data, key_start = jax.random.split(key)
        tokens, head = equal_scores(key_data, n, T, d)
        start = 3.0 * jax.random.normal(key_start, (d, d)) if anywhere else None
        return padded(instance(tokens, head, start), SHAPE)

    return jax.vmap(one)(keys)


def _explicit(steps: int) -> Data:
    data, head = explicit_case()
    scores = token_scores(data, head)
    best = optimal_tokens(scores, data.visible)
    others = jnp.where(best, jnp.nan, scores)
    spread = jnp.nanmax(others, axis=1) - jnp.nanmin(others, axis=1)
    gap = jnp.sum(jnp.where(best, scores, -scores), axis=1)
    aim = solve(attention_svm(data, best, "frobenius"))
    followed = follow(stack([padded(instance(data, head), SHAPE)]))
    found = {f"flow_{name}": np.asarray(value[0]) for name, value in followed._asdict().items()}
    rate = 1.0 / smoothness(data, head, M0, M1)
    path = eqx.filter_jit(descend)(
        EmpiricalRisk(data, Logistic()),
        CombinedAttention(jnp.zeros((2, 2)), head),
        steps=steps,
        learning_rate=rate,
        normalised=False,
        throw=False,
    )
    W = path.final.model.combined_weights()
    return found | {
        "score_gap": np.asarray(jnp.min(gap)),
        "score_spread": np.asarray(jnp.max(spread)),
        "optimal_tokens": np.asarray(jnp.max(jnp.sum(best, axis=1))),
        "program_result": np.asarray(aim.result.value),
        "program_gap": np.asarray(aim.certificate.duality_gap),
        "descent_steps": np.asarray(steps),
        "descent_rate": np.asarray(rate),
        "descent_attention": np.asarray(path.final.model.attention(data)),
        "descent_weights": np.asarray(W),
        "descent_misaligned": np.asarray(misalignment(W, aim.primal)),
        "descent_norm": np.asarray(jnp.linalg.norm(W)),
    }


def _hypotheses_hold(data: Data) -> bool:
    """Of the explicit case: unique optimal tokens, equal other scores, (Att-SVM) feasible. The loss is logistic."""
    return bool(
        data["score_gap"] > 0
        and data["optimal_tokens"] == 1
        and data["score_spread"] <= EQUAL
        and data["program_result"] == ProgramResult.optimal.value
    )


def _explicit_row(data: Data, how: str, measured: str, evidence: Evidence, worst: float, values: dict[str, Any]) -> Row:
    inside = _hypotheses_hold(data)
    return Row(
        "Theorem 4",
        f"explicit case n = T = d = 2, z₁ = z₂ = (1, 0), tokens {{0, (1, 0)}} and {{0, (−1.5, 1.3)}}, "
        f"v = (1, 1.162), W(0) = 0: {how}",
        measured,
        int(inside),
        int(not inside),
        worst,
        "1 − corr with W^mm",
        evidence if inside else Evidence(0),
        values,
    )


def _descent_loses(data: Data) -> bool:
    """Attention of the second sequence's optimal token, after all steps."""
    return bool(data["descent_attention"][1, 1] < 1e-3)


def _flow_row(data: Data) -> Row:
    attention, gap = float(data["flow_target_attention"]), float(data["flow_flow_gap"])
    lost = attention < UNSELECTED
    return _explicit_row(
        data,
        "the flow",
        f"score gap {float(data['score_gap']):.4f}, other scores equal, (Att-SVM) feasible (gap "
        f"{float(data['program_gap']):.0e}); at log t = {float(data['flow_log_time']):.0e} an optimal token has "
        f"attention {attention:.0e}, and the flow certifies another selection's program to {gap:.0e}",
        # One that lost the token without a certificate, or whose limit is not certified as W^mm, is open.
        Evidence(
            1,
            contradicted=int(lost and gap <= CERTIFIED),
            undecided=int(not (gap <= CERTIFIED and (lost or float(data["flow_misaligned"]) <= ALIGNED))),
            checked_by="descent, which loses the token too" if _descent_loses(data) else "",
        ),
        float(data["flow_misaligned"]),
        {"attention": attention, "flow_gap": gap, "score_gap": float(data["score_gap"])},
    )


def _descent_row(data: Data) -> Row:
    attention = data["descent_attention"][1, 1]
    flow = bool(data["flow_target_attention"] < UNSELECTED and data["flow_flow_gap"] <= CERTIFIED)
    return _explicit_row(
        data,
        f"descent with η = 1/L_W = {float(data['descent_rate']):.4f}",
        f"after {int(data['descent_steps'])} steps ‖W‖ = {float(data['descent_norm']):.1f}, and the optimal token of "
        f"the second sequence has attention {attention:.0e}, {data['descent_attention'][0, 1]:.5f} that of the first",
        # A token with attention has not been lost yet.
        Evidence(
            1,
            contradicted=int(_descent_loses(data)),
            undecided=int(not _descent_loses(data)),
            checked_by="the flow, which loses the token and is certified for another selection" if flow else "",
        ),
        float(data["descent_misaligned"]),
        {"attention": float(attention), "norm": float(data["descent_norm"])},
    )


def _cell_row(data: Data, number: int) -> Row:
    n, T, d, anywhere = CELLS[number]
    cell = {name.removeprefix(f"cell{number}_"): x for name, x in data.items() if name.startswith(f"cell{number}_")}
    feasible = cell["feasible"] == ProgramResult.optimal.value
    lost = feasible & (cell["target_attention"] < UNSELECTED)
    right = feasible & cell["selected"] & (cell["misaligned"] <= ALIGNED)
    # An optimal token without attention may get it back late: only a certified limit is wrong. Tokens of equal
    # scores exert no force on each other: where one of them is selected, the limit is in general not that of the
    # program with a margin between them, and the one without the sequence is certified.
    apart = lost & (cell["flow_gap"] > CERTIFIED) & (cell["lost_gap"] <= CERTIFIED)
    wrong = lost & ((cell["flow_gap"] <= CERTIFIED) | apart)
    inside, count = int(feasible.sum()), int(wrong.sum())
    low, high = wilson(count, inside)
    open_ = inside - count - int(right.sum())
    unsure = lost & ~wrong
    rest = f" ({int(apart.sum())} of the wrong ones for a program without the lost sequences)" if apart.any() else ""
    if unsure.any():
        least, most = cell["log_time"][unsure].min(), cell["log_time"][unsure].max()
        rest += (
            f", {int(unsure.sum())} of them with attention below {UNSELECTED:g} on an optimal token at "
            f"log t = {least:.0f} to {most:.0f}"
        )
    start = "entries of W(0) normal of size 3" if anywhere else "W(0) = 0"
    return Row(
        "Theorem 4",
        f"random data with equal scores, n = {n}, T = {T}, d = {d}, {start}: the flow",
        f"{count} of {inside} are certified by the flow for other tokens ({100 * count / max(inside, 1):.1f}%, Wilson "
        f"95% [{100 * float(low):.1f}, {100 * float(high):.1f}]); {int(right.sum())} reach W^mm, {open_} are undecided"
        f"{rest}",
        inside,
        len(feasible) - inside,
        float(cell["misaligned"][wrong | right].max()) if (wrong | right).any() else float("inf"),
        "1 − corr with W^mm",
        Evidence(inside, count, open_, checked_by="the dual solutions of the programs that the flows do solve"),
        {"wrong": count, "lost": int(lost.sum()), "right": int(right.sum()), "low": float(low)},
    )

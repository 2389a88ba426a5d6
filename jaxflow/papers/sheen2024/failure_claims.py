"""What becomes of the conclusions where an assumption fails."""

import numpy as np

from jaxflow.papers.registry import Data
from jaxflow.report import Claim, Evidence


def claims_of_failures(data: Data) -> tuple[list[Claim], list[str]]:
    """Assumption 3 violated, Assumption 2 relaxed, Assumption 4 broken."""
    notes = [
        "A wrong token counts as selected where an optimal token has less than 1e-6 of the attention at log t = "
        "1e6 and the flow's own direction leaves it behind for good, or the tokens selected instead are locally "
        "optimal; an instance that is neither wrong nor right is undecided.",
        *_counts(data, "gap", data["multiples"], "gap multiple"),
        *_counts(data, "spread", data["spreads"], "spread"),
    ]
    claims = [_inside(data), _outside(data), _random(data), _relaxed(data)]
    return claims + [_broken(data, part) for part in range(3)], notes


def _inside(data: Data) -> Claim:
    inside = (data["gap_diagonal"] > 0) & (data["gap_small"] >= 0)
    wrong = int((inside & data["gap_ok"] & (data["gap_selects"] == -1)).sum())
    right = int((inside & data["gap_ok"] & (data["gap_selects"] == 1)).sum())
    total = int(inside.sum())
    return Claim(
        "Theorem 4.1",
        "Under Assumptions 2 and 3 gradient flow selects the optimal tokens.",
        f"{right} of {total} flows do, {wrong} select a wrong token, {total - right - wrong} are undecided",
        Evidence(total, wrong, total - right - wrong),
        {"wrong": wrong, "right": right, "instances": total},
    )


def _outside(data: Data) -> Claim:
    outside = (data["gap_diagonal"] > 0) & (data["gap_small"] < 0)
    wrong = int((outside & data["gap_ok"] & (data["gap_selects"] == -1)).sum())
    total = int(outside.sum())
    rows = ", ".join(
        f"{wrong} of {total} at {multiple:g}"
        for multiple, wrong, total in zip(data["multiples"], data["gap_wrong"], data["gap_total"], strict=True)
    )
    return Claim(
        "Assumption 3",
        "The initial loss is small enough: without it a wrong token may be selected.",
        f"without it {wrong} of {total} flows select a wrong token; by multiples of the gap that it needs: {rows}",
        Evidence(0),
        {"wrong": wrong, "instances": total},
    )


def _random(data: Data) -> Claim:
    wrong, right, total = (int(data[f"random_{part}"][0]) for part in ("wrong", "right", "total"))
    low, high = 100 * data["random_low"][0], 100 * data["random_high"][0]
    return Claim(
        "Assumptions 2 and 3",
        "Neither is met: tokens and head uniform on the unit sphere.",
        f"{wrong} of {total} flows select a wrong token (Wilson 95% [{low:.1f}, {high:.1f}]%), {right} the optimal "
        f"ones, {total - right - wrong} are undecided; Assumption 3 holds for {100 * data['random_assumed'][0]:.0f}%",
        Evidence(0),
        {"wrong": wrong, "right": right, "instances": total},
    )


def _relaxed(data: Data) -> Claim:
    inside = (data["spread_diagonal"] > 0) & (data["spread_small"] >= 0)
    wrong = int((inside & data["spread_ok"] & (data["spread_selects"] == -1)).sum())
    right = int((inside & data["spread_ok"] & (data["spread_selects"] == 1)).sum())
    total = int(inside.sum())
    gaps = data["spread_weights_gap"][inside & data["spread_ok"] & (data["spread_selects"] == 1)]
    # Larger spreads put Assumption 3 out of reach.
    largest = float(np.max(data["spreads"][inside.any(axis=1)], initial=0.0))
    fall = f"{np.median(gaps[:, -1]):.0e} (median) at log t = 1e6" if len(gaps) else "nowhere measured"
    return Claim(
        "remark to Assumption 2",
        "Assumption 2 can be relaxed by allowing small perturbations for non-optimal scores.",
        f"with scores spread by up to {largest:g} of the gap, and Assumption 3: {right} of {total} flows "
        f"select the optimal tokens, {wrong} a wrong one, {total - right - wrong} are undecided; ‖β‖₁/(μ opt) − 1 "
        f"is {fall}",
        Evidence(total, wrong, total - right - wrong),
        {"wrong": wrong, "right": right, "instances": total},
    )


def _broken(data: Data, part: int) -> Claim:
    name = ("(i)", "(ii)", "(iii)")[part]
    ok = data[f"broken{part}_ok"]
    alignment = data[f"broken{part}_alignment"][..., -1]
    rows = ", ".join(
        f"{middle:.0e} at {amount:g}"
        for middle, amount in zip(data["broken"][part][:, 1], data["amounts"], strict=True)
    )
    largest = float(np.max(alignment[ok], initial=0.0))
    return Claim(
        f"Assumption 4 {name}",
        "Alignment is preserved and the limit solves (W⋆-SVM) if Assumption 4 holds.",
        f"broken by up to {data['amounts'].max():g}, the alignment error grows to {largest:.1e} of ‖K‖, and at "
        "log t = 1e6 "
        f"the nuclear norm is above the optimum by (medians) {rows}; {int(ok.sum())} of {ok.size} flows were followed",
        Evidence(0),
        {"alignment": largest, "flows": int(ok.sum())},
    )


def _counts(data: Data, name: str, values: np.ndarray, label: str) -> list[str]:
    return [
        f"{label} {value:g}: {wrong} wrong (Wilson 95% [{100 * low:.1f}, {100 * high:.1f}]%), {right} right, "
        f"{total - wrong - right} undecided of {total} with a feasible ℓ1-SVM ({len(ok) - total} without); "
        "Assumption 3 "
        f"holds for {100 * assumed:.0f}%."
        for value, wrong, low, high, right, total, ok, assumed in zip(
            values,
            data[f"{name}_wrong"],
            data[f"{name}_low"],
            data[f"{name}_high"],
            data[f"{name}_right"],
            data[f"{name}_total"],
            data[f"{name}_ok"],
            data[f"{name}_assumed"],
            strict=True,
        )
    ]

"""What figures 2, 8 and 9 say of stages, against the numbers."""

import numpy as np

from jaxflow.papers.boix2023.toy import alpha_text, entries
from jaxflow.report import Claim, Evidence, Rate, common_rate, count_evidence, fit

Data = dict[str, np.ndarray]

# Stages of which the next follows after this share of their own time, or later, are well separated.
SEPARATED = 0.05

# What the limit is held to at the smallest α: relative in time, absolute in products of order one.
TIME_ACCURACY = 1e-3
WEIGHT_ACCURACY = 1e-6

# At ordinary scales stages still hurry or delay one another, which moves the exponent of their lateness.
RATE = 0.1

# A product counts as active from here on (the paper's threshold for a weight is 1e-5).
ACTIVE = 1e-10


def claims_of(data: Data) -> tuple[list[Claim], list[str]]:
    """Claims with verdicts, and notes with what was measured at every α."""
    claims = [_times(data), _weights(data), _order(data), _one_at_a_time(data), _support_stays(data), _early(data)]
    return claims, [_row(data, row) for row in range(len(data["log_alphas"]))] + _effort(data) + _stage_notes(data)


def entry_claims_of(data: Data, part: str) -> tuple[list[Claim], list[str]]:
    """For the entries of one product of matrices."""
    return [_trajectories(data, part), _rank(data, part)], _stage_notes(data)


def separated(data: Data) -> np.ndarray:
    """Which stages have both neighbours at a distance."""
    times, after = data["stage_times"], data["stage_next"]
    before = np.concatenate([[0.0], times[:-1]])
    return (times - before > SEPARATED * times) & (after - times > SEPARATED * times)


def _time_errors(data: Data) -> np.ndarray:
    return data["crossings"] / data["stage_times"][None] - 1.0


def _smallest(data: Data) -> int:
    return int(np.argmin(data["log_alphas"]))


def _times(data: Data) -> Claim:
    row, apart = _smallest(data), separated(data)
    everywhere = np.abs(_time_errors(data))[row]
    errors = everywhere[apart]
    shifts = (data["crossings"] - data["stage_times"][None]) * -data["log_alphas"][:, None]
    good = int(np.sum(errors <= TIME_ACCURACY))
    # A stage that the flow has not reached in time is late.
    near = everywhere <= TIME_ACCURACY
    first = ", ".join(f"{shifts[i, 0]:.3g}" for i in range(len(shifts)))
    return Claim(
        "Theorem 4.1",
        "Each stage k + 1 starts at rescaled time T_{k+1} as α → 0.",
        f"at α = {alpha_text(float(data['log_alphas'][row]))} {good} of {errors.size} well-separated stages within "
        f"{TIME_ACCURACY:.1%}, worst {_most(errors):.1e}; of all {everywhere.size} stages "
        f"{int(np.sum(everywhere <= TIME_ACCURACY))}, worst {_most(everywhere[~np.isnan(everywhere)]):.1e}; the "
        f"distance of T_1 times log(1/α), one α after the other: {first}, so that the rate is 1/log(1/α)",
        count_evidence(near, decided=near, limit=True, rate=_time_rate(data)),
        {"good": good, "separated": int(errors.size), "worst": _most(errors)},
    )


def _time_rate(data: Data) -> Rate | None:
    """How the lateness of the stages falls with log(1/α): one exponent a stage, from all scales that reach it."""
    late, scales, exponents = np.abs(_time_errors(data)), np.log(-data["log_alphas"]), []
    for errors in late.T:
        known = errors > 0
        exponents.append(-np.polyfit(scales[known], np.log(errors[known]), 1)[0] if known.sum() >= 2 else np.nan)
    return common_rate(np.asarray(exponents), 1.0, bias=RATE, law="lateness of the stages against log(1/α)")


def _weights(data: Data) -> Claim:
    row, apart = _smallest(data), separated(data)
    distances = data["distances"][row]
    known = apart & ~np.isnan(distances)
    good = int(np.sum(distances[known] <= WEIGHT_ACCURACY))
    everywhere = distances[~np.isnan(distances)]
    return Claim(
        "Theorem 4.1",
        "θ(t log(1/α)) → θ^k for t in (T_k, T_{k+1}).",
        f"in the middle of the plateau {good} of {int(known.sum())} well-separated stages within {WEIGHT_ACCURACY:.0e} "
        f"of the predicted products, worst {_most(distances[known]):.1e}; of all {everywhere.size} plateaus "
        f"{int(np.sum(everywhere <= WEIGHT_ACCURACY))}, worst {_most(everywhere):.1e}",
        # In the middle of a plateau what is left is exponentially small; where it is not, the plateau is not reached.
        count_evidence(distances <= WEIGHT_ACCURACY, decided=distances <= WEIGHT_ACCURACY),
        {"good": good, "separated": int(known.sum()), "worst": _most(distances[known])},
    )


def _order(data: Data) -> Claim:
    crossings = data["crossings"]
    ordered = [bool(np.all(np.diff(row[~np.isnan(row)]) > 0)) for row in crossings]
    row = _smallest(data)
    complete = bool(ordered[row] and not np.isnan(crossings[row]).any())
    texts = [alpha_text(float(alpha)) for alpha, good in zip(data["log_alphas"], ordered, strict=True) if not good]
    return Claim(
        "Algorithm 1",
        "Coordinates become active in the order i_0, i_1, ...",
        f"{crossings.shape[1]} stages in order at the smallest α: {'yes' if complete else 'no'}; out of order at "
        f"{', '.join(texts) if texts else 'no other'} of {len(ordered)} scales",
        _order_evidence(crossings[row]),
        {"in_order": sum(ordered), "scales": len(ordered), "stages": int(crossings.shape[1])},
    )


def _order_evidence(crossings: np.ndarray) -> Evidence:
    """Stage by stage: each after all those before it; one that was not reached is undecided."""
    before = np.fmax.accumulate(np.append(-np.inf, crossings[:-1]))
    return count_evidence(crossings > before, decided=~np.isnan(crossings))


def _one_at_a_time(data: Data) -> Claim:
    """By the flow itself: Algorithm 1 lets one coordinate enter a stage by construction."""
    row, times = _smallest(data), data["stage_times"]
    middles = 0.5 * (times + np.minimum(data["stage_next"], data["until"]))
    products = data[f"products_{row}"]
    there = np.stack([np.interp(middles, data[f"times_{row}"], column) for column in products.T], axis=1)
    supports = np.concatenate([np.zeros((1, there.shape[1]), bool), np.abs(there) > ACTIVE])
    new = np.sum(supports[1:] & ~supports[:-1], axis=1)
    reached = data["distances"][row] <= WEIGHT_ACCURACY
    # Between two plateaus, both of which must have been reached.
    decided = reached & np.append(True, reached[:-1])
    return Claim(
        "Theorem 4.1",
        "At each stage the sparsity increases by at most one.",
        f"largest number of products above {ACTIVE:.0e} that enter from the middle of one plateau of the flow to the "
        f"next, over {len(new)} stages: {int(new.max(initial=0))}",
        count_evidence(new <= 1, decided=decided),
        {"largest": int(new.max(initial=0)), "stages": len(new)},
    )


def _support_stays(data: Data) -> Claim:
    supports = data["stage_products"] != 0.0
    left = np.sum(supports[:-1] & ~supports[1:], axis=1)
    count = int(np.sum(left > 0))
    return Claim(
        "Appendix A",
        "No coordinates ever leave the support of θ^k (in the toy task), said of Algorithm 1.",
        f"coordinates leave in {count} of {len(left)} stages after the first",
        count_evidence(left == 0),
        {"stages_with_departures": count, "stages": len(left)},
    )


def _early(data: Data) -> Claim:
    """Plateaus at α = 0.01: stages whose half-way time is passed, and how long the loss stands still."""
    row = int(np.argmin(np.abs(data["log_alphas"] - np.log(0.01))))
    shares = [standing_still(data, i) for i in range(len(data["log_alphas"]))]
    text = ", ".join(f"{alpha_text(float(a))}: {s:.0%}" for a, s in zip(data["log_alphas"], shares, strict=True))
    # A smooth exponential decay over the same range spends none of its time that slowly.
    held = shares[row] > 0.1
    return Claim(
        "Figure 2",
        "Some stagewise learning behavior is already clear with α = 0.01.",
        f"share of time during which the loss falls at less than a tenth of its mean rate: {text}",
        Evidence(1, contradicted=int(not held)),
        {"share": float(shares[row])},
    )


def standing_still(data: Data, row: int) -> float:
    """Share of rescaled time in which the loss falls at less than a tenth of its mean rate before it has lost 99%."""
    times, losses = data[f"times_{row}"], data[f"losses_{row}"]
    drop = losses[0] - losses
    end = int(np.argmax(drop >= 0.99 * drop[-1])) + 1
    grid = np.linspace(0.0, times[end - 1], 2001)
    rate = -np.diff(np.interp(grid, times[:end], losses[:end])) / np.diff(grid)
    return float(np.mean(rate < 0.1 * np.mean(rate)))


def _trajectories(data: Data, part: str) -> Claim:
    """The distance between consecutive scales."""
    grid = np.linspace(0.0, float(data["until"]), 1001)
    span = entries(data, part)

    def on_grid(row: int) -> np.ndarray:
        values = data[f"products_{row}"][:, span]
        return np.stack([np.interp(grid, data[f"times_{row}"], column) for column in values.T], axis=1)

    curves = [on_grid(row) for row in range(len(data["log_alphas"]))]
    # In the mean over time: at the jumps themselves curves differ by as much as the jump is high.
    gaps = [float(np.mean(np.max(np.abs(a - b), axis=1))) for a, b in zip(curves, curves[1:], strict=False)]
    # Two scales whose stages are late by shares of 1/log(1/α) differ by what these differ.
    steps = -np.diff(-1.0 / data["log_alphas"])
    rate = None
    if len(gaps) >= 3 and min(gaps) > 0:
        rate = Rate(*fit(np.log(steps), np.log(gaps)), None, law="the difference against that of 1/log(1/α)")
    return Claim(
        "Figure 8" if part == "KQ" else "Figure 9",
        "As α → 0, the training trajectories tend to a limiting trajectory.",
        "mean over time of the largest difference of an entry between one α and the next: "
        + ", ".join(f"{gap:.2e}" for gap in gaps),
        Evidence(1, limit=True, rate=rate),
        {"first": gaps[0] if gaps else 0.0, "last": gaps[-1] if gaps else 0.0},
    )


def _rank(data: Data, part: str) -> Claim:
    row, span = _smallest(data), entries(data, part)
    active = np.sum(np.abs(data[f"products_{row}"][:, span]) > ACTIVE, axis=1)
    jumps = np.diff(active)
    predicted = np.sum(data["stage_products"][-1][span] != 0.0) if len(data["stage_products"]) else 0
    return Claim(
        "Theorem 1.1",
        "In each stage the number of nonnegligible entries increases by at most one.",
        f"entries above {ACTIVE:.0e} at the smallest α: at most {int(active.max())}, {int(predicted)} predicted at the "
        f"end; the largest increase within one step of the integration is {int(jumps.max(initial=0))}",
        # What was not followed to its end may still jump.
        count_evidence(jumps <= 1, decided=(jumps > 1) | data["succeeded"][row]),
        {"most": int(active.max()), "largest_increase": int(jumps.max(initial=0))},
    )


def _row(data: Data, row: int) -> str:
    errors, distances = np.abs(_time_errors(data))[row], data["distances"][row]
    known = ~np.isnan(errors)
    off = int(np.sum(distances[~np.isnan(distances)] > 0.1))
    end = "" if data["succeeded"][row] else "; the integration did not reach its end"
    return (
        f"α = {alpha_text(float(data['log_alphas'][row]))}: {int(data['steps'][row])} steps, "
        f"{int(data['accepted'][row])} accepted{end}; {int(known.sum())} of {errors.size} stages reached half of their "
        f"predicted product, at times off by {_middle(errors[known]):.1e} (median) to {_most(errors[known]):.1e}; "
        f"products in the middle of {off} of {int((~np.isnan(distances)).sum())} plateaus are off by more than 0.1."
    )


def _effort(data: Data) -> list[str]:
    small, same, own = data["steps_to_stages"]
    text = alpha_text(float(data["log_alphas"][_smallest(data)]))
    return [
        f"Accepted steps until all {len(data['stage_times'])} stages have reached half of their product: "
        f"{_count(small)} at α = {text}; at 1e-8 {_count(own)} by the solver for that scale{_factor(small, own)}, "
        f"{_count(same)} by the solver for the smallest scales{_factor(small, same)}."
    ]


def _factor(small: float, ordinary: float) -> str:
    return f" (a factor of {small / ordinary:.2f})" if np.isfinite(small / ordinary) else ""


def _count(steps: float) -> str:
    return f"{steps:.0f}" if np.isfinite(steps) else "not all of them reached"


def _stage_notes(data: Data) -> list[str]:
    gaps, left = data["stage_gaps"], data["stage_leaving"]
    return [
        f"Assumption 4.3: the two smallest waiting times differ by {gaps.min():.2e} or more over {len(gaps)} stages; "
        + (f"coordinates that left have |g| of {left.min():.1e} or more." if np.isfinite(left).any() else "none left."),
        f"Assumption 4.4: smallest curvature on the support {data['stage_curvatures'].min():.2e}.",
        f"Well separated: neighbours at a distance of {SEPARATED:.0%} of a stage's own time; "
        f"{int(separated(data).sum())} of {len(gaps)} stages are.",
        "Time is that of the mean of half squared errors over samples, tokens and entries; another normalisation "
        "rescales it. The paper trains by SGD and gives no learning rate; here it is the gradient flow.",
    ]


def _most(values: np.ndarray) -> float:
    return float(np.max(values)) if values.size else 0.0


def _middle(values: np.ndarray) -> float:
    return float(np.median(values)) if values.size else 0.0

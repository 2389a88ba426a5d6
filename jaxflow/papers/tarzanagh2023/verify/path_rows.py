"""What rows say of regularisation paths: how far they are from a program's solution, and how fast that falls."""

import numpy as np

from jaxflow.limits import PathStatus
from jaxflow.papers.checks import Row
from jaxflow.papers.registry import Data
from jaxflow.report import common_rate, count_evidence

# W̄_R = R W^mm/‖W^mm‖ + O(1): distances of directions fall like 1/R. Read over this many steps of the bound.
LAST = 3
SLOPE = -0.9
# No larger at the end than this many times 1/R; constants are of the order of ‖W^mm‖² log(T/gap).
NEAR = 1e-2
# Above this exponent a distance does not fall to zero in any sense of the statement.
STUCK = -0.5
# Distances that have reached rounding fall no further.
FLOOR = 1e-7


def rate_of(radii: np.ndarray, distance: np.ndarray) -> np.ndarray:
    """Exponent of the distances `(..., m)` as a power of the bound, over its last steps."""
    last = slice(-1 - LAST, None)
    logs = np.log(np.maximum(distance[..., last], 1e-300))
    x = np.log(radii[last]) - np.log(radii[last]).mean()
    return (logs * x).sum(axis=-1) / (x**2).sum()


def row_of_path(
    source: str,
    checked: str,
    data: Data,
    name: str,
    inside: np.ndarray,
    distance: np.ndarray,
    more: str,
    above: np.ndarray | None = None,
) -> Row:
    """A row on the limit of paths with distances `(instances, radii)` from what they should tend to.

    Where a program has several solutions, a path tends to their set if the norm at margin one tends to the
    optimum: `above` is their relative difference.
    """
    status, radii, objective = data[f"{name}_status"], data["radii"], data[f"{name}_objective"]
    found = data[f"{name}_found"][:, -1]
    rate = rate_of(radii, distance)
    end = distance[:, -1]
    reached = found & (end <= NEAR) & ((rate <= SLOPE) | (end <= FLOOR))
    if above is not None:
        others = inside & found & ~reached & (np.abs(above[:, -1]) <= NEAR) & (rate_of(radii, above) <= SLOPE)
        if others.any():
            more += f"; {int(others.sum())} tend to another solution of equal norm, to {above[others, -1].max():.0e}"
        reached, rate, end = reached | others, rate[~others], np.where(others, above[:, -1], end)
        unique = inside[~others]
    else:
        unique = inside
    count, total = int((inside & reached).sum()), int(inside.sum())
    worst = float(end[inside].max(initial=0.0)) if total else float("inf")
    stuck = int((inside & found & ~reached & (end > NEAR) & (rate_of(radii, distance) > STUCK)).sum())
    # One that does not approach it may have been followed too short, or by another path than the least: it is open.
    good = (inside & reached)[inside]
    stationary = status == PathStatus.stationary.value
    largest = float(data[f"{name}_residual"][data[f"{name}_found"]].max(initial=0.0))
    # Of the starts, those that at the last bound are not at the least value.
    least = np.where(stationary, objective, np.inf).min(axis=1, keepdims=True)
    apart = int((~(stationary & (objective <= least + 1e-6 * np.abs(least))))[inside, :, -1].sum())
    starts = status.shape[1] * total
    rate = rate[unique]
    falls = common_rate(-rate, 1.0, bias=1.0 + SLOPE, law="distance of unit matrices against R")
    evidence = count_evidence(good, decided=good, limit=True, rate=falls)
    slope = f", exponents of R {rate.min():.3f} to {rate.max():.3f}" if rate.size else ""
    astray = f", {stuck} do not approach it" if stuck else ""
    return Row(
        source,
        checked,
        f"{count} of {total}{astray}: distances at R = {radii[-1]:.0f} at most {worst:.1e}{slope}; {apart} of {starts} "
        f"starts end on other local paths or none; stationarity of the least ones ≤ {largest:.0e}{more}",
        total,
        int((~inside).sum()),
        worst,
        f"distance of unit matrices at R = {radii[-1]:.0f}",
        evidence,
        {"reached": count, "stuck": stuck, "instances": total, "worst": worst, "local": apart},
    )

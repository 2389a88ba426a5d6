r"""The referee of linear networks: a judgement of each claimed limit by NumPy, SciPy and CVXPY alone.

The draws are those of `draws`, plain flows those of `paths`. A claim is *wrong* where one of these
contradicts it by more than its own error:

- regression: the flow of the layers, integrated by LSODA to a small residual, ends elsewhere than at the claimed
  point, by more than twice the claimed error and ten times its own; or the claimed point does not fit its targets;
- classification: the margin of one; the excess over a lower bound of the program's optimum (HiGHS for l1, least
  distance programming for l2, weak duality for the DFT domain and the nuclear norm of one datum); for $\ell_{2/L}$,
  $L>2$, the KKT residual by non-negative least squares; a program that is said to be infeasible and is not;
- where the flow goes: a finite point that the plain flow leaves, coordinates that the start can never use, and for
  $L>2$ another stationary point at which the plain path stands.
"""

from typing import NamedTuple

import numpy as np

from tests.referee import programs
from tests.referee.paths import Path, Vectors, alive, at_rest, coefficients, follow_in, pushes

# Of a point, by one path at rtol 1e-10: nearer than this the plain flow cannot tell, and a second one is not run.
AGREES = 1e-7
# Of a point whose error is said to be unknown.
LOOSE = 1e-3
# A plain flow that differs from itself at two tolerances by more than this says nothing.
BLURRED = 1e-3
# Directions whose distance, relative to their size, is below this are one: margins fall like 1/margin to the limit's.
NEAR = 0.3
# A plain path speaks of directions from this margin on.
MARGIN = 20.0
# It stands at a point that is not the claimed one where its direction's own velocity and KKT residual are below this:
# at a margin of 1e5 both are 1e-5 at an end. One that had 4e-3 of both was in transit, and reached the claimed point
# at a log arc length of 40 (followed at three caps and three tolerances).
STANDS = 1e-3
# The KKT residual of a program that is not convex (the library claims 1e-5), and entries that are none of the support.
KKT, OFF = 1e-4, 1e-6


class Claim(NamedTuple):
    """What the library says of one instance: `beta` the point or the direction `(d,)`, `error` and its source of
    a point, `dual` the multipliers of the program `(n,)`."""

    outcome: str
    beta: np.ndarray
    error: float
    source: str
    dual: np.ndarray


def judge_point(kind: str, data: Vectors, theta: tuple[np.ndarray, ...], claim: Claim) -> programs.Judgement:
    """Of a regression: one instance, `(n, d)`, and the layers of its start."""
    if claim.outcome in programs.OPEN:
        return programs.Judgement("undecided", claim.outcome)
    if claim.outcome == "prediction_contradicted":
        return programs.Judgement("wrong", "said that an interpolation is below the least value of all")
    if claim.outcome not in ("limit_point", "finite_stationary_point"):
        return programs.Judgement("unverified", claim.outcome)
    X, y, beta = data.inputs, data.targets, claim.beta
    if not np.isfinite(beta).all():
        return programs.Judgement("wrong", "the point is not finite")
    rounding = 1e-13 * (np.abs(X) @ np.abs(beta)).max()
    miss = np.abs(X @ beta - y).max()
    # Points are said to fit to 1e-13 where the flow stopped; a polished one has the error that is claimed.
    slack = claim.error * np.linalg.norm(X, 2) * np.linalg.norm(beta) if np.isfinite(claim.error) else 0.0
    if claim.outcome == "limit_point" and miss > 1e-11 * np.abs(y).max() + rounding + 2 * slack:
        return programs.Judgement("wrong", f"said to interpolate: misses by {miss:.1e}")
    first = follow_in(kind, data, theta, "squared")
    if first is None:
        return programs.unsettled("the plain flow has not come to rest")
    size = max(np.linalg.norm(first), np.linalg.norm(beta))
    # Of a limit at zero, what the start was counts.
    size = max(size, 1e-3 * float(np.linalg.norm(coefficients(kind, theta))), np.finfo(float).tiny)
    allowed = 2 * claim.error if np.isfinite(claim.error) else LOOSE
    if np.linalg.norm(first - beta) <= (AGREES + allowed) * size:
        return programs.RIGHT
    second = follow_in(kind, data, theta, "squared", rtol=1e-12)
    if second is None:
        return programs.unsettled("the plain flow has not come to rest")
    own, apart = (np.linalg.norm(second - x) / size for x in (first, beta))
    if apart <= allowed + 10 * own + 1e-8:
        return programs.Judgement("right" if own < BLURRED else "unverified", "the plain flow has too few digits")
    if own > BLURRED:
        return programs.Judgement("unverified", "the plain flow has too few digits")
    return programs.Judgement(
        "wrong", f"said point: a plain flow ends {apart:.1e} away, said {claim.error:.1e} by {claim.source}"
    )


def judge_direction(
    kind: str, data: Vectors, theta: tuple[np.ndarray, ...], loss: str, claim: Claim, path: Path
) -> programs.Judgement:
    """Of a classification: one instance, the layers of its start, and the plain path from it."""
    if claim.outcome in programs.OPEN:
        return programs.Judgement("undecided", claim.outcome)
    rows, size = scaled_rows(data)
    if claim.outcome == "finite_stationary_point":
        return _finite(kind, data, theta, loss, claim, rows, path)
    if claim.outcome == "infeasible_program":
        return programs.judge_infeasible(rows)
    if claim.outcome not in ("globally_optimal", "locally_optimal", "prediction_contradicted"):
        return programs.Judgement("unverified", claim.outcome)
    free, norm = alive(kind, theta), programs.NORMS[kind]
    if claim.outcome == "prediction_contradicted":
        if free.all() and programs.feasible(rows) > programs.EXISTS:
            return programs.Judgement("wrong", "said contradicted: the theorem holds from this start")
        return programs.Judgement("unverified", "said contradicted, from a start with coordinates that are not free")
    with np.errstate(over="ignore", invalid="ignore"):
        beta = claim.beta * size
        said = programs.at_margin_one(rows @ beta)
    if said != programs.RIGHT:
        return said
    used = np.abs(programs.modes(norm, beta))
    if len(free) == len(used) and (used[~free] > OFF * used.max()).any():
        return programs.Judgement("wrong", "a coordinate is used that stays zero from this start")
    if claim.outcome == "globally_optimal":
        excess = programs.norm_of(norm, beta) / programs.lower_bound(norm, rows, claim.dual) - 1.0
        if not excess <= programs.EXCESS and norm == "spectral":
            # The claim's multipliers may be poor ones.
            excess = min(
                excess,
                programs.norm_of(norm, beta) / programs.lower_bound(norm, rows, programs.spectral_dual(rows)) - 1.0,
            )
        said = programs.wrong_if(
            not excess <= programs.EXCESS, f"said optimal: excess {excess:.2e} over the program's optimum"
        )
    else:
        residual = programs.kkt_residual(norm, len(theta), rows, beta, OFF)
        said = programs.wrong_if(not residual <= KKT, f"said stationary: KKT residual {residual:.1e}")
    return _path(norm, rows, beta, claim, path, len(theta)) if said == programs.RIGHT else said


def scaled_rows(data: Vectors) -> tuple[np.ndarray, float]:
    """$y_ix_i$ over the largest entry of all, and that entry."""
    size = float(np.abs(data.inputs).max())
    return data.targets[:, None] * (data.inputs / size), size


def _finite(
    kind: str, data: Vectors, theta: tuple[np.ndarray, ...], loss: str, claim: Claim, rows: np.ndarray, path: Path
) -> programs.Judgement:
    if not at_rest(kind, theta, data, loss):
        if path.margin > MARGIN:
            return programs.Judgement("wrong", "said finite: a plain path goes to infinity")
        if programs.feasible(rows) > programs.EXISTS and alive(kind, theta).all() and len(theta) == 2:
            return programs.unsettled("said finite: data are separable, the plain path is short")
    if alive(kind, theta).all() and _newton_step(data, loss, claim.beta) <= LOOSE * np.linalg.norm(claim.beta):
        # The loss is convex in β, and every β is reached. (Along a channel to infinity a step adds one to a margin.)
        return programs.RIGHT
    found = follow_in(kind, data, theta, loss)
    if found is None:
        return programs.unsettled("the plain flow has not come to rest")
    size = max(np.linalg.norm(found), np.linalg.norm(claim.beta), np.finfo(float).tiny)
    apart = np.linalg.norm(found - claim.beta) / size
    return programs.wrong_if(apart > LOOSE, f"said finite: a plain flow rests {apart:.1e} away")


def _newton_step(data: Vectors, loss: str, beta: np.ndarray) -> float:
    """The length of Newton's step for β alone."""
    p, slope = pushes(loss, data, beta)
    hessian = data.inputs.T @ (-slope[:, None] * data.inputs)
    return float(np.linalg.norm(np.linalg.lstsq(hessian, data.inputs.T @ p, rcond=None)[0]))


def _path(norm: str, rows: np.ndarray, beta: np.ndarray, claim: Claim, path: Path, depth: int) -> programs.Judgement:
    """Whether a plain path goes where the claim says; to the optimum of a convex program it may be slow to come."""
    if not path.margin > MARGIN:
        return programs.unsettled("the plain path has not gone far")
    there = path.beta / (rows @ path.beta).min()
    if np.linalg.norm(there - beta) <= NEAR * np.linalg.norm(beta):
        return programs.RIGHT
    if claim.outcome == "globally_optimal":
        near = programs.norm_of(norm, there) <= (1.0 + NEAR) * programs.norm_of(norm, beta)
        # Of nearly the least norm, at margin one: optima may be many, or flat.
        return programs.Judgement("right" if near else "unverified", "the plain path is in transit", not near)
    if path.turn < STANDS and programs.kkt_residual(norm, depth, rows, there, OFF) < STANDS:
        return programs.Judgement("wrong", "a plain path stands at another stationary point", True)
    return programs.unsettled("the plain path is in transit")

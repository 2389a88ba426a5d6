r"""The referee of linear networks: a judgement of each claimed limit by NumPy, SciPy and CVXPY alone.

The draws are those of `referee_draws`, plain flows those of `referee_paths`. A claim is *wrong* where one of these
contradicts it by more than its own error:

- regression: the flow of the layers, integrated by LSODA to a small residual, ends elsewhere than at the claimed
  point, by more than twice the claimed error and ten times its own; or the claimed point does not fit its targets;
- classification: the margin of one; the excess over a lower bound of the program's optimum (HiGHS for l1, least
  distance programming for l2, weak duality for the DFT domain and the nuclear norm of one datum); for $\ell_{2/L}$,
  $L>2$, the KKT residual by non-negative least squares; a program that is said to be infeasible and is not;
- where the flow goes: a finite point that the plain flow leaves, coordinates that the start can never use, and for
  $L>2$ another stationary point at which the plain path stands.
"""

from typing import Any, NamedTuple

import numpy as np
from referee_attention import EXCESS, OPEN, Judgement, frobenius_dual
from referee_paths import Path, Vectors, alive, at_rest, coefficients, follow_in
from scipy.optimize import linprog, nnls

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
# Rows scaled to one: a margin that exists, and none.
EXISTS, NONE = 1e-6, 1e-9


class Claim(NamedTuple):
    """What the library says of one instance: `beta` the point or the direction `(d,)`, `error` and `residual` of a
    point, `dual` the multipliers of the program `(n,)`."""

    outcome: str
    beta: np.ndarray
    error: float
    source: str
    residual: float
    dual: np.ndarray


def judge_point(kind: str, data: Vectors, theta: tuple[np.ndarray, ...], claim: Claim) -> Judgement:
    """Of a regression: one instance, `(n, d)`, and the layers of its start."""
    if claim.outcome in OPEN:
        return Judgement("undecided", claim.outcome)
    if claim.outcome == "prediction_contradicted":
        return Judgement("wrong", "said that an interpolation is below the least value of all")
    if claim.outcome not in ("limit_point", "finite_stationary_point"):
        return Judgement("unverified", claim.outcome)
    X, y, beta = data.inputs, data.targets, claim.beta
    if not np.isfinite(beta).all():
        return Judgement("wrong", "the point is not finite")
    rounding = 1e-13 * (np.abs(X) @ np.abs(beta)).max()
    miss = np.abs(X @ beta - y).max()
    # Points are said to fit to 1e-13 where the flow stopped; a polished one has the error that is claimed.
    slack = claim.error * np.linalg.norm(X, 2) * np.linalg.norm(beta) if np.isfinite(claim.error) else 0.0
    if claim.outcome == "limit_point" and miss > 1e-11 * np.abs(y).max() + rounding + 2 * slack:
        return Judgement("wrong", f"said to interpolate: misses by {miss:.1e}")
    first = follow_in(kind, data, theta, "squared")
    if first is None:
        return Judgement("unverified", "the plain flow has not come to rest", True)
    size = max(np.linalg.norm(first), np.linalg.norm(beta))
    # Of a limit at zero, what the start was counts.
    size = max(size, 1e-3 * float(np.linalg.norm(coefficients(kind, theta))), np.finfo(float).tiny)
    allowed = 2 * claim.error if np.isfinite(claim.error) else LOOSE
    if np.linalg.norm(first - beta) <= (AGREES + allowed) * size:
        return Judgement("right", "")
    second = follow_in(kind, data, theta, "squared", rtol=1e-12)
    if second is None:
        return Judgement("unverified", "the plain flow has not come to rest", True)
    own, apart = (np.linalg.norm(second - x) / size for x in (first, beta))
    if apart <= allowed + 10 * own + 1e-8:
        return Judgement("right" if own < BLURRED else "unverified", "the plain flow has too few digits")
    if own > BLURRED:
        return Judgement("unverified", "the plain flow has too few digits")
    return Judgement(
        "wrong", f"said point: a plain flow ends {apart:.1e} away, said {claim.error:.1e} by {claim.source}"
    )


def judge_direction(
    kind: str, data: Vectors, theta: tuple[np.ndarray, ...], loss: str, claim: Claim, path: Path
) -> Judgement:
    """Of a classification: one instance, the layers of its start, and the plain path from it."""
    if claim.outcome in OPEN:
        return Judgement("undecided", claim.outcome)
    rows, size = scaled_rows(data)
    if claim.outcome == "finite_stationary_point":
        return _finite(kind, data, theta, loss, claim, rows, path)
    if claim.outcome == "infeasible_program":
        margin = feasible(rows)
        if margin > EXISTS:
            return Judgement("wrong", f"said infeasible: a margin of {margin:.1e} exists")
        return Judgement("right", "") if margin < NONE else Judgement("unverified", f"margin {margin:.1e}")
    if claim.outcome not in ("globally_optimal", "locally_optimal", "prediction_contradicted"):
        return Judgement("unverified", claim.outcome)
    with np.errstate(over="ignore", invalid="ignore"):
        beta = claim.beta * size
        margins = rows @ beta
        off = abs(margins.min() - 1.0) / max(1.0, np.abs(margins).max())
    free = alive(kind, theta)
    if claim.outcome == "prediction_contradicted":
        if free.all() and feasible(rows) > EXISTS:
            return Judgement("wrong", "said contradicted: the theorem holds from this start")
        return Judgement("unverified", "said contradicted, from a start with coordinates that are not free")
    if not off <= 1e-9:
        return Judgement("wrong", f"said direction: margin {margins.min():.12g} instead of one")
    used = np.abs(modes(kind, beta))
    if len(free) == len(used) and (used[~free] > OFF * used.max()).any():
        return Judgement("wrong", "a coordinate is used that stays zero from this start")
    if claim.outcome == "globally_optimal":
        excess = norm_of(kind, beta) / lower_bound(kind, rows, claim.dual) - 1.0
        if not excess <= EXCESS and kind == "convolutional network":
            # The claim's multipliers may be poor ones.
            excess = min(excess, norm_of(kind, beta) / lower_bound(kind, rows, spectral_dual(rows)) - 1.0)
        if not excess <= EXCESS:
            return Judgement("wrong", f"said optimal: excess {excess:.2e} over the program's optimum")
    else:
        residual = kkt_residual(kind, len(theta), rows, beta)
        if not residual <= KKT:
            return Judgement("wrong", f"said stationary: KKT residual {residual:.1e}")
    return _path(kind, rows, beta, claim, path, len(theta))


def scaled_rows(data: Vectors) -> tuple[np.ndarray, float]:
    """$y_ix_i$ over the largest entry of all, and that entry."""
    size = float(np.abs(data.inputs).max())
    return data.targets[:, None] * (data.inputs / size), size


def modes(kind: str, beta: np.ndarray) -> np.ndarray:
    """The coordinates in which the network is diagonal: those of the DFT for convolutions, else β itself."""
    return np.fft.fft(beta, norm="ortho") if kind == "convolutional network" else beta


def norm_of(kind: str, beta: np.ndarray) -> float:
    """The norm of the program of two layers (of any number, for fully connected ones)."""
    if kind == "deep network":
        return float(np.linalg.norm(beta))
    if kind == "matrix sensing":
        return float(np.linalg.svd(_square(beta), compute_uv=False).sum())
    return float(np.abs(modes(kind, beta)).sum())


def lower_bound(kind: str, rows: np.ndarray, dual: np.ndarray) -> float:
    r"""A lower bound of the least norm at margin one: the program's value by HiGHS for l1, else
    $\sum\lambda/N^*(\sum\lambda_ia_i)$ for the λ of least distance programming (l2), else for `dual`."""
    if kind == "diagonal network":
        solved = linprog(np.ones(2 * rows.shape[1]), -np.hstack([rows, -rows]), -np.ones(len(rows)), method="highs")
        return float(solved.fun) if solved.status == 0 else np.inf
    if kind == "deep network":
        return _bound(kind, rows, frobenius_dual(rows))
    return max(_bound(kind, rows, np.maximum(dual, 0.0)), _bound(kind, rows, np.ones(len(rows))))


def _bound(kind: str, rows: np.ndarray, lam: np.ndarray) -> float:
    total = lam.sum()
    if not (np.isfinite(total) and total > 0):
        return 0.0
    pull = (lam / total) @ rows
    if kind == "deep network":
        dual_norm = np.linalg.norm(pull)
    elif kind == "matrix sensing":
        dual_norm = np.linalg.norm(_square(pull), 2)
    else:
        dual_norm = np.abs(modes(kind, pull)).max()
    return float(1.0 / dual_norm) if dual_norm > 0 else np.inf


def spectral_dual(rows: np.ndarray) -> np.ndarray:
    r"""λ of $\min\max_j|[F\sum\lambda_ia_i]_j|$ on the simplex, by CVXPY and Clarabel."""
    import cvxpy as cp

    lam = cp.Variable(len(rows), nonneg=True)
    spectrum = np.fft.fft(rows, axis=-1, norm="ortho")
    pair = [cp.norm(cp.hstack([spectrum[:, j].real @ lam, spectrum[:, j].imag @ lam])) for j in range(rows.shape[1])]
    options = {"tol_gap_abs": 1e-10, "tol_gap_rel": 1e-10, "tol_feas": 1e-10}
    program: Any = cp.Problem(cp.Minimize(cp.max(cp.hstack(pair))), [cp.sum(lam) == 1])  # pyright: ignore
    try:
        program.solve("CLARABEL", **options)
    except cp.SolverError:
        # Then the claim's own multipliers are what there is.
        return np.zeros(len(rows))
    return np.zeros(len(rows)) if lam.value is None else np.maximum(lam.value, 0.0)


def kkt_residual(kind: str, depth: int, rows: np.ndarray, beta: np.ndarray) -> float:
    r"""Of $\min\|\rho\|_p^p$, $p=2/L$, at margin one: $\min_{\lambda\ge0}\|\bar\rho_jg_j-|\rho_j|^p\|_\infty$ over the
    support of ρ, relative to the largest $|\rho_j|^p$, with g = Σ λ_i a_i over rows with a margin of one."""
    margins = rows @ beta
    rho, A = modes(kind, beta), np.stack([modes(kind, row) for row in rows])
    on = np.abs(rho) > OFF * np.abs(rho).max()
    rho = rho / np.abs(rho).max()
    system = (np.conj(rho)[None] * A)[margins <= 1.0 + 1e-3][:, on].T
    wanted = np.abs(rho[on]) ** (2.0 / depth)
    # A complex component is two equations, and the imaginary part of what is wanted is zero.
    system = np.vstack([system.real, system.imag])
    wanted = np.append(wanted, np.zeros(len(wanted)))
    scale = np.maximum(np.abs(system).max(0), np.finfo(float).tiny)
    lam, _ = nnls(system / scale, wanted, maxiter=1000)
    return float(np.abs(system / scale @ lam - wanted).max())


def feasible(rows: np.ndarray) -> float:
    """The largest margin of coefficients with entries of at most one, rows scaled to one: zero where there is none."""
    size = np.linalg.norm(rows, axis=1, keepdims=True)
    rows = np.divide(rows, size, out=np.zeros_like(rows), where=size > 0)
    n, d = rows.shape
    limits = [(-1, 1)] * d + [(0, 1)]
    found = linprog(np.append(np.zeros(d), -1.0), np.hstack([-rows, np.ones((n, 1))]), np.zeros(n), bounds=limits)
    return float(-found.fun)


def _finite(
    kind: str,
    data: Vectors,
    theta: tuple[np.ndarray, ...],
    loss: str,
    claim: Claim,
    rows: np.ndarray,
    path: Path,
) -> Judgement:
    if not at_rest(kind, theta, data, loss):
        if path.margin > MARGIN:
            return Judgement("wrong", "said finite: a plain path goes to infinity")
        if feasible(rows) > EXISTS and alive(kind, theta).all() and len(theta) == 2:
            return Judgement("unverified", "said finite: data are separable, the plain path is short", True)
    found = follow_in(kind, data, theta, loss)
    if found is None:
        return Judgement("unverified", "the plain flow has not come to rest", True)
    size = max(np.linalg.norm(found), np.linalg.norm(claim.beta), np.finfo(float).tiny)
    apart = np.linalg.norm(found - claim.beta) / size
    if apart > LOOSE:
        return Judgement("wrong", f"said finite: a plain flow rests {apart:.1e} away")
    return Judgement("right", "")


def _path(kind: str, rows: np.ndarray, beta: np.ndarray, claim: Claim, path: Path, depth: int) -> Judgement:
    """Whether a plain path goes where the claim says; to the optimum of a convex program it may be slow to come."""
    if not path.margin > MARGIN:
        return Judgement("unverified", "the plain path has not gone far", True)
    there = path.beta / (rows @ path.beta).min()
    if np.linalg.norm(there - beta) <= NEAR * np.linalg.norm(beta):
        return Judgement("right", "")
    if claim.outcome == "globally_optimal":
        near = norm_of(kind, there) <= (1.0 + NEAR) * norm_of(kind, beta)
        # Of nearly the least norm, at margin one: optima may be many, or flat.
        return Judgement("right" if near else "unverified", "the plain path is in transit", not near)
    if path.turn < STANDS and kkt_residual(kind, depth, rows, there) < STANDS:
        return Judgement("wrong", "a plain path stands at another stationary point", True)
    return Judgement("unverified", "the plain path is in transit", True)


def _square(beta: np.ndarray) -> Any:
    side = round(len(beta) ** 0.5)
    return beta.reshape(side, side)

r"""Max-margin programs for a referee that shares no code with the library: bounds, margins and verdicts.

A program is $\min N(x)$ subject to $Ax\ge1$, with the rows of A flat. Norms: `frobenius`, `nuclear` (of square
matrices), `l1`, and `spectral`, which is l1 of the discrete Fourier transform.
"""

from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import linprog, nnls

NORMS = {
    **{"W": "frobenius", "KQ": "nuclear", "diagonal": "l1"},
    **{"deep network": "frobenius", "matrix sensing": "nuclear"},
    **{"diagonal network": "l1", "convolutional network": "spectral"},
}
# What the library claims of an excess, by default, and the rounding of a program's value.
EXCESS = 1.01e-8
# Rows scaled to one: a margin that exists, and none.
EXISTS, NONE = 1e-6, 1e-9


class Judgement(NamedTuple):
    """`right`, `undecided` (nothing is claimed), `unverified` (the referee cannot tell) or `wrong`, and why; `by_path`
    where a plain path says so, which may be followed further."""

    verdict: str
    why: str = ""
    by_path: bool = False


RIGHT = Judgement("right")
OPEN = ("undecided", "ambiguous", "failed")


def wrong_if(broken: Any, why: str) -> Judgement:
    """Wrong where something is broken, else right."""
    return Judgement("wrong", why) if broken else RIGHT


def unsettled(why: str) -> Judgement:
    """What a plain path that is followed further may decide."""
    return Judgement("unverified", why, True)


def modes(norm: str, x: np.ndarray) -> np.ndarray:
    """The coordinates whose sizes an l1 norm adds: those of the DFT, or x itself."""
    return np.fft.fft(x, axis=-1, norm="ortho") if norm == "spectral" else x


def _square(x: np.ndarray) -> np.ndarray:
    return x.reshape(round(x.size**0.5), -1)


def norm_of(norm: str, x: np.ndarray) -> float:
    """The norm of flat weights."""
    if norm == "frobenius":
        return float(np.linalg.norm(x))
    if norm == "nuclear":
        return float(np.linalg.svd(_square(x), compute_uv=False).sum())
    return float(np.abs(modes(norm, x)).sum())


def dual_norm(norm: str, x: np.ndarray) -> float:
    r"""$\max\langle x,y\rangle$ over y of norm one."""
    if norm == "frobenius":
        return float(np.linalg.norm(x))
    return float(np.linalg.norm(_square(x), 2) if norm == "nuclear" else np.abs(modes(norm, x)).max())


def lower_bound(norm: str, rows: np.ndarray, dual: np.ndarray) -> float:
    r"""A lower bound of the least norm at margin one: the program's value by HiGHS for l1, else
    $\sum\lambda/N^*(\sum\lambda_ja_j)$, which bounds it for every $\lambda\ge0$: that of least distance programming for
    the Frobenius norm, and else the better one of `dual` and of equal ones."""
    if norm == "l1":
        size = np.abs(rows).max()
        both = np.hstack([rows, -rows]) / size
        solved = linprog(np.ones(both.shape[1]), -both, -np.ones(len(rows)), method="highs")
        return float(solved.fun) / size if solved.status == 0 else np.inf
    choices = [frobenius_dual(rows)] if norm == "frobenius" else [np.maximum(dual, 0.0), np.ones(len(rows))]
    return max(_bound(norm, rows, lam) for lam in choices)


def _bound(norm: str, rows: np.ndarray, lam: np.ndarray) -> float:
    total = lam.sum()
    if not (np.isfinite(total) and total > 0):
        return 0.0
    size = dual_norm(norm, (lam / total) @ rows)
    return 1.0 / size if size > 0 else np.inf


def frobenius_dual(rows: np.ndarray) -> np.ndarray:
    r"""λ of the least-norm point of the convex hull of the rows, by Lawson and Hanson: least squares of
    $(A^\top\lambda,\mathbf 1^\top\lambda)$ against (0, 1) over λ ≥ 0 (least distance programming)."""
    size = np.linalg.norm(rows, axis=1).max()
    system = np.vstack([rows.T / size, np.ones(len(rows))])
    lam, _ = nnls(system, np.append(np.zeros(rows.shape[1]), 1.0), maxiter=50 * len(rows) + 100)
    return lam


def spectral_dual(rows: np.ndarray) -> np.ndarray:
    r"""λ of $\min\max_j|[F\sum\lambda_ia_i]_j|$ on the simplex, by CVXPY and Clarabel."""
    import cvxpy as cp

    lam = cp.Variable(len(rows), nonneg=True)
    spectrum = modes("spectral", rows)
    pair = [cp.norm(cp.hstack([spectrum[:, j].real @ lam, spectrum[:, j].imag @ lam])) for j in range(rows.shape[1])]
    options = {"tol_gap_abs": 1e-10, "tol_gap_rel": 1e-10, "tol_feas": 1e-10}
    program: Any = cp.Problem(cp.Minimize(cp.max(cp.hstack(pair))), [cp.sum(lam) == 1])  # pyright: ignore
    try:
        program.solve("CLARABEL", **options)
    except cp.SolverError:
        # Then the claim's own multipliers are what there is.
        return np.zeros(len(rows))
    return np.zeros(len(rows)) if lam.value is None else np.maximum(lam.value, 0.0)


def feasible(rows: np.ndarray) -> float:
    """The largest margin of weights with entries of at most one, rows scaled to one: zero where there is none."""
    size = np.linalg.norm(rows, axis=1, keepdims=True)
    rows = np.divide(rows, size, out=np.zeros_like(rows), where=size > 0)
    m, p = rows.shape
    cost, system = np.append(np.zeros(p), -1.0), np.hstack([-rows, np.ones((m, 1))])
    return float(-linprog(cost, system, np.zeros(m), bounds=[(-1, 1)] * p + [(0, 1)]).fun)


def judge_infeasible(rows: np.ndarray) -> Judgement:
    """Of a program that is said to be infeasible."""
    margin = feasible(rows)
    if margin > EXISTS:
        return Judgement("wrong", f"said infeasible: a margin of {margin:.1e} exists")
    return RIGHT if margin < NONE else Judgement("unverified", f"margin {margin:.1e}")


def at_margin_one(margins: np.ndarray) -> Judgement:
    """Whether the smallest margin of a direction is one."""
    exact = abs(margins.min() - 1.0) <= 1e-9 * max(1.0, np.abs(margins).max())
    return wrong_if(not exact, f"margin {margins.min():.12g} instead of one")


def kkt_residual(norm: str, depth: int, rows: np.ndarray, x: np.ndarray, off: float) -> float:
    r"""Of $\min\|\rho\|_p^p$, $p=2/L$, at margin one: $\min_{\lambda\ge0}\|\bar\rho_jg_j-|\rho_j|^p\|_\infty$ over the
    support of ρ (entries above `off` of the largest), relative to the largest $|\rho_j|^p$, with g = Σ λ_i a_i over
    rows with a margin of one."""
    rho, A = modes(norm, x), modes(norm, rows)
    on = np.abs(rho) > off * np.abs(rho).max()
    rho = rho / np.abs(rho).max()
    system = (np.conj(rho)[None] * A)[rows @ x <= 1.0 + 1e-3][:, on].T
    wanted = np.abs(rho[on]) ** (2.0 / depth)
    # A complex component is two equations, and the imaginary part of what is wanted is zero.
    system = np.vstack([system.real, system.imag])
    wanted = np.append(wanted, np.zeros(len(wanted)))
    scale = np.maximum(np.abs(system).max(0), np.finfo(float).tiny)
    lam, _ = nnls(system / scale, wanted, maxiter=1000)
    return float(np.abs(system / scale @ lam - wanted).max())

r"""Diagonal attention that goes far out and comes back to a point, in NumPy, for a referee that shares no code.

With $u=(k+q)/\sqrt2$ and $v=(k-q)/\sqrt2$ the flow is $u=u_0e^A$, $v=v_0e^{-A}$, $A'=g$ with $g=-\partial L/\partial
(k\odot q)$: d unknowns, and nothing small is lost. They are followed in $ds=\|\nabla L\|\,dt/\|\theta\|$ by the method
Radau IIA of two stages, whose Newton matrix is written out, in extended precision: logits are rounded by $10^{-19}$ of
themselves, and a path is lost where that is not small against one.
"""

from typing import Any, NamedTuple

import numpy as np

from tests.referee.flow import Tokens

REAL = np.longdouble
# Of A in a step. Paths that come back rest where they do because the loss has a minimum there.
TOLERANCE = 1e-5
# The velocity relative to the weights, and to the sum of what each token adds to it, at which a path rests.
RESTS = 1e-9
STEPS = 20_000
# ... and logits in an iteration of Newton's method.
LOGITS = 1e-3
# Steps in s, below which a path is lost.
LEAST_STEP = 1e-25
# Radau IIA of order three.
TABLEAU = np.array([[5, -1], [9, 3]], REAL) / REAL(12)


class Rest(NamedTuple):
    """Whether the path rests, where (`beta` `(d,)`), and the largest norm of the weights on the way."""

    rests: bool
    beta: np.ndarray
    furthest: float


class _Field:
    """$dA/ds$ with its derivative, of one instance."""

    def __init__(self, data: Tokens, theta: tuple[np.ndarray, ...]) -> None:
        tokens, queries, labels, v = (np.asarray(x, REAL) for x in data)
        self.scores = labels[:, None] * (tokens @ v)
        self.rows = tokens * queries[:, None]
        k, q = (np.asarray(x, REAL) for x in theta)
        self.u, self.v = (k + q) / np.sqrt(REAL(2)), (k - q) / np.sqrt(REAL(2))

    def __call__(self, A: np.ndarray) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
        u, v = self.u * np.exp(A), self.v * np.exp(-A)
        both, beta = u * u + v * v, (u - v) * (u + v) / 2
        logits = self.rows @ beta
        n, T = logits.shape
        top = logits.argmax(1)
        first = np.arange(T) == top[:, None]
        below = logits - logits.max(1, keepdims=True)
        s = np.exp(below) / np.exp(below).sum(1, keepdims=True)
        # What the tokens that are not first have of the attention, over the largest of it.
        others = np.where(first, -np.inf, below - np.log(np.exp(below).sum(1, keepdims=True)))
        small = np.exp(others - others.max())
        m = (s * self.scores).sum(1)
        w = 1 / (1 + np.exp(m))
        ahead = np.einsum("nu,ntu->nt", s, self.scores[:, :, None] - self.scores[:, None, :])
        p = w[:, None] * small * ahead
        apart = self.rows - self.rows[np.arange(n), top][:, None]
        g = np.einsum("nt,ntd->d", p, apart)
        mean = np.einsum("nt,ntd->nd", s, self.rows)
        dm = np.einsum("nt,nt,ntd->nd", s, self.scores, self.rows) - m[:, None] * mean
        dp = p[..., None] * (self.rows - mean[:, None] - ((1 - w)[:, None] * dm)[:, None])
        dp = dp - (w[:, None] * small)[..., None] * dm[:, None]
        dg = np.einsum("ntd,nte->de", apart, dp) * both
        size, speed = np.sqrt(both.sum()), np.sqrt((g * g * both).sum())
        # d(size)/dA = (u² − v²)/size, and the square of the speed is Σ g²(u² + v²).
        dsize, dspeed = 2 * beta / size, ((g * both) @ dg + 2 * g * g * beta) / speed
        rate = g * size / speed
        slope = dg * size / speed + np.outer(g, dsize / speed - size * dspeed / speed**2)
        share = speed / (size * np.abs(p).sum())
        return rate, slope, {"beta": beta, "size": size, "share": share}


def follow_back(data: Tokens, theta: tuple[np.ndarray, ...], steps: int = STEPS) -> Rest:
    """The path of one instance, until it rests, or is lost, or the steps are spent."""
    field = _Field(data, theta)
    A = np.zeros(len(field.u), REAL)
    h, furthest, begun = REAL(1e-3), 0.0, None
    rate, _, now = field(A)
    for _ in range(steps):
        furthest = max(furthest, float(now["size"]))
        if now["share"] < RESTS or not h > LEAST_STEP:
            break
        stages = _stages(field, A, h, _continued(begun, h))
        if stages is None:
            h = h / 4
            continue
        moved = stages[1]
        after, slope, then = field(A + moved)
        # The trapezoidal rule's difference, without its stiff part.
        error = solve(np.eye(len(A), dtype=REAL) - h * slope, moved - h * (rate + after) / 2)
        share = np.abs(error).max() / TOLERANCE
        if not share < 1:
            h = h / 4
            continue
        A, rate, now, begun = A + moved, after, then, (stages, h)
        h = h * min(REAL(4), max(REAL(0.3), REAL(0.9) / (share + REAL(1e-6)) ** (REAL(1) / 3)))
    return Rest(bool(now["share"] < RESTS), np.asarray(now["beta"], float), furthest)


def _continued(begun: tuple[np.ndarray, np.floating] | None, h: np.floating) -> np.ndarray | None:
    """Where the stages of the next step are on the parabola of the last one."""
    if begun is None:
        return None
    (one, two), before = begun
    bent = (two - 3 * one) * 3 / 2
    tau = 1 + h / before * np.array([[1], [3]], REAL) / 3
    return (two - bent) * tau + bent * tau**2 - two


def _stages(field: _Field, A: np.ndarray, h: np.floating, Z: np.ndarray | None) -> np.ndarray | None:
    """The stages of a step, from `Z`, or None where Newton's method does not converge."""
    d, last = len(A), np.inf
    Z = np.zeros((2, d), REAL) if Z is None else Z
    for count in range(15):
        (one, slope_one, _), (two, slope_two, now) = field(A + Z[0]), field(A + Z[1])
        residual = Z - h * TABLEAU @ np.stack([one, two])
        parts = [[-h * TABLEAU[i, j] * slope for j, slope in enumerate((slope_one, slope_two))] for i in range(2)]
        change = solve(np.eye(2 * d, dtype=REAL) + np.block(parts), -residual.ravel()).reshape(2, d)
        size = np.abs(change).max()
        if not size < 5 or (count > 3 and size > 2 * last):
            return None
        Z, last = Z + change, size
        if size < 1e-6 * TOLERANCE and size * np.abs(now["beta"]).max() < LOGITS:
            return Z
    return None


def solve(matrix: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Gauss with column pivots: NumPy's own knows no extended precision."""
    M, d = np.column_stack([matrix, right]), len(right)
    for i in range(d):
        pivot = i + np.abs(M[i:, i]).argmax()
        M[[i, pivot]] = M[[pivot, i]]
        M[i] = M[i] / M[i, i]
        others = np.arange(d) != i
        M[others] = M[others] - np.outer(M[others, i], M[i])
    return M[:, -1]

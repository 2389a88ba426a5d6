r"""Diagonal attention that goes far out and comes back to a point, in NumPy and SciPy, without the library's code.

With $u=(k+q)/\sqrt2$ and $v=(k-q)/\sqrt2$ the flow is $u=u_0e^A$, $v=v_0e^{-A}$, $A'=g$ with $g=-\partial L/\partial
(k\odot q)$: d unknowns, and nothing small is lost. They are followed in $ds=\|\nabla L\|\,dt/\|\theta\|$ by SciPy's
Radau with the derivative written out.
"""

from typing import Any, NamedTuple

import numpy as np
from scipy.integrate import Radau

from tests.referee.flow import Tokens

# Of A in a step. Paths that come back rest where they do because the loss has a minimum there.
TOLERANCE = 1e-5
# The velocity relative to the weights, and to the sum of what each token adds to it, at which a path rests.
RESTS = 1e-9
STEPS = 20_000


class Rest(NamedTuple):
    """Whether the path rests, where (`beta` `(d,)`), and the largest norm of the weights on the way."""

    rests: bool
    beta: np.ndarray
    furthest: float


class _Field:
    """$dA/ds$ with its derivative, of one instance."""

    def __init__(self, data: Tokens, theta: tuple[np.ndarray, ...]) -> None:
        tokens, queries, labels, v = (np.asarray(x, float) for x in data)
        self.scores = labels[:, None] * (tokens @ v)
        self.rows = tokens * queries[:, None]
        k, q = (np.asarray(x, float) for x in theta)
        self.u, self.v = (k + q) / np.sqrt(2), (k - q) / np.sqrt(2)

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
    zero = np.zeros(len(field.u))
    solver = Radau(
        lambda _, A: field(A)[0],
        0.0,
        zero,
        1e100,
        rtol=1e-8,
        atol=TOLERANCE,
        jac=lambda _, A: field(A)[1],
        first_step=1e-3,
        max_step=10.0,
    )
    now, furthest = field(zero)[2], 0.0
    for _ in range(steps):
        furthest = max(furthest, float(now["size"]))
        # Squares of e^A beyond are no numbers.
        if now["share"] < RESTS or np.abs(solver.y).max() > 300.0:
            break
        if solver.step() is not None or solver.status != "running":
            break
        now = field(solver.y)[2]
    return Rest(bool(now["share"] < RESTS), now["beta"], furthest)

"""Programs, gradients and flows in NumPy and SciPy alone: what a counterexample has to survive.

Data are arrays of a drawn instance; nothing here imports a model, a loss, a solver or a flow of this library.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy.integrate import solve_ivp
from scipy.optimize import linprog, nnls
from scipy.special import expit, softmax

# Of SciPy's integrations.
RTOL = 1e-9


class Tokens(NamedTuple):
    """Sequences `(n, T, d)` with a query `(n, d)`, a label and a head `(n, d)` each; `visible` `(n, T)`."""

    tokens: np.ndarray
    queries: np.ndarray
    labels: np.ndarray
    heads: np.ndarray
    visible: np.ndarray

    @property
    def scores(self) -> np.ndarray:
        """γ, −inf at hidden tokens."""
        return np.where(self.visible, self.labels[:, None] * np.einsum("ntd,nd->nt", self.tokens, self.heads), -np.inf)


def tokens_of(data: Any, head: Any) -> Tokens:
    """The arrays of token data; every one of k outputs of a sequence is a sequence of its own."""
    tokens, queries, labels = (np.asarray(x, float) for x in (data.tokens, data.queries, data.labels))
    visible = np.asarray(data.visible)
    n, T, d = tokens.shape
    outputs = queries.size // (n * d)
    heads = np.broadcast_to(np.asarray(head, float).reshape(-1, d), (outputs, d))
    return Tokens(
        np.repeat(tokens, outputs, axis=0),
        queries.reshape(-1, d),
        labels.reshape(-1),
        np.tile(heads, (n, 1)),
        np.broadcast_to(visible.reshape(n, -1, T), (n, outputs, T)).reshape(-1, T),
    )


def margin_rows(given: Tokens, selection: np.ndarray) -> np.ndarray:
    """(x_{iα_i} − x_it) z_iᵀ `(k, d, d)` of all visible t that are not selected; `selection`: indices."""
    own = given.tokens[np.arange(len(selection)), selection]
    rows = np.einsum("ntd,ne->ntde", own[:, None] - given.tokens, given.queries)
    return rows[given.visible & (np.arange(given.visible.shape[1]) != selection[:, None])]


def best_rows(given: Tokens) -> np.ndarray:
    """`margin_rows` of the optimal tokens."""
    return margin_rows(given, np.argmax(given.scores, axis=1))


def least_norm(rows: np.ndarray) -> np.ndarray | None:
    """The W of least Frobenius norm with all margins at least one, by SciPy's NNLS (Lawson and Hanson, least distance
    programming); None where there is none."""
    flat = rows.reshape(len(rows), -1)
    # In coordinates of the rows' span, which are few where W has many entries.
    left, sizes, right = np.linalg.svd(flat, full_matrices=False)
    E = np.vstack([(left * sizes).T, np.ones(len(flat))])
    aim = np.append(np.zeros(len(sizes)), 1.0)
    dual, off = nnls(E, aim, maxiter=100 * len(flat))
    residual = E @ dual - aim
    # The residual is zero where a combination of the rows vanishes; its last entry is minus its square.
    if off**2 <= np.finfo(float).eps:
        return None
    return (-(residual[:-1] / residual[-1]) @ right).reshape(rows.shape[1:])


def separable(rows: np.ndarray) -> bool:
    """Whether some vector has all margins at least one, by SciPy's HiGHS."""
    flat = rows.reshape(len(rows), -1)
    found = linprog(np.zeros(flat.shape[1]), A_ub=-flat, b_ub=-np.ones(len(flat)), bounds=(None, None))
    return found.status == 0


def logistic_slope(margins: np.ndarray) -> np.ndarray:
    """−ℓ′ of log(1 + e^−m)."""
    return expit(-margins)


def exponential_slope(margins: np.ndarray) -> np.ndarray:
    """−ℓ′ of e^−m."""
    return np.exp(-margins)


def linear_slope(margins: np.ndarray) -> np.ndarray:
    """−ℓ′ of −m."""
    return np.ones_like(margins)


Slope = Callable[[np.ndarray], np.ndarray]


def attention(given: Tokens, W: np.ndarray) -> np.ndarray:
    """Softmax of all sequences `(n, T)`."""
    logits = np.einsum("ntd,de,ne->nt", given.tokens, W, given.queries)
    return softmax(np.where(given.visible, logits, -np.inf), axis=1)


def descent_direction(given: Tokens, W: np.ndarray, slope: Slope = logistic_slope) -> np.ndarray:
    """−∇L(W). Differences of tokens and of scores, exactly zero where they are equal, keep their sign where attention
    saturates."""
    weights = attention(given, W)
    scores = np.where(given.visible, given.scores, 0.0)
    top = given.tokens[np.arange(len(weights)), np.argmax(weights, axis=1)]
    above = np.einsum("nts,ns->nt", scores[:, :, None] - scores[:, None, :], weights)
    pull = weights * above * slope(np.sum(weights * scores, axis=1))[:, None] / len(weights)
    return np.einsum("nt,ntd,ne->de", pull, given.tokens - top[:, None], given.queries)


def flow_to(field: Callable[[np.ndarray], np.ndarray], start: np.ndarray, *log_times: float) -> list[np.ndarray]:
    """x' = field(x) at these times by SciPy's LSODA: to t = 1, and from there on in log t. NaN where it fails."""

    def by_log(s: float, x: np.ndarray) -> np.ndarray:
        return np.exp(s) * field(x.reshape(start.shape)).ravel()

    def by_time(t: float, x: np.ndarray) -> np.ndarray:
        return field(x.reshape(start.shape)).ravel()

    how: Any = {"method": "LSODA", "rtol": RTOL, "atol": 1e-2 * RTOL}
    first = solve_ivp(by_time, (0.0, 1.0), start.ravel(), **how)
    found = solve_ivp(by_log, (0.0, log_times[-1]), first.y[:, -1], t_eval=log_times, **how)
    if not (first.success and found.success):
        return [np.full_like(start, np.nan) for _ in log_times]
    return [x.reshape(start.shape) for x in found.y.T]


def misaligned(a: np.ndarray, b: np.ndarray) -> float:
    """1 − ⟨a, b⟩/‖a‖‖b‖, without cancellation."""
    return 0.5 * float(np.sum((a / np.linalg.norm(a) - b / np.linalg.norm(b)) ** 2))


def limit_apart(given: Tokens, start: np.ndarray, target: np.ndarray, log_time: float) -> float:
    """1 − corr of W^mm of the target with the limit of the flow from `start`.

    LSODA goes to `log_time`. The limit has the direction of the least W that separates what is selected there. Where a
    sequence has lost its target among tokens of equal scores it has no constraint: of both programs the one counts
    whose solution is nearer to the motion over the second half, which approaches the limit faster than W does.
    """

    def field(W: np.ndarray) -> np.ndarray:
        return descent_direction(given, W)

    middle, end = flow_to(field, start, 0.5 * log_time, log_time)
    aim = least_norm(margin_rows(given, target))
    if aim is None or not np.all(np.isfinite(end - middle)):
        return np.nan
    selected = np.argmax(attention(given, end), axis=1)
    kept = selected == target
    every = least_norm(margin_rows(given, selected))
    rest = given._replace(visible=given.visible & (kept[:, None] | (np.arange(given.visible.shape[1]) == 0)))
    rows = margin_rows(rest, np.where(kept, target, 0))
    some = least_norm(rows) if len(rows) and not kept.all() else None
    ends = [W for W in (every, some) if W is not None]
    return misaligned(min(ends, key=lambda W: misaligned(W, end - middle)), aim) if ends else np.nan


def first_step_needed(given: Tokens) -> float:
    """R_μ/‖∇L(0)‖ times ‖W^mm‖, with R_μ of (59) of Tarzanagh et al. for the optimal tokens and logistic loss."""
    scores = np.sort(given.scores, axis=1)
    rows = best_rows(given)
    W = least_norm(rows)
    if W is None:
        return np.nan
    theta, down = 1.0 / np.linalg.norm(W), descent_direction(given, np.zeros_like(W))
    slope = np.linalg.norm(down)
    mu = np.min(np.sum(rows * down, axis=(1, 2))) / slope / theta
    pairs = np.linalg.norm(given.tokens[:, :, None] - given.tokens[:, None], axis=-1)
    A = np.max(np.maximum(pairs, 1.0) * np.linalg.norm(given.queries, axis=-1)[:, None, None]) / theta
    gap, least_gap = np.max(scores[:, -1] - scores[:, 0]), np.min(scores[:, -1] - scores[:, -2])
    return float(np.log(4.0 * scores.shape[1] * gap * A / (mu * least_gap)) / (mu * theta) / slope / theta)

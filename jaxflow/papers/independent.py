"""Programs, gradients and flows in NumPy and SciPy alone: what a counterexample has to survive.

Data are arrays of a drawn instance; nothing here imports a model, a loss, a solver or a flow of this library.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
from scipy.integrate import solve_ivp
from scipy.optimize import linprog, nnls
from scipy.special import log_softmax, softmax

# Of SciPy's integrations.
RTOL = 1e-9
# log(−ℓ′) of the losses log(1 + e^−m), e^−m and −m.
LOG_SLOPES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "logistic": lambda m: -np.logaddexp(0.0, m),
    "exponential": np.negative,
    "correlation": np.zeros_like,
}


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


def attention(given: Tokens, W: np.ndarray) -> np.ndarray:
    """Softmax of all sequences `(n, T)`."""
    logits = np.einsum("ntd,de,ne->nt", given.tokens, W, given.queries)
    return softmax(np.where(given.visible, logits, -np.inf), axis=1)


def descent_direction(given: Any, weights: np.ndarray, loss: str = "logistic", s: float = 0.0) -> np.ndarray:
    """−e^s∇L of tokens, or of points (X, y): e^s multiplies logarithms, and nothing underflows.

    Differences of tokens and of scores, exactly zero where they are equal, keep their sign where attention saturates.
    """
    if not isinstance(given, Tokens):
        X, y = given
        return X.T @ (y * np.exp(s + LOG_SLOPES[loss](y * (X @ weights)))) / len(y)
    logits = np.einsum("ntd,de,ne->nt", given.tokens, weights, given.queries)
    logs = log_softmax(np.where(given.visible, logits, -np.inf), axis=1)
    weights, scores = np.exp(logs), np.where(given.visible, given.scores, 0.0)
    first = np.argmax(logs, axis=1)[:, None]
    above = np.einsum("nts,ns->nt", scores[:, :, None] - scores[:, None, :], weights)
    margins = np.sum(weights * scores, axis=1, keepdims=True)
    # The token that leads is moved by none of its own.
    logs = np.where(np.arange(logs.shape[1]) == first, -np.inf, logs)
    pull = np.exp(s + logs + LOG_SLOPES[loss](margins)) * above / len(logs)
    own = np.take_along_axis(given.tokens, first[:, :, None], axis=1)
    return np.einsum("nt,ntd,ne->de", pull, given.tokens - own, given.queries)


def product(kind: str, parts: np.ndarray) -> np.ndarray:
    """The weights that the parameters of a model of this kind make."""
    if kind == "combined":
        return parts[0]
    if kind == "convolutional":
        return np.real(np.fft.ifft(np.fft.fft(parts[0]) * np.fft.fft(parts[1])))
    return np.diag(parts[0] * parts[1]) if kind == "diagonal" else parts[0] @ parts[1].T


def pulled(kind: str, parts: np.ndarray, down: np.ndarray) -> np.ndarray:
    """The motion of the parameters where the weights are pulled `down`."""
    if kind == "combined":
        return down[None]
    if kind == "convolutional":
        return np.real(np.fft.ifft(np.fft.fft(down) * np.conj(np.fft.fft(parts[::-1]))))
    if kind == "diagonal":
        return np.diagonal(down) * parts[::-1]
    return np.stack([down @ parts[1], down.T @ parts[0]])


def given_and_start(data: Any, model: Any) -> tuple[Any, np.ndarray]:
    """Tokens, or points (X, y); and the parts of the parameters of the model, in one array."""
    leaves = [np.asarray(x, float) for x in jax.tree.leaves(eqx.filter(model, model.trainable()))]
    points = not hasattr(data, "tokens")
    given = (np.asarray(data.inputs), np.asarray(data.targets)) if points else tokens_of(data, model.head.v)
    return given, np.stack(leaves)


def flow(given: Any, start: np.ndarray, *log_times: Any, kind: str = "combined", loss: str = "logistic") -> np.ndarray:
    """The parts of the parameters, from `start`, at these log(1 + t), by LSODA of SciPy; NaN where it fails.

    `kind`: a parametrisation as in `jaxflow.plots.COLORS`, or `convolutional`.
    """

    def field(s: float, x: np.ndarray) -> np.ndarray:
        parts = x.reshape(start.shape)
        return pulled(kind, parts, descent_direction(given, product(kind, parts), loss, s)).ravel()

    how: Any = {"method": "LSODA", "rtol": RTOL, "atol": 1e-2 * RTOL}
    found = solve_ivp(field, (0.0, log_times[-1]), start.ravel(), t_eval=log_times, **how)
    shape = (len(log_times), *start.shape)
    return found.y.T.reshape(shape) if found.success else np.full(shape, np.nan)


def misaligned(a: np.ndarray, b: np.ndarray) -> float:
    """1 − ⟨a, b⟩/‖a‖‖b‖, without cancellation."""
    return 0.5 * float(np.sum((a / np.linalg.norm(a) - b / np.linalg.norm(b)) ** 2))


def limit_apart(given: Tokens, start: np.ndarray, target: np.ndarray, log_time: float) -> float:
    """1 − corr of W^mm of the target with the limit of the flow from `start`.

    LSODA goes to `log_time`. The limit has the direction of the least W that separates what is selected there. Where a
    sequence has lost its target among tokens of equal scores it has no constraint: of both programs the one counts
    whose solution is nearer to the motion over the second half, which approaches the limit faster than W does.
    """

    (middle,), (end,) = flow(given, start[None], 0.5 * log_time, log_time)
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

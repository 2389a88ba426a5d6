r"""Gradient flow by a plain integration in NumPy, for a referee that shares no code with the library.

The flow is followed in the arc length of the weights, $\theta'=-\nabla L/\|\nabla L\|$, by the classical Runge-Kutta
method with a fixed step for each instance, many instances at a time. Attention has settled when every selected token
leads by `LEAD` in the logits, after ten times the length of the start.
"""

from typing import Any, NamedTuple

import numpy as np
from scipy.integrate import solve_ivp

from tests.referee.paths import joined, split_as

# The largest change of a logit in one step: the field turns on a scale of one logit, where the method of order four
# errs by some 1e-4 a step, and is stable to 2.8.
LOGIT_STEP = 0.25
# Attention is settled where every selected token leads by this much in its logit: the others have 1e-13 of it.
LEAD = 30.0


class Tokens(NamedTuple):
    """Instances of attention: tokens `(b, n, T, d)`, queries `(b, n, d)`, labels `(b, n)`, value vectors `(b, d)`."""

    tokens: np.ndarray
    queries: np.ndarray
    labels: np.ndarray
    v: np.ndarray

    def take(self, index: Any) -> "Tokens":
        """The instances of an index."""
        return Tokens(*(field[index] for field in self))

    @property
    def scores(self) -> np.ndarray:
        r"""$\gamma_{it}=Y_iv^\top x_{it}$, `(b, n, T)`, Definition 1 of Tarzanagh et al. (2023)."""
        return self.labels[..., None] * np.einsum("bntd,bd->bnt", self.tokens, self.v)


class Settled(NamedTuple):
    """Where the paths were left: combined weights `(b, d, d)`; `lead` `(b,)`, the smallest difference of logits between
    the first and the second token of a sequence (zero where the path is shorter than ten times its start); `selected`
    `(b, n)`, -1 where the query is zero; and `balance`, the sum of the norms of the pulls over the norm of their sum,
    large at a stationary point."""

    W: np.ndarray
    lead: np.ndarray
    selected: np.ndarray
    balance: np.ndarray


def multipliers(logits: np.ndarray, scores: np.ndarray) -> np.ndarray:
    r"""$-n\,\partial L/\partial a_{it}$ for the logistic loss, `(b, n, T)`, $\sigma(-m_i)\,s_{it}\sum_us_{iu}
    (\gamma_{it}-\gamma_{iu})$, times a positive number for each instance.

    That number is the inverse of the largest attention that is paid to a token other than the first of its sequence,
    so that nothing underflows; the multipliers of a sequence sum to zero, which gives that of the first without
    cancellation."""
    b, n, T = logits.shape
    shifted = logits - logits.max(-1, keepdims=True)
    log_s = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    s = np.exp(log_s)
    first = np.arange(T) == logits.argmax(-1)[..., None]
    others = np.where(first, -np.inf, log_s)
    small = np.exp(others - others.max((-2, -1), keepdims=True))
    m = (s * scores).sum(-1)
    log_weight = -np.logaddexp(0.0, m)
    weight = np.exp(log_weight - log_weight.max(-1, keepdims=True))
    p = weight[..., None] * small * np.einsum("bnu,bntu->bnt", s, scores[..., :, None] - scores[..., None, :])
    return np.where(first, -p.sum(-1, keepdims=True), p)


def weights_of(kind: str, theta: tuple[np.ndarray, ...]) -> np.ndarray:
    """W of the parameters `(W,)`, `(K, Q)` or `(k, q)`."""
    if kind == "W":
        return theta[0]
    if kind == "KQ":
        return np.einsum("bim,bjm->bij", *theta)
    return np.einsum("bi,ij->bij", theta[0] * theta[1], np.eye(theta[0].shape[-1]))


def logits_of(data: Tokens, W: np.ndarray) -> np.ndarray:
    """$x_{it}^T W z_i$."""
    return np.einsum("bntd,bnd->bnt", data.tokens, np.einsum("bij,bnj->bni", W, data.queries))


def logits_at(kind: str, data: Tokens, theta: tuple[np.ndarray, ...]) -> np.ndarray:
    """The same for parameters; diagonal weights are never written as a matrix."""
    if kind != "diagonal":
        return logits_of(data, weights_of(kind, theta))
    return np.einsum("bntd,bnd->bnt", data.tokens, (theta[0] * theta[1])[:, None] * data.queries)


def pull(kind: str, data: Tokens, theta: tuple[np.ndarray, ...]) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
    """$-n\\nabla L$ in the parameters, and the sum of the norms of what each token adds to it; see `multipliers`."""
    p = multipliers(logits_at(kind, data, theta), data.scores)
    moved = np.einsum("bnt,bntd->bnd", p, data.tokens)
    if kind == "diagonal":
        g = (moved * data.queries).sum(1)
        down = (g * theta[1], g * theta[0])
        largest = np.abs(np.stack(theta)).max((0, -1))
    else:
        G = np.einsum("bni,bnj->bij", moved, data.queries)
        down = (G,) if kind == "W" else (np.einsum("bij,bjm->bim", G, theta[1]), np.einsum("bij,bim->bjm", G, theta[0]))
        largest = 1.0 if kind == "W" else np.sqrt(sum((x**2).sum((-2, -1)) for x in theta) / 2)
    sizes = np.linalg.norm(data.tokens, axis=-1) * np.linalg.norm(data.queries, axis=-1)[..., None]
    return down, (np.abs(p) * sizes).sum((-2, -1)) * largest


def within_span(kind: str, data: Tokens, theta: tuple[np.ndarray, ...]) -> tuple[Tokens, tuple[np.ndarray, ...], Any]:
    """The same flow where the dimension is larger than what tokens and queries span, and what lifts its weights.

    With orthonormal bases A of the tokens and B of the queries, only $A^T W B$ moves, and of K and Q only $A^T K$ and
    $B^T Q$, whose columns may be rotated together."""
    d = data.queries.shape[-1]
    A = np.linalg.qr(np.swapaxes(data.tokens.reshape(len(data.tokens), -1, d), 1, 2))[0]
    B = np.linalg.qr(np.swapaxes(data.queries, 1, 2))[0]
    size = A.shape[-1]
    wide = np.concatenate([B, np.zeros((len(B), d, size - B.shape[-1]))], -1)
    tokens, v = np.einsum("bntd,bdr->bntr", data.tokens, A), np.einsum("bd,bdr->br", data.v, A)
    small = Tokens(tokens, np.einsum("bnd,bdr->bnr", data.queries, wide), data.labels, v)
    if kind == "W":
        inner = (np.einsum("bdr,bde,bes->brs", A, theta[0], wide, optimize=True),)
    else:
        K, Q = np.einsum("bdr,bdm->brm", A, theta[0]), np.einsum("bdr,bdm->brm", wide, theta[1])
        columns = np.linalg.qr(np.swapaxes(np.concatenate([K, Q], 1), 1, 2))[0]
        inner = (K @ columns, Q @ columns)
    start, first = weights_of(kind, theta), weights_of(kind, inner)
    return small, inner, lambda W: start + A @ (W - first) @ np.swapaxes(wide, 1, 2)


def follow(
    kind: str,
    data: Tokens,
    theta: tuple[np.ndarray, ...],
    *,
    steps: int = 20_000,
    step: float = LOGIT_STEP,
    lead: float = LEAD,
) -> Settled:
    """Paths of the logistic loss from `theta` until attention is settled or the steps are spent; see `Settled`.

    Instances that have settled are taken out, so that the rest costs what it costs.
    """
    n, T, d = data.tokens.shape[1:]
    if kind != "diagonal" and d > n * T + 1:
        small, inner, lift = within_span(kind, data, theta)
        found = follow(kind, small, inner, steps=steps, step=step, lead=lead)
        return found._replace(W=lift(found.W))
    b = len(data.tokens)
    found = Settled(np.zeros((b, d, d)), np.zeros(b), np.zeros((b, n), int), np.zeros(b))
    index = np.arange(b)
    sizes = np.linalg.norm(data.tokens, axis=-1).max(-1) * np.linalg.norm(data.queries, axis=-1)
    largest = np.maximum(2 * sizes.max(-1), np.finfo(float).tiny)
    length, wanted = np.zeros(b), 10.0 * norm(theta)
    for k in range(steps + 1):
        if k % 50 == 0 or k == steps:
            ahead, selected = lead_of(data, logits_at(kind, data, theta))
            down, total = pull(kind, data, theta)
            balance = _divided(total, norm(down))
            for field, value in zip(
                found, (weights_of(kind, theta), np.where(length < wanted, 0.0, ahead), selected, balance), strict=True
            ):
                field[index] = value
            stay = ((ahead < lead) | (length < wanted)) & (norm(down) > 0)
            if k == steps or not stay.any():
                break
            if not stay.all():
                index, data, largest = index[stay], data.take(stay), largest[stay]
                length, wanted = length[stay], wanted[stay]
                theta = tuple(x[stay] for x in theta)
        h = step / largest
        if kind != "W":
            # From a small start factors grow exponentially: by a fifth in one step, and no further than logits allow.
            size = np.maximum(norm(theta), np.finfo(float).tiny)
            h = np.minimum(h / size, 0.2 * size)
        length = length + h
        theta = runge_kutta(lambda at, data=data: unit(pull(kind, data, at)[0]), theta, h)
    return found


def follow_far(kind: str, data: Tokens, theta: tuple[np.ndarray, ...]) -> Settled:
    """Paths of the same flow from a start far out, to a thousand times its length, by SciPy's Radau in log arc length:
    an explicit method takes as many steps as there are logits. A logit of W is known to a thousandth."""
    parts, ends = split_as(tuple(x[:1] for x in theta)), []
    for i, size in enumerate(norm(theta)):
        one = data.take([i])

        def field(s: float, flat: np.ndarray, one: Tokens = one) -> np.ndarray:
            return np.exp(s) * joined(unit(pull(kind, one, parts(flat))[0]))

        how: Any = {"method": "Radau", "rtol": 1e-3 / size, "atol": 1e-3}
        path = solve_ivp(field, (np.log(1e-3), np.log(1e3 * size)), joined([x[i] for x in theta]), **how)
        ends.append(parts(path.y[:, -1]))
    end = tuple(np.concatenate(x) for x in zip(*ends, strict=True))
    lead, selected = lead_of(data, logits_at(kind, data, end))
    down, total = pull(kind, data, end)
    return Settled(weights_of(kind, end), lead, selected, _divided(total, norm(down)))


def lead_of(data: Tokens, logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The smallest lead of a first token over the second, and the first tokens, -1 where a query is zero."""
    ordered, idle = np.sort(logits, axis=-1), ~data.queries.any(-1)
    lead = np.where(idle, np.inf, ordered[..., -1] - ordered[..., -2])
    return lead.min(-1), np.where(idle, -1, logits.argmax(-1))


def runge_kutta(field: Any, theta: tuple[np.ndarray, ...], h: np.ndarray) -> tuple[np.ndarray, ...]:
    """One classical step of order four, of length `h` `(b,)`."""

    def moved(direction: tuple[np.ndarray, ...], by: Any) -> tuple[np.ndarray, ...]:
        return tuple(x + _wide(by, x) * g for x, g in zip(theta, direction, strict=True))

    one = field(theta)
    two = field(moved(one, h / 2))
    three = field(moved(two, h / 2))
    four = field(moved(three, h))
    mean = tuple((p + 2 * q + 2 * r + s) / 6 for p, q, r, s in zip(one, two, three, four, strict=True))
    return moved(mean, h)


def norm(arrays: tuple[np.ndarray, ...]) -> np.ndarray:
    """The norm of all parameters together, `(b,)`."""
    return np.sqrt(sum((x.reshape(len(x), -1) ** 2).sum(-1) for x in arrays))


def unit(arrays: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
    """Parameters of norm one, zero where all are zero."""
    # The largest entry first: squares of a small gradient underflow before it does.
    top = np.max([np.abs(x.reshape(len(x), -1)).max(-1) for x in arrays], axis=0)
    arrays = tuple(_divided(x, _wide(top, x)) for x in arrays)
    size = norm(arrays)
    return tuple(_divided(x, _wide(size, x)) for x in arrays)


def _wide(by: Any, x: np.ndarray) -> np.ndarray:
    return np.reshape(by, (-1,) + (1,) * (x.ndim - 1))


def _divided(x: np.ndarray, by: np.ndarray) -> np.ndarray:
    return np.divide(x, by, out=np.zeros(np.broadcast_shapes(np.shape(x), np.shape(by))), where=by > 0)

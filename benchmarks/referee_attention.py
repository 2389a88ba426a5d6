r"""The referee of attention: instances of many kinds, and a judgement of each claimed limit by NumPy and SciPy alone.

A claim is *wrong* where something below contradicts it, by more than its own error:

- the excess of the direction over a lower bound of its program's optimum (weak duality; for the Frobenius norm and for
  l1 the program solved again, by non-negative least squares and by HiGHS), and the claimed margin of one;
- Definition 2 of Tarzanagh et al. (2023): support tokens score less than the selected ones;
- where a plain integration goes (`referee_flow`): attention settled on other tokens, which are locally optimal, or,
  of a finite point, somewhere else;
- a program that is said to be infeasible and is not.
"""

from typing import Any, NamedTuple

import numpy as np
from referee_flow import LEAD, Settled, Tokens, lead_of, logits_of, multipliers
from scipy.optimize import linprog, nnls

# What the library claims of an excess, by default, and the rounding of a program's value.
EXCESS = 1.01e-8
# A token whose margin is less than `SUPPORT` above one is support, one that is more than `CLEAR` above is not; a
# direction whose excess is 1e-8 has margins that are good to its root, and between the two nothing can be said.
SUPPORT, CLEAR = 1e-9, 1e-3
# Of a direction that a plain path at a lead of `LEAD` points in: margins fall like 1/lead to those of the limit.
NEAR = 0.2
# The gap of a path's own multipliers at which it has come near a limit: it falls like 1/lead. Of factors it stays at a
# saddle, and some are left only because something grows by less than a hundredth faster than the whole.
DONE = {"W": 0.02, "KQ": 1e-3, "diagonal": 1e-3}
# A stationary point: the norm of the gradient over the sum of what each token adds to it.
STATIONARY = 1e-6


class Claim(NamedTuple):
    """What the library says of one instance, in NumPy: `direction` is `(d, d)` at margin one (of a point, the point),
    `dual` the multipliers of the program's constraints `(n, T)`, zero at the selected tokens."""

    outcome: str
    status: str
    selected: np.ndarray
    direction: np.ndarray
    dual: np.ndarray


class Judgement(NamedTuple):
    """`right`, `undecided` (nothing is claimed), `unverified` (the referee cannot tell) or `wrong`, and why; `by_path`
    where a plain path says so, which may be followed further."""

    verdict: str
    why: str
    by_path: bool = False


DIRECTIONS = ("globally_optimal", "locally_optimal", "not_locally_optimal")
OPEN = ("undecided", "ambiguous", "failed")
AWAY = "said a point: a plain path goes to infinity"


def judge(kind: str, data: Tokens, claim: Claim, path: Settled, i: int) -> Judgement:
    """Of instance `i`, whose plain path ended at `path`."""
    if claim.outcome in OPEN:
        return Judgement("undecided", claim.outcome)
    if claim.outcome == "finite_stationary_point":
        return _point(data, claim, path, i)
    rows = constraints(data, claim.selected, i)
    if claim.outcome == "infeasible_program":
        return _infeasible(kind, rows)
    if claim.outcome not in DIRECTIONS:
        return Judgement("unverified", claim.outcome)
    margins = rows.reshape(len(rows), -1) @ claim.direction.ravel()
    if not abs(margins.min() - 1.0) <= 1e-9 * max(1.0, np.abs(margins).max()):
        return Judgement("wrong", f"margin {margins.min():.12g} instead of one")
    optimum = lower_bound(kind, rows, claim.dual)
    excess = norm_of(kind, claim.direction) / margins.min() / optimum - 1.0
    if not excess <= EXCESS:
        return Judgement("wrong", f"excess {excess:.2e} over the program's optimum")
    said = _definition(data, claim, margins, i)
    if said.verdict != "right":
        return said
    return _path(kind, data, claim, path, i)


def constraints(data: Tokens, selected: np.ndarray, i: int) -> np.ndarray:
    r"""$(x_{i\alpha}-x_{it})z_i^\top$ for every token that is not selected, `(n (T-1), d, d)`, in their order."""
    x, z = data.tokens[i], data.queries[i]
    differences = x[np.arange(len(x)), selected][:, None] - x
    keep = np.arange(x.shape[1]) != selected[:, None]
    return np.einsum("ntd,ne->ntde", differences, z)[keep]


def norm_of(kind: str, W: np.ndarray) -> float:
    """The norm that the limit of the parametrisation minimises."""
    if kind == "W":
        return float(np.linalg.norm(W))
    if kind == "KQ":
        return float(np.linalg.svd(W, compute_uv=False).sum())
    return float(np.abs(np.diag(W)).sum())


def lower_bound(kind: str, rows: np.ndarray, dual: np.ndarray) -> float:
    r"""A lower bound of $\min N(W)$ subject to $\langle A_j,W\rangle\ge1$: for every $\lambda\ge0$ it is
    $\sum\lambda/N^*(\sum\lambda_jA_j)$. λ: by SciPy for W and the diagonal, as given for the nuclear norm."""
    if kind == "diagonal":
        flat = np.einsum("jdd->jd", rows)
        size = np.abs(flat).max()
        solved = linprog(
            np.ones(2 * flat.shape[1]), -np.hstack([flat, -flat]) / size, -np.ones(len(flat)), method="highs"
        )
        return float(solved.fun) / size if solved.status == 0 else np.inf
    flat = rows.reshape(len(rows), -1)
    if kind == "W":
        lam = frobenius_dual(flat)
    else:
        lam = np.maximum(dual, 0.0)
    total = lam.sum()
    S = np.tensordot(lam / total, rows, 1) if total > 0 else np.zeros(rows.shape[1:])
    dual_norm = np.linalg.norm(S) if kind == "W" else np.linalg.norm(S, 2)
    return 1.0 / dual_norm if dual_norm > 0 else np.inf


def frobenius_dual(flat: np.ndarray) -> np.ndarray:
    r"""λ of the least-norm point of the convex hull of the rows, by Lawson and Hanson: least squares of
    $(A^\top\lambda,\mathbf 1^\top\lambda)$ against (0, 1) over λ ≥ 0 (least distance programming)."""
    size = np.linalg.norm(flat, axis=1).max()
    system = np.vstack([flat.T / size, np.ones(len(flat))])
    lam, _ = nnls(system, np.append(np.zeros(flat.shape[1]), 1.0), maxiter=50 * len(flat) + 100)
    return lam


def feasible(kind: str, rows: np.ndarray) -> float:
    """The largest margin of weights with entries of at most one, rows scaled to one: zero where there is none."""
    flat = np.einsum("jdd->jd", rows) if kind == "diagonal" else rows.reshape(len(rows), -1)
    size = np.linalg.norm(flat, axis=1, keepdims=True)
    flat = np.divide(flat, size, out=np.zeros_like(flat), where=size > 0)
    m, p = flat.shape
    cost = np.append(np.zeros(p), -1.0)
    found = linprog(cost, np.hstack([-flat, np.ones((m, 1))]), np.zeros(m), bounds=[(-1, 1)] * p + [(0, 1)])
    return float(-found.fun)


def _definition(data: Tokens, claim: Claim, margins: np.ndarray, i: int) -> Judgement:
    scores = data.scores[i]
    n, T = scores.shape
    keep = np.arange(T) != claim.selected[:, None]
    chosen = scores[np.arange(n), claim.selected]
    beaten = (scores < chosen[:, None])[keep]
    support, clear = margins <= 1.0 + SUPPORT, margins > 1.0 + CLEAR
    best = bool((scores.max(-1) == chosen).all())
    if claim.status == "global_":
        return Judgement("right", "") if best else Judgement("wrong", "said global: a token scores more")
    if best:
        return Judgement("wrong", f"said {claim.status}: the tokens are the best of all")
    if claim.status == "local":
        broken = (support & ~beaten).any()
        return Judgement("wrong", "said local: a support token scores more") if broken else Judgement("right", "")
    if claim.status == "not_local":
        impossible = not (~clear & ~beaten).any()
        why = "said not local: no support token scores more"
        return Judgement("wrong", why) if impossible else Judgement("right", "")
    return Judgement("unverified", f"status {claim.status}")


def _path(kind: str, data: Tokens, claim: Claim, path: Settled, i: int) -> Judgement:
    """Whether a plain integration goes where the claim says."""
    if path.lead[i] < LEAD:
        return Judgement("unverified", "the plain path has not settled", True)
    if (path.selected[i] == claim.selected).all():
        return Judgement("right", "")
    # Settled elsewhere: a limit where no token that scores more is near the support, and where nothing grows faster
    # than the weights, which the path's own multipliers tell. Else it has not gone far enough to speak of.
    elsewhere = constraints(data, path.selected[i], i)
    margins = elsewhere.reshape(len(elsewhere), -1) @ path.W[i].ravel()
    scores = data.scores[i]
    chosen = scores[np.arange(len(scores)), path.selected[i]]
    beaten = (scores < chosen[:, None])[np.arange(scores.shape[1]) != path.selected[i][:, None]]
    near = margins <= (1.0 + NEAR) * margins.min()
    if beaten[near].all() and own_gap(kind, data.take([i]), path.W[i]) <= DONE[kind]:
        return Judgement("wrong", f"a plain path settles on tokens {path.selected[i].tolist()}", True)
    return Judgement("unverified", "the plain path is in transit on other tokens", True)


def own_gap(kind: str, data: Tokens, W: np.ndarray) -> float:
    r"""$N(W)\,N^*(G)/\langle G,W\rangle-1$ of one instance, with G the pull on W: zero where the direction is that of a
    limit. Of a saddle it stays, since what grows faster has more of G."""
    p = multipliers(logits_of(data, W[None]), data.scores)
    G = np.einsum("nt,ntd,ne->de", p[0], data.tokens[0], data.queries[0])
    if kind == "W":
        dual = np.linalg.norm(G)
    else:
        dual = np.linalg.norm(G, 2) if kind == "KQ" else np.abs(np.diag(G)).max()
    along = (G * W).sum()
    return norm_of(kind, W) * dual / along - 1.0 if along > 0 else np.inf


def _point(data: Tokens, claim: Claim, path: Settled, i: int) -> Judgement:
    lead, _ = lead_of(logits_of(data.take([i]), claim.direction[None]))
    # On the way to a point a path has its lead at most: one that has twice as much has passed it.
    if path.lead[i] >= max(LEAD, 2.0 * lead[0]):
        return Judgement("wrong", AWAY, True)
    if path.balance[i] * STATIONARY < 1.0 and path.balance[i] > 0:
        return Judgement("unverified", "the plain path has not come to rest", True)
    distance = np.linalg.norm(path.W[i] - claim.direction) / max(1.0, np.linalg.norm(claim.direction))
    if distance > 1e-3:
        return Judgement("wrong", f"a plain path rests {distance:.1e} away (lead {lead[0]:.1f})", True)
    return Judgement("right", "")


def judge_rest(claim: Claim, beta: np.ndarray) -> Judgement:
    """Of a point, by where an accurate path of diagonal attention rests."""
    distance = np.linalg.norm(np.diag(claim.direction) - beta) / max(1.0, np.linalg.norm(beta))
    if distance > 1e-3:
        return Judgement("wrong", f"an accurate path rests {distance:.1e} away")
    return Judgement("right", "")


def _infeasible(kind: str, rows: np.ndarray) -> Judgement:
    margin = feasible(kind, rows)
    if margin > 1e-6:
        return Judgement("wrong", f"said infeasible: a margin of {margin:.1e} exists")
    return Judgement("right", "") if margin < 1e-9 else Judgement("unverified", f"margin {margin:.1e}")


# The draws. Every kind is a change of ordinary instances: tokens, queries and value vector on the unit sphere.


def ordinary(rng: np.random.Generator, count: int, n: int, T: int, d: int) -> Tokens:
    """Directions uniform on the sphere, labels by coin, entries of the start uniform in its place (`start`)."""

    def sphere(*shape: int) -> np.ndarray:
        x = rng.normal(size=shape)
        return x / np.linalg.norm(x, axis=-1, keepdims=True)

    labels = np.where(rng.random((count, n)) < 0.5, -1.0, 1.0)
    return Tokens(sphere(count, n, T, d), sphere(count, n, d), labels, sphere(count, d))


def start(rng: np.random.Generator, kind: str, count: int, d: int, size: float) -> tuple[np.ndarray, ...]:
    """Entries uniform on ±size/√d: of W `(d, d)`, of K and Q, or of k and q `(d,)`."""
    shape = (count, d) if kind == "diagonal" else (count, d, d)
    copies = 1 if kind == "W" else 2
    return tuple(size * rng.uniform(-1.0, 1.0, shape) / np.sqrt(d) for _ in range(copies))


def _duplicate(rng: np.random.Generator, data: Tokens) -> Tokens:
    # The token with the lowest score stands twice: never optimal.
    tokens, worst = data.tokens.copy(), data.scores.argmin(-1)
    b, n = worst.shape
    rows = np.arange(b)[:, None], np.arange(n)[None]
    tokens[(*rows, (worst + 1) % tokens.shape[2])] = tokens[(*rows, worst)]
    return data._replace(tokens=tokens)


def _tied(rng: np.random.Generator, data: Tokens, gap: float = 0.0) -> Tokens:
    # Scores are a coordinate of the tokens, and that of the two best of a sequence is the same number.
    v = np.zeros_like(data.v)
    v[:, 0] = 1.0
    data = data._replace(v=v)
    tokens, order = data.tokens.copy(), np.argsort(data.scores, -1)
    b, n = order.shape[:2]
    rows = np.arange(b)[:, None], np.arange(n)[None]
    tokens[(*rows, order[..., -2], 0)] = tokens[(*rows, order[..., -1], 0)] - gap * data.labels
    return data._replace(tokens=tokens)


def _close(rng: np.random.Generator, data: Tokens) -> Tokens:
    return _tied(rng, data, 1e-12)


def _collinear(rng: np.random.Generator, data: Tokens) -> Tokens:
    size = rng.normal(size=data.tokens.shape[:-1])
    return data._replace(tokens=size[..., None] * data.tokens[:, :, :1])


def _zero_query(rng: np.random.Generator, data: Tokens) -> Tokens:
    queries = data.queries.copy()
    queries[:, 0] = 0.0
    return data._replace(queries=queries)


def _self_attention(rng: np.random.Generator, data: Tokens) -> Tokens:
    return data._replace(queries=data.tokens[:, :, 0])


def _one_label(rng: np.random.Generator, data: Tokens) -> Tokens:
    return data._replace(labels=np.ones_like(data.labels))


def _scaled(size: float) -> Any:
    # Scores stay what they are: the value vector shrinks as the tokens grow.
    return lambda rng, data: data._replace(tokens=size * data.tokens, v=data.v / size)


def _same(rng: np.random.Generator, data: Tokens) -> Tokens:
    return data


class Kind(NamedTuple):
    """A kind of instances: shape (n, T, d), the change of ordinary ones, the size of the start."""

    shape: tuple[int, int, int]
    change: Any = _same
    size: float = 1.0
    regular: bool = False


SMALL = (4, 4, 6)
KINDS: dict[str, Kind] = {
    "(4, 4, 6)": Kind(SMALL, regular=True),
    "(3, 3, 4)": Kind((3, 3, 4), regular=True),
    "(5, 5, 4)": Kind((5, 5, 4), regular=True),
    "(6, 8, 10)": Kind((6, 8, 10), regular=True),
    "T = 2": Kind((4, 2, 6), regular=True),
    "n = 1": Kind((1, 4, 6)),
    "d = 1": Kind((2, 3, 1)),
    "d = 2": Kind((3, 3, 2)),
    "d = 2000": Kind((3, 3, 2000)),
    "start 0": Kind(SMALL, size=0.0),
    "start 1e-12": Kind(SMALL, size=1e-12),
    "start 1e3": Kind(SMALL, size=1e3),
    "start 1e6": Kind(SMALL, size=1e6),
    "tokens of 1e-150": Kind(SMALL, _scaled(1e-150)),
    "tokens of 1e-8": Kind(SMALL, _scaled(1e-8)),
    "tokens of 1e8": Kind(SMALL, _scaled(1e8)),
    "tokens of 1e150": Kind(SMALL, _scaled(1e150)),
    "token twice": Kind(SMALL, _duplicate),
    "tied best tokens": Kind(SMALL, _tied),
    "score gaps of 1e-12": Kind(SMALL, _close),
    "collinear tokens": Kind(SMALL, _collinear),
    "a zero query": Kind(SMALL, _zero_query),
    "self-attention": Kind(SMALL, _self_attention),
    "one label": Kind(SMALL, _one_label),
}

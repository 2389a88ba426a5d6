r"""The referee of attention: instances of many kinds, and a judgement of each claimed limit by NumPy and SciPy alone.

A claim is *wrong* where something below contradicts it, by more than its own error:

- the excess of the direction over a lower bound of its program's optimum (weak duality; for the Frobenius norm and for
  l1 the program solved again, by non-negative least squares and by HiGHS), and the claimed margin of one;
- Definition 2 of Tarzanagh et al. (2023): support tokens score less than the selected ones;
- where a plain integration goes (`flow`): attention settled on other tokens, which are locally optimal, or,
  of a finite point, somewhere else;
- a program that is said to be infeasible and is not.
"""

from functools import partial
from typing import Any, NamedTuple

import numpy as np

from tests.referee import programs
from tests.referee.flow import LEAD, Settled, Tokens, lead_of, logits_of, multipliers

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
    """What the library says of one instance, in NumPy: `selected` `(n,)` tokens, -1 where a sequence keeps all of them,
    `direction` `(d, d)` at margin one (of a point, the point), `dual` the multipliers of the program's constraints."""

    outcome: str
    status: str
    selected: np.ndarray
    direction: np.ndarray
    dual: np.ndarray


DIRECTIONS = ("globally_optimal", "locally_optimal", "not_locally_optimal")
AWAY = "said a point: a plain path goes to infinity"


def judge(kind: str, data: Tokens, claim: Claim, path: Settled, i: int) -> programs.Judgement:
    """Of instance `i`, whose plain path ended at `path`."""
    if claim.outcome in programs.OPEN:
        return programs.Judgement("undecided", claim.outcome)
    if claim.outcome == "finite_stationary_point":
        return _point(data, claim, path, i)
    if ((claim.selected < 0) & data.queries[i].any(-1)).any():
        return programs.Judgement("wrong", "said that a query that is not zero keeps all tokens")
    rows = flat(kind, constraints(data, claim.selected, i))
    if claim.outcome == "infeasible_program":
        return programs.judge_infeasible(rows)
    if claim.outcome not in DIRECTIONS:
        return programs.Judgement("unverified", claim.outcome)
    W, norm = flat(kind, claim.direction[None])[0], programs.NORMS[kind]
    margins = rows @ W
    said = programs.at_margin_one(margins)
    if said == programs.RIGHT:
        excess = programs.norm_of(norm, W) / margins.min() / programs.lower_bound(norm, rows, claim.dual) - 1.0
        said = programs.wrong_if(not excess <= programs.EXCESS, f"excess {excess:.2e} over the program's optimum")
    if said == programs.RIGHT:
        said = _definition(data, claim, margins, i)
    return _path(kind, data, claim, path, i) if said == programs.RIGHT else said


def constraints(data: Tokens, selected: np.ndarray, i: int) -> np.ndarray:
    r"""$(x_{i\alpha}-x_{it})z_i^\top$ for each token but the selected one and its copies, `(m, d, d)`."""
    x, z = data.tokens[i], data.queries[i]
    return np.einsum("ntd,ne->ntde", chosen(x, selected) - x, z)[others(x, selected)]


def chosen(x: np.ndarray, selected: np.ndarray) -> np.ndarray:
    """Of `x` `(n, T, ...)` what belongs to the selected tokens, `(n, 1, ...)`."""
    return x[np.arange(len(x)), selected][:, None]


def others(x: np.ndarray, selected: np.ndarray) -> np.ndarray:
    """Tokens beside a selected one and its copies, `(n, T)`."""
    return (x != chosen(x, selected)).any(-1) & (selected >= 0)[:, None]


def beaten(data: Tokens, selected: np.ndarray, i: int) -> np.ndarray:
    """Which of `others` score less than the selected token of their sequence, flat."""
    less = data.scores[i] < chosen(data.scores[i], selected)
    return less[others(data.tokens[i], selected)]


def flat(kind: str, matrices: np.ndarray) -> np.ndarray:
    """What the weights of a parametrisation are of matrices `(m, d, d)`: all entries, or the diagonals."""
    return np.einsum("mdd->md", matrices) if kind == "diagonal" else matrices.reshape(len(matrices), -1)


def _definition(data: Tokens, claim: Claim, margins: np.ndarray, i: int) -> programs.Judgement:
    scores, less = data.scores[i], beaten(data, claim.selected, i)
    support, clear = margins <= 1.0 + SUPPORT, margins > 1.0 + CLEAR
    best = bool(((scores.max(-1) == chosen(scores, claim.selected)[:, 0]) | (claim.selected < 0)).all())
    if claim.status == "global_":
        return programs.wrong_if(not best, "said global: a token scores more")
    if best:
        return programs.Judgement("wrong", f"said {claim.status}: the tokens are the best of all")
    if claim.status == "local":
        return programs.wrong_if((support & ~less).any(), "said local: a support token scores more")
    if claim.status == "not_local":
        return programs.wrong_if(not (~clear & ~less).any(), "said not local: no support token scores more")
    return programs.Judgement("unverified", f"status {claim.status}")


def _path(kind: str, data: Tokens, claim: Claim, path: Settled, i: int) -> programs.Judgement:
    """Whether a plain integration goes where the claim says."""
    if path.lead[i] < LEAD:
        return programs.unsettled("the plain path has not settled")
    if (path.selected[i] == claim.selected).all():
        return programs.RIGHT
    # Settled elsewhere: a limit where no token that scores more is near the support, and where nothing grows faster
    # than the weights, which the path's own multipliers tell. Else it has not gone far enough to speak of.
    margins = flat(kind, constraints(data, path.selected[i], i)) @ flat(kind, path.W[[i]])[0]
    near = margins <= (1.0 + NEAR) * margins.min()
    if beaten(data, path.selected[i], i)[near].all() and own_gap(kind, data.take([i]), path.W[i]) <= DONE[kind]:
        return programs.Judgement("wrong", f"a plain path settles on tokens {path.selected[i].tolist()}", True)
    return programs.unsettled("the plain path is in transit on other tokens")


def own_gap(kind: str, data: Tokens, W: np.ndarray) -> float:
    r"""$N(W)\,N^*(G)/\langle G,W\rangle-1$ of one instance, with G the pull on W: zero where the direction is that of a
    limit. Of a saddle it stays, since what grows faster has more of G."""
    p = multipliers(logits_of(data, W[None]), data.scores)
    G = np.einsum("nt,ntd,ne->de", p[0], data.tokens[0], data.queries[0])
    g, w = (flat(kind, x[None])[0] for x in (G, W))
    return (
        programs.norm_of(programs.NORMS[kind], w) * programs.dual_norm(programs.NORMS[kind], g) / (g @ w) - 1.0
        if g @ w > 0
        else np.inf
    )


def _point(data: Tokens, claim: Claim, path: Settled, i: int) -> programs.Judgement:
    lead, _ = lead_of(data.take([i]), logits_of(data.take([i]), claim.direction[None]))
    # On the way to a point a path has its lead at most: one that has twice as much has passed it.
    if path.lead[i] >= max(LEAD, 2.0 * lead[0]):
        return programs.Judgement("wrong", AWAY, True)
    if path.balance[i] * STATIONARY < 1.0 and path.balance[i] > 0:
        return programs.unsettled("the plain path has not come to rest")
    distance = np.linalg.norm(path.W[i] - claim.direction) / max(1.0, np.linalg.norm(claim.direction))
    if distance > 1e-3:
        return programs.Judgement("wrong", f"a plain path rests {distance:.1e} away (lead {lead[0]:.1f})", True)
    return programs.RIGHT


def judge_rest(claim: Claim, beta: np.ndarray) -> programs.Judgement:
    """Of a point, by where an accurate path of diagonal attention rests."""
    distance = np.linalg.norm(np.diag(claim.direction) - beta) / max(1.0, np.linalg.norm(beta))
    return programs.wrong_if(distance > 1e-3, f"an accurate path rests {distance:.1e} away")


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
    tokens, worst = data.tokens.copy(), data.scores.argmin(-1)[..., None, None]
    np.put_along_axis(tokens, (worst + 1) % tokens.shape[2], np.take_along_axis(tokens, worst, 2), 2)
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


def _collinear(rng: np.random.Generator, data: Tokens) -> Tokens:
    size = rng.normal(size=data.tokens.shape[:-1])
    return data._replace(tokens=size[..., None] * data.tokens[:, :, :1])


def _scaled(size: float) -> Any:
    # Scores stay what they are: the value vector shrinks as the tokens grow.
    return lambda rng, data: data._replace(tokens=size * data.tokens, v=data.v / size)


class Kind(NamedTuple):
    """A kind of instances: shape (n, T, d), the change of ordinary ones, the size of the start."""

    shape: tuple[int, int, int]
    change: Any = lambda rng, data: data
    size: float = 1.0
    regular: bool = False
    loss: str = "logistic"


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
    **{f"start {size}": Kind(SMALL, size=float(size)) for size in ("0", "1e-12", "1e3", "1e6")},
    **{f"tokens of 1e{power}": Kind(SMALL, _scaled(float(f"1e{power}"))) for power in (-150, -8, 8, 150)},
    "token twice": Kind(SMALL, _duplicate),
    "tied best tokens": Kind(SMALL, _tied),
    "score gaps of 1e-12": Kind(SMALL, partial(_tied, gap=1e-12)),
    "collinear tokens": Kind(SMALL, _collinear),
    "a zero query": Kind(
        SMALL, lambda rng, data: data._replace(queries=data.queries * (np.arange(SMALL[0]) > 0)[:, None])
    ),
    "self-attention": Kind(SMALL, lambda rng, data: data._replace(queries=data.tokens[:, :, 0])),
    "one label": Kind(SMALL, lambda rng, data: data._replace(labels=np.ones_like(data.labels))),
}

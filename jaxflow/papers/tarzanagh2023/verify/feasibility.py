"""Theorems 1 and 8: for d >= max(T − 1, n) every choice of tokens can be separated, for almost all data.

With the claims of the proof, App. E: of the last sequence, whose query has a part z̄_n that is orthogonal to all others.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxflow.data import TokenData, optimal_tokens
from jaxflow.margin import ProgramResult, attention_svm, solve
from jaxflow.models import token_scores
from jaxflow.papers.experiment import Dataset, Sweep, checksum_key, keys_of, mapped, numpy_generator, register
from jaxflow.papers.statement import Mask, Statement
from jaxflow.papers.table import Table, stacked
from jaxflow.papers.tarzanagh2023.verify.instances import instance, unit_data

# (n, T): the bound is n, T − 1, or both.
SIZES = ((3, 3), (5, 3), (3, 6), (5, 6), (6, 4))
SHAPE = (6, 6, 7)
TRIALS = {"quick": 40, "paper": 250, "large": 5000}
# Choices of tokens that are tried on each instance, beside the optimal one.
CHOICES = 4
KINDS = ("cross", "self")
# What solved programs are solved to.
SOLVED = 1e-8
# Least singular values of small matrices: rank is full above the first, and lost below the second.
FULL, LOST = 1e-10, 1e-13


def compute(scale: str, key: Any) -> Table:
    """(Att-SVM) of 1 + `CHOICES` choices (c), the optimal one first, for b instances of each cell `n`, `T`, `d`,
    `kind`: d from one below the bound to one above, queries drawn or the first token.

    `result` `(k, b, c)` (`ProgramResult`), duality `gap`; `separated`: positive margins were found.
    """
    cells = []
    for index, (n, T) in enumerate(SIZES):
        for d in range(max(T - 1, n) - 1, max(T - 1, n) + 2):
            for kind in range(len(KINDS)):
                keys = keys_of(key, 100 * index + 10 * d + kind, TRIALS[scale])
                found = _solve(_draw(n, T, d, bool(kind), keys))
                cells.append(Table(found.named, n=n, T=T, d=d, kind=kind))
    return stacked(cells)


@mapped(axes=(None, None, None, None, 0))
def _draw(n: Any, T: Any, d: Any, self_attention: Any, key: Array) -> Table:
    """Unit-sphere instances with a batch of targets each, in `SHAPE`; sizes are traced, one program for all.

    As in `padded`: further coordinates are zero, further tokens hidden, further sequences of one token.
    """
    wide_n, wide_T, wide_d = SHAPE
    real, seen = jnp.arange(wide_n) < n, jnp.arange(wide_T) < T
    first = jnp.arange(wide_T) == 0
    mask = jnp.where(real[:, None], seen[None, :], first[None, :])

    *keys, key_labels, key_choice = jax.random.split(key, 5)
    labels = jnp.where(jax.random.bernoulli(key_labels, 0.5, (wide_n,)), 1.0, -1.0)
    drawn, head = unit_data(wide_d, d, keys, labels, wide_T)
    data = TokenData(drawn.tokens, jnp.where(self_attention, drawn.tokens[:, 0], drawn.queries), labels, mask)
    best = optimal_tokens(token_scores(data, head), data.visible)
    choices = jax.random.randint(key_choice, (CHOICES, wide_n), 0, jnp.where(real, T, 1)[None, :])
    targets = jnp.concatenate([best[None], jax.nn.one_hot(choices, wide_T, dtype=bool)])
    start = jnp.zeros((wide_d, wide_d))
    return jax.vmap(lambda target: instance(data, head, start, target))(targets)


@mapped()
def _solve(targets: Table) -> Table:
    def one(given: Table) -> Table:
        solution = solve(attention_svm(given.data, given.target, "frobenius"))
        return Table(
            result=solution.result.value,
            gap=solution.certificate.duality_gap,
            # A finite upper bound is a W with positive margins: feasibility without trust in a solver.
            separated=jnp.isfinite(solution.certificate.primal_value),
        )

    return jax.vmap(one)(targets)


def claims(random: np.random.Generator, trials: int) -> Table:
    r"""The claims of App. E on Gaussian data with the first token as α, at d = max(T − 1, n).

    `least`: the last singular value of $\bar M_n$, rows $\bar f_{nt}=(x_{n\alpha_n}-x_{nt})\otimes\bar z_n$;
    `off`: the largest of the inner products of $\bar f_{nt}$ with rows of $M_{n-1}$, and of the entries of the
    projection of $f_{nt}-\bar f_{nt}$ on P, the matrices that vanish on the other queries. Both `(b,)`.
    """
    least, off = [], []
    for _ in range(trials):
        n, T = random.integers(2, 6, size=2)
        d = max(T - 1, n)
        tokens, queries = random.normal(size=(n, T, d)), random.normal(size=(n, d))
        apart, others = tokens[:, :1] - tokens[:, 1:], queries[:-1]
        onto = np.eye(d) - np.linalg.pinv(others) @ others
        rows = np.einsum("ntd,ne->ntde", apart, queries)
        bar = np.einsum("td,e->tde", apart[-1], onto @ queries[-1])
        inner, rest = np.einsum("tde,nsde->tns", bar, rows[:-1]), (rows[-1] - bar) @ onto
        least.append(np.linalg.svd(bar.reshape(T - 1, -1), compute_uv=False)[-1])
        off.append(max(np.max(np.abs(inner)), np.max(np.abs(rest))))
    return Table(least=np.asarray(least), off=np.asarray(off))


FEASIBILITY = Dataset(
    "tarzanagh2023",
    "feasibility",
    {
        "programs": Sweep(compute, checksum_key("feasibility")),
        "claims": Sweep(
            lambda scale, key: claims(numpy_generator(key), TRIALS[scale]), checksum_key("feasibility claims")
        ),
    },
)


def feasible(optimal: bool, kind: int) -> Statement[Table]:
    """Of the optimal tokens or of random choices; a proof that there is no solution contradicts."""
    pick = slice(0, 1) if optimal else slice(1, None)

    def inside(one: Table) -> Mask:
        # Cells at the bound of the theorems or above.
        above = one.d >= np.maximum(one.T - 1, one.n)
        return np.broadcast_to(above[:, None, None], one.result[:, :, pick].shape)

    def residual(one: Table) -> np.ndarray:
        # Positive margins are all that is said: separated without a solution to the tolerance has no gap.
        gap = np.where(one.result == ProgramResult.optimal.value, one.gap, 0.0)
        infeasible = one.result == ProgramResult.infeasible.value
        return np.where(infeasible, np.inf, np.where(one.separated, gap, np.nan))[:, :, pick]

    queries = "z_i = x_i1" if KINDS[kind] == "self" else "z_i drawn"
    tokens = "the optimal tokens" if optimal else f"{CHOICES} random choices of tokens on each instance"
    return Statement(
        source="Theorem 1" if optimal else "Theorem 8",
        says=f"(Att-SVM) of {tokens} is feasible for d ≥ max(T − 1, n), {queries}; d from one below to one above",
        of=lambda n: n.programs.at(n.programs.kind == kind),
        inside=inside,
        residual=residual,
        bound=(SOLVED, "duality gap"),
    )


register(
    FEASIBILITY,
    title="Theorems 1 and 8",
    statements=[
        *(feasible(optimal, kind) for optimal in (True, False) for kind in range(len(KINDS))),
        Statement(
            source="App. E, Claim 1",
            says="M̄_n has rank T − 1 for d ≥ max(T − 1, n); Gaussian tokens and queries, d = max(T − 1, n)",
            residual=lambda n: -n.claims.least,
            # Below the first a singular value is small, below the second it is zero but for rounding.
            bound=(-FULL, "−(least singular value); below 0"),
            late=-LOST,
        ),
        Statement(
            source="App. E, Claim 2",
            says="rows of M̄_n are the projections of those of M_n on a subspace P of the null space of M_{n−1}",
            residual=lambda n: n.claims.off,
            bound=(FULL, "⟨f̄_nt, f_is⟩, or the part of f_nt − f̄_nt in P"),
        ),
    ],
)

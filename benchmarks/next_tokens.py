"""Models of next words beside CVXPY: python benchmarks/next_tokens.py --count 100.

Linear models of 6 words after 10 contexts: each context has one to four continuations with random frequencies.
`one_hot`: a context is its own embedding (a table of bigrams); `normal`: embeddings are random, of 10 dimensions. The
direction is that of the program of largest margins over words that never follow, orthogonal to differences of
continuations; the point is the minimum among continuations, which has their log-odds.

Attention on 10 sequences of two to five of 6 words, embeddings of 8 dimensions: the next word of `acyclic` sequences is
the first of theirs in an order that each last word has; of `cyclic` ones it is any of the first three in that order.
The direction is that of the Graph-SVM, the point the minimum within strongly connected components (by SciPy), and
`components` counts the limits that split words as these do. See results/next_tokens.json.
"""

from typing import Any

import cvxpy
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from _common import begun, outcomes, spread
from classes import find, svm
from scipy.sparse.csgraph import connected_components

import jaxflow as jf

CONTEXTS, WORDS = 10, 6
SEQUENCES, LENGTH, DIMENSION = 10, 5, 8


def frequencies(rng: np.random.Generator) -> np.ndarray:
    """Of one to four words after each context."""
    often = np.zeros((CONTEXTS, WORDS))
    for row in often:
        words = rng.choice(WORDS, rng.integers(1, 5), replace=False)
        row[words] = rng.dirichlet(np.ones(len(words)))
    return often


def instance(rng: np.random.Generator, kind: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Embeddings, frequencies and starting weights."""
    often = frequencies(rng)
    inputs = np.eye(CONTEXTS) if kind == "one_hot" else rng.normal(size=(CONTEXTS, CONTEXTS))
    return inputs, often, rng.normal(size=(WORDS, CONTEXTS))


def rows_of(inputs: np.ndarray, often: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of every continuation over every other word, and of the first continuation over the others."""
    grow, stay, eye = [], [], np.eye(WORDS)
    for h, y in zip(inputs, often, strict=True):
        some = np.flatnonzero(y)
        grow += [np.kron(eye[z] - eye[v], h) for z in some for v in np.flatnonzero(y == 0)]
        stay += [np.kron(eye[some[0]] - eye[z], h) for z in some[1:]]
    return np.array(grow), np.array(stay).reshape(-1, WORDS * inputs.shape[1])


def table_minimum(inputs: np.ndarray, often: np.ndarray, stay: np.ndarray) -> np.ndarray:
    """The minimum among the continuations of a table."""
    features = np.array([[np.kron(word, h) for word in np.eye(WORDS)] for h in inputs])
    return minimum(features, often, often > 0, stay)


def minimum(features: np.ndarray, often: np.ndarray, counts: np.ndarray, stay: np.ndarray) -> np.ndarray:
    """CVXPY's minimum of the cross-entropy of frequencies `often` over the span of `stay`, and Newton's method from
    there: CVXPY's point has six digits, or fewer where it calls it inaccurate, and the minimum is one alone.

    `features` `(n, words, p)` times the point are logits of words; `counts` `(n, words)`: how often each is there."""
    _, values, basis = np.linalg.svd(stay, full_matrices=False)
    basis = basis[values > 1e-10 * values[0]]
    inner, z, loss = features @ basis.T, cvxpy.Variable(len(basis)), 0
    for rows, y, m in zip(inner, often, counts, strict=True):
        f = rows[m > 0] @ z
        loss += cvxpy.log_sum_exp(f + np.log(m[m > 0])) - y[m > 0] @ f
    digits = dict.fromkeys(("tol_gap_abs", "tol_gap_rel", "tol_feas"), 1e-10)
    cvxpy.Problem(cvxpy.Minimize(loss)).solve(solver="CLARABEL", **digits)
    found = np.asarray(z.value)
    for _ in range(20):
        p = counts * np.exp(inner @ found)
        p /= p.sum(axis=1, keepdims=True)
        mean = np.einsum("nj,njm->nm", p, inner)
        slope = np.einsum("nj,njm->m", p - often, inner)
        change = np.linalg.solve(np.einsum("nj,njm,njk->mk", p, inner, inner) - mean.T @ mean, slope)
        found = found - change
        # What is left is of second order.
        if np.linalg.norm(change) <= 1e-9 * max(np.linalg.norm(found), 1.0):
            return basis.T @ found
    raise ArithmeticError("Newton's method has not come to the minimum")


def attention_instance(rng: np.random.Generator, kind: str) -> tuple[np.ndarray, ...]:
    """Sequences, next words, embeddings and starting weights."""
    words = rng.integers(0, WORDS, (SEQUENCES, LENGTH))
    words[np.arange(LENGTH) < LENGTH - rng.integers(2, LENGTH + 1, SEQUENCES)[:, None]] = -1
    # Few last words, so that sequences meet in one graph.
    words[:, -1] %= 3
    ranks, first = np.array([rng.permutation(WORDS) for _ in range(WORDS)]), 3 if kind == "cyclic" else 1
    orders = [sorted({w for w in row if w >= 0}, key=lambda w, rank=ranks[row[-1]]: rank[w]) for row in words]
    following = np.array([rng.choice(order[:first]) for order in orders])
    return words, following, rng.normal(size=(WORDS, DIMENSION)), rng.normal(size=(DIMENSION, DIMENSION))


def components(words: np.ndarray, following: np.ndarray) -> np.ndarray:
    """For each sequence, the words `(n, WORDS)` of the strongly connected component of its next word, by SciPy."""
    graphs = np.zeros((WORDS, WORDS, WORDS))
    for row, y in zip(words, following, strict=True):
        graphs[row[-1], y, row[row >= 0]] = 1
    labels = np.array([connected_components(graph, connection="strong")[1] for graph in graphs])[words[:, -1]]
    return labels == np.take_along_axis(labels, following[:, None], axis=1)


def attention_rows(
    words: np.ndarray, following: np.ndarray, embeddings: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Rows of margins over words of other components, and of the same one; rows of logits, counts of the words of the
    component, and which of the other words lose their share (or have none)."""
    together = components(words, following)
    counts = (words[:, :, None] == np.arange(WORDS)).sum(axis=1)
    features = np.array([[np.kron(e, embeddings[row[-1]]) for e in embeddings] for row in words])
    margins = np.take_along_axis(features, following[:, None, None], axis=1) - features
    other = np.arange(WORDS) != following[:, None]
    grow, stay = margins[(counts > 0) & ~together], margins[(counts > 0) & together & other]
    lost = ~((counts > 0) & together)[other].reshape(-1, WORDS - 1)
    return grow, stay, features, counts * together, lost


@eqx.filter_jit
def find_attention(words: jax.Array, following: jax.Array, embeddings: jax.Array, W: jax.Array) -> jf.Limit:
    risk = jf.EmpiricalRisk((words, following), "cross_entropy")
    return jf.find_limit(risk, jf.models.NextTokenAttention(W, embeddings))


def attention_case(kind: str, count: int) -> dict[str, Any]:
    rng = np.random.default_rng(("acyclic", "cyclic").index(kind) + 2)
    made = [attention_instance(rng, kind) for _ in range(count)]
    limits = [find_attention(*map(jnp.asarray, one)) for one in made]
    far, off, same = [], [], 0
    for (words, following, embeddings, _), limit in zip(made, limits, strict=True):
        grow, stay, features, counts, lost = attention_rows(words, following, embeddings)
        same += bool(np.array_equal(limit.linear.growing, lost))
        far.append(np.linalg.norm(np.ravel(limit.flow_direction.W) - svm(grow, stay)))
        if len(stay):
            right = minimum(features, np.eye(WORDS)[following], counts, stay)
            off.append(np.linalg.norm(np.ravel(limit.linear.component.W) - right) / max(np.linalg.norm(right), 1.0))
    ended = outcomes([limit.outcome for limit in limits])
    row = {"kind": f"attention, {kind}", "instances": count, "outcomes": ended, "components": same}
    return row | {"direction": spread(far)} | ({"point": spread(off)} if off else {})


def case(kind: str, count: int) -> dict[str, Any]:
    rng = np.random.default_rng(("one_hot", "normal").index(kind))
    made = [tuple(map(jnp.asarray, instance(rng, kind))) for _ in range(count)]
    limits = [find(*one) for one in made]
    far, off, odds = [], [], []
    for (inputs, often, _), limit in zip(made, limits, strict=True):
        inputs, often = np.asarray(inputs), np.asarray(often)
        grow, stay = rows_of(inputs, often)
        far.append(np.linalg.norm(np.ravel(limit.flow_direction.module.weight) - svm(grow, stay)))
        point = np.asarray(limit.linear.component.module.weight)
        right = table_minimum(inputs, often, stay)
        off.append(np.linalg.norm(np.ravel(point) - right) / max(np.linalg.norm(right), 1.0))
        found = zip(inputs @ point.T, often, strict=True)
        odds += [np.max(np.abs(np.diff(f[y > 0] - np.log(y[y > 0]))), initial=0.0) for f, y in found]
    row = {"kind": kind, "instances": count, "outcomes": outcomes([limit.outcome for limit in limits])}
    return row | {"direction": spread(far), "point": spread(off), "odds": spread(odds)}


if __name__ == "__main__":
    asked, record = begun(__doc__, "next_tokens", count=100)
    for kind in ("one_hot", "normal"):
        record.add(case(kind, asked.count))
    for kind in ("acyclic", "cyclic"):
        record.add(attention_case(kind, asked.count))

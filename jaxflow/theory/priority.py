r"""Priorities of words and the Graph-SVM of attention that predicts the next one.

Where a sequence that ends in the word k is continued by its word i, the loss of `NextTokenAttention` falls as the logit
of i rises above that of any other word j of the sequence: an edge $i\Rightarrow j$ of the graph of k. In the limit the
words of one strongly connected component share attention, and those of lower components have none.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from jaxflow._core import AbstractPrinted, checked
from jaxflow.data import TokenData
from jaxflow.margin import AttentionProgram, attention_svm
from jaxflow.models import NextTokenAttention
from jaxflow.models.next_token import words_of
from jaxflow.risk import EmpiricalRisk


class PriorityGraphs(AbstractPrinted):
    """The graphs of K words, one for each last word k.

    - `edges[k, i, j]`: whether j occurs in a sequence that ends in k and is continued by i, Booleans `(K, K, K)`.
    - `connected[k, i, j]`: whether i and j are in one strongly connected component of graph k; a word is with itself.
    - `retrieved`: the tokens `(n, T)` of the component of their sequence's next word. These keep attention.
    """

    edges: Bool[Array, "K K K"]
    connected: Bool[Array, "K K K"]
    retrieved: Bool[Array, "n T"]


@checked()
def priority_graphs(risk: EmpiricalRisk, model: NextTokenAttention) -> PriorityGraphs:
    """The token-priority graphs of the data and their strongly connected components.

    **Raises:** `ValueError` naming `model` where it is of another class or does not fit the data.

    Source: Li et al. (2024), *Mechanics of Next Token Prediction with Self-Attention*, token-priority graphs.
    """
    risk.check(model)
    data: Any = risk.data
    words, targets, K = words_of(data), data.targets, len(model.embeddings)
    following = targets > 0 if targets.ndim == 2 else jax.nn.one_hot(targets, K, dtype=bool)
    there = jax.nn.one_hot(words, K, dtype=bool)
    last, occurs = there[:, -1].astype(float), jnp.any(there, axis=1).astype(float)
    edges = jnp.einsum("nk,ni,nj->kij", last, following.astype(float), occurs) > 0
    paths = edges | jnp.eye(K, dtype=bool)[None]
    # Paths of at most twice the length each time.
    for _ in range((K - 1).bit_length()):
        some = paths.astype(float)
        paths = some @ some > 0
    connected = paths & jnp.swapaxes(paths, 1, 2)
    with_next = connected[words[:, -1], jnp.argmax(following, axis=1)]
    return PriorityGraphs(edges, connected, jnp.any(there & with_next[:, None, :], axis=-1))


@checked()
def graph_svm(risk: EmpiricalRisk, model: NextTokenAttention) -> AttentionProgram:
    r"""The Graph-SVM of the data: the program of the tokens that keep attention.

    $$\min\|W\|_F\quad\text{s.t.}\quad(e_i-e_j)^\top We_k\ge1,\qquad(e_i-e_j)^\top We_k=0$$

    for edges $i\Rightarrow j$ of the graph of k between two strongly connected components and within one. Where
    embeddings are linearly independent it has a solution, and it is then the program of the limit that `find_limit`
    reports. It is made of the graph alone, and is an independent check of that limit.

    **Raises:** `ValueError` naming `model` where it is of another class or does not fit the data.

    Source: Li et al. (2024), *Mechanics of Next Token Prediction with Self-Attention*, (Graph-SVM).

    **Example:**

    ```python
    sequences, following = jnp.array([[0, 1, 2], [0, 1, 2]]), jnp.array([0, 1])
    risk = jf.EmpiricalRisk((sequences, following), "cross_entropy")
    attention = jf.models.NextTokenAttention(jnp.zeros((3, 3)), jnp.eye(3))
    assert jf.theory.priority_graphs(risk, attention).retrieved.tolist() == [[True, True, False]] * 2
    W = jf.margin.solve(jf.theory.graph_svm(risk, attention)).primal
    assert jnp.allclose(W[:, 2], jnp.array([1.0, 1.0, -2.0]) / 3.0)
    ```
    """
    graphs, words, embeddings = priority_graphs(risk, model), words_of(risk.data), model.embeddings
    tokens = TokenData(embeddings[words], embeddings[words[:, -1]], jnp.ones(len(words)), words >= 0)
    return attention_svm(tokens, graphs.retrieved)

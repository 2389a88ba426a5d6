"""Small instances with the programs of all their choices of tokens, where regularisation paths start."""

import itertools
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Int

from jaxflow.data import TokenData, optimal_tokens
from jaxflow.margin import Nuclear, attention_svm, is_locally_optimal, numerical_rank, solve
from jaxflow.models import token_scores


def choices_of_tokens(outputs: int, T: int) -> np.ndarray:
    """All $T^q$ choices of one of T tokens for each of q outputs, `(N, q)`."""
    return np.asarray(list(itertools.product(range(T), repeat=outputs)), dtype=np.int32)


def masks(choices: Int[Array, "N q"], data: TokenData) -> Array:
    """Choices as Booleans `(N, *visible.shape)`."""
    shape = data.visible.shape
    return jax.nn.one_hot(choices, shape[-1], dtype=bool).reshape(choices.shape[0], *shape)


def programs_of(data: TokenData, head: Any, choices: Int[Array, "N q"], norm: str = "frobenius") -> dict[str, Array]:
    r"""Of one instance, for each choice: `result`, `status` (Definition 2), `support`, `excess` of margins over one,
    `weights` $W^{mm}_\alpha$ and `push` $\sum_{i,t}(x_{i\alpha_i}-x_{it})z_i^\top$, a direction towards the choice that
    always exists.
    """

    def one(selection: Array) -> dict[str, Array]:
        program = attention_svm(data, selection, norm)
        solution = solve(program)
        local = is_locally_optimal(data, head, selection, solution)
        return {
            "result": solution.result.value,
            "status": local.status.value,
            "support": local.support,
            "excess": local.excess,
            "weights": solution.primal,
            "push": program.adjoint(program.active.astype(float)),
        }

    return jax.vmap(one)(masks(choices, data))


def optimal_program(data: TokenData, head: Any, selection: Any = None, rank: int | None = None) -> dict[str, Array]:
    """(Att-SVM*) of a selection (of the optimal tokens by default): `result`, `value`, `rank`, `weights`.

    With `rank` the program with that bound, a stationary point of it (`ProgramResult.stationary`).
    """
    best = optimal_tokens(token_scores(data, head), data.visible) if selection is None else selection
    solution = solve(attention_svm(data, best, Nuclear(rank=rank) if rank else "nuclear"))
    return {
        "result": solution.result.value,
        "value": solution.certificate.primal_value,
        "rank": numerical_rank(solution.primal),
        "weights": solution.primal,
    }


def factors(W: np.ndarray, m: int) -> tuple[np.ndarray, np.ndarray]:
    r"""$K=U\sqrt\Sigma$, $Q=V\sqrt\Sigma$ of the m largest singular values, for a batch of matrices `(..., d, d)`."""
    U, sizes, Vt = np.linalg.svd(W)
    root = np.sqrt(sizes[..., None, :m])
    return U[..., :m] * root, np.swapaxes(Vt, -1, -2)[..., :m] * root


def unit(W: np.ndarray) -> np.ndarray:
    """Matrices `(..., d, d)` over their Frobenius norms, zero for zero."""
    size = np.linalg.norm(W, axis=(-2, -1), keepdims=True)
    return W / np.where(size > 0, size, 1.0)


def apart(W: np.ndarray, V: np.ndarray) -> np.ndarray:
    """Distance of two unit matrices, over a batch."""
    return np.linalg.norm(unit(W) - unit(V), axis=(-2, -1))

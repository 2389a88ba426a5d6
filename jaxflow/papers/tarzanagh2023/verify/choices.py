"""All choices of tokens of an instance, solved and judged by Definition 2, for several checks."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from jaxflow.data import random_tokens
from jaxflow.margin import attention_svm, is_locally_optimal, solve
from jaxflow.models import token_scores
from jaxflow.papers.tarzanagh2023.verify.follow import SHAPE
from jaxflow.papers.tarzanagh2023.verify.instances import Instance, instance, padded

N, T = 5, 5
CHOICES = np.asarray(list(itertools.product(range(T), repeat=N)), dtype=np.int32)


def random_instance(key: Any, d: int) -> Instance:
    """Unit-sphere data with n = T = 5 in the common shape, from a zero start."""
    return _drawn(key, d)


def _draw(key: Any, d: int) -> Instance:
    data, head = random_tokens(key, N, T, d)
    return padded(instance(data, head), SHAPE)


_drawn = jax.jit(_draw, static_argnums=1)


def all_choices(given: Instance) -> dict[str, np.ndarray]:
    r"""For each of the $T^n$ choices, in the order of `CHOICES`:

    `result` (`ProgramResult`), `status` (`SelectionStatus`), `support` `(N, n, T)`, `excess` `(N, n, T)`: margin − 1,
    +inf at the chosen token; `weights` `(N, d, d)`; and the `scores` `(n, T)`.
    """
    found = {name: np.asarray(value) for name, value in _solve_all(given, jnp.asarray(CHOICES)).items()}
    return found | {"scores": np.asarray(token_scores(given.data, given.head))}


@jax.jit
def _solve_all(given: Instance, choices: Int[Array, "N n"]) -> dict[str, Array]:
    def one(choice: Int[Array, " n"]) -> dict[str, Array]:
        target = jax.nn.one_hot(choice, T, dtype=bool)
        solution = solve(attention_svm(given.data, target, "frobenius"))
        local = is_locally_optimal(given.data, given.head, target, solution)
        return {
            "result": solution.result.value,
            "status": local.status.value,
            "support": local.support,
            "excess": jnp.where(target, jnp.inf, local.excess),
            "weights": solution.primal,
        }

    return jax.vmap(one)(choices)

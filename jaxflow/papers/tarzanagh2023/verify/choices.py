"""All choices of tokens of an instance, solved and judged by Definition 2, for several checks."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxflow.data import random_tokens
from jaxflow.models import token_scores
from jaxflow.papers.tarzanagh2023.verify.follow import SHAPE
from jaxflow.papers.tarzanagh2023.verify.instances import Instance, instance, padded
from jaxflow.papers.tarzanagh2023.verify.path_instances import choices_of_tokens, masks, programs_of

N, T = 5, 5
CHOICES = choices_of_tokens(N, T)


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
    found = {name: np.asarray(value) for name, value in _programs(given.data, given.head, jnp.asarray(CHOICES)).items()}
    own = np.asarray(masks(jnp.asarray(CHOICES), given.data))
    found["excess"] = np.where(own, np.inf, found["excess"])
    return found | {"scores": np.asarray(token_scores(given.data, given.head))}


_programs = jax.jit(programs_of)

"""Instances that the files of this folder share."""

from typing import Any

import jax

import jaxflow as jf


def attention(kind: Any = jf.models.CombinedAttention, n: int = 3, T: int = 4, d: int = 3, **how: Any) -> Any:
    """The risk of random tokens, and a start."""
    data, head = jf.data.random_tokens(jax.random.key(0), n, T, d, **how)
    return jf.EmpiricalRisk(data, "logistic"), kind.init(jax.random.key(1), data, head)

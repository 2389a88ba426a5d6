"""Many instances with one compiled program of a constant width."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jaxflow.papers.registry import Data


def in_blocks(one_block: Callable[..., dict[str, Any]], arguments: Any, width: int) -> Data:
    """`one_block` of a pytree of arrays, `width` rows at a time; the last block repeats its last row, unseen.

    **Returns:** arrays by name with the instance as first axis, in the order of the arguments.
    """
    total = jax.tree.leaves(arguments)[0].shape[0]
    parts: list[Data] = []
    for begin in range(0, total, width):
        index = np.minimum(np.arange(begin, begin + width), total - 1)
        found = one_block(jax.tree.map(lambda x, index=index: x[index], arguments))
        parts.append({name: np.asarray(value)[: total - begin] for name, value in found.items()})
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

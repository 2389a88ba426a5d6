"""Keys from names: every random draw of a study descends from a hash of the name of the instance."""

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from jaxflow._core import as_plain, checked
from jaxflow._core.checks import LARGEST

# The generator is part of the keys: another default of JAX must not change the instances.
GENERATOR = "threefry2x32"


def canonical(value: Any) -> str:
    """JSON with sorted keys and without spaces, in which equal numbers are written alike (2.0 as 2).

    **Raises:** `ValueError` for NaN and infinities, `TypeError` for what JSON does not know.
    """
    return json.dumps(_plain(value), sort_keys=True, separators=(",", ":"), allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _plain(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    value = as_plain(value)
    if isinstance(value, float) and math.isfinite(value) and value.is_integer():
        return int(value)
    return value


def key_data(seed: int, experiment: str, data_factors: Mapping[str, Any], trials: Iterable[int]) -> np.ndarray:
    r"""The first eight bytes of SHA-256 of the canonical JSON of seed, experiment, data factors and trial.

    Nothing else goes in: neither the number of trials, nor the other values of a factor, nor method factors.
    Adding any of them changes no key, and two methods meet the same instances. The trial comes last in the
    JSON, so the hash of all before it is computed once and a million keys take about a second.

    **Returns:** big-endian words as `uint32` of shape `(trials, 2)`; see `as_keys`.
    """
    named = {"data_factors": dict(data_factors), "experiment": experiment, "seed": seed, "trial": 0}
    text = canonical(named)
    head = hashlib.sha256(text[: -len("0}")].encode())
    words = []
    for trial in trials:
        this = head.copy()
        this.update(b"%d}" % int(trial))
        words.append(this.digest()[:8])
    return np.frombuffer(b"".join(words), dtype=">u4").astype(np.uint32).reshape(-1, 2)


def as_keys(data: np.ndarray) -> Key[Array, "..."]:
    """Typed keys `(...)` of words `(..., 2)`."""
    return jax.random.wrap_key_data(jnp.asarray(data, dtype=jnp.uint32), impl=GENERATOR)


@checked(least={"seed": -LARGEST})
def trial_key(seed: int, experiment: str, data_factors: Mapping[str, Any], trial: int) -> Key[Array, ""]:
    """The key of one instance."""
    try:
        return as_keys(key_data(seed, experiment, data_factors, [trial])[0])
    except (TypeError, ValueError) as error:
        raise ValueError(f"data_factors: {data_factors!r} holds what has no name ({error})") from error


@checked()
def subkey(key: Key[Array, ""], name: str) -> Key[Array, ""]:
    """The key of one of several draws of an instance, by the name of what is drawn. Adding a draw changes no other
    draw.

    **Example:**

    ```python
    key = jax.random.key(0)
    tokens, start = jf.study.subkey(key, "tokens"), jf.study.subkey(key, "start")
    ```
    """
    return jax.random.fold_in(key, int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big"))

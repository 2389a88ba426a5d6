"""Padding under a mask changes no answer: python benchmarks/masked.py [--count 10] [--only W ...].

Instances of attention without padding, and variants of each: one, two or five hidden tokens more in every sequence, at
the end or in between, which are zero, random of four sizes, or NaN. Compared with the instance itself: the outcome, the
selected tokens, and the direction or the point of the flow.
"""

from collections.abc import Iterator
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from _common import begun

import jaxflow as jf

N, T, D = 3, 4, 4
MODELS = {
    "W": jf.models.CombinedAttention,
    "(K, Q)": jf.models.FactoredAttention,
    "diagonal": jf.models.DiagonalAttention,
}
EXTRA = (1, 2, 5)
# What the hidden tokens are: zero, NaN, or normal of this size.
SIZES = (0.0, 1.0, 3e3, 1e9, 1e150, np.nan)


@cache
def limits(name: str) -> Any:
    """Outcomes, selected tokens and flows' ends of a batch; compiled once for each number of tokens."""

    def one(given: Any) -> Any:
        key, (tokens, queries, labels, shown, head) = given
        data = jf.data.TokenData(tokens, queries, labels, shown)
        model = MODELS[name].init(key, data, head)
        limit = jf.find_limit(jf.EmpiricalRisk(data, "logistic"), model, throw=False)
        return limit.outcome.value, limit.selection, limit.flow_direction

    return jax.jit(lambda batch: jax.lax.map(one, batch))


def drawn(count: int) -> tuple[jax.Array, Any]:
    """Keys of starts, and instances."""
    draw = jax.vmap(lambda key: jf.data.random_tokens(key, N, T, D))
    data, head = draw(jax.random.split(jax.random.key(0), count))
    return jax.random.split(jax.random.key(1), count), (data.tokens, data.queries, data.labels, head)


def padded(rng: np.random.Generator, tokens: np.ndarray, extra: int, size: float, between: bool) -> Any:
    """Tokens with hidden ones among them, and where the visible ones are, `(count, n, T + extra)`."""
    count = len(tokens)
    long = size * rng.normal(size=(count, N, T + extra, D))
    at = np.arange(T) * np.ones((count, N, 1), int)
    if between:
        at = np.sort(rng.permuted(np.arange(T + extra) * np.ones((count, N, 1), int), axis=-1)[..., :T], axis=-1)
    np.put_along_axis(long, at[..., None], tokens, axis=2)
    return long, at


def variants(name: str, extra: int, count: int) -> Iterator[dict[str, Any]]:
    """One row for each content of the hidden tokens."""
    keys, (tokens, queries, labels, head) = drawn(count)
    plain = jax.device_get(limits(name)((keys, (tokens, queries, labels, None, head))))
    rng = np.random.default_rng([0, extra, list(MODELS).index(name)])
    for size in SIZES:
        found, chosen = [], []
        for between in (False, True):
            long, at = padded(rng, np.asarray(tokens), extra, size, between)
            shown = np.zeros(long.shape[:3], bool)
            np.put_along_axis(shown, at, True, axis=-1)
            given = jnp.asarray(long), queries, labels, jnp.asarray(shown), head
            ended, selection, end = jax.device_get(limits(name)((keys, given)))
            found.append((ended, end))
            hidden = (selection & ~shown).any((1, 2))
            other = (np.take_along_axis(selection, at, axis=-1) != plain[1]).any((1, 2))
            chosen.append(hidden | other)
        ended, end = (np.concatenate(part) for part in zip(*found, strict=True))
        codes, ends = np.tile(plain[0], 2), np.tile(plain[2], (2, 1, 1))
        norms = np.linalg.norm(ends, axis=(1, 2))
        apart = np.linalg.norm(end - ends, axis=(1, 2)) / np.where(norms > 0, norms, 1.0)
        decided = codes != jf.Outcome.undecided
        yield {
            "model": name,
            "extra": extra,
            "hidden": "zero" if size == 0 else "NaN" if np.isnan(size) else f"{size:.0e}",
            "variants": len(codes),
            "other_outcomes": int(np.sum(ended != codes)),
            "other_tokens": int(np.sum(np.concatenate(chosen))),
            "difference": float(np.max(apart[decided], initial=0.0)),
        }


if __name__ == "__main__":
    asked, record = begun(
        __doc__, "masked", same=("model", "extra", "hidden"), cached=True, count=10, extra=EXTRA, only=tuple(MODELS)
    )
    for name in asked.only:
        for extra in asked.extra:
            for row in variants(name, extra, asked.count):
                record.add(row)

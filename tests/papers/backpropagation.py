"""The published protocol in plain float64 backpropagation, for a process without fused multiply-adds.

Prints, as JSON, how far the end of every run is from the reference, relative to it; see
`tests/reference/README.md`.
"""

import functools
import json
import operator
import sys

import jax
import jax.numpy as jnp
import numpy as np

from jaxflow import EmpiricalRisk, data, models
from jaxflow.gradient_descent import descend
from jaxflow.papers.tarzanagh2023.protocol import published_protocol


def total(x: jax.Array) -> jax.Array:
    """The sum over tokens, in their order."""
    return functools.reduce(operator.add, [x[..., t] for t in range(x.shape[-1])])


@jax.custom_vjp
def softmax(logits: jax.Array) -> jax.Array:
    e = jnp.exp(logits - jnp.max(logits, -1, keepdims=True))
    return e / total(e)[..., None]


def pull_back(s: jax.Array, weights: jax.Array) -> tuple[jax.Array]:
    # Where s = 1 to rounding, the selected token's entry is lost here.
    return (s * (weights - total(s * weights)[..., None]),)


softmax.defvjp(lambda logits: (softmax(logits),) * 2, pull_back)


def run(tokens, queries, labels, head, *factors):
    def loss(model) -> jax.Array:
        outputs = total(softmax(model.logits(data.TokenData(tokens, queries, labels))) * (tokens @ head))
        return jnp.mean(jnp.log(1.0 + jnp.exp(-labels * outputs)))

    kind = models.CombinedAttention if len(factors) == 1 else models.FactoredAttention
    model = kind(*factors, head)
    end = descend(EmpiricalRisk.from_function(loss), model, **published_protocol(model))
    return end.final.model.combined_weights()


def main(path: str) -> None:
    jax.config.update("jax_enable_x64", True)
    reference = np.load(path)
    distances = {}
    for size in "ab":
        arrays = {name[2:]: jnp.asarray(reference[name]) for name in reference.files if name[0] == size}
        given = [arrays[name] for name in ("X", "Z", "Y", "v")]
        for name, starts in (("W", ("W0",)), ("KQ", ("K0", "Q0"))):
            end = jax.jit(jax.vmap(run))(*given, *(arrays[start] for start in starts))
            expected = arrays[f"{name}_end"]
            apart = jnp.linalg.norm(end - expected, axis=(1, 2)) / jnp.linalg.norm(expected, axis=(1, 2))
            distances[f"{size}_{name}"] = apart.tolist()
    print(json.dumps(distances))


if __name__ == "__main__":
    main(sys.argv[1])

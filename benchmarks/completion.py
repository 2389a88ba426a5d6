"""Matrix completion: python benchmarks/completion.py [--count 50] [--scales 0.1 1e-3 ...] [--only "U V" "U U"].

Matrices 10 x 10 of rank two with normal factors, of which each entry is known with probability 0.6. The program is that
of the least nuclear norm with these entries. The flows are those of the squared loss from normal starts of some size:
`U V`, of a product of two matrices, and `U U`, of a matrix times its transpose, where the matrix to be completed is
symmetric and positive. Gunasekar et al. (2017) conjectured that limits from small starts have the least nuclear norm.
*Excess*: that of the limit over the program's dual bound. A limit of `U U` is positive, the program's solution need not
be: `positive` counts those that are.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from _common import begun, outcomes, spread
from jaxtyping import Array

import jaxflow as jf

SIZE, RANK, KNOWN = 10, 2, 0.6
SCALES = (1e-1, 1e-3, 1e-6, 1e-12)
FLOWS = ("U V", "U U")
# A matrix is recovered, and a solution positive, up to this; flows are followed to `GAP`.
LEAST, GAP = 1e-6, 1e-6


class Product(eqx.Module):
    """U V, or U Uᵀ where V is None, as a predictor of matrices in one row."""

    U: Array
    V: Array | None

    def matrix(self) -> Array:
        return self.U @ (self.U.T if self.V is None else self.V)

    def __call__(self, x: Array) -> Array:
        return jnp.vdot(x, self.matrix())


def instances(count: int, symmetric: bool) -> tuple[Array, Array]:
    """Matrices, and which entries are known."""
    rng = np.random.default_rng(0)
    left = rng.normal(size=(count, SIZE, RANK))
    right = left if symmetric else rng.normal(size=(count, SIZE, RANK))
    known = rng.random((count, SIZE, SIZE)) < KNOWN
    if symmetric:
        known = np.tril(known) | np.tril(known).transpose(0, 2, 1)
    return jnp.asarray(left @ right.transpose(0, 2, 1)), jnp.asarray(known)


@jax.jit
def flow(matrix: Array, known: Array, start: Any) -> tuple[Any, Array]:
    """Outcome and predictor. An unknown entry is the datum 0 = 0."""
    rows, targets = jnp.diag(known.reshape(-1).astype(float)), jnp.where(known, matrix, 0.0).reshape(-1)
    limit = jf.find_limit(jf.EmpiricalRisk((rows, targets), "squared"), start, gap=GAP, throw=False)
    return limit.outcome.value, limit.end.module.matrix()


if __name__ == "__main__":
    asked, record = begun(__doc__, "completion", same=("flow", "scale"), count=50, scales=SCALES, only=FLOWS)
    for what in asked.only:
        symmetric = what == "U U"
        matrices, known = instances(asked.count, symmetric)
        program = jax.vmap(lambda m, mask, s=symmetric: jf.margin.completion(m, mask, symmetric=s))(matrices, known)
        solved = jax.vmap(jf.margin.solve)(program)
        least, primal = np.asarray(solved.certificate.dual_value), np.asarray(solved.primal)
        about = {
            "instances": asked.count,
            "solved": int(np.sum(np.asarray(solved.result.value) == 1)),
            "program_gap": spread(solved.certificate.duality_gap),
            "recovered": int(np.sum(np.abs(primal - matrices).max((1, 2)) < LEAST)),
            "positive": int(np.sum(np.linalg.eigvalsh(primal + primal.transpose(0, 2, 1))[:, 0] > -LEAST)),
        }
        for scale in asked.scales:
            normal = jax.random.normal(jax.random.key(0), (asked.count, 2, SIZE, SIZE)) * scale
            starts = [Product(u, None if symmetric else v) for u, v in normal]
            found = [flow(*one) for one in zip(matrices, known, starts, strict=True)]
            codes, ends = (np.asarray(part) for part in zip(*found, strict=True))
            excess = np.linalg.norm(ends, "nuc", axis=(1, 2)) / least - 1.0
            row = {"flow": what, "scale": scale, **about, "outcomes": outcomes(codes), "excess": spread(excess)}
            row["least"] = int(np.sum(np.abs(excess) < 1e-3))
            row["truth"] = int(np.sum(np.abs(ends - matrices).max((1, 2)) < 1e-3))
            record.add(row)

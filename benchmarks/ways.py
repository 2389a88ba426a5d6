"""One instance in five ways: alone, under jit, under vmap, in a block of a study, and in its replay.

    python benchmarks/ways.py [--count 230] [--only W:5,5,4 KQ:5,5,4:twice] [--out FILE]

Outcomes and tokens are compared instance by instance. In a cell that ends in `twice` every first token is there a
second time: selected ones have copies, and optimal ones ties. A block may leave undecided what the others decide, and
the other way round (`Study.replay`): such instances are counted apart.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from _common import begun, factors_of, outcomes

import jaxflow as jf
from jaxflow.study import AbstractExperiment, TokenSelection

KINDS = ("W", "KQ", "diagonal")
CELLS = (
    *(f"{kind}:{sizes}" for kind in KINDS for sizes in ("5,5,4", "5,5,2")),
    *(f"{kind}:5,5,4:twice" for kind in KINDS),
)
LANES = 50


class Drawn(AbstractExperiment):
    """Random tokens, the first of each sequence once or twice; the result is the outcome with the tokens."""

    twice: bool = False

    def setup(self, key: Any, *, n: int, T: int, d: int, parametrization: str) -> Any:
        risk, model = TokenSelection().setup(key, n=n, T=T, d=d, parametrization=parametrization)
        data: Any = risk.data
        if self.twice:
            data = jf.data.TokenData(
                jnp.concatenate([data.tokens, data.tokens[:, :1]], axis=1), data.queries, data.labels
            )
        return jf.EmpiricalRisk(data, risk.loss), model

    def summarize(self, limit: Any) -> dict[str, Any]:
        return {"outcome": limit.outcome.value, "selection": limit.selection}


def row(cell: str, count: int) -> dict[str, Any]:
    """How many instances have one answer in all five ways, and those that have not."""
    factors, experiment = factors_of(cell), Drawn(cell.endswith(":twice"))
    keys = jax.random.split(jax.random.key(7), count)

    def find(key: Any) -> Any:
        return experiment.summarize(jf.find_limit(*experiment.setup(key, **factors), throw=False))

    def stacked(found: list[Any]) -> dict[str, np.ndarray]:
        return jax.tree.map(lambda *x: np.stack([np.asarray(v) for v in x]), *found)

    setup = jax.jit(lambda key: experiment.setup(key, **factors))
    first = stacked([experiment.summarize(jf.find_limit(*setup(key), throw=False)) for key in keys])
    one, lanes = jax.jit(find), jax.jit(jax.vmap(find))
    parts = [lanes(keys[start : start + LANES]) for start in range(0, count, LANES)]
    ways = {
        "jit": stacked([one(key) for key in keys]),
        "vmap": jax.tree.map(lambda *x: np.concatenate([np.asarray(v) for v in x]), *parts),
        "study": {k: np.asarray(v) for k, v in experiment.block_function(factors, count)(keys).items()},
        "replay": stacked([experiment.summarize(experiment.replay(key, **factors)) for key in keys]),
    }
    codes = first["outcome"]
    undecided, point = int(jf.Outcome.undecided), int(jf.Outcome.finite_stationary_point)
    out: dict[str, Any] = {"cell": cell, "instances": count, "outcomes": outcomes(codes)}
    for way, found in ways.items():
        open_ = (codes == undecided) != (found["outcome"] == undecided)
        tokens = np.any(found["selection"] != first["selection"], axis=(1, 2)) & (codes != undecided) & (codes != point)
        other = ((found["outcome"] != codes) | tokens) & ~open_
        out[way] = {"other": np.flatnonzero(other).tolist(), "one_undecided": np.flatnonzero(open_).tolist()}
    return out


if __name__ == "__main__":
    asked, record = begun(__doc__, "ways", count=230, only=CELLS)
    for cell in asked.only:
        record.add(row(cell, asked.count))

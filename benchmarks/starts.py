"""Starts of every size: does a run 10,000 times longer change a definite outcome?

python benchmarks/starts.py [--count 100] [--out results/starts.json]

Standard normal weights times a scale from 1e-8 to 1e6, for W and for (K, Q). Each instance is followed until the flow
certifies itself, and again to 10,000 times that arc length, unless it comes to rest before that (its direction turns
by no more than 1e-13; `not_longer` counts these). Beside the outcomes the selected tokens are compared: a direction
that is definite and then goes elsewhere would show there.
"""

import argparse
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from _common import RESULTS, configure, counts, environment, print_table, write

import jaxflow as jf
from jaxflow.limits import conclude
from jaxflow.limits.attention import AttentionGears, cap_of
from jaxflow.limits.path import follow

SIZE = (3, 4, 3)
SCALES = tuple(10.0**power for power in range(-8, 7, 2))
MODELS: dict[str, Any] = {"W": jf.models.CombinedAttention, "KQ": jf.models.FactoredAttention}
LONGER, GAP, MAX_STEPS = 1e4, 1e-8, 20_000
# Lengths are numbers: the second run cannot go beyond this.
FARTHEST = 1e300


@partial(jax.jit, static_argnums=1)
def instance(key: jax.Array, kind: str, scale: jax.Array) -> tuple[Any, Any]:
    """Random tokens, and normal weights of one size."""
    data_key, start_key = jax.random.split(key)
    data, head = jf.data.random_tokens(data_key, *SIZE, score_gap=0.1)
    d = SIZE[-1]
    shapes = ((d, d),) if kind == "W" else ((d, d), (d, d))
    keys = jax.random.split(start_key, len(shapes))
    weights = [scale * jax.random.normal(key, shape) for key, shape in zip(keys, shapes, strict=True)]
    return jf.EmpiricalRisk(data, jf.losses.Logistic()), MODELS[kind](*weights, head)


@eqx.filter_jit
def followed(risk: Any, model: Any, far: jax.Array) -> Any:
    """The limit after a path of at least the arc length `far`."""
    gears = AttentionGears(conserved=None, gap=GAP, far=far, cap=cap_of(model, GAP), saves=1)
    return conclude(risk, model, follow(gears, risk, model, MAX_STEPS), GAP)


def rows(count: int) -> Iterator[dict[str, Any]]:
    """One row for each parametrisation and scale."""
    for kind in MODELS:
        for scale in SCALES:
            keys = jax.random.split(jax.random.fold_in(jax.random.key(0), round(np.log10(scale)) + 8), count)
            found: list[dict[str, Any]] = []
            for key in keys:
                given = instance(key, kind, jnp.asarray(scale))
                first = followed(*given, jnp.asarray(1.0))
                length = jnp.exp(first.trajectory.final.log_arc_length)
                second = followed(*given, jnp.minimum(LONGER * length, FARTHEST))
                now, later = jf.Outcome(int(first.outcome)), jf.Outcome(int(second.outcome))
                tokens = [np.argmax(np.asarray(limit.selection), axis=-1).tolist() for limit in (first, second)]
                definite = now in DEFINITE
                found.append(
                    {
                        "outcome": now.name,
                        "later": later.name,
                        "tokens": tokens,
                        "definite": definite,
                        "changed": definite and (now != later or (now != POINT and tokens[0] != tokens[1])),
                        "short": bool(
                            second.trajectory.final.log_arc_length
                            < first.trajectory.final.log_arc_length + np.log(LONGER) - 1e-6
                        ),
                        "rounds_steps": int(first.trajectory.stats["num_steps"]),
                    }
                )
            yield {
                "parametrization": kind,
                "scale": scale,
                "instances": count,
                "outcomes": counts([row["outcome"] for row in found]),
                "later": counts([row["later"] for row in found]),
                "definite": sum(row["definite"] for row in found),
                "changed": [{"instance": i, **row} for i, row in enumerate(found) if row["changed"]],
                # Paths that stand still, or have no number for a length, do not get longer.
                "not_longer": sum(row["short"] for row in found),
            }


POINT = jf.Outcome.finite_stationary_point
DEFINITE = (
    *(jf.Outcome.globally_optimal, jf.Outcome.locally_optimal, jf.Outcome.not_locally_optimal),
    *(POINT, jf.Outcome.infeasible_program, jf.Outcome.prediction_contradicted),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--out", type=Path, default=RESULTS / "starts.json")
    arguments = parser.parse_args()
    configure()
    content: dict[str, Any] = {"environment": environment(), "rows": []}
    for row in rows(arguments.count):
        content["rows"].append(row)
        print(row["parametrization"], row["scale"], row["outcomes"], len(row["changed"]), row["not_longer"], flush=True)
        write(arguments.out, content)
    print_table(
        "Definite outcomes that a run 10,000 times longer changes",
        ["param", "scale", "definite", "changed", "not longer", "outcomes"],
        [
            [
                *(row["parametrization"], row["scale"], row["definite"], len(row["changed"]), row["not_longer"]),
                ", ".join(f"{number} {name}" for name, number in row["outcomes"].items()),
            ]
            for row in content["rows"]
        ],
    )


if __name__ == "__main__":
    main()

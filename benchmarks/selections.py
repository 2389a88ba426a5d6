"""The tokens that (K, Q) selects, against those by Newton's method for the weights, instance by instance.

python benchmarks/selections.py [--out results/selections.json]

500 instances at each d of the study with seed 0. What they are compared with stands in results/selections_before.json:
the same study by the general implicit method, which took the place of multipliers until 2026-11. Each difference is
followed by Dopri8 at a relative tolerance of 1e-8 in arc length, without limiting dynamics, until the selection has
settled.
"""

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import diffrax
import equinox as eqx
import jax.numpy as jnp
import numpy as np
from _common import RESULTS, configure, counts, environment, write

import jaxflow as jf
from jaxflow.flow import ArcLength, Drive, Factors, SelectionSettled, StationaryPoint
from jaxflow.study import TokenSelection
from jaxflow.study.keys import as_keys, key_data

BEFORE = RESULTS / "selections_before.json"
BLOCK = 250


@eqx.filter_jit
def reference(risk: Any, model: Any) -> Any:
    """The explicit path until at most 1e-9 of the multipliers pull away from the selected tokens."""
    stop = SelectionSettled(1e-6, 1e-9) | StationaryPoint(1e-8, 2)
    drive = Drive(diffrax.Dopri8(), diffrax.PIDController(rtol=1e-8, atol=1e-10), stop, 200_000)
    lane = drive.start(risk, model, coordinates=Factors(), clock=ArcLength(floor=0.03, timed=False), until=200.0)
    return drive.trajectory(drive.run(lane))


def rows() -> Iterator[dict[str, Any]]:
    """One row for each d."""
    experiment = TokenSelection()
    for text, tokens in json.loads(BEFORE.read_text())["tokens"].items():
        d, before = int(text), np.array([[int(token) for token in row] for row in tokens])
        factors = {"d": d, "parametrization": "KQ"}
        keys = as_keys(key_data(0, "TokenSelection", {"d": d}, range(len(before))))
        block = experiment.block_function(factors, BLOCK)
        start = time.perf_counter()
        parts = [block(keys[first : first + BLOCK]) for first in range(0, len(before), BLOCK)]
        found = {name: np.concatenate([np.asarray(part[name]) for part in parts]) for name in parts[0]}
        seconds = time.perf_counter() - start
        outcomes = [jf.Outcome(int(code)).name for code in found["outcome"]]
        different = []
        for trial in np.flatnonzero((found["token"] != before).any(axis=1)):
            risk, model = experiment.setup(keys[trial], **factors)
            path = reference(risk, model)
            attention = path.final.model.attention(risk.data)
            different.append(
                {
                    "trial": int(trial),
                    "before": before[trial].tolist(),
                    "now": found["token"][trial].tolist(),
                    "outcome": outcomes[trial],
                    "reference": np.asarray(jnp.argmax(attention, axis=-1)).tolist(),
                    "reference_steps": int(path.stats["num_steps"]),
                    "reference_settled": bool(jf.RESULTS.event_occurred == path.result),
                }
            )
        decided = found["outcome"] < 3
        yield {
            "d": d,
            "instances": len(before),
            "outcomes": counts(outcomes),
            "own_gap_largest": float(found["flow_gap"][decided].max()),
            "program_gap_largest": float(found["program_gap"][decided].max()),
            "open": np.flatnonzero(~decided).tolist(),
            "different": different,
            "seconds_with_compilation": seconds,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=RESULTS / "selections.json")
    arguments = parser.parse_args()
    configure()
    content: dict[str, Any] = {"environment": environment(), "rows": []}
    for row in rows():
        content["rows"].append(row)
        print(row, flush=True)
        write(arguments.out, content)


if __name__ == "__main__":
    main()

"""A referee: claimed limits of many kinds of instances against NumPy, SciPy and CVXPY; right, undecided, or wrong.

    python benchmarks/referee.py [--scale 1] [--only W KQ diagonal] [--kinds "token twice"] [--out results/referee.json]

The draws, the judgement and the flow it compares with share no code with the library (`referee_attention`,
`referee_networks`, `referee_flow`). Every instance is counted.
"""

import argparse
import sys
import time
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import referee_attention as attention
from _common import RESULTS, configure, environment, print_table, write
from referee_flow import Tokens, follow

import jaxflow as jf

# Instances of a kind at scale one.
COUNTS = {"W": 400, "KQ": 300, "diagonal": 300}
# Regular kinds, of which the share of undecided ones is a claim, are drawn this many times as often.
REGULAR = 4
# In large dimensions a plain path costs what the square of d does.
LARGE = 100
# The second look at a path.
CLOSER = {"steps": 10_000, "step": 0.25, "lead": 300.0}
# A longer start is not followed: an explicit method takes as many steps as it has logits.
FOLLOWED = 100.0
MODELS = {
    "W": jf.models.CombinedAttention,
    "KQ": jf.models.FactoredAttention,
    "diagonal": jf.models.DiagonalAttention,
}


def claims(kind: str, data: Tokens, theta: tuple[np.ndarray, ...], lanes: int = 8) -> list[attention.Claim]:
    """What the library says of each instance."""

    def one(given: Any) -> Any:
        (tokens, queries, labels, v), parameters = given
        risk = jf.EmpiricalRisk(jf.data.TokenData(tokens, queries, labels), "logistic")
        limit = jf.find_limit(risk, MODELS[kind](*parameters, v), throw=False)
        dual = limit.program_solution.dual
        return limit.outcome.value, limit.selection_status.value, limit.selection, limit.flow_direction, dual

    mapped = jax.jit(lambda batch: jax.lax.map(one, batch, batch_size=lanes))
    found = jax.device_get(mapped(jax.tree.map(jnp.asarray, (tuple(data), theta))))
    return [
        attention.Claim(
            jf.Outcome(int(outcome)).name,
            jf.SelectionStatus(int(status)).name,
            selection.argmax(-1) if (selection.sum(-1) == 1).all() else np.full(len(selection), -1),
            direction,
            dual[~selection] if dual.shape == selection.shape else dual,
        )
        for outcome, status, selection, direction, dual in zip(*found, strict=True)
    ]


def attention_rows(kind: str, name: str, count: int, seed: int) -> dict[str, Any]:
    """One row of the table: a kind of instances, for one parametrisation."""
    made = attention.KINDS[name]
    rng = np.random.default_rng([seed, zlib.crc32(f"{kind}, {name}".encode())])
    n, T, d = made.shape
    data = made.change(rng, attention.ordinary(rng, count, n, T, d))
    theta = attention.start(rng, kind, count, d, made.size)
    started = time.perf_counter()
    said = claims(kind, data, theta)
    claimed = time.perf_counter() - started
    path = follow(kind, data, theta, steps=20_000 if made.size <= FOLLOWED else 0)
    judged = [attention.judge(kind, data, claim, path, i) for i, claim in enumerate(said)]
    again = [i for i, found in enumerate(judged) if found.by_path]
    if again and d <= LARGE and made.size <= FOLLOWED:
        # What the plain path alone speaks against, or cannot tell: followed again, further, with smaller steps.
        closer = follow(kind, data.take(again), tuple(x[again] for x in theta), **CLOSER)
        for j, i in enumerate(again):
            judged[i] = attention.judge(kind, data.take(again), said[i], closer, j)
    return {
        "model": kind,
        "kind": name,
        "regular": made.regular,
        "instances": count,
        **{word: sum(j.verdict == word for j in judged) for word in ("right", "undecided", "unverified", "wrong")},
        "outcomes": dict(Counter(claim.outcome for claim in said)),
        "reasons": dict(Counter(f"{j.verdict}: {_short(j.why)}" for j in judged if j.verdict != "right")),
        "wrong_instances": [{"index": i, "why": j.why} for i, j in enumerate(judged) if j.verdict == "wrong"],
        "seconds": claimed,
        "referee_seconds": time.perf_counter() - started - claimed,
    }


def _short(why: str) -> str:
    return why.split(" [")[0].split(" (")[0] if why.startswith(("a plain", "said")) else why


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", default=list(MODELS))
    parser.add_argument("--kinds", nargs="*")
    parser.add_argument("--out", type=Path, default=RESULTS / "referee.json")
    args = parser.parse_args()
    configure()
    jax.config.update("jax_enable_compilation_cache", True)
    rows = []
    for kind in args.only:
        for name, made in attention.KINDS.items():
            if args.kinds and name not in args.kinds:
                continue
            many = COUNTS[kind] * (REGULAR if made.regular else 1)
            count = max(8, round(args.scale * (many if made.shape[-1] <= LARGE else COUNTS[kind] / 10)))
            rows.append(attention_rows(kind, name, count, args.seed))
            row = rows[-1]
            print(*(f"{key}={row[key]}" for key in row if key != "wrong_instances"), file=sys.stderr, flush=True)
            write(args.out, {"environment": environment(), "seed": args.seed, "rows": rows})
    columns = ["model", "kind", "instances", "right", "undecided", "unverified", "wrong"]
    print_table("Referee", columns, [[row[c] for c in columns] for row in rows])


if __name__ == "__main__":
    main()

"""A referee: claimed limits of many kinds of instances against NumPy, SciPy and CVXPY; right, undecided, or wrong.

    python benchmarks/referee.py [--scale 1] [--only W KQ "deep network"] [--kinds "token twice"] [--out FILE]

The draws, the judgement and the flow it compares with share no code with the library (`referee_attention` and
`referee_flow`; `referee_networks`, `referee_draws` and `referee_paths`). Every instance is counted.
"""

import argparse
import re
import subprocess
import sys
import time
import zlib
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import referee_attention as attention
import referee_draws as draws
import referee_networks as networks
from _common import RESULTS, configure, environment, print_table, write
from referee_flow import Tokens, follow
from referee_paths import Vectors, follow_out
from referee_returns import follow_back

import jaxflow as jf

# Instances of a kind at scale one.
COUNTS = {"W": 400, "KQ": 300, "diagonal": 300, **dict.fromkeys(draws.MODELS, 100)}
# Instances that are mapped over together.
LANES = 8
# Regular kinds, of which the share of undecided ones is a claim, are drawn this many times as often.
REGULAR = 4
# In large dimensions a plain path costs what the square of d does.
LARGE = 100
# The second look at a path.
CLOSER = {"steps": 10_000, "step": 0.25, "lead": 300.0}
OUTWARDS = {"steps": 20_000, "margin": 1e5}
# A longer start is not followed: an explicit method takes as many steps as it has logits.
FOLLOWED = 100.0
MODELS = {
    "W": jf.models.CombinedAttention,
    "KQ": jf.models.FactoredAttention,
    "diagonal": jf.models.DiagonalAttention,
}
NETWORKS = {
    "diagonal network": jf.models.DiagonalLinearNetwork,
    "deep network": jf.models.DeepLinearNetwork,
    "convolutional network": jf.models.LinearConvolutionalNetwork,
    "matrix sensing": jf.models.DeepMatrixSensing,
}


def claims(kind: str, data: Tokens, theta: tuple[np.ndarray, ...], lanes: int = LANES) -> list[attention.Claim]:
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
    if kind == "diagonal":
        judged = [_and_back(found, data.take(i), theta, i, said[i]) for i, found in enumerate(judged)]
    return row_of(kind, name, made.regular, said, judged, claimed, time.perf_counter() - started - claimed)


def _and_back(
    found: attention.Judgement, data: Tokens, theta: tuple[np.ndarray, ...], i: int, claim: attention.Claim
) -> attention.Judgement:
    """A judgement that a plain path goes to infinity in place of a point: it may come back from where it was left."""
    if found.why != attention.AWAY:
        return found
    end = follow_back(data, tuple(x[i] for x in theta))
    if not end.rests:
        return found
    return attention.judge_rest(claim, end.beta)


@cache
def network_limits(model: str, loss: str) -> Any:
    """What the library says of networks, compiled once for each shape of data and layers."""

    def one(given: Any) -> Any:
        inputs, targets, layers = given
        risk = jf.EmpiricalRisk(jf.data.LinearData(inputs, targets), loss)
        limit = jf.find_limit(risk, NETWORKS[model](layers), throw=False)
        numbers = limit.error, limit.error_source.value, limit.residual, limit.program_solution.dual
        return limit.outcome.value, limit.flow_direction, *numbers

    return jax.jit(jax.vmap(one))


def network_claims(model: str, loss: str, data: Vectors, theta: tuple[np.ndarray, ...]) -> list[networks.Claim]:
    """What the library says of each instance of a linear network."""
    count, mapped = len(data.inputs), network_limits(model, loss)
    # Blocks of one size, the last one filled up: one program for every number of instances.
    blocks = np.minimum(np.arange(-(-count // LANES) * LANES), count - 1).reshape(-1, LANES)
    parts = [jax.device_get(mapped(jax.tree.map(lambda x, at=at: jnp.asarray(x[at]), (*data, theta)))) for at in blocks]
    found = [np.concatenate(part)[:count] for part in zip(*parts, strict=True)]
    return [
        networks.Claim(
            jf.Outcome(int(outcome)).name,
            np.asarray(beta),
            float(error),
            jf.limits.ErrorSource(int(source)).name,
            float(residual),
            np.asarray(dual),
        )
        for outcome, beta, error, source, residual, dual in zip(*found, strict=True)
    ]


def network_rows(model: str, name: str, count: int, seed: int) -> dict[str, Any]:
    """One row of the table for a linear network."""
    made = draws.KINDS[name]
    rng = np.random.default_rng([seed, zlib.crc32(f"{model}, {name}".encode())])
    data, theta = draws.ordinary(rng, made, model, count), draws.start(rng, made, model, count)
    started = time.perf_counter()
    said = network_claims(model, made.loss, data, theta)
    claimed = time.perf_counter() - started
    starts = [tuple(w[i] for w in theta) for i in range(count)]
    if made.loss == "squared":
        judged = [networks.judge_point(model, data.take(i), starts[i], claim) for i, claim in enumerate(said)]
    else:
        judged = []
        for i, claim in enumerate(said):
            judged.append(_direction(model, made.loss, data.take(i), starts[i], claim, {}))
            if judged[-1].by_path:
                judged[-1] = _direction(model, made.loss, data.take(i), starts[i], claim, OUTWARDS)
    return row_of(model, name, made.regular, said, judged, claimed, time.perf_counter() - started - claimed)


def _direction(
    model: str, loss: str, data: Vectors, theta: tuple[np.ndarray, ...], claim: networks.Claim, how: dict
) -> attention.Judgement:
    if claim.outcome in attention.OPEN:
        return attention.Judgement("undecided", claim.outcome)
    path = follow_out(model, data, theta, loss, **how)
    return networks.judge_direction(model, data, theta, loss, claim, path)


def row_of(
    model: str, name: str, regular: bool, said: list, judged: list, seconds: float, referee_seconds: float
) -> dict[str, Any]:
    """The row of a kind of instances."""
    return {
        "model": model,
        "kind": name,
        "regular": regular,
        "instances": len(said),
        **{word: sum(j.verdict == word for j in judged) for word in ("right", "undecided", "unverified", "wrong")},
        "outcomes": dict(Counter(claim.outcome for claim in said)),
        "reasons": dict(Counter(f"{j.verdict}: {_short(j.why)}" for j in judged if j.verdict != "right")),
        "wrong_instances": [{"index": i, "why": j.why} for i, j in enumerate(judged) if j.verdict == "wrong"],
        "seconds": seconds,
        "referee_seconds": referee_seconds,
    }


def _short(why: str) -> str:
    return re.sub(r"(?<= )[+-]?\d[\d.]*(e[+-]?\d+)?", "#", why.split(" [")[0].split(" (")[0])


def kinds_of(model: str, scale: float) -> list[tuple[str, int]]:
    """The kinds of instances of a model, and how many are drawn of each."""
    if model in MODELS:
        of = {name: (kind.regular, kind.shape[-1] > LARGE) for name, kind in attention.KINDS.items()}
    else:
        of = {name: (kind.regular, False) for name, kind in draws.KINDS.items() if model in kind.models}
    many = {
        name: COUNTS[model] * (0.1 if large else REGULAR if regular else 1) for name, (regular, large) in of.items()
    }
    return [(name, max(8, round(scale * number))) for name, number in many.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", default=[*MODELS, *NETWORKS])
    parser.add_argument("--kinds", nargs="*")
    parser.add_argument("--out", type=Path, default=RESULTS / "referee.json")
    args = parser.parse_args()
    configure()
    jax.config.update("jax_enable_compilation_cache", True)
    asked = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=Path(__file__).parent
    )
    commit, rows = asked.stdout.strip() or None, []
    for model in args.only:
        for name, count in kinds_of(model, args.scale):
            if args.kinds and name not in args.kinds:
                continue
            judged = attention_rows if model in MODELS else network_rows
            rows.append(judged(model, name, count, args.seed) | {"scale": args.scale, "commit": commit})
            row = rows[-1]
            print(*(f"{key}={row[key]}" for key in row if key != "wrong_instances"), file=sys.stderr, flush=True)
            write(args.out, {"environment": environment(), "seed": args.seed, "rows": rows})
    columns = ["model", "kind", "instances", "right", "undecided", "unverified", "wrong"]
    print_table("Referee", columns, [[row[c] for c in columns] for row in rows])


if __name__ == "__main__":
    main()

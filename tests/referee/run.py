"""A referee: claimed limits of many kinds of instances against NumPy, SciPy and CVXPY; right, undecided, or wrong.

    python -m tests.referee.run [--scale 1] [--only W KQ "deep network"] [--kinds "token twice"] [--out FILE]

The draws, the judgement and the flow it compares with share no code with the library. Every instance is counted, and
the counts are written to benchmarks/results/referee.json.
"""

import re
import subprocess
import time
import zlib
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxflow as jf
from benchmarks._common import Record, settings
from jaxflow.study.blocks import crowded, release_programs
from tests.referee import attention, draws, networks
from tests.referee.flow import Tokens, follow, follow_far
from tests.referee.paths import Vectors, follow_out
from tests.referee.programs import OPEN, Judgement
from tests.referee.returns import follow_back

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
# A longer start is not followed by an explicit method, which takes as many steps as it has logits. For W Radau takes
# its place to here, in 6 s an instance.
FOLLOWED, FAR = 100.0, 1e3
MODELS: dict[str, Any] = {
    "W": jf.models.CombinedAttention,
    "KQ": jf.models.FactoredAttention,
    "diagonal": jf.models.DiagonalAttention,
    "diagonal network": jf.models.DiagonalLinearNetwork,
    "deep network": jf.models.DeepLinearNetwork,
    "convolutional network": jf.models.LinearConvolutionalNetwork,
    "matrix sensing": jf.models.DeepMatrixSensing,
}
ATTENTION = ("W", "KQ", "diagonal")
VERDICTS = ("right", "undecided", "unverified", "wrong")


def drawn(model: str, name: str, count: int, seed: int = 0, label: str = "") -> tuple[Any, tuple[np.ndarray, ...], Any]:
    """Data and starts of instances of a kind, and the kind. The same count and seed draw the same numbers."""
    rng = np.random.default_rng([seed, zlib.crc32(f"{label}{model}, {name}".encode())])
    if model in ATTENTION:
        kind: Any = attention.KINDS[name]
        data: Any = kind.change(rng, attention.ordinary(rng, count, *kind.shape))
        return data, attention.start(rng, model, count, kind.shape[-1], kind.size), kind
    kind = draws.KINDS[name]
    return draws.ordinary(rng, kind, model, count), draws.start(rng, kind, model, count), kind


@cache
def limits(model: str, loss: str) -> Any:
    """What the library says of a block of instances, compiled once for each of their shapes."""

    def one(data: Any, theta: Any) -> Any:
        if model in ATTENTION:
            tokens, queries, labels, v = data
            given: Any = jf.data.TokenData(tokens, queries, labels), MODELS[model](*theta, v)
        else:
            given = jf.data.LinearData(*data), MODELS[model](theta)
        limit = jf.find_limit(jf.EmpiricalRisk(given[0], loss), given[1], throw=False)
        found = limit.outcome.value, limit.flow_direction, limit.program_solution.dual
        if model in ATTENTION:
            return *found, limit.selection_status.value, limit.selection
        return *found, limit.error, limit.error_source.value

    return jax.jit(jax.vmap(one))


def claims(model: str, loss: str, data: Any, theta: tuple[np.ndarray, ...], lanes: int = LANES) -> list[Any]:
    """What the library says of each instance, in blocks of one size, the last one filled up."""
    count, run = len(data[0]), limits(model, loss)
    blocks = np.minimum(np.arange(-(-count // lanes) * lanes), count - 1).reshape(-1, lanes)
    parts = [jax.device_get(run(*jax.tree.map(lambda x, at=at: jnp.asarray(x[at]), (data, theta)))) for at in blocks]
    rows = zip(*(np.concatenate(part)[:count] for part in zip(*parts, strict=True)), strict=True)
    return [(attention_claim if model in ATTENTION else network_claim)(*row) for row in rows]


def attention_claim(outcome: Any, direction: Any, dual: Any, status: Any, selection: np.ndarray) -> attention.Claim:
    """Of one instance."""
    return attention.Claim(
        jf.Outcome(int(outcome)).name,
        jf.SelectionStatus(int(status)).name,
        np.where(selection.all(-1), -1, selection.argmax(-1)),
        direction,
        dual[~selection] if dual.shape == selection.shape else dual,
    )


def network_claim(outcome: Any, beta: Any, dual: Any, error: Any, source: Any) -> networks.Claim:
    """Of one instance."""
    source = jf.limits.ErrorSource(int(source)).name
    return networks.Claim(jf.Outcome(int(outcome)).name, beta, float(error), source, dual)


def judge(model: str, kind: Any, data: Any, theta: tuple[np.ndarray, ...], said: list[Any]) -> list[Judgement]:
    """What is said of instances of a kind, by plain paths; what these alone speak against, or cannot tell, is followed
    again, further. Where nothing is claimed nothing is followed."""
    if model in ATTENTION:
        return _judge_attention(model, kind, data, theta, said)
    starts = [tuple(w[i] for w in theta) for i in range(len(said))]
    return [_judge_network(model, kind.loss, data.take(i), starts[i], claim) for i, claim in enumerate(said)]


def _judge_attention(
    model: str, made: attention.Kind, data: Tokens, theta: tuple[np.ndarray, ...], said: list[attention.Claim]
) -> list[Judgement]:
    judged = [Judgement("undecided", claim.outcome) for claim in said]
    left, followed = [i for i, claim in enumerate(said) if claim.outcome not in OPEN], made.size <= FOLLOWED
    far = model == "W" and FOLLOWED < made.size <= FAR
    for how in ({"steps": 20_000 if followed else 0}, CLOSER if followed and made.shape[-1] <= LARGE else None):
        if left and how is not None:
            part, starts = data.take(left), tuple(x[left] for x in theta)
            path = follow_far(model, part, starts) if far else follow(model, part, starts, **how)
            for j, i in enumerate(left):
                judged[i] = attention.judge(model, part, said[i], path, j)
            left = [i for i in left if judged[i].by_path]
    for i, found in enumerate(judged):
        if model == "diagonal" and found.why == attention.AWAY:
            # A path that goes far out may come back to a point where a token pulls that is better than a selected one.
            one = data.take(i)
            end, scores = follow_back(one, tuple(x[i] for x in theta)), one.labels[:, None] * (one.tokens @ one.v)
            selected = np.einsum("ntd,nd,d->nt", one.tokens, one.queries, end.beta).argmax(-1)
            stays = np.all(scores.argmax(-1) == selected)
            spent = found if stays else Judgement("unverified", "a path that may come back has not come to rest")
            judged[i] = attention.judge_rest(said[i], end.beta) if end.rests else spent
    return judged


def _judge_network(
    model: str, loss: str, data: Vectors, theta: tuple[np.ndarray, ...], claim: networks.Claim
) -> Judgement:
    if loss == "squared" or claim.outcome in OPEN:
        return networks.judge_point(model, data, theta, claim)
    found = Judgement("unverified", by_path=True)
    for how in ({}, OUTWARDS):
        if found.by_path:
            path = follow_out(model, data, theta, loss, **how)
            found = networks.judge_direction(model, data, theta, loss, claim, path)
    return found


def row(model: str, name: str, count: int, seed: int = 0, lanes: int = LANES) -> dict[str, Any]:
    """One row of the table: a kind of instances of a model."""
    started = time.perf_counter()
    data, theta, kind = drawn(model, name, count, seed)
    said = claims(model, kind.loss, data, theta, lanes)
    claimed = time.perf_counter()
    judged = judge(model, kind, data, theta, said)
    return {
        "model": model,
        "kind": name,
        "regular": kind.regular,
        "instances": count,
        **{word: sum(j.verdict == word for j in judged) for word in VERDICTS},
        "outcomes": dict(Counter(claim.outcome for claim in said)),
        "reasons": dict(Counter(f"{j.verdict}: {_short(j.why)}" for j in judged if j.verdict != "right")),
        "wrong_instances": [{"index": i, "why": j.why} for i, j in enumerate(judged) if j.verdict == "wrong"],
        "seconds": claimed - started,
        "referee_seconds": time.perf_counter() - claimed,
    }


def _short(why: str) -> str:
    return re.sub(r"(?<= )[+-]?\d[\d.]*(e[+-]?\d+)?", "#", why.split(" [")[0].split(" (")[0])


def kinds_of(model: str, scale: float = 1.0) -> list[tuple[str, int]]:
    """The kinds of instances of a model, and how many are drawn of each."""
    found = []
    for name, kind in (attention.KINDS if model in ATTENTION else draws.KINDS).items():
        if model in ATTENTION or model in kind.models:
            large = model in ATTENTION and kind.shape[-1] > LARGE
            share = 0.1 if large else REGULAR if kind.regular else 1
            found.append((name, max(8, round(scale * COUNTS[model] * share))))
    return found


def main() -> None:
    asked = settings(__doc__, "referee", cached=True, scale=1.0, seed=0, only=tuple(MODELS), kinds=("",))
    head = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=Path(__file__).parent
    )
    more = {"scale": asked.scale, "commit": head.stdout.strip() or None}
    record = Record(asked.out, seed=asked.seed)
    for model in asked.only:
        for name, count in kinds_of(model, asked.scale):
            if asked.kinds == ("",) or name in asked.kinds:
                # Programs of all kinds are more than a process may hold.
                if crowded():
                    limits.cache_clear()
                    release_programs()
                record.add(row(model, name, count, asked.seed) | more)


if __name__ == "__main__":
    main()

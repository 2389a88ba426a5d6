"""Batches of 64 mixed lanes beside single calls: python benchmarks/batches.py [--lanes 64] [--only NAME ...]

Lane k of a batch is an instance of its own with the flaw k mod 10: none, a token (an input) that is NaN or infinite,
one that stands twice, two tokens with equal scores (an input with both labels), no query (no input), sizes of 1e150
and 1e-150, one label only, and another one without a flaw. The tests ask the same of them.

A batch is one compiled program under `vmap`; the single calls are another one, called lane by lane. Both have the
library's options for programs that run a few times. The best of three counts, of what takes 2 s or more the first one.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from _common import TwoLayers, begun, best

import jaxflow as jf
from jaxflow._core import quick_options
from jaxflow.data import random_sequences
from jaxflow.limits import find_limits
from jaxflow.margin import ProgramResult
from jaxflow.models import MultiHeadAttention

FLAWS = ("none", "NaN", "infinite", "twice", "tied", "zero", "1e150", "1e-150", "one label", "none")
N, T, D = 3, 4, 4
# The gap to which a program has an answer here, whatever its own tolerance is.
SOLVED = 1e-8


class Answer(NamedTuple):
    """`outcome`: integers that say how a lane ended; `numbers`: what it found; `decided`: whether it found any."""

    outcome: Any
    numbers: Any
    decided: Any


class Case(NamedTuple):
    """`draw(key)`: data and a model, or what else is varied; `flawed(data, name)`: the data with a flaw;
    `answer(data, model)`: what is asked of one lane."""

    draw: Callable[[Any], tuple[Any, Any]]
    flawed: Callable[[Any, str], Any]
    answer: Callable[[Any, Any], Answer]


def lanes(case: Case, count: int) -> list[tuple[Any, Any]]:
    """`count` instances, one after the other, each with its flaw."""
    instances = []
    for k, key in enumerate(jax.random.split(jax.random.key(0), count)):
        data, model = case.draw(key)
        instances.append((case.flawed(data, FLAWS[k % len(FLAWS)]), model))
    return instances


def stacked(instances: list[Any]) -> Any:
    """One batch of them."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *instances)


def flawed_tokens(data: Any, name: str) -> Any:
    """Token data with a flaw. Ties are those of the linear head `ones(d)`, which all models here have."""
    tokens, queries, labels = data.tokens, data.queries, data.labels
    if name in ("NaN", "infinite"):
        tokens = tokens.at[0, 0, 0].set(jnp.nan if name == "NaN" else jnp.inf)
    elif name == "twice":
        tokens = tokens.at[0, 1].set(tokens[0, 0])
    elif name == "tied":
        # Two axes, so long that they are optimal: ±3 in every order of summation, where others have at most 2.
        axes = jnp.eye(*tokens.shape[-2:])[:2]
        signs = labels if labels.ndim == 1 else labels[:, 0]
        tokens = tokens.at[:, :2].set(3.0 * signs[:, None, None] * axes[None])
    elif name == "zero":
        queries = jnp.zeros_like(queries)
    elif name in ("1e150", "1e-150"):
        tokens = float(name) * tokens
    elif name == "one label":
        labels = jnp.ones_like(labels)
    return eqx.tree_at(lambda x: (x.tokens, x.queries, x.labels), data, (tokens, queries, labels))


def flawed_inputs(data: Any, name: str) -> Any:
    """Linear data with a flaw."""
    inputs, targets = data.inputs, data.targets
    if name in ("NaN", "infinite"):
        inputs = inputs.at[0, 0].set(jnp.nan if name == "NaN" else jnp.inf)
    elif name in ("twice", "tied"):
        inputs = inputs.at[1].set(inputs[0])
        targets = targets.at[1].set(targets[0] if name == "twice" else -targets[0])
    elif name == "zero":
        inputs = inputs.at[0].set(0.0)
    elif name in ("1e150", "1e-150"):
        inputs = float(name) * inputs
    elif name == "one label":
        targets = jnp.abs(targets)
    return eqx.tree_at(lambda x: (x.inputs, x.targets), data, (inputs, targets))


def _limit(found: Any) -> Answer:
    numbers = found.flow_direction
    return Answer(jnp.stack([found.outcome.value, found.kind.value]), numbers.ravel(), found.kind != "none")


def _found(data: Any, model: Any, loss: Any = "logistic") -> Answer:
    return _limit(jf.find_limit(jf.EmpiricalRisk(data, loss), model, throw=False))


def _drawn(key: Any) -> Any:
    return jf.data.random_tokens(key, N, T, D)


def _tokens(make: Callable[[Any, Any], Any], answer: Any = _found, drawn: Callable[[Any], Any] = _drawn) -> Case:
    """What is asked, `find_limit` by default, of an attention model that `make(key, data)` starts."""

    def draw(key: Any) -> tuple[Any, Any]:
        data, _ = drawn(key)
        return data, make(jax.random.fold_in(key, 1), data)

    return Case(draw, flawed_tokens, answer)


def _linear(make: Callable[[Any, Any], Any], loss: str = "exponential") -> Case:
    """`find_limit` of a linear network that `make(key, data)` starts."""

    def draw(key: Any) -> tuple[Any, Any]:
        keys = jax.random.split(key, 3)
        inputs = jax.random.normal(keys[0], (N, D))
        targets = inputs @ jax.random.normal(keys[1], (D,))
        data = jf.data.LinearData(inputs, targets if loss == "squared" else jnp.sign(targets))
        return data, make(keys[2], data)

    return Case(draw, flawed_inputs, partial(_found, loss=loss))


def _own() -> Case:
    def draw(key: Any) -> tuple[Any, Any]:
        keys = jax.random.split(key, 4)
        inputs = jax.random.normal(keys[0], (N + 1, 2))
        data = jf.data.LinearData(inputs, jnp.sign(inputs @ jax.random.normal(keys[1], (2,))))
        return data, TwoLayers(jax.random.normal(keys[2], (6, 2)), 0.5 * jax.random.normal(keys[3], (6,)))

    def answer(data: Any, model: Any) -> Answer:
        found = jf.find_limit(jf.EmpiricalRisk(data, "logistic"), model, throw=False, max_steps=4_000)
        unit = jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(found.flow_direction)])
        point = jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(eqx.filter(found.end, eqx.is_array))])
        numbers = jnp.where(found.kind == "point", point, unit)
        return Answer(jnp.stack([found.outcome.value, found.kind.value]), numbers, found.kind != "none")

    return Case(draw, flawed_inputs, answer)


def _layers() -> Case:
    def draw(key: Any) -> tuple[Any, Any]:
        data, head = _drawn(key)
        return data, MultiHeadAttention.init(jax.random.fold_in(key, 1), data, [jnp.ones(D), head])

    def answer(data: Any, model: Any) -> Answer:
        found = [_limit(limit) for limit in find_limits(jf.EmpiricalRisk(data, "logistic"), model, throw=False)]
        outcome, numbers, decided = (jnp.stack(parts) for parts in zip(*found, strict=True))
        return Answer(outcome.ravel(), numbers.ravel(), jnp.all(decided))

    return Case(draw, flawed_tokens, answer)


def _program(norm: str) -> Case:
    def answer(data: Any, chosen: Any) -> Answer:
        selection = jax.nn.one_hot(chosen, T, dtype=bool)
        found = jf.margin.solve(jf.margin.attention_svm(data, selection, norm))
        # Roundings put a gap near the tolerance on either side of it: 1.08e-10 and 3.9e-11, of one program.
        inaccurate = found.result == ProgramResult.inaccurate
        ended = jnp.where(inaccurate, ProgramResult.optimal.value, found.result.value)
        solved = (ended == ProgramResult.optimal.value) & (jnp.abs(found.certificate.duality_gap) <= SOLVED)
        return Answer(ended[None], found.primal.ravel(), solved)

    return _tokens(lambda key, data: jax.random.randint(key, (N,), 0, T), answer)


def _path(follow: Callable[[Any, Any], Any]) -> Case:
    def answer(data: Any, model: Any) -> Answer:
        path = follow(jf.EmpiricalRisk(data, "logistic"), model)
        return Answer(
            jnp.stack(jax.tree.leaves(path.result)), path.final.model.W.ravel(), jf.RESULTS.successful == path.result
        )

    return _tokens(_attention(jf.models.CombinedAttention), answer)


def _attention(kind: Any, head: Any = None) -> Callable[[Any, Any], Any]:
    return lambda key, data: kind.init(key, data, jnp.ones(D) if head is None else head)


def _network(kind: Any, **how: Any) -> Callable[[Any, Any], Any]:
    return lambda key, data: kind.init(key, data, scheme="random", **how)


CASES: dict[str, Case] = {
    "W": _tokens(_attention(jf.models.CombinedAttention)),
    "K, Q": _tokens(_attention(jf.models.FactoredAttention)),
    "diagonal attention": _tokens(_attention(jf.models.DiagonalAttention)),
    "ReLU head": _tokens(_attention(jf.models.CombinedAttention, jf.models.MLPHead(np.eye(D) + 0.1))),
    "concave head": _tokens(_attention(jf.models.CombinedAttention, jf.models.ConcaveHead(jnp.ones(D), 0.3))),
    "sequences": _tokens(
        _attention(jf.models.CombinedAttention), drawn=lambda key: random_sequences(key, 2, 3, D, causal=True)
    ),
    "layers in parallel": _layers(),
    "diagonal network, 2 layers": _linear(_network(jf.models.DiagonalLinearNetwork)),
    "diagonal network, 3 layers": _linear(_network(jf.models.DiagonalLinearNetwork, depth=3)),
    "convolutional network, 3 layers": _linear(_network(jf.models.LinearConvolutionalNetwork, depth=3)),
    "fully connected network": _linear(_network(jf.models.DeepLinearNetwork)),
    "regression, diagonal network": _linear(_network(jf.models.DiagonalLinearNetwork), "squared"),
    "a model of one's own": _own(),
    "program, Frobenius norm": _program("frobenius"),
    "program, nuclear norm": _program("nuclear"),
    "program, l1 norm": _program("l1"),
    "integrate": _path(
        lambda risk, model: jf.integrate(risk, model, clock="log_time", until=5.0, max_steps=2000, throw=False)
    ),
    "descend": _path(lambda risk, model: jf.descend(risk, model, steps=200, throw=False)),
}


def compare(batch: Answer, alone: list[Answer]) -> tuple[list[int], int, float]:
    """The answers of a batch beside those of single calls: lanes whose outcomes differ; how many found something, in
    the batch; the largest difference of their numbers, relative to the largest of a lane."""
    differing, apart, decided = [], 0.0, 0
    for k, one in enumerate(alone):
        whole, one = (Answer(*map(np.asarray, answer)) for answer in (jax.tree.map(lambda x, k=k: x[k], batch), one))
        if not np.array_equal(whole.outcome, one.outcome):
            differing.append(k)
        elif whole.decided:
            decided += 1
            size = float(np.max(np.abs(one.numbers))) or 1.0
            apart = max(apart, float(np.max(np.abs(whole.numbers - one.numbers))) / size)
    return differing, decided, apart


def row(name: str, count: int) -> dict[str, Any]:
    """Times and differences of one case."""
    case = CASES[name]
    instances = lanes(case, count)
    batch = stacked(instances)
    whole = jax.jit(jax.vmap(case.answer), compiler_options=quick_options()).lower(*batch).compile()
    single = jax.jit(case.answer, compiler_options=quick_options()).lower(*instances[0]).compile()
    found, together = best(lambda: whole(*batch), 3, 2.0)
    alone, times = zip(*(best(lambda one=one: single(*one), 3, 2.0) for one in instances), strict=True)
    apart = [seconds.wall for seconds in times]
    differing, decided, largest = compare(found, list(alone))
    return {
        "case": name,
        "lanes": count,
        "decided": decided,
        "outcomes differ": len(differing),
        "largest difference": largest,
        "batch_s": together.wall,
        "ratio_to_singles": together.wall / sum(apart),
        "ratio_to_slowest": together.wall / (count * max(apart)),
    }


if __name__ == "__main__":
    asked, record = begun(__doc__, "batches", same=("case",), cached=True, lanes=64, only=tuple(CASES))
    jf.compilation_cache()
    for name in asked.only:
        record.add(row(name, asked.lanes))
    if any(found["outcomes differ"] for found in record.content["rows"] if found["case"] in asked.only):
        raise SystemExit("outcomes of a batch differ from those of single calls")

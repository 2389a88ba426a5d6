"""The engine of studies against what one would write instead: python benchmarks/studies.py.

One ensemble (n = T = 5, d = 4, score gap 0.1), one run, four ways: the block of `TokenSelection` (a queue of
lanes, every outcome with its certified program), the same with scouts in single precision, plain `vmap` of
`diffeqsolve` with the same stopping rule, and `vmap` of 2,000 steps of normalised gradient descent. Only ratios within
the run should be compared. Counted are instances that end at other tokens, or with another outcome, than the first way
has. Last the same draws by an experiment of one's own, which has `setup` and `summarize` alone: the two are timed in
turns, and the shortest times compared.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import diffrax
import jax
import numpy as np
from _common import Row, Seconds, begun, best, clocked, outcomes

import jaxflow as jf
from jaxflow.flow.solvers import state_norm
from jaxflow.limits import conclude
from jaxflow.limits.stages import STATIONARY
from jaxflow.study import AbstractExperiment, TokenSelection

SHAPE = {"n": 5, "T": 5, "d": 4}


class Own(AbstractExperiment):
    """A distribution of one's own, which draws what `TokenSelection` draws."""

    def setup(
        self, key: Any, n: int = 5, T: int = 5, d: int = 4, parametrization: str = "W"
    ) -> tuple[jf.EmpiricalRisk, Any]:
        return TokenSelection().setup(key, n=n, T=T, d=d, parametrization=parametrization)

    def summarize(self, limit: jf.limits.Limit) -> Row:
        return TokenSelection().summarize(limit)


def plain(experiment: TokenSelection, factors: Row, key: Any) -> Row:
    """`diffeqsolve` to where the scout would stop, and the program; to be vmapped."""
    risk, model = experiment.setup(key, **factors)
    combined = isinstance(model, jf.models.CombinedAttention)
    trajectory = jf.integrate(
        risk,
        model,
        clock=jf.ArcLength(floor=0.03),
        until=1e3 if combined else 30.0,
        coordinates="scores" if combined else "weights",
        solver="tsit5",
        controller=diffrax.PIDController(rtol=experiment.rtol, atol=1e-2 * experiment.rtol, norm=state_norm),
        stop=jf.StationaryPoint(STATIONARY) | jf.SelectionSettled(5e-7, pull=1e-5),
        max_steps=20_000,
        throw=False,
    )
    return experiment.summarize(conclude(risk, model, trajectory, experiment.gap))


def descent(experiment: TokenSelection, factors: Row, key: Any) -> Row:
    """What is usually run: 2,000 normalised steps, then the program of the selected tokens; to be vmapped."""
    risk, model = experiment.setup(key, **factors)
    end = jf.descend(risk, model, steps=2000, normalised="jointly", throw=False)
    return experiment.summarize(conclude(risk, model, end, experiment.gap))


def row(parametrization: str, way: str, found: Row, known: Row, first: Seconds, later: Seconds) -> Row:
    """What a way has found, beside the tokens and outcomes that are known, and how long it took."""
    count = len(found["token"])
    return {
        "parametrization": parametrization,
        **SHAPE,
        "way": way,
        "instances": count,
        "other_tokens": int(np.sum(np.any(np.asarray(found["token"] != known["token"]), axis=-1))),
        "other_outcomes": int(np.sum(np.asarray(found["outcome"] != known["outcome"]))),
        "outcomes": outcomes(found["outcome"]),
        "first_run_s": first.wall,
        "instances_per_s": count / later.wall,
    }


def rows(parametrization: str, count: int, repeats: int) -> Iterator[Row]:
    """One row for each method."""
    experiment, factors = TokenSelection(), {**SHAPE, "parametrization": parametrization}
    keys = jax.random.split(jax.random.key(0), count)
    ways = {
        "engine": experiment.block_function(factors, count),
        "engine, single scouts": TokenSelection(scout="single").block_function(factors, count),
        "vmap(diffeqsolve)": jax.jit(jax.vmap(partial(plain, experiment, factors))),
        "vmap(normalised GD)": jax.jit(jax.vmap(partial(descent, experiment, factors))),
    }
    engine: Any = None
    for way, run in ways.items():
        found, first = clocked(run, keys)
        _, later = best(partial(run, keys), repeats, np.inf)
        engine = engine or (found, later)
        time_over = {"time_over_engine": later.wall / engine[1].wall}
        yield row(parametrization, way, found, engine[0], first, later) | time_over


def own_row(parametrization: str, count: int, repeats: int) -> Row:
    """An experiment of one's own beside the built-in one, after both were compiled."""
    factors = {**SHAPE, "parametrization": parametrization}
    keys = jax.random.split(jax.random.key(1), count)
    blocks = {way: each.block_function(factors, count) for way, each in (("ours", TokenSelection()), ("own", Own()))}
    first = {way: clocked(run, keys) for way, run in blocks.items()}
    later = [{way: clocked(run, keys)[1] for way, run in blocks.items()} for _ in range(repeats)]
    ours, own = (min(seconds[way] for seconds in later) for way in blocks)
    found = row(parametrization, "own distribution", first["own"][0], first["ours"][0], first["own"][1], own)
    return found | {"time_over_built_in": own.wall / ours.wall}


if __name__ == "__main__":
    asked, record = begun(
        __doc__, "studies", same=("parametrization", "way"), count=500, own=2000, repeats=3, only=("ways", "own")
    )
    for parametrization in ("W", "KQ"):
        if "ways" in asked.only:
            for found in rows(parametrization, asked.count, asked.repeats):
                record.add(found)
        if "own" in asked.only:
            place = record.content["environment"]
            record.add(own_row(parametrization, asked.own, asked.repeats), own_environment=place)

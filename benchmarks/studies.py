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
from _common import begun, best, clocked, outcomes

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

    def summarize(self, limit: jf.limits.Limit) -> dict[str, Any]:
        return TokenSelection().summarize(limit)


def plain(experiment: TokenSelection, factors: dict[str, Any], key: Any) -> dict[str, Any]:
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


def descent(experiment: TokenSelection, factors: dict[str, Any], key: Any) -> dict[str, Any]:
    """What is usually run: 2,000 normalised steps, then the program of the selected tokens; to be vmapped."""
    risk, model = experiment.setup(key, **factors)
    end = jf.descend(risk, model, steps=2000, normalised="jointly", throw=False)
    return experiment.summarize(conclude(risk, model, end, experiment.gap))


def rows(parametrization: str, count: int, repeats: int) -> Iterator[dict[str, Any]]:
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
        table = {name: np.asarray(value) for name, value in found.items()}
        engine = engine or (table, later)
        yield {
            "parametrization": parametrization,
            **SHAPE,
            "way": way,
            "instances": count,
            "other_tokens": int(np.sum(np.any(table["token"] != engine[0]["token"], axis=-1))),
            "other_outcomes": int(np.sum(table["outcome"] != engine[0]["outcome"])),
            "outcomes": outcomes(table["outcome"]),
            "first_run_s": first.wall,
            "instances_per_s": count / later.wall,
            "time_over_engine": later.wall / engine[1].wall,
        }


def own_row(parametrization: str, count: int, repeats: int) -> dict[str, Any]:
    """An experiment of one's own beside the built-in one, after both were compiled."""
    factors = {**SHAPE, "parametrization": parametrization}
    keys = jax.random.split(jax.random.key(1), count)
    blocks = {way: each.block_function(factors, count) for way, each in (("ours", TokenSelection()), ("own", Own()))}
    tables, spent, first = {}, dict.fromkeys(blocks, np.inf), {}
    for _ in range(1 + repeats):
        for way, run in blocks.items():
            found, seconds = clocked(run, keys)
            tables[way] = {name: np.asarray(value) for name, value in found.items()}
            if way in first:
                spent[way] = min(spent[way], seconds.wall)
            first.setdefault(way, seconds.wall)
    ours, own = tables["ours"], tables["own"]
    return {
        "parametrization": parametrization,
        **SHAPE,
        "way": "own distribution",
        "instances": count,
        "other_tokens": int(np.sum(np.any(own["token"] != ours["token"], axis=-1))),
        "other_outcomes": int(np.sum(own["outcome"] != ours["outcome"])),
        "outcomes": outcomes(own["outcome"]),
        "first_run_s": first["own"],
        "instances_per_s": count / spent["own"],
        "time_over_built_in": spent["own"] / spent["ours"],
    }


if __name__ == "__main__":
    asked, record = begun(
        __doc__, "studies", same=("parametrization", "way"), count=500, own=2000, repeats=3, only=("ways", "own")
    )
    for parametrization in ("W", "KQ"):
        if "ways" in asked.only:
            for row in rows(parametrization, asked.count, asked.repeats):
                record.add(row)
        if "own" in asked.only:
            record.add(
                own_row(parametrization, asked.own, asked.repeats), own_environment=record.content["environment"]
            )

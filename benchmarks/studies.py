"""The engine of studies against what one would write instead: python benchmarks/studies.py.

One ensemble (n = T = 5, d = 4, score gap 0.1), one run, four ways: the block of `TokenSelection` (a queue of
lanes, every outcome with its certified program), the same with scouts in single precision, plain `vmap` of
`diffeqsolve` with the same stopping rule, and `vmap` of 2,000 steps of normalised gradient descent. Only ratios within
the run should be compared. Counted are instances that end at other tokens, or with another outcome, than the first way
has.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import diffrax
import jax
import numpy as np
from _common import Record, best, clocked, outcomes, settings, spread

import jaxflow as jf
from jaxflow.flow.solvers import state_norm
from jaxflow.limits import conclude
from jaxflow.limits.stages import STATIONARY
from jaxflow.study import TokenSelection

SHAPE = {"n": 5, "T": 5, "d": 4}


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
        directions = np.isin(table["outcome"], [1, 2, 3])
        yield {
            "parametrization": parametrization,
            **SHAPE,
            "way": way,
            "instances": count,
            "other_tokens": int(np.sum(np.any(table["token"] != engine[0]["token"], axis=-1))),
            "other_outcomes": int(np.sum(table["outcome"] != engine[0]["outcome"])),
            "outcomes": outcomes(table["outcome"]),
            "flow_one_minus_corr": spread(table["one_minus_corr"][directions]),
            "program_gap": spread(table["program_gap"][directions]),
            "steps": spread(table["num_steps"]),
            "first_run_s": first.wall,
            "run_s": later.wall,
            "instances_per_s": count / later.wall,
            "time_over_engine": later.wall / engine[1].wall,
        }


def main() -> None:
    asked = settings(__doc__, "studies", count=500, repeats=3)
    record = Record(asked.out)
    for parametrization in ("W", "KQ"):
        for row in rows(parametrization, asked.count, asked.repeats):
            record.add(row)


if __name__ == "__main__":
    main()

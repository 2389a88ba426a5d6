"""The engine of studies against what one would write instead: python benchmarks/studies.py.

One ensemble (n = T = 5, d = 4, score gap 0.1), one run, four ways: the block of `TokenSelection` (a queue of
lanes, every outcome with its certified program), the same with scouts in single precision, plain `vmap` of
`diffeqsolve` with the same stopping rule, and `vmap` of 2,000 steps of normalised gradient descent. Only ratios within
the run should be compared. Counted are instances that end at other tokens, or with another outcome, than the first way
has.
"""

import argparse
from functools import partial
from pathlib import Path
from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
from _common import RESULTS, configure, counts, environment, print_table, spread, timed, write

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


def rows(count: int, repeats: int) -> list[dict[str, Any]]:
    """A row for every parametrisation and way."""
    experiment, out = TokenSelection(), []
    keys = jax.random.split(jax.random.key(0), count)
    for parametrization in ("W", "KQ"):
        factors = {**SHAPE, "parametrization": parametrization}
        block = experiment.block_function(factors, count)
        ways = {
            "engine": block,
            "engine, single scouts": TokenSelection(scout="single").block_function(factors, count),
            "vmap(diffeqsolve)": jax.jit(jax.vmap(partial(plain, experiment, factors))),
            "vmap(normalised GD)": jax.jit(jax.vmap(partial(descent, experiment, factors))),
        }
        seconds: dict[str, float] = {}
        first_way: dict[str, np.ndarray] = {}
        for way, run in ways.items():
            found, first, later = timed(lambda: {k: jnp.asarray(np.asarray(v)) for k, v in run(keys).items()}, repeats)  # noqa: B023
            table = {name: np.asarray(value) for name, value in found.items()}
            seconds[way] = later
            first_way = first_way or table
            directions = np.isin(table["outcome"], [1, 2, 3])
            out.append(
                {
                    "parametrization": parametrization,
                    **SHAPE,
                    "way": way,
                    "instances": count,
                    "other_tokens": int(np.sum(np.any(table["token"] != first_way["token"], axis=-1))),
                    "other_outcomes": int(np.sum(table["outcome"] != first_way["outcome"])),
                    "outcomes": counts([jf.Outcome(int(code)).name for code in table["outcome"]]),
                    "flow_one_minus_corr": spread(table["one_minus_corr"][directions]),
                    "program_gap": spread(table["program_gap"][directions]),
                    "steps": spread(table["num_steps"]),
                    "first_run_s": first,
                    "run_s": later,
                    "instances_per_s": count / later,
                    "time_over_engine": later / seconds["engine"],
                }
            )
    return out


def show(table: list[dict[str, Any]]) -> None:
    print_table(
        "Studies: a block of instances, four ways",
        ["param", "way", "run s", "per s", "x engine", "1-corr (flow)", "program gap", "steps", "outcomes"],
        [
            [
                *(row["parametrization"], row["way"], row["run_s"], row["instances_per_s"], row["time_over_engine"]),
                *(row["flow_one_minus_corr"]["median"], row["program_gap"]["max"], row["steps"]["median"]),
                ", ".join(f"{number} {name}" for name, number in row["outcomes"].items()),
            ]
            for row in table
        ],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS / "studies.json")
    arguments = parser.parse_args()
    configure()
    table = rows(arguments.count, arguments.repeats)
    write(arguments.out, {"environment": environment(), "studies": table})
    show(table)


if __name__ == "__main__":
    main()

"""Own duality gaps of quadratic models, instance by instance: python benchmarks/own_gaps.py --count 100.

Attention with diagonal weights and linear networks of two layers, each followed by `find_limit` until the flow's own
multipliers and direction certify it. Beside that the gap at which the program's own solver ends. One table, written to
results/own_gaps.json after each row.
"""

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np
from _common import RESULTS, configure, counts, environment, print_table, spread, write

import jaxflow as jf
from jaxflow.limits.rate import off_support
from jaxflow.models import DeepLinearNetwork, DiagonalAttention, DiagonalLinearNetwork, LinearConvolutionalNetwork

# Model, size, the gap that the flow is asked for, and in how many of a hundred instances it is to be reached. (Some
# flows of attention end at finite stationary points and have no direction: `outcomes` counts them.)
CASES: list[tuple[str, tuple[int, ...], float, int]] = [
    ("diagonal attention", (6, 8, 10), 1e-10, 95),
    ("diagonal attention", (5, 5, 4), 1e-10, 95),
    ("diagonal", (5, 20), 1e-10, 95),
    ("fully connected", (5, 8), 1e-10, 95),
    ("convolutional", (5, 8), 1e-8, 90),
]
NETWORKS: dict[str, Any] = {
    "diagonal": DiagonalLinearNetwork,
    "fully connected": DeepLinearNetwork,
    "convolutional": LinearConvolutionalNetwork,
}
# ρ at which exponents stop to grow. Margins of diagonal attention are a hundredth of ρ^2 here, and exponents of 1e12
# are what the floor of the certificate, a few over the exponents, is asked to be below.
ATTENTION_CAP = 1e7
ALPHA = 0.5


def instance(key: jax.Array, name: str, size: tuple[int, ...]) -> tuple[Any, Any]:
    """Data and a start: attention as published; normal inputs with random labels, and layers of size α."""
    data_key, start_key = jax.random.split(key)
    if name == "diagonal attention":
        data, head = jf.data.random_tokens(data_key, *size)
        return jf.EmpiricalRisk(data, jf.losses.Logistic()), DiagonalAttention.init(start_key, data, head)
    input_key, label_key = jax.random.split(data_key)
    labels = jax.random.rademacher(label_key, size[:1]).astype(float)
    data = jf.data.LinearData(jax.random.normal(input_key, size), labels)
    return jf.EmpiricalRisk(data, jf.losses.Exponential(), reduction="sum"), NETWORKS[name].init(
        start_key, data, alpha=ALPHA
    )


def rows(cases: list[tuple[str, tuple[int, ...], float, int]], count: int) -> Iterator[dict[str, Any]]:
    """One row for every model and size."""
    for name, size, gap, asked in cases:
        make = jax.jit(lambda key: instance(key, name, size))  # noqa: B023
        method = jf.Staged(cap=ATTENTION_CAP) if name == "diagonal attention" else jf.LinearStaged()
        slack_of = eqx.filter_jit(lambda limit: 1.0 - off_support(limit.prediction.program, limit.program_solution))
        found: dict[str, list[Any]] = {}
        for i, key in enumerate(jax.random.split(jax.random.key(0), count)):
            risk, model = make(key)
            start = time.perf_counter()
            limit = jf.find_limit(risk, model, method=method, gap=gap, throw=False)
            jax.block_until_ready(eqx.filter(limit, eqx.is_array))
            seconds = time.perf_counter() - start
            if i == 0:
                compiled = seconds
                start = time.perf_counter()
                again = jf.find_limit(risk, model, method=method, gap=gap, throw=False)
                jax.block_until_ready(eqx.filter(again, eqx.is_array))
                seconds = time.perf_counter() - start
            path = limit.trajectory
            for column, value in {
                "own_gap": float(limit.flow_certificate.duality_gap),
                "program_gap": float(limit.program_solution.certificate.duality_gap),
                "slack": float(slack_of(limit)),
                "steps": int(path.stats["num_steps"]),
                "failed_solves": int(path.stats["num_failed_solves"]),
                "log_arc_length": float(path.final.log_arc_length),
                "log_log_time": float(path.final.log_log_time),
                "seconds": seconds,
                "outcome": jf.Outcome(int(limit.outcome)).name,
                "result": jf.RESULTS[path.result] or "successful",
            }.items():
                found.setdefault(column, []).append(value)
        own = np.asarray(found["own_gap"])
        numbers = ("own_gap", "program_gap", "slack", "steps", "failed_solves", "log_arc_length", "seconds")
        yield {
            "model": name,
            "size": list(size),
            "instances": count,
            "gap": gap,
            "reached": int(np.sum(own <= gap)),
            "asked_of_100": asked,
            "within": {f"{bound:.0e}": int(np.sum(own <= bound)) for bound in (1e-3, 1e-8, 1e-10)},
            **{column: spread(found[column]) for column in numbers},
            "first_run_s": compiled,  # pyright: ignore[reportPossiblyUnboundVariable]
            "outcomes": counts(found["outcome"]),
            "missed": [
                {"instance": int(i), **{column: values[i] for column, values in found.items()}}
                for i in np.flatnonzero(~(own <= gap))
            ],
        }


def show(table: list[dict[str, Any]]) -> None:
    print_table(
        "Own gaps (median, largest), steps, failed solves, ms an instance (median, worst), gap of the program's solver",
        [
            *("model", "size", "gap", "reached", "own gap", "max", "program", "max", "steps", "max"),
            *("failed", "max", "ms", "worst", "first s", "outcomes"),
        ],
        [
            [
                *(row["model"], ",".join(map(str, row["size"])), row["gap"], f"{row['reached']}/{row['instances']}"),
                *(row["own_gap"]["median"], row["own_gap"]["max"]),
                *(row["program_gap"]["median"], row["program_gap"]["max"]),
                *(row["steps"]["median"], row["steps"]["max"]),
                *(row["failed_solves"]["median"], row["failed_solves"]["max"]),
                *(1e3 * row["seconds"]["median"], 1e3 * row["seconds"]["max"], row["first_run_s"]),
                ", ".join(f"{count} {name}" for name, count in row["outcomes"].items()),
            ]
            for row in table
        ],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=100, help="instances of each model")
    parser.add_argument("--only", choices=sorted({case[0] for case in CASES}), help="one of the models")
    parser.add_argument("--out", type=Path, default=RESULTS / "own_gaps.json")
    arguments = parser.parse_args()
    configure()
    started = time.perf_counter()
    content: dict[str, Any] = {"environment": environment(), "rows": []}
    for row in rows([case for case in CASES if arguments.only in (None, case[0])], arguments.count):
        content["rows"].append(row)
        content["seconds"] = time.perf_counter() - started
        write(arguments.out, content)  # after each row: a long run that is interrupted keeps what it has
    show(content["rows"])
    print(f"\n{arguments.out}, {content['seconds']:.0f} s")


if __name__ == "__main__":
    main()

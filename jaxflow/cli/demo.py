"""`jaxflow demo`: a dozen instances of each parametrisation to their certified limits."""

import time
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Key
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress
from rich.table import Table

from jaxflow._core import Outcome
from jaxflow.data import random_tokens
from jaxflow.limits import Limit, find_limit
from jaxflow.losses import Logistic
from jaxflow.models import CombinedAttention, DiagonalAttention, FactoredAttention
from jaxflow.papers.compiling import compile_together
from jaxflow.plots import draw_limits, save_figure
from jaxflow.report import manifest, refuse_existing, write_json
from jaxflow.risk import EmpiricalRisk

# What is certified: the direction of the flow itself.
CERTIFIED = (Outcome.globally_optimal, Outcome.locally_optimal, Outcome.not_locally_optimal)

SEED = 0

# Name in files, model, how the table calls it, and the program its limit solves.
PARAMETRISATIONS: tuple[tuple[str, Any, str, str], ...] = (
    ("combined", CombinedAttention, "W", "Frobenius norm"),
    ("factored", FactoredAttention, "K Q^T", "nuclear norm"),
    ("diagonal", DiagonalAttention, "diag(k q)", "l1 norm"),
)


def limit_of(model: Any, shape: tuple[int, int, int], key: Key[Array, ""]) -> Limit:
    """One random instance and its limit. The three parametrisations see the same data."""
    key_data, key_model = jax.random.split(key)
    data, head = random_tokens(key_data, *shape)
    return find_limit(EmpiricalRisk(data, Logistic()), model.init(key_model, data, head), throw=False)


def plan_demo(out: Path, overwrite: bool) -> dict[str, Path]:
    """The files that the demo writes. **Raises:** `FileExistsError` where one exists, unless `overwrite`."""
    paths = {name: out / f"demo.{name}" for name in ("npz", "png", "svg")} | {"manifest": out / "demo-manifest.json"}
    refuse_existing(paths.values(), overwrite)
    return paths


def run_demo(paths: dict[str, Path], console: Console) -> dict[str, np.ndarray]:
    """Limits, a table, a sentence and a figure drawn from the saved numbers, which are returned."""
    started, trials, shape = time.monotonic(), 12, (5, 5, 5)
    limits = find_limits(trials, shape, console)
    paths["npz"].parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(paths["npz"], **saved_numbers(limits))  # pyright: ignore[reportArgumentType]
    with np.load(paths["npz"], allow_pickle=False) as archive:
        data = {name: archive[name] for name in archive.files}
    save_figure(draw_limits(data), paths["png"], paths["svg"])
    seconds = time.monotonic() - started
    arguments = {"command": "demo", "trials": trials, "shape": list(shape)}
    write_json(paths["manifest"], manifest(arguments=arguments, seed=SEED, seconds=seconds))
    console.print(table_of(data))
    console.print("\nOne of them, in words (print(limit)):\n", markup=False)
    console.print(str(limits["combined"][0]), markup=False, style="bold")
    console.print(f"\n{seconds:.0f} s. Wrote {', '.join(str(path) for path in paths.values())}", markup=False)
    return data


def find_limits(trials: int, shape: tuple[int, int, int], console: Console) -> dict[str, list[Limit]]:
    """`trials` limits of each parametrisation.

    Instance by instance rather than under `vmap`: for so few, a mapped program takes longer to compile than
    all of them take to run.
    """
    keys = list(jax.random.split(jax.random.key(SEED), trials))
    with Progress(*Progress.get_default_columns(), MofNCompleteColumn(), console=console) as progress:
        compiling = progress.add_task("compiling, once (kept for the next run)", total=len(PARAMETRISATIONS))
        jobs = {name: (partial(limit_of, model, shape), (keys[0],)) for name, model, _, _ in PARAMETRISATIONS}
        titles = {name: f"{called}: following the flow, {norm}" for name, _, called, norm in PARAMETRISATIONS}
        limits: dict[str, list[Limit]] = {name: [] for name in titles}
        for name, function in compile_together(jobs, fast=True):
            progress.advance(compiling)
            task = progress.add_task(titles[name], total=trials)
            for key in keys:
                limits[name].append(jax.block_until_ready(function(key)))
                progress.advance(task)
    return limits


def saved_numbers(limits: dict[str, list[Limit]]) -> dict[str, np.ndarray]:
    """What table and figure are made of; the instance is the first axis of every array."""
    data: dict[str, np.ndarray] = {}
    for name, found in limits.items():
        columns = {
            "outcome": [int(limit.outcome) for limit in found],
            "certified": [int(limit.outcome) in CERTIFIED for limit in found],
            "log_times": [np.asarray(limit.rate.log_times) for limit in found],
            "gaps": [np.asarray(limit.rate.gaps) for limit in found],
            "log_log_time": [float(limit.trajectory.final.log_log_time) for limit in found],
            "excess": [float(limit.excess) for limit in found],
            "flow_gap": [float(limit.flow_certificate.duality_gap) for limit in found],
            "program_gap": [float(limit.program_solution.certificate.duality_gap) for limit in found],
        }
        data |= {f"{name}_{column}": np.asarray(values) for column, values in columns.items()}
    return data


def table_of(data: dict[str, np.ndarray]) -> Table:
    """A row for each parametrisation: outcomes counted, excess and gaps, how far it was followed."""
    table = Table(title="Limits of gradient flow", show_lines=True)
    for column in ("trained", "least", "outcomes", "excess", "flow's own gap", "program's gap", "log log t reached"):
        table.add_column(column, no_wrap=column == "outcomes")
    for name, _, called, norm in PARAMETRISATIONS:
        outcomes = data[f"{name}_outcome"]
        codes, counts = np.unique(outcomes, return_counts=True)
        counted = [
            f"{count} {Outcome(int(code)).name.replace('_', ' ')}" for code, count in zip(codes, counts, strict=True)
        ]
        kept = np.isfinite(data[f"{name}_excess"])
        table.add_row(
            called,
            norm,
            "\n".join([*counted, f"of {len(outcomes)}"]),
            _spread(data[f"{name}_excess"][kept]),
            _spread(data[f"{name}_flow_gap"][kept]),
            _spread(data[f"{name}_program_gap"][kept]),
            f"{np.median(data[f'{name}_log_log_time']):.3g}",
        )
    table.caption = (
        "excess of the flow's direction over the program's optimum, and gaps: median, and largest in brackets, of the "
        "instances whose attention has settled"
    )
    return table


def numbers_of(data: dict[str, np.ndarray]) -> list[dict[str, Any]]:
    """The rows of the table as numbers: every instance's outcome, excess and gaps."""
    return [
        {
            "trained": called,
            "least": norm,
            "outcomes": [Outcome(int(code)).name for code in data[f"{name}_outcome"]],
            **{column: data[f"{name}_{column}"].tolist() for column in ("excess", "flow_gap", "program_gap")},
            "log_log_time": data[f"{name}_log_log_time"].tolist(),
        }
        for name, _, called, norm in PARAMETRISATIONS
    ]


def _spread(gaps: np.ndarray) -> str:
    return f"{np.median(gaps):.0e} ({np.max(gaps):.0e})" if gaps.size else "-"

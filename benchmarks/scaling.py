"""How the cost of an instance depends on batch, d, n·T, accuracy, α and workers, and what a device would do:

    python benchmarks/scaling.py [--scale 1.0] [--only batches dimensions ...] [--out results/scaling.json]

Each row of `batches` runs in a process of its own: memory is what that process held at most, above what it held once
everything was imported. So does each row of `workers`: a study by one and more workers of one core each, its rate from
the difference of a long and a short run. `iterations` counts how often a device steps its pool of lanes, which a CPU
can count as well as an accelerator.
"""

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from _common import Row, clocked, counts, environment, settings, write
from blocks import many

import jaxflow as jf
from jaxflow.flow.queue import counted_queue
from jaxflow.limits.attention import Gear
from jaxflow.limits.many import begun_paths, turned
from jaxflow.limits.path import Start
from jaxflow.limits.reduction import reduced
from jaxflow.papers.boix2023.product_paths import follow_products
from jaxflow.study import TokenSelection
from jaxflow.study.queues import Gears
from jaxflow.study.shapes import ACCELERATOR, CPU
from jaxflow.theory import rule_of

SHAPE = {"n": 5, "T": 5, "d": 4}
PARAMETRIZATIONS = ("W", "KQ")
SEED = 7


def peak() -> float:
    """MiB that this process held at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def batch_row(parametrization: str, batch: int) -> Row:
    """All outcomes of `batch` instances, in blocks of the default size."""
    held = peak()
    found = many(f"{parametrization}:5,5,4", batch, min(batch, CPU.block), SEED)
    return {
        "parametrization": parametrization,
        "batch": batch,
        "first_run_s": found["first_block_s"],
        "ms_an_instance": 1e3 * found["seconds"] / batch,
        "memory_MiB": peak() - held,
        "outcomes": found["outcomes"],
    }


def batches(scale: float) -> Iterable[Row]:
    """Batches from one to a hundred thousand."""
    sizes = [b for b in (1, 16, 256, 4096, 100_000) if b <= max(16, 100_000 * scale)]
    return [_elsewhere("batch", p, b) for p in PARAMETRIZATIONS for b in sizes if p == "W" or b <= 4096]


def find_row(n: int, T: int, d: int, parametrization: str, count: int) -> Row:
    """`find_limit` one instance after the other: median seconds with and without the reduction to the span."""
    kind = {"W": jf.models.CombinedAttention, "KQ": jf.models.FactoredAttention}[parametrization]

    def draw(key: Any) -> tuple[Any, Any]:
        # Scores of unit tokens are of the size 1/√d: a gap of 0.1 between them is not to be had at d = 10,000.
        data, head = jf.data.random_tokens(key, n, T, d, score_gap=min(0.1, d**-0.5))
        return jf.EmpiricalRisk(data, jf.losses.Logistic()), kind.init(jax.random.fold_in(key, 1), data, head)

    find = eqx.filter_jit(partial(jf.find_limit, throw=False))

    @eqx.filter_jit
    def reduce(risk: Any, model: Any) -> Any:
        found = reduced(risk, model, rule_of(model))
        return (risk, model) if found is None else (found.risk, found.model)

    drawn, whole, after, outcomes = eqx.filter_jit(draw), [], [], []
    for i in range(count + 1):
        # A hundred million numbers by the default generator take minutes on a core.
        root = jax.random.key(SEED, impl="rbg" if d >= 10_000 else None)
        given = jax.block_until_ready(drawn(jax.random.fold_in(root, i)))
        limit, spent = clocked(find, *given)
        small = jax.block_until_ready(reduce(*given))
        _, spent_small = clocked(find, *small)
        if i:  # the first one compiles
            whole.append(spent.wall)
            after.append(spent_small.wall)
            outcomes.append(str(limit.outcome))
        del limit, given, small
    return {
        "parametrization": parametrization,
        "n_T_d": [n, T, d],
        "instances": count,
        "seconds": statistics.median(whole),
        "seconds_after_the_reduction": statistics.median(after),
        "outcomes": counts(outcomes),
    }


def dimensions(scale: float) -> Iterable[Row]:
    """d at n = T = 5. A matrix of 10,000 x 10,000 takes 800 MB, and a limit holds some."""
    sizes = [d for d in (10, 100, 1000, 10_000) if d <= max(100, 10_000 * scale)]
    count = max(2, int(10 * scale))
    return [find_row(5, 5, d, p, count if d < 10_000 else 2) for p in PARAMETRIZATIONS for d in sizes]


def tokens(scale: float) -> Iterable[Row]:
    """n·T: the flow of W is followed in n(T - 1) numbers."""
    sizes = [(3, 4), (5, 5), (10, 5), (5, 10), (20, 5), (5, 20), (10, 20)]
    count = max(2, int(10 * scale))
    return [find_row(n, T, 10, p, count) for p in PARAMETRIZATIONS for n, T in sizes[: max(2, int(len(sizes) * scale))]]


def accuracies(scale: float) -> Iterable[Row]:
    """The gap that is asked for: how far the flow goes for it, log log t, and what that costs."""
    count = max(16, int(256 * scale))
    keys = jax.random.split(jax.random.key(SEED), count)
    for parametrization in PARAMETRIZATIONS:
        for gap in (1e-2, 1e-4, 1e-6, 1e-8):
            run = TokenSelection(gap=gap).block_function({**SHAPE, "parametrization": parametrization}, count)
            (_, _), (found, seconds) = clocked(run, keys), clocked(run, keys)
            decided = np.isin(found["outcome"], [jf.Outcome.globally_optimal, jf.Outcome.locally_optimal])
            yield {
                "parametrization": parametrization,
                "gap": gap,
                "instances": count,
                "decided": int(decided.sum()),
                "log_log_time_median": float(np.median(found["log_log_time"][decided])),
                "steps_median": float(np.median(found["num_steps"][decided])),
                "ms_an_instance": 1e3 * seconds.wall / count,
            }


def initial_scales(scale: float) -> Iterable[Row]:
    """Incremental learning by a diagonal network from α, past all of its stages."""
    count = max(2, int(8 * scale))
    key = jax.random.key(SEED)
    data = jf.data.LinearData(jax.random.normal(key, (20, 6)), jax.random.normal(jax.random.fold_in(key, 1), (20,)))
    risk = jf.EmpiricalRisk(data, "squared")
    for log_alpha in (-10.0, -18.4, -100.0, -1000.0, -10_000.0):
        times, steps = [], []
        for i in range(count + 1):
            model = jf.models.HadamardNetwork.init(
                jax.random.fold_in(key, i), jf.models.DiagonalLinear(), p=6, log_scale=log_alpha
            )
            path, spent = clocked(follow_products, risk, model, log_alpha, until=20.0)
            if i:  # the first one compiles
                times.append(spent.wall)
                steps.append(len(path.times))
        yield {"log_alpha": log_alpha, "instances": count, "seconds": statistics.median(times), "steps": max(steps)}


def iterations_row(parametrization: str, count: int, width: int) -> Row:
    """The first explicit stretch, and the first by multipliers, of a block of `count` instances at `width` lanes."""
    experiment = TokenSelection(width=width, parts=1)
    draw = jax.jit(jax.vmap(partial(experiment.in_span, {**SHAPE, "parametrization": parametrization})))
    risks, models = draw(jax.random.split(jax.random.key(SEED), count))

    make: Any = Gears(experiment.gap, experiment.rtol, experiment.far_rtol)
    whole = jnp.asarray(experiment.max_steps)

    @eqx.filter_jit
    def counted(gear: int, ways: Any) -> Any:
        drive = make(*jax.tree.map(lambda x: x[0], (risks, models))).drive(gear, models, whole, jnp.asarray(False))

        def lane(risk: Any, model: Any, way: Any) -> Any:
            begun = Start(risk, way.path.final, way.lost, whole, way.gear != gear)
            return make(risk, model).lane(gear, drive, begun)

        lanes, iterations = counted_queue(drive, eqx.filter_vmap(lane)(risks, models, ways), width=width)
        return lanes.num_steps, iterations

    ways = begun_paths(make, risks, models)
    near_steps, near_iterations = counted(Gear.explicit, ways)
    for gear in (Gear.explicit, Gear.implicit):
        ways = turned(make, gear, jnp.asarray(False), risks, models, ways, whole, width)
    far_steps, far_iterations = counted(Gear.multipliers, ways)
    iterations = int(near_iterations) + int(far_iterations)
    longest = int(np.max(np.asarray(near_steps) + np.asarray(far_steps)))
    return {
        "parametrization": parametrization,
        "width": width,
        "iterations": iterations,
        "longest_instance": longest,
        "iterations_over_longest": iterations / longest,
    }


def iterations(scale: float) -> Iterable[Row]:
    """The default block of an accelerator at its lanes, beside a CPU's."""
    count = max(256, int(ACCELERATOR.block * scale))
    widths = (CPU.lanes, 256, ACCELERATOR.lanes)
    return [iterations_row(p, count, min(w, count)) for p in PARAMETRIZATIONS for w in widths]


def workers_row(executor: str, number: int, blocks: int) -> Row:
    """A study of W by so many host devices, or Dask workers, of one core each. The second run has `blocks` more blocks
    for each worker than the first, which pays for everything that is done once."""
    experiment, seconds = TokenSelection(parts=1), []
    counted = [2 * number * CPU.block, (2 + blocks) * number * CPU.block]
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        where = executor
        if executor == "dask":
            from distributed import LocalCluster

            one_core: Any = {"threads_per_worker": 1, "processes": True, "dashboard_address": None}
            cluster: Any = LocalCluster(n_workers=number, **one_core)
            where = stack.enter_context(cluster).scheduler_address
        for i, trials in enumerate([counted[0], *counted]):  # the first of all compiles
            study = jf.study.Study(experiment, {"d": [SHAPE["d"]]}, {"parametrization": ["W"]}, trials=trials, seed=i)
            start = time.perf_counter()
            study.run(Path(folder) / f"{i}.zarr", executor=where, progress=False)
            seconds.append(time.perf_counter() - start)
    return {
        "executor": executor,
        "workers": number,
        "instances": counted[1],
        "a_second": (counted[1] - counted[0]) / (seconds[2] - seconds[1]),
    }


def workers(scale: float) -> Iterable[Row]:
    """Strong scaling over host devices and over Dask workers, up to the cores of the machine."""
    cores, blocks = os.cpu_count() or 1, max(2, int(16 * scale))
    for executor in ("devices", "dask"):
        alone = None
        for number in [k for k in (1, 2, 4, 8, 16) if k <= cores]:
            row = _elsewhere("workers", executor, number, blocks, devices=number)
            alone = alone or row["a_second"]
            yield row | {"speedup": row["a_second"] / alone}


def _elsewhere(kind: str, *arguments: Any, devices: int = 1) -> Row:
    """A row from a process of its own, with so many host devices."""
    command = [sys.executable, __file__, "--row", kind, *map(str, arguments)]
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}".strip()
    told = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, env={**os.environ, "XLA_FLAGS": flags}
    )
    return json.loads(told.stdout.splitlines()[-1])


ROWS = {"batch": batch_row, "workers": workers_row}
PARTS = {part.__name__: part for part in (batches, dimensions, tokens, accuracies, initial_scales, iterations, workers)}


def main() -> None:
    asked = settings(__doc__, "scaling", scale=1.0, only=tuple(PARTS), row=("",))
    if asked.row != ("",):
        kind, name, *numbers = asked.row
        print(json.dumps(ROWS[kind](name, *map(int, numbers))))
        return
    content = json.loads(asked.out.read_text(encoding="utf-8")) if asked.out.exists() else {}
    for name in asked.only:
        rows, place = [], environment()
        for row in PARTS[name](asked.scale):
            print(name, row, flush=True)
            rows.append(row)
        content[name] = {"environment": place, "rows": rows}
        write(asked.out, content)  # after each part: a long run that is interrupted keeps what it has


if __name__ == "__main__":
    main()

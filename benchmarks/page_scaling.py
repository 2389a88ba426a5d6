"""The section on scaling of the page of benchmarks."""

from collections.abc import Callable
from typing import Any

from _forms import count, ended, markdown, milliseconds, power, results, rounded, section, sizes

# For each part of scaling.py: what stands above its table, and its columns with what they show of a row.
Column = tuple[str, Callable[[dict[str, Any]], Any]]
PARTS: dict[str, tuple[str, tuple[Column, ...]]] = {
    "batches": (
        "A study's batch: all outcomes of so many instances, in the blocks of a CPU. *Memory* is what the process held "
        "at most, less what it held before: a block's and its programs', however many instances there are.",
        (
            ("weights", lambda row: row["parametrization"]),
            ("instances", lambda row: count(row["batch"])),
            ("ms an instance", lambda row: rounded(row["ms_an_instance"])),
            ("memory, MiB", lambda row: count(row["memory_MiB"])),
            ("first run, s", lambda row: rounded(row["first_run_s"])),
            ("outcomes", lambda row: ended(row["outcomes"])),
        ),
    ),
    "dimensions": (
        "`find_limit` at n = T = 5: in d dimensions, and after the reduction to the span.",
        (
            ("weights", lambda row: row["parametrization"]),
            ("n, T, d", sizes),
            ("instances", lambda row: row["instances"]),
            ("ms, median", lambda row: milliseconds(row["seconds"])),
            ("ms after the reduction", lambda row: milliseconds(row["seconds_after_the_reduction"])),
            ("outcomes", lambda row: ended(row["outcomes"])),
        ),
    ),
    "tokens": (
        "`find_limit` at d = 10 by the number of tokens.",
        (
            ("weights", lambda row: row["parametrization"]),
            ("n, T, d", sizes),
            ("n T", lambda row: row["n_T_d"][0] * row["n_T_d"][1]),
            ("ms, median", lambda row: milliseconds(row["seconds"])),
            ("outcomes", lambda row: ended(row["outcomes"])),
        ),
    ),
    "accuracies": (
        "What the flow is followed to for a gap of its own.",
        (
            ("weights", lambda row: row["parametrization"]),
            ("gap asked for", lambda row: power(row["gap"])),
            ("decided", lambda row: f"{row['decided']} of {row['instances']}"),
            ("log log t, median", lambda row: rounded(row["log_log_time_median"])),
            ("steps, median", lambda row: rounded(row["steps_median"])),
            ("ms an instance", lambda row: rounded(row["ms_an_instance"])),
        ),
    ),
    "initial_scales": (
        "Incremental learning past all stages of a diagonal network (p = 6), from α.",
        (
            ("log α", lambda row: rounded(row["log_alpha"])),
            ("instances", lambda row: count(row["instances"])),
            ("ms, median", lambda row: milliseconds(row["seconds"])),
            ("steps, most", lambda row: count(row["steps"])),
        ),
    ),
    "workers": (
        "A study of W by workers of one core each: host devices of one process, and processes of Dask. The rate is of "
        "the instances that a long run has and a short one has not.",
        (
            ("executor", lambda row: row["executor"]),
            ("workers", lambda row: row["workers"]),
            ("instances", lambda row: count(row["instances"])),
            ("a second", lambda row: count(row["a_second"])),
            ("over one worker", lambda row: rounded(row["speedup"])),
        ),
    ),
    "iterations": (
        "How often a device steps its lanes for a block of 4,096 instances, first round. What this takes on an "
        "accelerator has not been measured.",
        (
            ("weights", lambda row: row["parametrization"]),
            ("lanes", lambda row: count(row["width"])),
            ("iterations", lambda row: count(row["iterations"])),
            ("steps of the longest instance", lambda row: count(row["longest_instance"])),
            ("ratio", lambda row: rounded(row["iterations_over_longest"])),
        ),
    ),
}

PICTURE = (
    "![Milliseconds an instance against batch, d, number of tokens, log log t, log α, and instances a second against "
    "workers](images/scaling.webp)"
)


def scaling() -> str:
    """How costs grow, and what a device would do."""
    found, parts = results("scaling"), ["## Scaling", PICTURE]
    for name, (text, columns) in PARTS.items():
        if name not in found:
            continue
        rows = [tuple(show(row) for _, show in columns) for row in found[name]["rows"]]
        table = markdown(tuple(title for title, _ in columns), rows)
        parts.append(section(None, text, table, found[name], f"scaling.py --only {name}", load=True))
    return "\n\n".join(parts)

"""A pytest plugin: where the time of the tests goes, file by file. `make test-times` loads it by `-p tests.times`.

Wall and processor seconds of each test with its setup and teardown, and of these the seconds in which JAX traces,
lowers and compiles, by its own clocks (of nested programs the inner ones count twice). Importing a test file belongs
to none of its tests. The table is written to build/test-times.txt, the most expensive file first.
"""

import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import pytest

TABLE = Path(__file__).resolve().parents[1] / "build" / "test-times.txt"
EVENTS = {
    "/jax/core/compile/jaxpr_trace_duration": "tracing",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "lowering",
    "/jax/core/compile/backend_compile_duration": "compiling",
}
COLUMNS = ("wall", "processor", *EVENTS.values())
heard = dict.fromkeys(EVENTS.values(), 0.0)
files: dict[str, list[float]] = defaultdict(lambda: [0.0] * len(COLUMNS))
begun: list[list[float]] = []


def listen(event: str, seconds: float, **more: Any) -> None:
    """Adds up the durations that JAX reports."""
    if event in EVENTS:
        heard[EVENTS[event]] += seconds


jax.monitoring.register_event_duration_secs_listener(listen)


def now() -> list[float]:
    """Readings of all clocks, in the order of `COLUMNS`."""
    return [time.perf_counter(), time.process_time(), *heard.values()]


def pytest_runtest_logstart() -> None:
    begun[:] = [now()]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: Any) -> Iterator[None]:
    report: Any = yield
    if report.when == "teardown" and begun:
        # Reports of workers are sent to the process that collects them.
        report.user_properties = [("times", [b - a for a, b in zip(begun[0], now(), strict=True)])]
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    for name, spent in report.user_properties if report.when == "teardown" else ():
        if name == "times":
            row = files[report.nodeid.split("::")[0]]
            row[:] = [a + b for a, b in zip(row, spent, strict=True)]


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workerinput") or not files:
        return
    rows = sorted(files.items(), key=lambda entry: -entry[1][1])
    rows.append(("all", [sum(column) for column in zip(*files.values(), strict=True)]))
    lines = ["".join(f"{name:>11}" for name in COLUMNS) + "  file"]
    lines += ["".join(f"{seconds:11.2f}" for seconds in row) + f"  {name}" for name, row in rows]
    TABLE.parent.mkdir(exist_ok=True)
    TABLE.write_text("\n".join(lines) + "\n", encoding="utf-8")

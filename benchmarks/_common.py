"""What the benchmarks share: timing, counting, tables, and the record of where they ran."""

import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

# Where results are read and written. A whole run (`suite.py`) has a folder of its own.
RESULTS = Path(os.environ.get("JAXFLOW_RESULTS", Path(__file__).parent / "results"))
PACKAGES = (
    *("jaxflow-bias", "jax", "jaxlib", "equinox", "diffrax", "optimistix", "lineax", "optax"),
    *("numpy", "cvxpy", "clarabel"),
)


def configure() -> None:
    """Double precision, and no compilation cache: what is compiled here is timed."""
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_enable_compilation_cache", False)


def timed(run: Callable[[], Any], repeats: int) -> tuple[Any, float, float]:
    """The answer, seconds of the first run with its compilation, median seconds of the later ones."""
    start = time.perf_counter()
    answer = jax.block_until_ready(run())
    first = time.perf_counter() - start
    later = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(run())
        later.append(time.perf_counter() - start)
    return answer, first, statistics.median(later)


def environment() -> dict[str, Any]:
    """Versions and hardware, beside every number. The load tells of other work on the machine."""
    return {
        "versions": {name: _version(name) for name in PACKAGES},
        "python": platform.python_version(),
        "machine": platform.machine(),
        "processor": _processor(),
        "cpu_count": os.cpu_count(),
        "load_average": os.getloadavg()[0],
        "device": jax.devices()[0].device_kind,
        "x64": bool(jnp.asarray(1.0).dtype == jnp.float64),
        "started": time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime()),
    }


def counts(names: Any) -> dict[str, int]:
    """How often each name occurs."""
    found, numbers = np.unique(np.asarray(names, dtype=str), return_counts=True)
    return {str(name): int(number) for name, number in zip(found, numbers, strict=True)}


def spread(values: Any) -> dict[str, Any]:
    """Median, smallest and largest of the finite values, and how many those are."""
    values = np.asarray(values, dtype=float)
    finite = values[np.isfinite(values)]
    if not len(finite):
        return {"median": None, "min": None, "max": None, "count": 0}
    return {
        "median": float(np.median(finite)),
        "min": float(finite.min()),
        "max": float(finite.max()),
        "count": len(finite),
    }


def print_table(title: str, columns: list[str], rows: list[list[Any]]) -> None:
    """Rows in columns as wide as their widest cell."""
    cells = [columns, *([_cell(value) for value in row] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(columns))]
    print(f"\n{title}")
    for row in cells:
        print("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())


def write(path: Path, content: dict[str, Any]) -> None:
    """Writes JSON; numbers that are not finite become null."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(_finite(content), indent=1, allow_nan=False) + "\n")


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _version(name: str) -> str | None:
    from importlib.metadata import PackageNotFoundError

    try:
        return version(name)
    except PackageNotFoundError:
        return None  # run from a checkout that is not installed


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor()

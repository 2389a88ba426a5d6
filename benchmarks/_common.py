"""What the benchmarks share: options, the record of a run with the place it ran at, timing, and instances."""

import argparse
import importlib
import json
import os
import platform
import site
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import jaxflow as jf
from jaxflow.margin import attention_svm, solve
from jaxflow.models import token_scores

Row = dict[str, Any]

# Where results are read and written. A whole run (`suite.py`) has a folder of its own.
RESULTS = Path(os.environ.get("JAXFLOW_RESULTS", Path(__file__).parent / "results"))
PACKAGES = (
    *("jaxflow-bias", "jax", "jaxlib", "equinox", "diffrax", "optimistix", "lineax", "optax"),
    *("numpy", "cvxpy", "clarabel"),
)
# Peers, whose versions are recorded with the numbers.
PEERS = ("scipy", "osqp", "daqp", "qpax", "highspy", "torch", "torchode", "torchdiffeq")
# Programs that are mapped over together: chunks small enough for the caches of one core; a chunk waits for its slowest.
CHUNK = {"frobenius": 16, "nuclear": 16, "l1": 20}


def settings(doc: str | None, name: str, *, cached: bool = False, **defaults: Any) -> argparse.Namespace:
    """The options of a script: `--out`, and one for each default, of its type; a tuple is a list of such values.

    Sets double precision, and switches the compilation cache off: what is compiled here is timed.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS / f"{name}.json", help="the record, in JSON")
    for option, default in defaults.items():
        how: Row = {"default": default, "help": f"default: {default}"}
        if isinstance(default, bool):
            how["action"] = "store_true"
        elif isinstance(default, tuple):
            how |= {"nargs": "*", "type": type(default[0])}
        else:
            how["type"] = str if default is None else type(default)
        parser.add_argument(f"--{option}", **how)
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_enable_compilation_cache", cached)
    return parser.parse_args()


class Record:
    """Rows of a result file, which is written after each: a long run that is interrupted keeps what it has.

    With `same` (names of fields) the file's own rows stay, but for those that equal a new one in these fields.
    """

    def __init__(self, out: Path, same: tuple[str, ...] = (), **more: Any) -> None:
        self.out, self.same = out, same
        self.content: Row = {"environment": environment(), **more, "rows": []}
        if same and out.exists():
            self.content["rows"] = json.loads(out.read_text(encoding="utf-8"))["rows"]

    def add(self, *rows: Row, **more: Any) -> None:
        """Adds rows, and entries beside them, prints the rows and writes the file."""
        for row in rows:
            new = [row.get(name) for name in self.same]
            old = self.content["rows"]
            if self.same:
                old = [other for other in old if [other.get(name) for name in self.same] != new]
            self.content["rows"] = [*old, row]
            print(json.dumps(finite(row)), flush=True)
        self.content |= more
        write(self.out, self.content)


def begun(
    doc: str | None, name: str, same: tuple[str, ...] = (), *, cached: bool = False, **defaults: Any
) -> tuple[argparse.Namespace, Record]:
    """The options of a script, and the record that it writes.

    Beside peers: `scale` is the share of the instances and of the time to spend, `peers` a folder of packages.
    """
    asked = settings(doc, name, cached=cached, **defaults)
    if "peers" in defaults and asked.peers is not None:
        # Last on the path: what this environment has is used, and only what it lacks comes from there.
        site.addsitedir(str(asked.peers))
    record = Record(asked.out, same)
    if "peers" in defaults:
        record.content["environment"]["peers"] = {peer: version_of(peer) for peer in PEERS}
        record.content["scale"] = asked.scale
    return asked, record


def environment() -> Row:
    """Versions and hardware, beside every number. The load tells of other work on the machine."""
    return {
        "versions": {name: version_of(name) for name in PACKAGES},
        "python": platform.python_version(),
        "machine": platform.machine(),
        "processor": _processor(),
        "cpu_count": os.cpu_count(),
        "load_average": os.getloadavg()[0],
        "device": jax.devices()[0].device_kind,
        "x64": bool(jnp.asarray(1.0).dtype == jnp.float64),
        "started": time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime()),
    }


def version_of(name: str) -> str | None:
    """The version of a distribution; None where it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def missing(*modules: str) -> str | None:
    """Why a peer cannot be run, or None. A library that is there but does not load is missing too."""
    for module in modules:
        try:
            importlib.import_module(module)
        except (ImportError, OSError) as error:
            return f"{module}: {type(error).__name__}: {str(error).splitlines()[0]}"
    return None


def one_thread() -> Any:
    """PyTorch on one thread: the arrays are far too small for more, and it is faster so."""
    import torch

    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    return torch


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor()


class Seconds(NamedTuple):
    """Wall clock, and processor time of all threads together: the second hardly feels other work on the machine."""

    wall: float
    processor: float


def clocked(run: Callable[..., Any], *given: Any, **options: Any) -> tuple[Any, Seconds]:
    """The answer of one run with these arguments, and its times."""
    wall, processor = time.perf_counter(), time.process_time()
    answer = jax.block_until_ready(run(*given, **options))
    return answer, Seconds(time.perf_counter() - wall, max(time.process_time() - processor, 1e-9))


def best(run: Callable[[], Any], repeats: int, enough: float = 1.0) -> tuple[Any, Seconds]:
    """The answer and the shortest times of up to `repeats` runs, fewer once they took `enough` seconds together."""
    answer, shortest = clocked(run)
    spent = shortest.wall
    for _ in range(repeats - 1):
        if spent > enough:
            break
        _, again = clocked(run)
        spent += again.wall
        shortest = Seconds(min(shortest.wall, again.wall), min(shortest.processor, again.processor))
    return answer, shortest


def counts(names: Any) -> dict[str, int]:
    """How often each name occurs."""
    found, numbers = np.unique(np.asarray(names, dtype=str), return_counts=True)
    return {str(name): int(number) for name, number in zip(found, numbers, strict=True)}


def outcomes(codes: Any) -> dict[str, int]:
    """How often each outcome occurs, of numbers or of outcomes. A loop over a batch of outcomes itself never ends."""
    return counts([jf.Outcome(int(code)).name for code in np.asarray(codes)])


def spread(values: Any) -> Row:
    """Median, smallest and largest of the finite values, and how many those are."""
    values = np.asarray(values, dtype=float)
    some = values[np.isfinite(values)]
    if not len(some):
        return {"median": None, "min": None, "max": None, "count": 0}
    return {"median": float(np.median(some)), "min": float(some.min()), "max": float(some.max()), "count": len(some)}


def write(path: Path, content: Row) -> None:
    """Writes JSON; numbers that are not finite become null."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(finite(content), indent=1, allow_nan=False) + "\n", encoding="utf-8")


def finite(value: Any) -> Any:
    """The value with None for every number that is not finite."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value


def factors_of(cell: str) -> Row:
    """Factors of `TokenSelection`, of `W:5,5,4`: what is trained, n, T, d."""
    name, sizes = cell.split(":")[:2]
    return dict(zip("nTd", map(int, sizes.split(",")), strict=True)) | {"parametrization": name}


def programs(seed: int, count: int, n: int, T: int, d: int) -> tuple[jf.data.TokenData, jax.Array]:
    """`count` random instances and the masks of their optimal tokens."""

    def one(key: jax.Array) -> tuple[jf.data.TokenData, jax.Array]:
        data, head = jf.data.random_tokens(key, n, T, d)
        return data, jf.data.optimal_tokens(token_scores(data, head), data.visible)

    return jax.vmap(one)(jax.random.split(jax.random.key(seed), count))


class Linear(eqx.Module):
    """The model that a caller writes in three lines, of vectors (with one output or one for each class) or matrices."""

    w: jax.Array

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.w @ x if x.ndim == 1 else jnp.sum(self.w * x)


class TwoLayers(eqx.Module):
    """A ReLU network that the library knows nothing of; both layers are trained."""

    W: jax.Array
    a: jax.Array

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.a @ jax.nn.relu(self.W @ x)


def batch_solver(norm: Any) -> Callable:
    """A compiled function (data, selections) -> solutions, in chunks."""
    return jax.jit(
        lambda data, selection: jax.lax.map(
            lambda pair: solve(attention_svm(pair[0], pair[1], norm)), (data, selection), batch_size=CHUNK[norm]
        )
    )

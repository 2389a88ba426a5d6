"""Time to a first result: python benchmarks/latency.py [--repeats 3] [--clone]

Every row is a process of its own, from its start to its last line, on the CPU alone. `cold` has an empty compilation
cache, `warm` the one that a cold run left. With `--clone` the commands that begin with an installation run too, in a
clone of HEAD.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from _common import begun

ROOT = Path(__file__).resolve().parent.parent
COMMAND = Path(sys.executable).parent / "jaxflow"

# The quickstart of the README, with a clock beside it.
QUICKSTART = """
import time
start = time.perf_counter()
import jax, jaxflow as jf
jax.config.update("jax_enable_x64", True)
jf.compilation_cache()
data, head = jf.data.random_tokens(jax.random.key(0), n=6, T=8, d=10)
model = jf.models.MODEL.init(jax.random.key(1), data, head)
risk = jf.EmpiricalRisk(data, "logistic")
print(jf.find_limit(risk, model))
print(time.perf_counter() - start)
"""
MODELS = {"W": "CombinedAttention", "K Q^T": "FactoredAttention"}


def process(command: list[str], cache: Path | None, folder: Path | None = None) -> tuple[str, dict[str, float]]:
    """Standard output of a command, its seconds from start to end, and its seconds of processor time."""
    # Python keeps its bytecode, as it does unless an image says otherwise.
    names = ("JAX_COMPILATION_CACHE_DIR", "XLA_FLAGS", "PYTHONDONTWRITEBYTECODE")
    inherited = {name: value for name, value in os.environ.items() if name not in names}
    ours = {"JAX_PLATFORMS": "cpu"} | ({} if cache is None else {"JAX_COMPILATION_CACHE_DIR": str(cache)})
    before, start = os.times(), time.perf_counter()
    done = subprocess.run(command, env=inherited | ours, cwd=folder, capture_output=True, text=True)
    seconds, after = time.perf_counter() - start, os.times()
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[:2])} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    used = after.children_user + after.children_system - before.children_user - before.children_system
    return done.stdout, {"seconds": seconds, "processor": used}


def quickstart(parametrisation: str, repeats: int) -> list[dict[str, Any]]:
    """Cold and warm runs of the quickstart; of the repeats the one that took least, which others disturbed least."""
    rows = []
    program = QUICKSTART.replace("MODEL", MODELS[parametrisation])
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as folder:
            for kind in ("cold", "warm"):
                output, times = process([sys.executable, "-c", program], Path(folder))
                seconds = float(output.splitlines()[-1])
                rows.append({"what": f"quickstart, {parametrisation}", "cache": kind, **times, "seconds": seconds})
    return [min((r for r in rows if r["cache"] == kind), key=lambda r: r["seconds"]) for kind in ("cold", "warm")]


def help_page(repeats: int) -> dict[str, Any]:
    """`jaxflow --help`."""
    runs = [process([str(COMMAND), "--help"], None)[1] for _ in range(repeats + 1)]
    return {"what": "jaxflow --help", "cache": "-", **min(runs, key=lambda times: times["seconds"])}


def from_a_clone() -> list[dict[str, Any]]:
    """`make demo`, then `make test` twice, in a clone of HEAD without an environment or a cache."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        clone = Path(folder) / "clone"
        process(["git", "clone", "--quiet", str(ROOT), str(clone)], None)
        for target, cache in (("demo", "cold"), ("test", "cold"), ("test", "warm")):
            _, times = process(["make", target], None, clone)
            rows.append({"what": f"make {target} in a clone", "cache": cache, **times})
    return rows


if __name__ == "__main__":
    # What is not run this time stays as it was measured before.
    asked, record = begun(__doc__, "latency", same=("what", "cache"), repeats=3, clone=False)
    record.add(help_page(asked.repeats))
    for parametrisation in MODELS:
        record.add(*quickstart(parametrisation, asked.repeats))
    if asked.clone:
        record.add(*from_a_clone())

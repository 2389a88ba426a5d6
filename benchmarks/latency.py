"""Time to a first result: python benchmarks/latency.py [--repeats 3] [--clone]

Every row is a process of its own, from its start to its last line, on the CPU alone. `cold` has an empty compilation
cache, `warm` the one that a cold run left. With `--clone` the commands that begin with an installation run too, in a
clone of HEAD.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from _common import Record, settings

ROOT = Path(__file__).resolve().parent.parent
COMMAND = Path(sys.executable).parent / "jaxflow"

# The quickstart of the README, with a clock beside it, and the size of its program, which no load of the machine
# changes.
QUICKSTART = """
import json, time
start = time.perf_counter()
import equinox as eqx, jax, jaxflow as jf
jax.config.update("jax_enable_x64", True)
jf.compilation_cache()
imported = time.perf_counter() - start
data, head = jf.data.random_tokens(jax.random.key(0), n=6, T=8, d=10)
model = jf.models.MODEL.init(jax.random.key(1), data, head)
risk = jf.EmpiricalRisk(data, "logistic")
sentence = str(jf.find_limit(risk, model))
found = {"sentence": sentence, "import": imported, "quickstart": time.perf_counter() - start}
if "LINES":
    find = eqx.filter_jit(lambda risk, model: jf.find_limit(risk, model, throw=False))
    found["lines"] = len(find.lower(risk, model).as_text().splitlines())
print(json.dumps(found))
"""
MODELS = {"W": "CombinedAttention", "K Q^T": "FactoredAttention"}


def process(command: list[str], cache: Path | None, folder: Path | None = None) -> tuple[str, float, float]:
    """Standard output, seconds from start to end, and seconds of processor time of a command."""
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
    return done.stdout, seconds, used


def quickstart(parametrisation: str, repeats: int) -> list[dict[str, Any]]:
    """Cold and warm runs of the quickstart; of the repeats the one that took least, which others disturbed least."""
    rows = []
    program = QUICKSTART.replace("MODEL", MODELS[parametrisation])
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as folder:
            for kind in ("cold", "warm"):
                output, seconds, used = process([sys.executable, "-c", program.replace("LINES", "")], Path(folder))
                found = json.loads(output.splitlines()[-1])
                row = {"what": f"quickstart, {parametrisation}", "cache": kind, "seconds": found["quickstart"]}
                rows.append(row | {"process": seconds, "processor": used, "import": found["import"]})
    best = [min((r for r in rows if r["cache"] == kind), key=lambda r: r["seconds"]) for kind in ("cold", "warm")]
    lines = json.loads(process([sys.executable, "-c", program], None)[0].splitlines()[-1])["lines"]
    return [row | {"lines": lines} for row in best]


def help_page(repeats: int) -> dict[str, Any]:
    """`jaxflow --help`."""
    runs = [process([str(COMMAND), "--help"], None) for _ in range(repeats + 1)]
    _, seconds, used = min(runs, key=lambda run: run[1])
    return {"what": "jaxflow --help", "cache": "-", "seconds": seconds, "processor": used}


def from_a_clone() -> list[dict[str, Any]]:
    """`make demo`, then `make test` twice, in a clone of HEAD without an environment or a cache."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        clone = Path(folder) / "clone"
        process(["git", "clone", "--quiet", str(ROOT), str(clone)], None)
        for target, cache in (("demo", "cold"), ("test", "cold"), ("test", "warm")):
            output, seconds, used = process(["make", target], None, clone)
            row = {"what": f"make {target} in a clone", "cache": cache, "seconds": seconds, "processor": used}
            counted = re.findall(r"\d+ passed.*", output)
            rows.append(row | ({"tests": counted[-1].strip("= ")} if counted else {}))
    return rows


def main() -> None:
    asked = settings(__doc__, "latency", repeats=3, clone=False)
    commit = process(["git", "rev-parse", "--short", "HEAD"], None, ROOT)[0].strip()
    # What is not run this time stays as it was measured before.
    record = Record(asked.out, same=("what", "cache"))
    rows = [help_page(asked.repeats)]
    for parametrisation in MODELS:
        rows += quickstart(parametrisation, asked.repeats)
    for row in [*rows, *(from_a_clone() if asked.clone else [])]:
        record.add(row | {"commit": commit})


if __name__ == "__main__":
    main()

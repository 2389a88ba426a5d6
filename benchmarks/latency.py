"""Time to a first result: python benchmarks/latency.py [--repeats 3] [--clone]

Every row is a process of its own, from its start to its last line, on the CPU alone. `cold` has an empty compilation
cache, `warm` the one that a cold run left. The steps within a process are timed by the process itself. With `--clone`
the commands that begin with an installation run too, in a clone of HEAD. Written to results/latency.json.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from _common import RESULTS, environment, print_table, write

ROOT = Path(__file__).resolve().parent.parent
COMMAND = Path(sys.executable).parent / "jaxflow"

# The quickstart of the README, with a clock beside it; the same shape again after it, another
# shape, and another d of that one.
QUICKSTART = """
import json, sys, time
start = time.perf_counter()
steps = {}
def done(name):
    global start
    now = time.perf_counter()
    steps[name] = now - start
    start = now
import jax, jaxflow as jf
jax.config.update("jax_enable_x64", True)
jf.compilation_cache()
done("import")
def answer(n, T, d, suffix):
    data, head = jf.data.random_tokens(jax.random.key(0), n=n, T=T, d=d)
    jax.block_until_ready(head)
    done("random_tokens" + suffix)
    model = jf.models.MODEL.init(jax.random.key(1), data, head)
    risk = jf.EmpiricalRisk(data, jf.losses.Logistic())
    done("model and risk" + suffix)
    sentence = str(jf.find_limit(risk, model))
    done("find_limit" + suffix)
    return sentence
sentence = answer(6, 8, 10, "")
whole = sum(steps.values())
answer(6, 8, 10, ", again")
answer(5, 7, 9, ", second shape")
answer(5, 7, 11, ", another d")
print(json.dumps({"sentence": sentence, "steps": steps, "quickstart": whole}))
"""

# How large the compiled program is, which no load of the machine changes.
PROGRAM = """
import json, jax, equinox as eqx, jaxflow as jf
jax.config.update("jax_enable_x64", True)
data, head = jf.data.random_tokens(jax.random.key(0), n=6, T=8, d=10)
model = jf.models.MODEL.init(jax.random.key(1), data, head)
risk = jf.EmpiricalRisk(data, jf.losses.Logistic())
lowered = eqx.filter_jit(lambda risk, model: jf.find_limit(risk, model, throw=False)).lower(risk, model)
print(json.dumps({"lines": len(lowered.as_text().splitlines())}))
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
                output, seconds, used = process([sys.executable, "-c", program], Path(folder))
                found = json.loads(output.splitlines()[-1])
                row = {"what": f"quickstart, {parametrisation}", "cache": kind, "seconds": found["quickstart"]}
                rows.append(row | {"process": seconds, "processor": used, "steps": found["steps"]})
    best = [min((r for r in rows if r["cache"] == kind), key=lambda r: r["seconds"]) for kind in ("cold", "warm")]
    output, _, _ = process([sys.executable, "-c", PROGRAM.replace("MODEL", MODELS[parametrisation])], None)
    return [row | json.loads(output) for row in best]


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
        plan = [
            (["make", "demo"], "cold"),
            (["make", "test"], "cold"),
            (["make", "test"], "warm"),
        ]
        for command, cache in plan:
            output, seconds, used = process(command, None, clone)
            row = {"what": f"{' '.join(command)} in a clone", "cache": cache, "seconds": seconds, "processor": used}
            counted = re.findall(r"\d+ passed.*", output)
            rows.append(row | ({"tests": counted[-1].strip("= ")} if counted else {}))
    return rows


def main() -> None:
    """Runs all of it and writes the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--clone", action="store_true", help="also the commands of a fresh clone")
    given = parser.parse_args()
    machine = environment()
    rows = [help_page(given.repeats)]
    for parametrisation in MODELS:
        rows += quickstart(parametrisation, given.repeats)
    if given.clone:
        rows += from_a_clone()
    commit = process(["git", "rev-parse", "--short", "HEAD"], None, ROOT)[0].strip()
    rows = [row | {"commit": commit} for row in rows]
    columns = ["what", "cache", "seconds", "processor", "lines", "tests"]
    print_table("seconds of whole processes", columns, [[row.get(name) for name in columns] for row in rows])
    for row in rows:
        if "steps" in row:
            print(row["what"], row["cache"], {name: round(value, 2) for name, value in row["steps"].items()})
    target = RESULTS / "latency.json"
    known = json.loads(target.read_text())["rows"] if target.exists() else []
    # What was not run this time stands as it was measured before.
    seen = {(row["what"], row["cache"]) for row in rows}
    kept = [row for row in known if (row["what"], row["cache"]) not in seen]
    write(target, {"environment": machine, "rows": rows + kept})


if __name__ == "__main__":
    main()

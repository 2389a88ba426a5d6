"""Throughput of studies and solvers against an earlier commit: python benchmarks/before.py COMMIT [--rounds 3]

Blocks of studies and batches of programs, run by this tree and by the tree of another commit in turn, each time in a
process of its own on the CPU: compilation apart, the median of three runs, programs in the better of two lengths of
chunks, and of those the median over the rounds. Written to results/before.json. `NPROC=8` is given to both: earlier
commits asked for it, lest a batch hang.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from _common import RESULTS, environment, print_table, write

ROOT = Path(__file__).resolve().parent.parent

# What both commits understand: public names, and the block of a study.
PROGRAM = """
import json, statistics, sys, time
import jax
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_enable_compilation_cache", False)
import jaxflow as jf
from jaxflow import data as jd
from jaxflow.margin import attention_svm, solve
from jaxflow.models import token_scores
from jaxflow.study import TokenSelection

def timed(run):
    jax.block_until_ready(run())
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        jax.block_until_ready(run())
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)

def study(parametrization, count):
    keys = jax.random.split(jax.random.key(0), count)
    block = TokenSelection().block_function({"n": 5, "T": 5, "d": 4, "parametrization": parametrization}, count)
    return timed(lambda: block(keys))

def programs(norm, n, T, d, count, chunk):
    def one(key):
        data, head = jd.random_tokens(key, n, T, d)
        return data, jd.optimal_tokens(token_scores(data, head), data.visible)
    data, chosen = jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(0), count))
    run = jax.jit(lambda data, chosen: jax.lax.map(
        lambda pair: solve(attention_svm(pair[0], pair[1], norm)).primal, (data, chosen), batch_size=chunk))
    return timed(lambda: run(data, chosen))

found = {}
for name in ("W", "KQ"):
    found[f"study, {name}, 256 instances (5,5,4)"] = study(name, 256)
for norm, chunks in (("frobenius", (16, 100)), ("nuclear", (16, 100)), ("l1", (10, 25))):
    for size in ((5, 5, 4), (6, 8, 10)):
        # A chunk waits for its slowest program; which length is best is not the same for both trees.
        found[f"{norm}, 500 programs {size}"] = min(programs(norm, *size, 500, chunk) for chunk in chunks)
print(json.dumps(found))
"""


def measured(tree: Path) -> dict[str, float]:
    """Seconds by name, of a process that imports the package from `tree`."""
    known = dict(os.environ, PYTHONPATH=str(tree), NPROC="8", JAX_PLATFORMS="cpu")
    known.pop("JAX_COMPILATION_CACHE_DIR", None)
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=known, cwd=tree, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("commit")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(
            ["git", "archive", arguments.commit, "jaxflow"], cwd=ROOT, capture_output=True, check=True
        )
        subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
        before, now = [], []
        for _ in range(arguments.rounds):
            before.append(measured(Path(folder)))
            now.append(measured(ROOT))
    rows = []
    for name in now[0]:
        old, new = (statistics.median(round_[name] for round_ in rounds) for rounds in (before, now))
        rows.append({"what": name, "before_s": old, "now_s": new, "before_over_now": old / new})
    write(RESULTS / "before.json", {"environment": environment(), "commit": arguments.commit, "rows": rows})
    print_table(
        f"Seconds of {arguments.commit} and of this tree",
        ["what", "before", "now", "before / now"],
        [[row["what"], row["before_s"], row["now_s"], row["before_over_now"]] for row in rows],
    )


if __name__ == "__main__":
    main()

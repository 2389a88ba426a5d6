"""Whether batches stand still: python benchmarks/hangs.py [--repeats 200]

A process of its own, with no setting of threads in its environment, runs everything that factorises matrices in
batches: two programs at a time, in two threads, on a pool of one thread for each core. It says so after every
repetition; where it is silent for `PATIENCE` seconds it is ended, and counted. Written to results/hangs.json.
"""

import argparse
import os
import queue
import subprocess
import sys
import threading
import time
from typing import Any

from _common import RESULTS, environment, print_table, write

# Seconds; compilation before the first repetition takes a minute on two cores.
PATIENCE = 300.0

CHILD = """
import sys, tempfile, threading
from pathlib import Path
import jax, jax.numpy as jnp
import jaxflow as jf
jax.config.update("jax_enable_x64", True)

def limit(kind, key):
    data, head = jf.data.random_tokens(key, n=3, T=4, d=5)
    model = kind.init(key, data, head)
    return jf.find_limit(jf.EmpiricalRisk(data, jf.losses.Logistic()), model, throw=False).outcome.value

def program(norm, key):
    data, head = jf.data.random_tokens(key, n=4, T=5, d=8)
    selection = jnp.zeros((4, 5), bool).at[:, 1].set(True)
    return jf.margin.solve(jf.margin.attention_svm(data, selection, norm)).result.value

kinds = (jf.models.CombinedAttention, jf.models.FactoredAttention)
norms = ("frobenius", "nuclear", "l1")
limits = [jax.jit(jax.vmap(lambda key, kind=kind: limit(kind, key))) for kind in kinds]
programs = [jax.jit(jax.vmap(lambda key, norm=norm: program(norm, key))) for norm in norms]
factors = {"n": [3], "T": [4], "d": [5]}
study = jf.study.Study(jf.study.TokenSelection(), factors, {"parametrization": ["W"]}, trials=16, block=16)

def both(k):
    for one in limits:
        one(jax.random.split(jax.random.key(k), 8)).block_until_ready()

def three(k):
    for _ in range(4):
        for one in programs:
            one(jax.random.split(jax.random.key(k), 64)).block_until_ready()

def small(k):
    with tempfile.TemporaryDirectory() as folder:
        study.run(Path(folder) / "s.zarr", progress=False)

def twice(*jobs):
    threads = [threading.Thread(target=job, args=(k,)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

both(0), three(0), small(0)
for k in range(int(sys.argv[1])):
    twice(both, three)
    twice(three, small)
    print(k, flush=True)
"""


def heard(stream: Any, lines: "queue.Queue[str]") -> None:
    """Hands on what the process says, from a thread of its own."""
    for line in stream:
        lines.put(line)


def main() -> None:
    """Runs the process and writes the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=200)
    repeats = parser.parse_args().repeats
    plain = {k: v for k, v in os.environ.items() if k not in ("NPROC", "PJRT_NPROC", "XLA_FLAGS", "OMP_NUM_THREADS")}
    machine, start = environment(), time.perf_counter()
    command = [sys.executable, "-c", CHILD, str(repeats)]
    process = subprocess.Popen(command, env=plain | {"JAX_PLATFORMS": "cpu"}, stdout=subprocess.PIPE, text=True)
    lines: queue.Queue[str] = queue.Queue()
    threading.Thread(target=heard, args=(process.stdout, lines), daemon=True).start()
    done, hung = 0, False
    while done < repeats and not hung:
        try:
            lines.get(timeout=PATIENCE)
            done += 1
        except queue.Empty:
            hung = process.poll() is None
            process.kill()
            break
    code = process.wait()
    row = {
        "what": "vmapped find_limit (W, K Q^T), margin.solve (3 norms), a study; two programs at a time",
        "repetitions": done,
        "of": repeats,
        "hangs": int(hung),
        "code": code,
        "seconds": time.perf_counter() - start,
    }
    print_table("batches on a pool of one thread a core", list(row), [list(row.values())])
    write(RESULTS / "hangs.json", {"environment": machine, "rows": [row]})
    if hung or code:
        raise SystemExit(1)


if __name__ == "__main__":
    main()

"""Every benchmark in one run, with one table and one page: python benchmarks/suite.py [--scale full].

    make bench [SCALE=full]      every script, on any machine
    make bench-gpu               those that are of interest on an accelerator, which has to be there

Each script runs in a process of its own, one after the other, so that none is measured beside another. Results go to a
folder of their own (--out), with the committed ones where a script did not run or end, and the page of all of them
(benchmarks.md) and the ratios that got worse than the committed ones (worse.txt) beside them. A script that fails or
runs out of time is a row with that result, and the exit code is 1. The limits of a quick run add up to an hour.
"""

import argparse
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import compare
import jax
import page
from _common import environment, write

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
COMMITTED = HERE / "results"


class Script(NamedTuple):
    """`file` (of `benchmarks/`, or the name of a module) with the arguments of a quick and of a full run; `limit`:
    seconds that a quick run may take; `device`: whether an accelerator changes its answer."""

    file: str
    quick: str
    full: str
    limit: float
    device: bool = False


SCRIPTS = (
    Script("latency.py", "--repeats 1", "--clone", 80),
    Script("margin_accuracy.py", "--count 50", "", 420),
    Script("program_peers.py", "--scale 0.02", "", 240),
    Script("flow_peers.py", '--scale 0.02 --only "(5, 5, 4)"', "", 160, device=True),
    Script("limit_peers.py", "--scale 0.02", "", 150, device=True),
    Script("crowded.py", "--count 8 --confirm 2 --only W:5,5,2", "--count 500 --confirm 200", 60),
    Script("ways.py", "--count 4 --only W:5,5,2", "", 200),
    Script("blocks.py", "--count 16 --only W:5,5,4", "", 80, device=True),
    Script("own_gaps.py", "--count 3", "", 140),
    Script("studies.py", "--count 16 --repeats 1 --only ways", "", 500, device=True),
    Script("own_model.py", "--count 2 --seeds 19", "", 60),
    Script("real_sizes.py", "--weights 600 --classes 2 --steps 60", "", 35),
    Script("claims.py", "--count 20 --heads 2", "", 65),
    Script("masked.py", "--count 1 --extra 1 --only W", "", 100),
    Script("printed_errors.py", '--count 20 --only "logistic regression" neuron', "", 40),
    Script("classes.py", "--count 2 --only random", "--count 42", 140),
    Script("next_tokens.py", "--count 2", "", 80),
    Script("optimisers.py", "--count 4 --steps 200 --only linear attention", "", 250),
    Script("mirror.py", "--count 2 --powers 1.5 --schatten 1.5", "", 150),
    Script("completion.py", '--count 2 --scales 1e-12 --only "U U"', "", 40),
    Script("batches.py", "--lanes 10 --only integrate descend", "", 40, device=True),
    Script("memory.py", "--calls 16 --shapes 4", "", 50),
    Script("scaling.py", "--scale 0.02 --only initial_scales", "", 40, device=True),
    Script("million.py", "--instances 64 --factors 64", "", 110, device=True),
    Script("tests.referee.run", '--scale 0.01 --only W KQ --kinds "(4, 4, 6)"', "", 170),
)


def run(script: Script, scale: str, out: Path, peers: Path | None) -> dict[str, Any]:
    """One script: how it ended, and after how many seconds."""
    arguments = shlex.split(script.quick if scale == "quick" else script.full)
    if peers is not None and script.file.endswith("_peers.py"):
        arguments += ["--peers", str(peers.resolve())]
    record = out / "results"
    changed = {path: path.stat().st_mtime_ns for path in record.glob("*.json")}
    seconds = script.limit if scale == "quick" else None
    what = [str(HERE / script.file)] if script.file.endswith(".py") else ["-m", script.file]
    started = time.perf_counter()
    with (out / "logs" / f"{script.file}.txt").open("w", encoding="utf-8") as log:
        process = subprocess.Popen(
            [sys.executable, *what, *arguments], stdout=log, stderr=log, start_new_session=True, cwd=ROOT,
            env={**os.environ, "JAXFLOW_RESULTS": str(record)},
        )  # fmt: skip
        try:
            code = process.wait(seconds)
            ended = "done" if code == 0 else f"exit code {code}"
        except subprocess.TimeoutExpired:
            ended = f"stopped after {seconds:.0f} s"
        finally:
            if process.poll() is None:
                # With the processes that it has begun: those of a stopped script would go on beside the next one.
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    new = [path.name for path in record.glob("*.json") if path.stat().st_mtime_ns != changed.get(path)]
    return {
        "script": script.file,
        "arguments": " ".join(arguments),
        "ended": ended,
        "seconds": time.perf_counter() - started,
        "results": sorted(new),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--scale", choices=("quick", "full"), default="quick")
    parser.add_argument("--out", type=Path, default=Path("out/bench"), help="folder for results, page and logs")
    parser.add_argument("--only", nargs="+", choices=[script.file for script in SCRIPTS], help="some of the scripts")
    parser.add_argument("--accelerator", action="store_true", help="those of an accelerator, which has to be there")
    parser.add_argument("--peers", type=Path, help="a folder of packages of peers, beside the environment's own")
    asked = parser.parse_args()
    if asked.accelerator and jax.default_backend() == "cpu":
        parser.error("--accelerator: JAX sees none here; install jax for the device, or run without")
    out = asked.out.resolve()
    shutil.rmtree(out / "results", ignore_errors=True)
    shutil.copytree(COMMITTED, out / "results")
    (out / "logs").mkdir(exist_ok=True)
    rows: list[dict[str, Any]] = []
    for script in SCRIPTS:
        if (asked.only and script.file not in asked.only) or (asked.accelerator and not script.device):
            continue
        rows.append(run(script, asked.scale, out, asked.peers))
        print(*(f"{rows[-1][name]:<22}" for name in ("script", "ended")), f"{rows[-1]['seconds']:5.0f} s", flush=True)
        write(out / "suite.json", {"environment": environment(), "scale": asked.scale, "rows": rows})
    (out / "benchmarks.md").write_text(page.written(out / "results"), encoding="utf-8")
    worse = compare.regressions(COMMITTED, out / "results", 1.5)
    (out / "worse.txt").write_text("".join(f"{line}\n" for line in worse), encoding="utf-8")
    print(f"Results, page and logs are in {out}")
    return int(any(row["ended"] != "done" for row in rows))


if __name__ == "__main__":
    sys.exit(main())

"""Every benchmark in one run, with one table and one page: python benchmarks/suite.py [--scale full].

    make bench [SCALE=full]      every script, on any machine
    make bench-gpu               those that are of interest on an accelerator, which has to be there

Each script runs in a process of its own, one after the other, so that none is measured beside another. Results go to a
folder of their own (--out), with the committed ones where a script did not run or end, and the page of all of them
(benchmarks.md) and the ratios that got worse than the committed ones (worse.txt) beside them. A script that fails or
runs out of time has a row that says so, and the exit code is 1.
"""

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import compare
import jax
from _common import environment, print_table, write

HERE = Path(__file__).resolve().parent
COMMITTED = HERE / "results"


class Script(NamedTuple):
    """`file` with the arguments of a quick and of a full run; `device`: whether an accelerator changes its answer;
    `limit`: seconds that a quick run may take, on two cores that compile everything anew."""

    file: str
    quick: str
    full: str
    device: bool = False
    limit: float = 900.0


SCRIPTS = (
    Script("run.py", "--scale quick", "--scale full", device=True),
    Script("margin_accuracy.py", "--count 200", ""),
    Script("margin_throughput.py", "--scale 0.05", "", device=True),
    Script("program_peers.py", "--scale 0.1", ""),
    Script("flow_peers.py", "--scale 0.1", "", device=True),
    Script("limit_peers.py", "--scale 0.1", "", device=True),
    Script("studies.py", "--count 64 --repeats 1", "", device=True),
    Script("blocks.py", "--count 64 --only W:5,5,4", "", device=True),
    Script("starts.py", "--count 8", ""),
    Script("crowded.py", "--count 20 --confirm 4 --only W:5,5,2 KQ:5,5,2", "--count 500 --confirm 200"),
    Script("ways.py", "--count 8 --only W:5,5,2", ""),
    Script("factors.py", "--count 4 --general 1 --dimensions 10", ""),
    Script("own_model.py", "--count 4 --compared 1", ""),
    Script("own_gaps.py", "--count 4", ""),
    Script("classes.py", "--count 2", ""),
    Script("batches.py", "--lanes 10 --only W integrate descend", "", device=True),
    Script("memory.py", "--calls 40 --shapes 4", ""),
    Script("scaling.py", "--scale 0.02 --only dimensions tokens initial_scales iterations", "", device=True),
    Script("million.py", "--instances 512 --factors 256", "", device=True),
    Script("referee.py", '--scale 0.03 --only W KQ --kinds "(4, 4, 6)"', ""),
    Script("latency.py", "--repeats 1", "--clone"),
)


def run(script: Script, scale: str, out: Path, peers: Path | None, limit: float | None) -> dict[str, Any]:
    """One script: how it ended, and after how many seconds."""
    arguments = shlex.split(script.quick if scale == "quick" else script.full)
    if peers is not None and script.file.endswith("_peers.py"):
        arguments += ["--peers", str(peers)]
    record = out / "results"
    changed = {path: path.stat().st_mtime_ns for path in record.glob("*.json")}
    seconds = limit if limit is not None else script.limit if scale == "quick" else None
    command, started = [sys.executable, str(HERE / script.file), *arguments], time.perf_counter()
    log = out / "logs" / f"{script.file}.txt"
    with log.open("w", encoding="utf-8") as output:
        try:
            settings = {**os.environ, "JAXFLOW_RESULTS": str(record)}
            code = subprocess.run(command, stdout=output, stderr=output, env=settings, timeout=seconds).returncode
            ended = "done" if code == 0 else f"exit code {code}"
        except subprocess.TimeoutExpired:
            ended = f"stopped after {seconds:.0f} s"
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
    parser.add_argument(
        "--accelerator", action="store_true", help="those of an accelerator; an error where there is none"
    )
    parser.add_argument("--peers", type=Path, help="a folder of packages of peers, beside the environment's own")
    parser.add_argument("--limit", type=float, help="seconds for each script, in place of its own limit")
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
        rows.append(run(script, asked.scale, out, asked.peers, asked.limit))
        print(f"{script.file}: {rows[-1]['ended']}, {rows[-1]['seconds']:.0f} s", flush=True)
        write(out / "suite.json", {"environment": environment(), "scale": asked.scale, "rows": rows})
    report(out)
    print_table("Benchmarks", list(rows[0]), [[_shown(value) for value in row.values()] for row in rows])
    print(f"\nResults, page and logs are in {out}")
    return int(any(row["ended"] != "done" for row in rows))


def report(out: Path) -> None:
    """The page of the results in `out`, and what is worse there than what is committed."""
    page = subprocess.run(
        [sys.executable, str(HERE / "page.py")],
        env={**os.environ, "JAXFLOW_RESULTS": str(out / "results")},
        check=True,
        capture_output=True,
        text=True,
    )
    (out / "benchmarks.md").write_text(page.stdout, encoding="utf-8")
    worse = compare.regressions(COMMITTED, out / "results", 1.5)
    (out / "worse.txt").write_text("".join(f"{line}\n" for line in worse), encoding="utf-8")


def _shown(value: Any) -> Any:
    return ", ".join(value) if isinstance(value, list) else value


if __name__ == "__main__":
    sys.exit(main())

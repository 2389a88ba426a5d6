"""Two versions of the library on the same instances: which claims differ, and what the referee says of both.

    python -m tests.referee.engines --against FOLDER [--scale 1] [--only W KQ ...] [--kinds "(5, 5, 4)" ...]

`FOLDER` holds another checkout (`git worktree add FOLDER COMMIT`). Both versions answer in processes of their own, with
the draws of this one. Claims agree where outcome, tokens and direction (or point, within the errors that are claimed)
are the same. Those that differ are judged one by one and listed. The counts are written to
benchmarks/results/engines.json.
"""

import pickle
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._common import Record, settings
from tests.referee import attention, draws, run
from tests.referee.programs import OPEN

ROOT = Path(__file__).parents[2]
# Instances of a family at scale one, in equal parts of each regular kind.
COUNT = 2000
# Directions at margin one that are both certified to 1e-6 differ by the root of it at most.
NEAR = 2e-3
# Points are compared to their claimed errors, and where these are not known to this.
POINT = 1e-6
CHILD = """
import sys
here, other, given, answer = sys.argv[1:]
sys.path[0] = other
import jax
jax.config.update("jax_enable_x64", True)
import jaxflow
assert jaxflow.__file__.startswith(other), jaxflow.__file__
sys.path[0] = here
from tests.referee.engines import answers
answers(given, answer)
"""


def kinds_of(model: str, count: int, wanted: list[str]) -> list[tuple[str, int]]:
    """The regular kinds of a family, or those of them that are wanted, each with its part of the instances."""
    every: Any = attention.KINDS if model in run.ATTENTION else draws.KINDS
    names = [name for name, _ in run.kinds_of(model) if every[name].regular and (not wanted or name in wanted)]
    return [(name, -(-count // len(names))) for name in names]


def answers(given: str, answer: str) -> None:
    """The claims of the library that this process has imported."""
    model, loss, data, theta = pickle.loads(Path(given).read_bytes())
    started = time.perf_counter()
    said = run.claims(model, loss, data, theta)
    Path(answer).write_bytes(pickle.dumps((said, time.perf_counter() - started)))


def claims_of(folder: Path, model: str, loss: str, data: Any, theta: Any) -> tuple[list[Any], float]:
    """The claims of the library in a folder, and the seconds they took, compilation included."""
    with tempfile.TemporaryDirectory() as place:
        given, answer = Path(place) / "given", Path(place) / "answer"
        given.write_bytes(pickle.dumps((model, loss, data, theta)))
        command = [sys.executable, "-c", CHILD, str(ROOT), str(folder), str(given), str(answer)]
        subprocess.run(command, check=True, cwd=folder)
        return pickle.loads(answer.read_bytes())


def agree(model: str, one: Any, other: Any) -> bool:
    """Whether two claims of an instance are the same."""
    if one.outcome != other.outcome or one.outcome in OPEN:
        return one.outcome == other.outcome
    if model in run.ATTENTION:
        if not np.array_equal(one.selected, other.selected):
            return False
        a, b, allowed = one.direction, other.direction, NEAR
    else:
        a, b, allowed = one.beta, other.beta, NEAR
        if one.outcome in ("limit_point", "finite_stationary_point"):
            errors = one.error + other.error
            allowed = errors + 1e-12 if np.isfinite(errors) else POINT
    return bool(np.linalg.norm(a - b) <= allowed * max(np.linalg.norm(a), np.finfo(float).tiny))


def row(folder: Path, model: str, name: str, count: int, seed: int) -> dict[str, Any]:
    """A kind of instances: how many claims agree, and those that do not."""
    data, theta, kind = run.drawn(model, name, count, seed, "engines: ")
    (new, seconds), (old, old_seconds) = (claims_of(at, model, kind.loss, data, theta) for at in (ROOT, folder))
    differ = [i for i in range(count) if not agree(model, new[i], old[i])]
    listed: list[dict[str, Any]] = []
    for i in differ:
        listed.append({"index": i})
        for who, claim in (("new", new[i]), ("old", old[i])):
            found = run.judge(model, kind, data.take([i]), tuple(w[[i]] for w in theta), [claim])[0]
            listed[-1][who] = f"{claim.outcome}: {found.verdict}" + (f" ({found.why})" if found.why else "")
    return {
        "model": model,
        "kind": name,
        "instances": count,
        "agree": count - len(differ),
        "outcomes": dict(Counter(x.outcome for x in new)),
        "outcomes_old": dict(Counter(x.outcome for x in old)),
        "differ": listed,
        "seconds": seconds,
        "seconds_old": old_seconds,
    }


def main() -> None:
    asked = settings(
        __doc__, "engines", cached=True, against="", scale=1.0, seed=0, only=tuple(run.MODELS), kinds=("",)
    )
    folder = Path(asked.against).resolve()
    if not (folder / "jaxflow").is_dir():
        raise SystemExit(f"--against: {folder} is no checkout of this project")
    head = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=folder)
    record = Record(asked.out, same=("model", "kind"), against=head.stdout.strip(), seed=asked.seed)
    for model in asked.only:
        for name, count in kinds_of(model, round(COUNT * asked.scale), [k for k in asked.kinds if k]):
            record.add(row(folder, model, name, count, asked.seed))


if __name__ == "__main__":
    main()

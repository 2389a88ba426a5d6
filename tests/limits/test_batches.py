"""Batches of mixed lanes (`benchmarks/batch_lanes.py`): every lane ends as it does alone, whatever is beside it."""

import importlib.util
import threading
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

FILE = Path(__file__).resolve().parents[2] / "benchmarks" / "batch_lanes.py"


def _loaded() -> Any:
    spec = importlib.util.spec_from_file_location("batch_lanes", FILE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


batch_lanes = _loaded()

# On CPU limits under `vmap` are the single ones in a loop. XLA may fuse the two programs differently, and a limit that
# is certified to 1e-8 has a direction good to the root of that. Programs count as solved to 1e-8, likewise. Paths at
# tolerances of 1e-8 differ by roundings that their steps do not amplify.
TOLERANCE = 1e-4
CLOSER = {"program, Frobenius norm": 1e-10, "integrate": 1e-10, "descend": 1e-10}
# Of ordinary lanes half or less are decided: heads that compose tokens, and layers that all have to be.
RARELY_DECIDED = ("ReLU head", "concave head", "layers in parallel")
FAST = ("W", "program, Frobenius norm", "program, l1 norm", "integrate", "descend")
# All but regression, whose points are followed twice: ten lanes alone and together take minutes.
TEN = tuple(name for name in batch_lanes.CASES if not name.startswith("regression"))
# 64 lanes of these take a minute or two; of the others (`benchmarks/batches.py`) more.
MANY = (
    *("W", "K, Q", "concave head", "sequences", "layers in parallel"),
    *("diagonal network, 2 layers", "diagonal network, 3 layers", "a model of one's own"),
    *("program, Frobenius norm", "program, nuclear norm", "program, l1 norm", "integrate", "descend"),
)


def check(name: str, count: int) -> None:
    case = batch_lanes.CASES[name]
    instances = batch_lanes.lanes(case, count)
    batch = jax.jit(jax.vmap(case.answer))(*batch_lanes.stacked(instances))
    single = jax.jit(case.answer)
    alone = [single(*one) for one in instances]
    found = batch_lanes.compare(batch, alone)
    flaws = [batch_lanes.FLAWS[k % len(batch_lanes.FLAWS)] for k in range(count)]
    assert not found.differing, [flaws[k] for k in found.differing]
    assert found.apart <= CLOSER.get(name, TOLERANCE)
    # Ordinary lanes find something, what is NaN or infinite does not.
    decided = np.asarray(batch.decided)
    assert not np.any(decided[[flaw in ("NaN", "infinite") for flaw in flaws]])
    ordinary = decided[[flaw == "none" for flaw in flaws]]
    if name not in RARELY_DECIDED:
        # Two of ten lanes are ordinary, and a ReLU network may start where it never fits.
        assert np.mean(ordinary) >= 0.5
    elif name in MANY and count >= 64:
        assert np.any(decided)


@pytest.mark.parametrize("name", [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in TEN])
def test_ten_mixed_lanes_end_as_they_do_alone(name: str) -> None:
    check(name, 10)


@pytest.mark.slow
@pytest.mark.parametrize("name", MANY)
def test_sixty_four_mixed_lanes_end_as_they_do_alone(name: str) -> None:
    check(name, 64)


@pytest.mark.slow
def test_two_batches_at_a_time_end() -> None:
    runs: list[Any] = []
    for name in ("W", "program, Frobenius norm"):
        case = batch_lanes.CASES[name]
        batch = batch_lanes.stacked(batch_lanes.lanes(case, 10))
        runs.append((jax.jit(jax.vmap(case.answer)).lower(*batch).compile(), batch))
    ended = [0, 0]

    def work(k: int) -> None:
        run, batch = runs[k]
        for _ in range(5):
            jax.block_until_ready(run(*batch))
            ended[k] += 1

    threads = [threading.Thread(target=work, args=(k,), daemon=True) for k in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        # A second would do; a batch that stands still does so for ever.
        thread.join(120.0)
    assert ended == [5, 5]

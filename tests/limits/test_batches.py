"""Batches of mixed lanes (`benchmarks/batches.py`): every lane ends as it does alone, whatever is beside it."""

import functools
import importlib
import threading
from typing import Any

import jax
import numpy as np
import pytest

batches = importlib.import_module("batches")

# On CPU limits under `vmap` are the single ones in a loop. XLA may fuse the two programs differently, and a limit that
# is certified to 1e-8 has a direction good to the root of that. Programs count as solved to 1e-8, likewise. Paths at
# tolerances of 1e-8 differ by roundings that their steps do not amplify.
TOLERANCE = 1e-4
CLOSER = {"program, Frobenius norm": 1e-10, "integrate": 1e-10, "descend": 1e-10}
# Lanes that go side by side, 64 of them: more than XLA has threads for.
SIDE_BY_SIDE = ("program, Frobenius norm", "program, nuclear norm", "program, l1 norm", "integrate", "descend")
# Limits are found in a loop over ten lanes (`one_lane_at_a_time`), whatever the model: W stands for all of them. (All
# cases: `benchmarks/batches.py`. Batches of networks and of models of one's own stand beside known answers in
# `test_found.py` and `test_own_model.py`.)
NAMES = ("W", *SIDE_BY_SIDE)


@functools.cache
def batch_of(name: str) -> tuple[Any, list[Any]]:
    """The compiled program of a case for a batch, and its instances."""
    case = batches.CASES[name]
    instances = batches.lanes(case, 64 if name in SIDE_BY_SIDE else 10)
    return jax.jit(jax.vmap(case.answer)), instances


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_mixed_lanes_end_as_they_do_alone(name: str) -> None:
    run, instances = batch_of(name)
    flaws = [batches.FLAWS[k % len(batches.FLAWS)] for k in range(len(instances))]
    batch = run(*batches.stacked(instances))
    single = jax.jit(batches.CASES[name].answer)
    found = batches.compare(batch, [single(*one) for one in instances])
    assert not found.differing, [flaws[k] for k in found.differing]
    assert found.apart <= CLOSER.get(name, TOLERANCE)
    # Ordinary lanes find something, what is NaN or infinite does not.
    decided = np.asarray(batch.decided)
    assert not np.any(decided[[flaw in ("NaN", "infinite") for flaw in flaws]])
    assert np.mean(decided[[flaw == "none" for flaw in flaws]]) >= 0.5


@pytest.mark.slow
def test_two_batches_at_a_time_end() -> None:
    ended = {"W": 0, "program, Frobenius norm": 0}

    def work(name: str) -> None:
        run, instances = batch_of(name)
        batch = batches.stacked(instances)
        for _ in range(5):
            jax.block_until_ready(run(*batch))
            ended[name] += 1

    for name in ended:
        run, instances = batch_of(name)
        jax.block_until_ready(run(*batches.stacked(instances)))
    threads = [threading.Thread(target=work, args=(name,), daemon=True) for name in ended]
    for thread in threads:
        thread.start()
    for thread in threads:
        # A second would do; a batch that stands still does so for ever.
        thread.join(120.0)
    assert list(ended.values()) == [5, 5]

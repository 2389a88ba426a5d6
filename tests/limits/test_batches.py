"""Batches of mixed lanes (`benchmarks/batches.py`): every lane ends as it does alone, whatever is beside it."""

import importlib

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


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_mixed_lanes_end_as_they_do_alone(name: str) -> None:
    case = batches.CASES[name]
    instances = batches.lanes(case, 64 if name in SIDE_BY_SIDE else 10)
    flaws = [batches.FLAWS[k % len(batches.FLAWS)] for k in range(len(instances))]
    batch = jax.jit(jax.vmap(case.answer))(*batches.stacked(instances))
    single = jax.jit(case.answer)
    found = batches.compare(batch, [single(*one) for one in instances])
    assert not found.differing, [flaws[k] for k in found.differing]
    assert found.apart <= CLOSER.get(name, TOLERANCE)
    # Ordinary lanes find something, what is NaN or infinite does not.
    decided = np.asarray(batch.decided)
    assert not np.any(decided[[flaw in ("NaN", "infinite") for flaw in flaws]])
    assert np.mean(decided[[flaw == "none" for flaw in flaws]]) >= 0.5

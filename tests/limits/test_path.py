"""The loop over gears: one path in stretches, alone, mapped over, and in a block with a queue for each gear."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxflow as jf
from jaxflow.limits.attention import AttentionGears, Gear, cap_of
from jaxflow.limits.many import begun_paths, follow_many, turned
from jaxflow.limits.path import End, follow
from jaxflow.limits.stages import fitted_below, kept
from jaxflow.study import TokenSelection

# Of W at (5, 5, 2): stiff paths, a finite point, and one that leaves a selection again (the last).
KEYS = (0, 1, 4, 10, 24, 92)
BUDGET = 2000


def gears(risk, model):
    cap = cap_of(model, 1e-8)
    return AttentionGears(conserved=kept(model), gap=1e-8, cap=cap, far=cap, fitted=fitted_below(risk, model))


@pytest.fixture(scope="module")
def instances():
    experiment = TokenSelection()
    keys = jnp.stack([jax.random.key(90_000 + k) for k in KEYS])
    return jax.jit(jax.vmap(lambda key: experiment.setup(key, n=5, T=5, d=2)))(keys)


@pytest.fixture(scope="module")
def path_of(instances):
    """Outside of `jit` a path goes on by a program for each gear, compiled when it is needed."""

    @functools.cache
    def followed(i):
        risk, model = jax.tree.map(lambda x: x[i], instances)
        return follow(gears(risk, model), risk, model, BUDGET)

    return followed


@pytest.fixture(scope="module")
def paths(path_of):
    return [path_of(i) for i in range(len(KEYS))]


def tokens(path, risk):
    return np.argmax(np.asarray(path.final.model.attention(risk.data)), axis=-1)


@pytest.mark.slow
def test_every_path_ends_and_its_ledger_adds_up(paths):
    for path in paths:
        taken = {name: int(x) for name, x in path.stats.items()}
        assert path.result == jf.RESULTS.event_occurred and taken["num_steps"] < BUDGET
        by_gear = [taken[f"num_{name}_steps"] for name in Gear.__members__]
        # A stretch without a step counts as one against the budget.
        assert taken["num_steps"] <= sum(by_gear) <= taken["num_steps"] + 3
        assert taken["num_steps"] == taken["num_accepted_steps"] + taken["num_rejected_steps"]
    assert sum(int(path.stats["num_implicit_steps"] > 0) for path in paths) >= 3


@pytest.mark.slow
def test_a_selection_that_is_left_again_is_followed_to_the_next(path_of, instances):
    """An implicit integration from the start agrees once it is followed beyond a log arc length of 7.4
    (benchmarks/crowded.py)."""
    risk = jax.tree.map(lambda x: x[-1], instances[0])
    np.testing.assert_array_equal(tokens(path_of(len(KEYS) - 1), risk), [3, 1, 1, 0, 4])


@pytest.mark.slow
def test_a_queue_for_each_gear_follows_the_same_paths(paths, instances):
    """The host reads which gear goes on; what a lane does in it is the same."""

    def turn(gear, again, risks, starts, ways):
        return turned(gears, gear, jnp.asarray(again), risks, starts, ways, jnp.asarray(BUDGET), 3)

    risks, models = instances
    ways = follow_many(risks, models, begun_paths(gears, risks, models), turn)
    assert set(np.asarray(ways.gear).tolist()) == {End.ended, End.rests}
    assert np.all(np.asarray(ways.stretches)[:, Gear.explicit] >= 1)
    for i, path in enumerate(paths):
        # Lanes side by side round differently, so that steps may be a few more or less.
        taken = np.asarray(ways.steps[i])
        alone = [int(path.stats[f"num_{name}_steps"]) for name in Gear.__members__]
        assert abs(taken[list(Gear)].sum() - sum(alone)) <= 0.1 * sum(alone)
        risk, final = (jax.tree.map(lambda x, i=i: x[i], tree) for tree in (risks, ways.path.final))
        np.testing.assert_array_equal(np.argmax(final.model.attention(risk.data), -1), tokens(path, risk))

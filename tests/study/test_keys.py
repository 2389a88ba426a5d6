"""Keys are hashes of names: golden values, and what must not change them."""

import jax
import numpy as np
import pytest

from jaxflow.study import trial_key
from jaxflow.study.keys import canonical, key_data

# Part of every result that was ever stored: these never change.
GOLDEN = {
    (0, "TokenSelection", (("d", 4),), 17): (2388224977, 3076610374),
    (0, "TokenSelection", (("d", 4),), 18): (2751720746, 1645087429),
    (1, "TokenSelection", (("d", 4),), 17): (2675835466, 3552057159),
    (0, "cheap", (), 0): (63408015, 27407342),
    (7, "cheap", (("T", 5), ("d", 10), ("score_gap", 0.1), ("law", "sphere")), 123456): (588909178, 3343847738),
}


@pytest.mark.parametrize(("named", "words"), GOLDEN.items(), ids=str)
def test_golden(named, words):
    seed, experiment, factors, trial = named
    assert tuple(key_data(seed, experiment, dict(factors), [trial])[0].tolist()) == words
    np.testing.assert_array_equal(jax.random.key_data(trial_key(seed, experiment, dict(factors), trial)), words)


@pytest.mark.parametrize("generator", ["threefry2x32", "rbg"])
def test_the_first_draw_of_a_key_is_golden_whatever_the_default_generator(generator):
    with jax.default_prng_impl(generator):
        key = trial_key(0, "TokenSelection", {"d": 4}, 17)
        assert float(jax.random.uniform(key, dtype="float32")) == 0.6194732189178467


def test_equal_numbers_have_one_key():
    ways = [{"d": 2}, {"d": 2.0}, {"d": np.int64(2)}, {"d": np.float32(2)}]
    assert len({key_data(0, "cheap", way, [0]).tobytes() for way in ways}) == 1
    assert canonical({"b": 1.5, "a": [True, "x"]}) == '{"a":[true,"x"],"b":1.5}'


def test_names_make_different_keys():
    ways = [(0, "a", {"d": 2}), (1, "a", {"d": 2}), (0, "b", {"d": 2}), (0, "a", {"d": 3}), (0, "a", {"T": 2})]
    ways += [(0, "a", {"d": "2"}), (0, "a", {"d": True}), (0, "a", {})]
    words = np.concatenate([key_data(*way, range(1000)) for way in ways])
    assert len(np.unique(words, axis=0)) == len(words)

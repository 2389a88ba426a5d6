"""Experiments that return what no store can hold, that draw from the machine, or that have changed since."""

import jax
import numpy as np
import pytest

from jaxflow._core import Code, Outcome
from jaxflow.study import AbstractExperiment, OtherStudy, Study, TwoResults, status
from tests.study.cheap import HostExperiment, cheap, payload, restore, tiny_study


class Odd(AbstractExperiment):
    """What an experiment should not do, by name."""

    how: str = ""

    def setup(self, key, d=2, parametrization="W"):
        raise NotImplementedError

    def summarize(self, limit):
        raise NotImplementedError

    def block_function(self, factors, trial_width):
        good = {"outcome": np.ones(trial_width, int), "value": np.ones(trial_width)}
        odd = {
            "nan": {"value": np.full(trial_width, np.nan)},
            "huge": {"value": np.ones((trial_width, 100_000))},
            "scalar": {"value": 1.0},
            "long": {"value": np.ones(trial_width + 1)},
            "empty": {"value": np.ones((trial_width, 0))},
            "ragged": {"value": [[1.0], [1.0, 2.0], [], [3.0]]},
            "text": {"value": np.array(["a"] * trial_width)},
            "objects": {"value": np.array([print] * trial_width)},
            "wide": {"value": np.ones(trial_width, np.longdouble)},
            "complex": {"value": np.ones(trial_width, complex)},
            "nested": {"value": {"a": np.ones(trial_width)}},
            "none": {"value": None},
            "path": {"../value": np.ones(trial_width)},
            "number": {3: np.ones(trial_width)},
            "long name": {"v" * 300: np.ones(trial_width)},
            "axis": {"value": np.ones((trial_width, 2)), "value_0": np.ones(trial_width)},
            "not run": {"outcome": np.zeros(trial_width, int)},
            "no code": {"outcome": np.full(trial_width, 77)},
            "half": {"outcome": np.full(trial_width, 1.5)},
            "keys": {"value": jax.random.split(jax.random.key(0), trial_width)},
        }[self.how]
        return lambda keys: good | odd


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("scalar", "value has 0 rows for 4 keys"),
        ("long", "value has 5 rows for 4 keys"),
        ("empty", r"value has the shape \[0\] for each key, which holds nothing"),
        ("ragged", "value is no array of numbers"),
        ("text", "value has dtype <U1; numbers and Booleans"),
        ("objects", "value has dtype object"),
        ("wide", "value has dtype float128; numbers and Booleans of up to 64 bits"),
        ("complex", "value has dtype complex128"),
        ("nested", "value has dtype object"),
        ("none", "value has dtype object"),
        ("path", r"'\.\./value' is no name for a result"),
        ("number", "3 is no name for a result"),
        ("long name", "is too long for a name"),
        ("axis", "value_0 is what the store calls an axis of value"),
        ("not run", "outcome must be one code"),
        ("no code", "outcome must be one code"),
        ("half", "outcome must be one code"),
        ("keys", "value is no array of numbers"),
        ("nan", None),
        ("huge", None),
    ],
)
def test_odd_results(how, message, tmp_path, quick):
    path, study = tmp_path / "r.zarr", tiny_study(Odd(how))
    if how == "wide" and np.longdouble is np.float64:
        pytest.skip("a long double is a double here")
    if message is None:
        with study.run(path, progress=False) as results:
            shape = (1, 1, 7, 100_000) if how == "huge" else (1, 1, 7)
            assert results["value"].shape == shape and int((results["outcome"] == 1).sum()) == 7
        assert status(path, verify=True).complete
        return
    for _ in range(2):
        with pytest.raises(ValueError, match=message) as error:
            study.run(path, progress=False)
        assert str(error.value).startswith("results of Odd: ") and "\n" not in str(error.value)
        # Nothing of the block was written, and the store can be continued.
        assert status(path, verify=True).blocks == 0
    assert not list(path.rglob("c/0/0/*"))


def test_a_result_whose_axis_is_a_factor(tmp_path):
    study = Study(lambda key, value_0: {"value": np.ones(2)}, {"value_0": [1, 2]}, trials=2, block=2)
    with pytest.raises(ValueError, match="results: value_0 is a factor, and what the store calls an axis of 'value'"):
        study.run(tmp_path / "r.zarr", progress=False)


class Lots(AbstractExperiment):
    """Draws from the machine in place of its key."""

    def setup(self, key, d=2, parametrization="W"):
        raise NotImplementedError

    def summarize(self, limit):
        raise NotImplementedError

    def block_function(self, factors, trial_width):
        luck = np.random.default_rng()
        return lambda keys: {"outcome": Code(np.ones(trial_width), Outcome), "value": luck.random(trial_width)}


@pytest.mark.parametrize("trials", [7, 9])
def test_an_experiment_that_is_no_function_of_its_key(trials, tmp_path, quick):
    path = tmp_path / "r.zarr"
    tiny_study(Lots()).run(path, progress=False)
    if trials == 7:
        (path / "outcome/c/0/0/1").unlink()
    before = payload(path)
    with pytest.raises(TwoResults, match="value of trials .* no function of its key, or has changed since"):
        tiny_study(Lots(), trials=trials).run(path, progress=False)
    numbers = {name: data for name, data in payload(path).items() if "value/c/" in name}
    assert numbers == {name: data for name, data in before.items() if "value/c/" in name}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"block": 5}, "block 4 there, 5 here"),
        ({"seed": 1}, "seed 0 there, 1 here"),
        ({"data_factors": {"d": [2, 4]}}, r"\['d', \[2\]\].*\['d', \[2, 4\]\]"),
        ({"data_factors": {"d": [True]}}, r"\[2\].*\[True\]"),
        ({"method_factors": {}}, "method_factors .* there, .* here"),
        ({"experiment": cheap}, "'name': 'HostExperiment'"),
        ({"experiment": HostExperiment(misbehave="never")}, "'misbehave': ''"),
    ],
)
def test_another_spec(changes, message, tmp_path, tiny, quick):
    whole, _ = tiny
    path = tmp_path / "r.zarr"
    restore(path, whole)
    with pytest.raises(OtherStudy, match=message):
        tiny_study(**changes).run(path, progress=False)
    assert payload(path) == whole


def test_true_is_not_one(tmp_path, quick):
    """Python calls them equal, and their keys are not."""
    path = tmp_path / "r.zarr"
    tiny_study(cheap, data_factors={"d": [2], "spread": [1]}).run(path, progress=False)
    other = tiny_study(cheap, data_factors={"d": [2], "spread": [True]})
    with pytest.raises(OtherStudy, match="belongs to another study"):
        other.run(path, progress=False)
    with pytest.raises(ValueError, match="belongs to another study"):
        other.status(path)


def nested(key, d=2, parametrization="W"):
    return {"value": {"a": 1.0}}


def listed(key, d=2, parametrization="W"):
    return {"value": [1.0, 2.0, 3.0, 4.0]}


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (nested, "results of nested: value is no array of numbers"),
        (lambda key, **factors: {"value": "a"}, "value is no array of numbers"),
        (lambda key, **factors: {"value": None}, "value is no array of numbers"),
        (lambda key, **factors: {3: 1.0, "a": 2.0}, "3 is no name for a result"),
        (lambda key, **factors: 1.0, "expected a dictionary"),
        (lambda key, **factors: {}, "expected a dictionary"),
    ],
)
def test_what_a_function_may_not_return(function, message, tmp_path, quick):
    with pytest.raises(ValueError, match=message):
        tiny_study(function).run(tmp_path / "r.zarr", progress=False)


def test_a_list_is_a_small_array(tmp_path, quick):
    """Of as many numbers as a block has trials: they are not taken for those of other trials."""
    with tiny_study(listed).run(tmp_path / "r.zarr", progress=False) as results:
        np.testing.assert_array_equal(results["value"].values, np.broadcast_to([1.0, 2.0, 3.0, 4.0], (1, 1, 7, 4)))


def test_other_settings_of_jax(tmp_path, tiny, quick):
    whole, _ = tiny
    path = tmp_path / "r.zarr"
    restore(path, whole)
    with jax.enable_x64(False), pytest.raises(OtherStudy, match="jax_enable_x64 True then, False now"):
        tiny_study().run(path, progress=False)
    assert payload(path) == whole

"""Experiments that return what no store can hold, that raise, that draw from the machine, or that are others now."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray

from jaxflow._core import Code, Outcome, SelectionStatus
from jaxflow.study import AbstractExperiment, OtherStudy, Study, TwoResults, status
from jaxflow.study.results import collect
from tests.study.cheap import HostExperiment, cheap, payload, small_study, tiny_study

ONES = np.ones(4)
GOOD = {"outcome": np.ones(4, int), "value": ONES}
NO_CODE = "outcome must be one code of `Outcome` for each key"

# What a block of four returns that should not, and what is said of it; None where it is stored as it is.
ODD = {
    "scalar": (GOOD | {"value": 1.0}, "value has 0 rows for 4 keys"),
    "long": (GOOD | {"value": np.ones(5)}, "value has 5 rows for 4 keys; each key has exactly one result"),
    "empty": (GOOD | {"value": np.ones((4, 0))}, r"value has the shape \[0\] for each key, which holds nothing"),
    "ragged": (GOOD | {"value": [[1.0], [1.0, 2.0], [], [3.0]]}, "value is no array of numbers"),
    "text": (GOOD | {"value": np.array(["a"] * 4)}, "value has dtype <U1; numbers and Booleans"),
    "objects": (GOOD | {"value": np.array([print] * 4)}, "value has dtype object"),
    "wide": (
        GOOD | {"value": np.ones(4, np.longdouble)},
        "value has dtype float128; numbers and Booleans of up to 64 bits",
    ),
    "complex": (GOOD | {"value": np.ones(4, complex)}, "value has dtype complex128"),
    "nested": (GOOD | {"value": {"a": ONES}}, "value has dtype object"),
    "none": (GOOD | {"value": None}, "value has dtype object"),
    "keys": (GOOD | {"value": jax.random.split(jax.random.key(0), 4)}, "value is no array of numbers"),
    "path": (GOOD | {"../value": ONES}, r"'\.\./value' is no name for a result"),
    "spaced": (GOOD | {"a b": ONES}, "'a b' is no name for a result"),
    "number": (GOOD | {3: ONES}, "3 is no name for a result"),
    "long name": (GOOD | {"v" * 300: ONES}, "is too long for a name"),
    "axis": (GOOD | {"value": np.ones((4, 2)), "value_0": ONES}, "value_0 is what the store calls an axis of value"),
    "taken": (GOOD | {"block": ONES}, "the store itself uses the name 'block'"),
    "no outcome": ({"value": ONES}, "`outcome` is missing"),
    "not run": (GOOD | {"outcome": np.zeros(4, int)}, NO_CODE),
    "no code": (GOOD | {"outcome": np.full(4, 77)}, NO_CODE),
    "half": (GOOD | {"outcome": np.full(4, 1.5)}, NO_CODE),
    "two codes": (GOOD | {"outcome": np.ones((4, 2), int)}, NO_CODE),
    "nan for a code": (GOOD | {"outcome": np.full(4, np.nan)}, NO_CODE),
    "list": ([1.0], "expected a dictionary"),
    "nothing": ({}, "expected a dictionary"),
    "nan": (GOOD | {"value": np.full(4, np.nan)}, None),
    "huge": (GOOD | {"value": np.ones((4, 100_000))}, None),
}


class Odd(AbstractExperiment):
    """What an experiment should not do, by name."""

    how: str = ""

    def setup(self, key, d=2, parametrization="W"):
        raise NotImplementedError

    def summarize(self, limit):
        raise NotImplementedError

    def block_function(self, factors, trial_width):
        luck = np.random.default_rng()
        # Without a name: draws from the machine in place of its key.
        return lambda keys: ODD[self.how][0] if self.how else GOOD | {"value": luck.random(trial_width)}


@pytest.mark.parametrize("how", ODD)
def test_odd_results(how, tmp_path):
    path, study, message = tmp_path / "r.zarr", tiny_study(Odd(how)), ODD[how][1]
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


def nested(key, d=2, parametrization="W"):
    return {"value": {"a": 1.0}}


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (nested, "results of nested: value is no array of numbers"),
        (lambda key, **factors: {"value": "a"}, "value is no array of numbers"),
        (lambda key, **factors: {"value": None}, "value is no array of numbers"),
        (lambda key, **factors: {3: 1.0, "a": 2.0}, "3 is no name for a result"),
        (lambda key, **factors: 1.0, "expected a dictionary"),
        (lambda key, **factors: {}, "expected a dictionary"),
        (lambda key, d, **factors: {"d": d}, "'d' is the name of a factor as well"),
        (
            lambda key, value_0=1, **factors: {"value": np.ones(2)},
            "results: value_0 is a factor, and what the store calls an axis of 'value'",
        ),
    ],
)
def test_what_a_function_may_not_return(function, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        tiny_study(function, data_factors={"d": [2], "value_0": [1]} if "axis" in message else {"d": [2]}).run(
            tmp_path / "r.zarr", progress=False
        )


def test_a_list_is_a_small_array(tmp_path):
    """Of as many numbers as a block has trials: they are not taken for those of other trials."""
    study = tiny_study(lambda key, **factors: {"value": [1.0, 2.0, 3.0, 4.0]})
    with study.run(tmp_path / "r.zarr", progress=False) as results:
        np.testing.assert_array_equal(results["value"].values, np.broadcast_to([1.0, 2.0, 3.0, 4.0], (1, 1, 7, 4)))


def test_codes_keep_their_names():
    results = {"outcome": Code(jnp.ones(2), Outcome), "status": Code(jnp.ones(2), SelectionStatus)}
    arrays, layout = collect("cheap", True, results, 2)
    meanings = {variable.name: variable.meanings for variable in layout}
    assert arrays["status"].dtype == arrays["outcome"].dtype == "uint8"
    assert meanings["status"] == {"not_run": 0, **{s.name: s.value for s in SelectionStatus}}
    assert meanings["outcome"] == {o.name: o.value for o in Outcome}


def test_a_mismatch_is_found_before_anything_is_computed(tmp_path):
    """In any factor, and where two of them grow together; with the factor and the result in the sentence."""
    computed = []

    def changes(key, d, k=1, name="a"):
        jax.debug.callback(lambda: computed.append(d))
        return {"value": jnp.ones((2 if k == 3 and d == 4 else 1,)), "first" if name == "a" else "second": 1.0}

    for factors, message in [
        (
            {"d": [2], "name": ["a", "b"]},
            r"must give the same names, dtypes and shapes, but they depend on name, at .*'name': 'b'.*"
            "first is missing; second is new",
        ),
        (
            {"d": [2, 4], "k": [3, 1]},
            r"but they depend on d, at .*'d': 4.*value: f8\[1\] became value: f8\[2\].*`pad",
        ),
        ({"d": [2, 4], "k": [1, 3]}, r"but they depend on d and k, at .*value: f8\[1\] became value: f8\[2\]"),
    ]:
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.zarr"
        with pytest.raises(ValueError, match=message):
            Study(changes, factors, trials=2, block=2).run(path, progress=False)
        assert not list(path.rglob("c/**/0/0")) and computed == []


class Uneven(AbstractExperiment):
    """As many numbers as d, filled up by -1."""

    def setup(self, key, d):
        raise NotImplementedError

    def summarize(self, limit):
        raise NotImplementedError

    def block_function(self, factors, trial_width):
        def one(key):
            return {"outcome": Code(1, Outcome), "value": jnp.arange(factors["d"], dtype=jnp.int16)}

        return jax.jit(jax.vmap(one))

    def padding(self):
        return {"value": -1}


def test_results_of_several_lengths_are_filled_up(tmp_path):
    study = Study(Uneven(), {"d": [2, 4, 3]}, trials=3, block=2)
    path = tmp_path / "r.zarr"
    with study.run(path, progress=False) as results:
        assert results["value"].dtype == np.int16 and results["value"].attrs["padding_value"] == -1
        assert results["value"].isel(trial=2).values.tolist() == [[0, 1, -1, -1], [0, 1, 2, 3], [0, 1, 2, -1]]
        with xarray.open_dataset(path, engine="zarr", consolidated=False) as plain:
            np.testing.assert_array_equal(plain["value"].values, results["value"].values)
    assert study.recompute(d=3, trial=1)["value"].tolist() == [0, 1, 2, -1]
    before = payload(path)
    # A block that is lost, and trials that are added, are filled up in the same way.
    (path / "value/c/2/0/0").unlink()
    study.run(path, progress=False).close()
    assert payload(path) == before and study.status(path).complete
    grown = Study(Uneven(), {"d": [2, 4, 3]}, trials=5, block=2)
    with grown.run(path, progress=False) as results:
        assert results["value"].isel(trial=4).values.tolist() == [[0, 1, -1, -1], [0, 1, 2, 3], [0, 1, 2, -1]]
    # Of one length nothing is filled up, and the store is the one that it was before there was a padding.
    with Study(Uneven(), {"d": [3]}, trials=3, block=2).run(tmp_path / "one.zarr", progress=False) as results:
        assert results["value"].shape == (1, 3, 3) and "padding_value" not in results["value"].attrs
        assert "-1" not in results.attrs["layout"]


def test_an_error_of_the_experiment_names_the_trials_and_keeps_the_rest(tmp_path):
    study = small_study(HostExperiment(misbehave="raise"))
    with pytest.raises(ArithmeticError, match="this cell cannot be computed") as error:
        study.run(tmp_path / "r.zarr", progress=False)
    assert "in trials range(0, 4) at {'d': 3, 'parametrization': 'W'}" in error.value.__notes__[0]
    assert study.status(tmp_path / "r.zarr").blocks == 6


@pytest.mark.parametrize("trials", [7, 9])
def test_an_experiment_that_is_no_function_of_its_key(trials, tmp_path):
    path = tmp_path / "r.zarr"
    tiny_study(Odd()).run(path, progress=False)
    if trials == 7:
        (path / "outcome/c/0/0/1").unlink()
    before = payload(path)
    with pytest.raises(TwoResults, match="value of trials .* no function of its key, or has changed since"):
        tiny_study(Odd(), trials=trials).run(path, progress=False)
    numbers = {name: data for name, data in payload(path).items() if "value/c/" in name}
    assert numbers == {name: data for name, data in before.items() if "value/c/" in name}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"block": 5}, "block 4 there, 5 here"),
        ({"seed": 1}, "seed 0 there, 1 here"),
        ({"trials": 6}, "trials 7 there, 6 here"),
        ({"data_factors": {"d": [2, 4]}}, r"\['d', \[2\]\].*\['d', \[2, 4\]\]"),
        ({"data_factors": {"d": [True]}}, r"\[2\].*\[True\]"),
        ({"method_factors": {}}, "method_factors .* there, .* here"),
        ({"experiment": cheap}, "'name': 'HostExperiment'"),
        ({"experiment": HostExperiment(misbehave="never")}, "'misbehave': ''"),
    ],
)
def test_another_spec(changes, message, copy, tiny):
    other = tiny_study(**changes)
    with pytest.raises(OtherStudy, match=f"belongs to another study: .*{message}"):
        other.run(copy, progress=False)
    for use in (other.status, other.plot):
        with pytest.raises(ValueError, match="belongs to another study"):
            use(copy)
    assert payload(copy) == tiny[0]


def test_true_is_not_one(tmp_path):
    """Python calls them equal, and their keys are not."""
    path, other = tmp_path / "r.zarr", tiny_study(data_factors={"d": [True]})
    tiny_study(data_factors={"d": [1]}).run(path, progress=False)
    for use in (lambda path: other.run(path, progress=False), other.status):
        with pytest.raises(ValueError, match="belongs to another study"):
            use(path)


def test_other_settings_of_jax(copy, tiny):
    with jax.enable_x64(False), pytest.raises(OtherStudy, match="jax_enable_x64 True then, False now"):
        tiny_study().run(copy, progress=False)
    assert payload(copy) == tiny[0]

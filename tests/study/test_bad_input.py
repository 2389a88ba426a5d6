"""Wrong arguments are answered by name, before anything is computed or written."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray

from jaxflow._core import Code, Outcome, SelectionStatus
from jaxflow.study import AbstractExperiment, Study
from jaxflow.study.results import collect
from tests.study.cheap import HostExperiment, cheap, payload, small_study


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"trials": 0}, "trials: expected at least 1, got 0"),
        ({"block": 0}, "block: expected at least 1"),
        ({"data_factors": {"d": []}}, "d: a factor needs at least one value"),
        ({"data_factors": {"d": 4}}, "expected a list of values, got 4"),
        ({"data_factors": {"d": "24"}}, "expected a list of values, got '24'"),
        ({"data_factors": {"d": [2, 2.0]}}, "d: 2 is given twice; one instance would have two results"),
        ({"data_factors": {"d": [2, "a"]}}, "values of different kinds"),
        ({"data_factors": {"d": [None]}}, "expected numbers, Booleans or strings, got None"),
        ({"data_factors": {"d": [float("nan")]}}, "contains NaN or an infinity"),
        ({"data_factors": {"spraed": [1.0]}}, "factors: unknown name 'spraed'; did you mean 'spread'?"),
        ({"data_factors": {"parametrization": ["W"]}}, "parametrization is a data factor as well"),
        ({"data_factors": {"trial": [1]}}, "unknown name 'trial'"),
    ],
)
def test_arguments_of_a_study(changes, message):
    with pytest.raises(ValueError) as error:
        small_study(**changes)
    assert message in str(error.value)


def test_names_that_the_store_uses():
    with pytest.raises(ValueError, match="'trial' is a name that the store uses itself"):
        Study(lambda key, **factors: {}, {"trial": [1, 2]})


def test_an_experiment_is_an_instance_or_a_function():
    for wrong in (HostExperiment, 3, None):
        with pytest.raises(ValueError, match="experiment: expected an experiment"):
            Study(wrong)


def test_a_factor_that_the_experiment_needs():
    def needs(key, d, T):
        return {"value": d * T}

    with pytest.raises(ValueError, match="factors: needs needs T as well"):
        Study(needs, {"d": [1]})


@pytest.mark.parametrize(
    ("results", "message"),
    [
        ([1.0], "expected a dictionary"),
        ({}, "expected a dictionary"),
        ({"value": jnp.ones(8)}, "value has 8 rows for 4 keys; each key has exactly one result"),
        ({"value": jnp.ones(())}, "value has 0 rows for 4 keys"),
        ({"value": jnp.ones(4, complex)}, "value has dtype complex"),
        ({"block": jnp.ones(4)}, "the store itself uses the name 'block'"),
        ({"a b": jnp.ones(4)}, "'a b' is no name for a result"),
        ({"value": jnp.ones(4)}, "`outcome` is missing"),
        ({"outcome": jnp.zeros(4, int)}, "outcome must be one code of `Outcome` for each key"),
        ({"outcome": jnp.full(4, 200)}, "outcome must be one code of `Outcome` for each key"),
        ({"outcome": jnp.ones((4, 2), int)}, "outcome must be one code of `Outcome` for each key"),
        ({"outcome": jnp.full(4, jnp.nan)}, "outcome must be one code of `Outcome` for each key"),
    ],
)
def test_results_of_a_block(results, message):
    with pytest.raises(ValueError) as error:
        collect("cheap", True, results, 4)
    assert message in str(error.value)


def test_codes_keep_their_names():
    results = {"outcome": Code(jnp.ones(2), Outcome), "status": Code(jnp.ones(2), SelectionStatus)}
    arrays, layout = collect("cheap", True, results, 2)
    meanings = {variable.name: variable.meanings for variable in layout}
    assert arrays["status"].dtype == arrays["outcome"].dtype == "uint8"
    assert meanings["status"] == {"not_run": 0, **{s.name: s.value for s in SelectionStatus}}
    assert meanings["outcome"] == {o.name: o.value for o in Outcome}


def test_results_that_change_between_cells(tmp_path):
    def changes(key, d):
        return {"value": jnp.ones(d)}

    with pytest.raises(ValueError, match=r"same names, dtypes and shapes.*'d': 3.*f8\[2\] became value: f8\[3\]"):
        Study(changes, {"d": [2, 3]}, trials=2, block=2).run(tmp_path / "r.zarr", progress=False)

    def renames(key, d):
        return {"value" if d == 2 else "valeu": jnp.ones(())}

    with pytest.raises(ValueError, match="value is missing; valeu is new"):
        Study(renames, {"d": [2, 3]}, trials=2, block=2).run(tmp_path / "s.zarr", progress=False)


def test_a_result_named_like_a_factor(tmp_path):
    with pytest.raises(ValueError, match="'d' is the name of a factor as well"):
        Study(lambda key, d: {"d": d}, {"d": [2]}, trials=2).run(tmp_path / "r.zarr", progress=False)


def test_an_error_of_the_experiment_names_the_trials_and_keeps_the_rest(tmp_path):
    study = small_study(HostExperiment(misbehave="raise"))
    with pytest.raises(ArithmeticError, match="this cell cannot be computed") as error:
        study.run(tmp_path / "r.zarr", progress=False)
    assert "in trials range(0, 4) at {'d': 3, 'parametrization': 'W'}" in error.value.__notes__[0]
    assert study.status(tmp_path / "r.zarr").blocks == 6


@pytest.mark.parametrize(
    ("executor", "message"),
    [
        ("dsak", "executor: unknown name 'dsak'; did you mean 'dask'?"),
        (4, "executor: expected None, a name or a concurrent.futures executor, got 4"),
    ],
)
def test_unknown_executors(executor, message, tmp_path):
    with pytest.raises(ValueError) as error:
        small_study().run(tmp_path / "r.zarr", executor=executor)
    assert message in str(error.value)
    assert not (tmp_path / "r.zarr").exists()


def test_replay_asks_for_what_it_needs():
    study = small_study()
    with pytest.raises(ValueError, match="factors: give parametrization as well"):
        study.replay(d=2, trial=0)
    with pytest.raises(ValueError, match="unknown name 'parametrisation'; did you mean 'parametrization'"):
        study.replay(d=2, parametrisation="W", trial=0)
    with pytest.raises(ValueError, match="trial: expected a number from 0"):
        study.replay(d=2, parametrization="W", trial=-1)


def test_a_file_in_the_way(tmp_path):
    (tmp_path / "r.zarr").write_text("mine")
    with pytest.raises(ValueError, match="is a file, not a folder"):
        small_study(cheap).run(tmp_path / "r.zarr")


def test_a_mismatch_is_found_before_anything_is_computed(tmp_path):
    """In any factor, and where two of them grow together; with the factor and the result in the sentence."""
    computed = []

    def changes(key, d, k=1, name="a"):
        jax.debug.callback(lambda: computed.append(d))
        return {"value": jnp.ones((2 if k == 3 and d == 4 else 1,)), "first" if name == "a" else "second": 1.0}

    for factors, message in [
        ({"d": [2], "name": ["a", "b"]}, r"but they depend on name, at .*'name': 'b'.*first is missing; second is new"),
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


def test_results_of_several_lengths_are_filled_up(tmp_path, quick):
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

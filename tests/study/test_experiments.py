"""Experiments of one's own: outcomes that they name; what no store can hold; those that raise, draw from the machine,
or are others now."""

import enum

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray

import jaxflow as jf
from jaxflow._core import Code, Outcome, SelectionStatus
from jaxflow.report import study_html
from tests.study.cheap import Blockwise, HostExperiment, cheap, payload, small_study, tiny_study

ONES = np.ones(4)
GOOD = {"outcome": np.ones(4, int), "value": ONES}
NO_CODE = "outcome must be one code of `Outcome` for each key"

# What a block of four returns that should not, and what is said of it; None where it is stored as it is.
ODD = {
    "long": (GOOD | {"value": np.ones(5)}, "value has 5 rows for 4 keys; each key has exactly one result"),
    "empty": (GOOD | {"value": np.ones((4, 0))}, r"value has the shape \[0\] for each key, which holds nothing"),
    "ragged": (GOOD | {"value": [[1.0], [1.0, 2.0], [], [3.0]]}, "value is no array of numbers"),
    "text": (GOOD | {"value": np.array(["a"] * 4)}, "value has dtype <U1; numbers and Booleans"),
    "none": (GOOD | {"value": None}, "value has dtype object"),
    "complex": (GOOD | {"value": np.ones(4, complex)}, "value has dtype complex128"),
    "keys": (GOOD | {"value": jax.random.split(jax.random.key(0), 4)}, "value is no array of numbers"),
    "path": (GOOD | {"../value": ONES}, r"'\.\./value' is no name for a result"),
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
    "nan": (GOOD | {"value": np.full(4, np.nan)}, None),
    "huge": (GOOD | {"value": np.ones((4, 100_000))}, None),
}
if np.longdouble is not np.float64:
    ODD["wide"] = (GOOD | {"value": np.ones(4, np.longdouble)}, "numbers and Booleans of up to 64 bits")


class Odd(Blockwise):
    """What an experiment should not do, by name."""

    how: str = ""

    def block_function(self, factors, trial_width):
        luck = np.random.default_rng()
        # Without a name: draws from the machine in place of its key.
        return lambda keys: ODD[self.how][0] if self.how else GOOD | {"value": luck.random(trial_width)}


@pytest.mark.parametrize("how", ODD)
def test_odd_results(how, tmp_path):
    path, study, message = tmp_path / "r.zarr", tiny_study(Odd(how)), ODD[how][1]
    if message is None:
        with study.run(path, progress=False) as results:
            shape = (1, 1, 7, 100_000) if how == "huge" else (1, 1, 7)
            assert results["value"].shape == shape and int((results["outcome"] == 1).sum()) == 7
        assert jf.study.status(path, verify=True).complete
        return
    for _ in range(2):
        with pytest.raises(ValueError, match=message) as error:
            study.run(path, progress=False)
        assert str(error.value).startswith("results of Odd: ") and "\n" not in str(error.value)
        # Nothing of the block was written, and the store can be continued.
        assert jf.study.status(path, verify=True).blocks == 0
    assert not list(path.rglob("c/0/0/*"))


class Failed(enum.IntEnum):
    failed = 3


class Nine(enum.IntEnum):
    fine = 9


@pytest.mark.parametrize(
    ("function", "factor", "message"),
    [
        (lambda key, **factors: {"value": {"a": 1.0}}, "d", "value is no array of numbers"),
        (lambda key, **factors: {"d": 1.0}, "d", "'d' is the name of a factor as well"),
        (lambda key, **factors: {"value": np.ones(2)}, "value_0", "value_0 is a factor, and what the store calls an"),
        # The code of failure is kept for failure.
        (lambda key, **factors: {"outcome": Code(3, Failed)}, "d", "Failed: failed has the code 9"),
        (lambda key, **factors: {"outcome": Code(9, Nine)}, "d", "Nine: failed has the code 9"),
    ],
)
def test_what_a_function_may_not_return(function, factor, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        tiny_study(function, data_factors={factor: [1]}).run(tmp_path / "r.zarr", progress=False)


def test_a_list_is_a_small_array(tmp_path):
    """Of as many numbers as a block has trials: they are not taken for those of other trials."""
    study = tiny_study(lambda key, **factors: {"value": [1.0, 2.0, 3.0, 4.0]})
    with study.run(tmp_path / "r.zarr", progress=False) as results:
        np.testing.assert_array_equal(results["value"].values, np.broadcast_to([1.0, 2.0, 3.0, 4.0], (1, 1, 7, 4)))


def test_a_mismatch_is_found_before_anything_is_computed(tmp_path):
    """In any factor, and where two of them grow together; with the factor and the result in the sentence."""
    computed = []

    def changes(key, d, k=1, name="a"):
        jax.debug.callback(lambda: computed.append(d))
        return {"value": jnp.ones((2 if k == 3 and d == 4 else 1,)), "first" if name == "a" else "second": 1.0}

    for factors, message in [
        (
            {"d": [2], "name": ["a", "b"]},
            r"but they depend on name, at .*'name': 'b'.* first is missing; second is new",
        ),
        (
            {"d": [2, 4], "k": [3, 1]},
            r"but they depend on d, at .*'d': 4.*value: f8\[1\] became value: f8\[2\].*`pad",
        ),
        ({"d": [2, 4], "k": [1, 3]}, r"but they depend on d and k, at .*value: f8\[1\] became value: f8\[2\]"),
    ]:
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.zarr"
        with pytest.raises(ValueError, match=message):
            jf.study.Study(changes, factors, trials=2, block=2).run(path, progress=False)
        assert not list(path.rglob("c/**/0/0")) and computed == []


class Uneven(Blockwise):
    """As many numbers as d, filled up by -1."""

    def block_function(self, factors, trial_width):
        def one(key):
            return {"outcome": Code(1, Outcome), "value": jnp.arange(factors["d"], dtype=jnp.int16)}

        return jax.jit(jax.vmap(one))

    def padding(self):
        return {"value": -1}


def test_results_of_several_lengths_are_filled_up(tmp_path):
    path, filled = tmp_path / "r.zarr", [[0, 1, -1, -1], [0, 1, 2, 3], [0, 1, 2, -1]]
    study = jf.study.Study(Uneven(), {"d": [2, 4, 3]}, trials=3, block=2)
    with study.run(path, progress=False) as results:
        assert results["value"].dtype == np.int16 and results["value"].attrs["padding_value"] == -1
        assert results["value"].isel(trial=2).values.tolist() == filled
        with xarray.open_dataset(path, engine="zarr", consolidated=False) as plain:
            np.testing.assert_array_equal(plain["value"].values, results["value"].values)
    assert study.recompute(d=3, trial=1)["value"].tolist() == filled[2]
    before = payload(path)
    # A block that is lost, and trials that are added, are filled up in the same way.
    (path / "value/c/2/0/0").unlink()
    study.run(path, progress=False).close()
    assert payload(path) == before and study.status(path).complete
    with jf.study.Study(Uneven(), {"d": [2, 4, 3]}, trials=5, block=2).run(path, progress=False) as results:
        assert results["value"].isel(trial=4).values.tolist() == filled
    # Of one length nothing is filled up, and the store is the one that it was before there was a padding.
    with jf.study.Study(Uneven(), {"d": [3]}, trials=3, block=2).run(tmp_path / "one.zarr", progress=False) as results:
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
    """Nor is one whose code has changed: a resume, or a study that grows, computes one block again to compare."""
    path = tmp_path / "r.zarr"
    tiny_study(Odd()).run(path, progress=False)
    if trials == 7:
        (path / "outcome/c/0/0/1").unlink()
    before = payload(path)
    with pytest.raises(
        jf.study.TwoResults, match="value of trials 0 to 3 at .* no function of its key, or has changed since"
    ):
        tiny_study(Odd(), trials=trials).run(path, progress=False)
    numbers = {name: data for name, data in payload(path).items() if "value/c/" in name}
    assert numbers == {name: data for name, data in before.items() if "value/c/" in name}


def test_an_experiment_that_goes_to_another_folder(tmp_path, tiny, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    numbers = HostExperiment.block_function

    def leaves(self, factors, width):
        monkeypatch.chdir(tmp_path / "elsewhere")
        return numbers(self, factors, width)

    monkeypatch.setattr(HostExperiment, "block_function", leaves)
    tiny_study().run("r.zarr", progress=False)
    assert payload(tmp_path / "r.zarr") == tiny[0] and not list((tmp_path / "elsewhere").iterdir())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"block": 5}, "block 4 there, 5 here"),
        ({"seed": 1}, "seed 0 there, 1 here"),
        ({"trials": 6}, "trials 7 there, 6 here"),
        ({"data_factors": {"d": [1, 4]}}, r"\['d', \[1\]\].*\['d', \[1, 4\]\]"),
        # Python calls them equal, and their keys are not.
        ({"data_factors": {"d": [True]}}, r"\[1\].*\[True\]"),
        ({"method_factors": {}}, "method_factors .* there, .* here"),
        ({"experiment": cheap}, "'name': 'HostExperiment'"),
        ({"experiment": HostExperiment(misbehave="never")}, "'misbehave': ''"),
    ],
)
def test_another_spec(changes, message, copy, tiny):
    other = tiny_study(**changes)
    with pytest.raises(jf.study.OtherStudy, match=f"belongs to another study: .*{message}"):
        other.run(copy, progress=False)
    for use in (other.status, other.plot):
        with pytest.raises(ValueError, match="belongs to another study"):
            use(copy)
    assert payload(copy) == tiny[0]


def test_other_settings_of_jax(copy, tiny):
    with jax.enable_x64(False), pytest.raises(jf.study.OtherStudy, match="jax_enable_x64 True then, False now"):
        tiny_study().run(copy, progress=False)
    assert payload(copy) == tiny[0]


class Coin(enum.IntEnum):
    heads = 1
    tails = 2
    edge = 30


def toss(key, bias=0.5):
    first, second = jax.random.uniform(key, (2,))
    side = jnp.where(second < 0.05, Coin.edge, jnp.where(first < bias, Coin.heads, Coin.tails))
    return {"outcome": Code(side, Coin), "value": first}


def test_outcomes_of_its_own_are_stored_counted_and_told(tmp_path):
    path, study = tmp_path / "coins.zarr", jf.study.Study(toss, {"bias": [0.2, 0.8]}, trials=50, block=32)
    results = study.run(path, progress=False).load()
    names = jf.study.decode(results["outcome"])
    assert set(np.unique(names)) <= {"heads", "tails", "edge"}
    for at, bias in enumerate((0.2, 0.8)):
        again = [str(study.replay(trial=trial, bias=bias)["outcome"]) for trial in range(3)]
        assert again == names.values[at, :3].tolist()
    counts = jf.study.status(path).counts
    assert sum(counts.values()) == 100 and counts["heads"] == int((names == "heads").sum())
    assert f"{int((names == 'edge').sum())} edge" in str(jf.study.status(path))
    assert "edge" in jf.study.summary(results).columns and "not_run" not in jf.study.summary(results).columns
    text = study_html(path)
    assert "an outcome of the experiment" in text and "heads" in text
    table = jf.study.percentages(results)
    assert list(table["outcome"].values) == ["heads", "tails", "failed", "edge"]
    assert np.array_equal(table["count"].sel(outcome="heads"), (names == "heads").sum("trial"))
    # What failed is no answer; everything else is, unless the caller says otherwise.
    assert int(table["ran"][0]) == 50 and table.attrs["given"] == "heads, tails, edge"
    sides = jf.study.percentages(results, given=["heads", "tails"], groups={"a side": ["heads", "tails"]})
    assert np.allclose(sides["given_percentage"], 100.0)
    with pytest.raises(ValueError, match="given: unknown name 'headz'; did you mean 'heads'?"):
        jf.study.percentages(results, given=["headz"])


def without_outcome(key):
    """What an opaque function may leave to the engine; every key whose first number is small gives NaN."""
    value = jax.random.uniform(key)
    return {"value": jnp.where(value < 0.25, jnp.nan, value), "kind": Code(1, SelectionStatus)}


def test_outcomes_that_a_function_leaves_to_the_engine(tmp_path):
    """And other codes keep their names."""
    results = jf.study.Study(without_outcome, trials=20, block=4).run(tmp_path / "r.zarr", progress=False)
    codes = np.where(np.isnan(results["value"].values), 9, 8)
    np.testing.assert_array_equal(results.outcome.values, codes)
    assert 0 < (codes == 9).sum() < codes.size
    assert results["kind"].dtype == results.outcome.dtype == "uint8"
    for name, kind in (("outcome", Outcome), ("kind", SelectionStatus)):
        known = dict(zip(results[name].attrs["flag_meanings"].split(), results[name].attrs["flag_values"], strict=True))
        assert known == {"not_run": 0} | {member.name: member.value for member in kind}


def test_one_row_an_instance(small):
    results = small[1]
    table = jf.study.to_dataframe(results)
    assert len(table) == 40 and list(table.columns[:3]) == ["d", "parametrization", "trial"]
    for at in (0, 7, 39):
        row = table.iloc[at]
        one = results.sel(d=row["d"], parametrization=row["parametrization"], trial=row["trial"])
        assert row["outcome"] == jf.study.decode(one["outcome"]).item()
        assert row["direction_1"] == float(one["direction"][1]) and row["steps"] == int(one["steps"])

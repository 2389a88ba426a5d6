"""The store: what it holds, that plain Zarr and xarray read it, and what happens to it when things go wrong."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import zarr

import tests.study.cheap as cheap_module
from jaxflow.study import TwoResults, decode, metadata, open_results, status, store
from jaxflow.study.blocks import Computer, job_of
from jaxflow.study.files import only_writer
from tests.study.cheap import HostExperiment, cheap, edit, payload, restore, said, small_study, tiny_study

PLAIN = """
import json, sys
class Forbidden:
    def find_spec(self, name, *rest):
        if name.partition(".")[0] in ("jaxflow", "jax"):
            raise ImportError(name)
sys.meta_path.insert(0, Forbidden())
import xarray, zarr
path = sys.argv[1]
found = {}
for how, data in {
    "consolidated": xarray.open_dataset(path, engine="zarr"),
    "listed": xarray.open_dataset(path, engine="zarr", consolidated=False),
}.items():
    chosen = data.sel(d=3, parametrization="KQ")
    outcome = chosen.outcome
    names = dict(zip(outcome.flag_values, outcome.flag_meanings.split()))
    found[how] = [str(outcome.dtype), [names[int(code)] for code in outcome], chosen.gap.values.tolist(),
                  chosen.direction.shape, data.attrs["schema_version"], sorted(data.sizes)]
group = zarr.open_group(path, mode="r")
found["zarr"] = [group["outcome"].dtype.name, group["outcome"][1, 1].tolist(), dict(group["status"].attrs)]
print(json.dumps(found))
"""


@pytest.mark.slow
def test_plain_xarray_and_zarr_read_it_with_its_meanings(small):
    path, results = small
    found = json.loads(said("-W", "error", "-c", PLAIN, str(path)))
    np.testing.assert_equal(found["consolidated"], found["listed"])
    dtype, names, gaps, shape, version, sizes = found["listed"]
    chosen = results.sel(d=3, parametrization="KQ")
    assert (dtype, version, shape) == ("uint8", 1, [10, 2])
    assert names == decode(chosen.outcome).values.tolist()
    np.testing.assert_array_equal(np.asarray(gaps, float), chosen.gap.values)
    assert {"d", "parametrization", "trial"} <= set(sizes)
    assert found["zarr"][0] == "uint8" and found["zarr"][1] == chosen.outcome.values.tolist()
    assert found["zarr"][2]["flag_meanings"].startswith("not_run global_")


def test_recomputed_it_is_the_stored_instance_to_the_bit_and_replayed_the_same(small):
    study, (_, results) = small_study(cheap), small
    chosen = {"d": 3, "parametrization": "KQ"}
    for trial in (0, 4, 9):  # at both ends of a block, and in the one that is padded
        again, replayed = study.recompute(**chosen, trial=trial), study.replay(**chosen, trial=trial)
        stored = results.sel(**chosen, trial=trial)
        assert set(again) == set(stored.data_vars) and len(again) == 6
        for name, value in again.items():
            assert value.dtype == stored[name].dtype
            np.testing.assert_array_equal(value, stored[name].values, err_msg=name)
        assert int(stored.outcome) == int(replayed["outcome"])
        np.testing.assert_allclose(stored.direction.values, replayed["direction"], rtol=1e-12)


def test_methods_meet_the_same_instances_and_additions_change_nothing(tmp_path, small):
    small = small[1]
    factors = {"data_factors": {"d": [5, 3]}, "method_factors": {"parametrization": ["KQ", "W"]}}
    large = small_study(cheap, **factors, trials=23).run(tmp_path / "b.zarr", progress=False)
    same = large.sel(d=[3], parametrization=["W", "KQ"]).isel(trial=slice(10))
    for name in small.data_vars:
        np.testing.assert_array_equal(small[name].sel(d=[3]).values, same[name].values)
    np.testing.assert_array_equal(small.steps.sel(parametrization="W"), small.steps.sel(parametrization="KQ"))
    assert len(np.unique(small.direction.sel(parametrization="W").values)) == 2 * 2 * 10


def without_outcome(key, d=2):
    """What an opaque function may leave to the engine; every key whose first number is small gives NaN."""
    value = jax.random.uniform(key)
    return {"value": jnp.where(value < 0.25, jnp.nan, value), "count": d}


def test_outcomes_that_a_function_leaves_to_the_engine(tmp_path):
    study = small_study(without_outcome, data_factors={}, method_factors={}, trials=20)
    results = study.run(tmp_path / "r.zarr", progress=False)
    codes = np.where(np.isnan(results["value"].values), 9, 8)
    np.testing.assert_array_equal(results.outcome.values, codes)
    assert 0 < (codes == 9).sum() < codes.size


def test_overwriting(tmp_path, tiny):
    path = tmp_path / "r.zarr"
    tiny_study(seed=1).run(path, progress=False)
    assert payload(path) != tiny[0]
    tiny_study().run(path, progress=False, overwrite=True)
    assert payload(path) == tiny[0]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    with pytest.raises((ValueError, FileNotFoundError)):
        tiny_study().run(tmp_path / "mine", progress=False, overwrite=True)
    assert (tmp_path / "mine" / "thesis.tex").exists()


def test_what_is_no_store(tmp_path):
    for made in ("text", "group"):
        path = tmp_path / made
        path.mkdir()
        (path / "zarr.json").write_text("no JSON") if made == "text" else zarr.create_group(path)
        for use in (tiny_study().run, status, open_results):
            with pytest.raises(ValueError, match="is no study of jaxflow"):
                use(path)
    for use in (status, open_results):
        with pytest.raises(FileNotFoundError, match="there is no store at"):
            use(tmp_path / "nothing")
    (tmp_path / "r.zarr").write_text("mine")
    with pytest.raises(ValueError, match="is a file, not a folder"):
        tiny_study().run(tmp_path / "r.zarr")


def test_another_schema(copy, monkeypatch, tiny):
    path, study = copy, tiny_study()
    for version, whose in ((2, "a newer"), (0, "another")):
        edit(path, schema_version=version)
        for use in (lambda p: study.run(p, progress=False), status, open_results):
            with pytest.raises(ValueError, match=f"schema_version {version}, written by {whose} jaxflow"):
                use(path)
    # The way from an older schema is a table.
    monkeypatch.setitem(metadata.MIGRATIONS, 0, lambda store: edit(store, schema_version=1))
    with pytest.raises(ValueError, match="has an older schema"):
        status(path)
    study.run(path, progress=False)
    assert payload(path) == tiny[0]
    monkeypatch.setitem(metadata.MIGRATIONS, 0, lambda store: None)
    edit(path, schema_version=0)
    with pytest.raises(RuntimeError, match="did not raise it by one"):
        study.run(path, progress=False)


def test_without_a_manifest_nothing_is_complete(tmp_path):
    path, study = tmp_path / "r.zarr", tiny_study()
    assert study.run(path, progress=False).attrs["complete"] == 1
    told = json.loads(json.loads((path / "zarr.json").read_text())["attributes"]["manifest"])
    assert {"jaxflow", "commit", "seed", "packages", "device_kind", "block", "arguments"} <= told.keys()
    assert study.status(path).complete
    for name in ("packages", "device_kind"):
        edit(path, manifest=json.dumps({key: value for key, value in told.items() if key != name}))
        found = study.status(path)
        assert not found.complete and found.lacking == (name,)
        assert f"the manifest lacks {name}" in str(found)
        results = study.run(path, progress=False, allow_mixed=True)
        assert results.attrs["complete"] == 0


def test_results_of_other_versions_are_not_mixed_unless_told(copy):
    path, study = copy, tiny_study()
    told = json.loads(json.loads((path / "zarr.json").read_text())["attributes"]["manifest"])
    told["device_kind"], told["packages"]["jaxlib"] = "TPU v9", "0.0.1"
    edit(path, manifest=json.dumps(told))
    with pytest.raises(ValueError, match="device_kind TPU v9 then, cpu now; jaxlib 0.0.1 then"):
        study.run(path, progress=False)
    study.run(path, progress=False, allow_mixed=True)
    assert "device_kind TPU v9 then, cpu now" in study.status(path).mixed
    assert "mixed: device_kind" in str(study.status(path))


def test_an_experiment_that_changed_is_noticed_by_a_resume(tmp_path, monkeypatch, host):
    path, study = tmp_path / "r.zarr", small_study(HostExperiment())
    restore(path, host)
    (path / "outcome/c/1/1/2").unlink()
    before = payload(path)
    numbers = cheap_module._numbers
    monkeypatch.setattr(cheap_module, "_numbers", lambda *words, **f: numbers(*words, **f) | {"value": np.ones(4)})
    with pytest.raises(TwoResults, match="value of trials 4 to 7 at .* came out otherwise than before"):
        study.run(path, progress=False)
    assert payload(path) == before


def test_two_results_for_one_key_are_never_written_over(copy):
    path, study = copy, tiny_study()
    with only_writer(path):
        held = store.Store.prepare(path, study.plan, {}, device_kind="cpu")
        index = (0, 0, 0)
        arrays = {v.name: np.zeros((4, *v.shape), v.dtype) for v in held.variables}
        with pytest.raises(TwoResults, match="outcome, steps, value of trials 0 to 3 at"):
            held.commit(index, arrays, held.variables)


def test_a_million_instances_open_without_reading_them(tmp_path):
    path = tmp_path / "r.zarr"
    study = small_study(HostExperiment(), trials=250_000, block=1024)
    with only_writer(path):
        held = store.Store.prepare(path, study.plan, {}, device_kind="cpu")
        result = Computer(study.experiment)(job_of(study.plan, study.experiment, study.plan.values_at((0, 0)), 0))
        held.commit((0, 0, 0), result.arrays, result.layout)
    (path / "outcome/c/0/0/0").write_bytes(b"nobody reads this")
    with open_results(path) as results:
        assert results.outcome.size == 1_000_000
        assert int(results.outcome[1, 1, 249_999]) == 0
        assert np.isfinite(results["value"].values[0, 0, :1024]).all()
        with pytest.raises(ValueError):
            results.outcome[0, 0, 0].values  # noqa: B018

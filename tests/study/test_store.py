"""The store: what it holds, that plain Zarr and xarray read it, when it is whole; what its study is made from."""

import functools
import json

import jax.numpy as jnp
import numpy as np
import pytest
import zarr

from jaxflow.study import decode, metadata, open_results, status, store
from jaxflow.study.blocks import Computer, job_of
from jaxflow.study.files import only_writer
from tests.processes import said
from tests.study.cheap import HostExperiment, cheap, edit, payload, small_study, tiny_study

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


def test_overwriting_removes_studies_alone(tmp_path, tiny):
    path = tmp_path / "r.zarr"
    tiny_study(seed=1).run(path, progress=False)
    assert payload(path) != tiny[0]
    tiny_study().run(path, progress=False, overwrite=True)
    assert payload(path) == tiny[0]
    for made in ("text", "group", "empty"):
        other = tmp_path / made
        other.mkdir()
        (other / "thesis.tex").write_text("years of work")
        if made != "empty":
            (other / "zarr.json").write_text("no JSON") if made == "text" else zarr.create_group(other, overwrite=False)
        for use in (lambda path: tiny_study().run(path, overwrite=True), tiny_study().run, status, open_results):
            with pytest.raises((ValueError, FileNotFoundError), match="is no study of jaxflow|there is no store at"):
                use(other)
        assert (other / "thesis.tex").exists()
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ValueError, match="is a file, not a folder"):
        tiny_study().run(tmp_path / "file")


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


def test_without_a_manifest_nothing_is_complete(copy):
    study = tiny_study()
    told = json.loads(json.loads((copy / "zarr.json").read_text())["attributes"]["manifest"])
    assert {"jaxflow", "commit", "seed", "packages", "device_kind", "block", "arguments"} <= told.keys()
    assert study.status(copy).complete
    for name in ("packages", "device_kind"):
        edit(copy, manifest=json.dumps({key: value for key, value in told.items() if key != name}))
        found = study.status(copy)
        assert not found.complete and found.lacking == (name,)
        assert f"the manifest lacks {name}" in str(found)
        assert study.run(copy, progress=False, allow_mixed=True).attrs["complete"] == 0


def test_results_of_other_versions_are_not_mixed_unless_told(copy):
    study = tiny_study()
    told = json.loads(json.loads((copy / "zarr.json").read_text())["attributes"]["manifest"])
    told["device_kind"], told["packages"]["jaxlib"] = "TPU v9", "0.0.1"
    edit(copy, manifest=json.dumps(told))
    with pytest.raises(ValueError, match="device_kind TPU v9 then, cpu now; jaxlib 0.0.1 then"):
        study.run(copy, progress=False)
    study.run(copy, progress=False, allow_mixed=True)
    assert "mixed: device_kind TPU v9 then, cpu now" in str(study.status(copy))


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


@pytest.mark.parametrize(
    "values",
    [
        (2, 3),
        np.array([2, 3]),
        jnp.asarray([2, 3]),
        range(2, 4),
        (v for v in (2, 3)),
        [np.int32(2), np.uint8(3)],
        [2.0, 3],
    ],
)
def test_what_counts_as_a_list_of_values(values):
    found = small_study(data_factors={"d": values}, trials=np.int64(10), seed=np.uint8(0), block=jnp.asarray(4))
    assert found.plan.same(small_study().plan)
    assert all(type(value) in (int, float) for value in found.plan.factors["d"])
    assert [type(number) for number in (found.plan.trials, found.plan.seed, found.plan.block)] == [int] * 3


def test_settings_are_what_a_store_gives_back(tmp_path):
    """A number of NumPy is a number; a tuple is a list in a file, and the study the same."""
    path = tmp_path / "r.zarr"
    study = tiny_study(HostExperiment(pause=np.float64(0.0), method=(1, np.int64(2))))
    assert study.experiment.settings()["method"] == [1, 2]
    study.run(path, progress=False)
    assert study.status(path).complete
    partial = [tiny_study(functools.partial(cheap, spread=spread)) for spread in (1.0, 2.0)]
    assert not partial[0].plan.same(partial[1].plan)

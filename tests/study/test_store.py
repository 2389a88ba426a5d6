"""The store: what it holds, that plain Zarr and xarray read it, and what happens to it when things go wrong."""

import errno
import json
import subprocess
import sys

import numpy as np
import pytest

from jaxflow.study import TwoResults, metadata, open_results, status, store
from jaxflow.study.files import only_writer
from tests.study.cheap import HostExperiment, cheap, payload, read_log, small_study


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """A complete store of the small host study, and its files."""
    path = tmp_path_factory.mktemp("reference") / "r.zarr"
    small_study(HostExperiment()).run(path, progress=False)
    return payload(path)


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


def test_plain_xarray_and_zarr_read_it_with_its_meanings(tmp_path):
    path = tmp_path / "r.zarr"
    results = small_study(cheap).run(path, progress=False)
    run = subprocess.run([sys.executable, "-W", "error", "-c", PLAIN, str(path)], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    np.testing.assert_equal(found["consolidated"], found["listed"])
    dtype, names, gaps, shape, version, sizes = found["listed"]
    chosen = results.sel(d=3, parametrization="KQ")
    from jaxflow.study import decode

    assert (dtype, version, shape) == ("uint8", 1, [10, 2])
    assert names == decode(chosen.outcome).values.tolist()
    np.testing.assert_array_equal(np.asarray(gaps, float), chosen.gap.values)
    assert {"d", "parametrization", "trial"} <= set(sizes)
    assert found["zarr"][0] == "uint8" and found["zarr"][1] == chosen.outcome.values.tolist()
    assert found["zarr"][2]["flag_meanings"].startswith("not_run global_")


def test_replay_is_the_stored_instance(tmp_path):
    study = small_study(cheap)
    results = study.run(tmp_path / "r.zarr", progress=False)
    for trial in (0, 9):
        again = study.replay(d=3, parametrization="KQ", trial=trial)
        stored = results.sel(d=3, parametrization="KQ", trial=trial)
        assert int(stored.outcome) == int(again["outcome"])
        np.testing.assert_allclose(stored.direction.values, again["direction"], rtol=1e-12)


def test_recomputed_it_is_the_stored_instance_to_the_bit(tmp_path):
    study = small_study(cheap)
    results = study.run(tmp_path / "r.zarr", progress=False)
    for trial in (0, 3, 4, 9):  # at both ends of a block, and in the one that is padded
        again = study.recompute(d=3, parametrization="KQ", trial=trial)
        stored = results.sel(d=3, parametrization="KQ", trial=trial)
        assert set(again) == set(stored.data_vars) and len(again) == 6
        for name, value in again.items():
            assert value.dtype == stored[name].dtype
            np.testing.assert_array_equal(value, stored[name].values, err_msg=name)
    with pytest.raises(ValueError, match="factors: give parametrization as well"):
        study.recompute(d=3, trial=0)
    with pytest.raises(ValueError, match="trial"):
        study.recompute(d=3, parametrization="KQ", trial=-1)


def test_methods_meet_the_same_instances_and_additions_change_nothing(tmp_path):
    small = small_study(cheap).run(tmp_path / "a.zarr", progress=False)
    large = small_study(
        cheap, data_factors={"d": [5, 3, 2]}, method_factors={"parametrization": ["KQ", "W"]}, trials=23
    ).run(tmp_path / "b.zarr", progress=False)
    same = large.sel(d=[2, 3], parametrization=["W", "KQ"]).isel(trial=slice(10))
    for name in small.data_vars:
        np.testing.assert_array_equal(small[name].values, same[name].values)
    np.testing.assert_array_equal(small.steps.sel(parametrization="W"), small.steps.sel(parametrization="KQ"))
    assert len(np.unique(small.direction.sel(parametrization="W").values)) == 2 * 2 * 10


def test_outcomes_that_a_function_leaves_to_the_engine(tmp_path):
    from tests.study.cheap import without_outcome

    results = small_study(without_outcome, method_factors={}).run(tmp_path / "r.zarr", progress=False)
    codes = np.where(np.isnan(results["value"].values), 9, 8)
    np.testing.assert_array_equal(results.outcome.values, codes)
    assert 0 < (codes == 9).sum() < codes.size


def test_nothing_is_done_twice(tmp_path, reference):
    path = tmp_path / "r.zarr"
    study = small_study(HostExperiment())
    study.run(path, progress=False)
    before = len(read_log(path))
    study.run(path, progress=False)
    assert [entry["event"] for entry in read_log(path)[before:]] == ["run"]
    assert payload(path) == reference


def test_overwriting(tmp_path, reference):
    path = tmp_path / "r.zarr"
    small_study(HostExperiment(), seed=1).run(path, progress=False)
    assert payload(path) != reference
    small_study(HostExperiment()).run(path, progress=False, overwrite=True)
    assert payload(path) == reference
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    with pytest.raises((ValueError, FileNotFoundError)):
        small_study(HostExperiment()).run(tmp_path / "mine", progress=False, overwrite=True)
    assert (tmp_path / "mine" / "thesis.tex").exists()


@pytest.mark.parametrize("name", ["outcome/c/0/1/1", "value/c/1/0/2", "block_checksum/c/1/1/0/0", "d/c/0"])
@pytest.mark.parametrize("damage", ["flip", "truncate", "remove"])
def test_a_damaged_file_is_found_and_computed_again(name, damage, tmp_path, reference):
    path = tmp_path / "r.zarr"
    study = small_study(HostExperiment())
    study.run(path, progress=False)
    target = path / name
    data = bytearray(target.read_bytes())
    data[0] ^= 1
    target.write_bytes(data if damage == "flip" else data[:-3])
    if damage == "remove":
        target.unlink()
    if name.startswith("value") and damage == "flip":
        with open_results(path) as results, pytest.raises(ValueError, match="checksum"):
            results["value"].values  # noqa: B018
        found = status(path, verify=True)
        assert (found.damaged, found.blocks, found.complete) == (1, 11, False)
        assert "1 blocks are damaged" in str(found)
    study.run(path, progress=False)
    assert payload(path) == reference


def test_a_store_of_another_study(tmp_path):
    path = tmp_path / "r.zarr"
    small_study(HostExperiment()).run(path, progress=False)
    before = payload(path)
    for other, what in (
        (small_study(HostExperiment(), seed=1), "seed 0 there, 1 here"),
        (small_study(HostExperiment(), trials=9), "trials 10 there, 9 here"),
        (small_study(HostExperiment(pause=0.5)), "'pause': 0.0"),
        (small_study(cheap), "'name': 'HostExperiment'"),
    ):
        with pytest.raises(ValueError, match="belongs to another study") as error:
            other.run(path, progress=False)
        assert what in str(error.value)
        with pytest.raises(ValueError, match="belongs to another study"):
            other.status(path)
    assert payload(path) == before


def test_what_is_no_store(tmp_path):
    import zarr

    for made in ("text", "group"):
        path = tmp_path / made
        path.mkdir()
        (path / "zarr.json").write_text("no JSON") if made == "text" else zarr.create_group(path)
        for use in (small_study(HostExperiment()).run, status, open_results):
            with pytest.raises(ValueError, match="is no study of jaxflow"):
                use(path)
    for use in (status, open_results):
        with pytest.raises(FileNotFoundError, match="there is no store at"):
            use(tmp_path / "nothing")


def edit_attributes(path, **changes):
    top = json.loads((path / "zarr.json").read_text())
    # Without their checksum, as an earlier version wrote them: otherwise the change is damage.
    top["attributes"].pop("metadata_checksum", None)
    top["attributes"].update(changes)
    (path / "zarr.json").write_text(json.dumps(top))


def test_another_schema(tmp_path, monkeypatch):
    path = tmp_path / "r.zarr"
    study = small_study(HostExperiment())
    study.run(path, progress=False)
    before = payload(path)
    for version, whose in ((2, "a newer"), (0, "another")):
        edit_attributes(path, schema_version=version)
        for use in (lambda p: study.run(p, progress=False), status, open_results):
            with pytest.raises(ValueError, match=f"schema_version {version}, written by {whose} jaxflow"):
                use(path)
    # The way from an older schema is a table.
    monkeypatch.setitem(metadata.MIGRATIONS, 0, lambda store: edit_attributes(store, schema_version=1))
    with pytest.raises(ValueError, match="has an older schema"):
        status(path)
    study.run(path, progress=False)
    assert payload(path) == before
    monkeypatch.setitem(metadata.MIGRATIONS, 0, lambda store: None)
    edit_attributes(path, schema_version=0)
    with pytest.raises(RuntimeError, match="did not raise it by one"):
        study.run(path, progress=False)


def test_without_a_manifest_nothing_is_complete(tmp_path):
    path = tmp_path / "r.zarr"
    study = small_study(HostExperiment())
    assert study.run(path, progress=False).attrs["complete"] == 1
    told = json.loads(json.loads((path / "zarr.json").read_text())["attributes"]["manifest"])
    assert {"jaxflow", "commit", "seed", "packages", "device_kind", "block", "arguments"} <= told.keys()
    assert study.status(path).complete
    for name in ("packages", "device_kind"):
        edit_attributes(path, manifest=json.dumps({key: value for key, value in told.items() if key != name}))
        found = study.status(path)
        assert not found.complete and found.lacking == (name,)
        assert f"the manifest lacks {name}" in str(found)
        results = study.run(path, progress=False, allow_mixed=True)
        assert results.attrs["complete"] == 0


def test_results_of_other_versions_are_not_mixed_unless_told(tmp_path):
    path = tmp_path / "r.zarr"
    study = small_study(HostExperiment())
    study.run(path, progress=False)
    told = json.loads(json.loads((path / "zarr.json").read_text())["attributes"]["manifest"])
    told["device_kind"], told["packages"]["jaxlib"] = "TPU v9", "0.0.1"
    edit_attributes(path, manifest=json.dumps(told))
    with pytest.raises(ValueError, match="device_kind TPU v9 then, cpu now; jaxlib 0.0.1 then"):
        study.run(path, progress=False)
    study.run(path, progress=False, allow_mixed=True)
    assert "device_kind TPU v9 then, cpu now" in study.status(path).mixed
    assert "mixed: device_kind" in str(study.status(path))


def test_an_experiment_that_changed_is_noticed_by_a_resume(tmp_path, monkeypatch):
    path = tmp_path / "r.zarr"
    study = small_study(HostExperiment())
    study.run(path, progress=False)
    (path / "outcome/c/1/1/2").unlink()
    before = payload(path)
    monkeypatch.setattr("tests.study.cheap._numbers", changed_numbers)
    with pytest.raises(TwoResults, match="value of trials 4 to 7 at .* came out otherwise than before"):
        study.run(path, progress=False)
    assert payload(path) == before


def changed_numbers(words, d=2, parametrization="W"):
    from jaxflow._core import Code, Outcome

    numbers = {"value": words[:, 0] / 7.0, "steps": (words[:, 1] % 1000).astype(np.int32)}
    return {"outcome": Code(1 + words[:, 1] % 9, Outcome), **numbers}


def test_two_results_for_one_key_are_never_written_over(tmp_path):
    path = tmp_path / "r.zarr"
    study = small_study(HostExperiment())
    study.run(path, progress=False)
    with only_writer(path):
        held = store.Store.prepare(path, study.plan, {}, device_kind="cpu")
        index = (0, 0, 0)
        arrays = {v.name: np.zeros((4, *v.shape), v.dtype) for v in held.variables}
        with pytest.raises(TwoResults, match="outcome, steps, value of trials 0 to 3 at"):
            held.commit(index, arrays, held.variables)


@pytest.mark.parametrize("at", [1, 9, 14, 30])
def test_a_full_disk(at, tmp_path, monkeypatch, reference):
    path = tmp_path / "r.zarr"
    study = small_study(HostExperiment())
    calls = iter(range(1000))

    def full(target, data, scratch):
        if next(calls) >= at:
            raise OSError(errno.ENOSPC, "No space left on device", str(target))
        write(target, data, scratch)

    write = store.write_file
    with monkeypatch.context() as patch:
        patch.setattr(store, "write_file", full)
        with pytest.raises(OSError) as error:
            study.run(path, progress=False)
    assert error.value.errno == errno.ENOSPC
    if path.exists():
        done = study.status(path).blocks
        assert f"the disk is full; {done} of 12 blocks are complete" in str(error.value)
    study.run(path, progress=False)
    assert payload(path) == reference


def test_one_writer(tmp_path):
    path = tmp_path / "r.zarr"
    with only_writer(path), pytest.raises(RuntimeError, match="another process is writing"):
        small_study(HostExperiment()).run(path, progress=False)


def test_a_million_instances_open_without_reading_them(tmp_path):
    path = tmp_path / "r.zarr"
    study = small_study(HostExperiment(), trials=250_000, block=1024)
    with only_writer(path):
        held = store.Store.prepare(path, study.plan, {}, device_kind="cpu")
        from jaxflow.study.blocks import Computer, job_of

        result = Computer(study.experiment)(job_of(study.plan, study.experiment, study.plan.values_at((0, 0)), 0))
        held.commit((0, 0, 0), result.arrays, result.layout)
    (path / "outcome/c/0/0/0").write_bytes(b"nobody reads this")
    with open_results(path) as results:
        assert results.outcome.size == 1_000_000
        assert int(results.outcome[1, 1, 249_999]) == 0
        assert np.isfinite(results["value"].values[0, 0, :1024]).all()
        with pytest.raises(ValueError):
            results.outcome[0, 0, 0].values  # noqa: B018

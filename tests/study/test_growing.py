"""A study that grows: the instances it has stay as they are, to the bit."""

import numpy as np
import pytest

from jaxflow.study import TwoResults, open_results, status
from jaxflow.study.layout import chunk_path
from jaxflow.study.metadata import read_head
from jaxflow.study.store import Store
from tests.study.cheap import HostExperiment, payload, small_study


@pytest.fixture(scope="module")
def twenty(tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "r.zarr"
    small_study(HostExperiment(), trials=20).run(path, progress=False)
    return payload(path)


@pytest.mark.parametrize("before", [10, 8, 3])
def test_a_grown_store_is_the_one_that_was_large_from_the_start(tmp_path, before, twenty):
    path = tmp_path / "r.zarr"
    with small_study(HostExperiment(), trials=before).run(path, progress=False) as small:
        held = small.load()
    with small_study(HostExperiment(), trials=20).run(path, progress=False) as large:
        assert large.sizes["trial"] == 20
        first = large.isel(trial=slice(0, before)).load()
    for name in ("outcome", "value", "steps"):
        assert np.array_equal(held[name].values, first[name].values)
    assert payload(path) == twenty
    assert status(path, verify=True).complete


def test_only_what_is_missing_is_computed(tmp_path, monkeypatch, twenty):
    path = tmp_path / "r.zarr"
    small_study(HostExperiment(), trials=10).run(path, progress=False)
    committed = []
    commit = Store.commit
    monkeypatch.setattr(
        Store, "commit", lambda self, index, *rest: committed.append(index) or commit(self, index, *rest)
    )
    small_study(HostExperiment(), trials=20).run(path, progress=False)
    # Of five blocks of four, the third was half full: it and the two that follow, in each of four cells.
    assert sorted(committed) == [(i, j, block) for i in range(2) for j in range(2) for block in (2, 3, 4)]
    assert payload(path) == twenty


def test_stopped_while_growing_it_goes_on(tmp_path, monkeypatch, twenty):
    path = tmp_path / "r.zarr"
    small_study(HostExperiment(), trials=10).run(path, progress=False)
    commit, done = Store.commit, []

    def stops(self, index, *rest):
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(index)
        return commit(self, index, *rest)

    monkeypatch.setattr(Store, "commit", stops)
    study = small_study(HostExperiment(), trials=20)
    with pytest.raises(KeyboardInterrupt):
        study.run(path, progress=False)
    monkeypatch.undo()
    # What the smaller study had is there all the time.
    with open_results(path) as results:
        assert int((results["outcome"] != 0).isel(trial=slice(0, 10)).sum()) == 40
    assert not status(path).complete
    study.run(path, progress=False)
    assert payload(path) == twenty


def test_killed_between_two_files_it_goes_on_either_way(tmp_path, monkeypatch, twenty):
    for trials in (20, 10):
        path = tmp_path / f"{trials}.zarr"
        small_study(HostExperiment(), trials=10).run(path, progress=False)
        small = payload(path)
        write, count = Store._write, []

        def killed(self, name, data, write=write, count=count):
            if len(count) == 2:
                raise SystemExit
            count.append(name)
            write(self, name, data)

        monkeypatch.setattr(Store, "_write", killed)
        with pytest.raises(SystemExit):
            small_study(HostExperiment(), trials=20).run(path, progress=False)
        monkeypatch.undo()
        assert read_head(path).plan.trials == 10
        small_study(HostExperiment(), trials=trials).run(path, progress=False)
        assert payload(path) == (twenty if trials == 20 else small)


def test_other_numbers_for_the_same_trials_are_refused(tmp_path, monkeypatch):
    path = tmp_path / "r.zarr"
    small_study(HostExperiment(), trials=10).run(path, progress=False)
    before = payload(path)[chunk_path("value", (0, 0, 2), 0)]
    from tests.study import cheap

    numbers = cheap._numbers
    # Only the blocks that were open differ: the audit of a complete one sees nothing.
    monkeypatch.setattr(
        cheap, "_numbers", lambda words, **f: numbers(words, **f) | {"value": numbers(words, **f)["value"] + 1}
    )
    monkeypatch.setattr("jaxflow.study.run.Run._audit", lambda self, complete: None)
    with pytest.raises(TwoResults, match="value of trials 8 to 9 at .* came out otherwise than before the study"):
        small_study(HostExperiment(), trials=20).run(path, progress=False)
    assert payload(path)[chunk_path("value", (0, 0, 2), 0)] == before


def test_a_damaged_chunk_is_computed_again_without_a_word(tmp_path, twenty):
    path = tmp_path / "r.zarr"
    small_study(HostExperiment(), trials=10).run(path, progress=False)
    chunk = path / chunk_path("value", (0, 0, 2), 0)
    data = bytearray(chunk.read_bytes())
    data[0] ^= 1
    chunk.write_bytes(bytes(data))
    small_study(HostExperiment(), trials=20).run(path, progress=False)
    assert payload(path) == twenty

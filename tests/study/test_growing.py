"""A study that grows: the instances it has stay as they are, to the bit."""

import numpy as np
import pytest

from jaxflow.study import TwoResults, open_results, status
from jaxflow.study.layout import chunk_path
from jaxflow.study.metadata import read_head
from jaxflow.study.store import Store
from tests.study import cheap
from tests.study.cheap import HostExperiment, payload, restore, small_study


def of(trials):
    """Two cells of so many trials in blocks of four."""
    return small_study(HostExperiment(), method_factors={}, trials=trials)


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """The files of whole stores of ten trials and of twenty."""
    path = tmp_path_factory.mktemp("whole")
    for trials in (10, 20):
        of(trials).run(path / str(trials), progress=False).close()
    return payload(path / "10"), payload(path / "20")


@pytest.fixture
def ten(tmp_path, stored):
    """A store of ten, to grow."""
    restore(tmp_path / "r.zarr", stored[0])
    return tmp_path / "r.zarr"


@pytest.mark.slow
@pytest.mark.parametrize("before", [8, 3])
def test_a_grown_store_is_the_one_that_was_large_from_the_start(tmp_path, before, stored):
    path = tmp_path / "r.zarr"
    for trials in (before, 20):
        of(trials).run(path, progress=False).close()
    assert payload(path) == stored[1]
    assert status(path, verify=True).complete


def test_stopped_while_growing_it_goes_on_with_what_is_missing(ten, monkeypatch, stored):
    commit, done = Store.commit, []

    def stops(self, index, *rest):
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(index)
        return commit(self, index, *rest)

    monkeypatch.setattr(Store, "commit", stops)
    with pytest.raises(KeyboardInterrupt):
        of(20).run(ten, progress=False)
    # What the smaller study had is there all the time.
    with open_results(ten) as results:
        assert int((results["outcome"] != 0).isel(trial=slice(0, 10)).sum()) == 20
    assert not status(ten).complete
    monkeypatch.setattr(Store, "commit", lambda self, *block: done.append(block[0]) or commit(self, *block))
    of(20).run(ten, progress=False)
    # Of five blocks of four, the third was half full: it and the two that follow, once in each of two cells.
    assert sorted(done) == [(cell, block) for cell in range(2) for block in (2, 3, 4)]
    assert payload(ten) == stored[1]


@pytest.mark.parametrize("trials", [20, 10])
def test_killed_between_two_files_it_goes_on_either_way(trials, ten, monkeypatch, stored):
    write, count = Store._write, []

    def killed(self, name, data):
        if len(count) == 2:
            raise SystemExit
        count.append(name)
        write(self, name, data)

    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr(Store, "_write", killed)
        of(20).run(ten, progress=False)
    assert read_head(ten).plan.trials == 10
    of(trials).run(ten, progress=False)
    assert payload(ten) == stored[trials == 20]


@pytest.mark.parametrize("damaged", [False, True])
def test_other_numbers_for_the_same_trials_are_refused_unless_those_were_damaged(damaged, ten, monkeypatch, stored):
    chunk, numbers = chunk_path("value", (0, 2), 0), cheap._numbers
    if damaged:
        (ten / chunk).write_bytes(bytes([stored[0][chunk][0] ^ 1]) + stored[0][chunk][1:])
        of(20).run(ten, progress=False)
        assert payload(ten) == stored[1]
        return
    # Only the blocks that were open differ: the audit of a complete one sees nothing.
    monkeypatch.setattr(cheap, "_numbers", lambda words, **f: numbers(words, **f) | {"value": np.ones(4)})
    monkeypatch.setattr("jaxflow.study.run.Run._audit", lambda self, complete: None)
    with pytest.raises(TwoResults, match="value of trials 8 to 9 at .* came out otherwise than before the study"):
        of(20).run(ten, progress=False)
    assert payload(ten)[chunk] == stored[0][chunk]

"""One engine for figures and statements: numbers once, shared, killed and resumed to the same bits."""

import functools
import json
import os
import pickle
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from jaxflow import papers
from jaxflow.papers import attempts, registry
from jaxflow.papers import dataset as datasets
from jaxflow.papers.statement import Again, Statement
from jaxflow.papers.table import Table
from jaxflow.papers.verdicts import Check
from jaxflow.study import Study, trial_key
from jaxflow.study import manifest as manifests
from jaxflow.study.shapes import ACCELERATOR
from tests.papers import toy_experiment as experiment
from tests.papers.toy_experiment import TOY

# One sweep, which takes no time.
ALONE = datasets.Dataset("toy", "alone-numbers", {"curve": datasets.Sweep(experiment.curve)})
ZERO = Statement[Table](source="Lemma 2", says="It is zero.", residual=lambda n: n.curve.x)


def silent(line: str) -> None:
    pass


ROOT = Path(__file__).resolve().parents[2]
# Asked once instead of by every one of many short runs, a third of whose time they are.
ONCE = {name: functools.cache(getattr(manifests, name)) for name in ("commit", "package_version")}


@pytest.fixture(autouse=True)
def origin_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, once in ONCE.items():
        monkeypatch.setattr(manifests, name, once)


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The toy paper, entered for one test."""
    monkeypatch.setattr(registry, "_PAPERS", dict(registry._PAPERS))
    monkeypatch.setattr(registry, "_ENTRIES", dict(registry._ENTRIES))
    monkeypatch.setattr(experiment, "COMPUTED", [])
    experiment.enter_paper()
    return experiment


def collect(folder: Path, **more: Any) -> datasets.Raw:
    return TOY.collect(folder, scale="quick", seed=0, say=silent, **more)


def flat(raw: datasets.Raw) -> dict[str, bytes]:
    return {f"{part}.{field}": array.tobytes() for part, fields in raw.items() for field, array in fields.items()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> datasets.Raw:
    """All numbers, of a run that nothing stops."""
    return collect(tmp_path_factory.mktemp("whole"))


@pytest.mark.slow
def test_keys_are_made_from_names_and_cells_meet_the_same_instances(whole: datasets.Raw) -> None:
    numbers = TOY.typed(whole)
    assert numbers.draws.value.shape == (2, 7) and numbers.draws.powers.shape == (2, 7, 2)
    np.testing.assert_allclose(numbers.draws.value[1], 0.5 * numbers.draws.value[0], rtol=1e-15)
    one = experiment.draw(trial_key(0, "toy.toy-numbers.draws", {}, 6), experiment.CELLS["one"])
    np.testing.assert_allclose(numbers.draws.value[0, 6], one.value, rtol=1e-15)
    # The same instances in another part, and in cells that have their own.
    np.testing.assert_allclose(numbers.slow.again[0], numbers.draws.value[0], rtol=1e-15)
    assert not np.any(np.isclose(numbers.others.value[1], 0.5 * numbers.others.value[0]))
    assert numbers.curve.drawn == jax.random.normal(trial_key(0, "toy.toy-numbers.curve", {}, 0))
    assert numbers.draws.at(1).powers.shape == (7, 2)
    assert TOY.study("draws", "quick", 1).replay(trial=6, cell="one").value != numbers.draws.value[0, 6]
    assert jax.random.normal(TOY.key("curve", 1)) != numbers.curve.drawn


def test_keys_may_be_folded_into_that_of_a_cell(whole: datasets.Raw) -> None:
    numbers = TOY.typed(whole)
    for cell, setting in enumerate((1, 2)):
        keys = [jax.random.fold_in(experiment.key_of(0, setting), trial) for trial in range(7)]
        np.testing.assert_array_equal(numbers.folded.drawn[cell], [setting + jax.random.normal(key) for key in keys])
        # What a batch of splits would draw: how many there are does not matter.
        split = jax.random.split(experiment.key_of(0, setting), 7)
        assert np.array_equal(jax.random.key_data(split), [jax.random.key_data(key) for key in keys])
    again = TOY.study("folded", "quick", 0).replay(trial=6, cell="second")
    assert again.drawn == numbers.folded.drawn[1, 6]


def test_cells_share_one_program_and_results_do_not_depend_on_executors_and_crowds(
    toy: Any, whole: datasets.Raw, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A crowded process forgets programs between parts: `verify` of seventeen checks ran out of memory maps.
    forgotten = []
    monkeypatch.setattr(datasets, "crowded", lambda: True)
    monkeypatch.setattr(datasets, "release_programs", lambda: forgotten.append(True))
    # Another function object, which no earlier test has had compiled.
    part = datasets.Part(lambda key, cell: experiment.draw(key, cell), experiment.CELLS, toy.TRIALS, 3)
    monkeypatch.setitem(TOY.parts, "draws", part)
    with ThreadPoolExecutor(2) as pool:
        assert flat(collect(tmp_path, executor=pool)) == flat(whole)
    # One program for both cells, perhaps one for the other part, and nine of the slow ones, which are not mapped.
    assert toy.COMPUTED.count("traced") <= 1 + 1 + 9
    assert len(forgotten) == len(TOY.parts)


class Killed(BaseException):
    """Not an exception that anything handles."""


@contextmanager
def killed_at(monkeypatch: pytest.MonkeyPatch, function: str) -> Iterator[None]:
    """A block that ends where this function is called."""

    def kill(*arguments: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(f"jaxflow.papers.{function}", kill)
        yield


def test_a_device_of_many_lanes_computes_more_instances_together(monkeypatch: pytest.MonkeyPatch) -> None:
    assert TOY.study("draws", "large", 0).plan.block == TOY.parts["draws"].block
    monkeypatch.setattr(datasets, "device_shapes", lambda: ACCELERATOR)
    wide = TOY.study("draws", "large", 0).plan
    assert wide.block == min(wide.trials, TOY.parts["draws"].block * 128)


def test_a_file_appears_whole_beside_what_a_killed_process_left(tmp_path: Path) -> None:
    left = tmp_path / "a.npz.side" / "1.part"
    left.parent.mkdir()
    left.write_text("half")
    datasets.save_arrays(tmp_path / "a.npz", {"x": np.arange(3)})
    assert [path.name for path in tmp_path.iterdir()] == ["a.npz"]
    assert np.array_equal(datasets.load_arrays(tmp_path / "a.npz")["x"], np.arange(3))


def test_the_seconds_of_all_attempts_are_kept(toy: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def told(name: str) -> dict[str, Any]:
        return json.loads((tmp_path / f"{name}-manifest.json").read_text())

    # Seconds are rounded to a tenth, and a shorter attempt would be rounded away.
    monkeypatch.setattr(experiment, "PAUSE", [0.2])
    for name, drawing in (("alone", toy.picture), ("check", None)):
        registry.register(ALONE, name, title="Lemma 2", statements=[ZERO], draw=drawing)
    with killed_at(monkeypatch, "dataset.write_file"):
        papers.reproduce("toy", "alone", out=tmp_path, say=silent)
    (left,) = (tmp_path / "numbers").rglob("attempts/*.json")
    assert json.loads(left.read_text())["seconds"] > 0
    # As if it had taken long; another, cut short by a power cut, says nothing.
    left.write_text(json.dumps({"seconds": 1e6, "cpu_seconds": 1e5}))
    (left.parent / "0-0.json").write_text('{"seconds": 1e')
    papers.reproduce("toy", "alone", out=tmp_path, say=silent)
    assert told("alone")["seconds"] > 1e6 and told("alone")["cpu_seconds"] > 1e5
    # The same numbers, read from disk.
    papers.verify("toy", only=["check"], out=tmp_path, say=silent)
    assert told("verify")["seconds"] > 1e6
    papers.reproduce("toy", "alone", out=tmp_path, overwrite=True, say=silent)
    assert told("alone")["seconds"] < 1e5


def test_an_attempt_is_written_while_it_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written, enough = [], threading.Event()

    def write(file: Path, data: bytes, scratch: Path) -> None:
        written.append((file, json.loads(data)["seconds"]))
        if len(written) >= 4:
            enough.set()

    monkeypatch.setattr(attempts, "write_file", write)
    monkeypatch.setattr(attempts, "BEAT", 1e-3)
    with attempts.timed(tmp_path):
        assert enough.wait(60.0)
    assert len({file for file, _ in written}) == 1
    seconds = [taken for _, taken in written]
    assert seconds == sorted(seconds) and seconds[-1] > seconds[0]
    assert not threading.Event().wait(0.01) and len(written) == len(seconds)


# Manifests tell the time, and Matplotlib draws the names within an SVG at random.
FILES = ("curve.npz", "curve.png", "curve-claims.md", "curve-claims.json", "verify.npz", "verify.md", "verify.json")


@pytest.mark.slow
def test_killed_commands_go_on_to_the_same_bits(toy: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    def curve(folder: str, **more: Any) -> Any:
        return papers.reproduce("toy", "curve", out=tmp_path / folder, say=said.append, **more)

    def verify(folder: str) -> Any:
        return papers.verify("toy", out=tmp_path / folder, say=silent)

    (paths, claims), (_, rows) = curve("whole"), verify("whole")
    # Figure and check share their numbers.
    assert toy.COMPUTED.count("curve") == 1 and any("draws: 7 instances of each cell" in line for line in said)
    assert claims[0].evidence == rows[0].evidence and claims[0].measured.endswith(rows[0].measured)
    with np.load(tmp_path / "whole" / "verify.npz") as saved, np.load(paths["data"]) as own:
        assert np.array_equal(saved["toy-numbers.draws.value"], own["draws.value"])
    assert set(paths) == {"data", "png", "svg", "table", "claims", "manifest"}
    assert all(path.stat().st_size > 0 for path in paths.values())
    assert "- a note" in paths["table"].read_text(encoding="utf-8")
    toy.COMPUTED.clear()
    # Where numbers are written, and where a figure is.
    for function in ("dataset.write_file", "run.save_figure"):
        with killed_at(monkeypatch, function):
            curve("killed")
    assert (tmp_path / "killed" / "curve.npz").exists()
    curve("killed")
    # The sweep alone is computed again: seven slow instances in blocks of three were complete before the kill.
    assert toy.COMPUTED.count("curve") == 2 and toy.COMPUTED.count("slow") == 9
    with killed_at(monkeypatch, "run.findings_markdown"):
        verify("killed")
    verify("killed")
    for name in FILES:
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name
    with pytest.raises(FileExistsError, match="--overwrite"):
        curve("killed")
    # Asked to begin again, and killed: the same command without that goes on.
    with killed_at(monkeypatch, "dataset.write_file"):
        curve("killed", overwrite=True)
    toy.COMPUTED.clear()
    curve("killed")
    assert toy.COMPUTED.count("curve") == 1 and "slow" not in toy.COMPUTED


def test_a_verify_that_stops_leaves_the_rows_so_far(toy: Any, tmp_path: Path) -> None:
    stops, said = [True], []

    def late(scale: str, key: Any) -> Any:
        if stops:
            raise Killed
        return Table(x=np.zeros(5), drawn=np.zeros(()))

    tried: list[Any] = []
    again = Again("NumPy", lambda n, draw, at: float(tried.append(at) is None), within=1e-6)
    wrong = Statement[Table](source="Lemma 0", says="It is negative.", residual=lambda n: n.curve.x >= 0, again=again)
    registry.register(ALONE, "again", title="Lemma 0", statements=[wrong])
    numbers = datasets.Dataset("toy", "late-numbers", {"curve": datasets.Sweep(late)})
    registry.register(numbers, "late", title="Lemma 2", statements=[ZERO])

    def verify() -> Any:
        return papers.verify("toy", only=["again", "late"], out=tmp_path, say=said.append)

    partial = tmp_path / "verify-partial.md"
    with pytest.raises(Killed):
        verify()
    text = partial.read_text()
    assert "so far" in text and "Lemma 0" in text and "Lemma 2" not in text
    assert any("1 of 2 checks" in line and str(partial) in line for line in said)
    stops.clear()
    tried.clear()
    _, rows = verify()
    assert not partial.exists()
    assert [row.source for row in rows] == ["Lemma 0", "Lemma 2"]
    # Independent code runs once on an instance, for the rows so far and for the table.
    assert len(tried) == 5 and rows[0].evidence.check == Check(5, 5, "NumPy")
    # What was computed before was read, not computed again.
    assert toy.COMPUTED.count("curve") == 1


def test_a_sweep_of_another_version_is_not_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Studies have such a test of their own."""

    def collected() -> datasets.Raw:
        return ALONE.collect(tmp_path, scale="quick", seed=0, say=silent)

    collected()
    monkeypatch.setattr(manifests, "package_version", lambda name: "0.0")
    with pytest.raises(papers.OtherNumbers, match="--overwrite begins again"):
        collected()


def start(folder: Path, pause: float) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.papers.toy_experiment", str(folder), str(pause)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    with open(folder.parent / "errors.txt", "ab") as errors:
        return subprocess.Popen(command, cwd=ROOT, env=environment, stderr=errors, stdout=subprocess.PIPE)


@pytest.mark.slow
def test_killed_at_random_both_commands_go_on_to_the_same_bits(toy: Any, tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    papers.reproduce("toy", "curve", scale="paper", out=whole, say=silent)
    papers.verify("toy", scale="paper", out=whole, say=silent)
    with start(killed, 0.1) as process:
        assert process.stdout is not None
        process.stdout.readline()
        # Forty slow instances take four seconds.
        time.sleep(random.Random(11).uniform(0.0, 4.0))
        assert process.poll() is None
        process.send_signal(signal.SIGKILL)
    with start(killed, 0.0) as process:
        process.communicate(timeout=300)
    assert process.returncode == 0, (tmp_path / "errors.txt").read_text()
    for name in FILES:
        assert (killed / name).read_bytes() == (whole / name).read_bytes(), name
    # One for each process that came to the numbers, and for each command of the last.
    kept = [json.loads(file.read_text())["seconds"] for file in (killed / "numbers").rglob("attempts/*.json")]
    assert len(kept) >= 2
    assert json.loads((killed / "verify-manifest.json").read_text())["seconds"] >= sum(kept) - 0.1


@pytest.mark.slow
def test_every_dataset_is_found_where_it_says() -> None:
    from jaxflow.papers.part_experiment import DATASETS
    from jaxflow.study.experiment import import_named

    found = [entry.dataset for paper in papers.known_papers() for entry in papers.entries_of(paper.name)]
    places = {(dataset.paper, dataset.name): dataset for dataset in found}
    assert all(places[dataset.paper, dataset.name] is dataset for dataset in found), "one folder for each"
    for dataset in found:
        assert (import_named(dataset.where) if dataset.where else DATASETS[dataset.place]) is dataset
        for name, part in dataset.parts.items():
            if isinstance(part, datasets.Part):
                study = dataset.study(name, "quick", 0)
                # What a cluster is sent.
                assert isinstance(study, Study) and pickle.loads(pickle.dumps(study.experiment)) == study.experiment
                *other, of = part.instances.rsplit(".", 1)
                owner = places[dataset.paper, *other] if other else dataset
                assert not part.instances or of in owner.parts

"""What a study says while it runs: on a terminal, in a log, and nothing where nothing is wanted."""

import io
import logging

import numpy as np
from rich.console import Console

from jaxflow.study import progress
from jaxflow.study.progress import Bar, Lines
from tests.study.cheap import HostExperiment, small_study, tiny_study

NAMES = {1: "globally_optimal", 2: "locally_optimal"}


class Clock:
    """Seconds that pass when they are told to."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def lines_of(caplog) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "jaxflow.study"]


def test_lines_at_their_interval(caplog):
    clock = Clock()
    with caplog.at_level(logging.INFO, logger="jaxflow.study"):
        # Its own thread looks every hour: what is told here, the clock has told.
        lines = Lines(interval=36_000.0, clock=clock)
        # Two instances are of an earlier run, whose time does not count.
        lines.start(small_study(HostExperiment()).plan, np.array([0, 2, 0]), NAMES)
        lines.compiling("d=2")
        for second in (9_000, 36_000, 40_000):
            clock.now = second
            lines.line()
        lines.compiled("d=2", 41_000.0, 30_000.0)
        clock.now = 80_000
        lines.advance(np.array([0, 3, 1]), NAMES)
        lines.compiling("d=3")
        lines.compiled("d=3", 0.5, 0.4)
        lines.close()
    assert lines_of(caplog) == [
        "HostExperiment: 2/40 instances, 2 globally_optimal",
        "compiling d=2",
        "HostExperiment: 2/40 instances, 2 globally_optimal; compiling d=2 for 10:00:00",
        "first block of d=2 after 41000.0 s; all threads together compiled for 30000.0 s",
        "HostExperiment: 6/40 instances, 5e-05/s, 188:53:20 left, 5 globally_optimal, 1 locally_optimal",
        "HostExperiment: 6/40 instances, 5e-05/s, 188:53:20 left, 5 globally_optimal, 1 locally_optimal",
    ]


def test_its_own_thread_tells_while_a_block_takes_its_time(caplog, tmp_path, monkeypatch):
    monkeypatch.setattr("jaxflow.study.study.progress_of", lambda wanted: Lines(interval=0.05))
    study = small_study(HostExperiment(pause=0.3), data_factors={"d": [2]}, method_factors={}, trials=4)
    with caplog.at_level(logging.INFO, logger="jaxflow.study"):
        study.run(tmp_path / "r.zarr").close()
    told = lines_of(caplog)
    assert sum("0/4 instances; compiling d=2 for 0:00" in line for line in told) >= 2
    assert "4/4 instances" in told[-1]


def test_without_a_terminal_lines_go_to_standard_error(capfd, tmp_path):
    log = logging.getLogger("jaxflow.study")
    before = log.level, log.propagate, list(log.handlers)
    tiny_study().run(tmp_path / "r.zarr").close()
    assert (log.level, log.propagate, log.handlers) == before
    out, err = capfd.readouterr()
    cell = "d=1, parametrization=W"
    begins = f"HostExperiment: 0/7 instances\ncompiling {cell}\nfirst block of {cell} after "
    assert out == "" and err.startswith(begins)
    # On any machine a block of NumPy takes less than a minute, and its first one is told once.
    seconds, _, told = err.removeprefix(begins).partition(" s; all threads together compiled for ")
    assert 0 <= float(seconds) < 60 and "first block" not in told
    assert "HostExperiment: 7/7 instances" in told.splitlines()[-1]
    # And nothing where nothing is wanted.
    tiny_study().run(tmp_path / "other.zarr", progress=False).close()
    assert capfd.readouterr() == ("", "")


def test_a_bar_on_a_terminal_says_that_it_compiles(monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    found = progress.progress_of(True)
    found.close()
    assert isinstance(found, Bar)
    screen = io.StringIO()
    bar = Bar(Console(file=screen, force_terminal=True, width=200, color_system=None))
    bar.start(small_study(HostExperiment()).plan, np.zeros(3, int), NAMES)
    bar.compiling("d=2")
    bar._live.refresh()
    assert "compiling d=2" in screen.getvalue()
    bar.compiled("d=2", 1.0, 0.5)
    bar.advance(np.array([0, 40, 0]), NAMES)
    bar.close()
    last = screen.getvalue().rsplit("compiling", 1)[-1]
    assert "HostExperiment" in last and "40/40" in last

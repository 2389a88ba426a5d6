"""`verify`, stopped half-way: the rows of the checks that are done are there, and the same command goes on."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from jaxflow import papers
from jaxflow.papers import registry
from jaxflow.papers.dataset import Dataset, Sweep
from jaxflow.papers.registry import register
from jaxflow.papers.statement import Statement
from tests.papers.made_up import experiment


class Stopped(Exception):
    pass


class Late(NamedTuple):
    value: Any


class LateNumbers(NamedTuple):
    late: Late


STOPS = [True]


def late(scale: str, key: Any, say: Any) -> Late:
    if STOPS[0]:
        raise Stopped
    return Late(np.zeros(4))


LATE = Dataset("toy", "late-numbers", LateNumbers, {"late": Sweep(Late, late)}, where=f"{__name__}:LATE")
ZERO = Statement[LateNumbers](
    source="Lemma 2",
    says="Numbers are zero.",
    inside=lambda n: np.ones(n.late.value.shape, bool),
    residual=lambda n: np.abs(n.late.value),
    bound=0.0,
    unit="the number",
    found=lambda n, known: f"{int(known.sum())} zeros",
)


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_PAPERS", dict(registry._PAPERS))
    monkeypatch.setattr(registry, "_ENTRIES", dict(registry._ENTRIES))
    monkeypatch.setattr(experiment, "COMPUTED", [])
    experiment.enter_paper()
    times = dict.fromkeys(papers.SCALES, "no time")
    register(LATE, "late", title="Lemma 2", run_times=times, statements=[ZERO], verified=True)


def test_rows_so_far(toy: None, tmp_path: Path) -> None:
    partial, said = tmp_path / "verify-partial.md", []
    with pytest.raises(Stopped):
        papers.verify("toy", out=tmp_path, say=said.append)
    text = partial.read_text()
    assert "so far" in text and "Lemma 1" in text and "Lemma 2" not in text
    assert any("1 of 2 checks" in line and str(partial) in line for line in said)
    STOPS[0] = False
    try:
        _, rows = papers.verify("toy", out=tmp_path, say=said.append)
    finally:
        STOPS[0] = True
    assert not partial.exists()
    assert [row.source for row in rows] == ["Lemma 1", "Lemma 2"]
    # What was computed before was read, not computed again.
    assert experiment.COMPUTED.count("curve") == 1

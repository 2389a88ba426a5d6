"""The blocks of docs/own-model.md, one after another as a reader would run them."""

import re
from pathlib import Path
from typing import Any

import pytest

import jaxflow.theory.prediction as prediction

PAGE = Path(__file__).resolve().parents[1] / "docs" / "own-model.md"
OUTCOMES = ["kkt_point", "kkt_point", "limit_point", "limit_point", "undecided", "globally_optimal"]


@pytest.mark.slow
def test_every_block_of_the_page_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(prediction, "_RULES", dict(prediction._RULES))
    names: dict[str, Any] = {"__name__": "page"}
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
    outcomes = []
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
        outcomes.append(str(names["limit"].outcome))
    assert outcomes == OUTCOMES
    printed = capsys.readouterr().out.strip().splitlines()
    assert len(printed) == len(OUTCOMES)
    assert "does not say optimal" in printed[0] and "not homogeneous" in printed[4]

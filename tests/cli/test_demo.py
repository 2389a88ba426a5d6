"""The demo on one parametrisation and two instances: limits, numbers, table."""

import numpy as np
import pytest
from rich.console import Console

from jaxflow._core import Outcome
from jaxflow.cli import demo


@pytest.mark.slow
def test_limits_become_numbers_and_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "PARAMETRISATIONS", demo.PARAMETRISATIONS[:1])
    console = Console(width=200, record=True, quiet=True)
    limits = demo.find_limits(2, (3, 3, 3), console)
    assert list(limits) == ["combined"] and len(limits["combined"]) == 2
    data = demo.saved_numbers(limits)
    assert data["combined_gaps"].shape == data["combined_log_times"].shape == (2, 8)

    # What is called certified is within 1e-8, what was asked for, of an optimum that is known as well.
    kept = data["combined_certified"]
    assert kept.any()
    assert np.all(data["combined_excess"][kept] <= 1e-8)
    assert np.all(data["combined_program_gap"][kept] <= 1e-8)

    recorded = Console(width=200, record=True, file=None, quiet=False)
    with recorded.capture() as captured:
        recorded.print(demo.table_of(data))
    shown = captured.get()
    codes, counts = np.unique(data["combined_outcome"], return_counts=True)
    for code, count in zip(codes, counts, strict=True):
        assert f"{count} {Outcome(int(code)).name.replace('_', ' ')}" in shown
    assert "of 2" in shown

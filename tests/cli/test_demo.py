"""The demo on one parametrisation and two instances: limits, numbers, table."""

import jax
import numpy as np
import pytest
from rich.console import Console

from jaxflow._core import Outcome
from jaxflow.cli import demo
from jaxflow.models import CombinedAttention


@pytest.mark.slow
def test_limits_become_numbers_and_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "PARAMETRISATIONS", demo.PARAMETRISATIONS[:1])
    console = Console(width=200, record=True, quiet=True)
    limits = demo.find_limits(2, (3, 3, 3), console)
    assert list(limits) == ["combined"] and len(limits["combined"]) == 2
    data = demo.saved_numbers(limits)
    assert data["combined_gaps"].shape == data["combined_log_times"].shape == (2, 8)

    # Compiled without optimisation, the limits are those of the ordinary call.
    key = jax.random.split(jax.random.key(demo.SEED), 2)[0]
    usual = demo.limit_of(CombinedAttention, (3, 3, 3), key)
    np.testing.assert_array_equal(data["combined_outcome"][0], int(usual.outcome))
    # Two certified directions are within the square root of their gaps, 1e-8 each.
    np.testing.assert_allclose(limits["combined"][0].weights, usual.weights, rtol=0, atol=1e-3)

    recorded = Console(width=200, record=True, file=None, quiet=False)
    with recorded.capture() as captured:
        recorded.print(demo.table_of(data))
    shown = captured.get()
    codes, counts = np.unique(data["combined_outcome"], return_counts=True)
    for code, count in zip(codes, counts, strict=True):
        assert f"{count} {Outcome(int(code)).name.replace('_', ' ')}" in shown
    assert "of 2" in shown

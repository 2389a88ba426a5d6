"""Experiments of Sheen et al. (2024): rates, notes and drawings."""

from typing import Any

import jax
import numpy as np
import pytest

from jaxflow._core import Outcome
from jaxflow.papers.sheen2024 import diagonal_flows, failures, rates, separability
from jaxflow.papers.sheen2024.multipliers import exponents_between
from tests.papers.recorded import changed, entry_of, numbers_of

TIMES = np.geomspace(1.0, 1e6, 7)


def test_growth_and_rates_are_exponents() -> None:
    assert exponents_between(TIMES[None] ** -0.7, TIMES)[0] == pytest.approx(0.7)
    assert exponents_between(np.ones((1, 7)), TIMES)[0] == 0.0
    assert rates.observed_exponent(TIMES[None] ** -0.3, TIMES)[0] == pytest.approx(0.3)
    assert np.isnan(rates.observed_exponent(-np.ones((1, 7)), TIMES)[0])
    gaps = TIMES[None] ** -np.array([[0.1], [0.8]])
    jump = gaps * np.where(TIMES < 0.3 * TIMES[-1], 1.0, 1e-2)
    assert np.all(rates.bend(jump, TIMES) > rates.BENT) and np.all(rates.bend(gaps, TIMES) < 1e-12)


# Of four exponents two are late: one of them waits for a constraint.
LATE = np.maximum(diagonal_flows.LOG_TIMES, 1.0)
WAITING = changed(
    numbers_of("sheen2024", "rates"),
    ("flows.weights_gap", LATE ** -np.array([[0.1], [0.5], [0.3], [0.3]])),
    ("flows.kappa", np.array([0.9, 0.5, 0.2, 0.2])),
    ("flows.behind", np.array([0.0, 0.0, 0.3, 0.3])),
)


def test_notes_name_what_is_unusual() -> None:
    notes = entry_of("sheen2024", "rates").find(WAITING)[1]
    assert "Of 4 exponents 2 wait" in notes[-1] and "Of the 2 others 2 are within" in notes[-1]


def drawn(name: str, numbers: Any) -> Any:
    draw = entry_of("sheen2024", name).draw
    assert draw is not None
    return draw(numbers)


def test_drawings_leave_out_what_is_outside() -> None:
    apart = changed(numbers_of("sheen2024", "multipliers"), ("flows.small", -1.0, -1))
    lines = drawn("multipliers", apart).axes[1].lines
    assert sum("0.001" in str(line.get_label()) for line in lines) == 0
    # Two do not wait, two do, and the third line is the diagonal.
    assert [len(line.get_xdata()) for line in drawn("rates", WAITING).axes[1].lines] == [2, 2, 2]
    # The first data set is one on which a flow was not followed to its end: the second is drawn.
    numbers = changed(
        numbers_of("sheen2024", "norms"),
        ("limits.outcome", Outcome.undecided, (0, 0)),
        ("limits.weights", 2.0 * np.eye(5), np.s_[:, 1]),
    )
    figure = drawn("norms", numbers)
    assert figure.axes[0].images[0].get_array().max() == 2.0 and len(figure.axes) == 4


def test_quantiles_and_slacks() -> None:
    numbers = changed(numbers_of("sheen2024", "failures"), ("broken.velocity_excess", 1e-2))
    assert failures.quantiles(numbers, 2) == pytest.approx(np.full((3, 3), 1e-2))
    slack = [separability.slack(jax.random.key(0), 4, 4, multiple) for multiple in (1.01, 0.99)]
    assert slack[0] > 0 > slack[1]

"""How runs of figure 7 are measured."""

import numpy as np
import pytest

from jaxflow.papers.tarzanagh2023 import bias_runs


def test_decorrelation_resolves_what_one_minus_a_cosine_does_not() -> None:
    target = np.diag([1.0, 0.0])[None]
    angle = 1e-10
    weights = 5.0 * np.array([[[[np.cos(angle), np.sin(angle)], [0.0, 0.0]]]])
    # 1 − cos(1e-10) = 5e-21, far below the spacing of numbers at one.
    np.testing.assert_allclose(bias_runs.decorrelation(weights, target), angle**2 / 2, rtol=1e-6)


@pytest.mark.parametrize(
    ("norm", "margin", "optimum", "excess"),
    [("frobenius", 2.0, 2.5, 0.0), ("nuclear", 2.0, 3.5, 0.0), ("nuclear", -1.0, 3.5, np.inf)],
)
def test_excess_is_zero_at_the_optimum_and_infinite_without_a_margin(
    norm: str, margin: float, optimum: float, excess: float
) -> None:
    weights = np.diag([3.0, 4.0])[None, None]
    assert bias_runs.excess(norm, weights, np.array([[margin]]), np.array([optimum]))[0, 0] == excess


def test_rows_are_interpolated_between_logarithms() -> None:
    times = np.array([[1.0, 3.0, 3.0]])
    values = np.array([[1e-2, 1e-4, 1e-4]])
    np.testing.assert_allclose(bias_runs.on_grid(np.array([2.0, 3.0]), times, values), [[1e-3, 1e-4]], rtol=1e-12)

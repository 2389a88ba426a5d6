"""Drawings read saved numbers only, leave Matplotlib's global state alone, and write the same bytes twice."""

from pathlib import Path

import numpy as np
import pytest

from jaxflow._core import Outcome
from jaxflow.papers.tarzanagh2023.fig7 import draw_convergence
from jaxflow.plots import draw_limits, new_figure, save_figure
from tests.papers.recorded import changed, numbers_of


def limit_numbers() -> dict[str, np.ndarray]:
    data = {}
    for kind in ("combined", "factored", "diagonal"):
        data[f"{kind}_certified"] = np.array([True, False, False])
        data[f"{kind}_log_times"] = np.tile(np.geomspace(10, 1e4, 8), (3, 1))
        data[f"{kind}_gaps"] = 0.1 / data[f"{kind}_log_times"]
        # Factors are followed to where log t itself overflows.
        data[f"{kind}_log_log_time"] = np.array([9.2, 9.2, 2e6])
        # An excess that rounding made negative, a flow that has not settled, and one without a gap of its own.
        data[f"{kind}_flow_gap"] = np.array([1e-10, np.inf, np.inf])
        data[f"{kind}_excess"] = np.array([-1e-16, np.inf, 1e-5])
    return data


def test_convergence_leaves_out_what_is_no_direction() -> None:
    rest, last = Outcome.finite_stationary_point, (0, np.s_[2:])
    kept = numbers_of("tarzanagh2023", "fig7")
    data = changed(kept, ("combined.outcome", rest, last), ("combined.distance", 0.9, last))
    figure = draw_convergence(data)
    drawn = figure.axes[1].lines[0].get_ydata()
    np.testing.assert_array_equal(drawn, data.combined.distance[0, :2, 0].mean(0))
    assert "2 ($W$)" in figure.get_suptitle() and "of 8 instances" in figure.get_suptitle()
    # Without any direction of (K, Q): W, that is the flow, the descent and its end.
    none = changed(kept, ("factored.outcome", rest))
    assert len(draw_convergence(none).axes[1].lines) == 3


def test_limits_count_what_is_certified() -> None:
    figure = draw_limits(limit_numbers())
    assert all("1 of 3 certified" in axis.get_title() for axis in figure.axes)


@pytest.mark.slow
def test_files_are_pictures_and_do_not_depend_on_the_date(tmp_path: Path) -> None:
    import matplotlib

    before = dict(matplotlib.rcParams)
    paths = [tmp_path / name for name in ("a.png", "a.svg", "b.png", "b.svg")]
    save_figure(draw_limits(limit_numbers()), *paths[:2])
    save_figure(draw_limits(limit_numbers()), *paths[2:])
    assert paths[0].read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in paths[1].read_bytes() and b"<dc:date>" not in paths[1].read_bytes()
    assert paths[0].read_bytes() == paths[2].read_bytes()
    assert dict(matplotlib.rcParams) == before


def test_a_notebook_shows_a_figure_without_pyplot():
    figure, _ = new_figure(1)
    assert figure._repr_png_().startswith(b"\x89PNG")

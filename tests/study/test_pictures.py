"""Pictures show the numbers they are given; the report needs nothing but itself."""

import re

import numpy as np
import pytest
import xarray

from jaxflow.plots.study import OUTCOME_COLORS, draw_heat_map, draw_percentage_bars, draw_percentage_curves
from jaxflow.report.study_html import percentage_table, study_html, write_study_report
from jaxflow.study import pictures, plot
from tests.study.cheap import HostExperiment, cheap, restore, small_study


@pytest.fixture(scope="module")
def results():
    """Twelve cells of ten outcomes, as of a study."""
    codes = np.random.default_rng(0).integers(1, 9, (3, 2, 2, 10)).astype(np.uint8)
    factors = {"d": [2, 3, 5], "spread": [0.5, 1.0], "parametrization": ["W", "KQ"]}
    return xarray.Dataset({"outcome": ((*factors, "trial"), codes)}, factors)


def test_bars_stack_to_a_hundred_with_marks_and_outlines(results):
    data = pictures.bars(results, "d")
    assert data["percentage"].shape == (4, 3, len(data["names"]))
    assert data["panels"].tolist()[0] == "spread=0.5, parametrization=W"
    figure = draw_percentage_bars(data)
    for axis in figure.axes:
        tops = [bar.get_y() + bar.get_height() for bar in axis.containers[-1]]
        np.testing.assert_allclose(tops, 100)
    first = figure.axes[0].containers[0]
    np.testing.assert_allclose([bar.get_height() for bar in first], data["percentage"][0, :, 0])
    assert len(set(OUTCOME_COLORS.values())) == len(OUTCOME_COLORS)
    # And marks, outlines around them, and colors.
    marks, outlines = np.full((4, 3), 20.0), np.full((4, 3), 50.0)
    colors = ["#111111"] * len(data["names"])
    labels = {"marks_label": "Assumption B.1", "outlines_label": "by another rule"}
    figure = draw_percentage_bars({**data, **labels, "colors": colors, "marks": marks, "outlines": outlines})
    solid, around = figure.axes[0].containers[-2:]
    assert [bar.get_height() for bar in solid] == [20.0] * 3 and [bar.get_height() for bar in around] == [50.0] * 3
    assert [bar.get_x() for bar in solid] == [bar.get_x() for bar in around] and not around[0].get_fill()
    assert figure.axes[0].containers[0][0].get_facecolor()[:3] == pytest.approx((1 / 15,) * 3)
    assert set(labels.values()) <= {text.get_text() for text in figure.legends[0].get_texts()}
    # The table counts everybody.
    rows = percentage_table(results).rows
    assert sum(int(row[4]) for row in rows) == 120 and {row[6] for row in rows} == {"10"}


def test_curves_and_heat_map_draw_the_numbers(results):
    data = pictures.curves(results, "d", "infeasible_program")
    figure = draw_percentage_curves(data)
    drawn = np.stack([line.get_ydata() for line in figure.axes[0].lines])
    np.testing.assert_allclose(drawn, data["percentage"][0])
    assert (data["low"] <= data["percentage"]).all() and (data["percentage"] <= data["high"]).all()
    warm = pictures.heat_map(results, "d", "spread", "infeasible_program")
    assert warm["value"].shape == (2, 2, 3)
    drawn = np.asarray(draw_heat_map(warm).axes[0].images[0].get_array())
    np.testing.assert_allclose(drawn, warm["value"][0])
    # The same number by another way: method W, spread 1, d=5.
    codes = results.outcome.sel(parametrization="W", spread=1.0, d=5).values
    assert warm["value"][0, 1, 2] == 100 * (codes == 6).mean()


def test_curves_over_names_and_with_holes():
    data = {"x": np.array(["a", "b"]), "x_label": "law", "panels": ["p", "q"], "curves": ["one", "two"], "y_label": "%"}
    values = np.array([[[1.0, np.nan], [3.0, 4.0]], [[np.nan, np.nan], [1.0, 2.0]]])
    figure = draw_percentage_curves({**data, "percentage": values, "low": values, "high": values, "dashed": [0, 1]})
    assert [len(axis.lines) for axis in figure.axes] == [2, 1]
    assert figure.axes[0].lines[1].get_linestyle() == "--"


def test_pictures_of_a_study_and_of_its_store(small):
    path, results = small
    for kind in pictures.KINDS:
        assert plot(results, kind, outcome="locally_optimal").axes[0].get_xlabel() == "d"
    assert plot(results, "bars", x="parametrization").axes[0].get_xlabel() == "parametrization"
    assert len(small_study(cheap).plot(path).axes) == 2


def test_the_report_needs_nothing_else(tmp_path):
    path, factors = tmp_path / "r.zarr", {"d": [2, 3], "spread": [0.5, 1.0]}
    small_study(cheap, data_factors=factors, method_factors={}).run(path, progress=False).close()
    text = study_html(path)
    assert not re.search(r'(?:src|href)="(?!data:)', text) and "<script" not in text
    assert text.count("data:image/png;base64,") == 3
    assert "40 of 40 instances" in text and "complete" in text and "not complete" not in text
    assert str(path.parent) not in text
    for word in ("Wilson intervals", "% of the decided", "device_kind", "no max-margin program describes them"):
        assert word in text


def test_the_report_of_what_has_not_finished(tmp_path, host):
    path = tmp_path / "r.zarr"
    restore(path, host)
    (path / "block_checksum/c/0/0/1/0").unlink()
    text = study_html(path)
    assert "This study is not complete" in text and "11 of 12 blocks" in text
    assert write_study_report(path, tmp_path / "r.html").read_text() == text
    with pytest.raises(FileExistsError, match="--overwrite"):
        write_study_report(path, tmp_path / "r.html")


def test_a_study_without_factors_is_reported_too(tmp_path):
    study = small_study(HostExperiment(), data_factors={}, method_factors={})
    assert study.run(tmp_path / "r.zarr", progress=False).outcome.dims == ("trial",)
    assert "10 of 10 instances" in study_html(tmp_path / "r.zarr")

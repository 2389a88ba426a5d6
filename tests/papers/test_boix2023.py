"""Incremental learning: figures and checks at tiny sizes, end to end; verdicts by hand."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import jaxflow as jf
from jaxflow import papers
from jaxflow.papers.boix2023 import small_instances, supports, toy
from jaxflow.papers.boix2023.perturbations import NOISE
from jaxflow.papers.boix2023.product_paths import follow_products
from jaxflow.papers.claims import Finding
from jaxflow.papers.verdicts import Verdict
from tests.papers.made_up import boix2023 as made_up

TINY = toy.Size(8, 3, 2, 2, (toy.PAPER[-1], toy.BEYOND[-1]), 256)
RATE, HOLDS, OPEN = Verdict.holds_at_this_rate, Verdict.holds, Verdict.not_settled


def silent(line: str) -> None:
    pass


def found(name: str, numbers: Any) -> list[Finding]:
    """What an experiment says of these numbers."""
    return next(entry for entry in papers.entries_of("boix2023") if entry.name == name).find(numbers)[0]


def verdicts(name: str, numbers: Any) -> list[Verdict]:
    return [one.verdict for one in found(name, numbers)]


def load(path: Path) -> dict[str, np.ndarray]:
    with np.load(path) as archive:
        return dict(archive)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(toy.SIZES, "quick", TINY)


@pytest.mark.slow
def test_figure_2_from_the_name_to_the_files(tiny: None, tmp_path: Path) -> None:
    paths, claims = papers.reproduce("boix2023", "fig2", out=tmp_path, say=silent)
    assert all(path.stat().st_size > 0 for path in paths.values())
    data = load(paths["data"])
    assert data["paths.ok"].all() and data["paths.crossings"].shape == (2, 1, 2)
    # The same stages from e^(−10000) take at most three times the steps that they take from 1e-8.
    small, same, own = data["paths.effort"][1, 0]
    assert 0 < small <= 3 * min(same, own)
    # The distance of the first stage shrinks like 1/log(1/α): the ratio of the scales, 10000 to 73.7.
    shifts = np.abs(data["paths.crossings"][:, 0, 0] - data["stages.times"][0, 0, 0])
    assert shifts[0] / shifts[1] == pytest.approx(10_000 / -toy.PAPER[-1], rel=0.05)
    # Two stages are too few for an interval; the weights and the order are there.
    assert [claim.verdict for claim in claims[:3]] == [OPEN, HOLDS, HOLDS]
    # Figures 8 and 9 read the same numbers, and compute none.
    for name in ("fig8", "fig9"):
        _, claims = papers.reproduce("boix2023", name, out=tmp_path, say=silent)
        assert claims[1].verdict is HOLDS


@pytest.mark.slow
def test_perturbations_from_the_name_to_the_files(tiny: None, tmp_path: Path) -> None:
    paths, claims = papers.reproduce("boix2023", "fig3", out=tmp_path, say=silent)
    data = load(paths["data"])
    there = ~np.isnan(data["noise.start"])
    assert there[:, 0].any(axis=1).all() and data["noise.followed"][there].all()
    assert data["noise.noise"][0, 0, -1] > 1e-3
    assert [claim.source for claim in claims] == ["Figure 3 (a)", "Figure 3 (b)"]


def test_verdicts_on_perturbations_follow_the_numbers() -> None:
    def verdict(*arguments: Any, **how: Any) -> Verdict:
        return verdicts("fig10", made_up.noise(*arguments, **how))[0]

    assert verdict(0.01) is HOLDS
    # A window may be too short, and so may the integration.
    assert verdict(0.1) is OPEN and verdict(0.01, followed=False) is OPEN
    # A time without weights says nothing, and is asked for nothing.
    assert verdict(0.0, 0.0) is Verdict.outside_hypotheses
    numbers = made_up.noise(0.01)
    numbers.noise.end[:, :, 1] = 0.2
    assert verdicts("fig10", numbers) == [OPEN] and verdicts("fig3", numbers) == [OPEN] * 2
    numbers.noise.noise[:, :, 1] = 0.0
    assert verdicts("fig10", numbers) == [HOLDS]


def test_verdicts_on_stages_follow_the_numbers() -> None:
    def of(**how: Any) -> list[Verdict]:
        return verdicts("fig2", made_up.toy(**how))

    assert toy.toy(made_up.toy()).separated.all()
    assert of() == [RATE, HOLDS, HOLDS, HOLDS, HOLDS, HOLDS]
    # Late, and not falling like 1/log(1/α).
    assert of(error=0.01) == [OPEN, HOLDS, HOLDS, HOLDS, HOLDS, HOLDS]
    assert of(error=9e-4)[0] is OPEN
    # A plateau that was not reached decides nothing of its support either.
    assert of(distance=1e-3) == [RATE, OPEN, HOLDS, OPEN, HOLDS, HOLDS]
    assert of(swap=True)[2] is OPEN
    assert of(jump=True)[3:5] == [OPEN, OPEN]
    lost = made_up.toy()
    lost.paths.crossings[-1, 0, 2] = np.nan
    times, _, order, *_ = found("fig2", lost)
    assert [times.verdict, order.verdict] == [OPEN, OPEN] and order.evidence.undecided == 1
    # A loss that falls at one rate stands still at no time.
    assert of(straight=True)[5] is OPEN


def test_trajectories_tend_to_one_another_or_they_do_not() -> None:
    for name in ("fig8", "fig9"):
        assert verdicts(name, made_up.toy()) == [RATE, HOLDS]
        assert verdicts(name, made_up.toy(late=(0.8, 0.2, 0.8, 0.2)))[0] is OPEN
        assert verdicts(name, made_up.toy(ok=False))[1] is OPEN


def test_pictures_of_stages_are_drawn_from_the_numbers() -> None:
    for name, numbers, axes in (
        ("fig2", made_up.toy(), 2),
        ("fig8", made_up.toy(), 4),
        ("fig3", made_up.noise(0.1), 2),
        ("fig10", made_up.noise(0.1), 2),
    ):
        entry = papers.find_figure("boix2023", name)
        assert entry.draw is not None and len(entry.draw(numbers).axes) == axes and entry.find(numbers)[1]


def test_figures_with_noise_are_on_the_task_of_figure_2() -> None:
    names = [data.study(part, "quick", 0).experiment.name() for data, part in ((toy.TOY, "paths"), (NOISE, "noise"))]
    assert names == ["boix2023.toy.stages"] * 2
    # One instance is not computed eight times over.
    assert toy.TOY.study("paths", "paper", 0).plan.block == 1


def test_a_path_keeps_its_ends_when_it_is_filled_up() -> None:
    assert toy.filled(np.arange(3.0), 5).tolist() == [0, 1, 2, 2, 2]
    assert toy.filled(np.arange(9.0), 5).tolist() == [0, 2, 4, 6, 8]


@pytest.mark.slow
def test_the_last_plateau_ends_where_the_next_stage_begins() -> None:
    """Stages at 1 and 1/0.85: a quarter of the first one's time after it, the second has been learned."""
    pull = np.array([1.0, 0.85])
    risk = jf.EmpiricalRisk(jf.data.LinearData(np.sqrt(2) * np.eye(2), np.sqrt(2) * pull), jf.losses.Squared())
    model = jf.models.HadamardNetwork.init(jax.random.key(0), jf.models.DiagonalLinear(), 2)
    seen = small_instances.compare(risk, model, most=1)
    assert seen.inside and seen.predicted[0] == pytest.approx(1.0, rel=1e-12)
    assert seen.distance[-1, 0] <= small_instances.WEIGHTS


def test_verdicts_of_verify_follow_the_numbers() -> None:
    def of(**how: Any) -> list[Verdict]:
        return verdicts("stages", made_up.small(**how))

    assert of() == [RATE, HOLDS, HOLDS, HOLDS]
    stuck = made_up.small().flows.measured.copy()
    stuck[0, 0, 2, 1] = stuck[0, 0, 1, 1]
    assert of(measured=stuck)[0] is OPEN
    assert of(distance=1e-2)[1] is OPEN and of(entering=2)[2] is OPEN and of(drift=1e-3)[3] is OPEN
    # One that was not followed to its end stays in every denominator.
    lost = np.array([[True, True], [True, False]])
    assert of(ok=~lost, drift=np.where(lost, np.nan, 1e-14)) == [OPEN] * 4
    assert of(inside=False)[:3] == [Verdict.outside_hypotheses] * 3


def test_supports_of_the_flow_are_read_from_its_own_entries() -> None:
    rows = [found("supports", numbers)[0] for numbers in made_up.supports_data()]
    assert [row.verdict for row in rows] == [HOLDS, OPEN, OPEN]
    assert [row.evidence.undecided for row in rows] == [0, 0, 1]
    assert "in the same order in 1" in rows[0].measured and "in the same order in 0" in rows[2].measured
    outside = made_up.support(2.9, inside=False)
    assert found("supports", outside)[0].verdict is Verdict.outside_hypotheses


def test_products_of_one_stage_are_told_from_those_of_two() -> None:
    # Two coordinates of their own, whose slopes differ by a half or by a billionth.
    def entries(second: float) -> supports.Entries:
        risk = jf.EmpiricalRisk(jf.data.LinearData(np.eye(2), np.array([1.0, second])), jf.losses.Squared())
        start = jf.models.HadamardNetwork(jf.models.DiagonalLinear(), np.ones(2), 0.5 * np.ones(2))
        paths = [follow_products(risk, start.scaled(a), a, 6.0) for a in supports.LOG_ALPHAS]
        order = [supports.entries_of(path) for path in paths]
        times = np.array([[time for time, _ in one] for one in order])
        return supports.Entries(np.array([[i for _, i in one] for one in order]), times, np.ones(()), np.True_)

    assert supports.together(entries(0.5)) == 0.0
    assert np.isnan(supports.together(entries(1.0 + 1e-9))) or supports.together(entries(1.0 + 1e-9)) == 1.0

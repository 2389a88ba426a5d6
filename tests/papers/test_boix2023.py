"""Incremental learning: figures and checks at tiny sizes, end to end; verdicts by hand."""

from pathlib import Path

import jax
import numpy as np
import pytest

import jaxflow as jf
from jaxflow import papers
from jaxflow.flow import follow_products
from jaxflow.papers.boix2023 import perturbations, toy
from jaxflow.papers.boix2023.stage_claims import claims_of, entry_claims_of, separated
from jaxflow.papers.boix2023.verify import stages as verify_stages
from jaxflow.papers.boix2023.verify import supports as verify_supports
from jaxflow.report import Verdict

TINY = toy.Size(8, 3, 2, 2, (toy.PAPER[-1], toy.BEYOND[-1]))


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(toy.SIZES, "quick", TINY)
    monkeypatch.setattr(perturbations, "PLATEAU", perturbations.Noise(2, 0.05, False))
    monkeypatch.setattr(perturbations, "ENTRY", perturbations.Noise(1, 0.01, True))


def load(path: Path) -> dict[str, np.ndarray]:
    with np.load(path) as archive:
        return dict(archive)


@pytest.mark.slow
def test_figure_2_from_the_name_to_the_files(tiny: None, tmp_path: Path) -> None:
    paths, claims = papers.reproduce("boix2023", "fig2", out=tmp_path, say=lambda line: None)
    assert all(path.stat().st_size > 0 for path in paths.values())
    data = load(paths["data"])
    assert data["succeeded"].all() and data["crossings"].shape == (2, len(data["stage_times"]))
    # The same stages from e^(−10000) take at most three times the steps that they take from 1e-8.
    small, same, own = data["steps_to_stages"]
    assert 0 < small <= 3 * min(same, own)
    # The distance of the first stage shrinks like 1/log(1/α): the ratio of the scales, 10000 to 73.7.
    shifts = np.abs(data["crossings"][:, 0] - data["stage_times"][0])
    assert shifts[0] / shifts[1] == pytest.approx(10_000 / -toy.PAPER[-1], rel=0.05)
    # Two stages are too few for an interval; the weights and the order are there.
    assert [claim.verdict for claim in claims[:3]] == [Verdict.not_settled, Verdict.holds, Verdict.holds]
    # Figures 8 and 9 draw the same numbers.
    for part in ("KQ", "VO"):
        entry = papers.find_figure("boix2023", "fig8" if part == "KQ" else "fig9")
        assert entry.figure.draw(data).axes and entry_claims_of(data, part)[0][1].verdict == Verdict.holds


@pytest.mark.slow
def test_perturbations_from_the_name_to_the_files(tiny: None, tmp_path: Path) -> None:
    paths, claims = papers.reproduce("boix2023", "fig3", out=tmp_path, say=lambda line: None)
    data = load(paths["data"])
    assert data["psucceeded"].all() and data["esucceeded"].all()
    assert data["pnoise"][0] > 1e-3
    assert [claim.source for claim in claims] == ["Figure 3 (a)", "Figure 3 (b)"]


def perturbed_data(noise: list[float], end: list[float], fine: list[bool]) -> dict[str, np.ndarray]:
    allowed = 0.05 * np.array(noise)
    numbers = {"pnoise": np.array(noise), "pend": np.array(end), "psucceeded": np.array(fine), "pallowed": allowed}
    return numbers | {"pyoung": np.zeros(len(noise), int)}


def test_verdicts_on_perturbations_follow_the_numbers() -> None:
    def verdict(*data: list) -> Verdict:
        return perturbations.claim(perturbed_data(*data), "p", "", "").verdict

    assert verdict([1.0, 1.0], [0.01, 0.02], [True, True]) == Verdict.holds
    # A window may be too short for all of them, for one, or for the integration.
    assert verdict([1.0, 1.0], [0.1, 0.2], [True, True]) == Verdict.not_settled
    assert verdict([1.0, 1.0], [0.01, 0.2], [True, True]) == Verdict.not_settled
    assert verdict([1.0, 1.0], [0.01, 0.01], [True, False]) == Verdict.not_settled
    # A time without weights says nothing, and is asked for nothing.
    assert verdict([1.0, 0.0], [0.01, 0.9], [True, True]) == Verdict.holds
    assert verdict([0.0], [0.0], [True]) == Verdict.outside_hypotheses


def made_up(
    error: float = 1e-5, distance: float = 0.0, swap: bool = False, jump: bool = False
) -> dict[str, np.ndarray]:
    times = np.array([1.0, 2.0, 3.0])
    products = np.array([[0, 0, 1.0, 0], [0, 0, 1.0, 1.0], [1.0, 0, 1.0, 1.0]])
    if jump:
        products[1] = [1.0, 1.0, 1.0, 0.0]
    # Late by 1/log(1/α): 4.6 times 1e-5 at e^(-10000) make this at 0.01.
    late = 1e-5 * 10_000.0 / np.log(100.0)
    crossings = np.stack([times * (1 + late), times * (1 + error)])
    if swap:
        crossings[1] = crossings[1, ::-1]
    path = {"times_0": np.linspace(0, 4, 9), "losses_0": np.exp(-np.linspace(0, 4, 9)), "products_0": np.ones((9, 4))}
    # The flow at the smallest scale steps from plateau to plateau.
    stairs = np.concatenate([np.zeros((2, 4)), np.repeat(products, [2, 2, 3], axis=0)])
    at = np.array([0.0, 0.99, 1.01, 1.99, 2.01, 2.99, 3.01, 3.5, 4.0])
    path |= {"times_1": at, "losses_1": np.exp(-at), "products_1": stairs}
    return path | {
        "d": np.asarray(2),
        "until": np.asarray(4.0),
        "log_alphas": np.array([np.log(0.01), -10_000.0]),
        "stage_times": times,
        "stage_next": np.array([2.0, 3.0, 5.0]),
        "stage_products": products,
        "stage_gaps": np.ones(3),
        "stage_curvatures": np.ones(3),
        "stage_leaving": np.full(3, np.inf),
        "crossings": crossings,
        "distances": np.full((2, 3), distance),
        "steps": np.ones(2, int),
        "accepted": np.ones(2, int),
        "succeeded": np.ones(2, bool),
        "steps_to_stages": np.array([30.0, 10.0, 15.0]),
    }


def test_verdicts_on_stages_follow_the_numbers() -> None:
    rate, holds, open_ = Verdict.holds_at_this_rate, Verdict.holds, Verdict.not_settled

    def verdicts(**how) -> list[Verdict]:
        return [claim.verdict for claim in claims_of(made_up(**how))[0]]

    assert separated(made_up()).all()
    assert verdicts() == [rate, holds, holds, holds, holds, holds]
    # Late, and not falling like 1/log(1/α).
    assert verdicts(error=0.01) == [open_, holds, holds, holds, holds, holds]
    assert verdicts(error=9e-4)[0] == open_
    # A plateau that was not reached decides nothing of its support either.
    assert verdicts(distance=1e-3) == [rate, open_, holds, open_, holds, holds]
    assert verdicts(swap=True)[2] == open_
    assert verdicts(jump=True)[3:5] == [open_, open_]
    lost = made_up()
    lost["crossings"][1, 2] = np.nan
    claims = claims_of(lost)[0]
    assert [claims[0].verdict, claims[2].verdict] == [open_, open_] and claims[2].evidence.undecided == 1
    # A loss that falls at one rate stands still at no time.
    straight = made_up() | {"losses_0": np.linspace(1.0, 0.0, 9)}
    assert claims_of(straight)[0][5].verdict == open_


def entries_made_up(shares: tuple[float, ...], last: float = 1.0) -> dict[str, np.ndarray]:
    """One product that steps to one at a share later than 1 at each α, and what a step of the integration adds."""
    times = np.linspace(0.0, 4.0, 4001)
    data: dict[str, np.ndarray] = {
        "d": np.asarray(1),
        "until": np.asarray(4.0),
        "log_alphas": -(4.0 ** np.arange(1, 5)),
    }
    for row, share in enumerate(shares):
        up = (times > 1.0 + share).astype(float)
        data |= {f"times_{row}": times, f"products_{row}": np.stack([up, last * up], axis=1)}
    data |= {"stage_products": np.ones((1, 2)), "succeeded": np.ones(4, bool), "stage_times": np.ones(1)}
    data |= {"stage_gaps": np.ones(1), "stage_curvatures": np.ones(1), "stage_leaving": np.full(1, np.inf)}
    return data | {"stage_next": np.full(1, 2.0)}


def test_trajectories_tend_to_one_another_or_they_do_not() -> None:
    falling = entries_made_up((0.8, 0.2, 0.05, 0.0125))
    for part in ("KQ", "VO"):
        trajectories, rank = entry_claims_of(falling, part)[0]
        assert trajectories.verdict == Verdict.holds_at_this_rate and rank.verdict == Verdict.holds
        apart = entries_made_up((0.8, 0.2, 0.8, 0.2))
        assert entry_claims_of(apart, part)[0][0].verdict == Verdict.not_settled
        lost = falling | {"succeeded": np.zeros(4, bool)}
        assert entry_claims_of(lost, part)[0][1].verdict == Verdict.not_settled


@pytest.mark.slow
def test_verify_from_the_name_to_the_rows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(verify_stages.SIZES, "quick", verify_stages.Size(2, stages=2))
    monkeypatch.setattr(verify_stages, "FAMILIES", ("linear",))
    # Full heads and weight decay have tests of their own.
    only = ("stages", "supports", "outside")
    paths, rows = papers.verify("boix2023", only=only, out=tmp_path, say=lambda line: None)
    assert all(path.stat().st_size > 0 for path in paths.values())
    by_source = {row.source: row for row in rows}
    assert by_source["Lemma 4.2"].verdict == Verdict.holds and by_source["Lemma 4.2"].worst <= 1e-8
    assert by_source["Theorem 4.1 (sparsity)"].instances + by_source["Theorem 4.1 (sparsity)"].outside == 2


def test_the_last_plateau_ends_where_the_next_stage_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stages at 1 and 1/0.85: a quarter of the first one's time after it, the second has been learned."""
    pull = np.array([1.0, 0.85])
    risk = jf.EmpiricalRisk(jf.data.LinearData(np.sqrt(2) * np.eye(2), np.sqrt(2) * pull), jf.losses.Squared())
    model = jf.models.HadamardNetwork.init(jax.random.key(0), jf.models.DiagonalLinear(), 2)
    monkeypatch.setattr(verify_stages, "FAMILIES", ("linear",))
    monkeypatch.setattr(verify_stages, "_instance", lambda family, key: (risk, model))
    data = verify_stages.compute(verify_stages.Size(1, stages=1), jax.random.key(0), lambda line: None)
    assert data["inside"].all() and data["predicted"][0, 0, 0] == pytest.approx(1.0, rel=1e-12)
    assert data["distance"][0, 0, -1, 0] <= verify_stages.WEIGHTS


def verified(**how) -> dict[str, np.ndarray]:
    shape = (1, 2)
    data = {
        "count": np.full(shape, 2),
        "inside": np.ones(shape, bool),
        "failed": np.zeros(shape, bool),
        "predicted": np.broadcast_to([1.0, 2.0], (*shape, 2)).copy(),
        "distance": np.full((*shape, 3, 2), 1e-9),
        "entering": np.ones(shape, int),
        "entering_predicted": np.ones(shape, int),
        "drift": np.full(shape, 1e-14),
    }
    data["measured"] = data["predicted"][:, :, None, :] + np.array([1e-1, 1e-2, 1e-3])[None, None, :, None]
    return data | how


def test_verdicts_of_verify_follow_the_numbers() -> None:
    check = verify_stages.StagesCheck()
    rate, holds, open_ = Verdict.holds_at_this_rate, Verdict.holds, Verdict.not_settled

    def verdicts(**how) -> list[Verdict]:
        return [row.verdict for row in check.rows(verified(**how))]

    assert verdicts() == [rate, holds, holds, holds]
    stuck = verified()["measured"]
    stuck[0, 0, 2, 1] = stuck[0, 0, 1, 1]
    assert verdicts(measured=stuck)[0] == open_
    assert verdicts(distance=np.full((1, 2, 3, 2), 1e-2))[1] == open_
    assert verdicts(entering=np.full((1, 2), 2))[2] == open_
    assert verdicts(drift=np.full((1, 2), 1e-3))[3] == open_
    # One that was not followed to its end stays in every denominator.
    assert verdicts(failed=np.array([[True, False]]), drift=np.array([[np.nan, 1e-14]])) == [open_] * 4
    nobody = verdicts(inside=np.zeros((1, 2), bool))
    assert nobody[:3] == [Verdict.outside_hypotheses] * 3


def test_supports_of_the_flow_are_read_from_its_own_entries() -> None:
    # That module imports this one.
    from tests.papers.made_up.boix2023 import supports

    apart, together, other = supports()
    rows = [verify_supports.SupportsCheck().rows(data)[0] for data in (apart, together, other)]
    assert [row.verdict for row in rows] == [Verdict.holds, Verdict.not_settled, Verdict.not_settled]
    assert [row.evidence.undecided for row in rows] == [0, 0, 1]
    assert rows[0].values["agrees"] == 1 and rows[2].values["agrees"] == 0
    outside = apart | {"flow_inside": np.zeros(1, bool)}
    assert verify_supports.SupportsCheck().rows(outside)[0].verdict is Verdict.outside_hypotheses


def test_products_of_one_stage_are_told_from_those_of_two() -> None:
    # Two coordinates of their own, whose slopes differ by a half or by a billionth.
    def entries(second: float) -> verify_supports.Entries:
        risk = jf.EmpiricalRisk(jf.data.LinearData(np.eye(2), np.array([1.0, second])), jf.losses.Squared())
        start = jf.models.HadamardNetwork(jf.models.DiagonalLinear(), np.ones(2), 0.5 * np.ones(2))
        paths = [follow_products(risk, start.scaled(a), a, 6.0) for a in verify_supports.LOG_ALPHAS]
        found = [verify_supports.entries_of(path) for path in paths]
        times = np.array([[[time for time, _ in order] for order in found]])
        names = np.array([[[i for _, i in order] for order in found]])
        return verify_supports.Entries(names, times, np.ones(1, bool), np.zeros(1, bool))

    good, known = verify_supports.one_at_a_time(entries(0.5))
    assert good[0] and known[0]
    good, known = verify_supports.one_at_a_time(entries(1.0 + 1e-9))
    assert not good[0] and not known[0]

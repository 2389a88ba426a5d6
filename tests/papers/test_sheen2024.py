"""Figures and checks of Sheen et al. (2024): a tiny run end to end, and verdicts that follow made-up numbers."""

import json
import zlib
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from jaxflow import papers
from jaxflow._core import Outcome
from jaxflow.margin import ProgramResult
from jaxflow.papers.sheen2024 import equivalence, norms, rates
from jaxflow.papers.sheen2024.aligned_claims import claims_of_alignment
from jaxflow.papers.sheen2024.blocks import in_blocks
from jaxflow.papers.sheen2024.diagonal_claims import INSTANT, claims_of_multipliers, growth
from jaxflow.papers.sheen2024.failure_claims import claims_of_failures
from jaxflow.papers.sheen2024.far import far_certificates
from jaxflow.papers.sheen2024.norms import claims_of_norms
from jaxflow.papers.sheen2024.verify import assumptions, divergence, general
from jaxflow.papers.sheen2024.verify import diagonal as checks
from jaxflow.plots import draw_alignment, draw_failures, draw_multipliers, draw_rates, draw_three_norms
from jaxflow.report import Verdict

HOLDS, RATE = Verdict.holds, Verdict.holds_at_this_rate
BROKEN, OUTSIDE, OPEN = Verdict.counterexample_found, Verdict.outside_hypotheses, Verdict.not_settled
TIMES = np.geomspace(1.0, 1e6, 7)


@pytest.mark.slow
def test_equivalence_from_the_name_to_the_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(equivalence.TRIALS, "quick", 1)
    monkeypatch.setattr(equivalence, "OMEGAS", (1.0,))
    paths, claims = papers.reproduce("sheen2024", "equivalence", out=tmp_path, say=lambda line: None)
    assert all(path.stat().st_size > 0 for path in paths.values())
    # One flow has an exponent and no interval.
    assert [claim.verdict for claim in claims] == [HOLDS, HOLDS, OPEN]
    with np.load(paths["data"]) as archive:
        data = dict(archive)
    assert data["apart"].shape == (1, 1, 25) and data["ok"].all()
    saved = json.loads(paths["claims"].read_text(encoding="utf-8"))
    assert saved["claims"][0]["values"]["worst"] <= 1e-8 and saved["claims"][1]["values"]["worst"] <= 1e-6


def test_blocks_of_a_constant_width_lose_and_add_nothing() -> None:
    widths = []

    def block(rows: Any) -> dict[str, Any]:
        widths.append(len(rows))
        return {"twice": 2 * rows}

    found = in_blocks(block, np.arange(7), 3)
    assert widths == [3, 3, 3] and np.array_equal(found["twice"], 2 * np.arange(7))


def test_growth_is_an_exponent() -> None:
    assert growth(TIMES[None] ** 0.7, TIMES)[0] == pytest.approx(0.7)
    assert growth(np.ones((1, 7)), TIMES)[0] == 0.0
    assert rates.observed_exponent(TIMES[None] ** -0.3, TIMES)[0] == pytest.approx(0.3)
    assert np.isnan(rates.observed_exponent(-np.ones((1, 7)), TIMES)[0])


def diagonal_numbers(**other: Any) -> dict[str, np.ndarray]:
    """Three instances that satisfy and show everything."""
    m = len(checks.LOG_TIMES)
    mu = np.tile(np.maximum(checks.LOG_TIMES, 1.0), (3, 1))
    entry = (np.log(mu) + 2.0) / np.log(np.maximum(mu, 2.0))
    beta = np.stack([mu, np.zeros_like(mu)], axis=2)
    falling = 0.2 / np.log(mu + 2.0)
    data: dict[str, Any] = {
        "ok": np.ones(3, bool),
        "inside": np.ones(3, bool),
        "hypotheses": np.ones(3, bool),
        "apart": np.full((3, m), 1e-10),
        "identity": np.full((3, m), 1e-9),
        "diagonal": np.ones(3),
        "size": mu,
        "margin": mu,
        "selects": np.ones(3, int),
        "weights_gap": 1.0 / mu,
        "cauchy": 1.0 / mu,
        "gap": 1.0 / mu,
        "kappa": np.zeros(3),
        "behind": np.zeros(3),
        "second_gap": np.full((3, m), 1e-9),
        "far_gap": np.full(3, 1e-7),
        "far_log_time": np.full(3, 1e257),
        "far_optimal": np.ones(3, bool),
        "least_multiplier": np.ones(3),
        "program_gap": np.full(3, 1e-12),
        "stationarity": falling,
        "predicted": falling,
        "slackness": falling,
        "beta": beta,
        "averaged": np.stack([entry, np.zeros_like(entry)], axis=2),
    }
    return data | other


def test_the_check_of_diagonal_weights_follows_its_numbers() -> None:
    rows = checks.Diagonal().rows(diagonal_numbers())
    assert [row.verdict for row in rows] == [HOLDS, HOLDS, RATE, RATE, RATE, RATE, RATE, BROKEN, RATE]
    assert rows[7].source == "App. A.7" and rows[7].worst == pytest.approx(1.0 - 2.0 / 3.0)
    m = len(checks.LOG_TIMES)
    wrong = diagonal_numbers(
        apart=np.full((3, m), 1e-7),
        identity=np.full((3, m), 1e-5),
        size=np.ones((3, m)),
        selects=np.array([1, -1, 1]),
        gap=np.ones((3, m)),
        stationarity=np.full((3, m), 0.4),
        far_gap=np.ones(3),
    )
    rows = checks.Diagonal().rows(wrong)
    # No second means confirms any of it, except where A.7 is compared with A.5 on the same flows.
    assert [row.verdict for row in rows] == [OPEN, OPEN, OPEN, OPEN, OPEN, OPEN, RATE, BROKEN, OPEN]
    assert [row.evidence.contradicted for row in rows] == [3, 3, 3, 1, 0, 3, 0, 3, 0]
    bent = diagonal_numbers()
    bent["averaged"] = bent["averaged"] * 2.0
    assert [row.verdict for row in checks.Diagonal().rows(bent)[6:8]] == [OPEN, OPEN]
    lost = diagonal_numbers(ok=np.zeros(3, bool), inside=np.zeros(3, bool))
    rows = checks.Diagonal().rows(lost)
    assert [row.verdict for row in rows] == [OPEN] * 9 and {row.evidence.undecided for row in rows} == {3}
    nobody = lost | {"hypotheses": np.zeros(3, bool), "diagonal": np.zeros(3)}
    assert [row.verdict for row in checks.Diagonal().rows(nobody)] == [OPEN] * 2 + [OUTSIDE] * 7


def test_a_few_late_instances_are_no_counterexample() -> None:
    data = {name: np.concatenate([value] * 3) for name, value in diagonal_numbers().items()}
    data["gap"][0] = 1e-2
    row = checks.Diagonal().rows(data)[4]
    # Nor proof.
    assert row.verdict is OPEN and row.values["reached"] == 8 and row.evidence.undecided == 1


def test_lemma_4_2_as_printed_is_refuted_by_points_at_rest() -> None:
    rest, best = Outcome.finite_stationary_point.value, Outcome.globally_optimal.value
    data = {
        "outcome": np.array([rest, best, rest]),
        "stationarity": np.array([1e-9, 0.3, 1e-9]),
        "size": np.array([3.0, 1e9, 3.0]),
        "log_norm": np.array([1.0, 200.0, 1.0]),
        "equal": np.zeros(3),
        "separable": np.array([0.1, 0.2, 0.0]),
        "diagonal": np.array([0.0, 0.2, 0.0]),
    }
    printed, mended = divergence.Divergence().rows(data)
    assert (printed.verdict, printed.instances, printed.values["rests"]) == (BROKEN, 2, 1)
    assert (mended.verdict, mended.instances, mended.outside) == (HOLDS, 1, 2)
    mended = divergence.Divergence().rows(data | {"diagonal": np.full(3, 0.1)})[1]
    assert mended.verdict is OPEN and mended.evidence.contradicted == 2
    # A point at rest whose program may be feasible is refuted by nothing but itself.
    printed, _ = divergence.Divergence().rows(data | {"diagonal": np.full(3, 0.1)})
    assert printed.verdict is OPEN
    gone = np.array([best, best, best])
    assert [row.verdict for row in divergence.Divergence().rows(data | {"outcome": gone})] == [HOLDS, HOLDS]
    lost = np.array([Outcome.undecided.value, Outcome.failed.value, rest])
    assert [row.verdict for row in divergence.Divergence().rows(data | {"outcome": lost})] == [OPEN, OPEN]


def general_numbers() -> dict[str, np.ndarray]:
    data: dict[str, Any] = {}
    for name in (*general.SETTINGS, "long"):
        data[f"{name}_inside"], data[f"{name}_ok"] = np.ones(2, bool), np.ones(2, bool)
        data[f"{name}_alignment"] = np.full((2, 3), 1e-15)
        data[f"{name}_oracle_excess"] = np.full((2, 3), 1e-10)
        data[f"{name}_weights_excess"] = np.full((2, 3), 1e-5)
        data[f"{name}_flow_gap"] = np.full((2, 3), 1e-5)
        data[f"{name}_result"] = np.full(2, ProgramResult.optimal.value)
        for part in ("oracle", "program_gap", "lifted_gap", "lifted_residual"):
            data[f"{name}_{part}"] = np.full(2, 1e-13)
        data[f"{name}_correlation"] = np.array([1.0, 0.9])
    data["narrow_ok"] = np.ones(2, bool)
    data["narrow_trained"] = np.array([[1.0, 1.0], [1.0, 1 / 3]])
    data["narrow_attention"] = np.full((2, 25), 1 / 3)
    data["other_excess"], data["other_apart"] = np.full(2, 1e-14), np.array([0.1, 0.2])
    return data


def test_the_check_of_general_weights_follows_its_numbers() -> None:
    rows = general.General().rows(general_numbers())
    assert [row.verdict for row in rows] == [HOLDS] * 5 + [OUTSIDE]
    assert rows[4].values["different"] == 2 and rows[0].instances == 8
    wrong = general_numbers()
    wrong["long_alignment"][0, -1] = 1e-9
    for part, value in (("oracle_excess", 1e-7), ("oracle", 1e-7), ("lifted_gap", 1e-6)):
        wrong[f"outside_{part}"] = np.full_like(wrong[f"outside_{part}"], value)
    wrong["other_excess"][1] = 1e-3
    rows = general.General().rows(wrong)
    assert [row.verdict for row in rows] == [OPEN] * 5 + [OUTSIDE]
    assert [row.evidence.contradicted for row in rows] == [1, 2, 2, 2, 1, 0]
    lost = general_numbers() | {"negative_ok": np.array([True, False])}
    assert [row.verdict for row in general.General().rows(lost)][:3] == [OPEN, OPEN, HOLDS]
    unsolved = general_numbers() | {"negative_result": np.full(2, ProgramResult.budget_spent.value)}
    assert [row.verdict for row in general.General().rows(unsolved)][:3] == [HOLDS, HOLDS, OPEN]
    # The same matrix again shows nothing of uniqueness.
    assert general.General().rows(general_numbers() | {"other_apart": np.zeros(2)})[4].verdict is OPEN


def test_assumptions_are_counted() -> None:
    needed = np.array([assumptions.score_gap_needed(*size) for size in assumptions.SIZES])
    small = np.tile(np.where(np.asarray(assumptions.MULTIPLES) > 1, 1.0, -1.0), (len(needed), 1))
    data = {
        "general": np.array([0.1, 0.1, 0.0, np.nan]),
        "diagonal": np.array([0.1, 0.0, 0.0, 0.1]),
        "small": small,
        "needed": needed,
        "sizes": np.asarray(assumptions.SIZES),
        "multiples": np.asarray(assumptions.MULTIPLES),
    }
    separable, gap = assumptions.Assumptions().rows(data)
    assert (separable.verdict, separable.instances, separable.values["infeasible"]) == (BROKEN, 3, 1)
    assert separable.evidence.undecided == 1
    feasible = assumptions.Assumptions().rows(data | {"diagonal": np.full(4, 0.1)})[0]
    assert feasible.verdict is OPEN
    settled = {"general": np.full(4, 0.1), "diagonal": np.full(4, 0.1)}
    assert assumptions.Assumptions().rows(data | settled)[0].verdict is HOLDS
    assert gap.verdict is HOLDS
    assert assumptions.Assumptions().rows(data | {"small": -small})[1].verdict is OPEN
    assert assumptions._slack(4, 4, 1.01) > 0 > assumptions._slack(4, 4, 0.99)


def multiplier_numbers(gap: float) -> dict[str, np.ndarray]:
    shape = (2, 4, 7)
    falling = np.broadcast_to(0.2 / np.log(TIMES + 2.0), shape)
    rng = np.random.default_rng(0)
    return {
        "log_times": TIMES,
        "omegas": np.array([1.0, 1e-3]),
        "inside": np.array([[True, True, True, False], [False] * 4]),
        "hypotheses": np.array([[True, True, True, False], [False] * 4]),
        "stationarity": falling,
        "predicted": falling,
        "slackness": falling,
        "gap": gap * TIMES[-1] / np.broadcast_to(TIMES, shape),
        "margin": np.broadcast_to(TIMES, shape),
        "kappa": np.zeros((2, 4)),
        "behind": np.zeros((2, 4)),
        "least_multiplier": np.ones((2, 4)),
        "second_gap": np.full(shape, gap),
        "program_gap": np.full((2, 4), 1e-12),
        "weights_gap": np.full(shape, gap),
        "averaged": rng.normal(size=(2, 7, 4)),
        "instantaneous": rng.normal(size=(2, 7, 4)),
    }


def test_multipliers_are_judged_for_starts_with_instances() -> None:
    claims, notes = claims_of_multipliers(multiplier_numbers(1e-6))
    assert [claim.verdict for claim in claims] == [RATE] * 3
    assert any("0 of 4 instances" in note for note in notes)
    assert claims_of_multipliers(multiplier_numbers(1e-2))[0][2].verdict is OPEN
    stays = multiplier_numbers(1e-6) | {"slackness": np.full((2, 4, 7), 0.1), "gap": np.full((2, 4, 7), 1e-6)}
    assert [claim.verdict for claim in claims_of_multipliers(stays)[0]] == [RATE, OPEN, OPEN]
    lost = multiplier_numbers(1e-6)
    lost["hypotheses"] = np.ones((2, 4), bool)
    assert [claim.verdict for claim in claims_of_multipliers(lost)[0]] == [OPEN] * 3
    other = multiplier_numbers(1e-6)
    other["stationarity"] = 2.0 * other["stationarity"]
    assert claims_of_multipliers(other)[0][0].verdict is OPEN
    figure = draw_multipliers(multiplier_numbers(1e-6))
    # The start without an instance inside the hypotheses has no curve.
    assert sum("0.001" in str(line.get_label()) for line in figure.axes[1].lines) == 0


def test_rates_compare_exponent_and_slack() -> None:
    kappa = np.array([0.9, 0.5, 0.2, 0.4])
    gaps = TIMES[None] ** -(1.0 - kappa[:, None])
    data = {
        "log_times": TIMES,
        "inside": np.array([True, True, True, False]),
        "hypotheses": np.array([True, True, True, False]),
        "kappa": kappa,
        "weights_gap": gaps,
        "exponent": rates.observed_exponent(gaps, TIMES),
        "behind": np.zeros(4),
    }
    claims, _ = rates.claims_of_rates(data)
    assert claims[0].verdict is RATE and claims[0].values == {"close": 3, "instances": 3}
    assert rates.claims_of_rates(data | {"exponent": data["exponent"] + 1})[0][0].verdict is OPEN
    figure = draw_rates(data | {"waiting": np.array([False, True, False, True])})
    assert len(figure.axes[0].lines) == 3
    # Two of those inside do not wait, one does, and the third line is the diagonal.
    assert [len(line.get_xdata()) for line in figure.axes[1].lines] == [2, 1, 2]
    # One that is late is no proof, and no counterexample; the notes say whether it waits for a constraint.
    late = data | {"exponent": data["exponent"] + np.array([0, 0, -0.5, 0]), "behind": np.array([0, 0, 0.3, 0])}
    claims, notes = rates.claims_of_rates(late)
    assert claims[0].verdict is OPEN and "1 further off 1 wait" in notes[-1] and "Of the 2 of which" in notes[-1]
    early = TIMES < 0.3 * TIMES[-1]
    jump = gaps * np.where(early, 1.0, 1e-2)
    assert np.all(rates.bend(jump, TIMES) > rates.BENT) and np.all(rates.bend(gaps, TIMES) < 1e-12)


def test_alignment_is_judged_inside_the_assumptions() -> None:
    shape = (3, 2, 7)
    data = {
        "log_times": TIMES,
        "starts": np.array(["unbalanced", "balanced", "misaligned"]),
        "L": np.array(3),
        "d": np.array(4),
        "ok": np.ones((3, 2), bool),
        "alignment": np.full(shape, 1e-15),
        "weights_excess": np.full(shape, 1e-5),
        "velocity_excess": np.full(shape, 1e-9),
        "oracle_excess": np.full(shape, 1e-9),
        "narrow_ok": np.ones(2, bool),
        "narrow_trained": np.array([[1.0, 1.0], [1.0, 1 / 3]]),
        "narrow_attention": np.full((2, 7), 1 / 3),
        "narrow_columns": np.array(1),
    }
    data |= {name: np.array([0.1, -0.1]) for name in ("equal", "small", "orthogonal", "parallel", "paired")}
    claims, _ = claims_of_alignment(data)
    assert [claim.verdict for claim in claims] == [HOLDS, HOLDS, HOLDS, OUTSIDE]
    assert claims[0].values["paths"] == 1
    data["alignment"][:, 0, 3] = 1e-3
    data["oracle_excess"][:, 0, -1] = 1e-3
    assert [claim.verdict for claim in claims_of_alignment(data)[0]] == [OPEN, OPEN, OPEN, OUTSIDE]
    data["ok"][0, 0] = False
    assert [claim.evidence.undecided for claim in claims_of_alignment(data)[0]] == [1, 0, 1, 0]
    assert len(draw_alignment(data).axes) == 3


def test_norms_are_compared_where_all_three_limits_are_directions() -> None:
    optimal = ProgramResult.optimal.value
    data: dict[str, Any] = {"kinds": np.array(["combined", "factored", "diagonal"])}
    for column, kind in enumerate(("combined", "factored", "diagonal")):
        ratio = np.full((2, 3), 1.3)
        ratio[:, column] = 1.0 + 1e-9
        data[f"{kind}_ratio"] = ratio
        data[f"{kind}_outcome"] = np.full(2, Outcome.globally_optimal.value)
        data[f"{kind}_results"] = np.array([[optimal] * 3, [ProgramResult.infeasible.value] * 3])
        data[f"{kind}_gap"] = np.full(2, 1e-10)
    data["all_good"] = np.array([True, False])
    claims, _ = claims_of_norms(data)
    assert [claim.verdict for claim in claims] == [HOLDS, OPEN, OPEN, HOLDS, HOLDS, HOLDS]
    assert all(claim.values["instances"] == 1 for claim in claims)
    data["combined_ratio"][0, 1] = 1.0
    data["combined_ratio"][0, 0] = 1.0 + 1e-6
    verdicts = [claim.verdict for claim in claims_of_norms(data)[0]]
    assert verdicts == [OPEN, OPEN, OPEN, OPEN, HOLDS, HOLDS]
    lost = data | {f"{kind}_results": np.full((2, 3), optimal) for kind in ("combined", "factored", "diagonal")}
    assert {claim.evidence.undecided for claim in claims_of_norms(lost)[0]} == {1}
    drawn = data | {
        "weights": np.stack([np.eye(3)] * 3),
        "ratio": np.full((3, 2), 1.2),
        "shown_l1": np.array([np.nan, np.nan, 1.0]),
    }
    assert len(draw_three_norms(drawn).axes) == 4


def test_norms_are_assembled_from_the_limits_of_each_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is drawn of one data set stands beside the numbers of all, under names of its own."""
    optimal, d = ProgramResult.optimal.value, 3

    def made_up(kind: str, keys: Any) -> dict[str, np.ndarray]:
        total = len(keys)
        ratio = np.full((total, 3), 1.3)
        ratio[:, norms.KINDS.index(kind)] = 1.0 + 1e-6
        # The first data set is one on which a flow selects other tokens.
        outcome = np.where(np.arange(total) > 0, Outcome.globally_optimal.value, Outcome.locally_optimal.value)
        weights = np.stack([np.eye(d) * (row + 1.0) for row in range(total)])
        numbers = {"ratio": ratio, "outcome": outcome, "weights": weights}
        return numbers | {"results": np.full((total, 3), optimal), "gap": np.full(total, 1e-10)}

    monkeypatch.setattr(norms, "follow_limits", made_up)
    data = norms.Norms().compute("quick", 0, lambda line: None)
    assert int(data["shown"]) == 1 and data["weights"].shape == (3, d, d) and data["weights"][0, 0, 0] == 2.0
    assert data["diagonal_ratio"].shape == (norms.TRIALS["quick"], 3) and data["shown_l1"].shape == (3,)
    claims, _ = norms.Norms().claims(data)
    assert all(claim.values["instances"] == norms.TRIALS["quick"] - 1 for claim in claims)
    assert len(norms.Norms().draw(data).axes) == 4


def test_failures_count_every_instance() -> None:
    data: dict[str, Any] = {"multiples": np.array([0.1, 1.0]), "spreads": np.array([0.1])}
    for name, rows in (("gap", 2), ("spread", 1), ("random", 1)):
        data[f"{name}_ok"] = np.ones((rows, 4), bool)
        data[f"{name}_diagonal"] = np.tile([0.1, 0.1, 0.1, 0.0], (rows, 1))
        data[f"{name}_selects"] = np.tile([1, 0, 1, 1], (rows, 1))
        data[f"{name}_small"] = np.ones((rows, 4))
        data[f"{name}_weights_gap"] = np.full((rows, 4, 7), 1e-3)
        for part in ("share", "low", "high", "open", "assumed"):
            data[f"{name}_{part}"] = np.full(rows, 0.25)
        data[f"{name}_total"], data[f"{name}_wrong"], data[f"{name}_right"] = (np.full(rows, x) for x in (3, 0, 2))
    data["gap_small"][0] = -1.0
    data["gap_selects"][0, 0] = -1
    data["amounts"] = np.array([0.1, 0.2])
    data["broken"] = np.full((3, 2, 3), 1e-2)
    for part in range(3):
        data[f"broken{part}_ok"] = np.ones((2, 4), bool)
        data[f"broken{part}_alignment"] = np.full((2, 4, 7), 0.1)
    claims, notes = claims_of_failures(data)
    # One flow of three is undecided.
    assert [claim.verdict for claim in claims] == [OPEN, OUTSIDE, OUTSIDE, OPEN, OUTSIDE, OUTSIDE, OUTSIDE]
    assert claims[0].values == {"wrong": 0, "right": 2, "instances": 3}
    assert claims[2].values == {"wrong": 0, "right": 2, "instances": 3}
    assert claims[1].values == {"wrong": 1, "instances": 3}
    assert any("3 with a feasible" in note and "(1 without)" in note for note in notes)
    data["gap_selects"][1, 0] = -1
    assert claims_of_failures(data)[0][0].evidence.contradicted == 1
    settled = {name: np.ones_like(data[name]) for name in ("gap_selects", "spread_selects")}
    assert [claim.verdict for claim in claims_of_failures(data | settled)[0]][::3] == [HOLDS, HOLDS, OUTSIDE]
    assert len(draw_failures(data).axes) == 3


def test_every_figure_and_check_is_listed() -> None:
    figures = {entry.name for entry in papers.figures_of("sheen2024")}
    assert figures == {"equivalence", "multipliers", "alignment", "norms", "failures", "rates"}
    found = {check.name for check in papers.checks_of("sheen2024")}
    assert found == {"assumptions", "diagonal", "divergence", "general"}
    assert jax.config.jax_enable_x64


def test_what_misses_the_bound_is_no_proof_and_says_why() -> None:
    data = {name: np.concatenate([value[:2]] * 3) for name, value in diagonal_numbers().items()}
    falling = 1.0 / np.maximum(checks.LOG_TIMES, 1.0)
    data["gap"] = np.stack([falling, falling, falling, 20.0 * falling, np.full_like(falling, 2e-2), falling])
    data["behind"][4], data["least_multiplier"][4] = 0.1, 0.02
    row = checks.Diagonal().rows(data)[4]
    assert row.verdict is OPEN and (row.values["reached"], row.values["missing"]) == (4, 2)
    assert (
        "1 wait for a constraint whose multiplier λ is 2.0e-02 of the sum" in row.measured
        and "1 fall like 1/log t, from 2.0e-05" in row.measured
    )
    assert "(1.0e-09 or less by" in row.measured
    data["gap"][3] = 2e-5
    row = checks.Diagonal().rows(data)[4]
    assert "fall like 1/log t" not in row.measured and "1 do neither" in row.measured


def test_far_out_a_constraint_with_a_small_multiplier_is_active() -> None:
    """On this instance the flow's own multipliers are off by 1e-2 at log t = 1e6."""
    key = jax.random.fold_in(jax.random.key(0), zlib.crc32(b"diagonal"))
    found = far_certificates(checks.CELL, jax.random.split(key, 32)[9:10])
    # The flow ends where it certifies itself, at a log t of some 1e22.
    assert found["far_optimal"].all() and found["far_gap"][0] <= INSTANT and found["far_log_time"][0] > 1e15

"""Lemmas 4.1, A.1 and 4.2, Theorem 4.1 and the multipliers of its proof, on random data of Assumptions 2 and 3."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jaxflow.papers.checks import AbstractCheck, Row, register_check
from jaxflow.papers.registry import Data
from jaxflow.papers.sheen2024.diagonal_claims import (
    CERTIFIED,
    EQUAL,
    IDENTITY,
    INSTANT,
    LAW,
    among,
    averaged_evidence,
    divergence_evidence,
    growth,
    hypotheses_of_theorem_4_1,
    inside_theorem_4_1,
    instantaneous,
    limit_evidence,
)
from jaxflow.papers.sheen2024.diagonal_paths import LOG_TIMES, MARGIN, SHAPE, Cell, follow_diagonal
from jaxflow.papers.sheen2024.far import far_certificates
from jaxflow.papers.sheen2024.rates import BENT, observed_exponent
from jaxflow.report import Evidence, bounded_evidence, common_rate, count_evidence

TRIALS = {"quick": 8, "paper": 32, "large": 4096}
GAP_LAW = "‖β‖₁/(μ opt) − 1 against log t"
CELL = Cell(*SHAPE, 1.1, 1.0, margin=MARGIN)


@register_check("sheen2024", "diagonal", statements="Lemmas 4.1, A.1, 4.2, Theorem 4.1, App. A.5")
class Diagonal(AbstractCheck):
    r"""Flows of both parametrisations to log t = 1e6 (n = 3, L = d = 4, $\omega_0=1$)."""

    def compute(self, scale: str, key: Any, say: Callable[[str], None]) -> Data:
        say(f"diagonal weights: {TRIALS[scale]} pairs of flows")
        keys = jax.random.split(key, TRIALS[scale])
        found = follow_diagonal(CELL, keys)
        inside = {"inside": inside_theorem_4_1(found), "hypotheses": hypotheses_of_theorem_4_1(found)}
        return found | far_certificates(CELL, keys) | inside

    def rows(self, data: Data) -> list[Row]:
        return [
            _equal(data),
            _identity(data),
            _diverges(data),
            _optimal(data),
            _certified(data),
            _averaged(data),
            _factor(data, printed=False),
            _factor(data, printed=True),
            _far(data),
        ]


def _row(source: str, checked: str, measured: str, asked: np.ndarray, worst: float, residual: str, evidence: Evidence,
         **values: float | int) -> Row:  # fmt: skip
    inside = evidence.inside
    worst = worst if inside > evidence.undecided else float("inf")
    return Row(source, checked, measured, inside, int(asked.size - inside), worst, residual, evidence, values)


def _worst(values: np.ndarray) -> float:
    return float(np.max(values, initial=0.0))


def _equal(data: Data) -> Row:
    kept, every = data["ok"], np.ones(data["ok"].shape, bool)
    worst = _worst(data["apart"][kept])
    return _row(
        "Lemma 4.1",
        "the flows of (ξ_k, ξ_q) and of (w_+, w_-) from (5) have equal β(t), at 25 times up to log t = 1e6",
        f"largest |β − w| over the largest |β| on {int(kept.sum())} pairs of paths: {worst:.1e}",
        every,
        worst,
        "|β − w| / |β|",
        bounded_evidence(among(every, kept, np.max(data["apart"][kept], axis=-1)), EQUAL),
    )


def _identity(data: Data) -> Row:
    kept, every = data["ok"], np.ones(data["ok"].shape, bool)
    worst = _worst(data["identity"][kept])
    return _row(
        "Lemma A.1",
        "(19): β(t) = ω₀² ⊙ sinh(Bφ(t)), φ carried as an integral along the path to log t = 1e6",
        f"largest difference over the largest |β|: {worst:.1e} on {int(kept.sum())} paths",
        every,
        worst,
        "|β − ω₀² sinh(Bφ)| / |β|",
        bounded_evidence(among(every, kept, np.max(data["identity"][kept], axis=-1)), IDENTITY),
    )


def _diverges(data: Data) -> Row:
    asked = data["diagonal"] > 0
    kept = data["ok"] & asked
    slopes = growth(data["size"], LOG_TIMES)[kept]
    slow = int(np.sum(slopes < 0.5))
    return _row(
        "Lemma 4.2",
        "‖β(t)‖ → ∞ under Assumption 2, where the ℓ1-SVM is feasible: d log ‖β‖ / d log log t for log t from 1e5 "
        "to 1e6",
        f"{slopes.min(initial=np.inf):.4f} to {slopes.max(initial=-np.inf):.4f}; below 0.5 on {slow} of {len(slopes)}",
        asked,
        float(np.max(np.abs(slopes - 1.0), initial=0.0)),
        "|slope − 1|",
        divergence_evidence(asked, kept, slopes),
        slow=slow,
    )


def _optimal(data: Data) -> Row:
    kept = data["inside"]
    wrong = int(np.sum(data["selects"][kept] == -1))
    right = int(np.sum(data["selects"][kept] == 1))
    gaps = data["weights_gap"][kept]
    middle = int(np.argmin(np.abs(LOG_TIMES - 1e3)))
    falls = int(np.sum(gaps[:, -1] < gaps[:, middle]))
    cauchy = data["cauchy"][kept, -6]
    selects, asked = data["selects"][kept], data["hypotheses"]
    good = (selects == 1) & (gaps[:, -1] < gaps[:, middle])
    # A wrong token contradicts it; what is undecided, or late, does not.
    decided = among(asked, kept, good | (selects == -1)) == 1.0
    rate = common_rate(observed_exponent(gaps, LOG_TIMES), 1.0 - data["kappa"][kept], bias=BENT, law=GAP_LAW)
    evidence = count_evidence(among(asked, kept, good) == 1.0, decided=decided, limit=True, rate=rate)
    return _row(
        "Theorem 4.1",
        "under Assumptions 2 and 3 the optimal tokens are selected, and the limit of β(t)/μ(t) solves the ℓ1-SVM",
        f"{right} of {len(gaps)} select the optimal tokens, {wrong} a wrong one; ‖β‖₁/(μ opt) − 1 falls on "
        f"{falls}, from "
        f"{_median(gaps[:, middle]):.1e} at log t = {LOG_TIMES[middle]:.0f} to {_median(gaps[:, -1]):.1e} at 1e6 "
        "(medians; "
        f"largest {_worst(gaps[:, -1]):.1e}); Cauchy gap of β̂ from log t = "
        f"{LOG_TIMES[-6]:.0e} on: {_median(cauchy):.1e} (median)",
        asked,
        _worst(gaps[:, -1]),
        "‖β‖₁/(μ opt) − 1",
        evidence,
        right=right,
        wrong=wrong,
        falls=falls,
    )


def _certified(data: Data) -> Row:
    kept = data["inside"]
    programs = _worst(data["program_gap"][kept])
    now = instantaneous(data, CELL.omega, LOG_TIMES) if kept.any() else None
    # A program that is not certified decides nothing.
    good = now.reached & (data["program_gap"][kept] <= CERTIFIED) if now else np.zeros(0, bool)
    slopes = -now.slope if now else np.zeros(0)
    measured = now.in_words() if now else "no instance is inside"
    missing, allowed, reached = (
        (int(now.missing.sum()), int(now.allowed.sum()), int(now.reached.sum())) if now else (0, 0, 0)
    )
    return _row(
        "Theorem 4.1",
        "its KKT conditions by the flow's instantaneous multipliers and velocity at log t = 1e6; the program certified",
        f"{measured}. The ℓ1-SVM's own gap is at most {programs:.1e}",
        data["hypotheses"],
        programs,
        "duality gap of the ℓ1-SVM's certificate",
        limit_evidence(data["hypotheses"], kept, good, slopes, "duality gap against log t"),
        reached=reached,
        allowed=allowed,
        missing=missing,
    )


def _far(data: Data) -> Row:
    kept = data["inside"]
    gaps, chosen = data["far_gap"][kept], data["far_optimal"][kept]
    good = chosen & (gaps <= INSTANT)
    late = int(np.sum(~good))
    # From the end of the flow that was integrated to the end of the limiting dynamics.
    before, span = data["gap"][kept, -1], np.log(data["far_log_time"][kept] / LOG_TIMES[-1])
    usable = (gaps > 0) & (before > 0) & (span > 0)
    falls = np.where(usable, np.log(np.where(usable, before / np.where(usable, gaps, 1.0), 1.0)), np.nan)
    slopes = falls / np.where(usable, span, 1.0)
    return _row(
        "Theorem 4.1",
        "its KKT conditions by the flow's own multipliers and velocity where `find_limit` ends, by limiting dynamics",
        f"duality gap {_median(gaps):.1e} (median; largest {_worst(gaps):.1e}), at most {INSTANT:g} on "
        f"{len(gaps) - late} of {len(gaps)}, with the optimal tokens on {int(chosen.sum())}; log t = "
        f"{data['far_log_time'][kept].min(initial=np.inf):.0e} or more",
        data["hypotheses"],
        _worst(gaps),
        "duality gap of the flow's certificate",
        limit_evidence(data["hypotheses"], kept, good, slopes, "duality gap against log t, from 1e6 on"),
        late=late,
    )


def _averaged(data: Data) -> Row:
    kept = data["inside"]
    last, expected = data["stationarity"][kept, -1], data["predicted"][kept, -1]
    off = np.abs(last / expected - 1.0)
    return _row(
        "App. A.5 (C1)",
        "the averaged multipliers λ = φ/ln μ approach KKT; at log t = 1e6 against |ln(2β̂_j/ω₀²)|/ln μ",
        f"residual {_median(last):.2f} (median; {last.min(initial=np.inf):.2f} to {_worst(last):.2f}); it is "
        f"|ln(2β̂_j/ω₀²)|/ln μ within {_worst(off):.0e}, so that it falls like 1/log log t",
        data["hypotheses"],
        _worst(off),
        "residual over |ln(2β̂_j/ω₀²)|/ln μ, minus 1",
        averaged_evidence(data),
    )


def _factor(data: Data, *, printed: bool) -> Row:
    r"""The slope of $\ln\mu\,(B\lambda)_j$ against $\ln\mu$ on the largest entry, which must tend to one."""
    kept = data["inside"]
    mu = np.log(data["margin"][kept][:, [-4, -1]])
    largest = np.argmax(np.abs(data["beta"][kept, -1]), axis=-1)
    entry = np.take_along_axis(data["averaged"][kept], largest[:, None, None], axis=2)[:, [-4, -1], 0] * mu
    slope = np.abs(entry[:, 1] - entry[:, 0]) / (mu[:, 1] - mu[:, 0])
    restored = bool(len(slope) and np.all(np.abs(slope - 1.0) <= LAW))
    slope = slope * (2.0 / CELL.n if printed else 1.0)
    evidence = bounded_evidence(
        among(data["hypotheses"], kept, np.abs(slope - 1.0)),
        LAW,
        limit=True,
        rate=common_rate(slope, 1.0, bias=LAW, law="ln μ (Bλ)_j against ln μ"),
        checked_by="the formula of A.5, by which the same flows have slope one" if printed and restored else "",
    )
    worst = _worst(np.abs(slope - 1.0))
    formula = "λ = 2φ/(n ln μ), as recalled in A.7" if printed else "λ = φ/ln μ, A.5"
    return _row(
        "App. A.7" if printed else "App. A.5",
        f"{formula} (φ has the factor 2/n already): (Bλ)_j → ±1 on the support, by the slope of ln μ (Bλ)_j "
        "against ln μ",
        f"slope {_median(slope):.3f} (median, n = {CELL.n}; log t = {LOG_TIMES[-4]:.0e} to 1e6); 1 is needed",
        data["hypotheses"],
        worst,
        "|slope − 1|",
        evidence,
    )


def _median(values: np.ndarray) -> float:
    return float(np.median(values)) if len(values) else float("nan")

"""What the paper says of diagonal weights, against the numbers of `follow_diagonal`."""

from typing import NamedTuple

import numpy as np

from jaxflow.margin import ProgramResult
from jaxflow.papers.registry import Data
from jaxflow.report import Claim, Verdict

# Two flows of steps of relative error 1e-10, held against each other.
EQUAL = 1e-8
# β = ω₀² sinh(Bφ) takes the integral's error times β's own size: two digits more than a step's.
IDENTITY = 1e-6
# A certified program.
CERTIFIED = 1e-8
# What an instantaneous certificate reaches where the slack of the dual allows it.
INSTANT = 1e-5
# Active constraints differ by logarithms of their multipliers' ratios, some 40 units at most, of μ = 1e6.
ACTIVE = 1e-4


def inside_theorem_4_1(data: Data) -> np.ndarray:
    """Instances inside the hypotheses: Assumptions 2 and 3, an ℓ1-SVM that is feasible, a flow that was followed.

    The existence of the limit is not asked for: it is measured.
    """
    solved = data["result"] == ProgramResult.optimal.value
    return (data["equal"] >= 0) & (data["small"] >= 0) & (data["diagonal"] > 0) & solved & data["ok"]


def predicted_gap(data: Data, omega: float) -> np.ndarray:
    r"""$(\omega_0^2/\mu)^{1-\kappa}$: the size of the slowest entry off the support, relative to those on it."""
    mu = data["margin"][:, -1]
    return (omega**2 / np.maximum(mu, 1.0)) ** (1.0 - data["kappa"])


class Instantaneous(NamedTuple):
    """The instantaneous certificate at the last time on the instances inside the hypotheses, `(k,)` each.

    `allowed`: the slack of the dual lets the gap be `INSTANT`; `early`: an active constraint is not active yet
    (`limiting_face`, with the `least` multiplier); `falling`: the gap falls like 1/log t (entries on the support are
    off by a constant over μ), the term that `second`, the gap of `second_order_multipliers`, does without.
    """

    gap: np.ndarray
    second: np.ndarray
    allowed: np.ndarray
    reached: np.ndarray
    early: np.ndarray
    least: np.ndarray
    falling: np.ndarray

    @property
    def missing(self) -> np.ndarray:
        """Not reached where it is allowed."""
        return self.allowed & ~self.reached

    def in_words(self) -> str:
        """All of it, with denominators."""
        text = (
            f"duality gap {np.median(self.gap):.1e} (median; {self.gap.min():.0e} to {self.gap.max():.0e}); at most "
            f"{INSTANT:g} on {int(self.reached.sum())} of {len(self.gap)}, and on "
            f"{int((self.reached & self.allowed).sum())} of the {int(self.allowed.sum())} where the dual slack allows "
            f"it, (ω₀²/μ)^(1−κ) ≤ {INSTANT:g}"
        )
        if not self.missing.any():
            return text
        early, coming = self.missing & self.early, self.missing & ~self.early & self.falling
        other = int(self.missing.sum() - early.sum() - coming.sum())
        parts = (
            (
                early.sum(),
                f"wait for a constraint whose multiplier λ is {self.least[early].max(initial=0.0):.1e} of the sum "
                "or less, which takes ln μ of order 1/λ",
            ),
            (
                coming.sum(),
                f"fall like 1/log t, from {self.gap[coming].max(initial=0.0):.1e} or less "
                f"({self.second[coming].max(initial=0.0):.1e} or less by multipliers without the term in 1/log t)",
            ),
            (other, "do neither"),
        )
        said = "; ".join(f"{int(count)} {what}" for count, what in parts if count)
        return f"{text}. Of the other {int(self.missing.sum())}: {said}"


def instantaneous(data: Data, omega: float, log_times: np.ndarray) -> Instantaneous:
    """What the flow's own multipliers and velocity certify at the last time; at least one instance must be inside."""
    kept = data["inside"]
    gaps = np.maximum(data["gap"][kept], 1e-300)
    slope = np.log(gaps[:, -1] / gaps[:, -4]) / np.log(log_times[-1] / log_times[-4])
    allowed, early = predicted_gap(data, omega)[kept] <= INSTANT, data["behind"][kept] > ACTIVE
    second = data["second_gap"][kept, -1]
    return Instantaneous(
        gaps[:, -1], second, allowed, gaps[:, -1] <= INSTANT, early, data["least_multiplier"][kept], slope <= -0.9
    )


def asymptotic(failed: bool, late: int, total: int) -> Verdict:
    """Of a limit, seen at a finite time: a few that are late decide nothing, most of them do."""
    if failed or 2 * late > total:
        return Verdict.counterexample_found
    return Verdict.holds_at_this_rate if late == 0 else Verdict.outside_hypotheses


def growth(sizes: np.ndarray, log_times: np.ndarray) -> np.ndarray:
    r"""$d\log\|\beta\|/d\log\log t$ over the last decade of log t: 1 where ‖β‖ grows like log t, 0 where it stays."""
    first = int(np.argmin(np.abs(log_times - log_times[-1] / 10.0)))
    span = np.log(log_times[-1] / log_times[first])
    return np.log(sizes[..., -1] / sizes[..., first]) / span


def claims_of_equivalence(data: Data) -> tuple[list[Claim], list[str]]:
    """Lemma 4.1, (19) and Lemma 4.2 along the path."""
    ok, feasible = data["ok"], data["diagonal"] > 0
    total = int(ok.sum())
    apart, identity = _worst(data["apart"][ok]), _worst(data["identity"][ok])
    slopes = growth(data["size"], data["log_times"])[ok & feasible]
    slow = int(np.sum(slopes < 0.5))
    claims = [
        _bounded(
            "Lemma 4.1",
            "The dynamics of β and w are equivalent, i.e., β(t) = w(t) for all t ≥ 0.",
            f"largest |β − w| over the largest |β|: {apart:.1e}, to log t = 1e6, over {total} paths",
            apart,
            EQUAL,
            total,
        ),
        _bounded(
            "Lemma A.1",
            "For all t ≥ 0, β(t) = ω₀² ⊙ sinh(Bφ(t)).  (19)",
            f"largest difference over the largest |β|: {identity:.1e} with φ carried along, over {total} paths",
            identity,
            IDENTITY,
            total,
        ),
        Claim(
            "Lemma 4.2",
            "‖β(t)‖ → ∞ (where the ℓ1-SVM is feasible).",
            f"‖β‖ grows like (log t)^a with a = {slopes.min(initial=np.inf):.3f} to {slopes.max(initial=-np.inf):.3f} "
            f"between log t = 1e5 and 1e6, over {len(slopes)} paths; {slow} have a < 0.5",
            (Verdict.counterexample_found if slow else Verdict.holds) if len(slopes) else Verdict.outside_hypotheses,
            {"slow": slow, "paths": len(slopes)},
        ),
    ]
    return claims, [
        f"{total} of {ok.size} pairs of paths were followed to log t = 1e6; the others rest at finite points or were "
        f"given up, and {int((ok & ~feasible).sum())} of those followed have no feasible ℓ1-SVM.",
        f"ξ_k² − ξ_q² is conserved to {_worst(data['conserved'][ok]):.1e} of ‖β‖ + ω₀².",
        "Relative to the largest entry of β: β(0) = 0, and entries off the support stay small.",
    ]


def claims_of_multipliers(data: Data) -> tuple[list[Claim], list[str]]:
    """Averaged multipliers approach KKT like 1/ln μ; instantaneous ones certify."""
    claims: list[Claim] = []
    notes: list[str] = []
    for row, omega in enumerate(data["omegas"]):
        part = {name: value[row] for name, value in data.items() if name not in ("log_times", "omegas")}
        kept = part["inside"]
        count = int(kept.sum())
        notes.append(f"ω₀ = {omega:g}: {count} of {kept.size} instances are inside the hypotheses of Theorem 4.1.")
        if count:
            claims += _multiplier_claims(part, kept, float(omega), data["log_times"])
            worst = float(part["program_gap"][kept].max())
            notes.append(f"ω₀ = {omega:g}: the ℓ1-SVM is certified to {worst:.1e} in the worst case.")
    notes.append(
        "Averaged residuals are undefined while μ ≤ 1; κ is the largest |Bλ| off the support of the certified dual."
    )
    return claims, notes


def _multiplier_claims(part: Data, kept: np.ndarray, omega: float, log_times: np.ndarray) -> list[Claim]:
    last = part["stationarity"][kept, -1]
    ratio = last / part["predicted"][kept, -1]
    worst = float(np.abs(ratio - 1.0).max())
    slack = part["slackness"][kept, -1]
    now = instantaneous(part, omega, log_times)
    return [
        Claim(
            "A.5, (C1)",
            f"The averaged λ(t) satisfies ε(t) → 0 (ω₀ = {omega:g}).",
            f"at log t = 1e6 the residual is {np.median(last):.2f} (median; {last.min():.2f} to {last.max():.2f}), "
            f"within {worst:.0e} of |ln(2β̂_j/ω₀²)|/ln μ on every instance: it falls like 1/log log t",
            Verdict.holds_at_this_rate if worst <= 0.05 else Verdict.counterexample_found,
            {"median": float(np.median(last)), "instances": int(kept.sum())},
        ),
        Claim(
            "A.5, (C3)",
            f"λ_il (1 − β̂ᵀB_il) → 0 (ω₀ = {omega:g}).",
            f"at log t = 1e6: {np.median(slack):.2f} (median; largest {slack.max():.2f})",
            Verdict.holds_at_this_rate,
            {"median": float(np.median(slack))},
        ),
        Claim(
            "Theorem 4.1",
            f"β̂ tends to a KKT point: by the instantaneous multipliers at log t = 1e6 (ω₀ = {omega:g}).",
            now.in_words(),
            asymptotic(False, int(now.missing.sum()), int(now.allowed.sum())),
            {"reached": int(now.reached.sum()), "allowed": int(now.allowed.sum()), "instances": len(now.gap)},
        ),
    ]


def _bounded(source: str, sentence: str, measured: str, worst: float, bound: float, total: int) -> Claim:
    verdict = Verdict.holds if worst <= bound else Verdict.counterexample_found
    return Claim(
        source, sentence, measured, verdict if total else Verdict.outside_hypotheses, {"worst": worst, "paths": total}
    )


def _worst(values: np.ndarray) -> float:
    return float(np.max(values, initial=0.0))

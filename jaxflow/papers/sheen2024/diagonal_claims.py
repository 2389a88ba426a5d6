"""What the paper says of diagonal weights, against the numbers of `follow_diagonal`."""

from typing import NamedTuple

import numpy as np

from jaxflow.margin import ProgramResult
from jaxflow.papers.registry import Data
from jaxflow.report import Claim, Evidence, bounded_evidence, common_rate, count_evidence

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
# On the support (Bλ)_j = (ln μ + ln(2β̂_j/ω₀²) + O(1/μ²)) / ln μ, with β̂_j settled to a few percent at the earlier time.
LAW = 0.05


def hypotheses_of_theorem_4_1(data: Data) -> np.ndarray:
    """Instances inside the hypotheses: Assumptions 2 and 3, and an ℓ1-SVM that is feasible.

    The existence of the limit is not asked for: it is measured.
    """
    return (data["equal"] >= 0) & (data["small"] >= 0) & (data["diagonal"] > 0)


def inside_theorem_4_1(data: Data) -> np.ndarray:
    """Of those inside the hypotheses the ones whose program was solved and whose flow was followed."""
    solved = data["result"] == ProgramResult.optimal.value
    return hypotheses_of_theorem_4_1(data) & solved & data["ok"]


def among(asked: np.ndarray, kept: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Values of the instances `kept`, NaN for the others of those that are `asked` for."""
    full = np.full(asked.shape, np.nan)
    full[kept] = values
    return full[asked | kept]


def predicted_gap(data: Data, omega: float) -> np.ndarray:
    r"""$(\omega_0^2/\mu)^{1-\kappa}$: the size of the slowest entry off the support, relative to those on it."""
    mu = data["margin"][:, -1]
    return (omega**2 / np.maximum(mu, 1.0)) ** (1.0 - data["kappa"])


class Instantaneous(NamedTuple):
    """The instantaneous certificate at the last time on the instances inside the hypotheses, `(k,)` each.

    `allowed`: the slack of the dual lets the gap be `INSTANT`; `early`: an active constraint is not active yet
    (`limiting_face`, with the `least` multiplier); `slope`: of log gap against log log t; where it is −1 (entries on
    the support are off by a constant over μ) the term is that which `second`, the gap of `second_order_multipliers`,
    does without.
    """

    gap: np.ndarray
    second: np.ndarray
    allowed: np.ndarray
    reached: np.ndarray
    early: np.ndarray
    least: np.ndarray
    slope: np.ndarray

    @property
    def falling(self) -> np.ndarray:
        """The gap falls like 1/log t."""
        return self.slope <= -0.9

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
        gaps[:, -1], second, allowed, gaps[:, -1] <= INSTANT, early, data["least_multiplier"][kept], slope
    )


def limit_evidence(
    asked: np.ndarray, kept: np.ndarray, reached: np.ndarray, exponents: np.ndarray, law: str
) -> Evidence:
    """Of a limit, seen at a finite time, with the exponents of what is left.

    Instances that are late decide nothing, nor do those that were asked for and not followed.
    """
    good = among(asked, kept, reached) == 1.0
    return count_evidence(good, decided=good, limit=True, rate=common_rate(exponents, None, law=law))


def exponents_between(values: np.ndarray, clock: np.ndarray) -> np.ndarray:
    """Minus d log value / d log clock between the fourth last time and the last, `(k, m)` to `(k,)`; NaN for none."""
    first, last, span = values[:, -4], values[:, -1], np.log(clock[..., -1] / clock[..., -4])
    usable = (first > 0) & (last > 0) & (np.abs(span) > 0)
    ratio = np.divide(last, first, out=np.ones_like(last), where=usable)
    return np.where(usable, -np.log(ratio) / np.where(usable, span, 1.0), np.nan)


def growth(sizes: np.ndarray, log_times: np.ndarray) -> np.ndarray:
    r"""$d\log\|\beta\|/d\log\log t$ over the last decade of log t: 1 where ‖β‖ grows like log t, 0 where it stays."""
    first = int(np.argmin(np.abs(log_times - log_times[-1] / 10.0)))
    span = np.log(log_times[-1] / log_times[first])
    return np.log(sizes[..., -1] / sizes[..., first]) / span


def claims_of_equivalence(data: Data) -> tuple[list[Claim], list[str]]:
    """Lemma 4.1, (19) and Lemma 4.2 along the path."""
    ok, feasible = data["ok"], data["diagonal"] > 0
    total, every = int(ok.sum()), np.ones(ok.shape, bool)
    known = (
        among(every, ok, np.max(data["apart"][ok], axis=-1)),
        among(every, ok, np.max(data["identity"][ok], axis=-1)),
    )
    apart, identity = _worst(data["apart"][ok]), _worst(data["identity"][ok])
    slopes = growth(data["size"], data["log_times"])[ok & feasible]
    slow = int(np.sum(slopes < 0.5))
    claims = [
        Claim(
            "Lemma 4.1",
            "The dynamics of β and w are equivalent, i.e., β(t) = w(t) for all t ≥ 0.",
            f"largest |β − w| over the largest |β|: {apart:.1e}, to log t = 1e6, over {total} paths",
            bounded_evidence(known[0], EQUAL),
            {"worst": apart, "paths": total},
        ),
        Claim(
            "Lemma A.1",
            "For all t ≥ 0, β(t) = ω₀² ⊙ sinh(Bφ(t)).  (19)",
            f"largest difference over the largest |β|: {identity:.1e} with φ carried along, over {total} paths",
            bounded_evidence(known[1], IDENTITY),
            {"worst": identity, "paths": total},
        ),
        Claim(
            "Lemma 4.2",
            "‖β(t)‖ → ∞ (where the ℓ1-SVM is feasible).",
            f"‖β‖ grows like (log t)^a with a = {slopes.min(initial=np.inf):.3f} to {slopes.max(initial=-np.inf):.3f} "
            f"between log t = 1e5 and 1e6, over {len(slopes)} paths; {slow} have a < 0.5",
            divergence_evidence(feasible, ok & feasible, slopes),
            {"slow": slow, "paths": len(slopes)},
        ),
    ]
    return claims, [
        f"{total} of {ok.size} pairs of paths were followed to log t = 1e6; the others rest at finite points or were "
        f"given up, and {int((ok & ~feasible).sum())} of those followed have no feasible ℓ1-SVM.",
        f"ξ_k² − ξ_q² is conserved to {_worst(data['conserved'][ok]):.1e} of ‖β‖ + ω₀².",
        "Relative to the largest entry of β: β(0) = 0, and entries off the support stay small.",
    ]


def divergence_evidence(asked: np.ndarray, kept: np.ndarray, slopes: np.ndarray) -> Evidence:
    """‖β‖ → ∞ like log t, as it must where the ℓ1-SVM has a solution; one that hardly grows may rest later."""
    rate = common_rate(slopes, 1.0, bias=LAW, law="‖β‖ against log t")
    growing = among(asked, kept, slopes >= 0.5)
    return count_evidence(growing == 1.0, decided=~np.isnan(growing), limit=True, rate=rate)


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
    worst = float(np.abs(last / part["predicted"][kept, -1] - 1.0).max())
    slack = part["slackness"][kept, -1]
    now, asked = instantaneous(part, omega, log_times), part["hypotheses"]
    slowness = exponents_between(part["slackness"][kept], np.log(log_times[-4:]))
    falls = part["slackness"][kept, -1] < part["slackness"][kept, -4]
    return [
        Claim(
            "A.5, (C1)",
            f"The averaged λ(t) satisfies ε(t) → 0 (ω₀ = {omega:g}).",
            f"at log t = 1e6 the residual is {np.median(last):.2f} (median; {last.min():.2f} to {last.max():.2f}), "
            f"within {worst:.0e} of |ln(2β̂_j/ω₀²)|/ln μ on every instance: it falls like 1/log log t",
            averaged_evidence(part),
            {"median": float(np.median(last)), "instances": int(kept.sum())},
        ),
        Claim(
            "A.5, (C3)",
            f"λ_il (1 − β̂ᵀB_il) → 0 (ω₀ = {omega:g}).",
            f"at log t = 1e6: {np.median(slack):.2f} (median; largest {slack.max():.2f}); it falls on "
            f"{int(falls.sum())} of {len(falls)}",
            limit_evidence(asked, kept, falls, slowness, "the largest product against log log t"),
            {"median": float(np.median(slack)), "falls": int(falls.sum())},
        ),
        Claim(
            "Theorem 4.1",
            f"β̂ tends to a KKT point: by the instantaneous multipliers at log t = 1e6 (ω₀ = {omega:g}).",
            now.in_words(),
            limit_evidence(asked, kept, now.reached, -now.slope, "duality gap against log t"),
            {"reached": int(now.reached.sum()), "allowed": int(now.allowed.sum()), "instances": len(now.gap)},
        ),
    ]


def averaged_evidence(part: Data) -> Evidence:
    r"""(C1): the residual is its law $|\ln(2\hat\beta_j/\omega_0^2)|/\ln\mu$, which tends to 0, and falls with it."""
    kept = part["inside"]
    last, law = part["stationarity"][kept][:, -4:], part["predicted"][kept][:, -4:]
    rate = common_rate(-exponents_between(last, law), 1.0, bias=LAW, law="the residual against |ln(2β̂_j/ω₀²)|/ln μ")
    off = among(part["hypotheses"], kept, np.abs(last[:, -1] / law[:, -1] - 1.0))
    return bounded_evidence(off, LAW, limit=True, rate=rate)


def _worst(values: np.ndarray) -> float:
    return float(np.max(values, initial=0.0))

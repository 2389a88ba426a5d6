r"""`reproduce sheen2024 rates`: the observed rate of $\|\beta\|_1/\mu$ against the slack of the certified dual."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jaxflow.papers.registry import AbstractFigure, Data, register_figure
from jaxflow.papers.sheen2024.diagonal_claims import ACTIVE, among, hypotheses_of_theorem_4_1, inside_theorem_4_1
from jaxflow.papers.sheen2024.diagonal_paths import LOG_TIMES, MARGIN, SHAPE, Cell, follow_diagonal
from jaxflow.plots import draw_rates
from jaxflow.report import Claim, common_rate, count_evidence

TRIALS = {"quick": 16, "paper": 128, "large": 4096}
KEPT = ("weights_gap", "kappa", "margin", "ok", "behind")
# The exponent is fitted over the last two decades of log t; where theirs differ by more there is no single one.
DECADES = 2.0
BENT = 0.1


@register_figure(
    "sheen2024",
    "rates",
    title="How fast diagonal weights approach the ℓ1-SVM: (log t)^-(1-κ), with κ from the certified dual",
    run_times={
        "quick": "16 instances, under a minute once compiled",
        "paper": "128 instances, three minutes",
        "large": "4,096 instances, about an hour on two cores",
    },
)
class Rates(AbstractFigure):
    r"""Random data of Assumptions 2 and 3 (n = 3, L = d = 4), with $\omega_0=1$: only the rate makes entries small."""

    def compute(self, scale: str, seed: int, say: Callable[[str], None]) -> Data:
        keys = jax.random.split(jax.random.fold_in(jax.random.key(seed), 4), TRIALS[scale])
        say(f"{len(keys)} instances")
        found = follow_diagonal(Cell(*SHAPE, 1.1, 1.0, margin=MARGIN), keys, both=False, rtol=1e-9)
        exponent = observed_exponent(found["weights_gap"], LOG_TIMES)
        extra = {"log_times": LOG_TIMES, "inside": inside_theorem_4_1(found), "exponent": exponent}
        extra["hypotheses"] = hypotheses_of_theorem_4_1(found)
        return {name: found[name] for name in KEPT} | extra

    def draw(self, data: Data) -> Any:
        return draw_rates(data | {"waiting": data["behind"] > ACTIVE})

    def claims(self, data: Data) -> tuple[list[Any], list[str]]:
        return claims_of_rates(data)


def observed_exponent(gaps: np.ndarray, log_times: np.ndarray) -> np.ndarray:
    r"""Minus the slope of log gap against log log t, by least squares over the last decades; NaN without a gap."""
    late = log_times >= log_times[-1] / 10.0**DECADES
    x = np.log(log_times[late])
    x = x - x.mean()
    usable = np.all((gaps[:, late] > 0) & np.isfinite(gaps[:, late]), axis=1)
    y = np.log(np.where(usable[:, None], gaps[:, late], 1.0))
    return np.where(usable, -(y @ x) / (x @ x), np.nan)


def bend(gaps: np.ndarray, log_times: np.ndarray) -> np.ndarray:
    """By how much the exponents of the two last decades of log t differ; NaN without a gap."""
    end = log_times[-1]
    decades = [(log_times >= end / 10.0 ** (k + 1)) & (log_times <= end / 10.0**k * (1 + 1e-9)) for k in range(2)]
    late, before = (observed_exponent(gaps[:, part], log_times[part]) for part in decades)
    return np.abs(late - before)


def claims_of_rates(data: Data) -> tuple[list[Claim], list[str]]:
    """The exponent is 1 − κ; other entries off the support make it look larger before they are gone."""
    kept = data["inside"] & np.isfinite(data["exponent"])
    slack, exponent = 1.0 - data["kappa"][kept], data["exponent"][kept]
    total = len(slack)
    difference = exponent - slack
    far = np.abs(difference) > BENT
    close = total - int(far.sum())
    waiting = data["behind"][kept] > ACTIVE
    bent = ~waiting & (bend(data["weights_gap"], data["log_times"])[kept] > BENT)
    settled = ~waiting & ~bent
    # Of a limit: an exponent that is another one at these times may still turn, and contradicts nothing.
    good = among(data["hypotheses"], kept, ~far) == 1.0
    rate = common_rate(exponent, slack, bias=BENT, law="‖β‖₁/(μ opt) − 1 against log t")
    claim = Claim(
        "beyond the paper",
        "The distance from the ℓ1-SVM falls like (log t)^−(1−κ).",
        f"observed exponent minus (1 − κ): median {np.median(difference) if total else np.nan:.3f}, within 0.1 on "
        f"{close} of {total} instances, largest {difference.max(initial=-np.inf):.2f}, "
        f"least {difference.min(initial=np.inf):.2f}; correlation "
        f"{np.corrcoef(slack, exponent)[0, 1] if total > 2 else np.nan:.3f}",
        count_evidence(good, decided=good, limit=True, rate=rate),
        {"close": close, "instances": total},
    )
    wait, moved, good = (int(x.sum()) for x in (far & waiting, far & bent, settled & ~far))
    return [claim], [
        f"{int(data['inside'].sum())} of {len(data['inside'])} instances are inside the hypotheses of Theorem 4.1.",
        f"Fitted between log t = {data['log_times'][-1] / 10**DECADES:g} and {data['log_times'][-1]:g}. Support "
        "entries leave an error of order 1/log t beside it, and several entries off the support add up.",
        f"Of the {total - close} further off {wait} wait for a constraint of their limit, until when the rate is that "
        f"of the program without it, and {moved} have no single exponent (the last two decades' differ by more than "
        f"{BENT}: the last constraint came meanwhile). Of the {int(settled.sum())} of which neither is true {good} are "
        "within 0.1.",
    ]

"""Figure 6: how often W and (K, Q) converge globally, against d, for several n and T."""

from collections.abc import Callable
from typing import Any

import numpy as np

from jaxflow.papers.registry import AbstractFigure, register_figure
from jaxflow.papers.tarzanagh2023.percent import GLOBAL, NAMES, SYMBOLS, Data, Size, interval, run_studies, tally
from jaxflow.papers.tarzanagh2023.percent_claims import approaching, harder, locally_optimal, notes_of, rising
from jaxflow.plots import draw_percentage_curves
from jaxflow.report import Claim, Evidence
from jaxflow.study import TokenSelection

SETTINGS = ((5, 5), (10, 5), (20, 5), (5, 10), (5, 20))

SIZES = {
    "quick": Size(trials=24, d=(5, 8), settings=((5, 5), (10, 5), (5, 10))),
    "paper": Size(trials=500, d=(4, 10, 20, 32, 64), settings=SETTINGS),
    "large": Size(trials=100_000, d=(4, 10, 20, 32, 64), settings=SETTINGS),
}


@register_figure(
    "tarzanagh2023",
    "fig6",
    title="Global convergence of W and (K, Q) against d, for several n and T",
    run_times={
        "quick": "24 instances at 2 values of d for 3 sizes, under a minute once compiled",
        "paper": "500 instances at 5 values of d for 5 sizes, 9 of 25 cells in half an hour from an empty cache",
        "large": "100,000 instances at 5 values of d for 5 sizes, days on two cores",
    },
)
class Figure6(AbstractFigure):
    r"""Figure 6 of Tarzanagh et al. (2023): (a) T = 5, n in {5, 10, 20}; (b) n = 5, T in {5, 10, 20}.

    W solid, (K, Q) dashed, on the same instances: uniform on the unit sphere, score gap 0.1 (App. F). The text
    gives neither the values of d nor the number of instances: ours.
    """

    def compute(self, scale: str, seed: int, say: Callable[[str], None]) -> Data:
        return run_studies(TokenSelection(), SIZES[scale], seed, say)

    def draw(self, data: Data) -> Any:
        return draw_percentage_curves(curves_of(data))

    def claims(self, data: Data) -> tuple[list[Claim], list[str]]:
        count, total = tally(data, GLOBAL)
        claims = []
        for p, name in enumerate(data["parametrization"]):
            series = [(f"n={n}, T={T}:", count[s, p], total[s, p]) for s, (n, T) in enumerate(settings_of(data))]
            claims += [
                rising(
                    f"Figure 6, caption ({NAMES[str(name)]})",
                    "For both attention models, as d increases (due to over-parameterization), attention weights tend "
                    "to select optimal tokens.",
                    series,
                    data["d"],
                ),
                approaching(
                    f"Section 4.2, Figure 6 ({NAMES[str(name)]})",
                    "The percentages of achieving global convergence reach 100 with larger d.",
                    series,
                    data["d"],
                ),
            ]
        claims += [
            _suffices(data, count, total),
            harder(
                "beyond the paper, Figure 6",
                "At equal d, larger n or T makes global convergence rarer.",
                _groups(data, count, total),
                data["d"],
            ),
        ]
        return [*claims, locally_optimal(data, "Figure 6")], notes_of(data)


def _suffices(data: Data, count: Any, total: Any) -> Claim:
    """Said of Assumption B.1, whose margins are not among these numbers: the check `assumptions` has them."""
    parts: list[str] = []
    values: dict[str, float | int] = {}
    for p, name in enumerate(data["parametrization"]):
        for s, (n, T) in enumerate(settings_of(data)):
            enough = data["d"] >= (T + n) * np.log(T + n)
            ran, met = int(total[s, p][enough].sum()), int(count[s, p][enough].sum())
            values[f"{NAMES[str(name)]}, n={n}, T={T}"] = ran
            if ran:
                parts.append(f"{NAMES[str(name)]}, n={n}, T={T}: {met:,} of {ran:,}")
    return Claim(
        "Section 4.1, Figure 6",
        "d >= (T + n) log(T + n) will suffice (posited for Assumption B.1, which global convergence does not need).",
        "global convergence where d is that large: " + ("; ".join(parts) or "no such d"),
        Evidence(0),
        values,
    )


def settings_of(data: Data) -> list[tuple[int, int]]:
    """The pairs (n, T)."""
    return [(int(n), int(T)) for n, T in zip(data["n"], data["T"], strict=True)]


def _varied(data: Data, which: int) -> list[int]:
    """The settings in which n (0) or T (1) varies and the other is at its smallest, in rising order."""
    settings = settings_of(data)
    fixed = min(setting[1 - which] for setting in settings)
    found = [s for s, setting in enumerate(settings) if setting[1 - which] == fixed]
    return sorted(found, key=lambda s: settings[s][which])


def _groups(data: Data, count: Any, total: Any) -> list[tuple[str, list[tuple[str, Any, Any]]]]:
    settings = settings_of(data)
    return [
        (
            f"{NAMES[str(name)]}, varying {'nT'[which]}",
            [(f"{'nT'[which]}={settings[s][which]}", count[s, p], total[s, p]) for s in _varied(data, which)],
        )
        for p, name in enumerate(data["parametrization"])
        for which in (0, 1)
    ]


def curves_of(data: Data) -> dict[str, Any]:
    """Two panels for `jaxflow.plots.draw_percentage_curves`; NaN where a panel has no such curve."""
    share, low, high = interval(*tally(data, GLOBAL))
    settings = settings_of(data)
    curves = [
        (which, p, s, place)
        for which in (0, 1)
        for place, s in enumerate(_varied(data, which))
        for p in range(len(data["parametrization"]))
    ]
    empty = np.full((2, len(curves), len(data["d"])), np.nan)
    table = {"percentage": empty, "low": empty.copy(), "high": empty.copy()}
    for at, (which, p, s, _) in enumerate(curves):
        for name, values in (("percentage", share), ("low", low), ("high", high)):
            table[name][which, at] = values[s, p]
    names = [
        f"${'nT'[which]}={settings[s][which]}$, {SYMBOLS[str(data['parametrization'][p])]}" for which, p, s, _ in curves
    ]
    smallest_n, smallest_T = int(data["n"].min()), int(data["T"].min())
    return {
        **table,
        "x": data["d"],
        "x_label": "$d$",
        "panels": [f"(a) $T={smallest_T}$", f"(b) $n={smallest_n}$"],
        "curves": names,
        "y_label": "global convergence, % of all instances",
        "dashed": [str(data["parametrization"][p]) == "KQ" for _, p, _, _ in curves],
        "color": [place for *_, place in curves],
    }

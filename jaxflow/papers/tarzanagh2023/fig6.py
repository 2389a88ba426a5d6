"""Figure 6: how often W and (K, Q) converge globally, against d, for several n and T."""

from typing import Any

import numpy as np

from jaxflow.papers.registry import register
from jaxflow.papers.statement import Mask, Statement, everyone
from jaxflow.papers.tarzanagh2023.percent import (
    GLOBAL,
    SYMBOLS,
    Judged,
    PercentNumbers,
    Series,
    Size,
    approaching,
    dataset_of,
    interval,
    judged,
    locally_optimal,
    notes_of,
    percent,
    rising,
    tally,
)
from jaxflow.plots import draw_percentage_curves

SETTINGS = ((5, 5), (10, 5), (20, 5), (5, 10), (5, 20))

SIZES = {
    "quick": Size(trials=24, d=(5, 8), settings=((5, 5), (10, 5), (5, 10))),
    "paper": Size(trials=500, d=(4, 10, 20, 32, 64), settings=SETTINGS),
    "large": Size(trials=100_000, d=(4, 10, 20, 32, 64), settings=SETTINGS),
}

FIGURE6 = dataset_of("fig6", f"{__name__}:FIGURE6", SIZES)


def settings_of(numbers: PercentNumbers) -> list[tuple[int, int]]:
    """The pairs (n, T)."""
    return [(int(n), int(T)) for n, T in zip(numbers.grid.n, numbers.grid.T, strict=True)]


def _series(numbers: PercentNumbers, p: int) -> list[Series]:
    count, total = tally(numbers, GLOBAL)
    return [(f"n={n}, T={T}:", count[s, p], total[s, p]) for s, (n, T) in enumerate(settings_of(numbers))]


def _statements(numbers: PercentNumbers) -> list[Statement[PercentNumbers]]:
    said = []
    for p, name in enumerate(numbers.names):
        said += [
            judged(
                f"Figure 6, caption ({name})",
                "For both attention models, as d increases (due to over-parameterization), attention weights tend to "
                "select optimal tokens.",
                lambda n, p=p: rising(_series(n, p), n.grid.d),
            ),
            judged(
                f"Section 4.2, Figure 6 ({name})",
                "The percentages of achieving global convergence reach 100 with larger d.",
                lambda n, p=p: approaching(_series(n, p), n.grid.d),
            ),
        ]
    rarer = judged(
        "beyond the paper, Figure 6",
        "At equal d, larger n or T makes global convergence rarer.",
        lambda n: harder(_groups(n), n.grid.d),
    )
    return [*said, SUFFICES, rarer, locally_optimal("Figure 6")]


def _suffices_in_words(numbers: PercentNumbers, known: Mask) -> str:
    parts: list[str] = []
    count, total = tally(numbers, GLOBAL)
    for p, name in enumerate(numbers.names):
        for s, (n, T) in enumerate(settings_of(numbers)):
            enough = numbers.grid.d >= (T + n) * np.log(T + n)
            ran, met = int(total[s, p][enough].sum()), int(count[s, p][enough].sum())
            parts += [f"{name}, n={n}, T={T}: {met:,} of {ran:,}"] if ran else []
    return "global convergence where d is that large: " + ("; ".join(parts) or "no such d")


# Said of Assumption B.1, whose margins are not among these numbers: the check `assumptions` has them.
SUFFICES = Statement[PercentNumbers](
    source="Section 4.1, Figure 6",
    says="d >= (T + n) log(T + n) will suffice (posited for Assumption B.1, which global convergence does not need).",
    inside=lambda n: ~everyone(n.grid.d),
    residual=lambda n: np.full(len(n.grid.d), np.nan),
    found=_suffices_in_words,
)


def harder(groups: list[tuple[str, list[Series]]], d: Any) -> list[Judged]:
    """Whether later series of a group have fewer global convergences at equal d.

    Met where the last lies below the first beyond the intervals for some d and no later one above an earlier one for
    any.
    """
    found = []
    for group, series in groups:
        bounds = [interval(count, total)[1:] for _, count, total in series]
        pairs = [(a, b) for a in range(len(series)) for b in range(a + 1, len(series))]
        rises = [
            f"{series[b][0]} above {series[a][0]} at d={d[at]}"
            for a, b in pairs
            for at in np.flatnonzero(bounds[b][0] > bounds[a][1])
        ]
        lower = np.asarray(bounds[-1][1] < bounds[0][0]) if len(series) > 1 else np.zeros(len(d), bool)
        text = f"{group}: {series[-1][0]} below {series[0][0]} beyond the intervals at {lower.sum()} of {len(d)} d"
        if lower.any():
            at = int(np.argmax(lower))
            text += f" (d={d[at]}: {percent(*series[-1][1:], at)} against {percent(*series[0][1:], at)})"
        text += f"; but {', '.join(rises)}" if rises else ""
        found.append(Judged(text, bool(np.any(series[0][2] > 0)), bool(rises), bool(lower.any())))
    return found


def _varied(numbers: PercentNumbers, which: int) -> list[int]:
    """The settings in which n (0) or T (1) varies and the other is at its smallest, in rising order."""
    settings = settings_of(numbers)
    fixed = min(setting[1 - which] for setting in settings)
    found = [s for s, setting in enumerate(settings) if setting[1 - which] == fixed]
    return sorted(found, key=lambda s: settings[s][which])


def _groups(numbers: PercentNumbers) -> list[tuple[str, list[Series]]]:
    settings = settings_of(numbers)
    count, total = tally(numbers, GLOBAL)
    return [
        (
            f"{name}, varying {'nT'[which]}",
            [(f"{'nT'[which]}={settings[s][which]}", count[s, p], total[s, p]) for s in _varied(numbers, which)],
        )
        for p, name in enumerate(numbers.names)
        for which in (0, 1)
    ]


def panels(numbers: PercentNumbers) -> dict[str, Any]:
    """Two panels for `jaxflow.plots.draw_percentage_curves`; NaN where a panel has no such curve."""
    share, low, high = interval(*tally(numbers, GLOBAL))
    settings, kinds = settings_of(numbers), numbers.grid.parametrization
    curves = [
        (which, p, s, place)
        for which in (0, 1)
        for place, s in enumerate(_varied(numbers, which))
        for p in range(len(kinds))
    ]
    empty = np.full((2, len(curves), len(numbers.grid.d)), np.nan)
    table = {"percentage": empty, "low": empty.copy(), "high": empty.copy()}
    for at, (which, p, s, _) in enumerate(curves):
        for name, values in (("percentage", share), ("low", low), ("high", high)):
            table[name][which, at] = values[s, p]
    names = [f"${'nT'[which]}={settings[s][which]}$, {SYMBOLS[str(kinds[p])]}" for which, p, s, _ in curves]
    smallest_n, smallest_T = int(numbers.grid.n.min()), int(numbers.grid.T.min())
    return {
        **table,
        "x": numbers.grid.d,
        "x_label": "$d$",
        "panels": [f"(a) $T={smallest_T}$", f"(b) $n={smallest_n}$"],
        "curves": names,
        "y_label": "global convergence, % of all instances",
        "dashed": [str(kinds[p]) == "KQ" for _, p, _, _ in curves],
        "color": [place for *_, place in curves],
    }


# (a) T = 5, n in {5, 10, 20}; (b) n = 5, T in {5, 10, 20}. W solid, (K, Q) dashed, on the same instances: uniform on
# the unit sphere, score gap 0.1 (App. F). The text gives neither the values of d nor the number of instances: ours.
register(
    FIGURE6,
    "fig6",
    title="Global convergence of W and (K, Q) against d, for several n and T",
    statements=_statements,
    notes=notes_of,
    draw=lambda numbers: draw_percentage_curves(panels(numbers)),
)

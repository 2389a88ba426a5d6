"""Figure 6: how often W and (K, Q) converge globally, against d, for several n and T."""

from typing import Any

import numpy as np

from jaxflow.papers.experiment import Statement, Table, register
from jaxflow.papers.tarzanagh2023 import percent
from jaxflow.papers.tarzanagh2023.percent import SIZE, SYMBOLS, dataset_of, interval, notes_of, tally
from jaxflow.papers.tarzanagh2023.shapes import varied
from jaxflow.plots import draw_percentage_curves

PAPER = SIZE.replace(d=(4, 10, 20, 32, 64), settings=((5, 5), (10, 5), (20, 5), (5, 10), (5, 20)))
SIZES = {
    "quick": SIZE.replace(trials=24, d=(5, 8), settings=((5, 5), (10, 5), (5, 10))),
    "paper": PAPER,
    "large": PAPER.replace(trials=100_000),
}

FIGURE6 = dataset_of("fig6", SIZES)


def settings_of(numbers: Table) -> np.ndarray:
    """The pairs (n, T) `(s, 2)`."""
    return np.stack([numbers.grid.n, numbers.grid.T], axis=1)


def harder(count: np.ndarray, total: np.ndarray) -> float:
    """Whether later curves `(curves, k)` have fewer global convergences at equal d: 0 or 1.

    Met where the last lies below the first beyond the intervals for some d and no later one above an earlier one for
    any.
    """
    _, low, high = interval(count, total)
    above = any(np.any(low[b] > high[a]) for a in range(len(low)) for b in range(a + 1, len(low)))
    return 1.0 if above else 0.0 if np.any(high[-1] < low[0]) else np.nan


def _groups(numbers: Table) -> list[percent.Curves]:
    """Of each parametrisation the curves of growing n, and those of growing T."""
    count, total = tally(numbers)
    rows = [varied(settings_of(numbers), which) for which in (0, 1)]
    return [(count[at, p], total[at, p]) for p in range(count.shape[1]) for at in rows]


def _enough(numbers: Table) -> tuple[int, int]:
    """The instances with d >= (T + n) log(T + n) that converge globally, and all of those."""
    large = np.array([numbers.grid.d >= (T + n) * np.log(T + n) for n, T in settings_of(numbers)])
    count, total = (int(np.sum(values * large[:, None])) for values in tally(numbers))
    return count, total


def _statements(numbers: Table) -> list[Statement[Table]]:
    said = []
    for p, name in enumerate(percent.names(numbers)):

        def of(numbers: Table, p: int = p) -> percent.Curves:
            count, total = tally(numbers)
            return count[:, p], total[:, p]

        attend = "For both attention models, as d increases (due to over-parameterization), attention weights tend to "
        said.append(percent.rising(f"Figure 6, caption ({name})", f"{attend}select optimal tokens.", of))
        percentages = "The percentages of achieving global convergence reach 100 with larger d."
        said.append(percent.approaching(f"Section 4.2, Figure 6 ({name})", percentages, of))
    return [
        *said,
        # Said of Assumption B.1, whose margins are not among these numbers: the check `assumptions` has them.
        Statement[Table](
            source="Section 4.1, Figure 6",
            says="d >= (T + n) log(T + n) will suffice (posited for Assumption B.1, which global convergence does not "
            "need).",
            inside=lambda n: np.zeros(len(n.grid.d), bool),
            residual=lambda n: np.full(len(n.grid.d), np.nan),
            found=lambda n, known: "global convergence where d is that large: {:,} of {:,}".format(*_enough(n)),
        ),
        Statement[Table](
            source="beyond the paper, Figure 6",
            says="At equal d, larger n or T makes global convergence rarer.",
            inside=lambda n: np.array([np.any(total[0] > 0) for _, total in _groups(n)]),
            residual=lambda n: np.array([harder(*curves) if len(curves[0]) else np.nan for curves in _groups(n)]),
        ),
        percent.locally_optimal("Figure 6"),
    ]


def panels(numbers: Table) -> dict[str, Any]:
    """Two panels for `jaxflow.plots.draw_percentage_curves`; NaN where a panel has no such curve."""
    share, low, high = interval(*tally(numbers))
    settings, kinds = settings_of(numbers), numbers.grid.parametrization
    curves = [
        (which, p, s, place)
        for which in (0, 1)
        for place, s in enumerate(varied(settings, which))
        for p in range(len(kinds))
    ]
    empty = np.full((2, len(curves), len(numbers.grid.d)), np.nan)
    table = {"percentage": empty, "low": empty.copy(), "high": empty.copy()}
    for at, (which, p, s, _) in enumerate(curves):
        for name, values in (("percentage", share), ("low", low), ("high", high)):
            table[name][which, at] = values[s, p]
    names = [f"${'nT'[which]}={settings[s][which]}$, {SYMBOLS[str(kinds[p])]}" for which, p, s, _ in curves]
    return {
        **table,
        "x": numbers.grid.d,
        "x_label": "$d$",
        "panels": [f"(a) $T={settings[0, 1]}$", f"(b) $n={settings[0, 0]}$"],
        "curves": names,
        "y_label": "global convergence, % of all instances",
        "dashed": [str(kinds[p]) == "KQ" for _, p, _, _ in curves],
        "color": [place for *_, place in curves],
    }


# (a) T = 5, n in {5, 10, 20}; (b) n = 5, T in {5, 10, 20}. W solid, (K, Q) dashed, on the same instances: uniform on
# the unit sphere, score gap 0.1 (App. F). The text gives neither the values of d nor the number of instances: ours.
register(
    FIGURE6,
    title="Global convergence of W and (K, Q) against d, for several n and T",
    statements=_statements,
    notes=notes_of,
    draw=lambda numbers: draw_percentage_curves(panels(numbers)),
)

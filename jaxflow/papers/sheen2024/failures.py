"""`reproduce sheen2024 failures`: what happens when Assumptions 2, 3 and 4 fail, one at a time."""

from typing import Any

import numpy as np

from jaxflow.papers.drawing import dress, shade, share_and_error
from jaxflow.papers.experiment import Dataset, Part, Statement, Table, register
from jaxflow.papers.sheen2024 import aligned_flows, diagonal_flows
from jaxflow.plots import COLORS, CURVES, new_figure

TRIALS = {"quick": 8, "paper": 120, "large": 1000}
BROKEN = {"quick": 8, "paper": 24, "large": 256}
SHAPE = (4, 4, 10)
# At exactly one rounding decides whether Assumption 3 holds.
MULTIPLES = (0.02, 0.1, 0.25, 0.5, 0.9, 1.1)
# From β = 0 a spread of ε costs a gap of about ln n/(1/T − ε), so that Assumption 3 is out of reach from 1/T = 0.25 on;
# three times the gap for equal scores is enough for the first three.
SPREADS = (0.05, 0.1, 0.15, 0.4)
SPREAD_MULTIPLE = 3.0
AMOUNTS = (0.05, 0.1, 0.3)
PARTS = ("(i)", "(ii)", "(iii)")
# For the tokens that are selected. At 1e-5 steps beyond log t = 1e3 are longer than Newton's method converges on: none
# of eight flows had arrived after 1,024 steps, which at 1e-8 is about what one takes.
RTOL = 1e-8


def _diagonal(multiple: float, **more: Any) -> Table:
    return diagonal_flows.setting(*SHAPE, multiple, 0.1, rtol=RTOL, **more)


def _part(cells: dict[str, Any]) -> Part:
    return Part(diagonal_flows.follow, cells, TRIALS, instances="gaps")


# Diagonal flows with `gaps` `(6, b)`: of `MULTIPLES` of what Assumption 3 needs; `spreads` `(4, b)`: `SPREADS` of the
# other scores; `random` `(1, b)`: tokens drawn without regard to either assumption. The same tokens throughout.
# `broken` `(9, c)`: aligned flows, Assumption 4 (i), (ii), (iii) broken by each of `AMOUNTS`, on the same instances.
FAILURES = Dataset(
    "sheen2024",
    "failures",
    {
        "gaps": _part({f"gap={multiple:g}": _diagonal(multiple) for multiple in MULTIPLES}),
        "spreads": _part({f"spread={spread:g}": _diagonal(SPREAD_MULTIPLE, spread=spread) for spread in SPREADS}),
        "random": _part({"sphere": _diagonal(1.1, random=True)}),
        "broken": Part(
            aligned_flows.follow,
            {
                f"{name}={amount:g}": aligned_flows.setting(breaks=tuple(amount * np.eye(3)[part]))
                for part, name in enumerate(PARTS)
                for amount in AMOUNTS
            },
            BROKEN,
        ),
    },
)


def wrong(flows: Table) -> np.ndarray:
    """1 where the flow selects a wrong token, 0 where the optimal ones; NaN where neither is known."""
    codes = np.where(flows.selects == -1, 1.0, np.where(flows.selects == 1, 0.0, np.nan))
    return np.where(flows.ok, codes, np.nan)


def _lost(known: np.ndarray) -> str:
    return f"{int(known.sum())} of {known.size} select a wrong token"


def _feasible(flows: Table) -> np.ndarray:
    return np.asarray(flows.diagonal > 0)


def _assumed(flows: Table) -> np.ndarray:
    return _feasible(flows) & np.asarray(flows.small >= 0)


def shares(flows: Table) -> Table:
    """What becomes of the tokens, `(cells,)`: percent of the instances with a feasible ℓ1-SVM that select a wrong one,
    `wrong` (Wilson 95% reaches `error` `(2, cells)` below and above), that are `open`, and that satisfy Assumption 3,
    `assumed`."""
    inside, selects = _feasible(flows), wrong(flows)
    counts = {"wrong": inside & (selects == 1.0), "open": inside & np.isnan(selects), "assumed": _assumed(flows)}
    found = {name: share_and_error(count.sum(axis=1), inside.sum(axis=1)) for name, count in counts.items()}
    return Table({name: share for name, (share, _) in found.items()}, error=found["wrong"][1])


SELECTS = Statement[Table](
    source="Theorem 4.1",
    says="Under Assumptions 2 and 3 gradient flow selects the optimal tokens.",
    inside=lambda n: _assumed(n.gaps),
    residual=lambda n: wrong(n.gaps),
)
LARGE_LOSS = Statement[Table](
    source="Assumption 3",
    says="The initial loss is small enough: without it a wrong token may be selected.",
    inside=lambda n: _feasible(n.gaps) & ~_assumed(n.gaps),
    residual=lambda n: wrong(n.gaps),
    found=lambda n, known: _lost(wrong(n.gaps)[known]),
    beyond=True,
)
SPHERE = Statement[Table](
    source="Assumptions 2 and 3",
    says="Neither is met: tokens and head uniform on the unit sphere.",
    inside=lambda n: _feasible(n.random),
    residual=lambda n: wrong(n.random),
    found=lambda n, known: _lost(wrong(n.random)[known]),
    beyond=True,
)
RELAXED = Statement[Table](
    source="remark to Assumption 2",
    says="Assumption 2 can be relaxed by allowing small perturbations for non-optimal scores.",
    inside=lambda n: _assumed(n.spreads),
    residual=lambda n: wrong(n.spreads),
)

SELECTED = (
    "A wrong token counts as selected where an optimal token has less than 1e-6 of the attention at log t = 1e6 "
    "and the flow's own direction leaves it behind for good, or the tokens selected instead are locally optimal."
)


def _rows(part: int) -> slice:
    return slice(part * len(AMOUNTS), (part + 1) * len(AMOUNTS))


def quantiles(numbers: Table, part: int) -> np.ndarray:
    """10%, 50% and 90% of the excess at the end for each amount, `(amounts, 3)`; NaN where no flow was followed."""
    flows, rows = numbers.broken, []
    for ok, excess in zip(flows.ok[_rows(part)], flows.velocity_excess[_rows(part)], strict=True):
        values = excess[ok, -1][np.isfinite(excess[ok, -1])]
        rows.append(np.quantile(values, [0.1, 0.5, 0.9]) if len(values) else np.full(3, np.nan))
    return np.asarray(rows)


def broken(part: int) -> Statement[Table]:
    """One part of Assumption 4 fails."""
    return Statement(
        source=f"Assumption 4 {PARTS[part]}",
        says="Alignment is preserved and the limit solves (W⋆-SVM) if Assumption 4 holds.",
        inside=lambda n: np.asarray(n.broken.ok[_rows(part)]),
        residual=lambda n: n.broken.alignment[_rows(part), :, -1],
        bound=(0.0, "alignment error / ‖K‖ at the end"),
        beyond=True,
    )


def draw(numbers: Table) -> Any:
    r"""Wrong tokens against the score gap and the spread of scores, distance from the nuclear optimum against the
    amounts by which Assumption 4 is broken."""
    figure, axes = new_figure(3, width=12.5)
    for axis, x, flows, label, title in (
        (axes[0], MULTIPLES, numbers.gaps, "score gap / gap that Assumption 3 needs", "(a) Assumption 3"),
        (axes[1], SPREADS, numbers.spreads, "spread of the other scores / gap", "(b) Assumption 2, relaxed"),
    ):
        found = shares(flows)
        axis.errorbar(
            x, found.wrong, yerr=found.error, fmt="-o", markersize=4, capsize=3, color=COLORS["factored"],
            label="wrong token selected, Wilson 95%",
        )  # fmt: skip
        axis.plot(x, found.open, "--", color=COLORS["faint"], label="undecided")
        axis.plot(x, found.assumed, ":", color=COLORS["combined"], label="Assumption 3 holds")
        dress(axis, title, label, "% of instances", ylim=(-3, 103))
    sphere = shares(numbers.random)
    label = "wrong, tokens and head on the sphere"
    share, (below, above) = float(sphere.wrong[0]), sphere.error[:, 0]
    axes[0].axhline(share, color=COLORS["diagonal"], linestyle="-.", linewidth=1.2, label=label)
    axes[0].axhspan(share - below, share + above, color=COLORS["diagonal"], alpha=0.12, linewidth=0)
    for color, part in zip(CURVES, range(3), strict=False):
        low, middle, high = np.maximum(quantiles(numbers, part).T, 1e-12)
        axes[2].plot(AMOUNTS, middle, "-o", color=color, markersize=4, label=f"Assumption 4 {PARTS[part]} broken")
        shade(axes[2], AMOUNTS, low, high, color)
    excess = r"$\|\dot W\|_*/(\mu\,\mathrm{opt})-1$ at $\log t=10^6$"
    dress(axes[2], "(c) aligned start, Assumption 4 broken", "amount", excess, log="y")
    for axis in axes:
        dress(axis, legend=7)
    return figure


register(
    FAILURES,
    title="Assumptions that fail: small score gaps, unequal scores, Assumption 4 (i) to (iii) broken",
    statements=[SELECTS, LARGE_LOSS, SPHERE, RELAXED, *(broken(part) for part in range(3))],
    notes=lambda n: [SELECTED],
    draw=draw,
)

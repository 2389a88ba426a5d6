"""`reproduce boix2023 fig2`, `fig8`, `fig9`: loss and entries of a diagonal attention head, down to α = e^(−10000).

Figure 2 of Boix-Adserà et al. (2023): loss against rescaled time for many α, entries at α = 1e-32; figures 8 and 9:
each entry of $w_K\\odot w_Q$ and of $w_V\\odot w_O$ for every α. A teacher with random diagonal weights labels Gaussian
sequences; the student starts at $\\alpha\\theta_0$, $\\theta_0$ Gaussian, and follows the gradient flow of the mean
squared error. Algorithm 1 is drawn over it.
"""

from typing import Any

import numpy as np

from jaxflow.papers.boix2023.toy import PAPER, PARTS, SEPARATED, TIME, TOY, entries, toy
from jaxflow.papers.drawing import dress, new_panels
from jaxflow.papers.experiment import BELOW_ZERO, Rate, Statement, Table, common_rate, fit, power_laws, register
from jaxflow.plots import COLORS, new_figure

# Panel (b) shows the smallest scale of the paper.
SHOWN = PAPER[-1]

# What the limit is held to at the smallest α: relative in time, absolute in products of order one.
TIME_ACCURACY = 1e-3
WEIGHT_ACCURACY = 1e-6

# At ordinary scales stages still come earlier or later because of one another, which moves this exponent.
RATE = 0.1

# A product counts as active from here on (the paper's threshold for a weight is 1e-5).
ACTIVE = 1e-10

# Share of the time that the loss stands still, at less than a tenth of its mean rate; a smooth exponential decay over
# the same range spends none of its time that slowly.
STILL = 0.1


def _smallest(numbers: Table) -> Table:
    """What was measured at the smallest α."""
    seen = toy(numbers)
    return Table(
        {name: getattr(seen, name)[seen.smallest] for name in ("lateness", "distances", "crossings", "plateaus")}
    )


def _time_rate(numbers: Table, known: np.ndarray) -> Rate | None:
    """How the lateness of the stages falls with log(1/α): one exponent a stage, from all scales that reach it."""
    seen = toy(numbers)
    errors = np.abs(seen.lateness).T
    fitted, half = power_laws(-np.log(-seen.log_alphas), errors, errors > 0)
    return common_rate(fitted, 1.0, half=half, bias=RATE, law="lateness of the stages against log(1/α)")


def _disorder(crossings: np.ndarray) -> np.ndarray:
    """Stage by stage: 0 where it comes after all those before it, else 1; NaN where it was not reached."""
    before = np.fmax.accumulate(np.append(-np.inf, crossings[:-1]))
    return np.where(np.isnan(crossings), np.nan, np.where(crossings > before, 0.0, 1.0))


def _entering(numbers: Table) -> np.ndarray:
    """How many products enter from the middle of one plateau of the flow to the next: Algorithm 1 lets one enter by
    construction. NaN unless both plateaus were reached."""
    last = _smallest(numbers)
    supports = np.concatenate([np.zeros_like(last.plateaus[:1], bool), np.abs(last.plateaus) > ACTIVE])
    new = np.sum(supports[1:] & ~supports[:-1], axis=1)
    arrived = last.distances <= WEIGHT_ACCURACY
    return np.where(arrived & np.append(True, arrived[:-1]), new, np.nan)


def standing_still(times: np.ndarray, losses: np.ndarray) -> float:
    """Share of rescaled time in which the loss falls at less than a tenth of its mean rate before it has lost 99%."""
    drop = losses[0] - losses
    end = int(np.argmax(drop >= 0.99 * drop[-1])) + 1
    grid = np.linspace(0.0, times[end - 1], 2001)
    rate = -np.diff(np.interp(grid, times[:end], losses[:end])) / np.diff(grid)
    return float(np.mean(rate < 0.1 * np.mean(rate)))


def _early(numbers: Table) -> np.ndarray:
    row = int(np.argmin(np.abs(toy(numbers).log_alphas - np.log(0.01))))
    return np.asarray([-standing_still(numbers.paths.times[row, 0], numbers.paths.losses[row, 0])])


TIMES = Statement[Table](
    source="Theorem 4.1",
    says="Each stage k + 1 starts at rescaled time T_{k+1} as α → 0.",
    residual=lambda n: np.abs(_smallest(n).lateness),
    bound=(TIME_ACCURACY, "relative distance in time"),
    rate=_time_rate,
    # A stage that the flow has not reached in time may still come closer at a smaller α, unless it takes twice as long.
    late=1.0,
)
WEIGHTS = Statement[Table](
    source="Theorem 4.1",
    says="θ(t log(1/α)) → θ^k for t in (T_k, T_{k+1}).",
    residual=lambda n: _smallest(n).distances,
    bound=(WEIGHT_ACCURACY, "distance of the products"),
    # In the middle of a plateau what is left is exponentially small; where it is not, the plateau is not reached.
    # Products are of order one.
    late=1.0,
)
ORDER = Statement[Table](
    source="Algorithm 1",
    says="Coordinates become active in the order i_0, i_1, ...",
    residual=lambda n: _disorder(_smallest(n).crossings),
)
ONE_AT_A_TIME = Statement[Table](
    source="Theorem 4.1",
    says="At each stage the sparsity increases by at most one.",
    residual=_entering,
    bound=1.0,
)
SUPPORT_STAYS = Statement[Table](
    source="Appendix A",
    says="No coordinates ever leave the support of θ^k (in the toy task), said of Algorithm 1.",
    residual=lambda n: 1.0 * np.sum((toy(n).products[:-1] != 0.0) & (toy(n).products[1:] == 0.0), axis=1),
)
EARLY = Statement[Table](
    source="Figure 2",
    says="Some stagewise learning behavior is already clear with α = 0.01.",
    residual=_early,
    bound=(-STILL, "minus the share of time that the loss stands still at α = 0.01"),
)


def assumption(number: str, says: str, clauses: slice) -> Statement[Table]:
    """Some clauses of an assumption, by their slacks over the stages of Algorithm 1."""
    return Statement(
        source=f"Assumption {number}",
        says=says,
        residual=lambda n: -n.stages.slacks[0, 0, clauses],
        bound=(BELOW_ZERO, "minus the slack of a clause"),
    )


ASSUMPTIONS = [
    assumption(
        "4.3",
        "The toy task is nondegenerate: |u_i(0)| ≠ |v_i(0)|, one smallest waiting time, g_i ≠ 0 where i has left.",
        slice(0, 3),
    ),
    assumption("4.4", "The stationary points of the toy task are strict minima on their supports.", slice(3, 4)),
]


def _gaps(numbers: Table, part: str) -> np.ndarray:
    """Between one α and the next: the largest difference of an entry, in the mean over time (at the jumps themselves
    curves differ by as much as the jump is high)."""
    grid, paths = np.linspace(0.0, toy(numbers).until, 1001), numbers.paths
    curves = [
        np.stack([np.interp(grid, times[0], column) for column in entries(products[0], part).T], axis=1)
        for times, products in zip(paths.times, paths.products, strict=True)
    ]
    return np.asarray([np.mean(np.max(np.abs(a - b), axis=1)) for a, b in zip(curves, curves[1:], strict=False)])


def converges(figure: str, part: str) -> Statement[Table]:
    """The trajectories of all entries of one product of matrices."""

    def rate(numbers: Table, known: np.ndarray) -> Rate | None:
        # Two scales whose stages are late by shares of 1/log(1/α) differ by what these differ.
        steps, gaps = -np.diff(-1.0 / toy(numbers).log_alphas), _gaps(numbers, part)
        if len(gaps) < 3 or min(gaps) <= 0:
            return None
        return Rate(*fit(np.log(steps), np.log(gaps)), None, law="the difference against that of 1/log(1/α)")

    return Statement(
        source=figure,
        says="As α → 0, the training trajectories tend to a limiting trajectory.",
        residual=lambda n: _gaps(n, part)[-1:] - _gaps(n, part)[:1],
        rate=rate,
    )


def rank(part: str) -> Statement[Table]:
    """How many entries are not negligible along the flow."""

    def jumps(numbers: Table) -> np.ndarray:
        smallest = toy(numbers).smallest
        active = np.sum(np.abs(entries(numbers.paths.products[smallest, 0], part)) > ACTIVE, axis=1)
        new = 1.0 * np.diff(active)
        # What was not followed to its end may still jump.
        return np.where((new > 1) | numbers.paths.ok[smallest, 0], new, np.nan)

    return Statement(
        source="Theorem 1.1",
        says="In each stage the number of nonnegligible entries increases by at most one.",
        residual=jumps,
        bound=1.0,
    )


def scale_notes(numbers: Table) -> list[str]:
    """What the smallest scale costs."""
    small, same, own = numbers.paths.effort[toy(numbers).smallest, 0]
    return [
        f"Accepted steps until all stages have reached half of their product: {small:.0f} at the smallest α; at 1e-8 "
        f"{own:.0f} by the solver for that scale, {same:.0f} by the solver for the smallest scales."
    ]


def stage_notes(numbers: Table) -> list[str]:
    """Slacks of the assumptions, and what time is."""
    seen = toy(numbers)
    return [
        f"Assumption 4.3: the two smallest waiting times differ by {seen.gaps.min():.2e} or more, |g| where a "
        f"coordinate left is {seen.leaving.min():.1e} or more (inf: none left). Assumption 4.4: curvatures "
        f"on the support are {seen.curvatures.min():.2e} or more.",
        f"Well separated: neighbours at a distance of {SEPARATED:.0%} of a stage's own time; "
        f"{int(seen.separated.sum())} of {len(seen.times)} stages are.",
        "Time is that of the mean of half squared errors over samples, tokens and entries; another normalisation "
        "rescales it. The paper trains by SGD and gives no learning rate; here it is the gradient flow.",
    ]


# Dark to light along one hue, so that the order of the scales is read off the lightness.
SHADES = ("#BFD9EC", "#93BFDF", "#66A5D1", "#3A8BC4", "#1F6FA8", "#0F5080", "#062F4F", "#000000")


def _symbol(log_alpha: float) -> str:
    power = log_alpha / np.log(10.0)
    return rf"e^{{{log_alpha:.0f}}}" if power < -400 else rf"10^{{{power:.0f}}}"


def _stairs(seen: Table, values: np.ndarray, start: float) -> tuple[np.ndarray, np.ndarray]:
    times = np.concatenate([[0.0], np.repeat(seen.times, 2), [seen.until]])
    return times, np.repeat(np.concatenate([[start], values]), 2)


def _by_stage(axis: Any, seen: Table) -> None:
    """A time axis on which all stages are equally wide: most of them lie in its last twentieth. Within one it is
    linear."""
    knots = np.unique([0.0, *seen.times, seen.until])
    places = np.arange(float(len(knots)))
    axis.set_xscale(
        "function", functions=(lambda t: np.interp(t, knots, places), lambda k: np.interp(k, places, knots))
    )
    axis.set_xticks(knots, [f"{t:.0f}" if k % 3 == 0 else "" for k, t in enumerate(knots)], minor=False)
    axis.minorticks_off()
    axis.set_xlim(0.0, seen.until)


def _draw_entries(axis: Any, numbers: Table, row: int, parts: tuple[str, ...], legend: bool = True) -> None:
    """Entries (solid) over the predicted staircases (dashed), and lines at the predicted times."""
    seen, paths = toy(numbers), numbers.paths
    for time in seen.times:
        axis.axvline(time, color="#D9D9D9", linewidth=0.7, zorder=0)
    for part in parts:
        color, symbol = PARTS[part]
        lines = axis.plot(paths.times[row, 0], entries(paths.products[row, 0], part), color=color, linewidth=1.0)
        lines[0].set_label(rf"${symbol}$")
        for values in entries(seen.products, part).T:
            if values.any():
                axis.plot(*_stairs(seen, values, 0.0), "--", color="#000000", linewidth=0.7)
    axis.plot([], [], "--", color="#000000", linewidth=0.7, label="Algorithm 1")
    dress(axis, legend=8 * legend)
    _by_stage(axis, seen)


def draw_stages(numbers: Table) -> Any:
    """(a) The loss for every α over the predicted staircase; (b) entries for one α."""
    seen, paths = toy(numbers), numbers.paths
    figure, (left, right) = new_figure(2, width=12.0, height=4.2)
    shades = [SHADES[round(x)] for x in np.linspace(0, len(SHADES) - 1, len(seen.log_alphas))]
    for row, (log_alpha, shade) in enumerate(zip(seen.log_alphas, shades, strict=True)):
        label = rf"$\alpha={_symbol(log_alpha)}$"
        left.plot(paths.times[row, 0], paths.losses[row, 0], color=shade, linewidth=1.2, label=label)
    stairs = _stairs(seen, seen.losses, seen.initial_loss)
    left.plot(*stairs, "--", color=COLORS["factored"], linewidth=1.0, label="Algorithm 1")
    dress(left, "(a) loss", TIME, r"loss $\mathcal{L}$", legend=8)
    _by_stage(left, seen)
    shown = int(np.argmin(np.abs(seen.log_alphas - SHOWN)))
    _draw_entries(right, numbers, shown, ("KQ", "VO"))
    dress(right, rf"(b) entries at $\alpha={_symbol(seen.log_alphas[shown])}$", TIME, "entry")
    return figure


def draw_part(numbers: Table, part: str) -> Any:
    """One panel for each α with the entries of `KQ` or `VO`."""
    seen = toy(numbers)
    rows = len(seen.log_alphas)
    figure, axes = new_panels(rows, 4, 3.4, 2.9, rf"entries of ${PARTS[part][1]}$")
    for row, axis in enumerate(axes):
        _draw_entries(axis, numbers, row, (part,), legend=row == 0)
        dress(axis, rf"$\alpha={_symbol(seen.log_alphas[row])}$")
    for axis in axes[-4:]:
        axis.set_xlabel(TIME)
    return figure


register(
    TOY,
    "fig2",
    title="Loss and entries of a diagonal attention head in stages",
    statements=[TIMES, WEIGHTS, ORDER, ONE_AT_A_TIME, SUPPORT_STAYS, EARLY, *ASSUMPTIONS],
    notes=lambda n: scale_notes(n) + stage_notes(n),
    draw=draw_stages,
)
for _number, _part in ((8, "KQ"), (9, "VO")):
    register(
        TOY,
        f"fig{_number}",
        title=f"Entries of diag(w_{_part[0]}) diag(w_{_part[1]}) for smaller and smaller α",
        statements=[converges(f"Figure {_number}", _part), rank(_part)],
        notes=stage_notes,
        draw=lambda n, part=_part: draw_part(n, part),
    )

"""`reproduce tarzanagh2023 fig8`, `fig11`: (Gen-SVM) against descent for a nonlinear head, and the gradient flow."""

from typing import Any

import numpy as np
from scipy.stats import spearmanr

from jaxflow.papers.drawing import dress
from jaxflow.papers.experiment import Mask, Statement, Table, median, register
from jaxflow.papers.tarzanagh2023.composed_instances import fates_in_words, kept, several
from jaxflow.papers.tarzanagh2023.composition import COMPOSITION, FLOW_ALIKE, FLOW_LIMIT, LIMIT, flow_ends
from jaxflow.plots.style import CURVES, ROUNDING, new_figure, new_grid

# "For d >= 8 or Γ <= 1e-9" (App. F).
LARGE_D = 8
# "the range of 1e-15" is taken as two decades to either side.
RANGE = (-17.0, -13.0)
# Differences of means, and rank correlations, count beyond this many standard errors.
ERRORS = 2.0


def mean_error(values: np.ndarray) -> tuple[float, float]:
    """Mean and its standard error; NaN of none, and of fewer than two."""
    error = float(values.std(ddof=1) / np.sqrt(values.size)) if values.size > 1 else float("nan")
    return float(values.mean()) if values.size else float("nan"), error


def means(instances: Table) -> tuple[np.ndarray, np.ndarray]:
    """Of 1 − corr with W^SVMeq over the kept instances of each d, with standard errors."""
    found = [mean_error(last[kept]) for last, kept in zip(instances.svmeq[..., -1], kept(instances), strict=True)]
    mean, error = np.asarray(found).T
    return mean, error


def near(mean: np.ndarray, error: np.ndarray) -> np.ndarray:
    """Means of 1 − corr that are below 0.01, or above it by more than the errors; NaN of the others: too few to tell.

    An error that is not known (of a single instance) decides nothing against the claim.
    """
    return np.where((mean <= LIMIT) | (mean - ERRORS * error > LIMIT), mean, np.nan)


def _some(numbers: Table) -> Mask:
    """The d of which instances are kept."""
    return np.any(kept(numbers.instances), axis=1)


PREDICTIVE = Statement[Table](
    source="§6, Figure 8",
    says="SVM-equivalence displays higher predictability in a larger d regime (with an average correlation exceeding "
    "0.99); read as: for d >= 8.",
    inside=lambda n: (n.grid.dimensions >= LARGE_D) & _some(n),
    residual=lambda n: near(*means(n.instances)),
    bound=LIMIT,
)

ONE_TOKEN = Statement[Table](
    source="§6 (sequences with label 1)",
    says="When all labels are 1, due to the convexity of Y_i h, GD tends to select one token per input (read for "
    "single sequences: here each instance has a label −1).",
    inside=lambda n: kept(n.instances)[..., None] & (n.instances.labels > 0),
    residual=lambda n: several(n.instances),
)


def _baselines(numbers: Table) -> np.ndarray:
    """Means of 1 − corr at the end with W^SVMeq, W^mm and W^1token for each d, `(k, 3)`."""
    found = numbers.instances
    # The kept instances with a solution of (Att-SVM).
    curves, compared = (found.svmeq, found.mm, found.one), kept(found) & ~np.isnan(found.one[..., -1])
    return np.array([[mean_error(x[at, -1])[0] for x in row] for *row, at in zip(*curves, compared, strict=True)])


ORDERED = Statement[Table](
    source="§6, Figure 8 (upper)",
    says="W^1token yields unsatisfactory outcomes, W^mm a significant correlation, W^SVMeq further enhances it.",
    inside=_some,
    residual=lambda n: np.where(np.isnan(_baselines(n)[:, 2]), np.nan, ~np.all(np.diff(_baselines(n)) > 0, axis=1)),
)


def _ranked(numbers: Table) -> tuple[np.ndarray, np.ndarray]:
    """For each d the rank correlation of the largest masked softmax with 1 − corr, and its standard error."""
    found = numbers.instances
    rows = zip(found.log_masked, found.svmeq[..., -1], kept(found), strict=True)
    # Of fewer than three there is none.
    ranks: Any = [spearmanr(x[kept], y[kept])[0] if kept.sum() > 2 else np.nan for x, y, kept in rows]
    # That of Spearman's coefficient between independent samples.
    return np.array(ranks), 1 / np.sqrt(np.maximum(kept(found).sum(axis=1) - 1, 1))


def _not_inverse(numbers: Table) -> np.ndarray:
    rank, error = _ranked(numbers)
    # Within the errors it is too close to tell.
    return np.where(np.abs(rank) > ERRORS * error, rank < 0, np.nan)


INVERSE = Statement[Table](
    source="§6, Figure 8 (lower)",
    says="There exists an inverse correlation between softmax probability (of masked tokens) and predictivity.",
    inside=_some,
    residual=_not_inverse,
    found=lambda n, known: f"rank correlations, by d: {', '.join(f'{rank:+.2f}' for rank in _ranked(n)[0])}",
)


def _medians(numbers: Table) -> np.ndarray:
    """Of log10 of the largest masked softmax, for each d of which instances are kept."""
    found = numbers.instances
    return np.array([median(x[kept]) for x, kept in zip(found.log_masked, kept(found), strict=True) if kept.any()])


def _out_of_range(numbers: Table) -> np.ndarray:
    first, last = np.append(_medians(numbers), [np.nan, np.nan])[[0, len(_medians(numbers)) - 1]]
    return np.array([not (last < first and RANGE[0] <= last <= RANGE[1])])


MASKED = Statement[Table](
    source="§6, Figure 8 (lower)",
    says="As d increases, softmax probabilities over the masked set tend to converge towards the range of 1e-15.",
    inside=lambda n: np.array([_some(n).sum() > 1]),
    residual=_out_of_range,
    found=lambda n, known: f"medians of its logarithm: {', '.join(f'{middle:.1f}' for middle in _medians(n))}",
)


def _gains(numbers: Table) -> np.ndarray:
    """By how many standard errors the mean 1 − corr falls from each d to the next, and from the first to the last."""
    mean, error = means(numbers.instances)
    mean, error = mean[~np.isnan(error)], error[~np.isnan(error)]
    if len(mean) < 2:
        return np.array([])
    before, after = np.append(np.arange(len(mean) - 1), 0), np.append(np.arange(1, len(mean)), -1)
    return (mean[before] - mean[after]) / np.maximum(np.hypot(error[before], error[after]), np.finfo(float).tiny)


def _worse(numbers: Table) -> np.ndarray:
    # Neighbours may be too close to tell apart; the ends may not, and no neighbour may be worse.
    gains = _gains(numbers)
    return np.array([1.0 if np.any(gains < -ERRORS) else 0.0 if np.any(gains[-1:] > ERRORS) else np.nan])


def improves(source: str) -> Statement[Table]:
    """Said of both figures."""
    return Statement(
        source=source,
        says="Higher d enhances alignment.",
        inside=lambda n: np.array([len(_gains(n)) > 0]),
        residual=_worse,
    )


FITTED = (
    "γ of W^SVMeq is fitted to the descent, and W^SVMeq tends to W^mm as γ grows: the combination of greatest "
    "correlation is never worse than W^mm. What the comparison shows is how much W^fin adds."
)
TOO_FEW = (
    "± is one standard error. A claim that two of them leave open, because too few instances were kept, is not settled."
)


def unconditional(numbers: Table) -> list[str]:
    """What became of all instances of each d: the paper shows the kept ones only."""
    rows = zip(numbers.grid.dimensions, numbers.instances.fate, strict=True)
    return [f"d = {d}: {fates_in_words(fate)}. The paper shows the kept ones only." for d, fate in rows]


def draw_composition(numbers: Table) -> Any:
    r"""Figure 8 of Tarzanagh et al. (2023): n = 3, T = 4, head $1^\top\mathrm{ReLU}(Vx)$, some label −1.

    Upper: $1-\mathrm{corr}$ of the published descent on W with $W^{mm}$ of (Gen-SVM), with
    $W^{SVMeq}=W^{fin}+\gamma\bar W^{mm}$ and with $W^{1token}$ of (Att-SVM) for the top tokens. Lower: with
    $W^{SVMeq}$ at the end, against the largest softmax of a masked token. Means are over the instances that the
    paper's filter keeps; the titles say how many those are. Below them, and not in the paper: how far descent is from
    the gradient flow along its kinks at equal times, against its step size. A column for each d.
    """
    dimensions, found, flows = numbers.grid.dimensions, numbers.instances, numbers.flows
    columns = len(dimensions)
    figure, axes = new_grid(3, columns, width=max(3.1 * columns, 7.0), height=8.6)
    for row in axes:
        for axis in row[1:]:
            axis.sharex(row[0])
            axis.sharey(row[0])
            axis.tick_params(which="both", labelleft=False)
    # Okabe and Ito (2008): the baselines, with the lines of the paper.
    baselines = (
        (found.one, "--", "#D55E00", r"$W^{1\mathrm{token}}$"),
        (found.mm, ":", "#009E73", r"$W^{mm}$"),
        (found.svmeq, "-", "#0072B2", r"$W^{\mathrm{SVMeq}}$"),
    )
    for column, d in enumerate(dimensions):
        shown, mixed = kept(found)[column], np.any(several(found)[column], axis=-1)
        upper, lower, beside = axes[:, column]
        _draw_agreement(beside, numbers.grid.rates, flows.apart[column], flows.met[column] > 0)
        for curves, line, color, label in baselines:
            values = curves[column][shown]
            values = values[~np.isnan(values[:, -1])]
            if len(values):
                mean = np.maximum(values.mean(axis=0), ROUNDING)
                upper.plot(numbers.grid.steps, mean, line, color=color, label=label)
        dress(upper, rf"$d={d}$: {shown.sum():,} kept of {shown.size:,}", "iterations", log="y")
        distance = np.maximum(found.svmeq[column][:, -1], ROUNDING)
        for chosen, color, marker, label in (
            (shown & mixed, "#0072B2", "o", "some set of several tokens"),
            (shown & ~mixed, "#E69F00", "^", "one token each"),
        ):
            where, label = 10.0 ** found.log_masked[column][chosen], f"{label}: {chosen.sum():,}"
            style: Any = {"markersize": 3, "alpha": 0.5, "markeredgewidth": 0}
            lower.plot(where, distance[chosen], marker, color=color, label=label, **style)
        dress(lower, x=r"$\max_{i,\,\tau\in\bar{O}_i}\ s_{i\tau}$", log="xy")
        lower.legend(frameon=False, fontsize=7, loc="upper left", markerscale=1.5)
    dress(axes[0, 0], y=r"mean of $1-\mathrm{corr}(W,\cdot)$", legend=8)
    axes[1, 0].set_ylabel(r"$1-\mathrm{corr}(W,\,W^{\mathrm{SVMeq}})$")
    axes[2, 0].set_ylabel("distance of descent from the\ngradient flow, relative")
    return figure


def _draw_agreement(axis: Any, rates: np.ndarray, distance: np.ndarray, slides: np.ndarray) -> None:
    """One thin line a flow, their median, and a line of slope one through it."""
    for chosen, color, label in ((slides, "#56B4E9", "slides along kinks"), (~slides, "#E69F00", "does not")):
        lines = axis.plot(rates, distance[chosen].T, color=color, linewidth=0.6, alpha=0.5)
        if lines:
            lines[0].set_label(f"{label}: {chosen.sum()}")
    middle = np.median(distance, axis=0)
    one = middle[-1] * rates / rates[-1]
    axis.plot(rates, middle, "o-", color="#0072B2", markersize=4, label="median")
    axis.plot(rates, one, color="#000000", linewidth=0.8, linestyle=(0, (1, 2)), label="slope 1")
    dress(axis, x=r"step size $\eta$ of descent", log="xy")
    axis.legend(frameon=False, fontsize=7, loc="upper left")


register(
    COMPOSITION,
    "fig8",
    title="Attention that composes tokens for a nonlinear head, and (Gen-SVM)",
    statements=[PREDICTIVE, ORDERED, INVERSE, MASKED, improves("§6, Figure 8"), FLOW_ALIKE, FLOW_LIMIT, ONE_TOKEN],
    notes=lambda n: [*unconditional(n), flow_ends(n), FITTED, TOO_FEW],
    draw=draw_composition,
)

SMALL_GAMMA = 1e-9
# "Γ from 1e-16 to 1e-6": the grid is ours.
EXPONENTS = np.arange(-16.0, -5.75, 0.5)


def by_threshold(numbers: Table) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """1 − corr of kept instances whose masked tokens all have softmax below Γ, for each d and Γ `(k, g)`.

    **Returns:** the mean, NaN of none; its standard error, NaN of fewer than two; how many.
    """
    found = numbers.instances
    below = kept(found)[..., None] & (found.log_masked[..., None] < EXPONENTS)
    rows = zip(found.svmeq[..., -1], below, strict=True)
    cells = np.array([[mean_error(distance[at]) for at in row.T] for distance, row in rows])
    return cells[..., 0], cells[..., 1], below.sum(axis=1)


def _above(where: str, these: Any) -> Statement[Table]:
    """At the pairs (d, Γ) of which `these(d, Γ)` is true."""

    def inside(numbers: Table) -> Mask:
        return these(numbers.grid.dimensions[:, None], 10.0 ** EXPONENTS[None]) & (by_threshold(numbers)[2] > 0)

    return Statement(
        source="App. F, Figure 11",
        says=f"For d >= 8 or Γ <= 1e-9, the GD solution W achieves a correlation of > 0.99 with W^SVMeq. ({where})",
        inside=inside,
        residual=lambda n: near(*by_threshold(n)[:2]),
        bound=LIMIT,
    )


def draw_thresholds(numbers: Table) -> Any:
    r"""Figure 11 of Tarzanagh et al. (2023), from the instances of figure 8.

    (a) the mean of $1-\mathrm{corr}(W,W^{SVMeq})$ along the descent for each d; (b) at its end, over the instances
    whose masked tokens all have softmax below Γ; (c), which is not in the paper, how many of all those are.
    """
    (below, _, count), found = by_threshold(numbers), numbers.instances
    figure, axes = new_figure(3)
    gamma = 10.0**EXPONENTS
    for row, (color, d) in enumerate(zip(CURVES, numbers.grid.dimensions, strict=False)):
        style: Any = {"color": color, "label": rf"$d={d}$"}
        curves = found.svmeq[row][kept(found)[row]]
        mean = curves.mean(axis=0) if len(curves) else np.full(len(numbers.grid.steps), np.nan)
        axes[0].plot(numbers.grid.steps, np.maximum(mean, ROUNDING), **style)
        axes[1].plot(gamma, np.maximum(below[row], ROUNDING), ".-", **style)
        axes[2].plot(gamma, 100 * count[row] / found.fate.shape[1], ".-", **style)
    # The paper's 0.99.
    for axis in axes[:2]:
        axis.axhline(0.01, color="#000000", linewidth=0.8, linestyle=(0, (1, 2)))
    mean = r"mean of $1-\mathrm{corr}(W,\,W^{\mathrm{SVMeq}})$"
    dress(axes[0], "(a) kept instances", "iterations", mean, log="y", legend=8)
    dress(axes[1], r"(b) kept, masked softmax $<\Gamma$", r"$\Gamma$", mean, log="xy")
    dress(axes[2], "(c) how many these are", r"$\Gamma$", "% of all instances", log="x", ylim=(0, None))
    return figure


register(
    COMPOSITION,
    "fig11",
    title="The SVM-equivalence of figure 8 by dimension and by the threshold of masked tokens",
    statements=[
        improves("App. F, Figure 11"),
        _above("d >= 8, every Γ", lambda d, gamma: (d >= LARGE_D) & (gamma > 0)),
        # A threshold of the grid is its decimal power to rounding.
        _above("Γ <= 1e-9, every d", lambda d, gamma: (d > 0) & (gamma <= SMALL_GAMMA * (1 + 1e-9))),
    ],
    notes=lambda n: [*unconditional(n), TOO_FEW],
    draw=draw_thresholds,
)

"""`reproduce tarzanagh2023 fig9`: how many tokens a concave head selects, and what (Gen-SVM) says of W."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxflow.papers.dataset import Dataset, Draw
from jaxflow.papers.registry import register
from jaxflow.papers.statement import Again, Mask, Statement, everyone, largest, median
from jaxflow.papers.tarzanagh2023.concave import Instance, draw_batch
from jaxflow.papers.tarzanagh2023.concave_ends import (
    STRETCH,
    Ends,
    Flows,
    Penalty,
    Targets,
    flow_part,
    notes_of,
    parts,
    pearson,
    reaches,
)
from jaxflow.papers.verdicts import Rate, common_rate
from jaxflow.plots import COLORS, new_figure

# "Consistently above 0.95", §6.1.
CORRELATION = 0.95
# The threshold beyond which all tokens are selected, §6.1.
LARGE = 2.0
# Correlations of motions are known to this: the flow is followed to a millionth.
ALONG = 1e-10


class Size(NamedTuple):
    """Instances of one scale: the same `trials` heads, tokens and starts for every λ."""

    trials: int
    lambdas: tuple[float, ...]
    T: int = 10
    d: int = 10


# The paper's figure goes past λ = 2; its grid is not given, this one is ours.
GRID = (0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0, 1.2, 1.4, 1.6, 1.8, 2.0, 2.2, 2.5, 3.0)

SIZES = {
    "quick": Size(20, (0.0, 0.1, 0.3, 0.6, 1.0, 1.5, 2.0, 2.5)),
    "paper": Size(100, GRID),
    "large": Size(2000, GRID),
}


class PenaltyNumbers(NamedTuple):
    """A cell for each λ."""

    targets: Targets
    flow: Flows
    descent: Ends

    @property
    def lambdas(self) -> np.ndarray:
        return self.targets.lam[:, 0]

    @property
    def beyond(self) -> Mask:
        """The instances whose λ is above the threshold."""
        return self.targets.lam > LARGE

    @property
    def motion(self) -> np.ndarray:
        """1 − corr of the flow's motion over the last two stretches with W^mm, NaN where no token is left to be
        separated from."""
        return 1.0 - self.flow.moved

    @property
    def directed(self) -> Mask:
        """Whose motion is known: one that is not near s* at log t = 30 has not made its selection then."""
        return self.flow.good & self.flow.solved & ~np.isnan(self.motion).any(axis=-1) & ~self.flow.late


def _batches(scale: str, key: Any) -> Iterator[tuple[str, Instance]]:
    size = SIZES[scale]
    keys = jax.random.split(key, size.trials)
    for lam in size.lambdas:
        yield f"λ = {lam}", draw_batch(size.T, size.d, keys, jnp.full(size.trials, lam))


def _cells(scale: str) -> dict[str, Penalty]:
    size = SIZES[scale]
    return {f"λ = {lam}": Penalty(size.T, size.d, lam) for lam in size.lambdas}


def _key_of(seed: int) -> Any:
    return jax.random.fold_in(jax.random.key(seed), 9)


# n = 1, T = d = 10, h(x) = v·x − λ‖x‖², ℓ(x) = −x, Y = 1.
FIGURE9 = Dataset(
    "tarzanagh2023",
    "fig9",
    parts(_batches, _key_of) | {"flow": flow_part(_cells, lambda scale: SIZES[scale].trials, _key_of)},
    where=f"{__name__}:FIGURE9",
    numbers=PenaltyNumbers,
)


def _fewer(numbers: PenaltyNumbers) -> Mask:
    """The instances in which a larger λ of the grid has fewer tokens."""
    return np.any(np.diff(numbers.targets.size, axis=0) < 0, axis=0)


def _grows_in_words(numbers: PenaltyNumbers, known: Mask) -> str:
    means, lambdas = numbers.targets.size.mean(axis=1), numbers.lambdas
    return (
        f"tokens of s*: mean {means[0]:.2f} at λ = {lambdas[0]:g} to {means[-1]:.2f} at λ = {lambdas[-1]:g}; fewer at "
        f"a larger λ in {int(_fewer(numbers).sum())} of {len(known)} instances"
    )


GROWS = Statement[PenaltyNumbers](
    source="Figure 9(a)",
    says="The number of selected tokens grows alongside λ.",
    inside=lambda n: everyone(_fewer(n)),
    residual=_fewer,
    found=_grows_in_words,
)

ONE_AT_ZERO = Statement[PenaltyNumbers](
    source="Figure 9(a)",
    says="When λ = 0, the head is linear, resulting in the selection of only one token per input.",
    inside=lambda n: n.targets.lam == 0,
    residual=lambda n: np.where(n.flow.good, n.flow.ends.selected != 1, np.nan),
    found=lambda n, known: (
        f"the flow selects more than one token in {int(np.sum(n.flow.ends.selected[known] != 1))} "
        f"of {int(known.sum())} instances"
    ),
)

ALL_TOKENS = (
    "As λ exceeds a certain threshold (e.g., λ > 2.0 based on our criteria), the optimization consistently selects all "
    "tokens."
)


def _survivors_in_words(numbers: PenaltyNumbers, known: Mask) -> str:
    counts, T = numbers.descent.selected[known], numbers.targets.T
    return (
        f"λ > 2: {int(np.sum(counts < T))} of {counts.size} of the published descent's survivors ({counts.size} of "
        f"{int(numbers.beyond.sum())} instances) select fewer than {T}"
    )


def _targets_in_words(numbers: PenaltyNumbers, known: Mask) -> str:
    size, T = numbers.targets.size, numbers.targets.T
    shares = ", ".join(
        f"{np.mean(size[row] == T):.0%} at {numbers.lambdas[row]:g}" for row in np.flatnonzero(numbers.lambdas > LARGE)
    )
    return (
        f"λ > 2: {int(np.sum(size[known] < T))} of {int(known.sum())} of the exact targets s*, nothing filtered, "
        f"select fewer than {T}; all {T} in {shares} (exactly where 2λ exceeds the sum of γ_t − min γ)"
    )


def _equal_weights(numbers: PenaltyNumbers, draw: Draw, at: tuple[int, ...]) -> float:
    """All tokens have weight where 2λ exceeds the sum of γ_t − min γ: no projection is needed."""
    scores = numbers.targets.scores[at]
    return float(2.0 * numbers.targets.lam[at] < np.sum(scores - scores.min(axis=-1, keepdims=True), axis=-1).max())


SURVIVORS_TAKE_ALL = Statement[PenaltyNumbers](
    source="Figure 9(a), survivors",
    says=ALL_TOKENS,
    inside=lambda n: n.beyond & n.descent.kept,
    residual=lambda n: n.descent.selected < n.targets.T,
    found=_survivors_in_words,
)

TARGETS_TAKE_ALL = Statement[PenaltyNumbers](
    source="Figure 9(a), all instances",
    says=ALL_TOKENS,
    inside=lambda n: n.beyond,
    residual=lambda n: n.targets.size < n.targets.T,
    found=_targets_in_words,
    again=Again("2λ against the sum of γ_t − min γ in NumPy", _equal_weights, 0.0),
)


def _predicted(who: str) -> Statement[PenaltyNumbers]:
    """Of the published descent's `survivors`, or of all `instances`."""

    def in_words(numbers: PenaltyNumbers, known: Mask) -> str:
        values = numbers.descent.combined
        # The figure draws means over instances for each λ.
        low = min((float(row[at].mean()) for row, at in zip(values, known, strict=True) if at.any()), default=np.nan)
        return (
            f"corr(W, W^SVMeq) of the published descent: smallest mean over a λ {low:.3f}; below 0.95 in "
            f"{int(np.sum(values[known] < CORRELATION))} of {int(known.sum())} {who}, smallest "
            f"{values[known].min(initial=1.0):.3f}"
        )

    return Statement(
        source=f"Figure 9(b), {who if who == 'survivors' else 'all instances'}",
        says="The SVM-equivalence demonstrates a strong correlation with the GD solution (consistently above 0.95).",
        inside=lambda n: n.descent.kept if who == "survivors" else everyone(n.descent.kept),
        residual=lambda n: np.where(n.descent.solved, CORRELATION - n.descent.combined, np.nan),
        found=in_words,
    )


def _slopes(numbers: PenaltyNumbers) -> tuple[float, int, float, int]:
    """The correlation of the number of tokens with 1 − corr(W, W^SVMeq), over how many: survivors, then flows."""
    descent, flow = numbers.descent, numbers.flow
    kept, followed = descent.kept & descent.solved, flow.good & flow.solved
    slope = pearson(descent.selected[kept], 1.0 - descent.combined[kept])
    flow_slope = pearson(numbers.targets.size[followed], 1.0 - flow.combined[followed])
    return slope, int(kept.sum()), flow_slope, int(followed.sum())


LESS_PREDICTED = Statement[PenaltyNumbers](
    source="Figure 9(b, c)",
    says="Selecting more tokens (aligned with larger λ values) leads to reduced predictivity.",
    # Of two runs and more there is one correlation.
    inside=lambda n: np.array([_slopes(n)[1] > 1]),
    residual=lambda n: np.array([not _slopes(n)[0] > 0]),
    found=lambda n, known: (
        "correlation of the number of tokens with 1 − corr(W, W^SVMeq): {:.2f} over {} survivors of "
        "the published descent, {:.2f} over the flows of {} instances".format(*_slopes(n))
    ),
)


def _falls(numbers: PenaltyNumbers) -> np.ndarray:
    # Near-ties settle late: a token whose multiplier in (9) is δ starts to decay at t = 1/δ.
    early, late = numbers.motion[..., 0], numbers.motion[..., 1]
    return np.where(numbers.directed, ~((late <= ALONG) | (late < early)), np.nan)


def _exponents(numbers: PenaltyNumbers) -> np.ndarray:
    """By which power of 1/t 1 − corr falls, in units of 2k/T, where neither end is at the floor."""
    early, late = numbers.motion[numbers.directed].T
    share = numbers.targets.size[numbers.directed] / numbers.targets.T
    rate = -np.log(np.maximum(late, ALONG) / np.maximum(early, ALONG)) / STRETCH / (2.0 * share)
    return rate[(late > 10 * ALONG) & (early > 10 * ALONG)]


def _direction_rate(numbers: PenaltyNumbers, known: Mask) -> Rate | None:
    return common_rate(_exponents(numbers), 1.0, law="1 − corr against t, in units of 2k/T")


def _direction_in_words(numbers: PenaltyNumbers, known: Mask) -> str:
    (early, late), found = numbers.motion[numbers.directed].T, _exponents(numbers)
    rising = int(np.sum((late > ALONG) & (late >= early)))
    middle = [median(values) if values.size else 0.0 for values in (early, late, found)]
    return (
        f"1 − corr with W^mm of the flow's motion: median {middle[0]:.1e} from log t = 14 to 22, {middle[1]:.1e} "
        f"(largest {largest(late):.1e}) from 22 to 30; not falling in {rising} of {late.size} instances; "
        f"falls like t^(-2k/T) with k tokens selected, measured exponent over that: "
        f"{middle[2]:.2f} (median of {found.size} above {10 * ALONG:.0e})"
    )


DIRECTION = Statement[PenaltyNumbers](
    source="(6), Figure 9",
    says="W(k) is decomposed into W^fin + ‖W(k)‖ W^mm, with W^mm the solution of (Gen-SVM).",
    # Where no token is left to be separated from there is no direction.
    inside=lambda n: ~np.isnan(n.motion).any(axis=-1) | ~n.flow.good,
    residual=_falls,
    found=_direction_in_words,
    limit=True,
    rate=_direction_rate,
)


def _notes(numbers: PenaltyNumbers) -> list[str]:
    *notes, unsolved = notes_of(*numbers)
    everything = numbers.targets.size == numbers.targets.T
    spanned = [
        (name, ends.spanned[inside & ends.solved])
        for name, ends, inside in (
            ("flow", numbers.flow.ends, numbers.flow.good),
            ("descent", numbers.descent, numbers.descent.kept),
        )
    ]
    shown = "; ".join(
        f"{name}: mean {values.mean() if values.size else 0.0:.4f}, smallest {values.min(initial=1.0):.4f}"
        for name, values in spanned
    )
    return [
        *notes,
        f"Where s* has all tokens ({int(everything.sum())} of {everything.size} instances) (Gen-SVM) is solved by "
        "zero, W stays finite and keeps what its start has outside the span of the tokens; correlations there are with "
        "W^fin.",
        "What attention cannot see, the start of W outside the span of (x_t − x_τ)zᵀ, is most of what is missing. "
        f"Without it corr(W, W^SVMeq) is: {shown} (flow: all instances, descent: survivors).",
        unsolved,
    ]


# A distance below rounding is drawn at rounding.
ROUNDING = 1e-16
FLOW, DESCENT = COLORS["combined"], COLORS["factored"]


def draw_token_counts(numbers: PenaltyNumbers) -> Any:
    r"""(a) Tokens selected against λ: exactly (the support of $s^\star$), and by the published criterion and protocol;
    (b) 1 − corr of W with $W^{mm}$ of (Gen-SVM) (dotted) and with $W^{SVMeq}$ (solid) against λ, (c) against their
    number."""
    figure, axes = new_figure(3, width=12.5, height=4.0)
    axis, x, size, T = axes[0], numbers.lambdas, numbers.targets.size, numbers.targets.T
    axis.fill_between(x, size.min(axis=1), size.max(axis=1), color=COLORS["faint"], alpha=0.2, linewidth=0)
    axis.plot(x, size.mean(axis=1), "-", color="black", label=r"$|\mathrm{supp}\,s^\star|$, all instances")
    both = (("descent", numbers.descent, "s--", DESCENT), ("flow", numbers.flow.ends, "o--", FLOW))
    share = axis.twinx()
    for name, ends, line, color in both:
        mean = _mean(ends.selected, ends.kept)
        axis.plot(x, mean, line, color=color, markersize=4, label=f"{name}, survivors")
        share.plot(x, ends.kept.mean(axis=1), ":", color=color, linewidth=1.2)
    axis.set_ylabel("number of selected tokens")
    axis.set_ylim(0, T + 0.5)
    share.spines["top"].set_visible(False)
    share.set_ylim(0, 1.05)
    share.set_ylabel("share kept by the filter (dotted)")
    axis.set_xlabel(r"$\lambda$")
    axis.set_title("(a) tokens selected; band: smallest to largest", fontsize=10)
    axis.legend(frameon=False, fontsize=8, loc="lower right")
    _draw_fit(axes[1], numbers, x, numbers.targets.lam, numbers.targets.lam)
    axes[1].set_xlabel(r"$\lambda$")
    axes[1].set_title(r"(b) predictivity against $\lambda$", fontsize=10)
    counts = np.arange(1, T + 1)
    _draw_fit(axes[2], numbers, counts, size, numbers.descent.selected)
    axes[2].set_xlabel("number of selected tokens")
    axes[2].set_xticks(counts)
    axes[2].set_title("(c) predictivity against their number", fontsize=10)
    # Room for the legend above the curves.
    low, high = axes[1].get_ylim()
    axes[1].set_ylim(low, high * (high / low) ** 0.6)
    axes[1].legend(frameon=False, fontsize=8, loc="upper left")
    return figure


def _draw_fit(axis: Any, numbers: PenaltyNumbers, x: np.ndarray, of_flow: np.ndarray, of_descent: np.ndarray) -> None:
    """Means over the instances for which `of_flow`, or `of_descent`, is x."""
    flow, descent = numbers.flow.ends, numbers.descent
    for ends, inside, group, color, name in (
        (flow, flow.good, of_flow, FLOW, "flow, all"),
        (descent, descent.kept, of_descent, DESCENT, "descent, survivors"),
    ):
        pairs = ((ends.combined, "-", r"W^{SVMeq}"), (ends.direction, ":", r"W^{mm}"))
        for correlation, line, symbol in pairs:
            values = np.maximum(1.0 - correlation, ROUNDING)
            members = [inside & ~np.isnan(values) & (group == at) for at in x]
            means = np.array([values[member].mean() if member.any() else np.nan for member in members])
            label = rf"$1-\mathrm{{corr}}(W,{symbol})$, {name}"
            axis.plot(x, means, line, marker=".", color=color, label=label)
    axis.set_yscale("log")


def _mean(values: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Row by row over the mask; NaN where it is empty."""
    count = mask.sum(axis=1)
    return np.where(count > 0, np.sum(values * mask, axis=1) / np.maximum(count, 1), np.nan)


register(
    FIGURE9,
    "fig9",
    title="Several selected tokens under a concave head, against λ",
    statements=[
        GROWS,
        ONE_AT_ZERO,
        SURVIVORS_TAKE_ALL,
        TARGETS_TAKE_ALL,
        _predicted("survivors"),
        _predicted("instances"),
        LESS_PREDICTED,
        reaches("(9), Figure 9"),
        DIRECTION,
    ],
    notes=_notes,
    draw=draw_token_counts,
)

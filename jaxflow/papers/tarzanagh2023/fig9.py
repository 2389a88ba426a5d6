"""`reproduce tarzanagh2023 fig9`: how many tokens a concave head selects, and what (Gen-SVM) says of W."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import nnls
from scipy.special import softmax

from jaxflow.papers.drawing import dress, row_means, shade
from jaxflow.papers.experiment import Again, Dataset, Draw, Mask, Part, Statement, Table, common_rate, register
from jaxflow.papers.tarzanagh2023 import concave
from jaxflow.papers.tarzanagh2023.protocol import figure_key
from jaxflow.plots.style import COLORS, ROUNDING, new_figure

# "Consistently above 0.95", §6.1.
CORRELATION = 0.95
# The threshold beyond which all tokens are selected, §6.1.
LARGE = 2.0
# Correlations of motions are known to this: the flow is followed to a millionth.
ALONG = 1e-10

# The paper's figure goes past λ = 2; its grid is not given, this one is ours.
GRID = (0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0, 1.2, 1.4, 1.6, 1.8, 2.0, 2.2, 2.5, 3.0)

# Draws of the head, the tokens and the start for each λ, and the values of λ.
SIZES = {
    "quick": (20, (0.0, 0.1, 0.3, 0.6, 1.0, 1.5, 2.0, 2.5)),
    "paper": (100, GRID),
    "large": (2000, GRID),
}
T, D = 10, 10
# The published descent.
STEPS, RATE = 2000, 0.1


def beyond(numbers: Table) -> Mask:
    """The instances whose λ is above the threshold."""
    return numbers.targets.lam > LARGE


def motion(numbers: Table) -> np.ndarray:
    """1 − corr of the flow's motion over the last two stretches with W^mm, NaN where no token is left to be separated
    from."""
    return 1.0 - numbers.flow.moved


def directed(numbers: Table) -> Mask:
    """Whose motion is known: one that is not near s* at log t = 30 has not made its selection then."""
    flow = numbers.flow
    return flow.good & flow.solved & ~np.isnan(motion(numbers)).any(axis=-1) & ~flow.late


def _batches(scale: str, key: Any) -> Iterator[Table]:
    trials, lambdas = SIZES[scale]
    keys = jax.random.split(key, trials)
    for lam in lambdas:
        yield concave.draw_batch(T, D, keys, jnp.full(trials, lam))


# n = 1, T = d = 10, h(x) = v·x − λ‖x‖², ℓ(x) = −x, Y = 1.
FIGURE9 = Dataset(
    "tarzanagh2023",
    "fig9",
    concave.parts(_batches, figure_key(9))
    | {
        "flow": Part(
            lambda keys, lam: concave.flows(concave.draw_batch(T, D, keys, jnp.full(len(keys), lam))),
            lambda scale: {f"λ = {lam}": lam for lam in SIZES[scale][1]},
            lambda scale: SIZES[scale][0],
            block=100,
            draw_from=figure_key(9),
            way="as a block",
        )
    },
)


def width(numbers: Table) -> int:
    """T."""
    return numbers.targets.scores.shape[-1]


ALL_TOKENS = (
    "As λ exceeds a certain threshold (e.g., λ > 2.0 based on our criteria), the optimization consistently selects all "
    "tokens."
)


def _equal_weights(numbers: Table, draw: Draw, at: tuple[int, ...]) -> float:
    """All tokens have weight where 2λ exceeds the sum of γ_t − min γ: no projection is needed."""
    scores = numbers.targets.scores[at]
    return float(2.0 * numbers.targets.lam[at] < np.sum(scores - scores.min(axis=-1, keepdims=True), axis=-1).max())


def descent_predicted(tokens: np.ndarray, query: np.ndarray, v: np.ndarray, lam: float, W: np.ndarray) -> float:
    r"""corr(W, W^SVMeq) of the published descent from W, in NumPy.

    Of T = d orthonormal tokens and one query both programs are solved by logits: equal ones of what is selected, one
    above those of the others, with mean zero; and $\log s$ of what is selected, with mean zero.
    """
    scores = tokens @ v
    for _ in range(STEPS):
        s = softmax(tokens @ W @ query)
        slope = 2.0 * lam * s - scores
        gradient = np.outer(tokens.T @ (s * (slope - s @ slope)), query)
        W = W - RATE * gradient / (np.linalg.norm(gradient) + np.finfo(float).eps)
    s = softmax(tokens @ W @ query)
    on = s > concave.SELECTED
    finite = np.log(np.where(on, s, 1.0))
    logits = [np.where(on, finite - np.mean(finite[on]), 0.0), on - np.mean(on)]
    # The best of all W^fin + γ W^mm, γ >= 0, up to their length, is the point of their cone that is nearest to W.
    cone = np.stack([np.outer(tokens.T @ a, query).ravel() for a in logits], axis=1)
    return float(np.linalg.norm(cone @ nnls(cone, W.ravel())[0]) / np.linalg.norm(W))


def _predicted_again(numbers: Table, draw: Draw, at: tuple[int, ...]) -> float:
    trials, lambdas = SIZES[draw.scale]
    key = jax.random.split(draw.key("descent"), trials)[at[1]]
    one = jax.tree.map(lambda x: np.asarray(x)[0], concave.draw_batch(T, D, key[None], jnp.full(1, lambdas[at[0]])))
    return CORRELATION - descent_predicted(one.tokens, one.query, one.v, lambdas[at[0]], one.start)


def _predicted(who: str) -> Statement[Table]:
    """Of the published descent's `survivors`, or of all `instances`."""

    return Statement(
        source=f"Figure 9(b), {who if who == 'survivors' else 'all instances'}",
        says="The SVM-equivalence demonstrates a strong correlation with the GD solution (consistently above 0.95).",
        inside=lambda n: concave.kept(n.descent) | (who != "survivors"),
        residual=lambda n: np.where(n.descent.solved, CORRELATION - n.descent.combined, np.nan),
        again=Again("descent in NumPy and NNLS of SciPy", _predicted_again, 1e-5),
    )


def _slopes(numbers: Table) -> tuple[float, float]:
    """The correlation of the number of tokens with 1 − corr(W, W^SVMeq): over survivors, then over flows."""
    descent, flow = numbers.descent, numbers.flow
    used, followed = concave.kept(descent) & descent.solved, flow.good & flow.solved
    slope = concave.pearson(concave.selected(descent)[used], 1.0 - descent.combined[used])
    flow_slope = concave.pearson(numbers.targets.size[followed], 1.0 - flow.combined[followed])
    return slope, flow_slope


def _falls(numbers: Table) -> np.ndarray:
    # Near-ties settle late: a token whose multiplier in (9) is δ starts to decay at t = 1/δ.
    early, late = motion(numbers)[..., 0], motion(numbers)[..., 1]
    return np.where(directed(numbers), ~((late <= ALONG) | (late < early)), np.nan)


def _exponents(numbers: Table) -> np.ndarray:
    """By which power of 1/t 1 − corr falls, in units of 2k/T, where neither end is at the floor."""
    early, late = motion(numbers)[directed(numbers)].T
    share = numbers.targets.size[directed(numbers)] / width(numbers)
    rate = -np.log(np.maximum(late, ALONG) / np.maximum(early, ALONG)) / concave.STRETCH / (2.0 * share)
    return rate[(late > 10 * ALONG) & (early > 10 * ALONG)]


FLOW, DESCENT = COLORS["combined"], COLORS["factored"]


def draw_token_counts(numbers: Table) -> Any:
    r"""(a) Tokens selected against λ: exactly (the support of $s^\star$), and by the published criterion and protocol;
    (b) 1 − corr of W with $W^{mm}$ of (Gen-SVM) (dotted) and with $W^{SVMeq}$ (solid) against λ, (c) against their
    number."""
    figure, axes = new_figure(3, width=12.5, height=4.0)
    axis, x, size, most = axes[0], numbers.targets.lam[:, 0], numbers.targets.size, width(numbers)
    shade(axis, x, size.min(axis=1), size.max(axis=1), COLORS["faint"], 0.2)
    axis.plot(x, size.mean(axis=1), "-", color="black", label=r"$|\mathrm{supp}\,s^\star|$, all instances")
    both = (("descent", numbers.descent, "s--", DESCENT), ("flow", numbers.flow, "o--", FLOW))
    share = axis.twinx()
    for name, ends, line, color in both:
        mean = row_means(concave.selected(ends), concave.kept(ends))
        axis.plot(x, mean, line, color=color, markersize=4, label=f"{name}, survivors")
        share.plot(x, concave.kept(ends).mean(axis=1), ":", color=color, linewidth=1.2)
    share.spines["top"].set_visible(False)
    dress(share, y="share kept by the filter (dotted)", ylim=(0, 1.05))
    labels = (r"$\lambda$", "number of selected tokens")
    dress(axis, "(a) tokens selected; band: smallest to largest", *labels, ylim=(0, most + 0.5))
    axis.legend(frameon=False, fontsize=8, loc="lower right")
    _draw_fit(axes[1], numbers, x, numbers.targets.lam, numbers.targets.lam)
    dress(axes[1], r"(b) predictivity against $\lambda$", r"$\lambda$")
    counts = np.arange(1, most + 1)
    _draw_fit(axes[2], numbers, counts, size, concave.selected(numbers.descent))
    dress(axes[2], "(c) predictivity against their number", "number of selected tokens", xticks=counts)
    # Room for the legend above the curves.
    low, high = axes[1].get_ylim()
    axes[1].set_ylim(low, high * (high / low) ** 0.6)
    axes[1].legend(frameon=False, fontsize=8, loc="upper left")
    return figure


def _draw_fit(axis: Any, numbers: Table, x: np.ndarray, of_flow: np.ndarray, of_descent: np.ndarray) -> None:
    """Means over the instances for which `of_flow`, or `of_descent`, is x."""
    flow, descent = numbers.flow, numbers.descent
    for ends, inside, group, color, name in (
        (flow, flow.good, of_flow, FLOW, "flow, all"),
        (descent, concave.kept(descent), of_descent, DESCENT, "descent, survivors"),
    ):
        pairs = ((ends.combined, "-", r"W^{SVMeq}"), (ends.direction, ":", r"W^{mm}"))
        for correlation, line, symbol in pairs:
            values = np.maximum(1.0 - correlation, ROUNDING)
            members = [inside & ~np.isnan(values) & (group == at) for at in x]
            means = np.array([values[member].mean() if member.any() else np.nan for member in members])
            label = rf"$1-\mathrm{{corr}}(W,{symbol})$, {name}"
            axis.plot(x, means, line, marker=".", color=color, label=label)
    axis.set_yscale("log")


register(
    FIGURE9,
    title="Several selected tokens under a concave head, against λ",
    statements=[
        Statement(
            source="Figure 9(a)",
            says="The number of selected tokens grows alongside λ.",
            # Whether a larger λ of the grid has fewer.
            residual=lambda n: np.any(np.diff(n.targets.size, axis=0) < 0, axis=0),
        ),
        Statement(
            source="Figure 9(a)",
            says="When λ = 0, the head is linear, resulting in the selection of only one token per input.",
            inside=lambda n: n.targets.lam == 0,
            residual=lambda n: np.where(n.flow.good, concave.selected(n.flow) != 1, np.nan),
        ),
        Statement(
            source="Figure 9(a), survivors",
            says=ALL_TOKENS,
            inside=lambda n: beyond(n) & concave.kept(n.descent),
            residual=lambda n: concave.selected(n.descent) < width(n),
        ),
        Statement(
            source="Figure 9(a), all instances",
            says=ALL_TOKENS,
            inside=lambda n: beyond(n),
            residual=lambda n: n.targets.size < width(n),
            again=Again("2λ against the sum of γ_t − min γ in NumPy", _equal_weights, 0.0),
        ),
        _predicted("survivors"),
        _predicted("instances"),
        Statement(
            source="Figure 9(b, c)",
            says="Selecting more tokens (aligned with larger λ values) leads to reduced predictivity.",
            # Of two runs and more there is one correlation.
            inside=lambda n: np.array([np.sum(concave.kept(n.descent) & n.descent.solved) > 1]),
            residual=lambda n: np.array([not _slopes(n)[0] > 0]),
            found=lambda n, known: "correlation {:.2f} over survivors of descent, {:.2f} over flows".format(
                *_slopes(n)
            ),
        ),
        concave.reaches("(9), Figure 9"),
        Statement(
            source="(6), Figure 9",
            says="W(k) is decomposed into W^fin + ‖W(k)‖ W^mm, with W^mm the solution of (Gen-SVM).",
            # Where no token is left to be separated from there is no direction.
            inside=lambda n: ~np.isnan(motion(n)).any(axis=-1) | ~n.flow.good,
            residual=_falls,
            rate=lambda n, known: common_rate(_exponents(n), 1.0, law="1 − corr against t, in units of 2k/T"),
        ),
    ],
    notes=concave.notes_of,
    draw=draw_token_counts,
)

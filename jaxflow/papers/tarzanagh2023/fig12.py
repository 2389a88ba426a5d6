"""`reproduce tarzanagh2023 fig12`: Lemma 6, at least two and at most τ selected tokens."""

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from jaxflow.papers.drawing import dress
from jaxflow.papers.experiment import Dataset, Statement, Sweep, Table, register, stacked
from jaxflow.papers.tarzanagh2023 import concave
from jaxflow.papers.tarzanagh2023.protocol import WAYS, figure_key
from jaxflow.plots import COLORS, CURVES, new_figure

TAUS = (3, 5, 7, 9)
# For each τ, how many instances are trained, and how many more have the support of their target counted.
SIZES = {"quick": (20, 10_000, TAUS), "paper": (100, 100_000, TAUS), "large": (2000, 1_000_000, TAUS)}
T, D = 10, 10


def taus(numbers: Table) -> np.ndarray:
    """τ of the cells, `(c, 1)`."""
    return numbers.exact.tau[:, None]


def counted(numbers: Table, who: str) -> tuple[np.ndarray, Any]:
    """How many tokens the exact targets have, or the flow or descent selects; and whose count is known."""
    if who == "exact":
        return numbers.exact.size, True
    ends = getattr(numbers, who)
    return concave.selected(ends), ends.good


def _keys(scale: str, key: Any) -> Iterator[tuple[int, Any]]:
    """Each τ with the keys of its conditions, of the rest of their instances, and of the conditions that are counted
    exactly."""
    for tau in SIZES[scale][2]:
        yield tau, jax.random.split(jax.random.fold_in(key, tau), 3)


def _batches(scale: str, key: Any) -> Iterator[Table]:
    trials, _, _ = SIZES[scale]
    for tau, (key_condition, key_rest, _) in _keys(scale, key):
        scores, lam, _ = concave.draw_conditions(tau, T, D, jax.random.split(key_condition, trials))
        yield concave.draw_batch(T, D, jax.random.split(key_rest, trials), lam, scores)


def _exact(scale: str, key: Any) -> Table:
    """For each τ, `tau`, the `size` of m exact targets, whether they were decided in rational arithmetic, `near_tie`,
    and how many heads were drawn before one left an interval for λ, `draws`, `(c, m)` each."""
    (_, count, _), rows = SIZES[scale], []
    for tau, (_, _, key_exact) in _keys(scale, key):
        scores, lam, draws = concave.draw_conditions(tau, T, D, jax.random.split(key_exact, count))
        sizes, near = concave.support_sizes(np.asarray(scores)[:, :T], np.asarray(lam))
        rows.append(Table(tau=np.asarray(tau), size=sizes, near_tie=near, draws=np.asarray(draws)))
    return stacked(rows)


# Heads and λ that satisfy (8), n = 1, T = d = 10: heads are drawn until τ·gap_τ/2 > gap_1, and λ uniformly between.
FIGURE12 = Dataset(
    "tarzanagh2023", "fig12", {**concave.parts(_batches, figure_key(12)), "exact": Sweep(_exact, figure_key(12))}
)


def _between(source: str, who: str) -> Statement[Table]:
    def residual(numbers: Table) -> np.ndarray:
        counts, followed = counted(numbers, who)
        return np.where(followed, (counts < 2) | (counts > taus(numbers)), np.nan)

    return Statement(
        source=source,
        says="The optimal solution s* contains at least 2 and at most τ nonzero entries.",
        residual=residual,
    )


def _correlations(numbers: Table) -> tuple[float, float, float]:
    """Of τ and number, of λ and number, of τ and λ."""
    lam, size = numbers.targets.lam.ravel(), numbers.targets.size.ravel()
    tau = np.broadcast_to(taus(numbers), numbers.targets.size.shape).ravel()
    return concave.pearson(tau, size), concave.pearson(lam, size), concave.pearson(tau, lam)


def _notes(numbers: Table) -> list[str]:
    exact = numbers.exact
    accepted = [
        f"{draws.size / draws.sum():.1%} (τ = {tau})" for tau, draws in zip(exact.tau, exact.draws, strict=True)
    ]
    return [
        f"Random heads that leave an interval for λ in (8): {', '.join(accepted)}.",
        f"{int(exact.near_tie.sum())} of {exact.size.size} counts were near ties and decided in rational arithmetic.",
        "The proof in App. C.2 bounds the sum of s_i^2 over the top τ tokens by S_1^2/τ from above; by Cauchy-Schwarz "
        "it is at least that (equal for equal entries only), so the chain of implications breaks there. The lemma is "
        "true all the same: in the order of the scores token j has weight in s* exactly where the sum of "
        "m gap_m over m < j is below 2λ.",
        *concave.notes_of(numbers),
    ]


FLOW, DESCENT = COLORS["combined"], COLORS["factored"]


def draw_token_histograms(numbers: Table) -> Any:
    """(a) λ and (b) the number of selected tokens, for each τ of condition (8); (c) how that number is distributed."""
    figure, axes = new_figure(3, width=12.5, height=4.0)
    taus, exact = numbers.exact.tau, numbers.exact.size
    flow, descent = concave.selected(numbers.flow), concave.selected(numbers.descent)
    axes[0].boxplot(list(numbers.targets.lam), positions=taus, widths=0.8, showfliers=True, medianprops={"color": FLOW})
    dress(axes[0], r"(a) $\lambda$ in $(\gamma^{gap}_1,\ \tau\gamma^{gap}_\tau/2)$", y=r"$\lambda$")
    axes[1].plot(taus, taus, "--", color=COLORS["faint"], label=r"bounds of Lemma 6: 2 and $\tau$")
    axes[1].plot(taus, np.full(len(taus), 2), "--", color=COLORS["faint"])
    for counts, color, shift, label in (
        (numbers.targets.size, "black", -0.15, r"$|\mathrm{supp}\,s^\star|$"),
        (flow, FLOW, 0.0, "flow"),
        (descent, DESCENT, 0.15, "descent"),
    ):
        mean = counts.mean(axis=1)
        spread = np.stack([mean - counts.min(axis=1), counts.max(axis=1) - mean])
        axes[1].errorbar(taus + shift, mean, spread, fmt="o", color=color, markersize=4, capsize=3, label=label)
    dress(axes[1], "(b) their number; bars: smallest to largest", y="number of selected tokens", legend=8)
    for axis in axes[:2]:
        dress(axis, x=r"$\tau$", xticks=taus)
    each, width = np.arange(1, numbers.targets.scores.shape[-1] + 1), 0.8 / len(taus)
    for i, (tau, color) in enumerate(zip(taus, CURVES, strict=False)):
        place = each + (i - (len(taus) - 1) / 2) * width
        shares, of_exact = ([np.mean(counts[i] == number) for number in each] for counts in (flow, exact))
        axes[2].bar(place, shares, width, color=color, alpha=0.7, label=rf"$\tau={tau}$")
        axes[2].plot(place, of_exact, "k_", markersize=5)
    axes[2].plot([], [], "k_", label=rf"exact, {exact.shape[1]:,} instances")
    labels = ("number of selected tokens", "share of instances")
    dress(axes[2], "(c) distribution of their number: flow (bars)", *labels, legend=8, xticks=each)
    return figure


register(
    FIGURE12,
    title="Lemma 6: between two and τ selected tokens",
    statements=[
        _between("Lemma 6", "exact"),
        *(_between(f"Figure 12(c), {way}", way) for way in WAYS),
        Statement(
            source="Figure 12",
            says="The results indicate a positive correlation among τ, λ, and the number of selected tokens.",
            inside=lambda n: np.full(3, n.targets.size.size > 1),
            residual=lambda n: np.array([not value > 0 for value in _correlations(n)]),
            found=lambda n, known: "τ and number {:.2f}, λ and number {:.2f}, τ and λ {:.2f}".format(*_correlations(n)),
        ),
        concave.reaches("(9), Figure 12"),
    ],
    notes=_notes,
    draw=draw_token_histograms,
)

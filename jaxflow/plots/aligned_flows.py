"""Flows of (K, Q) on data of Assumption 4, and what happens without (Sheen et al. 2024, §5)."""

from typing import Any

import numpy as np

from jaxflow.plots.style import COLORS, new_figure

CURVES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")
ROUNDING = 1e-17
FIRST = 0.5


def draw_alignment(data: dict[str, np.ndarray]) -> Any:
    r"""Alignment error and distance from the exact limit for three starts; attention where $d_e<d$.

    **Arguments:** `data` with `log_times` `(m,)`, `starts` `(s,)` names, `alignment`, `weights_excess`,
    `velocity_excess` `(s, b, m)`, `ok` `(s, b)`, and `narrow_attention` `(b, m)`: the least attention on an optimal
    token, with `narrow_columns` columns.
    """
    figure, axes = new_figure(3, width=12.5)
    times = data["log_times"]
    late = times >= FIRST
    for color, name, row in zip(CURVES, data["starts"], range(len(data["starts"])), strict=False):
        kept = data["ok"][row]
        if not kept.any():
            continue
        values = np.maximum(data["alignment"][row][kept][:, late], ROUNDING)
        axes[0].plot(times[late], values.max(axis=0), color=color, label=str(name))
        for key, line, symbol in (("weights_excess", "-", r"$W$"), ("velocity_excess", ":", r"$\dot W$")):
            values = data[key][row][kept][:, late]
            values = np.where(np.isfinite(values), np.maximum(np.abs(values), ROUNDING), np.nan)
            seen = ~np.isnan(values).all(axis=0)
            axes[1].plot(
                times[late][seen], np.nanmax(values[:, seen], axis=0), line, color=color, label=f"{symbol}, {name}"
            )
    axes[0].axhline(1e-10, color=COLORS["faint"], linewidth=0.8)
    axes[0].set_ylabel(r"$\|U_K^\top KV-\mathrm{diag}\|_F\,/\,\|K\|_F$")
    axes[0].set_title("(a) Lemma 5.1: alignment error", fontsize=10)
    axes[1].axhline(1e-8, color=COLORS["faint"], linewidth=0.8)
    axes[1].set_ylabel(r"$\|\cdot\|_*\,/\,(\mu\,\mathrm{opt})-1$")
    axes[1].set_title(r"(b) Theorem 5.1: distance from the optimum", fontsize=10)
    for axis in axes[:2]:
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.set_xlabel(r"$\log t$")
        axis.legend(frameon=False, fontsize=7)
    for values in data["narrow_attention"]:
        axes[2].plot(times, values, color=COLORS["factored"], linewidth=0.9, alpha=0.6)
    axes[2].set_xlim(times[0], 12.0)
    axes[2].set_ylim(-0.02, 1.05)
    axes[2].set_xlabel(r"$\log t$")
    axes[2].set_ylabel(r"least attention on $\mathrm{opt}(i)$")
    title = rf"(c) $d_e={int(data['narrow_columns'])}<d={int(data['d'])}$: a saddle, left by rounding"
    axes[2].set_title(title, fontsize=10)
    figure.suptitle(f"largest over {data['ok'].shape[1]} instances for each start", fontsize=9)
    return figure


def draw_three_norms(data: dict[str, np.ndarray]) -> Any:
    r"""One data set: the limits of W, (K, Q) and diagonal weights, and their norms relative to the least.

    **Arguments:** `data` with `kinds` `(3,)`, `weights` `(3, d, d)` at margin one, `ratio` `(3, 2)`: Frobenius and
    nuclear norm over the program's optimum; `shown_l1` `(3,)`: the same for ℓ1 among diagonal matrices, NaN for
    matrices that are not diagonal.
    """
    figure, axes = new_figure(4, width=14.0, height=3.6)
    titles = {"combined": r"flow of $W$", "factored": r"flow of $(K,Q)$", "diagonal": r"flow of $\mathrm{diag}(\beta)$"}
    for axis, kind, weights in zip(axes, data["kinds"], data["weights"], strict=False):
        axis.grid(False)
        # Each in its own scale: they are directions, and a diagonal one has few, large entries.
        top = float(np.abs(weights).max())
        axis.imshow(weights, cmap="RdBu", vmin=-top, vmax=top)
        axis.set_xticks([])
        axis.set_yticks([])
        values = np.linalg.svd(weights, compute_uv=False)
        rank = int((values > 1e-4 * values[0]).sum())
        axis.set_title(f"{titles[str(kind)]}: rank {rank}", fontsize=10)
    names = (r"$\|W\|_F$", r"$\|W\|_*$", r"$\|\mathrm{diag}\|_1$")
    table = np.concatenate([data["ratio"], data["shown_l1"][:, None]], axis=1)
    for row, kind in enumerate(data["kinds"]):
        x = np.arange(3) + 0.27 * (row - 1)
        seen = np.isfinite(table[row])
        axes[3].bar(x[seen], table[row][seen] - 1.0, width=0.25, color=COLORS[str(kind)], label=titles[str(kind)])
        for place, value in zip(x[seen], table[row][seen], strict=True):
            text = f"{value - 1:.0e}" if value - 1 < 1e-3 else f"{value - 1:.2f}"
            axes[3].text(place, value - 1.0, text, ha="center", va="bottom", fontsize=6)
    axes[3].set_xticks(range(3), names)
    axes[3].set_ylabel("norm at margin one / optimum − 1")
    axes[3].set_title("each is the least in its own norm", fontsize=10)
    axes[3].legend(frameon=False, fontsize=7)
    return figure


def draw_failures(data: dict[str, np.ndarray]) -> Any:
    r"""What happens when an assumption fails: wrong tokens against the score gap and the spread of scores, distance
    from the nuclear optimum against the amounts by which Assumption 4 is broken.

    **Arguments:** `data` with `multiples` `(g,)`, `gap_share`, `gap_low`, `gap_high` `(g,)` of wrong selections and
    `gap_open` `(g,)` undecided, `gap_assumed` `(g,)`: share for which Assumption 3 holds; the same with `spreads` and
    `spread_`, and with one entry `random_`; `amounts` `(a,)` and `broken` `(3, a, 3)`: 10%, 50% and 90% quantiles of
    the excess.
    """
    figure, axes = new_figure(3, width=12.5)
    for axis, x, name, label, title in (
        (axes[0], data["multiples"], "gap", "score gap / gap that Assumption 3 needs", "(a) Assumption 3"),
        (axes[1], data["spreads"], "spread", "spread of the other scores / gap", "(b) Assumption 2, relaxed"),
    ):
        share, low, high = (100 * data[f"{name}_{part}"] for part in ("share", "low", "high"))
        axis.errorbar(
            x, share, yerr=[np.maximum(share - low, 0), np.maximum(high - share, 0)], fmt="-o", markersize=4, capsize=3,
            color=COLORS["factored"], label="wrong token selected, Wilson 95%",
        )  # fmt: skip
        axis.plot(x, 100 * data[f"{name}_open"], "--", color=COLORS["faint"], label="undecided")
        axis.plot(x, 100 * data[f"{name}_assumed"], ":", color=COLORS["combined"], label="Assumption 3 holds")
        axis.set_xlabel(label)
        axis.set_ylabel("% of instances")
        axis.set_title(title, fontsize=10)
        axis.legend(frameon=False, fontsize=7)
        axis.set_ylim(-3, 103)
    share, low, high = (100 * float(data[f"random_{part}"][0]) for part in ("share", "low", "high"))
    label = "wrong, tokens and head on the sphere"
    axes[0].axhline(share, color=COLORS["diagonal"], linestyle="-.", linewidth=1.2, label=label)
    axes[0].axhspan(low, high, color=COLORS["diagonal"], alpha=0.12, linewidth=0)
    axes[0].legend(frameon=False, fontsize=7)
    for color, row, part in zip(CURVES, range(3), ("(i)", "(ii)", "(iii)"), strict=False):
        low, middle, high = np.maximum(data["broken"][row].T, 1e-12)
        axes[2].plot(data["amounts"], middle, "-o", color=color, markersize=4, label=f"Assumption 4 {part} broken")
        axes[2].fill_between(data["amounts"], low, high, color=color, alpha=0.15, linewidth=0)
    axes[2].set_yscale("log")
    axes[2].set_xlabel("amount")
    axes[2].set_ylabel(r"$\|\dot W\|_*/(\mu\,\mathrm{opt})-1$ at $\log t=10^6$")
    axes[2].set_title("(c) aligned start, Assumption 4 broken", fontsize=10)
    axes[2].legend(frameon=False, fontsize=7)
    return figure

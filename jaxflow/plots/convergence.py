"""Selection of tokens and convergence to two programs, against log t (figure 7 of Tarzanagh et al. 2023)."""

from typing import Any

import numpy as np

from jaxflow.plots.style import COLORS, SYMBOLS, new_figure

# A distance below rounding is drawn at rounding.
ROUNDING = 1e-16

PANELS = (
    ("attention", r"mean of $\max_t\ \mathbb{S}(X_i\tilde{W}z_i)_t$", "(a) tokens selected"),
    ("frobenius", r"$1-\mathrm{corr}(\tilde{W},\,W^{mm}_{\alpha})$", "(b) Frobenius-norm (Att-SVM)"),
    ("nuclear", r"$1-\mathrm{corr}(\tilde{W},\,W^{mm}_{\star,\alpha})$", r"(c) nuclear-norm (Att-SVM$_\star$)"),
)


def draw_convergence(data: dict[str, np.ndarray]) -> Any:
    r"""Three panels, the mean over the instances whose weights tend to a direction.

    **Arguments:** `data` with, for p in combined and factored: `p_log_time` `(g,)`; `p_direction` `(b,)` Boolean;
    `p_attention`, `p_frobenius`, `p_nuclear` `(b, g)`; and for descent `p_descent_log_time` `(b, k)` with
    `p_descent_attention` and so on `(b, k)`.
    """
    figure, axes = new_figure(3)
    for axis, (name, label, title) in zip(axes, PANELS, strict=True):
        for kind in ("combined", "factored"):
            kept = data[f"{kind}_direction"]
            if not kept.any():
                continue
            values = data[f"{kind}_{name}"][kept]
            if name != "attention":
                values = np.maximum(values, ROUNDING)
                low, high = np.quantile(values, [0.1, 0.9], axis=0)
                axis.fill_between(data[f"{kind}_log_time"], low, high, color=COLORS[kind], alpha=0.15, linewidth=0)
            times = data[f"{kind}_log_time"]
            axis.plot(times, values.mean(0), color=COLORS[kind], label=f"flow of {SYMBOLS[kind]}")
            # Steps are placed where the flow would be after the same lengths: the median over the instances.
            when = np.median(data[f"{kind}_descent_log_time"][kept], axis=0)
            steps = data[f"{kind}_descent_{name}"][kept].mean(0)
            shown = when >= times[0]
            axis.plot(
                when[shown], steps[shown], "--", color=COLORS[kind], linewidth=1.2, label=f"descent on {SYMBOLS[kind]}"
            )
            axis.plot(when[-1:], steps[-1:], "o", color=COLORS[kind], markersize=4)
        axis.set_xscale("log")
        if name != "attention":
            axis.set_yscale("log")
        axis.set_xlabel(r"$\log t$")
        axis.set_ylabel(label)
        axis.set_title(title, fontsize=10)
    axes[0].legend(frameon=False, fontsize=8, loc="lower right")
    count, total = (
        (int(data["combined_direction"].sum()), int(data["factored_direction"].sum())),
        len(data["combined_direction"]),
    )
    figure.suptitle(
        rf"$n={int(data['n'])}$, $T={int(data['T'])}$, $d={int(data['d'])}$; mean over "
        rf"{count[0]} ($W$) and {count[1]} ($(K,Q)$) of {total} instances, bands 10% to 90%; "
        "dashed: the published descent, ending at the dot",
        fontsize=9,
    )
    return figure

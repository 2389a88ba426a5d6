"""Diagonal attention in two parametrisations, and its multipliers, against log t (Sheen et al. 2024, §4)."""

from typing import Any

import numpy as np

from jaxflow.plots.style import COLORS, new_figure

# Okabe and Ito (2008), one for each start.
CURVES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")
# Differences that rounding made zero are drawn at rounding.
ROUNDING = 1e-17
# Earlier than this log t there is nothing to tell apart, and a logarithmic axis has no place for it.
FIRST = 0.5


def draw_equivalence(data: dict[str, np.ndarray]) -> Any:
    r"""One instance's $\beta(t)$ from both flows; their distance and the integral identity's; $\|\beta\|$ and μ.

    **Arguments:** `data` with `log_times` `(m,)`, `omegas` `(k,)`, `ok` `(k, b)`, `apart`, `identity`, `size`, `margin`
    `(k, b, m)`, and of the first instance `beta`, `coefficients` `(k, m, d)`.
    """
    figure, axes = new_figure(3, width=12.5)
    times = data["log_times"]
    late = times >= FIRST
    beta, w = data["beta"][0], data["coefficients"][0]
    for j in range(beta.shape[1]):
        label = (r"flow of $(\xi_k,\xi_q)$", r"flow of $(w_+,w_-)$") if j == 0 else (None, None)
        axes[0].plot(times[late], beta[late, j], color=COLORS["diagonal"], linewidth=1.2, label=label[0])
        axes[0].plot(times[late], w[late, j], ".", color=COLORS["program"], markersize=3, label=label[1])
    axes[0].set_yscale("symlog", linthresh=0.1)
    axes[0].set_ylabel(r"$\beta_j(t)$")
    axes[0].set_title(rf"(a) one instance, $\omega_0={data['omegas'][0]:g}$", fontsize=10)
    for axis, pairs, label, title in (
        (
            axes[1],
            (("apart", "-", r"$\|\beta-w\|_\infty$"), ("identity", ":", r"$\|\beta-\omega_0^2\sinh(B\phi)\|_\infty$")),
            r"relative to $\|\beta\|_\infty$",
            "(b) Lemma 4.1 and (19)",
        ),
        (
            axes[2],
            (("size", "-", r"$\|\beta\|_2$"), ("margin", ":", r"$\mu$")),
            None,
            r"(c) Lemma 4.2: $\|\beta\|\to\infty$",
        ),
    ):
        for color, omega, row in zip(CURVES, data["omegas"], range(len(data["omegas"])), strict=False):
            kept = data["ok"][row]
            for name, line, symbol in pairs:
                values = data[name][row][kept][:, late]
                if not len(values):
                    continue
                values = np.maximum(values, ROUNDING) if axis is axes[1] else np.where(values > 0, values, np.nan)
                text = rf"{symbol}, $\omega_0={omega:g}$"
                axis.plot(times[late], np.nanmax(values, axis=0), line, color=color, label=text, linewidth=1.4)
        axis.set_yscale("log")
        axis.set_title(title, fontsize=10)
        if label:
            axis.set_ylabel(label)
    axes[1].axhline(1e-8, color=COLORS["faint"], linewidth=0.8)
    _finish(axes)
    figure.suptitle(f"largest over {data['ok'].shape[1]} instances for each start", fontsize=9)
    return figure


def draw_multipliers(data: dict[str, np.ndarray]) -> Any:
    r"""KKT residuals of averaged (A.5) and instantaneous multipliers, and both for one instance.

    **Arguments:** `data` with `log_times` `(m,)`, `omegas` `(k,)`, `inside` `(k, b)`, `stationarity`, `predicted`,
    `slackness`, `gap` `(k, b, m)`, and of the first instance `averaged`, `instantaneous` `(k, m, d)`: entries of Bλ.
    """
    figure, axes = new_figure(3, width=12.5)
    times = data["log_times"]
    late = times >= FIRST
    for color, omega, row in zip(CURVES, data["omegas"], range(len(data["omegas"])), strict=False):
        kept = data["inside"][row]
        if not kept.any():
            continue
        for axis, name, line, symbol in (
            (axes[0], "stationarity", "-", "(C1)"),
            (axes[0], "slackness", ":", "(C3)"),
            (axes[1], "gap", "-", "gap"),
        ):
            values = data[name][row][kept][:, late]
            values = np.where(np.isfinite(values) & (values > 0), values, np.nan)
            seen = ~np.isnan(values).all(axis=0)
            text = rf"{symbol}, $\omega_0={omega:g}$"
            axis.plot(times[late][seen], np.nanmedian(values[:, seen], axis=0), line, color=color, label=text)
            if line == "-":
                low, high = np.nanquantile(values[:, seen], [0.1, 0.9], axis=0)
                axis.fill_between(times[late][seen], low, high, color=color, alpha=0.12, linewidth=0)
        expected = data["predicted"][row][kept][:, late]
        seen = np.isfinite(expected).all(axis=0)
        axes[0].plot(
            times[late][seen], np.median(expected[:, seen], axis=0), "--", color=COLORS["program"], linewidth=0.8
        )
    axes[0].plot([], [], "--", color=COLORS["program"], linewidth=0.8, label=r"$|\ln(2\hat\beta_j/\omega_0^2)|/\ln\mu$")
    axes[0].set_title(r"(a) averaged: $\lambda_{il}(t)=\phi_{il}(t)/\ln\mu(t)$", fontsize=10)
    axes[0].set_ylabel("KKT residual")
    axes[1].set_title(r"(b) instantaneous: $\lambda_{il}\propto p_{il}(t)$", fontsize=10)
    axes[1].set_ylabel("duality gap")
    axes[1].axhline(1e-5, color=COLORS["faint"], linewidth=0.8)
    for axis in axes[:2]:
        axis.set_yscale("log")
    averaged, now = data["averaged"][0], data["instantaneous"][0]
    for j in range(averaged.shape[1]):
        label = ("averaged", "instantaneous") if j == 0 else (None, None)
        axes[2].plot(times[late], averaged[late, j], color=COLORS["factored"], linewidth=1.0, label=label[0])
        axes[2].plot(times[late], now[late, j], "--", color=COLORS["combined"], linewidth=1.0, label=label[1])
    for level in (-1.0, 1.0):
        axes[2].axhline(level, color=COLORS["faint"], linewidth=0.8)
    axes[2].set_ylim(-3.0, 3.0)
    axes[2].set_ylabel(r"$(B\lambda)_j$")
    axes[2].set_title(rf"(c) one instance, $\omega_0={data['omegas'][0]:g}$", fontsize=10)
    _finish(axes)
    figure.suptitle(
        "median (bands: 10% to 90%) over the instances inside the hypotheses of Theorem 4.1, of "
        f"{data['inside'].shape[1]} for each start",
        fontsize=9,
    )
    return figure


def draw_rates(data: dict[str, np.ndarray]) -> Any:
    r"""How fast the weights' own gap falls, against the slack 1 − κ of the certified dual.

    **Arguments:** `data` with `log_times` `(m,)`, `inside` `(b,)`, `kappa` `(b,)`, `exponent` `(b,)`, `weights_gap`
    `(b, m)`, `waiting` `(b,)`: whether a constraint of the limit is not active yet.
    """
    figure, axes = new_figure(2, width=9.0)
    kept, late = data["inside"], data["log_times"] >= 10.0
    slack = 1.0 - data["kappa"]
    for row in np.flatnonzero(kept):
        shade = 0.15 + 0.7 * min(max(slack[row], 0.0), 1.0)
        color = (0.9 * (1 - shade), 0.35, 0.15 + 0.75 * shade)
        axes[0].plot(data["log_times"][late], data["weights_gap"][row, late], color=color, linewidth=0.8)
    axes[0].set_yscale("log")
    axes[0].set_xscale("log")
    axes[0].set_xlabel(r"$\log t$")
    axes[0].set_ylabel(r"$\|\beta\|_1/(\mu\,\mathrm{opt})-1$")
    axes[0].set_title(r"(a) red: little slack $1-\kappa$, blue: much", fontsize=10)
    for waiting, filling, label in ((False, "full", None), (True, "none", "waits for a constraint")):
        some = kept & (data["waiting"] == waiting)
        axes[1].plot(
            slack[some], data["exponent"][some], "o", color=COLORS["diagonal"], markersize=3.5, fillstyle=filling,
            label=label if some.any() else None,
        )  # fmt: skip
    axes[1].plot([0, 1], [0, 1], "--", color=COLORS["program"], linewidth=0.9, label=r"exponent $=1-\kappa$")
    axes[1].set_xlabel(r"$1-\kappa$, from the certified dual")
    axes[1].set_ylabel(r"observed exponent of $(\log t)^{-\cdot}$")
    axes[1].set_title(f"(b) {int(kept.sum())} of {len(kept)} instances", fontsize=10)
    axes[1].legend(frameon=False, fontsize=8)
    return figure


def _finish(axes: Any) -> None:
    for axis in axes:
        axis.set_xscale("log")
        axis.set_xlabel(r"$\log t$")
        axis.legend(frameon=False, fontsize=7)

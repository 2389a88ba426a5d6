"""Figure 7: W is biased to the Frobenius-norm program, (K, Q) to the nuclear-norm program."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxflow._core import Outcome, SelectionStatus
from jaxflow.papers.compiling import compile_together
from jaxflow.papers.registry import AbstractFigure, Data, register_figure
from jaxflow.papers.tarzanagh2023.convergence_claims import claims_of
from jaxflow.papers.tarzanagh2023.paths import Size, descent_path, flow_path, reference
from jaxflow.plots import COLORS, SYMBOLS, new_figure
from jaxflow.report import Claim

# Each parametrisation with the norm whose program it is biased to.
OWN_NORM = {"combined": "frobenius", "factored": "nuclear"}

BATCH = 10

SIZES = {
    # W to log t = 1e6, where 1 − corr, which falls like 1/(log t)², is past ten digits.
    "quick": Size(trials=8, reach=1e3, fast=True),
    "paper": Size(trials=100, reach=3e3),
    "large": Size(trials=1000, reach=1e4),
}


@register_figure(
    "tarzanagh2023",
    "fig7",
    title="Local convergence of W and (K, Q) to their max-margin programs",
    run_times={
        "quick": "8 instances, W to log t = 1e6, (K, Q) to 1e3, about a minute",
        "paper": "100 instances, W to log t = 1e6, (K, Q) to 3e3, five minutes",
        "large": "1,000 instances, W to log t = 1e6, (K, Q) to 1e4, about an hour on two cores",
    },
)
class Figure7(AbstractFigure):
    r"""Figure 7 of Tarzanagh et al. (2023): n = 6, T = 8, d = 10, everything uniform on the unit sphere.

    (a) the largest softmax entry, averaged over the sequences; (b) and (c) the correlation of the combined
    weights with the solutions of (Att-SVM) and (Att-SVM$_\star$) of the selected tokens. The flow is drawn
    against log t; the published protocol (normalised descent, η = 0.1, 2,000 steps) stands beside it.
    """

    def compute(self, scale: str, seed: int, say: Callable[[str], None]) -> Data:
        return compute(SIZES[scale], seed, say)

    def draw(self, data: Data) -> Any:
        return draw_convergence(data)

    def claims(self, data: Data) -> tuple[list[Claim], list[str]]:
        return claims_of(data)


def compute(size: Size, seed: int, say: Callable[[str], None]) -> Data:
    """All numbers of the figure; `trials` instances are the first axis of every array."""
    keys = jax.random.split(jax.random.fold_in(jax.random.key(seed), 7), size.trials)
    data: Data = {"n": np.asarray(size.n), "T": np.asarray(size.T), "d": np.asarray(size.d)}
    run = _compile(size, keys, say)
    for kind, own in OWN_NORM.items():
        grid = np.geomspace(1.0, size.until(kind), size.grid)
        data[f"{kind}_log_time"] = grid
        say(f"{kind}: gradient flow of {size.trials} instances to log t = {size.until(kind):.0e}")
        flow = _to_numpy(run[f"flow {kind}"](keys))
        say(f"{kind}: {size.steps} steps of normalised descent, and the programs of the selected tokens")
        steps = _to_numpy(run[f"descent {kind}"](keys))
        selection = jnp.asarray(flow["selection"])
        programs = _to_numpy({**run["frobenius"](keys, selection), **run["nuclear"](keys, selection)})
        outcome = outcomes(flow, programs, own)
        kept = np.isin(outcome, [Outcome.globally_optimal, Outcome.locally_optimal, Outcome.not_locally_optimal])
        data |= {f"{kind}_outcome": outcome.astype(np.uint8), f"{kind}_direction": kept}
        data |= {f"{kind}_{name}": value for name, value in programs.items()}
        weights = flow["weights"]
        for norm in ("frobenius", "nuclear"):
            target, optimum = programs[f"{norm}_solution"], programs[f"{norm}_optimum"]
            distance = decorrelation(weights, target)
            data[f"{kind}_{norm}"] = on_grid(grid, flow["log_time"], distance)
            data[f"{kind}_{norm}_excess"] = on_grid(
                grid, flow["log_time"], excess(norm, weights, flow["margin"], optimum)
            )
            data[f"{kind}_descent_{norm}"] = decorrelation(steps["weights"], target)
        data[f"{kind}_attention"] = on_grid(grid, flow["log_time"], flow["attention"])
        data[f"{kind}_attention_last"] = flow["smallest"]
        data[f"{kind}_descent_attention"] = steps["attention"]
        data[f"{kind}_descent_log_time"] = steps["log_time"]
        data[f"{kind}_descent_agrees"] = np.all(steps["selection"] == flow["selection"], axis=(1, 2))
        data[f"{kind}_last_log_time"] = flow["log_time"][:, -1]
    return data


def _compile(size: Size, keys: Any, say: Callable[[str], None]) -> dict[str, Callable[..., Any]]:
    jobs: dict[str, Any] = {}
    for kind in OWN_NORM:
        jobs[f"flow {kind}"] = (partial(_in_batches, partial(flow_path, kind, size)), (keys,))
        jobs[f"descent {kind}"] = (jax.vmap(partial(descent_path, kind, size)), (keys,))
    selections = jax.ShapeDtypeStruct((size.trials, size.n, size.T), bool)
    for norm in ("nuclear", "frobenius"):
        jobs[norm] = (jax.vmap(partial(reference, norm, size)), (keys, selections))
    say(f"compiling {len(jobs)} programs (kept for the next run)")
    return dict(compile_together(jobs, fast=size.fast))


def _in_batches(function: Callable[..., Any], keys: Any) -> Any:
    """As `jax.vmap`, ten at a time: a batch takes as long as its slowest member."""
    return jax.vmap(function)(keys) if len(keys) <= BATCH else jax.lax.map(function, keys, batch_size=BATCH)


def _to_numpy(tree: dict[str, Any]) -> Data:
    return {name: np.asarray(value) for name, value in tree.items()}


def outcomes(flow: Data, programs: Data, own: str) -> np.ndarray:
    """One `Outcome` for each instance, of the program in the parametrisation's own norm; later lines prevail."""
    status, infeasible = programs[f"{own}_status"], programs["frobenius_infeasible"]
    solved = programs["frobenius_solved"] & programs["nuclear_solved"]
    outcome = np.full(len(status), int(Outcome.undecided))
    for found, meaning in (
        (SelectionStatus.global_, Outcome.globally_optimal),
        (SelectionStatus.local, Outcome.locally_optimal),
        (SelectionStatus.not_local, Outcome.not_locally_optimal),
        (SelectionStatus.ambiguous, Outcome.ambiguous),
    ):
        outcome[flow["settled"] & (status == found)] = meaning
    outcome[flow["settled"] & ~solved] = Outcome.failed
    outcome[flow["settled"] & infeasible] = Outcome.infeasible_program
    outcome[flow["spent"]] = Outcome.undecided
    outcome[flow["stationary"]] = Outcome.finite_stationary_point
    outcome[~flow["good"] & ~flow["spent"]] = Outcome.failed
    return outcome


def decorrelation(weights: np.ndarray, target: np.ndarray) -> np.ndarray:
    r"""$1-\langle W,V\rangle/(\|W\|\|V\|)=\frac12\|W/\|W\|-V/\|V\|\|^2$, which resolves distances below 1e-16."""
    a = _unit(weights)
    b = _unit(target)[:, None]
    return 0.5 * np.sum((a - b) ** 2, axis=(-2, -1))


def excess(norm: str, weights: np.ndarray, margin: np.ndarray, optimum: np.ndarray) -> np.ndarray:
    r"""$N(W)/(\mu\,\mathrm{opt})-1$, which does not care whether the program's solution is unique.

    +inf before every selected token leads, and where the program has no solution.
    """
    size = np.linalg.norm(weights, ord="nuc" if norm == "nuclear" else "fro", axis=(-2, -1))
    scale = margin * optimum[:, None]
    usable = (margin > 0) & np.isfinite(scale)
    return np.where(usable, size / np.where(usable, scale, 1.0) - 1.0, np.inf)


def on_grid(grid: np.ndarray, log_time: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Each row, known at its own log times, at those of the grid: linear between logarithms."""
    rows = []
    for times, row in zip(log_time, values, strict=True):
        later = np.maximum.accumulate(times)
        # The bounds stand for zero and infinity, of which no interpolation is possible.
        rows.append(np.exp(np.interp(grid, later, np.log(np.clip(row, 1e-300, 1e300)))))
    return np.stack(rows)


def _unit(matrix: np.ndarray) -> np.ndarray:
    size = np.linalg.norm(matrix, axis=(-2, -1), keepdims=True)
    return matrix / np.where(size > 0, size, 1.0)


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

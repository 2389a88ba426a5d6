"""What figures 2, 5 and 6 share: studies of random instances, every outcome kept, and percentages of them."""

import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Key

from jaxflow._core import Outcome
from jaxflow.data import score_gap_acceptance
from jaxflow.study import AbstractExperiment, Study, TokenSelection, wilson
from jaxflow.study.experiment import import_named
from jaxflow.study.progress import outcomes_in_words

# "we choose γ = 0.1 in our experiments", of figures 2, 5 and 6 (Appendix F).
SCORE_GAP = 0.1

# The paper's symbols.
SYMBOLS = {"W": "$W$", "KQ": "$(K,Q)$"}
NAMES = {"W": "W", "KQ": "(K, Q)"}

GLOBAL = (Outcome.globally_optimal,)
LOCAL = (Outcome.globally_optimal, Outcome.locally_optimal)

# Results of a study that are saved with a figure: what it draws, and what vouches for it.
KEPT = ("outcome", "program_gap", "num_steps", "rounds", "optimal_program", "mean_margin", "largest_margin")

# Draws from which the acceptance rate of the score gap is told: to half a percent.
ACCEPTANCE_DRAWS = 10_000

# Trials computed together. 500 are two full blocks.
BLOCK = 250

# A line of progress for each d says too little where one d takes this many instances.
MANY = 5000

Data = dict[str, np.ndarray]


@dataclass(frozen=True)
class Size:
    """How much is computed: `trials` instances for each d, each of `settings` (n, T) and each parametrisation."""

    trials: int
    d: tuple[int, ...]
    settings: tuple[tuple[int, int], ...] = ((5, 5),)
    parametrizations: tuple[str, ...] = ("W", "KQ")


def run_studies(experiment: Any, size: Size, seed: int, say: Callable[[str], None]) -> Data:
    """Every instance of a figure. The keys are those of `TokenSelection`: figures share their instances.

    **Returns:** `n`, `T` `(s,)`; `d` `(k,)`; `parametrization` `(p,)`; `accepted` `(s, k)`, the share of sequences
    that have the score gap; and for each result that is kept an array `(s, p, k, trials)`, whose last axis is the
    number of the trial.
    """
    cells: dict[str, list[np.ndarray]] = {}
    sizes = [(n, T, d) for n, T in size.settings for d in size.d]
    for n, T, d in sizes:
        results = _run(experiment, size, seed, (n, T, d))
        for name, values in results.items():
            cells.setdefault(name, []).append(values)
        for p, outcome in zip(size.parametrizations, results["outcome"], strict=True):
            counts = np.bincount(outcome, minlength=len(Outcome))
            say(f"n={n}, T={T}, d={d}, {NAMES[p]}: {outcomes_in_words(counts)}")
    grid = (len(size.settings), len(size.d))
    found: Data = {
        "n": np.array([n for n, _ in size.settings]),
        "T": np.array([T for _, T in size.settings]),
        "d": np.array(size.d),
        "parametrization": np.array(size.parametrizations),
        "score_gap": np.asarray(SCORE_GAP),
        "seed": np.asarray(seed),
    }
    key = jax.random.key(seed)
    accepted = [score_gap_acceptance(key, T, d, SCORE_GAP, ACCEPTANCE_DRAWS) for _, T in size.settings for d in size.d]
    found["accepted"] = np.asarray(accepted).reshape(grid)
    for name, values in cells.items():
        stacked = np.stack(values)
        found[name] = stacked.reshape(*grid, *stacked.shape[1:]).swapaxes(1, 2)
    return found


def _run(experiment: Any, size: Size, seed: int, cell: tuple[int, int, int]) -> Data:
    """One study: both parametrisations at one n, T and d. Results `(p, trials)`."""
    n, T, d = cell
    study = Study(
        experiment,
        # One value each: the selected tokens (n,) have one shape a study, and what is done is told as it is done.
        {"n": [n], "T": [T], "d": [d], "score_gap": [SCORE_GAP]},
        {"parametrization": list(size.parametrizations)},
        trials=size.trials,
        seed=seed,
        block=min(size.trials, BLOCK),
    )
    several = jax.local_device_count() > 1
    with tempfile.TemporaryDirectory(prefix="jaxflow-") as folder:
        results = study.run(
            Path(folder) / "study.zarr",
            executor="devices" if several else None,
            progress=size.trials >= MANY and sys.stderr.isatty(),
        )
        only = results.isel(n=0, T=0, d=0, score_gap=0)
        return {name: only[name].transpose("parametrization", "trial").values for name in KEPT if name in only}


class SelectionAnd(AbstractExperiment):
    """`TokenSelection` and more of the same instances: a second pass over the same keys, so that the outcomes are those
    of `TokenSelection` alone.

    `more` is `module:name` of a function of `more_settings` and the factors; it gives a function of the keys of a block
    `(b,)`, with further results by name.
    """

    more: str = eqx.field(static=True)
    more_settings: tuple[int, ...] = eqx.field(static=True, default=())
    selection: TokenSelection = eqx.field(default_factory=TokenSelection)
    method: Any = None

    def setup(self, key: Key[Array, ""], **factors: Any) -> tuple[Any, Any]:
        return self.selection.setup(key, **factors)

    def summarize(self, limit: Any) -> dict[str, Any]:
        return self.selection.summarize(limit)

    def replay(self, key: Key[Array, ""], **factors: Any) -> Any:
        return self.selection.replay(key, **factors)

    def name(self) -> str:
        return self.selection.name()

    def signature(self) -> Any:
        return self.selection.signature()

    def definitions(self) -> dict[str, str]:
        return self.selection.definitions()

    def block_function(self, factors: dict[str, Any], trial_width: int) -> Callable[[Any], dict[str, Any]]:
        select = self.selection.block_function(factors, trial_width)
        more = import_named(self.more)(*self.more_settings, factors)
        return lambda keys: {**select(keys), **more(keys)}


def tally(data: Data, outcomes: tuple[Outcome, ...]) -> tuple[np.ndarray, np.ndarray]:
    """How many instances ended in one of `outcomes`, and how many ran: both `(s, p, k)`."""
    outcome = data["outcome"]
    codes = [int(code) for code in outcomes]
    return np.isin(outcome, codes).sum(-1), (outcome != Outcome.not_run).sum(-1)


def interval(count: Any, total: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Percentage with the ends of Wilson's 95% interval; NaN, 0 and 100 of nothing."""
    count, total = np.asarray(count), np.asarray(total)
    low, high = wilson(count, total)
    share = np.where(total > 0, count / np.maximum(total, 1), np.nan)
    return np.asarray(100 * share), np.asarray(100 * low), np.asarray(100 * high)


def convergence_bars(data: Data) -> dict[str, Any]:
    """Red, blue and teal bars of the first setting, for `jaxflow.plots.draw_percentage_bars`."""
    ran = tally(data, GLOBAL)[1][0]
    reached = interval(tally(data, GLOBAL)[0][0], ran)[0]
    local = interval(tally(data, LOCAL)[0][0], ran)[0]
    panels = [SYMBOLS[str(p)] for p in data["parametrization"]]
    letters = [f"({letter}) " for letter in "abcdef"] if len(panels) > 1 else [""]
    return {
        "x": data["d"],
        "x_label": "$d$",
        "panels": [letter + title for letter, title in zip(letters, panels, strict=False)],
        "names": ["global", "local (with global)", _complement(data)],
        "colors": ["#D55E00", "#0072B2", "#009E9E"],
        "percentage": np.stack([reached, local - reached, 100 - local], axis=-1),
        "denominator": ran,
    }


def _complement(data: Data) -> str:
    """What the teal bars are made of, by number."""
    rest = np.bincount(data["outcome"][0].ravel(), minlength=len(Outcome))
    parts = [
        f"{code.name.replace('_', ' ')}: {rest[code]:,}"
        for code in Outcome
        if rest[code] and code not in (*LOCAL, Outcome.not_run)
    ]
    return f"not local ({', '.join(parts) or 'none'})"

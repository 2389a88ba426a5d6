"""`reproduce tarzanagh2023 factored`: §9's open question of the (K, Q) parametrisation, counted."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxflow._core import Outcome
from jaxflow.papers.registry import AbstractFigure, Data, register_figure
from jaxflow.papers.tarzanagh2023.percent import SCORE_GAP, interval
from jaxflow.plots import draw_percentage_bars
from jaxflow.report import Claim, Evidence, count_evidence
from jaxflow.study import Study, TokenSelection


class Size(NamedTuple):
    """`trials` instances for each pair (d, m): dimension of tokens, columns of K and Q; `block` at a time."""

    trials: int
    pairs: tuple[tuple[int, int], ...]
    block: int = 250


FULL = ((3, 3), (5, 5), (8, 8))
SIZES = {
    "quick": Size(24, ((5, 5), (5, 2)), 24),
    "paper": Size(10_000, FULL),
    "large": Size(1_000_000, (*FULL, (3, 2), (5, 2))),
}
KEPT = ("outcome", "excess", "flow_gap", "program_gap", "num_steps", "rounds")
GAP = TokenSelection().gap
# The two numbers are sums of a few hundred rounded products of order one.
ROUNDING = 1e-12
# Exceptions that a note names one by one.
LISTED = 8

GROUPS = {
    "minimises the nuclear norm": (
        Outcome.globally_optimal,
        Outcome.locally_optimal,
        Outcome.not_locally_optimal,
        Outcome.ambiguous,
    ),
    "another direction": (Outcome.prediction_contradicted,),
    "finite stationary point": (Outcome.finite_stationary_point,),
    "open": (Outcome.undecided, Outcome.infeasible_program, Outcome.failed),
}
NAMES = tuple(GROUPS)
COLORS = ("#0072B2", "#D55E00", "#999999", "#F0E442")


@register_figure(
    "tarzanagh2023",
    "factored",
    title="Section 9's open question of (K, Q): does the flow's own limit minimise the nuclear norm?",
    run_times={
        "quick": "24 instances for 2 pairs (d, m), some minutes from an empty cache",
        "paper": "10,000 instances for 3 pairs (d, m), half an hour on two cores with other work beside",
        "large": "a million instances for 5 pairs (d, m), days",
    },
)
class Factored(AbstractFigure):
    r"""§9 of Tarzanagh et al. (2023), "Gradient descent on (K, Q) parameterization": the implicit bias of the flow.

    Theorem 2 says where the *regularisation path* of $W=KQ^\top$ goes: to a solution of (Att-SVM⋆), least nuclear
    norm. Whether the flow goes there is left open. n = T = 5, everything uniform on the unit sphere, score gap 0.1, K
    and Q normal of the published size, with m columns. Each flow is followed until its own multipliers certify its
    direction; the excess is the nuclear norm of that direction at margin one, over the least one for the tokens that
    it selected, which a solver finds from the data alone, less one. For m < d the program is that of rank m, whose
    lower bound is the convex one: where it is not tight nothing is certified, and the instance stays open with its
    excess over that bound. Sizes are ours.
    """

    def compute(self, scale: str, seed: int, say: Callable[[str], None]) -> Data:
        return compute(SIZES[scale], seed, say)

    def draw(self, data: Data) -> Any:
        counts = grouped(data)
        total = counts.sum(axis=-1)
        return draw_percentage_bars(
            {
                "x": np.array([f"{d}, {m}" for d, m in zip(data["d"], data["m"], strict=True)]),
                "x_label": "$d$, $m$",
                "panels": ["limits of $(K,Q)$, $n=T=5$"],
                "names": list(NAMES),
                "colors": list(COLORS),
                "percentage": (100.0 * counts / np.maximum(total, 1)[:, None])[None],
                "denominator": total[None],
            }
        )

    def claims(self, data: Data) -> tuple[list[Claim], list[str]]:
        full = data["m"] >= data["d"]
        claims = [_open_question(data, full, "m = d")]
        if (~full).any():
            claims.append(_open_question(data, ~full, "m < d"))
        return [*claims, _confirmed(data)], _notes(data)


def compute(size: Size, seed: int, say: Callable[[str], None]) -> Data:
    """Results `(pairs, trials)` for each name in `KEPT`; trial k of a pair is `study_of(...).replay(trial=k, ...)`."""
    found: dict[str, list[np.ndarray]] = {name: [] for name in KEPT}
    for d, m in size.pairs:
        study = study_of(size, seed, d, m)
        with tempfile.TemporaryDirectory(prefix="jaxflow-") as folder:
            results = study.run(Path(folder) / "study.zarr", progress=False)
            for name in KEPT:
                found[name].append(results[name].values.reshape(size.trials))
        counts = grouped({"outcome": found["outcome"][-1][None]})[0]
        say(f"d={d}, m={m}: " + ", ".join(f"{n} {name}" for n, name in zip(counts, NAMES, strict=True) if n))
    return {
        "d": np.array([d for d, _ in size.pairs]),
        "m": np.array([m for _, m in size.pairs]),
        "seed": np.asarray(seed),
        **{name: np.stack(values) for name, values in found.items()},
    }


def study_of(size: Size, seed: int, d: int, m: int) -> Study:
    """The study of one pair. (d, d) and (d, m) have the same data."""
    return Study(
        TokenSelection(),
        {"n": [5], "T": [5], "d": [d], "score_gap": [SCORE_GAP]},
        {"parametrization": ["KQ"], "m": [m]},
        trials=size.trials,
        seed=seed,
        block=size.block,
    )


def grouped(data: Data) -> np.ndarray:
    """How many instances of each pair are in each of `GROUPS`: `(pairs, groups)`."""
    return np.stack(
        [np.isin(data["outcome"], [int(code) for code in codes]).sum(axis=-1) for codes in GROUPS.values()], axis=-1
    )


def _open_question(data: Data, rows: np.ndarray, which: str) -> Claim:
    counts = grouped(data)[rows]
    met, against, points, still_open = counts.sum(axis=0)
    directions = met + against
    parts = []
    for d, m, (yes, no, _, left) in zip(data["d"][rows], data["m"][rows], counts, strict=True):
        share, low, high = interval(yes, yes + no)
        parts.append(f"d={d}, m={m}: {yes:,} of {yes + no:,} ({share:.2f}% [{low:.2f}, {high:.2f}]), open {left:,}")
    largest = _largest(data["excess"][rows], data["outcome"][rows], NAMES[1])
    above = data["excess"][rows][np.isin(data["outcome"][rows], [int(code) for code in GROUPS[NAMES[3]]])]
    above = above[np.isfinite(above)]
    text = f"{'; '.join(parts)}. {points:,} of the flows end at finite stationary points"
    if against:
        text += f"; the largest excess of another direction is {largest:.2g}"
    if len(above):
        text += f"; open ones stand {np.median(above):.2g} above the convex bound in the median"
    # The excess is that over the solver's own solution, computed without the flow.
    means = "the program's solution, found from the data alone" if against and largest > ROUNDING else ""
    evidence = Evidence(int(directions + still_open), int(against), int(still_open), checked_by=means)
    return Claim(
        f"Section 9, (K, Q) parameterization, {which}",
        "We find it remarkable that regularization path analysis was able to predict the implicit bias of gradient "
        "descent (read here as: the flow's own limit minimises the nuclear norm globally, for the tokens it selects).",
        text,
        evidence,
        {"directions": int(directions), "minimise": int(met), "others": int(against), "open": int(still_open)},
    )


def _confirmed(data: Data) -> Claim:
    certified = np.isin(data["outcome"], [int(code) for code in GROUPS[NAMES[0]]])
    claimed = np.isfinite(data["flow_gap"]) & (data["flow_gap"] <= GAP)
    # The flow's dual bounds the optimum: what it claims is at least its true excess, by a solver that never saw it.
    broken = claimed & ~(data["excess"] <= data["flow_gap"] + data["program_gap"] + ROUNDING)
    gaps = data["flow_gap"][certified]
    text = (
        f"{int(claimed.sum()):,} flows claim a gap of at most {GAP:.0e}; the excess over the program's own solution is "
        f"larger for {int(broken.sum()):,}. Of {int(certified.sum()):,} certified directions "
        f"{int((gaps <= GAP).sum()):,} have that gap by their own multipliers, the largest is {_max(gaps):.1e}; "
        f"largest gap of a program {_max(data['program_gap'][certified]):.1e}"
    )
    return Claim(
        "Certificates of this library",
        "A gap that a flow claims is confirmed by a program that is solved from the data alone.",
        text,
        count_evidence(~broken[claimed]),
        {"claimed": int(claimed.sum()), "unconfirmed": int(broken.sum())},
    )


def _notes(data: Data) -> list[str]:
    trials = data["outcome"].shape[1]
    notes = [
        f"{trials:,} instances for each pair, none dropped; replay: `jaxflow.papers.tarzanagh2023.factored.study_of("
        f"SIZES[scale], {int(data['seed'])}, d, m).replay(trial=k)`."
    ]
    for name in (NAMES[1], NAMES[3]):
        inside = np.isin(data["outcome"], [int(code) for code in GROUPS[name]])
        for d, m, row in zip(data["d"], data["m"], inside, strict=True):
            where = np.flatnonzero(row)
            if len(where):
                more = f" and {len(where) - LISTED:,} more" if len(where) > LISTED else ""
                notes.append(f"{name.capitalize()}, d={d}, m={m}: trials {', '.join(map(str, where[:LISTED]))}{more}.")
    rounds = (data["rounds"] > 1).sum()
    notes.append(f"{rounds:,} flows left a selection again; steps: median {np.median(data['num_steps']):.0f}.")
    return notes


def _largest(values: np.ndarray, outcome: np.ndarray, group: str) -> float:
    return _max(values[np.isin(outcome, [int(code) for code in GROUPS[group]])])


def _max(values: np.ndarray) -> float:
    return float(values.max()) if values.size else float("nan")

"""What figure 1 says, over all instances and not only the one that is drawn."""

from typing import Any, NamedTuple, TypeVar

import numpy as np

from jaxflow._core import SelectionStatus
from jaxflow.report import Claim, common_rate, count_evidence, fit

Data = dict[str, np.ndarray]

# Which norm's program belongs to which parametrisation.
KINDS = {"combined": "frobenius", "factored": "nuclear"}
WAYS = ("flow", "descent")
SETTINGS = {
    "described": "T = 3, cross-attention",
    "published": "T = 5, self-attention",
}
NAMES = {"combined": ("W", "(Att-SVM)"), "factored": ("(K, Q)", "(Att-SVM*)")}

# 1 - corr of a direction that has arrived as far as a finite length lets it.
ALIGNED = 0.05
# 1 - corr of directions that agree to rounding falls no further.
FLOOR = 1e-14
# W(t) is its length times W^mm plus a bounded rest: 1 - corr falls like the length to the power -2. The rest still
# moves by some tenths over the last tenfold of lengths.
POWER = {"combined": 2.0, "factored": None}
BIAS = 0.1
LOCALLY_OPTIMAL = (SelectionStatus.global_.value, SelectionStatus.local.value)


class Cloud(NamedTuple):
    """The instances of a setting: `tokens` `(trial, 2, T, 2)`, `visible` and `optimal` `(trial, 2, T)`, `queries`."""

    tokens: Any
    visible: Any
    optimal: Any
    queries: Any


class Runs(NamedTuple):
    """All instances of a setting, trained one way; the first axis of every array is the instance.

    - `path` `(trial, point, 2, 2)`: $Wz_i$ at the saved points, `reached` or not, of arc length `log_length`.
    - `distances` `(trial, point)`: 1 − corr with the own program's solution, NaN where it has none; `own`, `other`:
      at the end, with the program of the own and of the other norm.
    - `frobenius`, `nuclear` `(trial, 2, 2)`: $W^{mm}z_i$ of both programs for the `selection` `(trial, 2, T)`.
    - `settled`: every sequence's attention is on one token; `stationary`: stopped where the gradient vanishes;
      `status`: Definition 2 (`SelectionStatus`); `log_time`.
    """

    path: Any
    reached: Any
    log_length: Any
    distances: Any
    own: Any
    other: Any
    frobenius: Any
    nuclear: Any
    selection: Any
    settled: Any
    stationary: Any
    status: Any
    log_time: Any

    @property
    def decided(self) -> np.ndarray:
        """Settled on locally optimal tokens, with both programs solved."""
        solved = ~np.isnan(self.own) & ~np.isnan(self.other)
        return self.settled & solved & np.isin(self.status, LOCALLY_OPTIMAL)

    @property
    def asked(self) -> np.ndarray:
        """Whom the sentences are about: not those at rest, nor those on tokens that are not locally optimal."""
        return ~self.stationary & (~self.settled | np.isin(self.status, LOCALLY_OPTIMAL))


Record = TypeVar("Record", Cloud, Runs)


def record(name: str, values: Cloud | Runs) -> Data:
    """The fields of a record as arrays `<name>/<field>`, to be saved."""
    return {f"{name}/{field}": np.asarray(value) for field, value in values._asdict().items()}


def records(kind: type[Record], data: Data, name: str) -> Record:
    """What `record` has saved under this name."""
    return kind(*(data[f"{name}/{field}"] for field in kind._fields))


def claims_of(data: Data) -> tuple[list[Claim], list[str]]:
    """Claims with verdicts in both settings, for W and (K, Q), by flow and descent; notes with every denominator."""
    claims, notes = [], []
    for setting in SETTINGS:
        cloud = records(Cloud, data, setting)
        for kind in KINDS:
            for way in WAYS:
                runs = records(Runs, data, f"{setting}_{kind}_{way}")
                where = f"{SETTINGS[setting]}, {_name(way)}"
                claims += [_towards(runs, kind, where), _incremental(runs, kind, where)]
                notes.append(_note(runs, cloud, kind, where))
    return claims, notes


def _name(way: str) -> str:
    return "the flow" if way == "flow" else "the published descent"


def exponents(runs: Runs) -> np.ndarray:
    """By instance the power of 1/length by which 1 − corr falls over the last tenfold of lengths; NaN at rounding."""
    found = np.full(len(runs.own), np.nan)
    for i in range(len(found)):
        last = runs.reached[i] & (runs.log_length[i] >= runs.log_length[i][runs.reached[i]].max() - np.log(10.0))
        above = last & (runs.distances[i] > FLOOR)
        if above.sum() >= 3:
            found[i] = -fit(runs.log_length[i][above], np.log(runs.distances[i][above]))[0]
    return found


def _towards(runs: Runs, kind: str, where: str) -> Claim:
    symbol, program = NAMES[kind]
    kept, asked = runs.decided, runs.asked
    near, far = runs.own[kept], runs.other[kept]
    # Both programs may have one solution; then neither is nearer. Rounding of 1 - corr is 1e-15.
    different = np.abs(far - near) > 1e-9
    nearer = int(np.sum((near < far)[different]))
    # None where there is no run: JSON has no NaN.
    found = {"median": float(np.median(near)), "largest": float(near.max())} if len(near) else {}
    shown = f"median {found['median']:.1e}, largest {found['largest']:.1e}" if found else "of nothing"
    # Those that are not there may be late, and what has not settled may do so: at a finite length both are open.
    good = kept & (runs.own <= ALIGNED)
    law = "1 − corr against the arc length, over its last tenfold"
    rate = common_rate(exponents(runs)[kept], POWER[kind], bias=BIAS if POWER[kind] else 0.0, law=law)
    return Claim(
        "Figure 1, caption",
        f"Arrows illustrating GD trajectories converging towards these SVM directions: {symbol}, {program} ({where}).",
        f"1 - corr {shown} on {len(near)} runs, at most {ALIGNED} on "
        f"{int(good.sum())}; nearer to it than to the other program on {nearer} of {int(different.sum())} where they "
        "differ",
        count_evidence(good[asked], decided=good[asked], limit=True, rate=rate),
        {**found, "runs": len(near), "nearer": nearer, "different": int(different.sum())},
    )


def _incremental(runs: Runs, kind: str, where: str) -> Claim:
    symbol, program = NAMES[kind]
    asked, kept = runs.asked, runs.decided
    steps = np.array([_by_tenfolds(runs, i) for i in range(len(kept))])
    falls = np.all((np.diff(steps, axis=1) < 0) | (steps[:, 1:] <= FLOOR), axis=1)
    medians = ", ".join(f"{value:.1e}" for value in np.median(steps[kept], axis=0)) if kept.any() else "none"
    return Claim(
        "§3",
        f"Figure 1 provides a clear depiction of the incremental alignment with the respective attention SVM solution "
        f"as k increases: {symbol}, {program} ({where}).",
        f"1 - corr falls over each of the last two tenfolds of the arc length on {int((falls & kept).sum())} of "
        f"{int(kept.sum())} runs; medians {medians}",
        count_evidence(falls[asked], decided=kept[asked]),
        {"falls": int((falls & kept).sum()), "runs": int(kept.sum())},
    )


def _by_tenfolds(runs: Runs, i: int) -> np.ndarray:
    """1 − corr at a hundredth, at a tenth and at all of the length of run i."""
    reached = np.flatnonzero(runs.reached[i])
    lengths = runs.log_length[i][reached]
    ends = lengths.max() - np.log([100.0, 10.0, 1.0])
    return runs.distances[i][reached[[int(np.argmin(np.abs(lengths - end))) for end in ends]]]


def _note(runs: Runs, cloud: Cloud, kind: str, where: str) -> str:
    settled = runs.settled
    best = (runs.selection == cloud.optimal).all(axis=(1, 2)) & settled
    times = runs.log_time[settled]
    median = float(np.median(times)) if len(times) else np.nan
    return (
        f"{NAMES[kind][0]} ({where}): {len(settled)} instances, {int(settled.sum())} settled on one token a sequence, "
        f"{int(best.sum())} of these on the optimal ones, {int(runs.decided.sum())} on locally optimal ones; "
        f"{int(runs.stationary.sum())} stopped at a finite stationary point; median log t = {median:.3g}."
    )

"""What Tarzanagh et al. (2023) say about figures 2, 5 and 6, held against counts and their intervals."""

from typing import Any

import numpy as np

from jaxflow._core import Outcome
from jaxflow.margin import ProgramResult
from jaxflow.papers.tarzanagh2023.percent import GLOBAL, LOCAL, NAMES, Data, interval, tally
from jaxflow.report import Claim, Evidence, Rate
from jaxflow.study import DECIDED

# Margins of a program solved to a gap of 1e-12 (Frobenius) or polished to rounding (nuclear) are 1 to about
# 1e-9; what is not a support vector is further from 1 than this but in rare cases, which the notes count.
SUPPORT = 1e-6
CLOSE = 1e-4

# "declare that problem satisfies Assumption B.1, if the average margin is below 1.1" (Section 4.2).
PUBLISHED_AVERAGE = 1.1

# Trials that a note names one by one; of more it gives the number.
LISTED = 20

# Outcomes after which nothing is known of where a flow goes.
OPEN = (Outcome.undecided, Outcome.failed, Outcome.ambiguous)


def convergence_claims(data: Data, figure: str, sentence: str, approaches: str | None) -> list[Claim]:
    """The claims that figures 2 and 5 share: the trend in d, its limit, and Definition 2."""
    claims = []
    for p, name in enumerate(data["parametrization"]):
        count, total = (table[0, p] for table in tally(data, GLOBAL))
        subject = f"{NAMES[str(name)]}: global convergence"
        source = f"{figure}, caption" + (f" ({'ab'[p]})" if len(data["parametrization"]) > 1 else "")
        claims.append(rising(source, sentence, [(subject, count, total)], data["d"]))
        if approaches is not None:
            claims.append(approaching(f"Section 4.2, {figure}", approaches, [(subject, count, total)], data["d"]))
    return [*claims, locally_optimal(data, figure)]


def rising(source: str, sentence: str, series: list[tuple[str, Any, Any]], d: Any) -> Claim:
    """Whether each series rises with d.

    One does where the intervals of the smallest and the largest d are apart and none of a next larger d lies below
    that of its neighbour; where one lies below, it does not; otherwise the instances are too few to tell.
    """
    parts, found = [], []
    values: dict[str, float | int] = {}
    for subject, count, total in series:
        share, low, high = interval(count, total)
        falls = [int(d[i]) for i in range(1, len(d)) if high[i] < low[i - 1]]
        apart = len(d) > 1 and bool(low[-1] > high[0])
        found.append(_one(total, against=bool(falls) or bool(high[-1] < low[0]), good=apart))
        text = f"{subject} {_percent(count, total, 0)} at d={d[0]}, {_percent(count, total, -1)} at d={d[-1]}"
        if falls:
            text += f", with a fall beyond the intervals at d={', '.join(map(str, falls))}"
        elif not apart:
            text += " (the intervals overlap: too few instances to tell)"
        parts.append(text)
        values |= {f"{subject}, d={d[0]}": _finite(share[0]), f"{subject}, d={d[-1]}": _finite(share[-1])}
        values[f"{subject}, falls"] = len(falls)
    return Claim(source, sentence, "; ".join(parts), _together(found), values)


def approaching(source: str, sentence: str, series: list[tuple[str, Any, Any]], d: Any) -> Claim:
    """Whether each series goes to 100% as d grows.

    One is there where all instances at the largest d are; on its way where the shortfall is still falling, beyond
    the intervals, over the last doubling of d, at a rate; where it grows, it does not; otherwise too few to tell.
    """
    parts, found = [], []
    rates: list[Rate] = []
    values: dict[str, float | int] = {}
    for subject, count, total in series:
        lacking = total - count
        share, low, high = interval(lacking, total)
        # The last doubling of d, or the smallest d where there is none.
        before = max(int(np.searchsorted(d, d[-1] / 2, side="right")) - 1, 0)
        falls, grows = bool(high[-1] < low[before]), bool(low[-1] > high[before])
        text = f"{subject} {_percent(count, total, -1)} at d={d[-1]}"
        if total[-1] > 0 and lacking[-1] == 0:
            found.append(_one(total, against=False, good=True))
        else:
            found.append(_one(total, against=grows, good=falls))
            # Two shares of so many instances each: the errors of their logarithms add.
            steps = np.log(d[-1] / d[before])
            if falls:
                errors = [(1.0 - share[k] / 100.0) / max(int(lacking[k]), 1) for k in (before, -1)]
                exponent = float(np.log(share[before] / share[-1]) / steps)
                half = float(2.0 * np.sqrt(sum(errors)) / steps)
                rates.append(Rate(exponent, half, None, law=f"shortfall of {subject} against d"))
                rate = np.log(share[before] / share[-1]) / np.log(d[-1] / d[before])
                text += f", the shortfall falling like d^-{rate:.1f} from d={d[before]}"
                values[f"{subject}, exponent"] = float(rate)
            elif grows:
                text += f", less than {_percent(count, total, before)} at d={d[before]}"
            else:
                text += f", not told apart from {_percent(count, total, before)} at d={d[before]}"
        parts.append(text)
        values |= {f"{subject}, lacking": int(lacking[-1]), f"{subject}, ran": int(total[-1])}
    # The slowest of those that are on their way, if any is.
    slowest = min(rates, key=lambda rate: rate.fitted, default=None)
    lacks = any(int(total[-1] - count[-1]) > 0 or total[-1] == 0 for _, count, total in series)
    return Claim(source, sentence, "; ".join(parts), _together(found, limit=lacks, rate=slowest), values)


def locally_optimal(data: Data, figure: str) -> Claim:
    """Definition 2 against every direction that was certified; exceptions by trial.

    Points are no directions, nor is a flow that stopped at tokens which no direction selects (infeasible).
    """
    outcome = data["outcome"]
    against = outcome == Outcome.not_locally_optimal
    directions = np.isin(outcome, LOCAL) | against
    inside, exceptions = int(directions.sum()), int(against.sum())
    # What was not followed to its end may tend to any direction.
    open_ = int(np.isin(outcome, OPEN).sum())
    listed = _where(data, against)
    return Claim(
        f"Section 5.2, Definition 2, {figure}",
        "Def. 2 captures all possible convergence directions of GD.",
        f"{inside - exceptions:,} of {inside:,} certified directions select locally optimal tokens; exceptions: "
        f"{listed or 'none'}; {int((outcome != Outcome.not_run).sum()) - inside:,} instances tend to no direction",
        Evidence(inside + open_, exceptions, open_),
        {"directions": inside, "exceptions": exceptions},
    )


def assumption_counts(data: Data) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Instances with Assumption B.1 as stated, and by the published rule; and all that ran: `(s, p, k)` each.

    Without a solution there are no margins that could be 1: an infeasible program counts among the others.
    """
    solved = data["optimal_program"] == ProgramResult.optimal
    exact = solved & (data["largest_margin"] <= 1.0 + SUPPORT)
    published = solved & (data["mean_margin"] < PUBLISHED_AVERAGE)
    return exact.sum(-1), published.sum(-1), (data["outcome"] != Outcome.not_run).sum(-1)


def assumption_claims(data: Data) -> list[Claim]:
    """Assumption B.1 in figure 5: its trend, its frequency beside that of global convergence, Theorem 3."""
    exact, published, total = (table[0] for table in assumption_counts(data))
    reached = tally(data, GLOBAL)[0][0]
    names = [NAMES[str(name)] for name in data["parametrization"]]
    series = [(f"{name}: Assumption B.1", exact[p], total[p]) for p, name in enumerate(names)]
    rule = [(f"{name}: average margin below 1.1", published[p], total[p]) for p, name in enumerate(names)]
    grows = "Assumption B.1 holds with higher probability (green bars) as d grows."
    less = "Assumption B.1 occurs less frequently than global convergence."
    return [
        *(rising("Section 4.2, Figure 5", grows, [each], data["d"]) for each in series),
        *(rising("Section 4.2, Figure 5, rule of the published bars", grows, [each], data["d"]) for each in rule),
        _less_frequent("Section 5.2, Figure 5", less, series, reached, data["d"]),
        _less_frequent("Section 5.2, Figure 5, rule of the published bars", less, rule, reached, data["d"]),
        _no_stationary_point(data),
    ]


def _less_frequent(source: str, sentence: str, series: list[tuple[str, Any, Any]], reached: Any, d: Any) -> Claim:
    """Met where it is rarer than `reached` beyond the intervals for some d, and for none more frequent."""
    parts, found = [], []
    values: dict[str, float | int] = {}
    for (subject, count, total), often in zip(series, reached, strict=True):
        _, rare_low, rare_high = interval(count, total)
        _, low, high = interval(often, total)
        less, more = rare_high < low, rare_low > high
        found.append(_one(total, against=bool(more.any()), good=bool(less.any())))
        text = f"{subject} less frequent beyond the intervals at {less.sum()} of {len(d)} values of d"
        if more.any():
            at = int(np.argmax(more))
            text += (
                f", more frequent at d={', '.join(str(x) for x in d[more])} (d={d[at]}: "
                f"{_percent(count, total, at)} against {_percent(often, total, at)})"
            )
        values |= {f"{subject}, less frequent": int(less.sum()), f"{subject}, more frequent": int(more.sum())}
        parts.append(text)
    return Claim(source, sentence, "; ".join(parts), _together(found), values)


def _no_stationary_point(data: Data) -> Claim:
    """Theorem 3 on the instances of W that satisfy Assumption B.1."""
    combined = data["parametrization"] == "W"
    holds = (data["optimal_program"] == ProgramResult.optimal) & (data["largest_margin"] <= 1.0 + SUPPORT)
    holds = holds & combined[None, :, None, None] & (data["outcome"] != Outcome.not_run)
    against = holds & (data["outcome"] == Outcome.finite_stationary_point)
    inside = int(holds.sum())
    reached = int(np.sum(holds & (data["outcome"] == Outcome.globally_optimal)))
    text = (
        f"W: of {inside:,} instances with Assumption B.1, {int(against.sum())} flows end in a finite stationary point"
    )
    if against.any():
        text += f" ({_where(data, against)})"
    return Claim(
        "Theorem 3",
        "There is no W with a vanishing gradient, and the norm of W(k) goes to infinity.",
        f"{text}; {reached:,} converge globally",
        Evidence(inside, int(against.sum()), int(np.sum(holds & np.isin(data["outcome"], OPEN)))),
        {"instances": inside, "stationary": int(against.sum()), "global": reached},
    )


def harder(source: str, sentence: str, groups: list[tuple[str, list[tuple[str, Any, Any]]]], d: Any) -> Claim:
    """Whether later series of a group have fewer global convergences at equal d.

    Met where the last lies below the first beyond the intervals for some d and no later one above an earlier one for
    any.
    """
    parts, found = [], []
    values: dict[str, float | int] = {}
    for group, series in groups:
        bounds = [interval(count, total)[1:] for _, count, total in series]
        pairs = [(a, b) for a in range(len(series)) for b in range(a + 1, len(series))]
        rises = [
            f"{series[b][0]} above {series[a][0]} at d={d[at]}"
            for a, b in pairs
            for at in np.flatnonzero(bounds[b][0] > bounds[a][1])
        ]
        lower = np.asarray(bounds[-1][1] < bounds[0][0]) if len(series) > 1 else np.zeros(len(d), bool)
        found.append(_one(series[0][2], against=bool(rises), good=bool(lower.any())))
        text = f"{group}: {series[-1][0]} below {series[0][0]} beyond the intervals at {lower.sum()} of {len(d)} d"
        if lower.any():
            at = int(np.argmax(lower))
            text += f" (d={d[at]}: {_percent(*series[-1][1:], at)} against {_percent(*series[0][1:], at)})"
        parts.append(text + (f"; but {', '.join(rises)}" if rises else ""))
        values |= {f"{group}, lower": int(lower.sum()), f"{group}, higher": len(rises)}
    return Claim(source, sentence, "; ".join(parts), _together(found), values)


def notes_of(data: Data) -> list[str]:
    """Every outcome of every cell by number, of all and of the decided; what is out of the ordinary by trial."""
    notes = [
        "Intervals are Wilson's at 95%; every instance is counted. What is decided: "
        + ", ".join(code.name for code in DECIDED)
        + ".",
        "Where intervals overlap, too few instances were computed to tell: such a claim is not settled.",
    ]
    notes += [_cell_note(data, *index) for index in np.ndindex(data["outcome"].shape[:-1])]
    special = (Outcome.infeasible_program, Outcome.prediction_contradicted, Outcome.ambiguous, Outcome.undecided)
    for code in (*special, Outcome.failed):
        found = _where(data, data["outcome"] == code)
        notes += [f"{code.name}: {found}."] if found else []
    accepted = data["accepted"]
    notes.append(
        f"Data: score gap {float(data['score_gap']):g} by drawing sequences again, of which "
        f"{100 * accepted.min():.0f}% to {100 * accepted.max():.0f}% are accepted, depending on d and T."
    )
    certified = np.isin(data["outcome"], LOCAL)
    if certified.any():
        gaps = data["program_gap"][certified]
        notes.append(
            f"Largest duality gap of the program of locally optimal selected tokens: {np.abs(gaps).max():.0e} "
            f"({certified.sum():,} programs)."
        )
    return notes + (_assumption_notes(data) if "optimal_program" in data else [])


def _cell_note(data: Data, s: int, p: int, k: int) -> str:
    outcome = data["outcome"][s, p, k]
    ran = int((outcome != Outcome.not_run).sum())
    decided = int(np.isin(outcome, DECIDED).sum())
    parts = []
    for code in Outcome:
        count = int((outcome == code).sum())
        if not count or code == Outcome.not_run:
            continue
        share, low, high = (float(x) for x in interval(count, ran))
        text = f"{count:,} {code.name} ({share:.1f}%, {low:.1f} to {high:.1f}"
        if decided < ran and code in DECIDED:
            text += f"; of the decided {float(interval(count, decided)[0]):.1f}%"
        parts.append(text + ")")
    name = NAMES[str(data["parametrization"][p])]
    whole = f"{ran:,} instances, " + ("all decided" if decided == ran else f"{decided:,} decided")
    return f"{name}, n={data['n'][s]}, T={data['T'][s]}, d={data['d'][k]}: {whole}: {', '.join(parts)}."


def _assumption_notes(data: Data) -> list[str]:
    notes = [
        "Assumption B.1 is decided for the optimal tokens, as it is stated, in the norm of the parametrisation: every "
        f"margin of the certified solution within {SUPPORT:g} of 1. The published bars count an average margin below "
        "1.1. Both have all instances as their denominator; an infeasible program has no such solution.",
    ]
    result = data["optimal_program"]
    for p, name in enumerate(data["parametrization"]):
        exact, published, total = (table[0, p] for table in assumption_counts(data))
        cells = [
            f"d={d} {exact[k]:,} and {published[k]:,} of {total[k]:,}, {np.sum(result[0, p, k] == 3):,} infeasible"
            for k, d in enumerate(data["d"])
        ]
        notes.append(f"{NAMES[str(name)]}, Assumption B.1 as stated, and as published: {'; '.join(cells)}.")
    solved = result == ProgramResult.optimal
    excess = data["largest_margin"] - 1.0
    close = solved & (excess > SUPPORT) & (excess <= CLOSE)
    open_ = ~solved & (result != ProgramResult.infeasible)
    notes.append(
        f"Largest margin between {SUPPORT:g} and {CLOSE:g} above 1: {int(close.sum())} instances. Programs of the "
        f"optimal tokens that were neither solved nor certified to be infeasible: {int(open_.sum())}"
        + (f" ({_where(data, open_)})." if open_.any() else ".")
    )
    return notes


def _where(data: Data, mask: np.ndarray) -> str:
    """Trials by cell: `W, n=5, T=5, d=4: trials 3, 17`; the number alone where there are many."""
    parts = []
    for s, p, k in zip(*np.nonzero(mask.any(-1)), strict=True):
        trials = np.flatnonzero(mask[s, p, k]).tolist()
        named = ", ".join(map(str, trials[:LISTED])) + (
            f" and {len(trials) - LISTED:,} more" if len(trials) > LISTED else ""
        )
        name = NAMES[str(data["parametrization"][p])]
        cell = f"{name}, n={data['n'][s]}, T={data['T'][s]}, d={data['d'][k]}"
        parts.append(f"{cell}: {len(trials):,} (trial{'s' if len(trials) > 1 else ''} {named})")
    return "; ".join(parts)


def _percent(count: Any, total: Any, at: int) -> str:
    share, low, high = (float(x[at]) for x in interval(count, total))
    return f"{share:.1f}% ({low:.1f} to {high:.1f}, of {int(total[at]):,})"


def _finite(value: Any) -> float:
    """A number for JSON, which has no NaN: −1 for a percentage of nothing."""
    return float(value) if np.isfinite(value) else -1.0


def _one(total: Any, *, against: bool, good: bool) -> Evidence:
    """One series: met, contradicted or open; none where nothing ran."""
    ran = int(np.any(np.asarray(total) > 0))
    return Evidence(ran, ran * int(against), ran * int(not against and not good))


def _together(found: list[Evidence], *, limit: bool = False, rate: Rate | None = None) -> Evidence:
    """Evidence of several series; an excess of one interval over another is not checked by anything else."""
    return Evidence(
        sum(one.inside for one in found),
        sum(one.contradicted for one in found),
        sum(one.undecided for one in found),
        limit,
        rate,
    )

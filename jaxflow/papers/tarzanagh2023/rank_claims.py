"""What figure 4 says of ranks, against the numbers."""

import numpy as np

from jaxflow.margin import ProgramResult
from jaxflow.report import Claim, Evidence, count_evidence

# Rows of a certified solution leave the span of the queries by rounding only.
INSIDE = 1e-8

PROGRAMS = {"frobenius": "(Att-SVM)", "nuclear": "(Att-SVM*)"}

Data = dict[str, np.ndarray]


def claims_of(data: Data) -> tuple[list[Claim], list[str]]:
    """Claims with verdicts, and notes with every denominator."""
    claims = [
        _bounded(data, "Lemma 1", "Any optimal solution of (Att-SVM) or (Att-SVM*) is at most rank n.", _bound_n(data)),
        _bounded(
            data,
            "Figure 4",
            "Both figures confirm ranks of W^mm and W^mm_* are bounded by max(n, d).",
            np.maximum(data["shapes"][:, :1], data["dimensions"][None]),
        ),
        _bounded(
            data,
            "Lemma 1, with columns instead of rows",
            "(not in print) The rank is at most min(n, d).",
            np.minimum(data["shapes"][:, :1], data["dimensions"][None]),
        ),
        _row_space(data),
        _lower(data),
    ]
    return claims, [_counts(data, norm) for norm in PROGRAMS] + [
        "max(n, d) is no bound at all for d x d matrices; the numbers confirm the sharper min(n, d) of Lemma 1.",
        _tolerances(data),
    ]


def _bound_n(data: Data) -> np.ndarray:
    return np.broadcast_to(data["shapes"][:, :1], data["frobenius_rank"].shape[:2])


def _solved(data: Data, norm: str) -> np.ndarray:
    return data[f"{norm}_result"] == ProgramResult.optimal.value


def _open(data: Data, norm: str) -> np.ndarray:
    """Programs that were neither solved nor proven to have no solution."""
    return ~_solved(data, norm) & (data[f"{norm}_result"] != ProgramResult.infeasible.value)


def _bounded(data: Data, source: str, sentence: str, bound: np.ndarray) -> Claim:
    above, total, largest, open_ = 0, 0, 0, 0
    for norm in PROGRAMS:
        solved, rank = _solved(data, norm), data[f"{norm}_rank"]
        above += int(np.sum(solved & (rank > bound[:, :, None])))
        total += int(solved.sum())
        open_ += int(_open(data, norm).sum())
        largest = max(largest, int(rank[solved].max(initial=0)))
    return Claim(
        source,
        sentence,
        f"{above} of {total} solutions have a larger rank; the largest is {largest}",
        Evidence(total + open_, above, open_),
        {"above": above, "solutions": total, "largest_rank": largest},
    )


def _row_space(data: Data) -> Claim:
    values = np.concatenate([data[f"{norm}_outside"][_solved(data, norm)] for norm in PROGRAMS])
    worst = float(values.max(initial=0.0))
    open_ = sum(int(_open(data, norm).sum()) for norm in PROGRAMS)
    return Claim(
        "Lemma 1",
        "The row space of W^mm or W^mm_* lies within span({z_i}).",
        f"largest share of a solution outside of it: {worst:.1e}, over {len(values)} solutions",
        Evidence(len(values) + open_, int(np.sum(values > INSIDE)), open_),
        {"worst": worst, "solutions": len(values)},
    )


def _lower(data: Data) -> Claim:
    both = _solved(data, "frobenius") & _solved(data, "nuclear")
    frobenius, nuclear = data["frobenius_rank"][both], data["nuclear_rank"][both]
    more = int(np.sum(nuclear > frobenius))
    means = (float(frobenius.mean()), float(nuclear.mean())) if both.any() else (0.0, 0.0)
    feasible = (data["frobenius_result"] != ProgramResult.infeasible.value) & (
        data["nuclear_result"] != ProgramResult.infeasible.value
    )
    fewer = data["nuclear_rank"] <= data["frobenius_rank"]
    return Claim(
        "§2.1",
        "The nuclear norm objective inherently encourages a low-rank solution.",
        f"mean rank {means[1]:.2f} of W^mm_* against {means[0]:.2f} of W^mm; larger in {more} of {int(both.sum())}",
        count_evidence(fewer[feasible], decided=both[feasible]),
        {"nuclear_mean": means[1], "frobenius_mean": means[0], "larger": more, "instances": int(both.sum())},
    )


def _tolerances(data: Data) -> str:
    differ = sum(int(np.sum(data[f"{norm}_rank"] != data[f"{norm}_relative_rank"])) for norm in PROGRAMS)
    total = sum(int(_solved(data, norm).sum()) for norm in PROGRAMS)
    return (
        f"A singular value counts above 1e-7, as published; above 1e-8 of the largest instead, {differ} of {total} "
        "ranks differ."
    )


def _counts(data: Data, norm: str) -> str:
    codes, counts = np.unique(data[f"{norm}_result"], return_counts=True)
    parts = [f"{count} {ProgramResult(int(code)).name}" for code, count in zip(codes, counts, strict=True)]
    return f"{PROGRAMS[norm]}: {', '.join(parts)}, of {data[f'{norm}_result'].size} programs."

"""What figure 10 says of the number of columns of K and Q, against the numbers."""

import numpy as np

from jaxflow.report import Claim, Evidence, common_rate, count_evidence

Data = dict[str, np.ndarray]

# Where descent stops, factors are still on their way (their gap falls like a power of log t): this is aligned.
ALIGNED = 0.05

NAMES = {"flow": "the flow", "descent": "the published descent"}


def claims_of(data: Data) -> tuple[list[Claim], list[str]]:
    """Claims with verdicts for both ways, and notes with every denominator."""
    claims = [claim for way in NAMES for claim in (_enough(data, way), _floor(data, way), _more_n(data, way))]
    return claims, [note for way in NAMES for note in _notes(data, way)]


def usable(data: Data, way: str) -> np.ndarray:
    """Runs whose attention settled on one token a sequence and whose program has a solution."""
    return data[f"{way}_settled"] & (data[f"{way}_rank"] >= 0)


def _enough(data: Data, way: str) -> Claim:
    m = data["columns"][None, :, None]
    enough = usable(data, way) & (m >= data[f"{way}_rank"])
    asked = (data[f"{way}_rank"] >= 0) & (m >= data[f"{way}_rank"])
    near, rate = enough & (data[f"{way}_misalignment"] <= ALIGNED), None
    values = data[f"{way}_misalignment"][enough]
    median, worst = (float(np.median(values)), float(values.max())) if len(values) else (np.nan, np.nan)
    measured = f"{NAMES[way]}: 1 - corr median {median:.1e}, largest {worst:.1e} on {len(values)} runs with m >= rank"
    numbers: dict[str, float | int] = {"runs": len(values), "median": median, "largest": worst}
    if way == "flow":
        # The flow is exact, and slow: at any finite length it has to be on its way.
        before = data["flow_halfway"][enough]
        change = data["flow_log_time"][enough] / data["flow_halfway_log_time"][enough]
        rates = np.log(before / values) / np.log(change)
        rate = common_rate(rates, None, law="1 − corr against log t")
        near &= data["flow_misalignment"] < data["flow_halfway"]
        good = int(np.sum(values < before))
        median = float(np.median(rates)) if len(rates) else np.nan
        numbers |= {"falling": good, "rate": median}
        measured += f"; it fell over the second half of the path on {good}, like (log t)^-{median:.2f} (median)"
    else:
        good = int(np.sum(values <= ALIGNED))
        numbers |= {"aligned": good}
    measured += f"; at most {ALIGNED} on {int(near.sum())}"
    # Those that are not there may be late: at a finite length they decide nothing.
    evidence = count_evidence(near[asked], decided=near[asked], limit=True, rate=rate)
    return Claim(
        "App. F, Figure 10",
        "W converges directionally towards W*mm as long as m is at least about n (here: m >= rank W*mm).",
        measured,
        evidence,
        numbers,
    )


def _floor(data: Data, way: str) -> Claim:
    m = data["columns"][None, :, None]
    few = usable(data, way) & (m < data[f"{way}_rank"])
    asked = (data[f"{way}_rank"] >= 0) & (m < data[f"{way}_rank"])
    excess = data[f"{way}_misalignment"] - data[f"{way}_floor"]
    above = excess[few]
    # Rounding of a difference of numbers of order one.
    below = int(np.sum(above < -1e-9))
    median = float(np.median(above)) if len(above) else np.nan
    return Claim(
        "App. F, Figure 10 (what rank m allows)",
        "With fewer columns than rank W*mm, K Q^T cannot align with W*mm.",
        f"{NAMES[way]}: {below} of {len(above)} runs are nearer than any matrix of rank m; "
        f"median distance above that floor {median:.1e}",
        count_evidence(excess[asked] >= -1e-9, decided=few[asked]),
        {"below": below, "runs": len(above), "median_above": median},
    )


def _more_n(data: Data, way: str) -> Claim:
    """Mean misalignment at equal m, for the smallest and the largest n at equal T, where m is below both ranks."""
    shapes = data["shapes"]
    rows = [i for i, (_, T) in enumerate(shapes) if T == shapes[0][1]]
    rows = [min(rows, key=lambda i: shapes[i][0]), max(rows, key=lambda i: shapes[i][0])]
    small, large = (int(shapes[row][0]) for row in rows)
    few = [i for i, m in enumerate(data["columns"]) if m < small]
    pairs = [[_mean(data, way, row, column) for row in rows] for column in few]
    pairs = [pair for pair in pairs if all(np.isfinite(mean) for mean, _ in pair)]
    differences = [(b[0] - a[0]) / max(np.hypot(a[1], b[1]), 1e-12) for a, b in pairs]
    # In standard errors of the difference of the means: beyond two it is not the draw of the instances.
    more, less = (int(np.sum(np.asarray(differences) * sign > 2)) for sign in (1, -1))
    told = len(differences) if large > small else 0
    return Claim(
        "App. F, Figure 10 (lower)",
        "A larger n necessitates a larger m for K Q^T to accurately converge to the SVM solution.",
        f"{NAMES[way]}: mean 1 - corr at equal m < {small} for n = {large} against n = {small}: larger at {more} and "
        f"smaller at {less} of {len(differences)} values of m by more than two standard errors",
        Evidence(told, min(less, told), told - min(more + less, told)),
        {"larger": more, "smaller": less, "values_of_m": len(differences)},
    )


def _mean(data: Data, way: str, row: int, column: int) -> tuple[float, float]:
    """Mean and its standard error over the usable runs."""
    values = data[f"{way}_misalignment"][row, column][usable(data, way)[row, column]]
    if not len(values):
        return np.nan, np.nan
    return float(values.mean()), float(values.std() / np.sqrt(len(values)))


def _notes(data: Data, way: str) -> list[str]:
    total, kept = data[f"{way}_rank"].size, int(usable(data, way).sum())
    settled, feasible = int(data[f"{way}_settled"].sum()), int((data[f"{way}_rank"] >= 0).sum())
    ranks = data[f"{way}_rank"][data[f"{way}_rank"] >= 0]
    counts = ", ".join(f"{n} of rank {r}" for r, n in zip(*np.unique(ranks, return_counts=True), strict=True))
    times = data[f"{way}_log_time"][usable(data, way)]
    median = float(np.median(times)) if len(times) else np.nan
    return [
        f"{NAMES[way]}: {total} runs, {settled} settled on one token a sequence, {feasible} with a solution of "
        f"(Att-SVM*) to a gap of 1e-10, {kept} with both; the means are over these. At log t = {median:.3g} (median).",
        f"{NAMES[way]}: solutions of (Att-SVM*): {counts}. Where no difference is beyond two standard errors there "
        "are too few instances to tell, and the claim is not settled.",
    ]

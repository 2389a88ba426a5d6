"""Work and precision of following a flow, against the solvers one would use instead: python benchmarks/flow_peers.py.

One run on one machine. The flows of flow_problems.py go from fixed random starts to a log t where every method answers,
at tolerances from 1e-3 to 1e-9, and to one where physical time is hopeless: gradients are then below the rounding
errors of the loss's derivative, and what does not end is a failure. The error is that of W (of the products β of a
network), relative, against the library's flow at 1e-12, which SciPy's DOP853 at 1e-12 confirms (how closely is in each
row; from e^-10000, where the start of every other method is zero, nothing does). An instance without a reference counts
as unanswered. Methods that are not installed have their row.
"""

from functools import partial
from operator import itemgetter
from typing import Any

import flow_solvers as solvers
import jax
import numpy as np
from _common import Row, best, counts, spread
from _peers import begun, missing
from flow_problems import MOST_IMPLICIT, PROBLEMS, Problem

TOLERANCES = (1e-3, 1e-5, 1e-7, 1e-9)
# Where nearly everyone fails one tolerance shows it.
FAR_TOLERANCES = (1e-6,)
# Instances of a method that takes one after the other, and of implicit ones, whose Jacobians are large.
ALONE, IMPLICIT = 4, 2
# At the far time each instance alone costs the whole of its time limit.
ALONE_FAR = 1
# Seconds for one instance alone, and for a batch; a compiled method that takes twice as long at one tolerance is not
# asked for the next.
PATIENCE, BATCH_PATIENCE = 1.0, 3.0
ERRORS = (1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8)
# Ours against which methods.
COMPARED = ("vmap(diffeqsolve)", "SciPy", "torchode", "torchdiffeq")


def error_of(ends: np.ndarray, exact: np.ndarray, problem: Problem) -> np.ndarray:
    """|W − W_exact| / |W_exact| of each instance, or that of β."""
    found, known = (problem.measured(flat).reshape(len(flat), -1) for flat in (ends, exact))
    return np.linalg.norm(found - known, axis=1) / np.linalg.norm(known, axis=1)


def reference(some: Any, solve: Any, problem: Problem) -> tuple[dict[float, Any], float]:
    """Ends by `solve` at 1e-12, and how far SciPy's at 1e-12 in physical time are from the near ones."""
    horizons = [problem.near] + [problem.far] * (problem.far is not None)
    ends = {log_time: solve(1e-12, log_time, np.inf) for log_time in horizons}
    again, _ = solvers.scipy_with("DOP853")(some.first(2), None, None, problem)(1e-12, problem.near, 30.0)
    return ends, float(np.max(error_of(again, ends[problem.near][0][:2], problem)))


def problem_rows(problem: Problem, scale: float) -> list[Row]:
    """A row for every method, horizon and tolerance."""
    batch = max(2, int(problem.batch * scale))
    risk, model = jax.jit(jax.vmap(problem.draw))(jax.random.split(jax.random.key(0), batch))
    some = problem.plain(risk, model)
    exact, apart = reference(some, solvers.FINEST(some, risk, model, problem), problem)
    table = []
    for way in solvers.WAYS:
        common = {"model": problem.name, "n_T_d": list(problem.size), "method": way.name}
        absent = missing(*way.needs)
        if absent is not None:
            table.append(common | {"not_installed": absent})
            continue
        if way.implicit and some.starts.shape[1] > MOST_IMPLICIT:
            why = f"not asked: a Jacobian of {some.starts.shape[1]:,} parameters"
            table.append(common | {"log_time": problem.near, "failures": {why: batch}})
            continue
        near = ALONE if way.alone else IMPLICIT if way.implicit else batch
        far = ALONE_FAR if way.alone else near
        patience = PATIENCE if way.alone else BATCH_PATIENCE
        solve: Any = None
        prepared = 0
        horizons = [(problem.near, TOLERANCES, near)]
        horizons += [(problem.far, FAR_TOLERANCES, far)] * (problem.far is not None)
        for log_time, tolerances, most in horizons:
            number = min(batch, most)
            if prepared != number:
                few = jax.tree.map(itemgetter(slice(number)), (risk, model))
                solve, prepared = way.prepare(some.first(number), *few, problem), number
                if way.compiled:
                    # To a time so near that there is next to nothing but the compilation.
                    solve(1e-3, 1.0, np.inf)
            slow = None
            for tolerance in tolerances:
                row = common | {"log_time": log_time, "tolerance": tolerance, "instances": number}
                if slow is not None:
                    table.append(row | {"failures": {slow: number}})
                    continue
                (ends, reasons), seconds = best(partial(solve, tolerance, log_time, patience), 3, 0.5)
                answers, trusted = exact[log_time]
                errors = error_of(ends, answers[:number], problem)
                known = np.array([reason is None for reason in trusted[:number]])
                good = np.array([reason is None for reason in reasons]) & np.isfinite(errors) & known
                whys = [
                    reason or ("not finite" if sure else "no reference")
                    for reason, fine, sure in zip(reasons, good, known, strict=True)
                    if not fine
                ]
                # A method gets no faster as its tolerance shrinks, unless an instance was lost at the coarser one.
                if np.mean(good) < 0.5:
                    slow = "not asked: no answers at a coarser tolerance"
                elif good.all() and seconds.wall > 2 * BATCH_PATIENCE:
                    slow = "not asked: too slow at a coarser tolerance"
                table.append(
                    row
                    | {
                        "answered": int(good.sum()),
                        "failures": counts(whys) if whys else {},
                        "error": spread(errors[good]),
                        "error_of_all": float(np.median(np.where(good, errors, np.inf))),
                        "s_per_instance": seconds.wall / number,
                        "reference_apart_from_scipy": apart if log_time == problem.near else None,
                    }
                )
    return table


def cheapest(table: list[Row], prefix: str, error: float) -> float | None:
    """The least time of a method whose name begins so, at any tolerance, with the median instance's error in bounds."""
    found = [
        row["s_per_instance"]
        for row in table
        if row["method"].startswith(prefix) and row.get("error_of_all") is not None and row["error_of_all"] <= error
    ]
    return min(found, default=None)


def ratios(table: list[Row]) -> list[Row]:
    """Peers' times over ours at equal error."""
    out = []
    for problem in PROBLEMS:
        for log_time in (problem.near, problem.far):
            name, size = problem.name, list(problem.size)
            some = [row for row in table if (row["model"], row["n_T_d"], row.get("log_time")) == (name, size, log_time)]
            for error in ERRORS:
                mine = cheapest(some, "jaxflow", error)
                if mine is None:
                    continue
                for peer in COMPARED:
                    theirs = cheapest(some, peer, error)
                    row = {"model": name, "n_T_d": size, "log_time": log_time, "error": error, "peer": peer}
                    out.append(row | {"ours_s": mine, "ratio": None if theirs is None else theirs / mine})
    return out


if __name__ == "__main__":
    asked, record = begun(__doc__, "flow_peers")
    for problem in PROBLEMS:
        if asked.only in f"{problem.name} {problem.size}":
            record.add(*problem_rows(problem, asked.scale))
            record.add(ratios=ratios(record.content["rows"]))

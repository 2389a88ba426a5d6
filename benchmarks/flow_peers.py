"""Work and precision of following a flow, against the solvers one would use instead: python benchmarks/flow_peers.py.

One run on one machine. Flows go from fixed random starts to a log t where every method answers, at tolerances from
1e-3 to 1e-9, and to one where physical time is hopeless: gradients are then below the rounding errors of the loss's
derivative, and what does not end is a failure. The error is in what the outputs depend on: W, or the products β of the
weights of a network. It is relative, against the library's flow at 1e-12, which SciPy's DOP853 at 1e-12 confirms (how
closely is in each row; from e^-10000, where the start of every other method is zero, nothing does). An instance without
a reference counts as unanswered. Methods that are not installed have their row. The plain form of a problem is that of
plain_flows.py.
"""

from collections.abc import Callable, Iterator
from functools import cache, partial
from operator import itemgetter
from typing import Any, NamedTuple

import flow_solvers as solvers
import jax
import jax.numpy as jnp
import numpy as np
import plain_flows as plain
from _common import Row, begun, best, counts, missing, spread

import jaxflow as jf

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
# Parameters up to which an implicit method is asked: it factorises a matrix of that size at every step.
MOST_IMPLICIT = 500
ATTENTION = {"W": jf.models.CombinedAttention, "KQ": jf.models.FactoredAttention}


class Problem(NamedTuple):
    """Instances of one kind and size.

    `draw`: risk and model of a key; `plain`: the plain form of a batch of them; `measured`: of flat ends `(k, p)`, what
    errors are measured in; `end`: that of a trajectory of the library, or its flat parameters; `ours`: what
    `integrate` is called with to come to log t; `near`: log t where every method answers; `far`: log t where physical
    time does not arrive, or None; `batch`: instances at full scale; `size_of_start`: by which absolute tolerances of
    the plain methods are multiplied, for a start that is small must be known to its own digits.
    """

    name: str
    size: tuple[int, ...]
    draw: Callable[[Any], tuple[Any, Any]]
    plain: Callable[[Any, Any], Any]
    measured: Callable[[np.ndarray], np.ndarray]
    end: Callable[[Any], Any]
    ours: Callable[[Any], dict[str, Any]]
    near: float = 10.0
    far: float | None = 100.0
    batch: int = 64
    size_of_start: float = 1.0


def attention(name: str, size: tuple[int, int, int], batch: int = 64, coordinates: str = "weights") -> Problem:
    """W or K and Q of random tokens, as published."""

    def draw(key: Any) -> tuple[Any, Any]:
        data_key, start_key = jax.random.split(key)
        data, head = jf.data.random_tokens(data_key, *size)
        return jf.EmpiricalRisk(data, "logistic"), ATTENTION[name].init(start_key, data, head)

    def end(path: Any) -> Any:
        weights = path.model.W if name == "W" else jnp.stack([path.model.K, path.model.Q])
        return weights.ravel()

    return Problem(
        name,
        size,
        draw,
        plain.of_attention,
        lambda flat: plain.combined(flat, size[-1]),
        end,
        lambda log_time: {"clock": "log_time", "until": log_time, "coordinates": coordinates},
        far=100.0 if size[-1] <= 10 else None,
        batch=batch,
    )


def diagonal_network(n: int, d: int) -> Problem:
    """A diagonal linear network of two layers on separable data; the logistic loss."""

    def draw(key: Any) -> tuple[Any, Any]:
        inputs, labels, start = jax.random.split(key, 3)
        signs = jnp.where(jax.random.bernoulli(labels, shape=(n,)), 1.0, -1.0)
        data = jf.data.LinearData(jax.random.normal(inputs, (n, d)), signs)
        return jf.EmpiricalRisk(data, "logistic"), jf.models.DiagonalLinearNetwork.init(start, data, alpha=0.5)

    return Problem(
        "diagonal network",
        (n, d),
        draw,
        plain.of_network,
        plain.products,
        lambda path: jnp.concatenate(path.model.weights),
        lambda log_time: {"clock": "log_time", "until": log_time, "coordinates": "weights"},
    )


def incremental(log_alpha: float, label: str, n: int = 20, p: int = 6) -> Problem:
    """Regression by a diagonal network from a start of size α, to five times log(1/α): between stages."""

    def draw(key: Any) -> tuple[Any, Any]:
        inputs, targets, start = jax.random.split(key, 3)
        data = jf.data.LinearData(jax.random.normal(inputs, (n, p)), jax.random.normal(targets, (n,)))
        kind = jf.models.DiagonalLinear()
        return jf.EmpiricalRisk(data, "squared"), jf.models.HadamardNetwork.init(start, kind, p=p, log_scale=log_alpha)

    return Problem(
        f"from {label}",
        (n, p),
        draw,
        plain.of_regression,
        plain.products,
        # Products are all that these coordinates know, and all that is compared.
        lambda path: jnp.concatenate([path.model.log_weights.products, jnp.ones(p)]),
        lambda log_time: {
            "clock": jf.RescaledTime(log_alpha),
            "until": jnp.exp(log_time) / -log_alpha,
            "coordinates": "log_hadamard",
        },
        near=float(np.log(-5.0 * log_alpha)),
        far=None,
        # Below the smallest number there is no start to know.
        size_of_start=float(np.exp(log_alpha)) or 1.0,
    )


PROBLEMS = [
    *(attention(name, size) for name in ("W", "KQ") for size in ((5, 5, 4), (6, 8, 10), (5, 5, 20))),
    *(attention(name, (20, 5, 50), 8) for name in ("W", "KQ")),
    attention("W", (5, 5, 1000), 2, "scores"),
    diagonal_network(5, 20),
    incremental(float(np.log(1e-8)), "α = 1e-8"),
    incremental(-1e4, "α = e^-10000"),
]


def error_of(ends: np.ndarray, exact: np.ndarray, problem: Problem) -> np.ndarray:
    """|W − W_exact| / |W_exact| of each instance, or that of β."""
    found, known = (problem.measured(flat).reshape(len(flat), -1) for flat in (ends, exact))
    return np.linalg.norm(found - known, axis=1) / np.linalg.norm(known, axis=1)


def reference(some: Any, solve: Any, problem: Problem) -> tuple[dict[float, Any], float]:
    """Ends by `solve` at 1e-12, and how far SciPy's at 1e-12 in physical time are from the near ones."""
    horizons: list[Any] = [problem.near] + [problem.far] * (problem.far is not None)
    ends = {log_time: solve(1e-12, log_time, np.inf) for log_time in horizons}
    again, _ = solvers.scipy_with(some.first(2), None, None, problem, "DOP853")(1e-12, problem.near, 30.0)
    return ends, float(np.max(error_of(again, ends[problem.near][0][:2], problem)))


def problem_rows(problem: Problem, scale: float) -> Iterator[Row]:
    """A row for every method, horizon and tolerance."""
    batch = max(2, int(problem.batch * scale))
    risk, model = jax.jit(jax.vmap(problem.draw))(jax.random.split(jax.random.key(0), batch))
    some = problem.plain(risk, model)
    exact, apart = reference(some, solvers.FINEST(some, risk, model, problem), problem)
    for way in solvers.WAYS:
        common = {"model": problem.name, "n_T_d": list(problem.size), "method": way.name}
        absent = missing(*way.needs)
        if absent is not None:
            yield common | {"not_installed": absent}
        elif way.implicit and some.starts.shape[1] > MOST_IMPLICIT:
            why = f"not asked: a Jacobian of {some.starts.shape[1]:,} parameters"
            yield common | {"log_time": problem.near, "failures": {why: batch}}
        else:
            for row in way_rows(way, problem, some, risk, model, exact):
                near = row["log_time"] == problem.near
                yield common | row | {"reference_apart_from_scipy": apart if near else None}


def way_rows(way: solvers.Way, problem: Problem, some: Any, risk: Any, model: Any, exact: Any) -> Iterator[Row]:
    """The rows of one method: for each horizon and tolerance its errors against the exact ends, and its times."""
    batch = len(some.starts)
    near = ALONE if way.alone else IMPLICIT if way.implicit else batch
    far = ALONE_FAR if way.alone else near
    horizons: list[Any] = [(problem.near, TOLERANCES, min(batch, near))]
    horizons += [(problem.far, FAR_TOLERANCES, min(batch, far))] * (problem.far is not None)

    @cache
    def prepared(number: int) -> solvers.Solve:
        few = jax.tree.map(itemgetter(slice(number)), (risk, model))
        solve = way.prepare(some.first(number), *few, problem)
        if way.compiled:
            # To a time so near that there is next to nothing but the compilation.
            solve(1e-3, 1.0, np.inf)
        return solve

    for log_time, tolerances, number in horizons:
        solve, slow, (answers, trusted) = prepared(number), None, exact[log_time]
        known = np.array([reason is None for reason in trusted[:number]])
        for tolerance in tolerances:
            row = {"log_time": log_time, "tolerance": tolerance, "instances": number}
            if slow is not None:
                yield row | {"failures": {slow: number}}
                continue
            asked = partial(solve, tolerance, log_time, PATIENCE if way.alone else BATCH_PATIENCE)
            (ends, reasons), seconds = best(asked, 3, 0.5)
            errors = error_of(ends, answers[:number], problem)
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
            yield row | {
                "answered": int(good.sum()),
                "failures": counts(whys),
                "error": spread(errors[good]),
                "error_of_all": float(np.median(np.where(good, errors, np.inf))),
                "s_per_instance": seconds.wall / number,
            }


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
    asked, record = begun(__doc__, "flow_peers", scale=1.0, peers=None, only="")
    for problem in PROBLEMS:
        if asked.only in f"{problem.name} {problem.size}":
            record.add(*problem_rows(problem, asked.scale))
            record.add(ratios=ratios(record.content["rows"]))

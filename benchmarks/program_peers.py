"""Max-margin programs a second, against the solvers one would use instead: python benchmarks/program_peers.py.

One run on one machine. Our batch is measured between two measurements of every peer, the faster of which is reported. A
peer gets tokens, queries and selected tokens, and its time includes stating the program, as ours does. Accuracy is that
of the weights that come back: their norm at margin one, against ours. Peers that are not installed have their row.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from _common import Row, batch_solver, begun, best, counts, missing, programs, spread

from jaxflow.margin import ProgramResult

Answer = tuple[np.ndarray | None, str]


class Case(NamedTuple):
    """A norm, and n, T, d."""

    norm: str
    size: tuple[int, int, int]

    @property
    def rows(self) -> int:
        """How many constraints."""
        return self.size[0] * (self.size[1] - 1)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the weights."""
        return (self.size[2],) if self.norm == "l1" else (self.size[2],) * 2


class Peer(NamedTuple):
    """A solver with its settings. `prepare(case)` gives a function of tokens, queries and selected tokens."""

    name: str
    norms: tuple[str, ...]
    needs: tuple[str, ...]
    settings: str
    prepare: Callable[[Case], Callable[..., Any]]
    batched: bool = False


def rows_of(norm: str, X: np.ndarray, z: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """A: differences of the selected token and the others, times the query."""
    n, T, d = X.shape
    others = np.arange(T) != chosen[:, None]
    features = (X[np.arange(n), chosen][:, None] - X)[others].reshape(n, T - 1, d)
    if norm == "l1":
        return (features * z[:, None]).reshape(-1, d)
    return (features[..., :, None] * z[:, None, None, :]).reshape(-1, d * d)


def daqp_with(case: Case, reduced: bool) -> Callable[..., Answer]:
    """min |w|²/2 s.t. A w >= 1 as it stands; DAQP is a dual active-set method itself. Reduced: in the span of the
    constraints, w = Aᵀu with u in the coordinates of a Cholesky factor of A Aᵀ."""
    import daqp

    m = case.rows
    size = m if reduced else int(np.prod(case.shape))
    H, f, upper, lower = np.eye(size), np.zeros(size), np.full(m, 1e30), np.ones(m)
    sense = np.zeros(m, dtype=np.int32)

    def solve(*instance: np.ndarray) -> Answer:
        A = rows_of(case.norm, *instance)
        factor = np.linalg.cholesky(A @ A.T) if reduced else A
        x, _, flag, _ = daqp.solve(H, f, factor, upper, lower, sense)
        weights = A.T @ np.linalg.solve(factor.T, np.asarray(x)) if reduced else np.asarray(x)
        return weights.reshape(case.shape), "optimal" if flag == 1 else f"exit flag {flag}"

    return solve


def osqp_with(case: Case, **settings: Any) -> Callable[..., Answer]:
    """One workspace for all programs of a size, whose constraint matrix is updated."""
    import osqp
    from scipy import sparse

    size, m = int(np.prod(case.shape)), case.rows
    solver = osqp.OSQP()
    pattern = sparse.csc_matrix(np.ones((m, size)))
    upper = np.full(m, np.inf)
    solver.setup(sparse.eye(size, format="csc"), np.zeros(size), pattern, np.ones(m), upper, verbose=False,
                 **settings)  # fmt: skip

    def solve(*instance: np.ndarray) -> Answer:
        solver.update(Ax=rows_of(case.norm, *instance).ravel(order="F"))
        found = solver.solve(raise_error=False)
        status = "optimal" if found.info.status == "solved" else str(found.info.status)
        return np.asarray(found.x).reshape(case.shape), status

    return solve


def qpax_batch(case: Case, reduced: bool) -> Callable[..., Any]:
    """`vmap` of an interior-point method over the weights, or over the multipliers (A Aᵀ is small and regular).

    To 1e-6: at 1e-8 it goes on to its last iteration and reports that it has not converged.
    """
    import jax
    import jax.numpy as jnp
    import qpax

    m = case.rows
    size = m if reduced else int(np.prod(case.shape))
    none, nothing = jnp.zeros((0, size)), jnp.zeros(0)

    def one(A: Any) -> Any:
        if reduced:
            program = A @ A.T, -jnp.ones(m), none, nothing, -jnp.eye(m), jnp.zeros(m)
        else:
            program = jnp.eye(size), jnp.zeros(size), none, nothing, -A, -jnp.ones(m)
        x, *_, converged, _ = qpax.solve_qp(*program, solver_tol=1e-6)
        return A.T @ x if reduced else x, converged

    run = jax.jit(lambda A: jax.lax.map(one, A, batch_size=16))

    def solve(*batch: np.ndarray) -> tuple[np.ndarray, list[str]]:
        A = np.stack([rows_of(case.norm, *instance) for instance in zip(*batch, strict=True)])
        x, converged = jax.block_until_ready(run(A))
        status = ["optimal" if done == 1 else "not converged" for done in np.asarray(converged)]
        return np.asarray(x).reshape(-1, *case.shape), status

    return solve


def clarabel_direct(case: Case) -> Callable[..., Answer]:
    """Clarabel without a modelling layer, its default tolerances; a quadratic program, or a linear one for ℓ1."""
    import clarabel
    from scipy import sparse

    size, m = int(np.prod(case.shape)), case.rows
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    if case.norm == "l1":
        # w = p - q with p, q >= 0.
        P, q = sparse.csc_matrix((2 * size, 2 * size)), np.ones(2 * size)
        lower, b = -np.eye(2 * size), np.concatenate([-np.ones(m), np.zeros(2 * size)])
    else:
        P, q = sparse.eye(size, format="csc"), np.zeros(size)
        lower, b = np.zeros((0, size)), -np.ones(m)
    cones = [clarabel.NonnegativeConeT(len(b))]

    def solve(*instance: np.ndarray) -> Answer:
        A = rows_of(case.norm, *instance)
        above = np.concatenate([-A, A], axis=1) if case.norm == "l1" else -A
        matrix = sparse.csc_matrix(np.concatenate([above, lower]))
        found = clarabel.DefaultSolver(P, q, matrix, b, cones, settings).solve()
        status = {"Solved": "optimal", "PrimalInfeasible": "infeasible"}.get(str(found.status), str(found.status))
        x = np.asarray(found.x)
        return (x[:size] - x[size:] if case.norm == "l1" else x.reshape(case.shape)), status

    return solve


def highs(case: Case) -> Callable[..., Answer]:
    """SciPy's `linprog` with HiGHS, w = p - q."""
    from scipy.optimize import linprog

    size = case.shape[0]
    cost, bound = np.ones(2 * size), -np.ones(case.rows)
    names = {0: "optimal", 2: "infeasible"}

    def solve(*instance: np.ndarray) -> Answer:
        A = rows_of(case.norm, *instance)
        found = linprog(cost, A_ub=np.concatenate([-A, A], axis=1), b_ub=bound, method="highs")
        weights = None if found.x is None else found.x[:size] - found.x[size:]
        return weights, names.get(found.status, f"status {found.status}")

    return solve


def _objective(case: Case, W: Any) -> Any:
    import cvxpy as cp

    return cp.normNuc(W) if case.norm == "nuclear" else cp.norm(W, 1 if case.norm == "l1" else "fro")


def cvxpy_published(case: Case) -> Callable[..., Answer]:
    """As the published experiments state it: a scalar constraint for each token, the norm, the default solver."""
    import cvxpy as cp

    def solve(X: np.ndarray, z: np.ndarray, chosen: np.ndarray) -> Answer:
        W = cp.Variable(case.shape)
        constraints = []
        for i in range(len(X)):
            for t in range(X.shape[1]):
                if t != chosen[i]:
                    f = X[i, chosen[i]] - X[i, t]
                    constraints.append((f * z[i]) @ W >= 1 if case.norm == "l1" else f @ W @ z[i] >= 1)
        problem = cp.Problem(cp.Minimize(_objective(case, W)), constraints)
        problem.solve()
        return W.value, str(problem.status)

    return solve


def cvxpy_parametrised(case: Case) -> Callable[..., Answer]:
    """One problem for all instances, whose matrix of constraints is a parameter (DPP): canonicalised once."""
    import cvxpy as cp

    W, A = cp.Variable(case.shape), cp.Parameter((case.rows, int(np.prod(case.shape))))
    flat = W if case.norm == "l1" else cp.vec(W, order="C")
    # The square has the same minimiser and is a quadratic program.
    objective = 0.5 * cp.sum_squares(W) if case.norm == "frobenius" else _objective(case, W)
    problem = cp.Problem(cp.Minimize(objective), [A @ flat >= 1])

    def solve(*instance: np.ndarray) -> Answer:
        A.value = rows_of(case.norm, *instance)
        problem.solve(solver="CLARABEL")
        return W.value, str(problem.status)

    return solve


TIGHT = {"eps_abs": 1e-9, "eps_rel": 1e-9, "polishing": True, "max_iter": 20_000}
SOLVERS = [
    Peer("DAQP", ("frobenius",), ("daqp",), "in the weights, defaults", partial(daqp_with, reduced=False)),
    Peer("DAQP, reduced", ("frobenius",), ("daqp",), "in the span of the constraints, defaults",
         partial(daqp_with, reduced=True)),
    Peer("OSQP", ("frobenius",), ("osqp", "scipy"), "defaults (1e-3), updated", osqp_with),
    Peer("OSQP, tight", ("frobenius",), ("osqp", "scipy"), "1e-9 and polishing, updated", partial(osqp_with, **TIGHT)),
    Peer("qpax", ("frobenius",), ("qpax",), "vmapped, in the weights, 1e-6",
         partial(qpax_batch, reduced=False), batched=True),
    Peer("qpax, reduced", ("frobenius",), ("qpax",), "vmapped, in the multipliers, 1e-6",
         partial(qpax_batch, reduced=True), batched=True),
    Peer("Clarabel", ("frobenius", "l1"), ("clarabel", "scipy"), "defaults", clarabel_direct),
    Peer("CVXPY, published", ("frobenius", "l1"), ("cvxpy",), "a constraint a token", cvxpy_published),
    Peer("CVXPY, parametrised", ("frobenius", "l1"), ("cvxpy", "clarabel"), "DPP", cvxpy_parametrised),
    Peer("Clarabel by CVXPY, published", ("nuclear",), ("cvxpy", "clarabel"), "a constraint a token, normNuc",
         cvxpy_published),
    Peer("Clarabel by CVXPY, parametrised", ("nuclear",), ("cvxpy", "clarabel"), "DPP, normNuc", cvxpy_parametrised),
    Peer("SciPy linprog", ("l1",), ("scipy",), "HiGHS", highs),
]  # fmt: skip
# What NumPy calls them.
NORMS: dict[str, Any] = {"frobenius": None, "nuclear": "nuc", "l1": 1}
# Case, instances in our batch, what to reach: ours over which peer's rate, by which factor.
CASES: list[tuple[Case, int, tuple[str, float]]] = [
    (Case("frobenius", (5, 5, 10)), 5000, ("DAQP", 1.0)),
    (Case("frobenius", (6, 8, 10)), 2000, ("DAQP", 1.0)),
    (Case("nuclear", (6, 8, 10)), 1000, ("Clarabel", 100.0)),
    (Case("nuclear", (5, 5, 20)), 1000, ("Clarabel", 100.0)),
    (Case("l1", (5, 5, 10)), 2000, ("CVXPY", 100.0)),
]
# Instances for a peer, and seconds after which it starts no other: both are enough for a rate to 10%.
MOST, LONG = 300, 2.0


def at_margin_one(norm: str, rows: np.ndarray, weights: np.ndarray) -> float:
    """The norm of the weights once their smallest margin is one; infinite where a margin is not positive."""
    margin = float(np.min(rows @ weights.ravel()))
    return float(np.linalg.norm(weights, NORMS[norm])) / margin if margin > 0 else np.inf


def one_by_one(solve: Any, data: tuple[np.ndarray, ...], long: float) -> tuple[list[Any], float]:
    """Answers, and programs a second."""
    solve(*(part[0] for part in data))  # imports, caches, the compilation of a parametrised problem
    answers: list[Any] = []
    start = time.perf_counter()
    for instance in zip(*data, strict=True):
        answers.append(solve(*instance))
        if time.perf_counter() - start > long:
            break
    return answers, len(answers) / (time.perf_counter() - start)


def together(solve: Any, data: tuple[np.ndarray, ...]) -> tuple[list[Any], float]:
    """As `one_by_one`, of a peer that takes a batch and has been compiled."""
    (weights, status), seconds = best(lambda: solve(*data), 3)
    return list(zip(np.asarray(weights), status, strict=True)), len(status) / seconds.wall


def judged(case: Case, answers: Any, data: tuple[np.ndarray, ...], ours: Any) -> Row:
    """How far the answers' norms at margin one are from ours, and which answers are none."""
    differences, failures = [], []
    for i, (weights, status) in enumerate(answers):
        result = ProgramResult(int(ours.result[i]))
        if status == "infeasible" and result == ProgramResult.infeasible:
            continue
        if weights is None or status != "optimal":
            failures.append(status)
            continue
        if result != ProgramResult.optimal:
            failures.append(f"optimal where ours is {result.name}")
            continue
        rows = rows_of(case.norm, *(part[i] for part in data))
        size = at_margin_one(case.norm, rows, weights)
        mine = at_margin_one(case.norm, rows, np.asarray(ours.primal[i]))
        if np.isfinite(size):
            differences.append(abs(size / mine - 1))
        else:
            failures.append("no margin")
    return {"difference": spread(differences), "failures": counts(failures)}


def measure(case: Case, many: int, most: int, long: float, target: tuple[str, float]) -> list[Row]:
    """Our row and one for every peer that takes this norm."""
    tokens, selection = programs(1, many, *case.size)
    data = (np.asarray(tokens.tokens), np.asarray(tokens.queries), np.asarray(selection).argmax(-1))
    few = tuple(part[:most] for part in data)
    peers = [peer for peer in SOLVERS if case.norm in peer.norms]
    absent = {peer.name: missing(*peer.needs) for peer in peers}
    present = {peer: peer.prepare(case) for peer in peers if absent[peer.name] is None}
    for peer, solve in present.items():
        if peer.batched:
            solve(*few)

    def measured() -> dict[str, tuple[list[Any], float]]:
        return {
            peer.name: together(solve, few) if peer.batched else one_by_one(solve, few, long)
            for peer, solve in present.items()
        }

    before = measured()
    solve = batch_solver(case.norm)
    solution = jax.block_until_ready(solve(tokens, selection))
    _, later = best(lambda: solve(tokens, selection), 5, long)
    after = measured()

    found = jax.tree.map(np.asarray, solution)
    gaps = found.certificate.duality_gap[found.result == ProgramResult.optimal.value]
    common, rate = {"norm": case.norm, "n_T_d": list(case.size)}, many / later.wall
    ours = {"method": "jaxflow", "settings": "vmapped, certified", "instances": many}
    table: list[Row] = [{**common, **ours, "per_second": rate, "gap": spread(gaps)}]
    for peer in peers:
        row = {**common, "method": peer.name, "settings": peer.settings}
        if peer.name in before:
            answers, first = before[peer.name]
            faster = max(first, after[peer.name][1])
            row |= {
                "instances": len(answers),
                "per_second": faster,
                "ratio": rate / faster,
                "ratio_to_reach": target[1] if peer.name.startswith(target[0]) else None,
                **judged(case, answers, data, found),
            }
        else:
            row |= {"not_installed": absent[peer.name]}
        table.append(row)
    return table


if __name__ == "__main__":
    asked, record = begun(__doc__, "program_peers", scale=1.0, peers=None, only="")
    for case, many, target in CASES:
        if asked.only in f"{case.norm} {case.size}":
            many, most = max(20, int(many * asked.scale)), max(4, int(MOST * asked.scale))
            record.add(*measure(case, many, min(most, many), LONG * asked.scale, target))

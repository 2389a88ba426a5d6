"""Max-margin programs as users of other solvers would state them.

The programs: min N(W) subject to A vec(W) >= 1, a row of A for each token that is not selected. Each peer is prepared
once for a norm and a size, and then gets instances: what can be shared between programs of one size is.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

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
PEERS = [
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

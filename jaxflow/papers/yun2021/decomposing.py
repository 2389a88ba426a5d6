r"""Assumption 1 (found and verified), Lemma 5.1, and the conjugation in the KKT conditions of (38)."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxflow._core import as_array, checked, is_concrete, require, require_finite
from jaxflow.margin import L1, ProgramResult, max_margin, solve
from jaxflow.models import Decomposition, convolutional_tensor, decomposition_of, diagonal_tensor
from jaxflow.models.linear_convolution import LinearConvolutionalNetwork
from jaxflow.models.profiles import angle_of, edge, height
from jaxflow.papers.experiment import Again, Dataset, Draw, Part, Statement, Sweep, Table, register
from jaxflow.papers.yun2021.flows import random_decomposition, separable
from jaxflow.study import subkey
from jaxflow.theory.prediction import Assumption

# Largest residual, relative to the tensor, at which Assumption 1 holds: rounding of two factorisations.
HOLDS = 1e-10


@checked()
def verify_decomposition(data_tensor: Any, decomposition: Decomposition) -> tuple[Assumption, ...]:
    r"""Whether (9) holds, $U_l^HU_l=I$ and S has full column rank, $d\le m\le\min_lk_l$; any L.

    **Returns:** one `Assumption` each; the slack is what is left of the tolerance of 1e-10 (of S: its least singular
    value relative to the largest, less that tolerance).
    """
    require(is_concrete((data_tensor, decomposition)), "data_tensor", "is verified outside of jit and vmap")
    # In NumPy: every operation on another shape would be compiled anew.
    tensor = np.asarray(as_array("data_tensor", data_tensor))
    require_finite("data_tensor", tensor)
    shape = (*(U.shape[0] for U in decomposition.factors), decomposition.transform.shape[1])
    require(
        tensor.shape == shape, "data_tensor", f"expected shape {shape}, as the decomposition has, got {tensor.shape}"
    )
    S, factors = np.asarray(decomposition.transform), [np.asarray(U) for U in decomposition.factors]
    letters = "abcdefghijkl"[: len(factors)]
    rule = ",".join(f"{letter}m" for letter in letters) + f",mx->{letters}x"
    off = np.max(np.abs(np.einsum(rule, *factors, S) - tensor)) / max(float(np.max(np.abs(tensor))), 1e-300)
    unitary = max(float(np.max(np.abs(U.conj().T @ U - np.eye(U.shape[1])))) for U in factors)
    m, d = S.shape
    values = np.linalg.svd(S, compute_uv=False)
    rank = jnp.asarray(values[-1] / values[0] if m >= d else 0.0)
    fits = jnp.asarray(bool(d <= m <= min(U.shape[0] for U in factors)))
    return (
        _within("M(x) is the sum (9) of m rank-one terms with coefficients Sx (Assumption 1)", float(off)),
        _within("U_l^H U_l = I (Assumption 1)", unitary),
        Assumption("S has full column rank (Assumption 1)", rank > HOLDS, rank - HOLDS),
        Assumption("d <= m <= min k_l (Assumption 1)", fits, jnp.where(fits, 0.0, -1.0)),
    )


@checked()
def find_decomposition(data_tensor: Any) -> tuple[Decomposition, tuple[Assumption, ...]]:
    r"""Looks for a decomposition of a data tensor `(k1, k2, d)`, over the complex numbers where it must.

    If $\mathsf M(x)=U_1\mathrm{diag}(Sx)U_2^\top$, then for any x, z the matrix
    $\mathsf M(x)\mathsf M(z)^\top=U_1\,\mathrm{diag}(Sx\odot\overline{Sz})\,U_1^H$ is normal and its eigenvectors are
    the columns of $U_1$; those of $U_2$ follow from $U_1^H\mathsf M(x)$. x and z are drawn at random, so that
    eigenvalues meet only where rows of S agree and any choice of eigenvectors will do. Real where possible.

    **Returns:** the decomposition that Assumption 1 would need, and whether it is one.

    **Raises:** `ValueError` naming `data_tensor` for a traced tensor or another order.
    """
    require(is_concrete(data_tensor), "data_tensor", "a decomposition is looked for outside of jit and vmap")
    tensor = np.asarray(as_array("data_tensor", data_tensor))
    require_finite("data_tensor", tensor)
    require(tensor.ndim == 3, "data_tensor", f"expected (k1, k2, d), two layers, got {tensor.shape}")
    random = np.random.default_rng(0)
    x, z = random.normal(size=(2, tensor.shape[-1]))
    one, other = tensor @ x, tensor @ z
    product = one @ other.T
    if np.allclose(product, product.T, rtol=0, atol=1e-12 * np.abs(product).max()):
        values, left = np.linalg.eigh(0.5 * (product + product.T))
    else:
        triangle, left = map(np.asarray, jax.scipy.linalg.schur(jnp.asarray(product), output="complex"))
        values = np.diagonal(triangle)
    kept = np.abs(values) > 1e-12 * np.abs(values).max()
    left = left[:, kept]
    # Rows of U_1^H M(x) are [Sx]_j times columns of U_2.
    rows = left.conj().T @ one
    right = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).T
    transform = np.einsum("am,abx,bm->mx", left.conj(), tensor, right.conj())
    found = Decomposition(jnp.asarray(transform), (jnp.asarray(left), jnp.asarray(right)))
    return found, verify_decomposition(tensor, found)


def _within(statement: str, residual: float) -> Assumption:
    return Assumption(statement, jnp.asarray(residual <= HOLDS), jnp.asarray(HOLDS - residual))


TRIALS = {"quick": 5, "paper": 100, "large": 1000}
# Factorisations of matrices of size ten keep twelve digits.
FOUND = 1e-10
# Where there is no decomposition, what is left is of the order of the tensor itself.
MISSING = 1e-3
# h_L at 2,001 points to rounding.
ODD = 1e-12
# Programs are certified to about this.
KKT = 1e-8
# Data and dimension of a program; what CVXPY's answers are good for.
PROGRAM, SOLVED = (3, 4), 1e-4


def draw_tensor(key: Any, decomposable: bool) -> Table:
    """m = 5 terms for d = 3 inputs, so that S has more rows than columns; or random entries.

    The largest `residual` of (9) and of U^H U = I.
    """
    if decomposable:
        tensor = random_decomposition(key, 5, 3).tensor()
    else:
        tensor = jax.random.normal(subkey(key, "entries"), (4, 5, 3))
    return Table(residual=np.asarray(_missing(tensor)))


def _missing(tensor: Any) -> float:
    _, (sum_of_terms, unitary, *_) = find_decomposition(tensor)
    return float(max(1e-10 - sum_of_terms.slack, 1e-10 - unitary.slack))


def sweep(scale: str, key: Any) -> Table:
    """What does not depend on a draw: residuals for `full`-length convolutions `(4,)`, for `short` ones `(2,)`, of the
    decompositions `given` in D.2 and D.3 `(4,)`; of h_L, L = 2, 3, 4, 5, 8 `(5,)`, the largest relative |h(t) + h(−t)|,
    `odd`, and the least increase between neighbours, `slope`."""
    odd, slope = np.asarray([_height(depth) for depth in (2, 3, 4, 5, 8)]).T
    return Table(
        full=np.asarray([_missing(convolutional_tensor(d, (d, d))) for d in (2, 3, 5, 8)]),
        short=np.asarray([_missing(convolutional_tensor(d, (2, d))) for d in (4, 6)]),
        given=np.asarray([_given(d, L) for d in (2, 3) for L in (3, 4)]),
        odd=odd,
        slope=slope,
    )


def _given(d: int, depth: int) -> float:
    one = jnp.eye(d)
    diagonal = verify_decomposition(diagonal_tensor(d, depth), Decomposition(one, (one,) * depth))
    network = LinearConvolutionalNetwork((jnp.ones(d),) * depth)
    conv = verify_decomposition(convolutional_tensor(d, (d,) * depth), decomposition_of(network))
    return float(max(1e-10 - a.slack for a in (diagonal[0], diagonal[1], conv[0], conv[1])))


def _height(depth: int) -> tuple[float, float]:
    c = min(edge(depth), 20.0)
    h = height(depth, angle_of(depth, jnp.linspace(-0.9999, 0.9999, 2001) * c))
    odd = jnp.max(jnp.abs(h + h[::-1]) / jnp.maximum(jnp.abs(h), 1.0))
    return float(odd), float(jnp.min(jnp.diff(h)))


def align(key: Any, setting: None) -> Table:
    """Whether ρ is aligned with S* Σ μ_i y_i x_i, or with its conjugate.

    One DFT-domain program: the misalignment of ρ with the combined rows, `conjugate` as (38) has them or `plain`; NaN
    where it was not solved.
    """
    X, y = separable(subkey(key, "data"), *PROGRAM)
    program = max_margin(X, y, L1(), "dft")
    solution = solve(program)
    S: Any = program.transform
    rho = solution.primal

    def misaligned(combined: Any) -> Any:
        inner = jnp.sum(jnp.real(jnp.conj(rho) * combined))
        return jnp.where(solved, 1.0 - inner / (jnp.sum(jnp.abs(rho)) * jnp.max(jnp.abs(combined))), jnp.nan)

    plain = S @ (X.T @ (solution.dual * y))
    solved = solution.result == ProgramResult.optimal
    return Table(conjugate=misaligned(jnp.conj(plain)), plain=misaligned(plain))


# `drawn` `(2, b)`: tensors made of a decomposition, and entry by entry; `fixed`; `programs` `(1, b)`.
STRUCTURE = Dataset(
    "yun2021",
    "structure",
    {
        "drawn": Part(draw_tensor, {"decomposable": True, "random": False}, TRIALS, way="on host"),
        "fixed": Sweep(sweep),
        "programs": Part(align, {"dft": None}, TRIALS, block=50, way="in turn"),
    },
)


def _plain_again(numbers: Table, draw: Draw, at: tuple[int, ...]) -> float:
    import cvxpy

    X, y = (np.asarray(x) for x in separable(subkey(draw.instance("programs", at[1])[0], "data"), *PROGRAM))
    S = np.fft.fft(np.eye(X.shape[1]), norm="ortho")
    beta = cvxpy.Variable(X.shape[1])
    margins = cvxpy.multiply(y, X @ beta) >= 1
    cvxpy.Problem(cvxpy.Minimize(cvxpy.norm1(S @ beta)), [margins]).solve()
    if beta.value is None or margins.dual_value is None:
        return np.nan
    # β = Sᵀρ with S unitary.
    rho, combined = np.conj(S) @ beta.value, S @ (X.T @ (margins.dual_value * y))
    inner = np.sum(np.real(np.conj(rho) * combined))
    return 1.0 - float(inner / (np.sum(np.abs(rho)) * np.max(np.abs(combined))))


FINDS = Statement[Table](
    source="Assumption 1",
    says="L = 2: a decomposition is found where there is one: random U_1, U_2, S (with more rows than columns "
    "too), full-length convolutions over the complex numbers",
    residual=lambda n: np.concatenate([n.drawn.residual[0], n.fixed.full]),
    bound=(FOUND, "largest residual of (9), U^H U = I"),
)
FINDS_NONE = Statement[Table](
    source="Assumption 1",
    says="L = 2: where there is none (short filters, random tensors) the residual is not zero",
    residual=lambda n: -np.concatenate([n.fixed.short, n.drawn.residual[1]]),
    bound=(-MISSING, "minus the residual"),
)
GIVEN = Statement[Table](
    source="Assumption 1",
    says="L = 3 and 4: the decompositions of D.2 and D.3, diagonal and full-length convolutional, are right",
    residual=lambda n: n.fixed.given,
    bound=(FOUND, "largest residual"),
)
MONOTONE = Statement[Table](
    source="Lemma 5.1",
    says="h_L is odd and strictly increasing on (−c_L, c_L), c_L = ∞, π/2, 1 for L = 2, 3, 4; L to 8",
    residual=lambda n: np.maximum(n.fixed.odd, -n.fixed.slope),
    bound=(ODD, "oddness, or minus the least increase"),
)
CONJUGATE = Statement[Table](
    source="Equation (38)",
    says="KKT: S* Σ μ_i y_i x_i, conjugated as the display after (38) has it, is a subgradient of ‖ρ‖₁",
    residual=lambda n: n.programs.conjugate,
    bound=(KKT, "misalignment"),
)
PLAIN = Statement[Table](
    source="Equation (38)",
    says="KKT with S Σ ν_i y_i x_i, unconjugated: what replacing μ by ν of (37) would give",
    residual=lambda n: n.programs.plain,
    bound=(KKT, "misalignment"),
    again=Again("CVXPY", _plain_again, SOLVED),
)

register(
    STRUCTURE,
    title="Assumption 1, Lemma 5.1, equation (38)",
    statements=[FINDS, FINDS_NONE, GIVEN, MONOTONE, CONJUGATE, PLAIN],
)

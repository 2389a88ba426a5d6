r"""Assumption 1 of Yun, Krishnan, Mobahi (2021) as a check: find a decomposition (L = 2), or verify a given one."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxflow._core import as_array, checked, is_concrete, require, require_finite
from jaxflow.models import Decomposition
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
def find_decomposition(data_tensor: Any, seed: int = 0) -> tuple[Decomposition, tuple[Assumption, ...]]:
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
    random = np.random.default_rng(seed)
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

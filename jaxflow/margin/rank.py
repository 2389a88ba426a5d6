"""Numerical rank of a solution."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxflow._core import checked, linalg

# Singular values below this share of the largest count as zero. Certified solutions have theirs at 1e-12 or
# below, and genuine ones rarely under 1e-6; solvers at default accuracy fill the space between (NUMERICS).
RANK_TOLERANCE = 1e-8


@checked(positive=["tolerance"])
def numerical_rank(primal: Float[Array, "p q"], tolerance: float = RANK_TOLERANCE) -> Int[Array, ""]:
    """The number of singular values above `tolerance` times the largest; 0 for the zero matrix.

    Lemma 1 of Tarzanagh et al. (2023): at most min(n, d) for solutions of (Att-SVM) and (Att-SVM*).

    **Example:**

    ```python
    assert jf.margin.numerical_rank(jnp.ones((3, 3))) == 1
    ```
    """
    # LAPACK may hang on NaN.
    finite = jnp.all(jnp.isfinite(primal))
    values = linalg.singular_values(jnp.where(finite, primal, 0.0))
    return jnp.sum((values > tolerance * values[0]) & (values > 0))

"""Data made by a teacher."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from jaxflow._core import as_vector, checked, compiled_once, require, require_finite
from jaxflow.data import SampleData
from jaxflow.models import DiagonalHead, HadamardNetwork


def taught(inputs: Any, teacher: Any) -> SampleData:
    r"""Inputs with the outputs of a teacher as targets, $y_i=f^*(x_i)$.

    **Arguments:** `inputs` `(n, ...)`; `teacher`: a model with `outputs(data)`.

    **Example:**

    ```python
    teacher = jf.models.HadamardNetwork.init(jax.random.key(1), jf.models.DiagonalLinear(), p=3)
    jf.teachers.taught(jax.random.normal(jax.random.key(0), (5, 3)), teacher)
    ```
    """
    inputs = as_vector("inputs", inputs)
    require_finite("inputs", inputs)
    known = hasattr(teacher, "outputs") and not isinstance(teacher, type)
    require(known, "teacher", "expected a model with outputs(data)", got=teacher)
    unknown = SampleData(inputs, jnp.zeros(inputs.shape[:1], inputs.dtype))
    return SampleData(inputs, teacher.outputs(unknown))


@checked(least={"n": 1, "T": 1, "d": 1})
@compiled_once
def diagonal_head_task(
    key: Key[Array, ""], n: int, T: int, d: int, scale: float | Float[Array, ""] = 1.0
) -> tuple[SampleData, HadamardNetwork]:
    r"""Isotropic Gaussian sequences $X\in\mathbb R^{T\times d}$, labelled by an attention head with diagonal weights,
    all of them standard Gaussian: the toy task of Appendix A of Boix-Adserà et al. (2023).

    **Arguments:** `key`; `n` samples of `T` tokens of dimension `d` (1,000 of 10 × 50 in the paper); `scale`
    multiplies the teacher's products. The paper does not say how the teacher is drawn.

    **Returns:** the data and the teacher.
    """
    key_inputs, key_teacher = jax.random.split(key)
    u, v = jax.random.normal(key_teacher, (2, DiagonalHead.size(d)))
    teacher = HadamardNetwork(DiagonalHead(), scale * u, v)
    return taught(jax.random.normal(key_inputs, (n, T, d)), teacher), teacher

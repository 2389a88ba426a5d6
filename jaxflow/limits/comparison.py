r"""A linear predictor compared with the optima of several norms: which of them does an optimiser, or a flow, find?"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from jaxflow._core import AbstractPrinted, Code, check_kind, is_concrete, require
from jaxflow._core.affine import is_affine
from jaxflow.losses import Squared
from jaxflow.margin import AbstractNorm, Nuclear, Spectral, max_margin, minimum_norm, solve
from jaxflow.margin.norms import as_norm
from jaxflow.models import AbstractLinearNetwork, AbstractModel, DeepMatrixSensing
from jaxflow.plots.style import CURVES, ROUNDING, new_figure
from jaxflow.risk import EmpiricalRisk
from jaxflow.trajectory import Trajectory

VECTOR_NORMS, MATRIX_NORMS = ("l2", "linf", "l1"), ("l2", "linf", "spectral", "nuclear")


class Comparison(AbstractPrinted):
    r"""How far directions are from the max-margin optimum of each norm, or interpolations from the least norm; `print`
    it, or `plot` it against $\log t$.

    - `norms`: their names, k of them.
    - `log_time`: of the m directions, NaN where there is none.
    - `excess`: $\frac{N(V)/\min_i\langle A_i,V\rangle}{\min\{N:\langle A_i,\cdot\rangle\ge1\}}-1$, `(k, m)`, with the
      certified lower bound of the optimum below; +inf where a margin is not positive. For interpolations:
      $N(V)/\min\{N:\langle A_i,\cdot\rangle=y_i\}-1$, whose sign has no meaning before V interpolates.
    - `optimum`, `(k,)`, and `result`, `(k,)`: that bound, and how its program ended.

    **Example:**

    ```python
    linear_risk = jf.EmpiricalRisk(linear, "logistic")
    path = jf.descend(linear_risk, network, steps=20, save_at=jnp.array([10, 20]))
    found = jf.limits.compare(path, linear_risk)
    print(found)
    found.plot()
    ```
    """

    norms: tuple[str, ...] = eqx.field(static=True)
    log_time: Float[Array, " m"]
    excess: Float[Array, "k m"]
    optimum: Float[Array, " k"]
    result: Code

    def __str__(self) -> str:
        if not is_concrete(self.excess):
            return "a traced Comparison"
        if self.excess.ndim > 2:
            return f"a batch of Comparisons, excess {self.excess.shape}"
        # Of more directions some in between are left out.
        shown = np.unique(np.linspace(0, self.log_time.shape[0] - 1, 8).astype(int))
        rows = [["log t", *self.norms]]
        rows += [[f"{self.log_time[at]:.4g}", *(f"{row[at]:.3g}" for row in self.excess)] for at in shown]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ("  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True)) for row in rows)
        return "excess over the least norm\n" + "\n".join(lines)

    def plot(self) -> Any:
        r"""A Matplotlib figure: the excess in each norm against $\log t$."""
        figure, (axis,) = new_figure(1, width=5.0)
        for at, name in enumerate(self.norms):
            excess = np.maximum(np.asarray(self.excess[at]), ROUNDING)
            axis.plot(np.asarray(self.log_time), excess, color=CURVES[at % len(CURVES)], marker=".", label=name)
        axis.set_yscale("log")
        axis.set_xlabel(r"$\log t$")
        axis.set_ylabel("excess over the optimum")
        axis.legend(frameon=False)
        return figure


def compare(path: Any, risk: EmpiricalRisk, norms: Any = None) -> Comparison:
    r"""The excess of each direction of a linear predictor over the max-margin optimum of each norm.

    **Arguments:**

    - `path`: a `Trajectory` (its save points, or its end where it has none), or one model.
    - `risk`: of a margin loss, or the squared loss (then interpolations are compared with that of least norm). Its
      outputs are linear in the one array that is trained, a vector or a matrix; or the
      model is a linear network, whose coefficients (of `DeepMatrixSensing`: the product) are the predictor.
    - `norms`: names or norm objects; None: ℓ2, ℓ∞ and ℓ1 for vectors, ℓ2, ℓ∞, spectral and nuclear for matrices.

    **Returns:** a `Comparison`. An infeasible program has optimum zero or +inf; read its `result`.

    **Raises:** `ValueError` naming the argument.

    Source: Gunasekar, Lee, Soudry, Srebro (2018), *Characterizing Implicit Bias in Terms of Optimization Geometry*:
    steepest descent in a norm maximises the margin of that norm.

    **Example:**

    ```python
    import optax

    margins = jf.EmpiricalRisk.from_margins(lambda w: linear.inputs @ w, "exponential")
    path = jf.descend(margins, jnp.zeros(3), steps=20, optimizer=optax.sign_sgd(0.1))
    jf.limits.compare(path, margins, ["l2", "linf"]).excess  # (2, 1)
    ```
    """
    check_kind("risk", risk, EmpiricalRisk, "an EmpiricalRisk")
    known = risk.loss.margin or isinstance(risk.loss, Squared)
    require(known, "risk", f"expected a loss of the margin or the squared loss, got {type(risk.loss).__name__}")
    one = path.final.model if isinstance(path, Trajectory) else path
    require(not (isinstance(path, Trajectory) and path.batched), "path", "one trajectory is wanted; use jax.vmap")
    known = risk.data is None or callable(one) or isinstance(one, AbstractModel)
    require(known, "path", "expected a Trajectory, or a model of the risk", got=one)
    read, outputs = _predictor(risk, one)
    size = eqx.filter_eval_shape(read, one)
    # A predictor of one row or one column is a vector.
    shape = tuple(n for n in size.shape if n > 1) or (1,)
    require(len(shape) <= 2, "path", f"expected a vector or a matrix as predictor, got shape {size.shape}")
    zero = jnp.zeros(size.size, size.dtype)

    def flat(w: Float[Array, " d"]) -> Array:
        return outputs(w.reshape(size.shape))

    linear = is_affine(flat, zero)
    linear = linear and not (is_concrete(flat(zero)) and bool(np.any(np.asarray(flat(zero)) != 0)))
    require(linear, "path", "expected outputs that are linear in the one array that is trained")
    rows, targets = jax.jacrev(flat)(zero), risk.source.targets(flat(zero))
    targets = jnp.broadcast_to(targets.reshape(-1), rows.shape[:1])
    if risk.loss.margin:
        rows = targets[:, None] * rows
    rows = rows.reshape(-1, *shape)
    names = (MATRIX_NORMS if len(shape) == 2 else VECTOR_NORMS) if norms is None else norms
    require(isinstance(names, tuple | list) and len(names) > 0, "norms", "expected a list of norms", got=norms)
    chosen = [as_norm(name, "norms") for name in names]
    for norm in chosen:
        fits = len(shape) == 2 or not isinstance(norm, Nuclear | Spectral)
        require(fits, "norms", f"the {norm.alias} norm needs a matrix as predictor, got shape {shape}")
    directions, log_time = _directions(path, read, shape)
    excess, bounds, codes = zip(
        *(_held(rows, targets, directions, norm, risk.loss.margin) for norm in chosen), strict=True
    )
    labels = tuple(name if isinstance(name, str) else name.alias for name in names)
    result = jax.tree.map(lambda *parts: jnp.stack(parts), *codes)
    return Comparison(labels, log_time, jnp.stack(excess), jnp.stack(bounds), result)


def _predictor(risk: EmpiricalRisk, model: Any) -> tuple[Callable[[Any], Array], Callable[[Array], Array]]:
    """What reads the predictor off a model, and the outputs of a predictor."""
    if isinstance(model, AbstractLinearNetwork) and risk.data is not None:
        data: Any = risk.data
        read = DeepMatrixSensing.product if isinstance(model, DeepMatrixSensing) else type(model).linear_coefficients
        return read, lambda w: data.inputs @ w.reshape(-1)
    params, fixed = eqx.partition(model, risk.filter(model))
    leaves, structure = jax.tree.flatten(params)
    require(len(leaves) == 1, "path", f"expected a model that trains one array, got {len(leaves)}")

    def outputs(w: Array) -> Array:
        return risk.source.outputs(eqx.combine(jax.tree.unflatten(structure, [w]), fixed)).reshape(-1)

    return lambda one: jax.tree.leaves(eqx.filter(one, risk.filter(one)))[0], outputs


def _directions(path: Any, read: Callable[[Any], Array], shape: tuple[int, ...]) -> tuple[Array, Array]:
    """`(m, *shape)`, and their log t."""
    if not isinstance(path, Trajectory):
        return read(path).reshape(1, *shape), jnp.full((1,), jnp.nan)
    if path.saved is None:
        return read(path.final.model).reshape(1, *shape), path.final.log_time[None]
    models: PyTree = path.saved.model
    return eqx.filter_vmap(read)(models).reshape(-1, *shape), path.saved.log_time


@eqx.filter_jit
def _held(
    rows: Array, targets: Array, directions: Array, norm: AbstractNorm, margin: bool
) -> tuple[Array, Array, Code]:
    program = max_margin(rows, jnp.ones_like(targets), norm) if margin else minimum_norm(rows, targets, norm)
    solution = solve(program)
    optimum = solution.certificate.dual_value

    def excess(direction: Array) -> Array:
        least = jnp.min(program.values(direction)) if margin else jnp.ones(())
        held = (least > 0) & (optimum > 0)
        return jnp.where(held, norm(direction) / jnp.where(held, least * optimum, 1.0) - 1.0, jnp.inf)

    return jax.vmap(excess)(directions), optimum, solution.result

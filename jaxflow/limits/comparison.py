r"""A predictor compared with the optima of several norms: which of them does an optimiser, or a flow, find?"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from jaxflow._core import AbstractPrinted, Code, check_kind, is_concrete, require
from jaxflow._core.affine import is_affine
from jaxflow.limits.self_certificate import as_primal
from jaxflow.losses import Squared
from jaxflow.margin import AbstractProgram, max_margin, minimum_norm, solve
from jaxflow.margin.norms import as_norm
from jaxflow.models import AbstractAttention, AbstractLinearNetwork, AbstractModel, DeepMatrixSensing
from jaxflow.plots.style import CURVES, ROUNDING, new_figure
from jaxflow.risk import EmpiricalRisk
from jaxflow.theory import predict
from jaxflow.trajectory import Trajectory

VECTOR_NORMS, MATRIX_NORMS = ("l2", "linf", "l1"), ("l2", "linf", "spectral", "nuclear")


class Comparison(AbstractPrinted):
    r"""How far directions are from the max-margin optimum of each norm, or interpolations from the least norm; `print`
    it, or `plot` it against $\log t$.

    - `norms`: their names, k of them.
    - `log_time`: of the m directions, NaN where there is none.
    - `excess`: $\frac{N(V)/\min_i\langle A_i,V\rangle}{\min\{N:\langle A_i,\cdot\rangle\ge1\}}-1$, `(k, m)`, with the
      certified lower bound of the optimum below; +inf where a margin is not positive, or attention has not settled.
      For interpolations:
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
    r"""The excess of each direction of a predictor over the max-margin optimum of each norm.

    The predictor is that of a linear model: the one array that is trained, a vector or a matrix with a row for each
    class; the coefficients of a linear network (of `DeepMatrixSensing`: the product); or the combined weights of
    attention, whose margins are those of the tokens that have at least half of the largest attention at the end.

    **Arguments:**

    - `path`: a `Trajectory` (its save points, or its end where it has none), or one model.
    - `risk`: of a margin loss, or the squared loss (then interpolations are compared with that of least norm).
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
    known = (risk.loss.margin and not risk.soft) or isinstance(risk.loss, Squared)
    require(known, "risk", "expected the squared loss, or a loss of margins of labels", got=risk.loss)
    one = path.final.model if isinstance(path, Trajectory) else path
    require(not (isinstance(path, Trajectory) and path.batched), "path", "one trajectory is wanted; use jax.vmap")
    known = risk.data is None or callable(one) or isinstance(one, AbstractModel)
    require(known, "path", "expected a Trajectory, or a model of the risk", got=one)
    read, program, shape = _attention(risk, one) if isinstance(one, AbstractAttention) else _linear(risk, one)
    names = (MATRIX_NORMS if len(shape) == 2 else VECTOR_NORMS) if norms is None else norms
    require(isinstance(names, tuple | list) and len(names) > 0, "norms", "expected a list of norms", got=norms)
    chosen = [as_norm(name, "norms") for name in names]
    for norm in chosen:
        fits = len(shape) == 2 or not norm.of_matrices
        require(fits, "norms", f"the {norm.alias} norm needs a matrix as predictor, got shape {shape}")
    directions, log_time = _directions(path, read, shape)
    excess, bounds, codes = zip(*(_held(replace(program, norm=norm), directions) for norm in chosen), strict=True)
    labels = tuple(name if isinstance(name, str) else name.alias for name in names)
    result = jax.tree.map(lambda *parts: jnp.stack(parts), *codes)
    return Comparison(labels, log_time, jnp.stack(excess), jnp.stack(bounds), result)


# What reads the predictor off a model, the program of it in some norm, and its shape.
Compared = tuple[Callable[[Any], Array], AbstractProgram, tuple[int, ...]]


def _attention(risk: EmpiricalRisk, model: AbstractAttention) -> Compared:
    data: Any = risk.data
    # Copies of a token have the same attention, and what is still in transit has less than half of the largest.
    attention = model.attention(data)
    selection = attention >= 0.5 * jnp.max(attention, axis=-1, keepdims=True)
    program: Any = predict(risk, model, selection).program
    return lambda one: as_primal(program, one.combined_weights()), program, program.primal_zero.shape


def _linear(risk: EmpiricalRisk, model: Any) -> Compared:
    read, outputs = _predictor(risk, model)
    size = eqx.filter_eval_shape(read, model)
    # A predictor of one row or one column is a vector.
    shape = tuple(n for n in size.shape if n > 1) or (1,)
    require(len(shape) <= 2, "path", f"expected a vector or a matrix as predictor, got shape {size.shape}")
    zero = jnp.zeros(size.size, size.dtype)

    def flat(w: Float[Array, " d"]) -> Array:
        return outputs(w.reshape(size.shape)).reshape(-1)

    at_zero = flat(zero)
    linear = is_affine(flat, zero) and not (is_concrete(at_zero) and bool(np.any(np.asarray(at_zero) != 0)))
    require(linear, "path", "expected outputs that are linear in the one array that is trained")
    rows = jax.jacrev(flat)(zero).reshape(-1, *shape)
    if risk.loss.margin:
        return read, max_margin(rows, jnp.ones_like(at_zero)), shape
    targets = risk.source.targets(at_zero).reshape(-1)
    return read, minimum_norm(rows, jnp.broadcast_to(targets, rows.shape[:1])), shape


def _predictor(risk: EmpiricalRisk, model: Any) -> tuple[Callable[[Any], Array], Callable[[Array], Array]]:
    """What reads the predictor off a model, and the margins of a predictor (of a squared loss its outputs)."""
    if isinstance(model, AbstractLinearNetwork) and risk.data is not None:
        data: Any = risk.data
        signs = data.targets if risk.loss.margin else jnp.ones_like(data.targets)
        read = DeepMatrixSensing.product if isinstance(model, DeepMatrixSensing) else type(model).linear_coefficients
        return read, lambda w: signs * (data.inputs @ w.reshape(-1))
    params, fixed = eqx.partition(model, risk.filter(model))
    leaves, structure = jax.tree.flatten(params)
    require(len(leaves) == 1, "path", f"expected a model that trains one array, got {len(leaves)}")
    values = risk.margins if risk.loss.margin else risk.source.outputs

    def outputs(w: Array) -> Array:
        return values(eqx.combine(jax.tree.unflatten(structure, [w]), fixed))

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
def _held(program: AbstractProgram, directions: Array) -> tuple[Array, Array, Code]:
    solution = solve(program)
    optimum = solution.certificate.dual_value

    def excess(direction: Array) -> Array:
        least = jnp.min(program.margins(direction)) if program.conic else jnp.ones(())
        # Of attention that has settled on nothing there is no margin, or one beside tokens that are not equal yet.
        unequal = jnp.max(jnp.where(program.equal, jnp.abs(program.values(direction)), 0.0))
        equal = (unequal <= jnp.finfo(unequal.dtype).eps ** 0.5 * least) | (not program.conic)
        held = (least > 0) & jnp.isfinite(least) & equal & (optimum > 0)
        return jnp.where(held, program.norm(direction) / jnp.where(held, least * optimum, 1.0) - 1.0, jnp.inf)

    return jax.vmap(excess)(directions), optimum, solution.result

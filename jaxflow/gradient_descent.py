"""Discrete descent by Optax, with the same result type as the flow."""

from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jaxtyping import Array, Float, Int, Key, PyTree

from jaxflow._core import (
    RESULTS,
    Code,
    all_finite,
    checked,
    good,
    is_concrete,
    positive_or_one,
    require,
    tree_in_float,
    tree_norm,
    tree_scale,
)
from jaxflow.risk import EmpiricalRisk
from jaxflow.trajectory import Point, Regime, Trajectory, describe

Normalisation = str | Literal[False]
NORMALISATIONS = ("jointly", "separately", False)


@checked(least={"batch": 1}, nonnegative=["epsilon", "ridge"], positive=["learning_rate"], rising=["save_at"])
def descend(
    risk: EmpiricalRisk,
    model: Any,
    *,
    steps: int,
    optimizer: optax.GradientTransformation | None = None,
    learning_rate: float | Float[Array, ""] | None = None,
    normalised: Normalisation = "jointly",
    epsilon: float | Float[Array, ""] = 0.0,
    ridge: float | Float[Array, ""] = 0.0,
    batch: int | None = None,
    key: Key[Array, ""] | None = None,
    save_at: Int[Array, " m"] | None = None,
    throw: bool = True,
) -> Trajectory:
    r"""Takes `steps` steps of (normalised) gradient descent from `model`.

    $$\theta_{k+1}=\theta_k-\eta\,\frac{g_k}{\|g_k\|+\epsilon},\qquad
    g_k=\nabla\left(L(\theta)+\text{ridge}\,\|\theta\|^2\right)_{\theta=\theta_k}$$

    Gradients are carried on a logarithmic scale: normalised steps stay correct where the gradient
    underflows.

    The trajectory has the form of one of the flow. Its length is the sum of the lengths of the steps; its time is that
    of the flow for the same lengths and gradients, $t=\sum_k\|\theta_{k+1}-\theta_k\|/\|g_k\|$: steps times η for plain
    descent, $\sum_k\eta/\|g_k\|$ for normalised descent. Gradient, velocity and multipliers of its points are those of
    the risk alone.

    **Arguments:**

    - `risk`, `model`: one instance; use `jax.vmap` for a batch, and `jax.jit` for what runs more than once.
    - `steps`: how many.
    - `optimizer`: the Optax transformation that makes updates of (normalised) gradients, with schedules and memory of
      its own; None for `optax.sgd(learning_rate)` (0.1 by default), which makes this gradient descent. A transformation
      that needs the value (`optax.polyak_sgd`, `optax.lbfgs`) receives that of the risk; this needs `normalised=False`.
    - `normalised`: `"jointly"` by the norm of the whole gradient, `"separately"` each trained array by its own, or
      False. Without normalisation steps underflow with the gradient, and the weights no longer change. The same holds
      for a transformation that normalises by itself (`optax.normalize_by_update_norm`), because it receives the
      gradient as floating-point numbers. `normalised` divides before that, on the logarithmic scale.
    - `epsilon`: added to every norm before the division.
    - `ridge`: the weight of the penalty $\|\theta\|^2$ over the trained parameters.
    - `batch`: the number of data in the gradient of a step; None: all. `key` gives a new order of the data in each
      epoch of `n // batch` steps; the remaining data of an epoch are left out. For a risk that is a sum the gradient is
      multiplied by `n / batch`. The gradients and multipliers of points are those of all data.
    - `save_at`: increasing numbers of steps, `(m,)`, from 0 (the start) to `steps`, at which to save points.
    - `throw`: raise if the (concrete) descent failed. Under a trace nothing raises; read `result`.

    **Returns:** a `Trajectory`, whose `result` is `successful` or names the failure.

    **Raises:** `ValueError` naming the argument; `RuntimeError` if `throw` and the descent failed.

    **Example:**

    ```python
    path = jf.descend(risk, model, steps=20, learning_rate=0.1)
    path.model.W
    ```
    """
    risk, model = tree_in_float((risk, model))
    risk.check(model)
    known = normalised is False or (isinstance(normalised, str) and normalised in NORMALISATIONS)
    require(known, "normalised", f"expected one of {NORMALISATIONS}", got=normalised)
    if optimizer is not None:
        require(learning_rate is None, "learning_rate", "an optimizer brings its own; give one of the two")
    rate = 0.1 if learning_rate is None else learning_rate
    require((batch is None) == (key is None), "key", "a batch and the key that draws it come together")
    if batch is not None:
        require(risk.data is not None, "batch", "the data of this risk are hidden in its function; leave batch out")
        count = jax.tree.leaves(risk.data)[0].shape[0]
        require(batch <= count, "batch", f"expected at most all {count} data, got {batch}")
    if save_at is not None and is_concrete(save_at):
        within = bool(np.all((np.asarray(save_at) >= 0) & (np.asarray(save_at) <= steps)))
        require(within, "save_at", f"expected numbers of steps within 0 and {steps}")
    # A penalty of nothing is left out of every step.
    pulled = not is_concrete(ridge) or bool(np.any(np.asarray(ridge) != 0))
    penalty = jnp.asarray(ridge, float) if pulled else None
    sizes = jnp.asarray(rate, float), jnp.asarray(epsilon, float)
    descent = _Descent(risk, optimizer, normalised, *sizes, penalty, batch, key)
    trajectory = _descend(descent, model, jnp.asarray(steps), save_at)
    if throw and is_concrete(trajectory.result) and not bool(good(trajectory.result)):
        raise RuntimeError(f"descend: {describe(trajectory.result)}")
    return trajectory


class _State(eqx.Module):
    model: Any
    memory: PyTree
    count: Int[Array, ""]
    log_time: Float[Array, ""]
    log_length: Float[Array, ""]


class _Descent(eqx.Module):
    risk: EmpiricalRisk
    optimizer: optax.GradientTransformation | None = eqx.field(static=True)
    normalised: Normalisation = eqx.field(static=True)
    rate: Float[Array, ""]
    epsilon: Float[Array, ""]
    ridge: Float[Array, ""] | None
    batch: int | None = eqx.field(static=True)
    key: Key[Array, ""] | None

    def met(self, count: Int[Array, ""]) -> tuple[EmpiricalRisk, float]:
        """The risk of the data that step number `count` meets, and the factor of its gradient."""
        if self.batch is None or self.key is None:
            return self.risk, 1.0
        number = jax.tree.leaves(self.risk.data)[0].shape[0]
        epoch, place = jnp.divmod(count, number // self.batch)
        order = jax.random.permutation(jax.random.fold_in(self.key, epoch), number)
        chosen = lax.dynamic_slice(order, (place * self.batch,), (self.batch,))
        data = jax.tree.map(lambda x: x[chosen], self.risk.data)
        factor = number / self.batch if self.risk.reduction == "sum" else 1.0
        return eqx.tree_at(lambda r: r.source.data, self.risk, data), factor

    def trained(self, model: Any) -> PyTree:
        return eqx.filter(model, self.risk.filter(model))

    @property
    def transformation(self) -> optax.GradientTransformation:
        """Optax's own gradient descent where no other was given; it keeps no memory."""
        return optax.sgd(self.rate) if self.optimizer is None else self.optimizer

    def start(self, model: Any) -> _State:
        memory = self.transformation.init(self.trained(model))
        never = jnp.asarray(-jnp.inf)
        return _State(model, memory, jnp.zeros((), int), never, never)

    def gradient(self, risk: EmpiricalRisk, factor: float, model: Any) -> tuple[Float[Array, ""], PyTree]:
        """The gradient with its penalty, as log scale and a tree of order one."""
        scaled = risk.scaled_gradient(model)
        if factor != 1.0:
            scaled = eqx.tree_at(lambda s: s.log_scale, scaled, scaled.log_scale + jnp.log(factor))
        if self.ridge is None:
            return scaled.log_scale, scaled.gradient
        pull = tree_scale(2.0 * self.ridge, self.trained(model))
        log_scale = jnp.maximum(scaled.log_scale, jnp.log(tree_norm(pull)))
        shrink = jnp.exp(scaled.log_scale - log_scale)
        # Below the smallest normal number there is no pull to bring to the common scale.
        tiny = jnp.finfo(log_scale.dtype).tiny
        grow = jnp.exp(-jnp.maximum(log_scale, jnp.log(tiny)))
        return log_scale, jax.tree.map(lambda a, b: shrink * a + grow * b, scaled.gradient, pull)

    def direction(self, log_scale: Array, gradient: PyTree) -> tuple[Float[Array, ""], PyTree]:
        """What is descended along, as log scale and a tree of order one."""
        if not self.normalised:
            return log_scale, gradient

        def over_norm(part: PyTree) -> Float[Array, ""]:
            # Of a zero gradient nothing is left, whatever it is divided by; the scale must be a number.
            norm = tree_norm(part)
            log_norm = log_scale + jnp.log(positive_or_one(norm))
            return log_scale - jnp.logaddexp(log_norm, jnp.log(self.epsilon))

        if self.normalised == "jointly":
            return over_norm(gradient), gradient
        scales = jax.tree.map(over_norm, gradient)
        largest = jnp.max(jnp.stack(jax.tree.leaves(scales)))
        return largest, jax.tree.map(lambda c, part: jnp.exp(c - largest) * part, scales, gradient)

    def step(self, state: _State) -> _State:
        risk, factor = self.met(state.count)
        log_scale, gradient = self.gradient(risk, factor, state.model)
        log_size, direction = self.direction(log_scale, gradient)
        whole = tree_scale(jnp.exp(log_size), direction)
        transformation, trained = optax.with_extra_args_support(self.transformation), self.trained(state.model)

        def value(trained: PyTree) -> Float[Array, ""]:
            return factor * risk(eqx.combine(trained, state.model))

        # What line searches and step sizes by the value ask for; left out of the program where nothing does.
        extra = {"value": value(trained), "grad": whole, "value_fn": value}
        updates, memory = transformation.update(whole, state.memory, trained, **extra)
        # In logarithms a step has its length even where it is too short for the weights to notice.
        known = self.optimizer is None
        log_length = (
            jnp.log(self.rate) + log_size + jnp.log(tree_norm(direction)) if known else jnp.log(tree_norm(updates))
        )
        log_norm = log_scale + jnp.log(tree_norm(gradient))
        moving = log_norm > -jnp.inf
        # Without a gradient nothing tells the time but the learning rate of plain descent.
        waited = jnp.log(self.rate) if self.optimizer is None and not self.normalised else -jnp.inf
        log_time = jnp.where(moving, log_length - jnp.where(moving, log_norm, 0.0), waited)
        return _State(
            eqx.apply_updates(state.model, updates),
            memory,
            state.count + 1,
            jnp.logaddexp(state.log_time, log_time),
            jnp.logaddexp(state.log_length, log_length),
        )

    def point(self, state: _State) -> Point:
        scaled = self.risk.scaled_gradient(state.model)
        norm = tree_norm(scaled.gradient)
        return Point(
            model=state.model,
            log_time=state.log_time,
            log_log_time=jnp.log(jnp.maximum(state.log_time, 0.0)),
            log_arc_length=state.log_length,
            log_norm=jnp.log(tree_norm(self.trained(state.model))),
            log_scale=scaled.log_scale,
            log_gradient_norm=scaled.log_norm,
            velocity=tree_scale(-1.0 / positive_or_one(norm), scaled.gradient),
            multipliers=scaled.multipliers,
            reached=jnp.asarray(True),
        )


@eqx.filter_jit
def _descend(descent: _Descent, model: Any, steps: Int[Array, ""], save_at: Int[Array, " m"] | None) -> Trajectory:
    finite = all_finite((eqx.filter(descent.risk, eqx.is_array), eqx.filter(model, eqx.is_array)))
    start = descent.start(model)
    constants, static = eqx.partition(start, eqx.is_array)

    def advance(arrays: PyTree, first: Array, last: Array) -> PyTree:
        def body(_: Array, arrays: PyTree) -> PyTree:
            return eqx.filter(descent.step(eqx.combine(arrays, static)), eqx.is_array)

        return lax.fori_loop(first, last, body, arrays)

    saved = None
    done = jnp.zeros_like(steps)
    arrays = constants
    if save_at is not None:

        def segment(carry: PyTree, until: Array) -> tuple[PyTree, PyTree]:
            done, arrays = carry
            arrays = advance(arrays, done, until)
            return (until, arrays), eqx.filter(descent.point(eqx.combine(arrays, static)), eqx.is_array)

        grid = save_at.astype(steps.dtype)
        (done, arrays), points = lax.scan(segment, (done, arrays), grid)
        saved = eqx.combine(points, eqx.filter(descent.point(start), eqx.is_array, inverse=True))
    arrays = advance(arrays, done, steps)
    end = eqx.combine(arrays, static)
    final = descent.point(end)
    stays = all_finite(eqx.filter(end.model, eqx.is_array))
    result: Any = RESULTS.where(stays, RESULTS.successful, RESULTS.nonlinear_divergence)  # pyright: ignore
    if descent.risk.opaque:
        tiny = jnp.log(jnp.finfo(final.log_gradient_norm.dtype).tiny)
        result = RESULTS.where(final.log_gradient_norm < tiny, RESULTS.gradient_underflow, result)
    result = RESULTS.where(finite, result, RESULTS.nonfinite_data)
    zero = jnp.zeros_like(steps)
    stats = {"num_steps": steps, "num_accepted_steps": steps, "num_rejected_steps": zero}
    return Trajectory(final, saved, Code(Regime.discrete, Regime), result, stats)

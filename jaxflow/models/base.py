"""What a risk needs of a model: outputs, and a pull-back of output weights that does not underflow."""

import abc
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, PyTree

from jaxflow._core import AbstractPrinted, ScaledGradient, checked, exp_nonpositive, require

# (scales, weights), both shaped as the outputs -> gradient of the loss with output derivatives e^scale * weight.
Pullback = Callable[[Float[Array, "..."], Float[Array, "..."]], ScaledGradient]


def on_one_scale(
    scales: Float[Array, "..."], weights: Float[Array, "..."]
) -> tuple[Float[Array, ""], Float[Array, "..."]]:
    """Numbers $e^{c_i}w_i$ as `(c, w)` with the largest scale of those that are not zero; it is constant under
    differentiation, as scales are. Of no number it is zero."""
    largest = lax.stop_gradient(jnp.max(jnp.where(weights != 0, scales, -jnp.inf)))
    common = jnp.where(jnp.isneginf(largest), 0.0, largest)
    return common, weights * exp_nonpositive(jnp.where(weights != 0, scales - common, 0.0))


class AbstractModel(AbstractPrinted):
    """A parametrised map from data to outputs. Any object with `outputs(data)` is accepted in its place, and any
    callable on one input.
    """

    # The fields that are trained by default; a class with another rule defines `trainable`.
    trained: ClassVar[tuple[str, ...]] = ()

    @abc.abstractmethod
    def outputs(self, data: Any) -> Float[Array, "..."]:
        """One output for each label of the data, `(n,)` or `(n, k)`."""

    def linearize(self, data: Any, trainable: PyTree) -> tuple[Float[Array, "..."], Pullback]:
        """The outputs, and the map that pulls scaled output weights back to the trainable parameters; by automatic
        differentiation unless overridden."""
        return linearize_outputs(lambda model: model.outputs(data), self, trainable)

    def trainable(self) -> PyTree:
        """The leaves that are trained by default, as a pytree of Booleans; `trainable` of the risk overrides it."""
        return mark_trainable(self, self.trained)

    @abc.abstractmethod
    def check(self, data: Any) -> None:
        """Compares shapes with the data. **Raises:** `ValueError` naming the parameter."""


def linearize(model: Any, data: Any, trainable: PyTree) -> tuple[Float[Array, "..."], Pullback]:
    """`AbstractModel.linearize`, or an ordinary vector–Jacobian product for any other model."""
    if isinstance(model, AbstractModel):
        return model.linearize(data, trainable)
    return linearize_outputs(lambda m: outputs_of(m, data), model, trainable)


def outputs_of(model: Any, data: Any) -> Float[Array, "..."]:
    """`model.outputs(data)`, or the model on every one of `data.inputs` where it is a plain callable.

    A last axis of length one is dropped where the targets have none. Integer targets are class numbers, beside outputs
    with one more axis, that of the classes.

    **Raises:** `ValueError` naming `model`: no callable, does not accept an input, or outputs unlike the targets.

    **Example:**

    ```python
    assert jf.models.outputs_of(model, data).shape == (3,)
    jf.models.outputs_of(lambda x: jnp.sum(x), linear)  # a plain callable, input by input
    ```
    """
    require(getattr(data, "targets", getattr(data, "labels", None)) is not None, "data", "expected data", got=data)
    if hasattr(model, "outputs"):
        return model.outputs(data)
    require(
        callable(model), "model", f"expected a callable or an object with outputs(data), got {type(model).__name__}"
    )
    inputs = getattr(data, "inputs", None)
    require(inputs is not None, "model", f"a plain callable needs inputs, and {type(data).__name__} has none")
    inputs, shape = jnp.asarray(inputs), data.targets.shape
    one = jax.ShapeDtypeStruct(inputs.shape[1:], inputs.dtype)
    try:
        found = eqx.filter_eval_shape(model, one)
    except (TypeError, ValueError) as error:
        raise ValueError(f"model: does not accept one input of shape {one.shape} ({error})") from error
    got: Any = getattr(found, "shape", type(found).__name__)
    if jnp.issubdtype(data.targets.dtype, jnp.integer):
        many = hasattr(found, "shape") and len(got) == len(shape) and got[:-1] == shape[1:] and got[-1] > 1
        wanted = ", ".join([*map(str, shape[1:]), "C"])
        require(
            many,
            "model",
            f"expected an output of shape ({wanted}), a number for each of C > 1 classes, for one input, got {got} "
            "(labels are class numbers, not rows of them)",
        )
        return jax.vmap(model)(inputs)
    single = hasattr(found, "shape") and (inputs.shape[0], *found.shape) in (shape, (*shape, 1))
    require(single, "model", f"expected an output of shape {shape[1:]} for one input, as the targets have, got {got}")
    return jax.vmap(model)(inputs).reshape(shape)


@checked()
def linearize_outputs(
    outputs: Callable[[Any], Float[Array, "..."]], model: Any, trainable: PyTree
) -> tuple[Float[Array, "..."], Pullback]:
    """Linearizes any output function of a model by automatic differentiation.

    This is enough where the outputs themselves do not saturate: the scale of the loss is kept apart.

    **Example:**

    ```python
    trained = jf.models.default_trainable(model)
    outputs, pullback = jf.models.linearize_outputs(lambda m: m.outputs(data), model, trained)
    ```
    """
    params, frozen = eqx.partition(model, trainable)
    values, vjp = jax.vjp(lambda p: outputs(eqx.combine(p, frozen)), params)

    def pullback(scales: Float[Array, "..."], weights: Float[Array, "..."]) -> ScaledGradient:
        scale, weights = on_one_scale(scales, weights)
        return ScaledGradient(scale, vjp(weights)[0], weights)

    return values, pullback


def default_trainable(model: Any) -> PyTree:
    """The model's own choice; for a model without one, every inexact array.

    **Example:**

    ```python
    trained = jf.models.default_trainable(model)
    assert trained.W and not trained.head.v  # W is trained, the head is not
    ```
    """
    if isinstance(model, AbstractModel):
        return model.trainable()
    return jax.tree.map(eqx.is_inexact_array, model)


def attention_and_head(model: Any) -> PyTree:
    r"""For `EmpiricalRisk(..., trainable=attention_and_head)`: the prediction head is trained with the attention.

    Every inexact array is trained: attention weights and all parameters of the head (for a `ConcaveHead` λ too; give a
    pytree of Booleans to fix some of them).

    No theorem then names the limit. Scores $\gamma_{it}=Y_i\,h(x_{it})$ change along the flow, so that the optimal
    tokens of Definition 1 are not a property of the instance, and Theorems 1–10 of Tarzanagh et al. (2023) are all for
    a fixed head. The output weights $\ell'(f_i)$ are not bounded away from zero either: with a growing head they
    vanish, at rates that differ between sequences. For a prompt and its head Ataee Tarzanagh et al. (2023), *Max-Margin
    Token Selection in Attention Mechanism*, have theorems on regularisation paths alone.

    `find_limit` therefore raises an error. `integrate` follows the joint flow, and `jaxflow.margin.certify` bounds its
    directions (page "Your own model").
    """
    return jax.tree.map(eqx.is_inexact_array, model)


def mark_trainable(model: Any, names: tuple[str, ...]) -> PyTree:
    """A pytree of Booleans shaped like `model`: True at the array leaves of the named fields."""
    frozen = jax.tree.map(lambda _: False, model)

    def fields(tree: Any) -> list:
        return [getattr(tree, name) for name in names]

    return eqx.tree_at(fields, frozen, [jax.tree.map(eqx.is_inexact_array, x) for x in fields(model)])


def require_shape(name: str, array: Array, shape: tuple[int, ...], why: str) -> None:
    """Raises a `ValueError` naming `name` unless the array has this shape."""
    require(jnp.shape(array) == shape, name, f"expected shape {shape} {why}, got {jnp.shape(array)}")

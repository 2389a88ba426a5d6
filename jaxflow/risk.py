"""Empirical risks: value, log-scaled gradient and multipliers."""

import abc
from collections.abc import Callable
from typing import Any, ClassVar, Literal, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from jaxflow._core import (
    AbstractPrinted,
    ScaledGradient,
    as_arrays,
    as_classes,
    as_signs,
    is_concrete,
    positive_or_one,
    require,
    require_finite,
    require_signs,
    tree_scale,
)
from jaxflow.data import LinearData, SampleData, TokenData
from jaxflow.losses import AbstractLoss, CrossEntropy, MarginLoss, as_loss, margins_of, scaled_by_output, weights_of
from jaxflow.models import AbstractModel, Pullback, default_trainable, linearize, linearize_outputs, outputs_of


class AbstractSource(AbstractPrinted):
    """The source of a risk's outputs and targets."""

    @abc.abstractmethod
    def linearize(self, model: Any, trainable: PyTree) -> tuple[Float[Array, "..."], Pullback]:
        """Outputs and their scaled pull-back."""

    @abc.abstractmethod
    def outputs(self, model: Any) -> Float[Array, "..."]:
        """Outputs alone."""

    @abc.abstractmethod
    def targets(self, outputs: Float[Array, "..."]) -> Array:
        """Targets in the shape of the outputs, or class numbers in that shape without its last axis."""


class DataSource(AbstractSource):
    """Outputs of a model on data."""

    data: TokenData | LinearData | SampleData

    def linearize(self, model: Any, trainable: PyTree) -> tuple[Float[Array, "..."], Pullback]:
        return linearize(model, self.data, trainable)

    def outputs(self, model: Any) -> Float[Array, "..."]:
        return outputs_of(model, self.data)

    def targets(self, outputs: Float[Array, "..."]) -> Array:
        return self.data.labels if isinstance(self.data, TokenData) else self.data.targets


class MarginSource(AbstractSource):
    """Margins q(θ) of a model of your own; the targets are 1."""

    margins: Callable[[Any], Float[Array, " m"]] = eqx.field(static=True)

    def linearize(self, model: Any, trainable: PyTree) -> tuple[Float[Array, "..."], Pullback]:
        return linearize_outputs(self.margins, model, trainable)

    def outputs(self, model: Any) -> Float[Array, "..."]:
        return self.margins(model)

    def targets(self, outputs: Float[Array, "..."]) -> Array:
        return jnp.ones_like(outputs)


class OpaqueLoss(AbstractLoss):
    """The identity: the output is the loss value itself. Its gradient underflows with the loss."""

    margin: ClassVar[bool] = False

    def value(self, outputs: Float[Array, "..."], targets: Float[Array, "..."]) -> Float[Array, "..."]:
        return outputs

    def log_value(self, outputs: Float[Array, "..."], targets: Float[Array, "..."]) -> Float[Array, "..."]:
        return jnp.log(outputs)

    def scaled_derivative(
        self, outputs: Float[Array, "..."], targets: Float[Array, "..."]
    ) -> tuple[Float[Array, ""], Float[Array, "..."]]:
        return jnp.zeros(()), jnp.ones_like(outputs)


def _as_data(pair: Any, loss: AbstractLoss) -> LinearData | SampleData:
    """Data from `(inputs, labels)`. **Raises:** `ValueError` naming `data` or `labels`."""
    require(len(pair) == 2, "data", f"expected a pair (inputs, labels), got {len(pair)} entries")
    labels, many = pair[1], isinstance(loss, CrossEntropy)
    if loss.margin:
        labels = as_classes("labels", labels) if many else as_signs("labels", labels)
    classes = labels
    inputs, labels = as_arrays(inputs=pair[0], labels=labels)
    require(inputs.ndim >= 1, "data", "expected inputs of shape (n, ...), got a number")
    kind = LinearData if inputs.ndim == 2 and labels.ndim == 1 else SampleData
    expected = f"expected {inputs.shape[0]} labels, one for each input, got shape {labels.shape}"
    require(labels.shape[:1] == inputs.shape[:1], "labels", expected)
    require_finite("labels", labels)
    if not many:
        return _labelled(kind(inputs, labels), loss, "labels")
    # Class numbers stay integers, which tells them from frequencies where they are traced. Rows that sum to one in
    # single precision have another sum in double.
    numbers = jnp.issubdtype(classes.dtype, jnp.integer)
    targets = classes if numbers else labels / jnp.sum(labels, axis=-1, keepdims=True)
    return eqx.tree_at(lambda d: d.targets, kind(inputs, labels), targets)


def _require_margins(loss: AbstractLoss, labels: Any) -> None:
    """**Raises:** `ValueError` where a function, which is one of the margin, meets targets of many values."""
    values = np.unique(np.asarray(labels)).size if isinstance(loss, MarginLoss) and is_concrete(labels) else 0
    require(
        values <= 2,
        "loss",
        f"a function is a loss of the margin y f(x) with labels -1 and 1, and there are {values} values; for one of "
        "the residual f(x) - y extend jaxflow.losses.AbstractLoss, or use 'squared'",
    )


def _labelled(data: LinearData | SampleData, loss: AbstractLoss, argument: str = "targets") -> LinearData | SampleData:
    """Data with the targets of the loss: labels -1 and 1, class numbers as integers, frequencies, real values.

    **Raises:** `ValueError` naming the `argument` for what is none of these."""
    if isinstance(loss, CrossEntropy):
        return eqx.tree_at(lambda d: d.targets, data, as_classes(argument, data.targets))
    if not loss.margin:
        real = jnp.issubdtype(data.targets.dtype, jnp.floating)
        return data if real else type(data)(data.inputs, data.targets)
    targets = as_signs(argument, data.targets)
    _require_margins(loss, targets)
    require_signs(argument, targets)
    return data if targets is data.targets else type(data)(data.inputs, targets)


def _finite(leaf: Any) -> bool:
    """Whether a leaf holds no NaN and no infinity that can be seen."""
    seen = isinstance(leaf, jax.Array | np.ndarray) and is_concrete(leaf)
    return not seen or leaf.dtype.kind not in "fc" or bool(np.isfinite(np.asarray(leaf)).all())


class EmpiricalRisk(AbstractPrinted):
    r"""$L(\theta)=\frac1n\sum_i\ell(f(\theta;X_i),y_i)$, equation (2) of Tarzanagh et al. (2023).

    **Arguments:**

    - `data`: `TokenData`, `LinearData`, `SampleData`, a pair `(inputs, labels)` of arrays (or any other
      `AbstractSource` of outputs and targets). A loss of the margin takes labels ±1, or two classes in another form,
      which become ±1 (`risk.data` shows them): True is +1, so is 1 beside 0, and of two strings the later one in sorted
      order. `"cross_entropy"` takes class numbers 0 to C−1, and a model with C outputs where others have one; or
      frequencies of the classes, `(n, C)` rows of floats that sum to one. For other losses targets are real values.
    - `loss`: one of `jaxflow.losses`, its name (`"logistic"`, `"exponential"`, `"cross_entropy"`, `"squared"`, ...), or
      a function of the margin $q=yf$.
    - `trainable`: which parameters are trained: a pytree of Booleans like the model, a function
      `model -> such a pytree`, or None for the model's own default (attention weights; the head stays fixed).
    - `reduction`: `"mean"` over all data (outputs, where each has a target; default) or `"sum"`; it only rescales time.

    **Raises:** `ValueError` naming the argument for concrete data with NaN, labels of other than two classes, or
    inconsistent shapes.

    **Example:**

    ```python
    risk = jf.EmpiricalRisk(data, "logistic")
    risk(model)  # the loss
    risk.scaled_gradient(model)  # log_scale, gradient, multipliers
    jf.EmpiricalRisk((linear.inputs, linear.targets), lambda q: jnp.exp(-q))  # arrays, and a loss of your own
    ```
    """

    source: AbstractSource
    loss: AbstractLoss
    trainable: Any = eqx.field(static=True)
    reduction: Literal["mean", "sum"] = eqx.field(static=True)

    # Annotated loosely: wrong arguments get the errors below, which say more than a type check.
    def __init__(self, data: Any, loss: Any, trainable: Any = None, reduction: Any = "mean"):
        loss = as_loss(loss)
        if isinstance(data, tuple | list):
            data = _as_data(data, loss)
        if not isinstance(data, AbstractSource):
            kind = type(data).__name__
            known = isinstance(data, TokenData | LinearData | SampleData)
            require(known, "data", f"expected TokenData, LinearData, SampleData or (inputs, labels), got {kind}")
            data.check()
            tokens = isinstance(data, TokenData)
            many = isinstance(loss, CrossEntropy)
            require(
                not (tokens and many), "loss", "cross_entropy needs class numbers; labels of TokenData are -1 and 1"
            )
            data = data if isinstance(data, TokenData) else _labelled(data, loss)
        # A reduction that is an array has no truth value to compare.
        named = isinstance(reduction, str) and reduction in ("mean", "sum")
        require(named, "reduction", "expected 'mean' or 'sum'", got=reduction)
        leaves = jax.tree.leaves(trainable)
        flags = callable(trainable) or all(isinstance(leaf, bool) for leaf in leaves)
        known = trainable is None or (flags and not isinstance(trainable, bool))
        require(known, "trainable", "expected True and False like the model, or a function", got=trainable)
        self.source = data if isinstance(data, AbstractSource) else DataSource(data)
        self.loss = loss
        self.trainable = trainable
        self.reduction = cast(Literal["mean", "sum"], reduction)

    @classmethod
    def from_margins(
        cls,
        margins: Callable[[Any], Float[Array, " m"]],
        loss: Any,
        trainable: Any = None,
        reduction: Literal["mean", "sum"] = "mean",
    ) -> "EmpiricalRisk":
        """The loss of margins `margins(model) -> (m,)` of any model, for example a homogeneous one: their mean or
        sum."""
        require(callable(margins), "margins", "expected a function of the model")
        loss = as_loss(loss)
        one = loss.margin and not isinstance(loss, CrossEntropy)
        require(one, "loss", f"{type(loss).__name__} is not a margin loss of one margin for each datum")
        return cls(MarginSource(margins), loss, trainable, reduction)

    @classmethod
    def from_function(cls, value: Callable[[Any], Float[Array, ""]], trainable: Any = None) -> "EmpiricalRisk":
        """Any differentiable loss `value(model) -> scalar`.

        Its gradient is ordinary autodiff and underflows with the loss; integration then ends with the result
        `gradient_underflow`.
        """
        require(callable(value), "value", "expected a function of the model")
        source = MarginSource(lambda model: jnp.reshape(value(model), (1,)))
        return cls(source, OpaqueLoss(), trainable)

    @property
    def data(self) -> TokenData | LinearData | SampleData | None:
        """The data, or None for a risk made from margins or a function."""
        return self.source.data if isinstance(self.source, DataSource) else None

    @property
    def opaque(self) -> bool:
        """Whether the gradient may underflow (`from_function`)."""
        return isinstance(self.loss, OpaqueLoss)

    def filter(self, model: Any) -> PyTree:
        """The trainable leaves of this model as a pytree of Booleans."""
        if self.trainable is None:
            return default_trainable(model)
        return self.trainable(model) if callable(self.trainable) else self.trainable

    def check(self, model: Any, values: bool = True) -> None:
        """Compares the model's shapes with the data, and checks concrete weights if `values`.

        **Raises:** `ValueError` naming the parameter.
        """
        if isinstance(model, type):
            raise ValueError(f"model: expected an object, got the class {model.__name__}; see its `init`")
        if self.data is not None:
            known = isinstance(model, AbstractModel) or callable(model) or hasattr(model, "outputs")
            require(known, "model", "expected a callable or an object with outputs(data)", got=model)
        if self.data is not None and isinstance(model, AbstractModel):
            model.check(self.data)
        if isinstance(self.loss, CrossEntropy):
            self._check_classes(model)
        if values and not all(_finite(leaf) for leaf in jax.tree.leaves(model)):
            paths = jax.tree_util.tree_leaves_with_path(model)
            where = next(jax.tree_util.keystr(path) for path, leaf in paths if not _finite(leaf))
            raise ValueError(f"model: NaN or infinite entry in {where.lstrip('.') or 'it'}")

    def _check_classes(self, model: Any) -> None:
        outputs: Any = eqx.filter_eval_shape(self.source.outputs, model)
        targets: Any = eqx.filter_eval_shape(self.source.targets, outputs)
        wanted = targets.shape if self.soft else (*targets.shape, outputs.shape[-1])
        fits = outputs.shape == wanted and outputs.shape[-1] > 1
        wanted = f"({', '.join(map(str, (*wanted[:-1], wanted[-1] if self.soft else 'C')))})"
        require(fits, "model", f"cross_entropy needs outputs of shape {wanted}, C > 1 classes, got {outputs.shape}")
        labels = getattr(self.data, "targets", None)
        if labels is not None and is_concrete(labels) and not self.soft:
            largest, classes = int(np.max(np.asarray(labels))), outputs.shape[-1]
            require(largest < classes, "labels", f"class {largest}, and outputs are of classes 0 to {classes - 1}")

    def losses(self, model: Any) -> Float[Array, "..."]:
        """The losses of which the risk is the mean or the sum."""
        outputs = self.source.outputs(model)
        return self.loss.value(outputs, self.source.targets(outputs))

    def __call__(self, model: Any) -> Float[Array, ""]:
        """L(θ); underflows to zero far out. `log_value` does not."""
        values = self.losses(model)
        return jnp.mean(values) if self.reduction == "mean" else jnp.sum(values)

    def log_value(self, model: Any) -> Float[Array, ""]:
        """log L(θ) without underflow."""
        outputs = self.source.outputs(model)
        logs = self.loss.log_value(outputs, self.source.targets(outputs))
        return jax.nn.logsumexp(logs) - jnp.log(self.count(outputs))

    def margins(self, model: Any) -> Float[Array, "... g"]:
        """The margins of every datum on a last axis, see `jaxflow.losses.margins_of`: one, or one for every class but
        its own. **Raises:** `ValueError` for a loss that is not a function of margins."""
        outputs = self.source.outputs(model)
        return margins_of(self.loss, outputs, self.source.targets(outputs))

    def weights(self, model: Any) -> Float[Array, "..."]:
        r"""The $w_i$ of $L=\sum_iw_i\ell(q_i)$, one for each row of `margins`; see `jaxflow.losses.weights_of`."""
        outputs = self.source.outputs(model)
        return weights_of(self.loss, outputs, self.source.targets(outputs)) / self.count(outputs)

    @property
    def soft(self) -> bool:
        """Whether the data are frequencies of classes."""
        targets = getattr(self.data, "targets", None)
        if not isinstance(self.loss, CrossEntropy) or targets is None:
            return False
        return bool(jnp.issubdtype(targets.dtype, jnp.floating))

    def scaled_gradient(self, model: Any) -> ScaledGradient:
        r"""$\nabla L$ with respect to the trainable parameters, as `(log_scale, gradient, multipliers)`.

        Output weights $w_i=\partial L/\partial f_i$ are formed on a logarithmic scale and pulled back; no intermediate
        product can underflow.
        """
        outputs, pullback = self.source.linearize(model, self.filter(model))
        scales, weights = scaled_by_output(self.loss, outputs, self.source.targets(outputs))
        scaled = pullback(scales, weights / self.count(outputs))
        if not self.opaque:
            return scaled
        # Keep the factor of order one for as long as floating point can.
        sizes = [jnp.max(jnp.abs(leaf)) for leaf in jax.tree.leaves(scaled.gradient)]
        size = jax.lax.stop_gradient(jnp.max(jnp.stack(sizes)))
        size = positive_or_one(size)
        return ScaledGradient(scaled.log_scale + jnp.log(size), tree_scale(1.0 / size, scaled.gradient), None)

    def count(self, outputs: Float[Array, "..."]) -> int:
        """The number of losses in the mean; one for a sum."""
        values = jax.eval_shape(self.loss.value, outputs, self.source.targets(outputs))
        return values.size if self.reduction == "mean" else 1

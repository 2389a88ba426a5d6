r"""Instances of linear networks for the referee: data of many kinds, and starts of every scheme, in NumPy."""

from typing import Any, NamedTuple

import numpy as np

from tests.referee.paths import Vectors

# Shapes (n, d): few, since the library compiles once for each, with each loss and depth.
SHAPES = {
    "small": {"matrix sensing": (2, 4), "": (3, 6)},
    "large": {"matrix sensing": (5, 16), "deep network": (5, 8), "": (5, 20)},
    "tall": {"": (7, 4)},
    "one": {"matrix sensing": (1, 4), "": (1, 4)},
    "d = 1": {"": (2, 1)},
    "d = 2": {"": (3, 2)},
    "labels": {"": (6, 4)},
}
MODELS = ("diagonal network", "deep network", "convolutional network", "matrix sensing")
# The two that the theorems of l_(2/L) are about.
SPARSE = ("diagonal network", "convolutional network")


class Kind(NamedTuple):
    """A kind of instances: a shape by name, the loss, the depth, the scheme of the start, its size α (None: drawn
    between 0.01 and one), the change of ordinary data, and the models it is for."""

    shape: str
    loss: str
    depth: int = 2
    scheme: str = "zero_last"
    alpha: float | None = None
    change: Any = None
    models: tuple[str, ...] = MODELS
    regular: bool = False

    def size(self, model: str) -> tuple[int, int]:
        """(n, d)."""
        shapes = SHAPES[self.shape]
        return shapes.get(model, shapes[""])


def ordinary(rng: np.random.Generator, kind: Kind, model: str, count: int) -> Vectors:
    """Normal inputs; targets of a normal teacher with entries of size one, or its labels."""
    n, d = kind.size(model)
    inputs, teacher = rng.normal(size=(count, n, d)), rng.normal(size=(count, d))
    outputs = np.einsum("bnd,bd->bn", inputs, teacher)
    targets = outputs if kind.loss == "squared" else np.where(outputs < 0, -1.0, 1.0)
    data = Vectors(inputs, targets)
    return data if kind.change is None else kind.change(rng, data)


def start(rng: np.random.Generator, kind: Kind, model: str, count: int) -> tuple[np.ndarray, ...]:
    """Layers of the scheme times α."""
    d, depth = kind.size(model)[1], kind.depth
    side = round(d**0.5)
    matrix = {"deep network": (d, d), "matrix sensing": (side, side)}.get(model, (d,))
    shapes = [matrix] * (depth - 1) + [(d,) if model == "deep network" else matrix]
    fan = {"deep network": d, "matrix sensing": side}.get(model, 1)
    layers = [rng.normal(size=(count, *shape)) / fan**0.5 for shape in shapes]
    if kind.scheme == "equal":
        layers[:-1] = [_even(rng, layers[0]) if model == "convolutional network" else layers[0]] * (depth - 1)
    if kind.scheme == "identity":
        one = np.eye(1, d)[0] if model == "convolutional network" else np.ones(d)
        one = np.eye(*matrix) if len(matrix) > 1 else one
        layers[:-1] = [np.broadcast_to(one, w.shape) for w in layers[:-1]]
    if kind.scheme != "random":
        layers[-1] = np.zeros_like(layers[-1])
    drawn = 10.0 ** rng.uniform(-2.0, 0.0, count)
    alpha = drawn if kind.alpha is None else np.full(count, kind.alpha)
    return tuple(alpha.reshape(-1, *[1] * (w.ndim - 1)) * w for w in layers)


def _even(rng: np.random.Generator, w: np.ndarray) -> np.ndarray:
    # A real, even spectrum with entries of size 1/2 to 3/2.
    d = w.shape[-1]
    spectrum = rng.uniform(0.5, 1.5, w.shape) * rng.choice([-1.0, 1.0], w.shape)
    mirror = (-np.arange(d)) % d
    return np.fft.ifft(np.where(np.arange(d) <= mirror, spectrum, spectrum[:, mirror]), norm="ortho").real


def _even_inputs(rng: np.random.Generator, data: Vectors) -> Vectors:
    mirror = (-np.arange(data.inputs.shape[-1])) % data.inputs.shape[-1]
    # As many targets as even inputs have dimensions can be met: the teacher's are.
    inputs = 0.5 * (data.inputs + data.inputs[..., mirror])
    return Vectors(inputs, np.einsum("bnd,bd->bn", inputs, rng.normal(size=(len(inputs), inputs.shape[-1]))))


def _no_targets(rng: np.random.Generator, data: Vectors) -> Vectors:
    return data._replace(targets=np.zeros_like(data.targets))


def _inconsistent(rng: np.random.Generator, data: Vectors) -> Vectors:
    return data._replace(targets=rng.normal(size=data.targets.shape))


def _row_twice(rng: np.random.Generator, data: Vectors) -> Vectors:
    inputs, targets = data.inputs.copy(), data.targets.copy()
    inputs[:, -1], targets[:, -1] = inputs[:, 0], targets[:, 0]
    return Vectors(inputs, targets)


def _ill_conditioned(rng: np.random.Generator, data: Vectors) -> Vectors:
    # Singular values from one to 1e-3; targets of the same teacher.
    u, _, v = np.linalg.svd(data.inputs, full_matrices=False)
    inputs = u * np.logspace(0, -3, u.shape[-1]) @ v
    return Vectors(inputs, np.einsum("bnd,bd->bn", inputs, rng.normal(size=inputs[:, 0].shape)))


def _scaled(size: float) -> Any:
    # Targets as they are: coefficients shrink as inputs grow.
    return lambda rng, data: data._replace(inputs=size * data.inputs)


def _barely(rng: np.random.Generator, data: Vectors) -> Vectors:
    # The first two inputs are opposite but for a thousandth of a third direction, with one label.
    inputs = data.inputs.copy()
    inputs[:, 1] = -inputs[:, 0] + 1e-3 * inputs[:, 1]
    return Vectors(inputs, _labels_of_barely(inputs))


def _labels_of_barely(inputs: np.ndarray) -> np.ndarray:
    # A separator: away from the shared part, along what the two have left; its labels for the others.
    shared, left = inputs[:, 0], inputs[:, 0] + inputs[:, 1]
    left = left - (left * shared).sum(-1, keepdims=True) / (shared**2).sum(-1, keepdims=True) * shared
    found = np.where(np.einsum("bnd,bd->bn", inputs, left) < 0, -1.0, 1.0)
    found[:, 0] = found[:, 1] = 1.0
    return found


def _not_separable(rng: np.random.Generator, data: Vectors) -> Vectors:
    # One input is the opposite of a positive combination of as many others as there are dimensions, with one label.
    inputs, d = data.inputs.copy(), data.inputs.shape[-1]
    inputs[:, d] = -np.einsum("bi,bid->bd", rng.uniform(0.3, 1.0, inputs[:, :d, 0].shape), inputs[:, :d])
    return Vectors(inputs, np.ones_like(data.targets))


def _partly_separable(rng: np.random.Generator, data: Vectors) -> Vectors:
    # One input and its opposite, with one label: no margin, but others may be separated at right angles to it.
    inputs, targets = data.inputs.copy(), data.targets.copy()
    inputs[:, 1] = -1.5 * inputs[:, 0]
    targets[:, 1] = targets[:, 0]
    return Vectors(inputs, targets)


def _coin(rng: np.random.Generator, data: Vectors) -> Vectors:
    return data._replace(targets=np.where(rng.random(data.targets.shape) < 0.5, -1.0, 1.0))


def _collinear(rng: np.random.Generator, data: Vectors) -> Vectors:
    # Multiples of one input, with the labels of its direction.
    size = rng.normal(size=data.targets.shape)
    return Vectors(size[..., None] * data.inputs[:, :1], np.where(size < 0, -1.0, 1.0))


def _one_label(rng: np.random.Generator, data: Vectors) -> Vectors:
    return Vectors(data.inputs * data.targets[..., None], np.ones_like(data.targets))


def _classified(name: str, loss: str, **how: Any) -> dict[str, Kind]:
    # Of matrix sensing the theorems know no direction.
    return {f"{loss}, {name}": Kind("labels", loss, models=MODELS[:3], **how)}


REGRESSION = {
    **{f"regression, depth {L}": Kind("small", "squared", L, regular=True) for L in (2, 3, 4, 5)},
    "regression, large": Kind("large", "squared", regular=True),
    "regression, large, depth 3": Kind("large", "squared", 3, regular=True),
    "regression, random": Kind("small", "squared", 2, "random"),
    "regression, random, depth 3": Kind("small", "squared", 3, "random"),
    "regression, equal, depth 3": Kind("small", "squared", 3, "equal", models=SPARSE),
    "regression, identity": Kind("small", "squared", 2, "identity"),
    "regression, identity, depth 3": Kind("small", "squared", 3, "identity"),
    "regression, even data": Kind("small", "squared", 3, "equal", None, _even_inputs, ("convolutional network",)),
    **{
        f"regression, start {alpha:g}{f', depth {L}' if L > 2 else ''}": Kind("small", "squared", L, alpha=alpha)
        for alpha in (1e-12, 1e-4, 1e3)
        for L in (2, 3)
    },
    "regression, start 1e-4, depth 5": Kind("small", "squared", 5, alpha=1e-4),
    "regression, start 0": Kind("small", "squared", alpha=0.0),
    "regression, targets 0": Kind("small", "squared", 2, "random", None, _no_targets),
    "regression, targets 0, depth 3": Kind("small", "squared", 3, "random", None, _no_targets),
    "regression, n > d": Kind("tall", "squared", change=_inconsistent),
    "regression, n > d, depth 3": Kind("tall", "squared", 3, change=_inconsistent),
    "regression, n > d, start 1e-12": Kind("tall", "squared", alpha=1e-12, change=_inconsistent),
    "regression, row twice": Kind("small", "squared", change=_row_twice),
    "regression, row twice, depth 3": Kind("small", "squared", 3, change=_row_twice),
    "regression, ill-conditioned": Kind("small", "squared", change=_ill_conditioned),
    "regression, ill-conditioned, depth 3": Kind("small", "squared", 3, change=_ill_conditioned),
    "regression, inputs of 1e-8": Kind("small", "squared", change=_scaled(1e-8)),
    "regression, inputs of 1e8": Kind("small", "squared", change=_scaled(1e8)),
    "regression, n = 1": Kind("one", "squared"),
    "regression, n = 1, depth 3": Kind("one", "squared", 3),
    "regression, d = 1": Kind("d = 1", "squared"),
    "regression, d = 2": Kind("d = 2", "squared", change=_inconsistent, models=MODELS[:3]),
}
CLASSIFICATION = {
    **_classified("depth 2", "exponential", regular=True),
    **_classified("depth 2", "logistic", regular=True),
    **_classified("depth 3", "exponential", depth=3, regular=True),
    **_classified("depth 4", "logistic", depth=4, regular=True),
    **_classified("random", "logistic", scheme="random"),
    **_classified("identity", "logistic", scheme="identity"),
    **_classified("start 0", "logistic", alpha=0.0),
    **_classified("start 1e-12", "logistic", alpha=1e-12),
    **_classified("start 1e-12, depth 3", "exponential", depth=3, alpha=1e-12),
    **_classified("start 1e3", "logistic", alpha=1e3),
    **_classified("start 1e3, random", "exponential", alpha=1e3, scheme="random"),
    **_classified("barely separable", "logistic", change=_barely),
    **_classified("barely separable, depth 3", "exponential", depth=3, change=_barely),
    **_classified("coin labels", "logistic", change=_coin),
    **_classified("not separable", "logistic", change=_not_separable),
    **_classified("not separable, random", "exponential", change=_not_separable, scheme="random"),
    **_classified("not separable, depth 3", "exponential", depth=3, change=_not_separable),
    **_classified("not separable, start 1e-12", "logistic", change=_not_separable, alpha=1e-12),
    **_classified("partly separable", "logistic", change=_partly_separable),
    **_classified("partly separable, depth 3", "exponential", depth=3, change=_partly_separable),
    **_classified("collinear", "logistic", change=_collinear),
    **_classified("row twice", "logistic", change=_row_twice),
    **_classified("one label", "exponential", change=_one_label),
    **{
        name: kind
        for size in (1e-150, 1e-8, 1e8, 1e150)
        for name, kind in _classified(f"inputs of {size:g}", "logistic", change=_scaled(size)).items()
    },
    "logistic, n = 1": Kind("one", "logistic", models=MODELS[:3]),
    "exponential, n = 1, random": Kind("one", "exponential", 2, "random", models=MODELS[:3]),
}
KINDS: dict[str, Kind] = REGRESSION | CLASSIFICATION

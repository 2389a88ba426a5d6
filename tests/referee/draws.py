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
    # A separator: away from the shared part, along what the two have left; its labels for the others.
    shared, left = inputs[:, 0], inputs[:, 0] + inputs[:, 1]
    left = left - (left * shared).sum(-1, keepdims=True) / (shared**2).sum(-1, keepdims=True) * shared
    targets = np.where(np.einsum("bnd,bd->bn", inputs, left) < 0, -1.0, 1.0)
    targets[:, :2] = 1.0
    return Vectors(inputs, targets)


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


def _collinear(rng: np.random.Generator, data: Vectors) -> Vectors:
    # Multiples of one input, with the labels of its direction.
    size = rng.normal(size=data.targets.shape)
    return Vectors(size[..., None] * data.inputs[:, :1], np.where(size < 0, -1.0, 1.0))


def _inconsistent(rng: np.random.Generator, data: Vectors) -> Vectors:
    return data._replace(targets=rng.normal(size=data.targets.shape))


# Of two and of three layers, where the name says it.
BOTH: dict[str, dict[str, Any]] = {
    "large": {"shape": "large", "regular": True},
    "random": {"scheme": "random"},
    "identity": {"scheme": "identity"},
    "targets 0": {"scheme": "random", "change": lambda rng, data: data._replace(targets=np.zeros_like(data.targets))},
    "n > d": {"shape": "tall", "change": _inconsistent},
    "row twice": {"change": _row_twice},
    "ill-conditioned": {"change": _ill_conditioned},
    "n = 1": {"shape": "one"},
    **{f"start {alpha:g}": {"alpha": alpha} for alpha in (1e-12, 1e-4, 1e3)},
}
REGRESSION = {
    **{f"depth {L}": {"depth": L, "regular": True} for L in (2, 3, 4, 5)},
    **{f"{name}{more}": how | {"depth": L} for name, how in BOTH.items() for L, more in ((2, ""), (3, ", depth 3"))},
    "equal, depth 3": {"depth": 3, "scheme": "equal", "models": SPARSE},
    "even data": {"depth": 3, "scheme": "equal", "change": _even_inputs, "models": ("convolutional network",)},
    "start 1e-4, depth 5": {"depth": 5, "alpha": 1e-4},
    "start 0": {"alpha": 0.0},
    "n > d, start 1e-12": {"shape": "tall", "alpha": 1e-12, "change": _inconsistent},
    "inputs of 1e-8": {"change": _scaled(1e-8)},
    "inputs of 1e8": {"change": _scaled(1e8)},
    "d = 1": {"shape": "d = 1"},
    "d = 2": {"shape": "d = 2", "change": _inconsistent, "models": MODELS[:3]},
}
CLASSIFICATION: dict[str, dict[str, Any]] = {
    "exponential, depth 2": {"regular": True},
    "logistic, depth 2": {"regular": True},
    "exponential, depth 3": {"depth": 3, "regular": True},
    "logistic, depth 4": {"depth": 4, "regular": True},
    "logistic, random": {"scheme": "random"},
    "logistic, identity": {"scheme": "identity"},
    "logistic, start 0": {"alpha": 0.0},
    "logistic, start 1e-12": {"alpha": 1e-12},
    "exponential, start 1e-12, depth 3": {"depth": 3, "alpha": 1e-12},
    "logistic, start 1e3": {"alpha": 1e3},
    "exponential, start 1e3, random": {"alpha": 1e3, "scheme": "random"},
    "logistic, barely separable": {"change": _barely},
    "exponential, barely separable, depth 3": {"depth": 3, "change": _barely},
    "logistic, coin labels": {
        "change": lambda rng, data: data._replace(targets=np.where(rng.random(data.targets.shape) < 0.5, -1.0, 1.0))
    },
    "logistic, not separable": {"change": _not_separable},
    "exponential, not separable, random": {"change": _not_separable, "scheme": "random"},
    "exponential, not separable, depth 3": {"depth": 3, "change": _not_separable},
    "logistic, not separable, start 1e-12": {"change": _not_separable, "alpha": 1e-12},
    "logistic, partly separable": {"change": _partly_separable},
    "exponential, partly separable, depth 3": {"depth": 3, "change": _partly_separable},
    "logistic, collinear": {"change": _collinear},
    "logistic, row twice": {"change": _row_twice},
    "exponential, one label": {
        "change": lambda rng, data: Vectors(data.inputs * data.targets[..., None], np.ones_like(data.targets))
    },
    **{f"logistic, inputs of {size:g}": {"change": _scaled(size)} for size in (1e-150, 1e-8, 1e8, 1e150)},
    "logistic, n = 1": {"shape": "one"},
    "exponential, n = 1, random": {"shape": "one", "scheme": "random"},
}
KINDS = {f"regression, {name}": Kind(**{"shape": "small", "loss": "squared"} | how) for name, how in REGRESSION.items()}
# Of matrix sensing the theorems know no direction.
KINDS |= {
    name: Kind(**{"shape": "labels", "loss": name.split(",")[0], "models": MODELS[:3]} | how)
    for name, how in CLASSIFICATION.items()
}

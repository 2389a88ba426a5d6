"""The one result type of continuous and discrete descent."""

import enum
from collections.abc import Callable, Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree

from jaxflow._core import RESULTS, AbstractPrinted, Code, good, is_concrete
from jaxflow._core.printing import LINES


class Regime(enum.IntEnum):
    """How the integrated equation is related to the gradient flow."""

    exact = 1
    limiting = 2
    discrete = 3


class Point(AbstractPrinted):
    r"""A point on a trajectory, or several with a leading axis.

    - `model`: the model there.
    - `log_time`: $\log t$; `log_log_time`: its logarithm, finite where log t overflows, −inf before t = 1.
    - `log_arc_length`: log of $\int\|\dot\theta\|dt$.
    - `log_norm`: $\log\|\theta\|$ over the trainable parameters.
    - `log_scale`: the common scale of gradient and multipliers; `log_gradient_norm`: $\log\|\nabla L\|$.
    - `velocity`: $-\nabla L/\|\nabla L\|$, in the structure of the model (`None` where frozen).
    - `multipliers`: signed, of order one, to be read times $e^{\text{log\_scale}}$; None for an opaque loss.
    - `reached`: False for save points past the end of the integration, whose numbers have no meaning.
    """

    model: Any
    log_time: Float[Array, "..."]
    log_log_time: Float[Array, "..."]
    log_arc_length: Float[Array, "..."]
    log_norm: Float[Array, "..."]
    log_scale: Float[Array, "..."]
    log_gradient_norm: Float[Array, "..."]
    velocity: PyTree
    multipliers: Float[Array, "..."] | None
    reached: Bool[Array, "..."]


class Trajectory(AbstractPrinted):
    """The path of a flow, or of a discrete descent.

    The properties below describe the save points (with a leading axis) where `save_at` or `saveat` asked for any, and
    the final point (without one) otherwise; `final` is always the last point.

    `trajectory[3]` is a save point, `trajectory[2:5]` a trajectory with these alone, and a loop goes over all of them;
    for a batch (under `vmap`) indexing gives its members. `trajectory.at(reading)` evaluates a dense output between the
    steps. `print` shows the numbers at the end and at some save points.

    **Example:**

    ```python
    path = jf.integrate(risk, model, clock="log_time", until=2.0, save_at=jnp.array([1.0, 2.0]))
    print(path)
    path.log_norm  # (2,)
    path.model  # the last one
    path.to_xarray()
    path.plot()
    ```
    """

    final: Point
    saved: Point | None
    regime: Code
    result: Any
    stats: dict[str, Any]
    dense: Callable[[Any], Point] | None = None

    @property
    def batched(self) -> bool:
        """Whether this is a batch of trajectories, made by `vmap`."""
        return self.final.log_time.ndim > 0

    def __len__(self) -> int:
        """The number of save points, or of a batch's members. **Raises:** `TypeError` where neither is there."""
        if self.batched:
            return self.final.log_time.shape[0]
        if self.saved is None:
            raise TypeError("the trajectory has no save points; pass save_at to integrate")
        return self.saved.log_time.shape[0]

    def __bool__(self) -> bool:
        return True

    def __str__(self) -> str:
        return _in_words(self)

    def __getitem__(self, index: Any) -> Any:
        """A save point, or the trajectory of some; of a batch its members. **Raises:** `IndexError`, `TypeError`."""
        count = len(self)
        if isinstance(index, int | np.integer) and not -count <= index < count:
            raise IndexError(f"index {index} of {count}")
        chosen = self if self.batched else self.saved
        part = jax.tree.map(lambda x: x[index] if eqx.is_array(x) else x, chosen)
        single = self.batched or isinstance(index, int | np.integer)
        return part if single else eqx.tree_at(lambda t: t.saved, self, part)

    def __iter__(self) -> Iterator[Any]:
        return (self[at] for at in range(len(self)))

    def at(self, reading: Float[Array, "..."] | float) -> Point:
        """The point at any reading of the clock, of an integration with `saveat=diffrax.SaveAt(dense=True)`.

        **Raises:** `ValueError` where there is no dense output, for a batch, and for a concrete reading before the
        start or past the end; a traced one gives NaN.
        """
        if self.batched:
            raise ValueError("at: a batch has a curve for each member; read trajectory[0].at(reading), or use jax.vmap")
        if self.dense is None:
            raise ValueError("dense: there is none; pass saveat=diffrax.SaveAt(dense=True) to integrate")
        return self.dense(reading)

    def to_xarray(self) -> Any:
        """The points as an `xarray.Dataset`, for saving, tables and pictures.

        Its axis is `save` (for a batch, `member` before it), with `log_time` as a coordinate; its variables are the
        numbers of `Point`, the multipliers, and every trained parameter by its name in the model (`W`, or `layers_0`).
        """
        import xarray

        points = self.points
        lead = ["member"] * self.batched + ["save"] * (self.saved is not None)
        found: dict[str, Any] = {
            name: getattr(points, name)
            for name in ("log_log_time", "log_arc_length", "log_norm", "log_scale", "log_gradient_norm", "reached")
        }
        if points.multipliers is not None:
            found["multipliers"] = points.multipliers
        found |= _by_name(_moving(points))
        variables = {}
        for name, value in found.items():
            value = np.asarray(value)
            own = [f"{name}_{axis}" for axis in range(value.ndim - len(lead))]
            variables[name] = ([*lead, *own], value)
        attributes = {"regime": str(self.regime), "result": str(describe(self.result))}
        return xarray.Dataset(variables, coords={"log_time": (lead, np.asarray(points.log_time))}, attrs=attributes)

    def plot(self) -> Any:
        r"""A Matplotlib figure of the save points against $\log t$: norm, gradient, distance to the last direction.

        **Raises:** `ValueError` for a trajectory without save points, or a batch (plot its members).
        """
        from jaxflow.plots import draw_path

        if self.batched or self.saved is None:
            raise ValueError("plot: one trajectory with save points is wanted; pass save_at to integrate")
        return draw_path(self.path_numbers())

    def path_numbers(self) -> dict[str, np.ndarray]:
        r"""The numbers that `plot` draws, `(m,)` each, at the save points that were reached: `log_time`,
        `log_log_time`, `log_norm`, `log_gradient_norm`, `turning`:
        $\|\theta_k/\|\theta_k\|-\theta_m/\|\theta_m\|\|$."""
        points = self.points
        kept = np.asarray(points.reached)
        leaves = [np.asarray(x).reshape(kept.size, -1)[kept] for x in jax.tree.leaves(self.direction)]
        directions = np.concatenate(leaves, axis=1)
        last = directions[-1:] if len(directions) else directions
        named = ("log_time", "log_log_time", "log_norm", "log_gradient_norm")
        numbers = {name: np.asarray(getattr(points, name))[kept] for name in named}
        return numbers | {"turning": np.linalg.norm(directions - last, axis=1)}

    @property
    def points(self) -> Point:
        """The save points, or the final point where none were asked for."""
        return self.final if self.saved is None else self.saved

    @property
    def model(self) -> Any:
        """The final model. An integration that failed has none.

        **Raises:** `RuntimeError` if the (concrete) result is not a success. Under a trace nothing raises; read
        `result`. `final.model` is the last state in every case.
        """
        if is_concrete(self.result) and not bool(jnp.all(good(self.result))):
            raise RuntimeError(f"the trajectory has no valid final model: {describe(self.result)}")
        return self.final.model

    @property
    def direction(self) -> PyTree:
        r"""$\theta/\|\theta\|$ over the trainable parameters, `None` where frozen."""
        points = self.points
        params = _moving(points)
        scale = jnp.exp(-points.log_norm)
        return jax.tree.map(lambda p: p * scale.reshape(scale.shape + (1,) * (p.ndim - scale.ndim)), params)

    @property
    def log_norm(self) -> Float[Array, "..."]:
        r"""$\log\|\theta\|$."""
        return self.points.log_norm

    @property
    def log_multipliers(self) -> Float[Array, "..."]:
        r"""$\log|p|$ of every multiplier on its true scale; −inf where it is zero.

        **Raises:** `AttributeError` for an opaque loss, which has none.
        """
        points = self.points
        if points.multipliers is None:
            raise AttributeError("an opaque loss has no multipliers")
        extra = points.multipliers.ndim - points.log_scale.ndim
        return points.log_scale.reshape(points.log_scale.shape + (1,) * extra) + jnp.log(jnp.abs(points.multipliers))

    @property
    def log_time(self) -> Float[Array, "..."]:
        r"""$\log t$."""
        return self.points.log_time

    @property
    def log_log_time(self) -> Float[Array, "..."]:
        r"""$\log\log t$, finite also in limiting dynamics where log t overflows; −inf up to t = 1."""
        return self.points.log_log_time

    @property
    def log_arc_length(self) -> Float[Array, "..."]:
        """Log of the length of the path so far."""
        return self.points.log_arc_length

    @property
    def log_gradient_norm(self) -> Float[Array, "..."]:
        r"""$\log\|\nabla L\|$."""
        return self.points.log_gradient_norm


def describe(result: Any) -> str:
    """The message of a result, or of a batch of results with their counts.

    **Example:**

    ```python
    path = jf.integrate(risk, model, clock="log_time", until=2.0)
    assert jf.trajectory.describe(path.result) == "successful"
    ```
    """
    codes = np.asarray(jax.tree.leaves(result)[0])
    if codes.ndim == 0:
        return RESULTS[result]
    _, first, counts = np.unique(codes, return_index=True, return_counts=True)
    one_each = jax.tree.map(lambda x: x.reshape(-1)[first], result)
    messages = [RESULTS[jax.tree.map(lambda x, at=at: x[at], one_each)] for at in range(len(first))]
    return ", ".join(f"{count} {message}" for message, count in zip(messages, counts, strict=True))


def _moving(points: Point) -> PyTree:
    """The trained parameters, `None` where frozen."""
    return jax.tree.map(
        lambda v, p: None if v is None else p, points.velocity, points.model, is_leaf=lambda x: x is None
    )


def _by_name(params: PyTree) -> dict[str, Any]:
    """Arrays by their place in the model, as names: `W`, `layers_0`."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(params)
    return {jax.tree_util.keystr(path, simple=True, separator="_"): leaf for path, leaf in leaves}


def _in_words(trajectory: Trajectory) -> str:
    if not is_concrete(trajectory.final.log_time):
        return "a traced trajectory"
    if trajectory.batched:
        results = describe(trajectory.result) if is_concrete(trajectory.result) else ""
        return f"{len(trajectory)} trajectories: {results}"
    steps = trajectory.stats.get("num_steps")
    after = "" if steps is None else f" after {int(steps)} steps"
    lines = [f"{Regime(int(trajectory.regime)).name} flow: {describe(trajectory.result)}{after}"]
    rows = [("end", trajectory.final)]
    if trajectory.saved is not None:
        count = len(trajectory)
        # Beside the sentence, the names of the columns and the end.
        most = LINES - 3
        shown = range(count) if count <= most else np.unique(np.linspace(0, count - 1, most).astype(int))
        rows = [*((str(at), trajectory[int(at)]) for at in shown), *rows]
    names = ("log_time", "log_norm", "log_gradient_norm", "log_arc_length")
    cells: list[tuple[str, ...]] = [("", *names)]
    for title, point in rows:
        numbers = [f"{float(getattr(point, name)):.6g}" for name in names]
        cells.append((title, *(numbers if bool(point.reached) else ["not reached", "", "", ""])))
    widths = [max(len(row[at]) for row in cells) for at in range(len(names) + 1)]
    lines += ["  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True)) for row in cells]
    return "\n".join(lines)

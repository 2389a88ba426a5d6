"""Every step of an integration, for paths that stand still for long and then move at once."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxflow._core import checked
from jaxflow.flow.drive import Drive, Lane
from jaxflow.trajectory import Trajectory


class Record(NamedTuple):
    """The accepted steps of one lane.

    `s` `(m,)`: the clock's variable; `state`: coordinates there, with a leading axis of length m;
    `trajectory`: the end, with result and statistics.

    **Example:**

    ```python
    from jaxflow.flow import Drive, as_clock, as_controller, as_solver, record

    clock = as_clock("log_time")
    solver = as_solver("tsit5", clock)
    drive = Drive(solver, as_controller(None, solver))
    kept = record(drive, drive.start(risk, model, clock=clock, coordinates=jf.Weights(), until=1.0))
    kept.s, kept.state, kept.trajectory
    ```
    """

    s: np.ndarray
    state: Any
    trajectory: Trajectory


@checked(least={"chunk": 1})
def record(drive: Drive, lane: Lane, chunk: int = 512) -> Record:
    """Drives a lane to its end and keeps what it passed.

    **Arguments:** `drive`, `lane` as from `drive.start`; `chunk`: steps between two visits to the host, which is
    also what can be interrupted.

    **Example:**

    ```python
    from jaxflow.flow import Drive, as_clock, as_controller, as_solver, record

    clock = as_clock("log_time")
    solver = as_solver("tsit5", clock)
    drive = Drive(solver, as_controller(None, solver))
    record(drive, drive.start(risk, model, clock=clock, coordinates=jf.Weights(), until=1.0)).s
    ```
    """
    times, states = [np.asarray(lane.s)[None]], [jax.tree.map(lambda x: np.asarray(x)[None], coordinates(lane))]
    while bool(drive.running(lane)):
        lane, count, s, state = _some_steps(drive, lane, chunk)
        kept = slice(0, int(count))
        times.append(np.asarray(s)[kept])
        states.append(jax.tree.map(lambda x, kept=kept: np.asarray(x)[kept], state))
    s = np.concatenate(times)
    state = jax.tree.map(lambda *parts: np.concatenate(parts), *states)
    # Rejected steps stay where they were.
    new = np.concatenate([[True], np.diff(s) > 0])
    return Record(s[new], jax.tree.map(lambda x: x[new], state), drive.trajectory(lane))


def coordinates(lane: Lane) -> Any:
    """The coordinates a lane has reached."""
    state, _, _ = lane.system.unpack(lane.s, lane.state)
    return state


@eqx.filter_jit
def _some_steps(drive: Drive, lane: Lane, chunk: int) -> tuple[Lane, Any, Any, Any]:
    moving, fixed = eqx.partition(lane, eqx.is_array)
    s = jnp.zeros(chunk)
    state = jax.tree.map(lambda x: jnp.zeros((chunk, *x.shape), x.dtype), coordinates(lane))

    def unfinished(carry: Any) -> Any:
        moving, count, _, _ = carry
        return (count < chunk) & drive.running(eqx.combine(moving, fixed))

    def step(carry: Any) -> Any:
        moving, count, s, state = carry
        lane = drive.step(eqx.combine(moving, fixed))
        state = jax.tree.map(lambda all_, one: all_.at[count].set(one), state, coordinates(lane))
        return eqx.filter(lane, eqx.is_array), count + 1, s.at[count].set(lane.s), state

    moving, count, s, state = jax.lax.while_loop(unfinished, step, (moving, 0, s, state))
    return eqx.combine(moving, fixed), count, s, state

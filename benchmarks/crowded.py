"""Crowded cells: few dimensions for many tokens, where paths are stiff: `find_limit` by default, and a second look.

    python benchmarks/crowded.py [--count 200] [--confirm 60] [--only W:5,5,2 KQ:10,6,3]

The first `--confirm` definite answers of each cell are compared with an integration that shares no gear with the
library: Kvaerno5 with Newton's method in log arc length from the very start, at a tolerance of 1e-9, until attention is
saturated to 1e-6 or the gradient vanishes to 1e-9. Where it comes to other tokens it is followed on, to log arc lengths
of 10, 12, 14 and 16: selections may be left again, and the last look that ends decides. If none ends, it is open.
"""

from collections import Counter
from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
from _common import begun, clocked, factors_of

import jaxflow as jf
from jaxflow._core import linalg
from jaxflow.flow import Drive, LogArcLength, SelectionSettled, StationaryPoint, Weights
from jaxflow.flow.solvers import state_norm
from jaxflow.study import TokenSelection

CELLS = tuple(f"{name}:{sizes}" for sizes in ("5,5,2", "10,6,3", "5,10,2", "20,5,4") for name in ("W", "KQ"))
TOLERANCE, STEPS, FAR = 1e-9, 6000, 30.0
# Log arc lengths before which looks stop nowhere. (W at (9, 7, 2), key 90114, leaves a selection between 14 and 16.)
SOON, LATER = -10.0, (10.0, 12.0, 14.0, 16.0)
# A rest is told from attention that saturates by this ratio of the gradient to its multipliers.
REST = 1e-8


@jax.jit
def second_look(risk: Any, model: Any, least: Any) -> tuple[Any, ...]:
    """The tokens that a plain implicit integration comes to, whether it rests, and whether it has ended at all."""
    newton = linalg.newton(rtol=0.1 * TOLERANCE, atol=0.1 * TOLERANCE, norm=state_norm)
    controller = diffrax.PIDController(rtol=TOLERANCE, atol=1e-2 * TOLERANCE, pcoeff=0.3, icoeff=0.4, norm=state_norm)
    stop = StationaryPoint(TOLERANCE, model.degree) | SelectionSettled(1e-6, 1e-4)
    drive = Drive(diffrax.Kvaerno5(root_finder=newton), controller, stop, STEPS)
    clock = LogArcLength(floor=0.03, timed=False)
    lane = drive.start(risk, model, coordinates=Weights(), clock=clock, until=FAR, dt0=1e-3, least=least)
    path = drive.trajectory(drive.run(lane))
    final = path.final
    size = final.log_scale + jnp.log(jnp.sum(jnp.abs(final.multipliers)))  # pyright: ignore[reportArgumentType]
    rests = final.log_gradient_norm - size < jnp.log(REST)
    return jnp.argmax(final.model.attention(risk.data), -1), rests, path.result == jf.RESULTS.event_occurred


def agrees(limit: Any, look: tuple[Any, ...]) -> str:
    """Whether a second look confirms a limit."""
    tokens, rests, ended = look
    point = limit.outcome == jf.Outcome.finite_stationary_point
    same = bool(rests) if point else not bool(rests) and bool(jnp.all(tokens == jnp.argmax(limit.selection, -1)))
    return "open" if not bool(ended) else "confirmed" if same else "against"


def row(cell: str, count: int, confirm: int) -> dict[str, Any]:
    """Outcomes, steps and second looks of a cell."""
    setup = jax.jit(lambda key: TokenSelection().setup(key, **factors_of(cell)))
    looks, taken, decided = Counter(), [], []
    for i in range(count):
        risk, model = setup(jax.random.key(90_000 + i))
        limit, spent = clocked(jf.find_limit, risk, model, throw=False)
        taken.append((int(limit.trajectory.stats["num_steps"]), spent.wall))
        if limit.outcome == jf.Outcome.undecided:
            continue
        decided.append(taken[-1][0])
        if i < confirm:
            found = agrees(limit, second_look(risk, model, jnp.asarray(SOON)))
            if found == "against":
                later = [agrees(limit, second_look(risk, model, jnp.asarray(late))) for late in LATER]
                found = next((look for look in reversed(later) if look != "open"), "open")
            looks[found] += 1
    steps, seconds = np.median(taken, axis=0)
    return {
        "cell": cell,
        "instances": count,
        "undecided": count - len(decided),
        "median_steps": float(steps),
        "worst_decided_steps": max(decided, default=0),
        "milliseconds": 1e3 * float(seconds),
        **{word: looks[word] for word in ("confirmed", "open", "against")},
    }


if __name__ == "__main__":
    asked, record = begun(__doc__, "crowded", count=200, confirm=60, only=CELLS)
    for cell in asked.only:
        record.add(row(cell, asked.count, asked.confirm))

r"""What figures 8 and 11 share: instances of attention that composes tokens, and the gradient flow beside the descent.

The head $1^\top\mathrm{ReLU}(Vx)$ is linear between its kinks. Where a sequence with label −1 composes several tokens,
the flow slides along a kink, across which the gradient jumps, and descent steps to and fro about it. Steps of a smooth
integrator shrink there and get nowhere (229 of 240 flows spent 3,000 of them); `Filippov` follows the kink.
"""

import enum
from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from jaxflow._core import RESULTS
from jaxflow.flow import Filippov, Scores, StationaryPoint, integrate
from jaxflow.gradient_descent import descend
from jaxflow.papers.experiment import Dataset, Mask, Part, Statement, Sweep, Table, common_rate, mapped
from jaxflow.papers.tarzanagh2023 import composed_instances as composed
from jaxflow.papers.tarzanagh2023.composed_instances import SIZES, Cell, problems_of
from jaxflow.papers.tarzanagh2023.programs import misalignment
from jaxflow.papers.tarzanagh2023.protocol import STATIONARY, figure_key

# The flow's way takes 100 to 400 steps.
MAX_STEPS = 3000
# A thousandth of what the shortest steps of descent differ by.
RTOL = 1e-9
# "an average correlation exceeding 0.99" (§6), as a bound of 1 − corr that is not to be attained.
CORRELATION = 0.99
LIMIT = np.nextafter(1 - CORRELATION, 0.0)
# An exponent fitted over two decades of step sizes: descent stops anywhere in its last step to and fro, so that the
# constants at its two ends differ by up to a factor of two or so, and means over instances by a fifth: log10(1.2)/2.
BIAS = 0.04


class FlowEnd(enum.IntEnum):
    """How the flow ended."""

    not_run = 0
    reached = 1
    stationary = 2
    budget_spent = 3
    failed = 4
    sliding = 5


def _decided(flows: Table) -> Mask:
    return (flows.end == FlowEnd.reached) | (flows.end == FlowEnd.stationary)


@mapped(static=2)
def small_descents(length: float, rate: float, problem: Table) -> tuple[Array, Array]:
    """Normalised descent of a batch with steps of length `rate` over a path of `length`: its last weights and log t."""
    risk, model = composed.start_of(problem)
    path = descend(risk, model, steps=round(length / rate), learning_rate=rate, throw=False)
    return path.final.model.W, path.final.log_time


@jax.jit
def flows_of(problems: Table, last: Array, log_time: Array, descended: Array, readings: Array) -> Table:
    """The flows of a batch until `log_time` `(b,)`, against `last` `(b, d, d)`, and at the `readings` `(b, r)` of log t
    against what small steps `descended` to, `(b, r, d, d)`.

    - `end` (`FlowEnd`); how many kinks were `met` to slide on; `distance`: 1 − corr with the published descent at its
      end.
    - `apart` `(r,)`: of descent with steps of each length, the distance from the flow at its end, relative to the
      length of the way.
    """
    # One after another: on a CPU none waits for the slowest.
    return jax.lax.map(lambda parts: _flow(*parts), (problems, last, log_time, descended, readings))


def _flow(problem: Table, last: Array, log_time: Array, descended: Array, readings: Array) -> Table:
    order = jnp.argsort(readings)
    path = integrate(
        *composed.start_of(problem),
        clock="log_time",
        coordinates=Scores(),
        until=log_time,
        stop=StationaryPoint(STATIONARY),
        save_at=readings[order],
        solver=Filippov(),
        controller=diffrax.PIDController(rtol=RTOL, atol=1e-2 * RTOL, pcoeff=0.3, icoeff=0.4),
        max_steps=MAX_STEPS,
        throw=False,
    )
    final, saved = path.final, path.saved
    # A flow that has come to rest stays where it is.
    there = jnp.where(saved.reached[:, None, None], saved.model.W, final.model.W)  # pyright: ignore
    there = jnp.zeros_like(there).at[order].set(there)
    end = jnp.asarray(FlowEnd.failed.value)
    for result, code in (
        (RESULTS.successful, FlowEnd.reached),
        (RESULTS.event_occurred, FlowEnd.stationary),
        (RESULTS.max_steps_reached, FlowEnd.budget_spent),
        (RESULTS.sliding, FlowEnd.sliding),
    ):
        end = jnp.where(path.result == result, code.value, end)
    way = jnp.linalg.norm(descended - problem.W[None], axis=(1, 2))
    return Table(
        end=end,
        met=path.stats["num_met_kinks"],
        distance=misalignment(final.model.W, last),
        apart=jnp.linalg.norm(there - descended, axis=(1, 2)) / way,
    )


def _grid(scale: str, key: Any) -> Table:
    """Each d, `dimensions` `(k,)`, the saved `steps` of the published descent `(m,)`, and the lengths of the smaller
    steps, `rates` `(r,)`."""
    size = SIZES[scale]
    return Table(
        dimensions=np.asarray(size.dimensions),
        steps=np.arange(0, size.steps + 1, size.every),
        rates=np.asarray(size.rates),
    )


def _flows(keys: Array, cell: Cell) -> Table:
    """The flow of the first instances, and descent with smaller steps."""
    (size, _), problems, count = cell, problems_of(keys, cell), len(keys)
    # As wide as the batches of instances, to the same roundings, which kinks multiply.
    wide = np.arange(max(count, min(composed.BATCH, size.trials))) % count
    path = composed.descents(size.steps, size.every, problems_of(keys[wide], cell))
    small = [small_descents(size.small, rate, problems) for rate in size.rates]
    descended, readings = (jnp.stack(parts, axis=1) for parts in zip(*small, strict=True))
    return flows_of(problems, path.weights[:count, -1], path.log_time[:count], descended, readings)


def key_of(seed: int, cell: Cell) -> Key[Array, ""]:
    """Of all instances of one d."""
    return jax.random.fold_in(figure_key(8)(seed), cell[1])


COMPOSITION = Dataset(
    "tarzanagh2023",
    "composition",
    {"grid": Sweep(_grid)}
    | {
        name: Part(one, composed.cells, trials, block=block, draw_from=key_of, way="as a block")
        for name, one, trials, block in (
            ("instances", composed.instances_of, lambda scale: SIZES[scale].trials, composed.BATCH),
            ("flows", _flows, lambda scale: min(SIZES[scale].flows, SIZES[scale].trials), 60),
        )
    },
)

FLOW_ALIKE = Statement[Table](
    source="§6, Figure 8 (flow)",
    says="(Not in the paper, which trains by descent with steps of length 0.1.) The gradient flow ends where this "
    "descent does: a correlation above 0.99 at the same log t.",
    residual=lambda n: np.where(_decided(n.flows), n.flows.distance, np.nan),
    bound=LIMIT,
)


def _slopes(numbers: Table) -> np.ndarray:
    """Exponents of the distance of descent from the flow, over the step sizes, `(k, f)`."""
    rates, apart = numbers.grid.rates, numbers.flows.apart
    return np.log(apart[..., 0] / apart[..., -1]) / np.log(rates[0] / rates[-1])


FLOW_LIMIT = Statement[Table](
    source="§6, Figure 8 (flow)",
    says="(Not in the paper.) Descent with steps of length η tends to the gradient flow, along kinks to Filippov's "
    "solution: the distance at equal times falls like η.",
    # Distances at the shortest steps that are not smaller than at the longest are none of a limit.
    residual=lambda n: np.where(_decided(n.flows), n.flows.apart[..., -1] >= n.flows.apart[..., 0], np.nan),
    rate=lambda n, known: common_rate(
        _slopes(n)[known], 1.0, bias=BIAS, law="distance of descent from the flow against η"
    ),
)


def flow_ends(numbers: Table) -> str:
    """How the gradient flows ended."""
    counts = ", ".join(f"{int(np.sum(numbers.flows.end == code))} {code.name}" for code in FlowEnd if code)
    return f"The flow along its kinks (Filippov's solution) of the first instances of each d: {counts}."

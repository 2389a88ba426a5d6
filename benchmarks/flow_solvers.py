"""Ways to follow a gradient flow to a time: the library's clocks, and what one would write without them.

A way is prepared for a batch of instances and then called as `solve(tolerance, log_time, seconds)`: flat parameters at
the end `(k, p)`, and for each instance None or why there is no answer. `seconds` is its patience; compiled ways have a
budget of steps in its place: Diffrax's own default, and less for implicit methods.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
from _common import one_thread

import jaxflow as jf

MAX_STEPS = 4096
# Of implicit steps, each of which factorises a Jacobian: the whole budget would take minutes where nothing arrives.
MAX_IMPLICIT_STEPS = 2048
# Of the reference, at 1e-12: from e^-10000 some take more than 4,096.
MAX_FINEST_STEPS = 65_536
Ends = tuple[np.ndarray, list[str | None]]
Solve = Callable[[float, float, float], Ends]


class OverTime(RuntimeError):
    """Raised from inside of a right-hand side once its time is up: the solvers have no limit of their own."""


class Deadline:
    """A limit in seconds of wall clock; the function that it watches calls `check`."""

    def __init__(self, seconds: float):
        self.seconds = seconds
        self.end = time.perf_counter() + seconds

    def check(self) -> None:
        if time.perf_counter() > self.end:
            raise OverTime(f"time limit of {self.seconds:g} s")


class Way(NamedTuple):
    """`alone`: one instance after the other. `compiled`: the first call compiles."""

    name: str
    needs: tuple[str, ...]
    prepare: Callable[..., Solve]
    alone: bool = False
    compiled: bool = False
    implicit: bool = False


def compiled(one: Callable[..., Any], *batch: Any) -> Solve:
    """A vmapped way. `one(*instance, tolerance, log_time)`: the end, whether it is there, whether steps ran out."""
    run = jax.jit(jax.vmap(one, in_axes=(0,) * len(batch) + (None, None)))

    def solve(tolerance: float, log_time: float, seconds: float) -> Ends:
        flat, done, short = jax.device_get(run(*batch, tolerance, log_time))
        whys = zip(done, short, strict=True)
        return flat, [None if good else "budget of steps" if out else "failed" for good, out in whys]

    return solve


def clocks(some: Any, risk: Any, model: Any, problem: Any, solver: str, budget: int = MAX_STEPS) -> Solve:
    """`jaxflow.integrate`, vmapped, in the clock and coordinates of the problem."""

    def one(risk: Any, model: Any, tolerance: Any, log_time: Any) -> Any:
        path = jf.integrate(
            risk, model, solver=solver, max_steps=budget, throw=False, **problem.ours(log_time),
            # The coefficients of the library's own controllers.
            controller=diffrax.PIDController(rtol=tolerance, atol=tolerance, pcoeff=0.3, icoeff=0.4),
        )  # fmt: skip
        short = path.result == jf.RESULTS.max_steps_reached
        return problem.end(path), path.result == jf.RESULTS.successful, short

    return compiled(one, risk, model)


def vmapped_diffrax(some: Any, risk: Any, model: Any, problem: Any, solver: diffrax.AbstractSolver) -> Solve:
    """`vmap` of `diffeqsolve` in physical time, with the gradient by `jax.grad` of the loss."""
    budget = MAX_IMPLICIT_STEPS if isinstance(solver, diffrax.AbstractImplicitSolver) else MAX_STEPS

    def one(start: Any, data: Any, tolerance: Any, log_time: Any) -> Any:
        term = diffrax.ODETerm(lambda t, y, data: -jax.grad(some.jax_loss)(y, *data))
        found = diffrax.diffeqsolve(
            term, solver, 0.0, jnp.exp(log_time), None, start, data, max_steps=budget, throw=False,
            stepsize_controller=diffrax.PIDController(rtol=tolerance, atol=tolerance * problem.size_of_start),
        )  # fmt: skip
        short = found.result == diffrax.RESULTS.max_steps_reached
        assert found.ys is not None
        return found.ys[0], found.result == diffrax.RESULTS.successful, short

    return compiled(one, jnp.asarray(some.starts), [jnp.asarray(part) for part in some.arrays])


def scipy_with(some: Any, risk: Any, model: Any, problem: Any, method: str) -> Solve:
    """`solve_ivp` with a right-hand side in NumPy; implicit methods difference it for their Jacobian."""
    from scipy.integrate import solve_ivp

    gradients = [some.numpy_gradient(*instance) for instance in zip(*some.arrays, strict=True)]

    def solve(tolerance: float, log_time: float, seconds: float) -> Ends:
        ends, reasons = np.full_like(some.starts, np.nan), []
        for i, gradient in enumerate(gradients):
            limit = Deadline(seconds)

            def field(t: float, y: np.ndarray, gradient: Any = gradient, limit: Deadline = limit) -> np.ndarray:
                limit.check()
                return -gradient(y)

            try:
                found = solve_ivp(
                    field, (0.0, np.exp(log_time)), some.starts[i], method, [np.exp(log_time)],
                    rtol=tolerance, atol=tolerance * problem.size_of_start,
                )  # fmt: skip
            except OverTime as error:
                reasons.append(str(error))
                continue
            reasons.append(None if found.success else found.message)
            if found.success:
                ends[i] = found.y[:, -1]
        return ends, reasons

    return solve


def in_torch(some: Any, run: Callable[..., Any]) -> Solve:
    """A way of PyTorch: `run(field, starts, tolerance, end)`, ends and reasons, before its time is up."""
    torch, starts = one_thread(), some.starts
    gradient, begun = some.torch_gradient(), torch.from_numpy(starts.copy())

    def solve(tolerance: float, log_time: float, seconds: float) -> Ends:
        limit = Deadline(seconds)

        def field(t: Any, y: Any) -> Any:
            limit.check()
            return -gradient(y)

        try:
            with torch.no_grad():
                ends, reasons = run(field, begun, tolerance, float(np.exp(log_time)))
        # By an assertion torchdiffeq says that a step has underflown.
        except (OverTime, AssertionError) as error:
            return np.full_like(starts, np.nan), [str(error).split(" in dt")[0]] * len(starts)
        return ends.numpy(), reasons

    return solve


def torchode_with(some: Any, risk: Any, model: Any, problem: Any, method: str) -> Solve:
    """torchode: a batch, each instance with steps of its own."""
    import torch
    import torchode

    def run(field: Any, starts: Any, tolerance: float, end: float) -> Any:
        term, times = torchode.ODETerm(field), torch.ones(len(starts))
        step = getattr(torchode, method)(term=term)
        controller = torchode.IntegralController(atol=tolerance * problem.size_of_start, rtol=tolerance, term=term)
        solver = torchode.AutoDiffAdjoint(step, controller, max_steps=MAX_STEPS)
        initial = torchode.InitialValueProblem(y0=starts, t_start=0.0 * times, t_end=end * times,
                                               t_eval=(end * times)[:, None])  # fmt: skip
        found = solver.solve(initial)
        names = {0: None, int(torchode.Status.REACHED_MAX_STEPS.value): "budget of steps"}
        return found.ys[:, -1], [names.get(int(code), f"status {int(code)}") for code in found.status]

    return in_torch(some, run)


def torchdiffeq_dopri5(some: Any, risk: Any, model: Any, problem: Any) -> Solve:
    """torchdiffeq: the batch is one system, with one step for all."""
    import torch
    import torchdiffeq

    def run(field: Any, starts: Any, tolerance: float, end: float) -> Any:
        times, atol = torch.tensor([0.0, end]), tolerance * problem.size_of_start
        ends = torchdiffeq.odeint(field, starts, times, rtol=tolerance, atol=atol, method="dopri5")
        return ends[-1], [None] * len(starts)

    return in_torch(some, run)


# What the reference is computed by, at a tolerance and with a budget of its own.
FINEST = partial(clocks, solver="Dopri8", budget=MAX_FINEST_STEPS)
WAYS = [
    Way("jaxflow, Tsit5", (), partial(clocks, solver="Tsit5"), compiled=True),
    Way("jaxflow, Dopri8", (), partial(clocks, solver="Dopri8"), compiled=True),
    Way("vmap(diffeqsolve), Tsit5", (), partial(vmapped_diffrax, solver=diffrax.Tsit5()), compiled=True),
    Way(
        "vmap(diffeqsolve), Kvaerno5",
        (),
        partial(vmapped_diffrax, solver=diffrax.Kvaerno5()),
        compiled=True,
        implicit=True,
    ),
    *(
        Way(f"SciPy, {method}", ("scipy",), partial(scipy_with, method=method), alone=True, implicit=method != "DOP853")
        for method in ("LSODA", "BDF", "Radau", "DOP853")
    ),
    Way("torchode, Dopri5", ("torch", "torchode"), partial(torchode_with, method="Dopri5")),
    Way("torchode, Tsit5", ("torch", "torchode"), partial(torchode_with, method="Tsit5")),
    Way("torchdiffeq, dopri5", ("torch", "torchdiffeq"), torchdiffeq_dopri5),
]

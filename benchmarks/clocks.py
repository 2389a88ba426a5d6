"""Which clock, which solver: steps and time to fixed log times and fixed arc lengths."""

from typing import Any

import diffrax
import equinox as eqx
import jax
import numpy as np
from _common import print_table, timed

import jaxflow as jf

# A clock that does not read a target's quantity runs until a rule stops it; these are ends it will not reach.
FAR = {
    "physical_time": 1e300,
    "log_time": 1e12,
    "arc_length": 1e15,
    "log_arc_length": float(np.log(1e15)),
    "loss_time": 1e15,
}


def end(clock: str, quantity: str, value: float) -> tuple[float, Any]:
    """`until` and the stopping rule by which `clock` ends at a log time or an arc length."""
    if quantity == "log_time":
        reading = {"physical_time": float(np.exp(value)), "log_time": value}.get(clock)
        rule = jf.flow.Budget(log_time=value)
    else:
        reading = {"arc_length": value, "log_arc_length": float(np.log(value))}.get(clock)
        rule = jf.flow.Budget(log_arc_length=float(np.log(value)))
    return (FAR[clock], rule) if reading is None else (reading, None)


def reference(risk: Any, model: Any, quantity: str, value: float, max_steps: int) -> tuple[Any, str]:
    """The weights' direction at a target, by the clock that reads it and tolerances of 1e-9."""
    clock, until = ("log_time", value) if quantity == "log_time" else ("log_arc_length", float(np.log(value)))
    trajectory = jf.integrate(
        risk, model, clock=clock, until=until, solver="Kvaerno5", coordinates=jf.Scores(), throw=False,
        controller=diffrax.PIDController(rtol=1e-9, atol=1e-11), max_steps=max_steps,
    )  # fmt: skip
    return direction(trajectory), result_name(trajectory)


def direction(trajectory: Any) -> np.ndarray:
    W = np.asarray(trajectory.final.model.combined_weights())
    return W / np.linalg.norm(W)


def result_name(trajectory: Any) -> str:
    names = {"successful": jf.RESULTS.successful, "stopped": jf.RESULTS.event_occurred}
    for name, value in names.items():
        if bool(trajectory.result == value):
            return name
    return jf.RESULTS[trajectory.result].split(".")[0]


def rows(
    size: tuple[int, int, int],
    targets: list[tuple[str, float]],
    clocks: list[str],
    solvers: list[str],
    coordinates: list[str],
    max_steps: int,
) -> list[dict[str, Any]]:
    """One row for every target, clock, solver and coordinates; a combination that fails has its row, too.

    A clock that does not read the target's quantity stops after the step that passes it: its `direction_error`
    holds what the direction turned in the rest of that step.
    """
    key_data, key_model = jax.random.split(jax.random.key(0))
    data, head = jf.data.random_tokens(key_data, *size)
    risk = jf.EmpiricalRisk(data, jf.losses.Logistic())
    model = jf.models.CombinedAttention.init(key_model, data, head)
    out = []
    for quantity, value in targets:
        exact, exact_result = reference(risk, model, quantity, value, 20 * max_steps)
        for clock in clocks:
            until, rule = end(clock, quantity, value)
            for solver in solvers:
                for state in coordinates:
                    run = eqx.filter_jit(
                        lambda m: jf.integrate(
                            risk, m, clock=clock, until=until, solver=solver, coordinates=state, stop=rule,  # noqa: B023
                            max_steps=max_steps, throw=False,
                        )
                    )  # fmt: skip
                    trajectory, first, later = timed(lambda: run(model), 1)  # noqa: B023
                    # A clock that cannot get there ends early, with a success of its own.
                    reached = {
                        "log_time": trajectory.final.log_time,
                        "arc_length": np.exp(trajectory.final.log_arc_length),
                    }[quantity]
                    # Lengths and times are integrated along with the default tolerance of 1e-4.
                    arrived = bool(reached >= value * (1 - 1e-3))
                    result = result_name(trajectory)
                    success = arrived and result in ("successful", "stopped")
                    out.append(
                        {
                            "target": [quantity, value],
                            "n_T_d": list(size),
                            "clock": clock,
                            "solver": solver,
                            "coordinates": state,
                            "result": result,
                            "success": success,
                            "reached": float(reached),
                            "steps": int(trajectory.stats["num_steps"]),
                            "rejected_steps": int(trajectory.stats["num_rejected_steps"]),
                            "direction_error": float(np.linalg.norm(direction(trajectory) - exact)),
                            "reference_result": exact_result,
                            "compile_s": first - later,
                            "run_s": later,
                            "max_steps": max_steps,
                        }
                    )
    return out


def show(table: list[dict[str, Any]]) -> None:
    failed = sum(not row["success"] for row in table)
    print_table(
        f"Which clock, which solver: {len(table)} combinations, {failed} of which did not arrive",
        [
            *("target", "clock", "solver", "coordinates", "steps", "rejected", "error", "compile s", "run s"),
            *("arrived", "result"),
        ],
        [
            [
                f"{row['target'][0]} {row['target'][1]:g}",
                *(row["clock"], row["solver"], row["coordinates"], row["steps"], row["rejected_steps"]),
                *(row["direction_error"], row["compile_s"], row["run_s"]),
                "yes" if row["success"] else f"no, {row['reached']:.3g}",
                row["result"],
            ]
            for row in table
        ],
    )

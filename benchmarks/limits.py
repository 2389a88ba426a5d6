"""Work and precision of limits: the flow against normalised gradient descent on the same instances."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from _common import counts, print_table, spread, timed

import jaxflow as jf
from jaxflow.gradient_descent import descend
from jaxflow.limits import flow_certificate
from jaxflow.limits.self_certificate import select, settled
from jaxflow.margin import ProgramResult, attention_svm, solve_cvxpy
from jaxflow.papers.tarzanagh2023.protocol import published_protocol

MODELS = {
    "W": (jf.models.CombinedAttention, "frobenius"),
    "KQ": (jf.models.FactoredAttention, "nuclear"),
}


def instance(key: jax.Array, size: tuple[int, int, int], kind: Any) -> tuple[Any, Any]:
    """Data and a start, as published."""
    key_data, key_model = jax.random.split(key)
    data, head = jf.data.random_tokens(key_data, *size)
    return jf.EmpiricalRisk(data, jf.losses.Logistic()), kind.init(key_model, data, head)


def flow(risk: Any, model: Any, norm: str) -> dict[str, Any]:
    limit = jf.find_limit(risk, model, throw=False)
    return {
        # Whatever the kind of the limit.
        "weights": limit.flow_direction,
        "selection": limit.selection,
        "own_gap": limit.flow_certificate.duality_gap,
        "program_gap": limit.program_solution.certificate.duality_gap,
        "log_time": limit.trajectory.final.log_time,
        "outcome": limit.outcome.value,
        "steps": limit.trajectory.stats["num_steps"],
    }


def descent(**settings: Any) -> Callable[[Any, Any, str], dict[str, Any]]:
    def run(risk: Any, model: Any, norm: str) -> dict[str, Any]:
        how = settings or published_protocol(model)
        end = descend(risk, model, throw=False, **how)
        point = end.final
        attention = point.model.attention(risk.data)
        selection = select(attention)
        program = attention_svm(risk.data, selection, norm)
        certificate, _ = flow_certificate(program, point.model, point.velocity, point.multipliers)
        done = settled(attention) & (end.result == jf.RESULTS.successful)
        return {
            "weights": point.model.combined_weights(),
            "selection": selection,
            "own_gap": certificate.duality_gap,
            # A descent knows no program.
            "program_gap": jnp.nan,
            "log_time": point.log_time,
            # A descent gives no verdict; all that can be said is whether attention has settled.
            "outcome": jnp.where(done, SETTLED, jf.Outcome.undecided.value),
            "steps": end.stats["num_steps"],
        }

    return run


# Stands beside the codes of `Outcome` in this file only.
SETTLED = 100
ONE_BY_ONE = ("flow (find_limit)",)
METHODS = {
    "flow (find_limit)": flow,
    "published protocol": descent(),
    "normalised GD, 2000 steps": descent(steps=2000, normalised="jointly"),
}


def _vmapped(function: Callable[[Any], Any], pairs: Any) -> Any:
    return jax.vmap(function)(pairs)


def outcome_names(codes: np.ndarray) -> list[str]:
    return ["settled" if code == SETTLED else jf.Outcome(int(code)).name for code in codes]


def misalignment(risk: Any, ends: dict[str, np.ndarray], norm: str) -> tuple[list[float], list[str]]:
    """1 − corr of each end to Clarabel's solution for the tokens that it selected, and how Clarabel fared.

    NaN where there is no solution to compare with: no unique selection, an infeasible program.
    """
    apart, statuses = [], []
    for i in range(len(ends["steps"])):
        one = jax.tree.map(lambda x, i=i: x[i], risk.data)
        selection = jnp.asarray(ends["selection"][i])
        if not bool(jnp.all(selection.any(-1)) & ~jnp.all(selection)):
            statuses.append("no_program")
            apart.append(np.nan)
            continue
        solution = solve_cvxpy(attention_svm(one, selection, norm))
        status = ProgramResult(int(solution.result)).name
        statuses.append(status)
        a, b = np.asarray(ends["weights"][i]), np.asarray(solution.primal)
        # 1 − <a, b> of unit vectors, without its cancellation.
        a, b = a / np.linalg.norm(a), b / (np.linalg.norm(b) or 1.0)
        value = 0.5 * float(np.sum((a - b) ** 2))
        apart.append(value if solution.result == ProgramResult.optimal else np.nan)
    return apart, statuses


def rows(cases: list[tuple[str, tuple[int, int, int]]], count: int, repeats: int) -> Iterator[dict[str, Any]]:
    """One row for every model, size and method."""
    for name, size in cases:
        kind, norm = MODELS[name]
        keys = jax.random.split(jax.random.key(0), count)
        risk, model = jax.vmap(lambda key: instance(key, size, kind))(keys)  # noqa: B023
        times = {}
        for method, function in METHODS.items():
            # Lanes of a flow wait for the slowest: on a CPU it is run one instance after the other.
            over = jax.lax.map if method in ONE_BY_ONE else _vmapped
            run = jax.jit(lambda r, m: over(lambda pair: function(*pair, norm), (r, m)))  # noqa: B023
            answer, first, later = timed(lambda: run(risk, model), repeats)  # noqa: B023
            ends = {key: np.asarray(value) for key, value in answer.items()}
            apart, statuses = misalignment(risk, ends, norm)
            times[method] = later
            yield {
                "model": name,
                "norm": norm,
                "n_T_d": list(size),
                "method": method,
                "instances": count,
                "one_minus_corr": spread(apart),
                "own_gap": spread(ends["own_gap"]),
                "own_gap_within": {f"{gap:.0e}": int(np.sum(ends["own_gap"] <= gap)) for gap in (1e-3, 1e-8)},
                "program_gap": spread(ends["program_gap"]),
                "outcomes": counts(outcome_names(ends["outcome"])),
                "reference": counts(statuses),
                "steps": spread(ends["steps"]),
                "log_time": spread(ends["log_time"]),
                "first_run_s": first,
                "run_s_per_instance": later / count,
                "time_over_flow": later / times["flow (find_limit)"],
            }


def show(table: list[dict[str, Any]]) -> None:
    print_table(
        "Limits: 1 - corr to Clarabel's program of the selected tokens, and the gap by the method's own "
        "multipliers (median, largest)",
        [
            *("model", "n,T,d", "method", "1-corr", "max", "own gap", "max", "steps", "first s", "ms each"),
            *("x flow", "outcomes", "references"),
        ],
        [
            [
                *(row["model"], ",".join(map(str, row["n_T_d"])), row["method"]),
                *(row["one_minus_corr"]["median"], row["one_minus_corr"]["max"]),
                *(row["own_gap"]["median"], row["own_gap"]["max"], row["steps"]["median"]),
                *(row["first_run_s"], 1e3 * row["run_s_per_instance"], row["time_over_flow"]),
                ", ".join(f"{count} {name}" for name, count in row["outcomes"].items()),
                ", ".join(f"{count} {name}" for name, count in row["reference"].items()),
            ]
            for row in table
        ],
    )

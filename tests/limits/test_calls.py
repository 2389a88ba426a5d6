"""What surrounds a limit: lines of progress, pictures, and what its call compiles and keeps."""

import gc
from collections.abc import Callable, Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxflow as jf
from jaxflow.flow import drive
from jaxflow.limits.progress import told

# JAX's own name for a program that was compiled, or read back from the cache on disk.
COMPILED = "/jax/core/compile/backend_compile_duration"


def attention(seed: int, **how: Any) -> Any:
    data, head = jf.data.random_tokens(jax.random.key(seed), 3, 4, 4)
    model = jf.models.CombinedAttention.init(jax.random.key(seed + 1), data, head)
    return jf.find_limit(jf.EmpiricalRisk(data, jf.losses.Logistic()), model, throw=False, **how)


def one_datum(seed: int) -> tuple[jf.EmpiricalRisk, Any]:
    inputs = jax.random.normal(jax.random.key(seed), (1, 3))
    data = jf.data.LinearData(inputs, jnp.sign(inputs[:, 0]))
    model = jf.models.DiagonalLinearNetwork.init(jax.random.key(seed + 1), data, alpha=0.5, scheme="random")
    return jf.EmpiricalRisk(data, "logistic"), model


def network(seed: int, **how: Any) -> Any:
    return jf.find_limit(*one_datum(seed), throw=False, **how)


@pytest.fixture
def compiled() -> Iterator[list[str]]:
    """The programs compiled so far."""
    programs: list[str] = []

    def heard(event: str, duration_secs: float, **kwargs: Any) -> None:
        if event == COMPILED:
            programs.append(event)

    jax.monitoring.register_event_duration_secs_listener(heard)
    yield programs
    jax.monitoring.unregister_event_duration_listener(heard)


@pytest.mark.slow
@pytest.mark.parametrize("call", [attention, pytest.param(network, marks=pytest.mark.slow)])
def test_the_second_round_compiles_nothing_and_keeps_nothing(call: Callable[..., Any], compiled: list[str]) -> None:
    """`benchmarks/memory.py` counts bytes. A gap is no part of what is compiled."""

    # A gear is compiled when the first path needs it, and constants that calls share come with it.
    def round_of_calls() -> tuple[int, int]:
        for seed in range(6):
            str(call(seed, gap=1e-8 * (1 + seed)).outcome)
        gc.collect()  # what other tests of this process have left may go at any time
        return len(compiled), len(jax.live_arrays())

    first, kept = round_of_calls()
    again, left = round_of_calls()
    assert again == first
    jax.jit(lambda x: 3.0 * x)(jnp.ones(2))
    assert len(compiled) > first  # what is compiled is counted
    # What a call made is gone with its answer.
    assert left <= kept


def test_another_gap_and_another_budget_compile_nothing_and_are_heeded(compiled: list[str]) -> None:
    attention(5)
    before = len(compiled)
    loose, short = attention(5, gap=1e-3), attention(5, max_steps=10)
    assert len(compiled) == before
    assert float(loose.excess) > 1e-8
    assert loose.trajectory.stats["num_steps"] > short.trajectory.stats["num_steps"] == 10
    assert short.outcome == "undecided" and str(short).startswith("Undecided")


@pytest.mark.slow
def test_lines_before_meanwhile_and_after(monkeypatch: Any) -> None:
    # Every step instead of one a second.
    monkeypatch.setattr(drive, "EVERY", 0.0)
    lines: list[str] = []
    limit = network(0, progress=lines.append)
    jax.effects_barrier()
    assert lines[0].startswith("find_limit: DiagonalLinearNetwork, inputs (1, 3)") and "compiles" in lines[0]
    assert lines[-1].startswith(f"find_limit: {limit.outcome}, {int(limit.trajectory.stats['num_steps'])} steps")
    assert "following the flow in ArcLength" in lines and "following the flow in LogArcLength" in lines
    # The explicit steps come to weights that fit the datum: no implicit ones are needed before the multipliers.
    assert limit.trajectory.stats["num_implicit_steps"] == 0 < limit.trajectory.stats["num_multipliers_steps"]
    counted = [line for line in lines if "steps, s = " in line]
    assert len(counted) >= int(limit.trajectory.stats["num_steps"]) - 4
    silent = network(0)
    assert silent.trajectory.stats["num_steps"] == limit.trajectory.stats["num_steps"]
    assert silent.outcome == limit.outcome


def test_a_line_a_second_and_no_more(monkeypatch: Any) -> None:
    clock = iter([0.0, 0.1, 0.2, 1.05, 1.2, 2.1])
    monkeypatch.setattr(drive.time, "monotonic", lambda: next(clock))
    lines: list[str] = []
    meter = drive.StepMeter(lines.append, "LogTime: {} steps, s = {:.4g}", "following the flow in LogTime")
    for steps in range(5):
        meter(steps, 0.5 * steps)
    assert lines == ["following the flow in LogTime", "LogTime: 3 steps, s = 1.5"]


def test_standard_error_is_where_lines_go(capsys: Any) -> None:
    """Of any answer: it is not found again for that, and a method says where it is there too."""

    def found(method: Any) -> Any:
        method.report("underway")
        return attention(0)

    risk, model = one_datum(0)
    told(found, jf.LinearStaged(), risk, model, throw=True, progress=True)
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith("find_limit: DiagonalLinearNetwork")
    assert "underway" in said.err and "steps, " in said.err.splitlines()[-1]


def test_progress_is_refused_where_nobody_could_read_it() -> None:
    with pytest.raises(ValueError, match="progress: expected True, False or a function"):
        attention(0, progress="yes")
    with pytest.raises(ValueError, match="progress: one instance at a time"):
        jax.vmap(lambda seed: attention(seed, progress=True).outcome)(jnp.arange(2))


def test_a_limit_of_attention_draws_itself() -> None:
    limit = attention(0)
    figure = limit.plot()
    way, shown = figure.axes[:2]
    assert figure.get_suptitle() == limit.outcome.name.replace("_", " ")
    assert np.array_equal(np.asarray(shown.images[0].get_array()), limit.direction)
    kept = np.isfinite(np.asarray(limit.rate.gaps))
    assert len(way.lines[0].get_ydata()) == kept.sum() > 2
    batch = jax.tree.map(lambda x: jnp.stack([x, x]) if eqx.is_array(x) else x, limit)
    with pytest.raises(ValueError, match="plot: one limit is wanted"):
        batch.plot()


@pytest.mark.slow
def test_a_linear_network_is_drawn_beside_its_program() -> None:
    limit = network(0)
    shown = limit.plot().axes[1]
    # The flow's coefficients under the stems' markers, then the program's.
    assert any(np.array_equal(line.get_ydata(), limit.flow_direction) for line in shown.lines)
    assert any(np.array_equal(line.get_ydata(), limit.program_solution.primal) for line in shown.lines)

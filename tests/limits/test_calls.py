"""What surrounds a limit: what is printed, drawn and saved of it, progress, and what its call compiles and keeps."""

import gc
import pickle
import re
from collections.abc import Callable, Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray

import jaxflow as jf
from jaxflow.flow import drive
from jaxflow.limits.progress import told
from tests.limits.models import Linear

# JAX's own name for a program that was compiled, or read back from the cache on disk.
COMPILED = "/jax/core/compile/backend_compile_duration"


def selecting(seed: int) -> tuple[jf.EmpiricalRisk, Any]:
    data, head = jf.data.random_tokens(jax.random.key(seed), 3, 4, 4)
    model = jf.models.CombinedAttention.init(jax.random.key(seed + 1), data, head)
    return jf.EmpiricalRisk(data, jf.losses.Logistic()), model


def attention(seed: int, **how: Any) -> Any:
    return jf.find_limit(*selecting(seed), throw=False, **how)


def one_datum(seed: int) -> tuple[jf.EmpiricalRisk, Any]:
    inputs = jax.random.normal(jax.random.key(seed), (1, 3))
    data = jf.data.LinearData(inputs, jnp.sign(inputs[:, 0]))
    model = jf.models.DiagonalLinearNetwork.init(jax.random.key(seed + 1), data, alpha=0.5, scheme="random")
    return jf.EmpiricalRisk(data, "logistic"), model


def network(seed: int, **how: Any) -> Any:
    return jf.find_limit(*one_datum(seed), throw=False, **how)


def stacked(one: Any) -> Any:
    """A batch of two that are the same."""
    return jax.tree.map(lambda x: jnp.stack([x, x]) if eqx.is_array(x) else x, one)


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
@pytest.mark.parametrize("call", [attention, network])
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
    with pytest.raises(ValueError, match="plot: one limit is wanted"):
        stacked(limit).plot()


@pytest.mark.slow
def test_a_linear_network_is_drawn_beside_its_program() -> None:
    limit = network(0)
    shown = limit.plot().axes[1]
    # The flow's coefficients under the stems' markers, then the program's.
    assert any(np.array_equal(line.get_ydata(), limit.flow_direction) for line in shown.lines)
    assert any(np.array_equal(line.get_ydata(), limit.program_solution.primal) for line in shown.lines)


@pytest.fixture(scope="module")
def objects() -> dict[str, Any]:
    risk, start = selecting(0)
    limit = jf.find_limit(risk, start)
    path = jf.integrate(risk, start, clock="log_time", until=5.0)
    how = {"clock": "physical_time", "until": 1e30, "solver": "tsit5"}
    short = jf.integrate(risk, start, **how, max_steps=200, throw=False)
    inputs = np.random.default_rng(0).normal(size=(30, 2))
    labels = np.sign(inputs @ [1.0, -0.5])
    linear = jf.find_limit(jf.EmpiricalRisk((inputs, labels), "logistic"), Linear(jnp.zeros(2)))
    parts = ("certificate", "flow_certificate", "program_solution", "prediction", "rate", "details", "outcome")
    return {
        "limit": limit,
        **{name: getattr(limit, name) for name in parts},
        "path": path,
        "its points": jf.integrate(risk, start, clock="log_time", until=5.0, save_at=jnp.linspace(1.0, 5.0, 9)),
        "point": path.final,
        "result": path.result,
        "result of a rule": limit.trajectory.result,
        "results": stacked(path.result),
        "batch": stacked(path),
        "risk": risk,
        "data": risk.data,
        "model": start,
        "gradient": risk.scaled_gradient(start),
        "program": limit.prediction.program,
        "study": jf.study.Study(jf.study.TokenSelection(), {"d": [2, 4]}, trials=5),
        "diagnosis": jf.diagnose(short, risk, **how),
        "linear limit": linear,
        **{f"linear {name}": getattr(linear, name) for name in ("kkt", "stationary", "details")},
        "cone": jf.margin.recession_cone(labels[:, None] * inputs),
        "selections": jf.margin.enumerate_selections(risk.data, start.head.v),
    }


@pytest.mark.slow
def test_prints_are_short_and_have_numbers(objects: dict[str, Any]) -> None:
    for name, value in objects.items():
        for text in (str(value), repr(value)):
            assert len(text.splitlines()) <= 6, f"{name}: {text}"
            assert not re.search(r"\b(f64|f32|i64|bool|u8)\[| object at 0x", text), f"{name}: {text}"
            assert "<>" not in text and "['' " not in text and "differential equation" not in text, text


@pytest.mark.slow
def test_what_an_undecided_network_says_of_data_that_are_not_separable() -> None:
    data = jf.data.LinearData(np.array([[1.0, 0.5], [1.0, 0.5], [0.2, 1.0]]), np.array([1.0, -1.0, 1.0]))
    network = jf.models.DiagonalLinearNetwork((jnp.ones(2), 0.5 * jnp.ones(2)))
    limit = jf.find_limit(jf.EmpiricalRisk(data, "logistic"), network, max_steps=20, throw=False)
    assert limit.outcome == "undecided"
    assert "the program has no solution" in str(limit) and "inf" not in str(limit)


def test_a_limit_in_a_notebook(objects: dict[str, Any]) -> None:
    for name in ("limit", "certificate", "program_solution", "path", "linear limit", "study"):
        shown = objects[name]._repr_html_()
        assert shown.startswith("<pre") and "f64[" not in shown
    limit = objects["limit"]
    assert f"selects tokens ({', '.join(map(str, np.argmax(limit.selection, -1)))})" in str(limit)
    # The text names the rule that stopped a path.
    text = str(limit.trajectory)
    assert "stopped by a rule" in text and "event" not in text


def test_a_limit_is_saved(objects: dict[str, Any], tmp_path: Any) -> None:
    """Its numbers, read by xarray alone; a batch has its members first; and the limit itself by pickle."""
    limit, linear = objects["limit"], objects["linear limit"]
    for one in (limit, linear):
        one.to_xarray().to_zarr(tmp_path / "limit.zarr", mode="w", consolidated=False)
        back = xarray.open_zarr(tmp_path / "limit.zarr", consolidated=False)
        assert back.load().identical(one.to_xarray())
        assert float(back.certificate_duality_gap) == float(one.certificate.duality_gap)
        assert back.attrs["sentence"] == str(one) and str(jf.study.decode(back.outcome).item()) == str(one.outcome)
    assert np.array_equal(limit.to_xarray().selection, limit.selection)
    batch = stacked(limit).to_xarray()
    assert batch.outcome.dims == ("member",) and batch.flow_direction.shape == (2, 4, 4)
    again = pickle.loads(pickle.dumps(limit))
    assert str(again) == str(limit) and again.trajectory.result == limit.trajectory.result

"""What `find_limit` says of itself where it is asked to."""

import jax
import jax.numpy as jnp
import pytest

from jaxflow.data import LinearData, random_tokens
from jaxflow.flow import drive
from jaxflow.limits import find_limit
from jaxflow.losses import Logistic
from jaxflow.models import CombinedAttention, DiagonalLinearNetwork
from jaxflow.risk import EmpiricalRisk


@pytest.fixture(scope="module")
def network():
    data = LinearData(jnp.array([[2.0, 1.0, 0.5]]), jnp.array([1.0]))
    return EmpiricalRisk(data, Logistic()), DiagonalLinearNetwork.init(jax.random.key(0), data, alpha=0.5)


@pytest.mark.slow
def test_lines_before_meanwhile_and_after(network, monkeypatch):
    # Every step instead of one a second.
    monkeypatch.setattr(drive, "EVERY", 0.0)
    lines: list[str] = []
    limit = find_limit(*network, progress=lines.append)
    jax.effects_barrier()
    assert lines[0].startswith("find_limit: DiagonalLinearNetwork, inputs (1, 3)") and "compiles" in lines[0]
    assert lines[-1].startswith(f"find_limit: {limit.outcome}, {int(limit.trajectory.stats['num_steps'])} steps")
    assert "following the flow in ArcLength" in lines and "following the flow in LogArcLength" in lines
    counted = [line for line in lines if "steps, s = " in line]
    assert len(counted) >= int(limit.trajectory.stats["num_steps"]) - 4
    silent = find_limit(*network)
    assert silent.trajectory.stats["num_steps"] == limit.trajectory.stats["num_steps"]
    assert silent.outcome == limit.outcome


def test_a_line_a_second_and_no_more(monkeypatch):
    clock = iter([0.0, 0.1, 0.2, 1.05, 1.2, 2.1])
    monkeypatch.setattr(drive.time, "monotonic", lambda: next(clock))
    lines: list[str] = []
    told = drive.StepMeter(lines.append, "LogTime")
    for steps in range(5):
        told(steps, 0.5 * steps)
    assert lines == ["following the flow in LogTime", "LogTime: 3 steps, s = 1.5"]


@pytest.mark.slow
def test_standard_error_is_where_lines_go(network, capsys):
    find_limit(*network, progress=True)
    jax.effects_barrier()
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith("find_limit: DiagonalLinearNetwork")


def test_refused_where_nobody_could_read_it(network):
    risk, model = network
    with pytest.raises(ValueError, match="progress: expected True, False or a function"):
        find_limit(risk, model, progress="yes")
    data, head = random_tokens(jax.random.key(0), n=2, T=2, d=2)
    attention = CombinedAttention.init(jax.random.key(1), data, head)
    batch = jax.vmap(
        lambda c: (
            find_limit(EmpiricalRisk(data, Logistic()), CombinedAttention(c * attention.W, head), progress=True).outcome
        )
    )
    with pytest.raises(ValueError, match="progress: one instance at a time"):
        batch(jnp.ones(2))

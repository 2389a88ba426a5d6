"""No program calls LAPACK for several matrices at once on CPU: such calls wait for the threads that XLA runs them on.

The gate of the architecture looks at sources; here it is the programs themselves, with what Diffrax and Lineax add.
"""

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import jaxflow as jf


def _limit(key: Any) -> Any:
    data, head = jf.data.random_tokens(key, n=3, T=4, d=9)
    model = jf.models.FactoredAttention.init(key, data, head)
    return jf.find_limit(jf.EmpiricalRisk(data, jf.losses.Logistic()), model, throw=False).outcome.value


def _implicit(key: Any) -> Any:
    data, head = jf.data.random_tokens(key, n=3, T=4, d=5)
    risk = jf.EmpiricalRisk(data, jf.losses.Logistic())
    model = jf.models.FactoredAttention.init(key, data, head)
    return jf.integrate(risk, model, clock="log_arc_length", until=2.0, throw=False).final.log_time


def _program(norm: str) -> Callable[[Any], Any]:
    def solved(key: Any) -> Any:
        data, _ = jf.data.random_tokens(key, n=4, T=5, d=8)
        selection = jnp.zeros((4, 5), bool).at[:, 1].set(True)
        return jf.margin.solve(jf.margin.attention_svm(data, selection, norm)).result.value

    return solved


@pytest.mark.parametrize(
    "one",
    [
        _limit,
        pytest.param(_implicit, marks=pytest.mark.slow),
        _program("nuclear"),
        pytest.param(_program("l1"), marks=pytest.mark.slow),
    ],
)
def test_every_call_is_for_one_matrix(one: Callable[[Any], Any]) -> None:
    traced = jax.jit(jax.vmap(one)).trace(jax.random.split(jax.random.key(0), 8))
    text = traced.lower(lowering_platforms=("cpu",)).as_text()
    calls = [line for line in text.splitlines() if "custom_call @lapack" in line]
    assert calls
    assert not [line for line in calls if re.search(r"tensor<\d+x\d+x\d+x", line)]

"""No program calls LAPACK for many matrices at once on CPU: such calls wait for the threads that XLA runs them on.

Nor does it call the host: it would be left out of the persistent compilation cache.

The gate of the architecture looks at sources; here it is the programs themselves, with what Diffrax and Lineax add.
"""

import math
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import jaxflow as jf
from jaxflow._core import linalg


def _limit(key: Any) -> Any:
    data, head = jf.data.random_tokens(key, n=3, T=4, d=9)
    model = jf.models.FactoredAttention.init(key, data, head)
    return jf.find_limit(jf.EmpiricalRisk(data, jf.losses.Logistic()), model, throw=False).outcome.value


def _program(norm: str) -> Callable[[Any], Any]:
    def solved(key: Any) -> Any:
        data, _ = jf.data.random_tokens(key, n=4, T=5, d=8)
        selection = jnp.zeros((4, 5), bool).at[:, 1].set(True)
        return jf.margin.solve(jf.margin.attention_svm(data, selection, norm)).result.value

    return solved


# The limit of factors holds implicit steps and the program of the nuclear norm.
@pytest.mark.slow
@pytest.mark.parametrize("one", [_limit, pytest.param(_program("l1"), marks=pytest.mark.slow)])
def test_every_call_of_lapack_is_for_few_matrices_and_none_is_of_the_host(one: Callable[[Any], Any]) -> None:
    lanes = 64
    traced = jax.jit(jax.vmap(one)).trace(jax.random.split(jax.random.key(0), lanes))
    text = traced.lower(lowering_platforms=("cpu",)).as_text()
    assert "while" in text and "callback" not in text
    calls = re.findall(
        r"custom_call @lapack_d(\w+?)_ffi.*?: \(tensor<([\dx]*)xf64>.*?\) -> \(?tensor<([\dx]*)xf64>", text
    )
    assert len(calls) == text.count("custom_call @lapack")
    operations = {"potrf": lambda m, r: m**3 / 3, "getrf": lambda m, r: 2 * m**3 / 3, "trsm": lambda m, r: m**2 * r / 2}
    for kernel, given, result in calls:
        *batch, m, _ = [int(size) for size in given.split("x")]
        several = math.prod(batch)
        if several > 1:
            assert several * operations[kernel](m, int(result.split("x")[-1])) <= linalg.WORK, kernel

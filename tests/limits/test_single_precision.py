"""Single precision, in a process of its own: right to what it can certify, and as in double precision."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxflow as jf
from jaxflow._core import Outcome

N = 64

PROBE = """
import sys
import jax, jax.numpy as jnp, numpy as np
import jaxflow as jf

def one(tokens, queries, labels, head, W):
    data = jf.data.TokenData(tokens, queries, labels)
    model = jf.models.CombinedAttention(W, head)
    limit = jf.find_limit(jf.EmpiricalRisk(data, jf.losses.Logistic()), model, throw=False)
    own = limit.flow_certificate.duality_gap
    program = limit.program_solution.certificate
    return limit.outcome.value, jnp.argmax(limit.selection, -1), limit.excess, own, program.duality_gap

loaded = np.load(sys.argv[1])
given = [loaded[name] for name in ("tokens", "queries", "labels", "head", "W")]
found = [np.asarray(x) for x in jax.jit(jax.vmap(one))(*given)]
assert found[2].dtype == np.float32
np.savez(sys.argv[2], **dict(zip(("outcome", "token", "excess", "own", "program"), found)))
"""


def draw(key):
    key_data, key_model = jax.random.split(key)
    data, head = jf.data.random_tokens(key_data, n=3, T=4, d=5)
    return data.tokens, data.queries, data.labels, head, jf.models.CombinedAttention.init(key_model, data, head).W


def answer(tokens, queries, labels, head, W):
    data = jf.data.TokenData(tokens, queries, labels)
    model = jf.models.CombinedAttention(W, head)
    limit = jf.find_limit(jf.EmpiricalRisk(data, jf.losses.Logistic()), model, throw=False)
    return limit.outcome.value, jnp.argmax(limit.selection, -1)


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """Answers in single and in double precision to the same numbers."""
    folder = tmp_path_factory.mktemp("single")
    # Rounded to single precision first: both are asked the same question.
    given = [np.asarray(x).astype(np.float32) for x in jax.jit(jax.vmap(draw))(jax.random.split(jax.random.key(11), N))]
    given[2] = np.sign(given[2])
    np.savez(folder / "in.npz", **dict(zip(("tokens", "queries", "labels", "head", "W"), given, strict=True)))
    environment = {name: value for name, value in os.environ.items() if name != "JAX_ENABLE_X64"}
    command = [sys.executable, "-W", "error::RuntimeWarning", "-c", PROBE, folder / "in.npz", folder / "out.npz"]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    wide = jax.jit(jax.vmap(answer))(*(jnp.asarray(x, jnp.float64) for x in given))
    return dict(np.load(folder / "out.npz")), [np.asarray(x) for x in wide]


def test_outcomes_and_tokens_are_those_of_double_precision(both):
    single, (outcome, token) = both
    decided = single["outcome"] != Outcome.undecided.value
    # 55 of 64: of the others the program's solver leaves gaps of 1e-4 to 1e-3 in single precision, and says so.
    assert decided.sum() >= 0.8 * N
    np.testing.assert_array_equal(single["outcome"][decided], outcome[decided])
    points = outcome == Outcome.finite_stationary_point.value
    directions = decided & ~points
    np.testing.assert_array_equal(single["token"][directions], token[directions])


def test_what_is_certified_is_so_to_the_default_gap_of_the_dtype(both):
    single, _ = both
    definite = (Outcome.globally_optimal, Outcome.locally_optimal, Outcome.not_locally_optimal)
    certified = np.isin(single["outcome"], [code.value for code in definite])
    assert certified.sum() >= 0.8 * N
    for name in ("excess", "program"):
        assert np.max(single[name][certified]) <= 1e-4
    # A gap below zero by more than rounding would be a wrong certificate.
    for name in ("excess", "own", "program"):
        assert np.min(single[name][certified]) >= -1e-5


def test_a_gap_that_single_precision_cannot_certify_is_refused():
    tokens, queries, labels, head, W = (x.astype(jnp.float32) for x in draw(jax.random.key(0)))
    risk = jf.EmpiricalRisk(jf.data.TokenData(tokens, queries, labels), jf.losses.Logistic())
    assert risk.data is not None
    with jax.enable_x64(False), pytest.raises(ValueError, match="gap: 1e-08 is below what float32 can certify"):
        jf.find_limit(risk, jf.models.CombinedAttention(W, head), gap=1e-8)

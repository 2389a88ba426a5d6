"""Single precision, in a process of its own: right to what it can certify, and as in double precision.

Run as a program this file answers the questions of the tests in the precision that JAX has there.
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxflow as jf
from jaxflow.margin import ProgramResult
from tests.processes import said
from tests.referee import attention, run
from tests.referee.programs import lower_bound

NORMS = ("frobenius", "nuclear", "l1")
# Instances of the referee: of attention, and of each network and each loss once.
KINDS = {"W": ("(4, 4, 6)", 64), "deep network": ("logistic, random", 8), "diagonal network": ("regression, random", 8)}
# A point is followed to a relative tolerance of 1e-4 a step; a direction certified to a gap of 1e-4 is within the root
# of twice that.
ALLOWED = {"deep network": 2e-2, "diagonal network": 2e-3}


def given(tree):
    """The same numbers in both precisions: rounded to single precision first."""
    return jax.tree.map(lambda x: np.asarray(x, np.float32).astype(jnp.result_type(float)), tree)


def selecting(tokens, queries, norm):
    selection = jnp.zeros((4, 5), bool).at[:, 1].set(True)
    data = jf.data.TokenData(tokens, queries, jnp.ones(4, tokens.dtype))
    found = jf.margin.solve(jf.margin.attention_svm(data, selection, norm))
    return found.result.value, found.certificate.duality_gap, found.certificate.primal_value


def undecided(**how):
    data, head = jf.data.random_tokens(jax.random.key(0), n=3, T=4, d=5)
    model = jf.models.CombinedAttention(jnp.zeros((5, 5)), head)
    return jf.find_limit(jf.EmpiricalRisk(data, "logistic"), model, throw=False, **how)


def answers():
    """To every question, by names."""
    random = np.random.default_rng(5)
    programs = given((random.normal(size=(100, 4, 5, 6)), random.normal(size=(100, 4, 6))))
    found = {}
    for norm in NORMS:
        found[norm] = jax.jit(jax.vmap(lambda *one, norm=norm: selecting(*one, norm)))(*programs)
    for model, (name, count) in KINDS.items():
        data, theta, kind = run.drawn(model, name, count)
        found[model] = zip(*run.claims(model, kind.loss, *given((data, theta))), strict=True)
    numbers = {f"{name}.{k}": np.asarray(x) for name, all_ in found.items() for k, x in enumerate(all_)}
    return {**numbers, "sentence": str(undecided(max_steps=3))}


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """Answers in single and in double precision."""
    out = tmp_path_factory.mktemp("single") / "out.npz"
    said("-W", "error::RuntimeWarning", __file__, str(out), seconds=600, JAX_ENABLE_X64="0")
    return dict(np.load(out)), answers()


def decided(both, model):
    """Which limits single precision decides: those as double precision does, which decides all."""
    ours, outcome = (found[f"{model}.0"] for found in both)
    known = ours != "undecided"
    np.testing.assert_array_equal(ours[known], outcome[known])
    return known


@pytest.mark.slow
def test_outcomes_and_tokens_are_those_of_double_precision(both):
    single, double = both
    known = decided(both, "W")
    # All 64 where it was written.
    assert known.sum() >= 0.95 * len(known)
    certified = np.flatnonzero(np.isin(single["W.0"], attention.DIRECTIONS))
    assert len(certified) >= 0.75 * len(known)
    np.testing.assert_array_equal(single["W.2"][certified], double["W.2"][certified])
    # What is certified is so to the default gap of the dtype: its excess over a bound of the program by SciPy.
    data = given(run.drawn("W", *KINDS["W"])[0])
    for i in certified:
        W = single["W.3"][i].astype(float).ravel()
        rows = attention.flat("W", attention.constraints(data, single["W.2"][i], i))
        excess = np.linalg.norm(W) / np.min(rows @ W) / lower_bound("frobenius", rows, np.ones(len(rows))) - 1.0
        # An excess below zero by more than rounding would be a wrong certificate.
        assert -1e-5 <= excess <= 1e-4
    assert "jax.config.update('jax_enable_x64', True) may decide it" in str(single["sentence"])


@pytest.mark.parametrize(("double", "gap"), [(False, 1e-8), (True, 1e-20)])
def test_a_gap_that_a_precision_cannot_certify_is_refused(double, gap):
    message = f"^gap: {gap} is below what float{64 if double else 32} can certify"
    with jax.enable_x64(double), pytest.raises(ValueError, match=message):
        undecided(gap=gap)


@pytest.mark.slow
@pytest.mark.parametrize("norm", NORMS)
def test_programs_that_are_called_solved_are(norm, both):
    (result, gap, value), (known, _, right) = ([found[f"{norm}.{k}"] for k in range(3)] for found in both)
    optimal, feasible = (x == ProgramResult.optimal.value for x in (result, known))
    assert value.dtype == np.float32 and feasible[optimal].all()
    assert np.abs(gap[optimal]).max() <= 1e-5
    np.testing.assert_allclose(value[optimal], right[optimal], rtol=2e-5)
    # The others say so: `inaccurate`, with their gap, or `failed` where the program is nearly infeasible.
    # 99, 100 and 77% of the solvable ones in the three norms where it was written.
    assert (optimal & feasible).sum() >= 0.7 * feasible.sum()
    assert (known[result == ProgramResult.infeasible.value] == ProgramResult.infeasible.value).all()


@pytest.mark.slow
@pytest.mark.parametrize("model", ALLOWED)
def test_networks_that_are_decided_agree(model, both):
    known = decided(both, model)
    assert known.sum() >= 6
    ours, theirs = (found[f"{model}.1"] for found in both)
    if model == "deep network":
        ours, theirs = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (ours, theirs))
    assert np.abs(ours - theirs)[known].max() <= ALLOWED[model]


if __name__ == "__main__":
    np.savez(sys.argv[1], **answers())

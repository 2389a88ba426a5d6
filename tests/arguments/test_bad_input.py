"""Every public callable, given what it cannot use: one sentence that names the argument, raised by
the library itself before anything is traced; and arguments in every form that is taken."""

import enum
import importlib
import inspect
import json

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxflow as jf
from tests.arguments import table_library, table_study
from tests.arguments.harness import complaint, refusals
from tests.processes import said

CALLS = [*table_library.CALLS, *table_study.CALLS]

# Rooms whose public callables all have a row; of others the tables have constructors and what commands call.
ROOMS = ("jaxflow", "jaxflow.data", "jaxflow.margin", "jaxflow.study")

# Public callables without a row in the tables: they hold what functions of the library computed.
RECORDS = """
    AttentionProgram Certificate Code Enumeration FiniteComponentProgram Limit LinearLimit LocalOptimality
    MaxMarginProgram MinimumNormProgram ModelLimit RecessionCone ScaledGradient Solution Status Table Trajectory
""".split()


def public_callables() -> dict[str, object]:
    """By name; without abstract classes, enumerations and what takes no arguments."""
    found: dict[str, object] = {}
    for room in ROOMS:
        module = importlib.import_module(room)
        for name in dir(module):
            value = getattr(module, name)
            ours = getattr(value, "__module__", "").startswith("jaxflow") and callable(value)
            if name.startswith("_") or not ours or inspect.isabstract(value):
                continue
            if isinstance(value, type) and issubclass(value, enum.Enum | BaseException):
                continue
            if "(self, /, *args, **kwargs)" in str(inspect.signature(value)) or inspect.signature(value).parameters:
                found[name] = value
    return found


def found() -> dict:
    """What is wrong with the answers to wrong arguments; and one half, given as other numbers."""
    cases = list(refusals(CALLS))
    # Beartype takes numbers of Python alone.
    halves = [float(jf.LogTime(x).unit) for x in (np.float64(0.5), np.float32(0.5), jnp.asarray(0.5))]
    told = [complaint(*case) for case in cases]
    for wanted, run in table_study.SENTENCES:
        begins, *has = wanted.split(" ... ")
        told.append(complaint(wanted, begins, run, *has))
    return {"complaints": [text for text in told if text is not None], "cases": len(cases), "halves": halves}


@pytest.mark.slow
def test_every_wrong_argument_is_named(tmp_path):
    """In single precision, which is what JAX begins with, and without beartype, which would answer first."""
    program = "import json; from tests.arguments.test_bad_input import found; print(json.dumps(found()))"
    answers = json.loads(said("-c", program, cwd=tmp_path, JAX_ENABLE_X64="False").splitlines()[-1])
    assert answers["complaints"] == list(tmp_path.iterdir()) == []
    assert answers["cases"] > 2_000 and answers["halves"] == [0.5] * 3


def test_every_public_callable_has_a_row():
    rows = {part for call in CALLS for part in (call.name, call.name.split(".")[0], call.name.split(",")[0])}
    assert [name for name in public_callables() if name not in rows and name not in RECORDS] == []
    assert [name for name in RECORDS if name in rows or name not in public_callables()] == []


TOKENS, QUERIES, LABELS = np.ones((2, 3, 2)), np.ones((2, 2)), np.array([1.0, -1.0])
DATA = jf.data.TokenData(TOKENS, QUERIES, LABELS)


@pytest.mark.parametrize(
    ("function", "usual", "others"),
    [
        (lambda x: jf.data.causal_mask(x, 3), 2, (np.int64(2), jnp.asarray(2))),
        (lambda x: jf.data.draw_tokens(jax.random.key(0), 2, 3, 2, self_attention=x), True, (np.bool_(True),)),
        (lambda x: jf.data.draw_tokens(x, 2, 3, 2), jax.random.key(7), (7, np.int64(7), jax.random.PRNGKey(7))),
        (lambda x: jf.data.TokenData(x, QUERIES, LABELS), TOKENS, (TOKENS.tolist(), jnp.asarray(TOKENS))),
        (lambda x: jf.data.LinearData(TOKENS[0, :2], x), LABELS, (LABELS > 0, ["b", "a"], [1, -1])),
        (lambda x: jf.data.optimal_tokens(TOKENS[..., 0], x), TOKENS[..., 0] > 0, ([[True] * 3] * 2,)),
        (lambda x: jf.data.TokenData(TOKENS, QUERIES, LABELS, x), TOKENS[..., 0] > 0, (np.ones((2, 3), int),)),
        (lambda x: jf.margin.attention_svm(DATA, x), np.array([0, 2]), ([0, 2], jnp.array([0, 2]))),
    ],
)
def test_other_forms_are_taken(function, usual, others):
    """Arrays of NumPy and JAX, lists, numbers of NumPy and scalars of JAX, names of classes."""
    for other in others:
        assert eqx.tree_equal(function(other), function(usual))

"""Every public callable, given what it cannot use: one sentence that names the argument, raised by
the library itself before anything is traced; and arguments in every form that is taken."""

import enum
import importlib
import inspect
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxflow as jf

ROOT = Path(__file__).resolve().parents[2]

# Tables and their names.
TABLES = {
    "data": ("CALLS", "RARE"),
    "flow": ("FLOW", "LIMITS"),
    "models": ("MODELS", "MARGIN"),
    "pages": ("THEORY", "CALLS"),
    "study": ("CALLS",),
}
ROOMS = (
    *("jaxflow", "jaxflow.data", "jaxflow.losses", "jaxflow.margin", "jaxflow.models", "jaxflow.theory"),
    *("jaxflow.teachers", "jaxflow.flow", "jaxflow.limits", "jaxflow.report", "jaxflow.plots", "jaxflow.papers"),
    "jaxflow.study",
)

# Public callables without a row in the tables, and why.
RECORDS = """
    Assumption AttentionProgram Certificate ClosedForm Code Comparison Dataset Decomposition Diagnosis Entry Enumeration
    Finding FiniteComponentProgram HardMarginPath HardMarginState InterpolationLimit InterpolationProgram KKTPoint Lane
    Limit LinearLimit LocalOptimality LogWeights MaxMarginProgram MinimumNormProgram ModelLimit NormLike PairLimit Paper
    Part Prediction ProductNetwork Rate RecessionCone ScaledGradient Situation Solution Stages Statement
    StationaryFacts Status Studies Sweep Table Theorem Trajectory GatedHead BackwardEuler AttentionFacts NetworkFacts
    ModelFacts LinearFacts AbstractPairs Pairs PriorityGraphs
""".split()
EXEMPT = {
    **dict.fromkeys(RECORDS, "holds what functions of the library computed, or what a paper registers"),
    **dict.fromkeys(("RESULTS", "OtherNumbers"), "an enumeration, an exception"),
    **dict.fromkeys(("default_trainable", "attention_and_head", "is_linear", "has_rule"), "takes any object"),
    **dict.fromkeys(("linearize", "cross_check"), "is called by the models' own methods, or has no arguments"),
}


def all_calls() -> list:
    """The rows of all tables."""
    calls = []
    for module, names in TABLES.items():
        table = importlib.import_module(f"tests.arguments.table_{module}")
        calls += [call for name in names for call in getattr(table, name)]
    return calls


def public_callables() -> dict[str, object]:
    """By name; without abstract classes, enumerations and what takes no arguments."""
    found: dict[str, object] = {}
    for room in ROOMS:
        module = importlib.import_module(room)
        for name in dir(module):
            value = getattr(module, name)
            ours = getattr(value, "__module__", "").startswith(("jaxflow",)) and callable(value)
            # A room re-exports its names; what a module of one file imports is not its own.
            own = room == "jaxflow" or hasattr(module, "__path__") or getattr(value, "__module__", "") == room
            if name.startswith("_") or not ours or not own or inspect.isabstract(value) or inspect.ismodule(value):
                continue
            if isinstance(value, type) and issubclass(value, enum.Enum | BaseException):
                continue
            if "(self, /, *args, **kwargs)" in str(inspect.signature(value)) or inspect.signature(value).parameters:
                found[name] = value
    return found


def found() -> dict:
    """What is wrong with the answers to wrong arguments; and one half, given as other numbers."""
    from tests.arguments.harness import complaint, refusals, sentence_complaint
    from tests.arguments.table_study import SENTENCES

    cases = list(refusals(all_calls()))
    # Beartype takes numbers of Python alone.
    halves = [float(jf.LogTime(x).unit) for x in (np.float64(0.5), np.float32(0.5), jnp.asarray(0.5))]
    told = [*map(complaint, cases), *(sentence_complaint(*sentence) for sentence in SENTENCES)]
    complaints = [text for text in told if text is not None]
    rows = {part for call in all_calls() for part in (call.name, call.name.split(".")[0], call.name.split(",")[0])}
    missing = [name for name in public_callables() if name not in rows and name not in EXEMPT]
    unknown = [name for name in EXEMPT if name in rows]
    rest = {"cases": len(cases), "halves": halves, "missing": missing, "unknown": unknown}
    return {"complaints": complaints, **rest}


def main() -> None:
    """In a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        print(json.dumps({**found(), "written": sorted(os.listdir(folder))}))


@pytest.fixture(scope="module")
def answers():
    """In single precision, which is what JAX begins with, and without beartype, which would answer first."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    environment["JAX_ENABLE_X64"] = "False"
    command = [sys.executable, "-c", "from tests.arguments.test_bad_input import main; main()"]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr[-2000:]
    return json.loads(run.stdout.splitlines()[-1])


@pytest.mark.slow
def test_every_wrong_argument_is_named(answers):
    assert answers["complaints"] == answers["written"] == []
    assert answers["cases"] > 3_000 and answers["halves"] == [0.5] * 3


def test_every_public_callable_has_a_row(answers):
    assert answers["missing"] == answers["unknown"] == []


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

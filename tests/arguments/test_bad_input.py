"""Every public callable outside of `study`, given what it cannot use: one sentence that names the argument, raised by
the library itself before anything is traced; and what it can use in other forms.

Both run in a process of their own: a user's has no beartype, which would answer first.
"""

import enum
import importlib
import inspect
import json
import os
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# Tables and their names.
TABLES = {
    "data": ("CALLS",),
    "flow": ("FLOW", "LIMITS"),
    "models": ("MODELS", "MARGIN"),
    "pages": ("THEORY", "CALLS"),
}
# Rows that together have an argument of every kind that can be given in several forms.
IN_SEVERAL_FORMS = (
    *("TokenData.validated", "LinearData.validated", "causal_mask", "random_tokens", "optimal_tokens", "LogTime"),
    *("ArcLength", "attention_svm by indices", "plan"),
)
ROOMS = (
    *("jaxflow", "jaxflow.data", "jaxflow.losses", "jaxflow.margin", "jaxflow.models", "jaxflow.theory"),
    *("jaxflow.teachers", "jaxflow.flow", "jaxflow.limits", "jaxflow.report", "jaxflow.plots", "jaxflow.papers"),
)

# Public callables without a row in the tables, and why.
RECORDS = """
    Assumption AttentionProgram Certificate ClosedForm Code Dataset Decomposition Diagnosis Entry Enumeration
    FiniteComponentProgram HardMarginPath HardMarginState InterpolationLimit InterpolationProgram KKTPoint Lane Limit
    LinearLimit LocalOptimality LogWeights MaxMarginProgram MinimumNormProgram ModelLimit NormLike PairLimit Paper
    Part Prediction ProductNetwork Rate RecessionCone Row ScaledGradient Situation Solution Stages Statement
    StationaryFacts Studies Sweep Theorem Trajectory GatedHead BackwardEuler AttentionFacts NetworkFacts ModelFacts
    LinearFacts AbstractPairs Pairs
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
            if isinstance(value, type) and issubclass(value, enum.Enum | Exception):
                continue
            if "(self, /, *args, **kwargs)" in str(inspect.signature(value)) or inspect.signature(value).parameters:
                found[name] = value
    return found


def found() -> dict:
    """What is wrong with the answers to wrong arguments, and to other forms of right ones."""
    from tests.arguments.harness import alternatives, complaint, refusals

    calls = all_calls()
    wrong = list(refusals(calls))
    several = list(alternatives([call for call in calls if call.name in IN_SEVERAL_FORMS]))
    untaken = []
    for case in several:
        try:
            case.run()
        except Exception:
            untaken.append(f"{case.name}({case.argument}={case.value!r}): {traceback.format_exc()[-400:]}")
    complaints = [text for text in map(complaint, wrong) if text is not None]
    return {"complaints": complaints, "untaken": untaken, "cases": len(wrong), "forms": len(several)}


def main() -> None:
    """In a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        print(json.dumps({**found(), "written": sorted(os.listdir(folder))}))


def test_every_wrong_argument_is_named_and_other_forms_are_taken():
    """In single precision, which is what JAX begins with."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    environment["JAX_ENABLE_X64"] = "False"
    command = [sys.executable, "-c", "from tests.arguments.test_bad_input import main; main()"]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr[-2000:]
    found = json.loads(run.stdout.splitlines()[-1])
    assert found["complaints"] == found["untaken"] == found["written"] == []
    assert found["cases"] > 2_000 and found["forms"] > 40


def test_every_public_callable_has_a_row():
    rows = {part for call in all_calls() for part in (call.name, call.name.split(".")[0], call.name.split(",")[0])}
    missing = [name for name in public_callables() if name not in rows and name not in EXEMPT]
    assert missing == []
    unknown = [name for name in EXEMPT if name in rows]
    assert unknown == []

"""What `import jaxflow` does, seen from a fresh interpreter: nothing heavy, nothing global."""

import ast
import json
from pathlib import Path

import pytest

import jaxflow
from tests.architecture.floors import LAZY
from tests.processes import said

PROBE = """
import json, sys
import jax
before = jax.config.values.copy()
import jaxflow
changed = [name for name, value in jax.config.values.items() if before.get(name, value) != value]
print(json.dumps({"modules": sorted({name.partition(".")[0] for name in sys.modules}), "changed": changed}))
"""


def test_import_is_light_and_changes_no_setting():
    seen = json.loads(said("-W", "error", "-c", PROBE))
    assert "jaxflow" in seen["modules"]
    assert not LAZY & set(seen["modules"])
    assert seen["changed"] == []


def test_names_for_type_checkers_are_those_at_run_time():
    source = ast.parse(Path(jaxflow.__file__).read_text(encoding="utf-8"))
    (block,) = (node for node in source.body if isinstance(node, ast.If))
    promised = {}
    for node in block.body:
        assert isinstance(node, ast.ImportFrom) and node.module
        promised |= {alias.asname: f"{node.module}.{alias.name}" for alias in node.names}
    found = {name: f"jaxflow.{name}" for name in jaxflow._MODULES}
    found |= {name: f"{module}.{name}" for name, module in jaxflow._NAMES.items()}
    assert promised == found
    assert set(jaxflow.__all__) == set(promised)


def test_every_public_name_is_there():
    for name in jaxflow.__all__:
        assert getattr(jaxflow, name) is not None
    assert set(jaxflow.__all__) <= set(dir(jaxflow))
    assert jaxflow.trajectory.Trajectory is jaxflow.Trajectory  # a module that is not listed
    with pytest.raises(AttributeError, match="no_such_name"):
        jaxflow.no_such_name  # noqa: B018


def test_the_command_answers_without_jax():
    said("-c", "import sys, jaxflow.cli; assert not {'jax', 'numpy', 'diffrax'} & set(sys.modules)")

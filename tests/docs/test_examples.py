"""Every name on top has an example in its docstring, and all examples run."""

import ast
import inspect
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import jax
import pytest

import jaxflow as jf
import jaxflow.theory.prediction as prediction
from tests.architecture.floors import FLOORS
from tests.docs.pages import DOCS

# What the examples of a room may use without a word: shown on top of its page.
PRELUDE = (DOCS / "examples_prelude.py").read_text(encoding="utf-8")

ROOMS = sorted(name for name in FLOORS if not name.startswith("_"))


def named(room: str) -> dict[str, Any]:
    """The public names of a room: all that a package re-exports, and what a room of one file defines."""
    module = import_module(f"jaxflow.{room}")
    found = {name: obj for name, obj in vars(module).items() if not name.startswith("_") and not inspect.ismodule(obj)}
    if hasattr(module, "__path__"):
        return found
    return {name: obj for name, obj in found.items() if getattr(obj, "__module__", "") == module.__name__}


def documented(room: str) -> dict[str, Any]:
    """The classes and functions among them."""
    return {name: obj for name, obj in named(room).items() if inspect.isclass(obj) or inspect.isfunction(obj)}


def top() -> dict[str, Any]:
    """What `jaxflow` itself exports, but for its rooms."""
    found = {name: getattr(jf, name) for name in jf.__all__}
    return {name: obj for name, obj in found.items() if not inspect.ismodule(obj)}


def examples(obj: Any) -> list[str]:
    text = inspect.getdoc(obj) or ""
    return [block for block in re.findall(r"```python\n(.*?)```", text, re.S)]


def test_the_rooms_are_those_of_the_pages() -> None:
    tree = ast.parse((DOCS / "api_pages.py").read_text(encoding="utf-8"))
    (listed,) = [node for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "ROOMS"]
    assert {node.value for node in ast.walk(listed) if isinstance(node, ast.Constant)} == set(ROOMS)
    assert {name for name in jf.__all__ if inspect.ismodule(getattr(jf, name))} <= set(ROOMS)


def test_every_name_on_top_has_an_example() -> None:
    assert not [name for name, obj in top().items() if not examples(obj)]


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The names of the prelude, in a folder of their own."""
    folder = tmp_path_factory.mktemp("examples")
    names: dict[str, Any] = {"__name__": "examples"}
    with pytest.MonkeyPatch.context() as patch, jax.numpy_rank_promotion("allow"):
        patch.chdir(folder)
        exec(compile(PRELUDE, "prelude", "exec"), names)
    return names | {"folder": folder}


@pytest.mark.slow
@pytest.mark.parametrize("room", [*ROOMS, ""])
def test_examples_run(room: str, before: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prediction, "_RULES", dict(prediction._RULES))
    monkeypatch.chdir(Path(before["folder"]))
    broken, in_rooms = [], {id(obj) for other in ROOMS for obj in documented(other).values()}
    for name, obj in (documented(room) if room else top()).items():
        # What a room exports is run there.
        for text in examples(obj) if room or id(obj) not in in_rooms else ():
            try:
                with jax.numpy_rank_promotion("allow"):
                    exec(compile(text, f"jaxflow.{room}.{name}", "exec"), dict(before))
            except Exception as error:
                broken.append(f"{name}: {type(error).__name__}: {str(error)[:300]}")
    assert not broken, "\n".join(broken)

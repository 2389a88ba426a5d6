"""Every public class and function has an example in its docstring, and the examples run."""

import inspect
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import jax
import pytest

import jaxflow as jf
import jaxflow.theory.prediction as prediction
from tests.docs.pages import DOCS

# What the examples of a room may use without a word: shown on top of its page.
PRELUDE = (DOCS / "examples_prelude.py").read_text(encoding="utf-8")

ROOMS = (
    *("data", "losses", "models", "risk", "teachers", "margin", "trajectory", "flow", "gradient_descent"),
    *("theory", "limits", "study"),
)


def named(room: str) -> dict[str, Any]:
    """The public classes and functions of a room."""
    module = import_module(f"jaxflow.{room}")
    names = [name for name in vars(module) if not name.startswith("_")]
    found = {name: getattr(module, name) for name in names}
    return {name: obj for name, obj in found.items() if _is_public(obj, room)}


def _is_public(obj: Any, room: str) -> bool:
    owned = str(getattr(obj, "__module__", "")).startswith(f"jaxflow.{room}")
    return owned and (inspect.isclass(obj) or (callable(obj) and hasattr(obj, "__doc__") and hasattr(obj, "__name__")))


def top() -> dict[str, Any]:
    """What `jaxflow` itself exports, but for its rooms."""
    found = {name: getattr(jf, name) for name in jf.__all__}
    return {name: obj for name, obj in found.items() if not inspect.ismodule(obj)}


def examples(obj: Any) -> list[str]:
    text = inspect.getdoc(obj) or ""
    return [block for block in re.findall(r"```python\n(.*?)```", text, re.S)]


def test_the_rooms_are_those_that_jaxflow_exports() -> None:
    assert {name for name in jf.__all__ if inspect.ismodule(getattr(jf, name))} <= set(ROOMS)


@pytest.mark.parametrize("room", ROOMS)
def test_everything_public_has_an_example(room: str) -> None:
    assert not [name for name, obj in named(room).items() if not examples(obj)]


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
    broken = []
    for name, obj in (named(room) if room else top()).items():
        for text in examples(obj):
            try:
                with jax.numpy_rank_promotion("allow"):
                    exec(compile(text, f"jaxflow.{room}.{name}", "exec"), dict(before))
            except Exception as error:
                broken.append(f"{name}: {type(error).__name__}: {str(error)[:300]}")
    assert not broken, "\n".join(broken)

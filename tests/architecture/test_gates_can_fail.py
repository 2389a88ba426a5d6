"""Each gate is shown a small house that breaks its law, and one that does not."""

from pathlib import Path

import pytest

from tests.architecture import classes, floors, kernels, texts, verdicts
from tests.architecture.sources import read_package


@pytest.fixture
def build(tmp_path):
    """Writes files (path -> source) below a package called jaxflow and reads it; nothing is imported."""

    def write(files: dict[str, str]):
        folder = tmp_path / "jaxflow"
        for name, source in {"__init__.py": "", **files}.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.parent != folder:
                (path.parent / "__init__.py").touch()
            path.write_text(source)
        return read_package(folder)

    return write


ROOMS = {"_core/trees.py": "", "data/tokens.py": "", "flow/clocks.py": "", "gradient_descent.py": ""}


@pytest.mark.parametrize(
    "file, source, way",
    [
        ("data/tokens.py", "from jaxflow.flow import clocks", "up"),
        ("data/tokens.py", "import jaxflow.flow.clocks", "up"),
        ("data/tokens.py", "from ..flow.clocks import LogTime", "up"),
        ("data/tokens.py", "def f():\n    from jaxflow.flow import clocks", "up"),
        ("data/tokens.py", "class A:\n    def f(self):\n        import jaxflow.flow", "up"),
        ("data/tokens.py", "if TYPE_CHECKING:\n    from jaxflow.flow import clocks", "up"),
        ("data/tokens.py", "import importlib\nimportlib.import_module('jaxflow.flow')", "up"),
        ("data/tokens.py", "from .. import flow", "up"),
        ("flow/clocks.py", "from jaxflow.gradient_descent import step", "sideways"),
        ("gradient_descent.py", "from .flow import clocks", "sideways"),
        ("data/tokens.py", "import jaxflow as jf", "above every room"),
        ("data/tokens.py", "from jaxflow import TokenData", "above every room"),
    ],
)
def test_arrow_up_or_sideways(build, file, source, way):
    findings = floors.wrong_arrows(build({**ROOMS, file: source}))
    assert len(findings) == 1
    assert way in findings[0]


@pytest.mark.parametrize(
    "file, source",
    [
        ("data/tokens.py", "from jaxflow._core.trees import tree_dot"),
        ("data/tokens.py", "from .._core import trees"),
        ("flow/clocks.py", "from jaxflow.flow import integrate\nfrom . import stopping"),
        ("flow/clocks.py", "import jaxflowers, numpy"),
        ("__init__.py", "from jaxflow.flow.clocks import LogTime as LogTime\nimport jaxflow.data"),
    ],
)
def test_arrow_down(build, file, source):
    assert floors.wrong_arrows(build({**ROOMS, file: source})) == []


def test_losses_and_plots_share_a_floor(build):
    house = build({"losses.py": "from jaxflow.plots import draw", "plots/draw.py": ""})
    assert "sideways, floor 1" in floors.wrong_arrows(house)[0]


def test_unknown_room(build):
    assert floors.unknown_rooms(build({"attic/box.py": ""})) == ["attic: no floor is known for this room"]


def test_known_rooms(build):
    assert floors.unknown_rooms(build(ROOMS)) == []


@pytest.mark.parametrize(
    "first, second",
    [
        ("from jaxflow.flow import b", "from jaxflow.flow import a"),
        ("from .b import x", "def f():\n    from .a import y"),
        ("import jaxflow.flow.b", "import jaxflow.flow.a"),
    ],
)
def test_cycle(build, first, second):
    findings = floors.import_cycles(build({"flow/a.py": first, "flow/b.py": second}))
    assert len(findings) == 1
    assert "jaxflow.flow.a" in findings[0] and "jaxflow.flow.b" in findings[0]


def test_cycle_through_the_room_itself(build):
    source = {"flow/a.py": "from jaxflow.flow import LogTime"}
    house = build(source)
    assert floors.import_cycles(house) == []
    (house.modules["jaxflow.flow"].path).write_text("from jaxflow.flow.a import integrate")
    house = read_package(house.modules["jaxflow"].path.parent)
    assert "jaxflow.flow.a" in floors.import_cycles(house)[0]


@pytest.mark.parametrize(
    "source",
    ["import {}", "from {} import x", "import {}.sub as y", "try:\n    import {}\nfinally:\n    pass"],
)
@pytest.mark.parametrize("library", sorted(floors.LAZY))
def test_eager_import(build, library, source):
    house = build({"limits/find.py": source.format(library)})
    assert len(floors.eager_imports(house)) == 1


@pytest.mark.parametrize(
    "file, source",
    [
        ("limits/find.py", "def f():\n    import cvxpy"),
        ("limits/find.py", "if TYPE_CHECKING:\n    import xarray"),
        ("limits/find.py", "import numpy, jax"),
        ("study/draw.py", "import matplotlib"),
    ],
)
def test_lazy_import(build, file, source):
    assert floors.eager_imports(build({file: source})) == []


@pytest.mark.parametrize(
    "source",
    [
        "import jax._src.core",
        "from jax._src import core",
        "from diffrax import _integrate",
        "import diffrax\nx = diffrax._integrate.loop",
        "import equinox as eqx\neqx._module",
    ],
)
def test_private_name_of_a_library(build, source):
    assert floors.private_imports(build({"flow/a.py": source}))


@pytest.mark.parametrize(
    "source",
    [
        "from jaxflow._core import require",
        "from __future__ import annotations",
        "import jax\njax.__version__",
        "self._x",
    ],
)
def test_own_private_name(build, source):
    assert floors.private_imports(build({"flow/a.py": source})) == []


def test_undeclared_library(build):
    house = build({"data/a.py": "import os, jax\ndef f():\n    import torch.nn"})
    assert [finding.split(":")[1] for finding in floors.undeclared_imports(house, {"jax"})] == ["3 imports torch.nn"]


BASE = "import abc\nimport equinox as eqx\nfrom typing import Protocol\n"


@pytest.mark.parametrize(
    "base",
    [
        "class Clock(eqx.Module):\n    @abc.abstractmethod\n    def f(self): ...",
        "class Clock(eqx.Module):\n    @property\n    @abc.abstractmethod\n    def f(self): ...",
        "class Clock(eqx.Module):\n    rate: eqx.AbstractVar[float]",
        "class Clock(abc.ABC): ...",
        "class Clock(Protocol):\n    def f(self): ...",
        "class Clock(metaclass=abc.ABCMeta): ...",
        "class Root(abc.ABC):\n    @abc.abstractmethod\n    def f(self): ...\nclass Clock(Root): ...",
        "class Clock(ValueError): ...",
        "class Clock(eqx.Enumeration): ...",
    ],
)
def test_abstract_or_exempt_base(build, base):
    source = f"{BASE}{base}\nclass LogTime(Clock):\n    def f(self): return 1\n"
    assert classes.neither_abstract_nor_final(build({"flow/clocks.py": source})) == []


@pytest.mark.parametrize(
    "base",
    [
        "class Clock(eqx.Module):\n    def f(self): ...",
        "class Clock:\n    rate: float = 1.0",
        "class Root(abc.ABC):\n    @abc.abstractmethod\n    def f(self): ...\n"
        "class Clock(Root):\n    def f(self): return 0",
        "class Root(eqx.Module):\n    rate: eqx.AbstractVar[float]\nclass Clock(Root):\n    rate: float",
    ],
)
def test_class_both_subclassed_and_concrete(build, base):
    source = f"{BASE}{base}\nclass LogTime(Clock):\n    def f(self): return 1\n"
    findings = classes.neither_abstract_nor_final(build({"flow/clocks.py": source}))
    assert findings == ["jaxflow.flow.clocks.Clock is not abstract, yet jaxflow.flow.clocks.LogTime inherits from it"]


@pytest.mark.parametrize(
    "use",
    [
        "from jaxflow.flow import Clock as C\nclass Mine(C): ...",
        "from jaxflow.flow.clocks import Clock\nclass Mine(Clock[int]): ...",
        "from jaxflow import flow\nclass Mine(flow.Clock): ...",
        "import jaxflow.flow.clocks as c\nclass Mine(c.Clock): ...",
        "import jaxflow.flow\nclass Mine(jaxflow.flow.Clock): ...",
        "from jaxflow.flow import Clock\ndef f():\n    class Mine(Clock): ...",
    ],
)
def test_subclass_in_another_room(build, use):
    house = build({"flow/clocks.py": "class Clock: ...", "theory/mine.py": use})
    house.modules["jaxflow.flow"].path.write_text("from jaxflow.flow.clocks import Clock as Clock")
    house = read_package(house.modules["jaxflow"].path.parent)
    assert len(classes.neither_abstract_nor_final(house)) == 1


def test_long_file(tmp_path):
    (tmp_path / "long.py").write_text("x = 1\n" * 501)
    (tmp_path / "fits.py").write_text("x = 1\n" * 500)
    (tmp_path / "data.txt").write_text("x\n" * 501)
    assert texts.long_files(tmp_path, texts.repository_files(tmp_path)) == ["long.py: 501 lines, limit 500"]


# Put together here, so that this file itself passes the gate.
SLASH, DASHES = chr(47), "-" * 2


@pytest.mark.parametrize(
    "line, what",
    [
        (f"see {SLASH}home{SLASH}ada{SLASH}x", "path"),
        (f'"{SLASH}root{SLASH}x"', "path"),
        (f"({SLASH}tmp{SLASH}x)", "path"),
        (f"pip install {DASHES}index-url x", "index"),
        (f"pip install {DASHES}extra-index-url=x", "index"),
        (f"https:{SLASH * 2}pypi.org{SLASH}simple", "index"),
        ("index-url" + " = x", "index"),
        ("<" * 7 + " HEAD", "merge"),
        (">" * 7 + " other", "merge"),
    ],
)
def test_forbidden_text(tmp_path, line, what):
    path = tmp_path / "note.md"
    path.write_text(f"fine\n{line}\n")
    findings = texts.forbidden_texts(tmp_path, [path])
    assert len(findings) == 1
    assert findings[0].startswith("note.md:2") and what in findings[0]


def test_allowed_text(tmp_path):
    path = tmp_path / "note.md"
    path.write_text("https://example.org/work/home/x\n#!/usr/bin/env bash\nPyPI\n~/work/x\na/tmp/x\n")
    (tmp_path / "picture.png").write_bytes(b"\0" + f"{SLASH}home{SLASH}ada".encode())
    assert texts.forbidden_texts(tmp_path, texts.repository_files(tmp_path)) == []


def test_files_without_git(tmp_path):
    for name in ("a.py", ".ci/run", ".venv/b.py", "site/c.md", "jaxflow/__pycache__/d.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert [str(path.relative_to(tmp_path)) for path in texts.repository_files(tmp_path)] == [
        str(Path(".ci/run")),
        "a.py",
    ]


@pytest.mark.parametrize(
    "source, ours",
    [
        ("import jax.numpy as jnp\n\ndef f(x):\n    return jnp.linalg.qr(x)", False),
        ("import jax\n\ndef f(x):\n    return jax.scipy.linalg.lu_factor(x)", False),
        ("from jax import lax\n\ndef f(x):\n    return lax.linalg.cholesky(x)", False),
        ("import optimistix\n\nsolver = optimistix.Newton(rtol=1e-5, atol=1e-7)", False),
        ("import optimistix\n\nsolver = optimistix.Newton(1e-5, 1e-7, linear_solver=None)", True),
        ("import jax.numpy as jnp\n\ndef f(x):\n    return jnp.linalg.norm(x)", True),
        ("from jaxflow._core import linalg\n\ndef f(x):\n    return linalg.qr(x)", True),
    ],
)
def test_kernel_of_a_batch(build, source, ours):
    house = build(ROOMS | {"flow/clocks.py": source})
    assert bool(kernels.batched_kernels(house)) != ours


DECIDES = """
import enum
class Verdict(enum.StrEnum):
    holds = "holds"
    not_settled = "not settled"
"""


@pytest.mark.parametrize(
    "source",
    [
        "from jaxflow.papers.verdicts import Verdict\ndef f():\n    return Verdict.holds",
        "from jaxflow.papers import verdicts\nx = verdicts.Verdict.not_settled",
        "from jaxflow.papers.verdicts import Verdict\nx = Verdict('holds')",
        "x = 'not settled'",
    ],
)
def test_a_verdict_named_elsewhere(build, source):
    findings = verdicts.named_elsewhere(build({"papers/verdicts.py": DECIDES, "papers/claims.py": source}))
    assert len(findings) == 1 and findings[0].startswith("jaxflow.papers.claims:")


def test_verdicts_that_are_only_typed_and_decided(build):
    source = (
        "from jaxflow.papers.verdicts import Verdict, decide\ndef f(e) -> Verdict:\n    return decide(e)\ny = 'holds'"
    )
    assert not verdicts.named_elsewhere(build({"papers/verdicts.py": DECIDES, "papers/claims.py": source}))

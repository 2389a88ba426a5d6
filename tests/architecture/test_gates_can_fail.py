"""Each gate is shown small houses that break its law; the one that keeps them is the package itself."""

import abc

import equinox as eqx
import pytest

from tests.architecture import floors, texts, uses
from tests.architecture.sources import Package, read_package


@pytest.fixture
def build(tmp_path):
    """Writes files (path -> source) below a package called jaxflow and reads it; nothing is imported."""

    def write(files: dict[str, str]) -> Package:
        folder = tmp_path / "jaxflow"
        for name, source in {"__init__.py": "", **files}.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.parent != folder:
                (path.parent / "__init__.py").touch()
            path.write_text(source)
        return read_package(folder)

    return write


def undeclared(house: Package) -> list[str]:
    return floors.undeclared_imports(house, {"jax"})


ROOMS = {"_core/trees.py": "", "data/tokens.py": "", "flow/clocks.py": "", "gradient_descent.py": ""}
DATA, FLOW, FIND, CLAIMS = "data/tokens.py", "flow/clocks.py", "limits/find.py", "papers/claims.py"

# A law, a file with a source that breaks it, and what is said of it.
BROKEN = [
    (floors.wrong_arrows, DATA, "from jaxflow.flow import clocks", "points up"),
    (floors.wrong_arrows, DATA, "def f():\n    import jaxflow.flow.clocks", "points up"),
    (floors.wrong_arrows, DATA, "import importlib\nimportlib.import_module('jaxflow.flow')", "points up"),
    (floors.wrong_arrows, "gradient_descent.py", "from .flow import clocks", "points sideways, floor 6 to floor 6"),
    (floors.wrong_arrows, DATA, "from jaxflow import TokenData", "above every room"),
    (floors.unknown_rooms, "attic/box.py", "", "attic: no floor is known for this room"),
    (floors.import_cycles, FLOW, "def f():\n    from . import a", "jaxflow.flow.a"),
    (floors.eager_imports, FIND, "try:\n    from xarray.core import x\nfinally:\n    pass", "imports xarray"),
    (uses.private_names, FLOW, "from diffrax import _integrate", "diffrax._integrate, which is private"),
    (uses.private_names, FLOW, "import equinox as eqx\neqx._module", "equinox._module, which is private"),
    (undeclared, DATA, "import os, jax\ndef f():\n    import torch.nn", "3 imports torch.nn"),
    (uses.batched_kernels, FLOW, "import jax.numpy as jnp\ndef f(x):\n    return jnp.linalg.qr(x)", "linalg.qr"),
    (uses.batched_kernels, FLOW, "from jax import lax\ndef f(x):\n    return lax.linalg.cholesky(x)", "cholesky"),
    (uses.batched_kernels, FLOW, "import optimistix\nsolver = optimistix.Newton(rtol=1e-5)", "linear solver"),
    (uses.verdicts_elsewhere, CLAIMS, "from jaxflow.papers import verdicts\nx = verdicts.Verdict.holds", "holds"),
    (uses.verdicts_elsewhere, CLAIMS, "from jaxflow.papers.verdicts import Verdict\nx = Verdict('holds')", "value"),
    (uses.verdicts_elsewhere, CLAIMS, "x = 'not settled'", "'not settled'"),
    (uses.local_classes, FLOW, "class Clock: ...\ndef f():\n    class Mine(Clock): ...", "3 defines Mine"),
    (uses.local_classes, DATA, "from . import x\ndef f():\n    class Mine(x.Clock[int]): ...", "x.Clock[int] is no"),
]
# Beside the file.
BESIDE = ROOMS | {"flow/a.py": "from .clocks import x"}


@pytest.mark.parametrize(("law", "file", "source", "said"), BROKEN)
def test_a_broken_law_is_reported(build, law, file, source, said):
    (finding,) = law(build(BESIDE | {file: source}))
    assert said in finding


def test_a_class_that_is_neither_abstract_nor_final_is_reported():
    class Method(abc.ABC):
        @abc.abstractmethod
        def run(self): ...

    class Clock(Method):
        def run(self): ...

    class LogTime(Clock): ...

    class Marked(abc.ABC): ...  # noqa: B024

    class Rule(eqx.Module):
        tolerance: eqx.AbstractVar[float]

    class Strict(Rule):
        tolerance: float = 0.0

    class Failed(ValueError): ...

    class Retried(Failed): ...

    class Named(Marked): ...

    found = [Method, Clock, LogTime, Marked, Named, Rule, Strict, Failed, Retried]
    (finding,) = uses.neither_abstract_nor_final(found)
    assert "Clock is not abstract" in finding and "LogTime inherits from it" in finding


def test_a_long_file(tmp_path):
    for name, lines in (("long.py", 401), ("fits.py", 400), ("data.txt", 401)):
        (tmp_path / name).write_text("x\n" * lines)
    assert texts.long_files(tmp_path, texts.repository_files(tmp_path)) == ["long.py: 401 lines, limit 400"]


# Put together here, so that this file itself passes the gate.
SLASH, DASHES = chr(47), "-" * 2


@pytest.mark.parametrize(
    "line, what",
    [
        (f"({SLASH}tmp{SLASH}x)", "path"),
        (f"pip install {DASHES}extra-index-url=x", "index"),
        (f"https:{SLASH * 2}pypi.org{SLASH}simple", "index"),
        ("index-url" + " = x", "index"),
        ("<" * 7 + " HEAD", "merge"),
    ],
)
def test_a_forbidden_text(tmp_path, line, what):
    allowed = "https://example.org/work/home/x\n#!/usr/bin/env bash\nPyPI\n~/work/x\na/tmp/x\n"
    (tmp_path / "note.md").write_text(f"{allowed}{line}\n")
    (tmp_path / "picture.png").write_bytes(b"\0" + f"{SLASH}home{SLASH}ada".encode())
    (finding,) = texts.forbidden_texts(tmp_path, texts.repository_files(tmp_path))
    assert finding.startswith("note.md:6") and what in finding

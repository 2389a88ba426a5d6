"""Each gate is shown small houses that break its law; the one that keeps them is the package itself."""

import pytest

from tests.architecture import classes, floors, kernels, texts, verdicts
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


BOTH = classes.neither_abstract_nor_final
ROOMS = {"_core/trees.py": "", "data/tokens.py": "", "flow/clocks.py": "", "gradient_descent.py": ""}
DATA, FLOW, FIND, CLAIMS = "data/tokens.py", "flow/clocks.py", "limits/find.py", "papers/claims.py"
DECIDES = 'import enum\nclass Verdict(enum.StrEnum):\n    holds = "holds"\n    not_settled = "not settled"\n'
BASE = "import abc\nimport equinox as eqx\n"
LOG_TIME = "\nclass LogTime(Clock):\n    def f(self): return 1\n"
ABSTRACT = "class Root(abc.ABC):\n    @abc.abstractmethod\n    def f(self): ...\n"

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
    (floors.private_imports, FLOW, "from diffrax import _integrate", "diffrax._integrate, which is private"),
    (floors.private_imports, FLOW, "import equinox as eqx\neqx._module", "equinox._module, which is private"),
    (undeclared, DATA, "import os, jax\ndef f():\n    import torch.nn", "3 imports torch.nn"),
    (
        BOTH,
        FLOW,
        f"{BASE}{ABSTRACT}class Clock(Root):\n    def f(self): return 0{LOG_TIME}",
        "Clock is not abstract, yet jaxflow.flow.clocks.LogTime inherits from it",
    ),
    (kernels.batched_kernels, FLOW, "import jax.numpy as jnp\ndef f(x):\n    return jnp.linalg.qr(x)", "linalg.qr"),
    (kernels.batched_kernels, FLOW, "from jax import lax\ndef f(x):\n    return lax.linalg.cholesky(x)", "cholesky"),
    (kernels.batched_kernels, FLOW, "import optimistix\nsolver = optimistix.Newton(rtol=1e-5)", "linear solver"),
    (verdicts.named_elsewhere, CLAIMS, "from jaxflow.papers import verdicts\nx = verdicts.Verdict.holds", "holds"),
    (verdicts.named_elsewhere, CLAIMS, "from jaxflow.papers.verdicts import Verdict\nx = Verdict('holds')", "value"),
    (verdicts.named_elsewhere, CLAIMS, "x = 'not settled'", "'not settled'"),
]
# Beside the file: `flow.a` imports `flow.clocks`, and one file decides.
BESIDE = ROOMS | {"flow/a.py": "from .clocks import x", "papers/verdicts.py": DECIDES}


@pytest.mark.parametrize(("law", "file", "source", "said"), BROKEN)
def test_a_broken_law_is_reported(build, law, file, source, said):
    (finding,) = law(build(BESIDE | {file: source}))
    assert said in finding


@pytest.mark.parametrize(
    "use",
    [
        "from jaxflow.flow import Clock as C\nclass Mine(C): ...",
        "from jaxflow import flow\nclass Mine(flow.Clock[int]): ...",
        "import jaxflow.flow.clocks as c\ndef f():\n    class Mine(c.Clock): ...",
    ],
)
def test_a_subclass_is_found_through_what_another_room_re_exports(build, use):
    house = build({FLOW: "class Clock: ...", "theory/mine.py": use})
    house.modules["jaxflow.flow"].path.write_text("from jaxflow.flow.clocks import Clock as Clock")
    house = read_package(house.modules["jaxflow"].path.parent)
    assert len(classes.neither_abstract_nor_final(house)) == 1


def test_a_long_file(tmp_path):
    for name, lines in (("long.py", 501), ("fits.py", 500), ("data.txt", 501)):
        (tmp_path / name).write_text("x\n" * lines)
    assert texts.long_files(tmp_path, texts.repository_files(tmp_path)) == ["long.py: 501 lines, limit 500"]


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

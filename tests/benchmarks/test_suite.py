"""The run of all benchmarks: what ends, what fails and what takes too long each has its row, and there is a page."""

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def suite(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(FOLDER))
    spec = importlib.util.spec_from_file_location("suite", FOLDER / "suite.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "suite", module)
    spec.loader.exec_module(module)
    return module


def test_every_script_is_there_and_takes_its_arguments(suite: Any) -> None:
    for script in suite.SCRIPTS:
        text = (FOLDER / script.file).read_text(encoding="utf-8")
        if script.file.endswith("_peers.py"):
            text += (FOLDER / "_peers.py").read_text(encoding="utf-8")
        flags = [word for word in f"{script.quick} {script.full}".split() if word.startswith("--")]
        assert all(f'"{flag}"' in text for flag in flags), script.file


def test_each_script_has_its_row(suite: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scripts = {
        "ends.py": "import json, os, pathlib, sys\n"
        "path = pathlib.Path(os.environ['JAXFLOW_RESULTS']) / 'memory.json'\n"
        "old = json.loads(path.read_text()); old['shapes'] = 77; path.write_text(json.dumps(old))\n",
        "fails.py": "raise SystemExit('no such thing')",
        "hangs.py": "import time; time.sleep(60)",
    }
    for name, text in scripts.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    # The real page, of the folder that this run wrote.
    for name in ("page.py", "page_scaling.py", "_forms.py"):
        (tmp_path / name).write_text((FOLDER / name).read_text(encoding="utf-8"), encoding="utf-8")
    monkeypatch.setattr(suite, "HERE", tmp_path)
    monkeypatch.setattr(suite, "SCRIPTS", tuple(suite.Script(name, "", "") for name in scripts))
    out = tmp_path / "out"
    monkeypatch.setattr(sys, "argv", ["suite.py", "--out", str(out), "--limit", "5"])
    assert suite.main() == 1
    rows = json.loads((out / "suite.json").read_text(encoding="utf-8"))["rows"]
    assert [row["ended"] for row in rows] == ["done", "exit code 1", "stopped after 5 s"]
    assert [row["results"] for row in rows] == [["memory.json"], [], []]
    assert "no such thing" in (out / "logs" / "fails.py.txt").read_text(encoding="utf-8")
    assert "over 77 shapes" in (out / "benchmarks.md").read_text(encoding="utf-8")
    # What is committed is not touched.
    assert json.loads((suite.COMMITTED / "memory.json").read_text(encoding="utf-8"))["shapes"] != 77


def test_an_accelerator_has_to_be_there(suite: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(suite.jax, "default_backend", lambda: "cpu")
    monkeypatch.setattr(sys, "argv", ["suite.py", "--accelerator"])
    with pytest.raises(SystemExit):
        suite.main()
    assert "JAX sees none here" in capsys.readouterr().err

"""The run of all benchmarks: what ends, what fails and what takes too long each has its row, and there is a page."""

import importlib
import importlib.util
import json
import re
import sys
import time
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "benchmarks"


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
        path = FOLDER / script.file if script.file.endswith(".py") else ROOT / f"{script.file.replace('.', '/')}.py"
        text = path.read_text(encoding="utf-8")
        options = re.findall(r"--(\w+)", f"{script.quick} {script.full}")
        given = "".join(re.findall(r"(?:settings|begun)\(.*?\)\n", text, re.S))
        assert all(f" {option}=" in given for option in options), script.file


def test_a_quick_run_takes_an_hour_at_most(suite: Any) -> None:
    assert sum(script.limit for script in suite.SCRIPTS) < 3600


def test_every_table_has_a_record_that_a_script_writes(suite: Any) -> None:
    page = tomllib.loads((FOLDER / "page.toml").read_text(encoding="utf-8"))
    records = {table["record"] for table in page["table"]} - {"blocks_gpu", "engines"}
    # The first needs an accelerator, the second another checkout.
    assert records == {script.file.removesuffix(".py").removesuffix(".run").split(".")[-1] for script in suite.SCRIPTS}


def test_no_script_hides_a_package() -> None:
    # The folder is on the path of the tests: a `coverage.py` in it stood in the way of `make coverage`.
    installed = set(metadata.packages_distributions()) | set(sys.stdlib_module_names)
    assert not installed & {file.stem for file in FOLDER.glob("*.py")}


@pytest.mark.slow
def test_each_script_has_its_row(suite: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scripts = {
        "ends.py": "import json, os, pathlib, sys\n"
        "path = pathlib.Path(os.environ['JAXFLOW_RESULTS']) / 'memory.json'\n"
        "old = json.loads(path.read_text()); old['shapes'] = 77; path.write_text(json.dumps(old))\n",
        "fails.py": "raise SystemExit('no such thing')",
        # Stopped with the process that it has begun.
        "hangs.py": "import pathlib, subprocess, sys, time\n"
        "late = 'import time, pathlib; time.sleep(7); pathlib.Path({!r}).touch()'.format(__file__ + '.late')\n"
        "subprocess.Popen([sys.executable, '-c', late])\n"
        "time.sleep(60)",
    }
    for name, text in scripts.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.setattr(suite, "HERE", tmp_path)
    monkeypatch.setattr(suite, "SCRIPTS", tuple(suite.Script(name, "", "", 5) for name in scripts))
    out = tmp_path / "out"
    monkeypatch.setattr(sys, "argv", ["suite.py", "--out", str(out)])
    assert suite.main() == 1
    rows = json.loads((out / "suite.json").read_text(encoding="utf-8"))["rows"]
    assert [row["ended"] for row in rows] == ["done", "exit code 1", "stopped after 5 s"]
    assert [row["results"] for row in rows] == [["memory.json"], [], []]
    assert "no such thing" in (out / "logs" / "fails.py.txt").read_text(encoding="utf-8")
    assert "over 77 shapes" in (out / "benchmarks.md").read_text(encoding="utf-8")
    time.sleep(4)
    assert not (tmp_path / "hangs.py.late").exists()
    # What is committed is not touched.
    assert json.loads((suite.COMMITTED / "memory.json").read_text(encoding="utf-8"))["shapes"] != 77


def test_an_accelerator_has_to_be_there(suite: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(suite.jax, "default_backend", lambda: "cpu")
    monkeypatch.setattr(sys, "argv", ["suite.py", "--accelerator"])
    with pytest.raises(SystemExit):
        suite.main()
    assert "JAX sees none here" in capsys.readouterr().err


def test_a_record_keeps_what_is_not_measured_again(suite: Any, tmp_path: Path) -> None:
    common, out = importlib.import_module("_common"), tmp_path / "some.json"
    for rows in ([{"case": "a", "s": 1.0}, {"case": "b", "s": float("inf")}], [{"case": "a", "s": 2.0}]):
        record = common.Record(out, same=("case",), scale=0.5)
        for row in rows:
            record.add(row)
    content = json.loads(out.read_text(encoding="utf-8"))
    assert content["rows"] == [{"case": "b", "s": None}, {"case": "a", "s": 2.0}]
    assert content["scale"] == 0.5 and content["environment"]["versions"]["jax"]

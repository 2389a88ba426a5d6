"""`benchmarks/compare.py` flags ratios that fell, and nothing else."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROW = {"norm": "l1", "n_T_d": [5, 5, 10], "method": "Clarabel", "per_second": 100.0, "ratio": 30.0}


def record(path: Path, *changes: dict[str, Any]) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"environment": {"cpu_count": 2}, "rows": [ROW | change for change in changes]}))
    return path


def compare(old: Path, new: Path, *options: str) -> subprocess.CompletedProcess[str]:
    script = ROOT / "benchmarks" / "compare.py"
    return subprocess.run([sys.executable, str(script), str(old), str(new), *options], capture_output=True, text=True)


GONE, OTHER = {"method": "OSQP"}, {"method": "OSQP", "ratio": 21.0}


@pytest.mark.parametrize(
    ("old", "new", "options", "flagged"),
    [
        # A ratio that fell, beyond the factor; of another row within it.
        ([{}, GONE], [{"ratio": 19.0}, OTHER], (), "Clarabel"),
        ([{}, GONE], [{"ratio": 19.0}, OTHER], ("--factor", "2"), None),
        # A rate alone says how loaded the machine was.
        ([{}], [{"ratio": 90.0, "per_second": 1.0}], (), None),
        # A row that is gone, and a new one.
        ([{}, GONE], [{}], (), "not measured now"),
        ([{}], [{}, GONE], (), None),
    ],
)
def test_ratios_that_fell_are_flagged_and_nothing_else(old: Any, new: Any, options: Any, flagged: Any, tmp_path: Path):
    run = compare(record(tmp_path / "old.json", *old), record(tmp_path / "new.json", *new), *options)
    assert run.returncode == (flagged is not None), run.stdout
    assert flagged is None or (flagged in run.stdout and run.stdout.count("before") == 1)


def test_folders_are_matched_by_file_names(tmp_path: Path) -> None:
    record(tmp_path / "old" / "a.json", {})
    record(tmp_path / "old" / "b.json", {"ratio": 9.0})
    record(tmp_path / "new" / "a.json", {})
    record(tmp_path / "new" / "b.json", {"ratio": 1.0})
    run = compare(tmp_path / "old", tmp_path / "new")
    assert run.returncode == 1 and run.stdout.count("before") == 1 and "b.json" in run.stdout


def test_the_rows_of_every_record_are_told_apart() -> None:
    results = ROOT / "benchmarks" / "results"
    run = compare(results, results)
    assert run.returncode == 0, run.stderr

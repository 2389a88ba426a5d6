"""`benchmarks/compare.py` flags ratios that fell, and nothing else."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
ROW = {"norm": "l1", "n_T_d": [5, 5, 10], "method": "Clarabel", "per_second": 100.0, "ratio": 30.0}


def record(path: Path, *changes: dict[str, Any]) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"environment": {"cpu_count": 2}, "rows": [ROW | change for change in changes]}))
    return path


def compare(old: Path, new: Path, *options: str) -> subprocess.CompletedProcess[str]:
    script = ROOT / "benchmarks" / "compare.py"
    return subprocess.run([sys.executable, str(script), str(old), str(new), *options], capture_output=True, text=True)


def test_a_ratio_that_fell_is_flagged_beyond_the_factor(tmp_path: Path) -> None:
    old = record(tmp_path / "old.json", {}, {"method": "OSQP"})
    new = record(tmp_path / "new.json", {"ratio": 19.0}, {"method": "OSQP", "ratio": 21.0})
    run = compare(old, new)
    assert run.returncode == 1 and "Clarabel" in run.stdout and "OSQP" not in run.stdout
    assert compare(old, new, "--factor", "2").returncode == 0


def test_faster_rows_and_rates_are_no_regression(tmp_path: Path) -> None:
    old = record(tmp_path / "old.json", {})
    # A rate alone says how loaded the machine was.
    new = record(tmp_path / "new.json", {"ratio": 90.0, "per_second": 1.0})
    assert compare(old, new).returncode == 0


def test_a_row_that_is_gone_is_flagged_and_a_new_one_is_not(tmp_path: Path) -> None:
    one = record(tmp_path / "one.json", {})
    two = record(tmp_path / "two.json", {}, {"method": "OSQP"})
    gone = compare(two, one)
    assert gone.returncode == 1 and "not measured now" in gone.stdout
    assert compare(one, two).returncode == 0


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

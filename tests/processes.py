"""Other processes of Python, for what a test cannot see in its own."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def child(*arguments: str, cwd: Path = ROOT, **environment: str) -> subprocess.Popen[str]:
    """Another Python, which finds the library and its tests."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(
        [sys.executable, *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": path, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def said(*arguments: str, seconds: float = 300, **how: Any) -> str:
    """What another Python prints, which must end well."""
    process = child(*arguments, **how)
    try:
        output, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    assert process.returncode == 0, errors[-3000:]
    return output

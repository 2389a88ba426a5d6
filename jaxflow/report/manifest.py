"""How a result came to be."""

import importlib.metadata
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax

PACKAGES = ("jax", "jaxlib", "numpy", "equinox", "diffrax", "optimistix", "lineax", "optax", "matplotlib")


def manifest(*, arguments: dict[str, Any], seed: int, seconds: float) -> dict[str, Any]:
    """Version, commit (where there is one), seed, package versions, device and arguments, for `json`."""
    return {
        "jaxflow": _version("jaxflow-bias"),
        "commit": commit(),
        "seed": seed,
        "arguments": arguments,
        "seconds": round(seconds, 1),
        "packages": {name: _version(name) for name in PACKAGES},
        "python": platform.python_version(),
        "platform": f"{sys.platform}-{platform.machine()}",
        "device_kind": jax.devices()[0].device_kind,
        "device_count": jax.device_count(),
        "double_precision": jax.numpy.result_type(float) == jax.numpy.float64,
    }


def commit() -> dict[str, Any] | None:
    """Commit of the checkout that is running and whether files differ from it; None for an installed copy."""
    root = Path(__file__).resolve().parents[2]
    git = shutil.which("git")
    if git is None or not (root / ".git").exists():
        return None

    def ask(*arguments: str) -> str | None:
        answer = subprocess.run([git, "-C", str(root), *arguments], capture_output=True, text=True)
        return answer.stdout.strip() if answer.returncode == 0 else None

    identity, changes = ask("rev-parse", "HEAD"), ask("status", "--porcelain")
    return None if identity is None else {"id": identity, "modified": bool(changes)}


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        # A checkout that is run without having been installed has no version on record.
        return None

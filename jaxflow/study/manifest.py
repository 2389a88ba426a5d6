"""How the results of a study came to be: what must be equal for them to be equal bit by bit."""

import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from jaxflow.study.plan import Plan

PACKAGES = ("jax", "jaxlib", "numpy", "equinox", "diffrax", "optimistix", "lineax", "optax")

# Settings of JAX that change results. A worker process is given those of the driver.
NUMERICAL_SETTINGS = (
    "jax_enable_x64",
    "jax_default_matmul_precision",
    "jax_disable_most_optimizations",
    "jax_threefry_partitionable",
    "jax_numpy_dtype_promotion",
)

# More devices only change placement.
PLACEMENT_FLAG = "--xla_force_host_platform_device_count"

REQUIRED = ("seed", "packages", "device_kind", "block", "arguments", "settings")


def manifest(plan: Plan, device_kind: str) -> dict[str, Any]:
    """Version, commit (where there is one), seed, packages, device kind, block width and arguments, for JSON.

    The kind of device is that of the workers, wherever they are.
    """
    return {
        **origin(),
        "seed": plan.seed,
        "device_kind": device_kind,
        "settings": numerical_settings(),
        "flags": xla_flags(),
        "block": plan.block,
        "arguments": plan.identity(),
    }


def origin() -> dict[str, Any]:
    """What computes here: version and commit of jaxflow, packages, Python and platform, for JSON."""
    return {
        "jaxflow": package_version("jaxflow-bias"),
        "commit": commit(),
        "packages": {name: package_version(name) for name in PACKAGES},
        "python": platform.python_version(),
        "platform": f"{sys.platform}-{platform.machine()}",
    }


def missing(found: Mapping[str, Any]) -> list[str]:
    """What a manifest lacks; without it a study is not complete."""
    absent = [name for name in REQUIRED if found.get(name) in (None, {}, [])]
    if not found.get("jaxflow") and not found.get("commit"):
        absent.append("version or commit of jaxflow")
    return absent


def mixed(stored: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """In words, what differs between two manifests so that results may differ in their last bits."""
    before, after = _compared(stored), _compared(now)
    names = [name for name in before | after if before.get(name) != after.get(name)]
    return [f"{name} {before.get(name)} then, {after.get(name)} now" for name in names]


def _compared(told: Mapping[str, Any]) -> dict[str, Any]:
    alone = {name: told.get(name) for name in ("jaxflow", "python", "platform", "device_kind", "flags")}
    commit_id = (told.get("commit") or {}).get("id")
    return alone | (told.get("packages") or {}) | (told.get("settings") or {}) | {"commit": commit_id}


def xla_flags() -> list[str]:
    """The flags of the compiler that may change results."""
    return sorted(flag for flag in os.environ.get("XLA_FLAGS", "").split() if not flag.startswith(PLACEMENT_FLAG))


def numerical_settings() -> dict[str, Any]:
    """The values of `NUMERICAL_SETTINGS`."""
    return {name: _setting(name) for name in NUMERICAL_SETTINGS}


def apply_settings(settings: Mapping[str, Any]) -> None:
    """Sets what differs (in a worker process)."""
    for name, value in settings.items():
        if _setting(name) != value:
            jax.config.update(name, value)


def _setting(name: str) -> Any:
    # The attribute knows of contexts such as `jax.enable_x64`, but not every setting has one.
    return getattr(jax.config, name) if hasattr(jax.config, name) else jax.config.values[name]


def commit() -> dict[str, Any] | None:
    """Commit of the checkout that is running and whether files differ from it; None for an installed copy."""
    root = Path(__file__).resolve().parents[2]
    git = shutil.which("git")
    if git is None or not (root / ".git").exists():
        return None

    def ask(*arguments: str) -> str | None:
        answer = subprocess.run(
            [git, "--no-optional-locks", "-C", str(root), *arguments], capture_output=True, text=True
        )
        return answer.stdout.strip() if answer.returncode == 0 else None

    identity, changes = ask("rev-parse", "HEAD"), ask("status", "--porcelain", "--", "jaxflow")
    return None if identity is None else {"id": identity, "modified": bool(changes)}


def package_version(name: str) -> str | None:
    """The installed version; None where a checkout runs without having been installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None

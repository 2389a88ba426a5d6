"""What may not stand in any file of the repository, and how long a file may be."""

import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

# Left out where there is no git to ask (an unpacked archive).
IGNORED = re.compile(
    r"^(\.|build$|dist$|site$|out$|__pycache__$|.*\.egg-info$)",
)
KEPT = {".ci", ".gitignore", ".github"}

MAX_LINES = 400

FORBIDDEN = {
    "a path of one machine": re.compile(r"(?<![\w.~-])/(?:home|root|Users|work|tmp|opt|mnt|scratch)/\w|[A-Z]:\\Users"),
    "the address of a package index": re.compile(
        r"pypi\.org/simple|files\.pythonhosted\.org|--(?:extra-)?index-url|--find[-]links|PIP_(?:EXTRA_)?INDEX_URL"
        r"|^\s*(?:extra-)?index-url\s*="
    ),
    "a mark of a merge": re.compile(r"^(?:<{7}|>{7}) \S"),
}


def repository_files(root: Path) -> list[Path]:
    """The files that are tracked, or would be: all that git does not ignore."""
    if (root / ".git").exists() and shutil.which("git"):
        command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
        listing = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout
        files = [root / name for name in listing.split("\0") if name]
    else:
        files = [path for path in root.rglob("*") if not _ignored(path.relative_to(root))]
    return sorted(path for path in files if path.is_file())


def _ignored(path: Path) -> bool:
    return any(IGNORED.match(part) and part not in KEPT for part in path.parts)


def forbidden_texts(root: Path, files: Iterable[Path]) -> list[str]:
    """Machine paths and index addresses, with file and line."""
    found = []
    for path in files:
        data = path.read_bytes()
        if b"\0" in data:  # a picture or an archive
            continue
        for number, line in enumerate(data.decode("utf-8", "replace").splitlines(), 1):
            for what, pattern in FORBIDDEN.items():
                if match := pattern.search(line):
                    found.append(f"{path.relative_to(root)}:{number} holds {what}: {match.group()!r}")
    return found


def long_files(root: Path, files: Iterable[Path], limit: int = MAX_LINES) -> list[str]:
    """Python files above the limit."""
    counts = {path: len(path.read_bytes().splitlines()) for path in files if path.suffix == ".py"}
    return [f"{path.relative_to(root)}: {n} lines, limit {limit}" for path, n in counts.items() if n > limit]

"""How many compiled programs a process can hold."""

from pathlib import Path

import jax

# Of the kernel's limit on memory maps (65,530 by default): one program takes hundreds, a cell of a study several
# programs. Beyond the limit LLVM cannot allocate memory, and the process dies.
CROWDED = 0.5

MAPS, LIMIT = Path("/proc/self/maps"), Path("/proc/sys/vm/max_map_count")


def crowded(maps: Path = MAPS, limit: Path = LIMIT) -> bool:
    """Whether this process is near the kernel's limit on memory maps; False where the kernel does not tell."""
    try:
        with maps.open("rb") as lines:
            return sum(1 for _ in lines) > CROWDED * int(limit.read_text(encoding="ascii"))
    except OSError:
        # Not Linux: no such files, and no such limit.
        return False


def release_programs() -> None:
    """Forgets all compiled programs; what is still needed comes back from the compilation cache on disk.

    `jit` keeps a program as long as its function lives, and those of modules and classes live as long as the process:
    a study of many sizes would keep the programs of all of them.
    """
    jax.clear_caches()

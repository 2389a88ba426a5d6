"""What a command switches on for itself. Importing jaxflow configures nothing."""

import os
from pathlib import Path

import jax

# A thunk of XLA's CPU backend that fans out into the thread pool it runs on, as batched LAPACK calls and FFTs do,
# can wait for itself for good. Small matrices gain nothing from it.
ONE_THREAD_A_CALL = "--xla_cpu_multi_thread_eigen=false"


def configure() -> None:
    """Double precision, a cache of compiled programs that outlives the command, and no nested threads on CPU.

    Call it before JAX computes anything: XLA reads its flags once.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    if "xla_cpu_multi_thread_eigen" not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {ONE_THREAD_A_CALL}".strip()
    jax.config.update("jax_enable_x64", True)
    # JAX has read JAX_COMPILATION_CACHE_DIR itself; what is set stands.
    if jax.config.values["jax_compilation_cache_dir"] is None:
        folder = cache_folder()
        folder.mkdir(parents=True, exist_ok=True)
        jax.config.update("jax_compilation_cache_dir", str(folder))
    # Small programs are many, and reading one back is quicker than a tenth of a second.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)


def cache_folder() -> Path:
    """Where this platform keeps what can be made again: XDG_CACHE_HOME, LOCALAPPDATA, or ~/.cache."""
    base = os.environ.get("XDG_CACHE_HOME") or (os.environ.get("LOCALAPPDATA") if os.name == "nt" else None)
    return (Path(base) if base else Path.home() / ".cache") / "jaxflow" / "xla"

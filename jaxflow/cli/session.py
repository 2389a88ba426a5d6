"""What a command switches on for itself. Importing jaxflow configures nothing."""

import os

import jax

from jaxflow._core import compilation_cache

# XLA's CPU backend runs a program on a pool of threads, one for each core. A batched LAPACK call hands its matrices
# to the same pool and waits: where as many calls wait as there are threads, nothing moves any more (seen on two
# cores, with both threads in such calls). More threads than calls that may meet prevent it; NPROC sets their number.
THREADS = 8
# Others than LAPACK (FFT, products of matrices) are not to fan out at all.
ONE_THREAD_A_CALL = "--xla_cpu_multi_thread_eigen=false"


def configure() -> None:
    """Double precision, a cache of compiled programs that outlives the command, and threads that cannot block.

    Call it before JAX computes anything: XLA reads its environment once.
    """
    os.environ.setdefault("NPROC", str(max(THREADS, os.cpu_count() or 1)))
    flags = os.environ.get("XLA_FLAGS", "")
    if "xla_cpu_multi_thread_eigen" not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {ONE_THREAD_A_CALL}".strip()
    jax.config.update("jax_enable_x64", True)
    compilation_cache()

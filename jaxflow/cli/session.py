"""What a command switches on for itself. Importing jaxflow configures nothing."""

import os

import jax

from jaxflow._core import compilation_cache

# XLA's CPU backend runs a program on a pool of threads. What hands parts of its work to the same pool and waits for
# them can wait for good: FFT and products of matrices are told not to, LAPACK is called for one matrix at a time.
ONE_THREAD_A_CALL = "--xla_cpu_multi_thread_eigen=false"


def configure() -> None:
    """Double precision, a cache of compiled programs that outlives the command, and no waiting within XLA's pool.

    Call it before JAX computes anything: XLA reads its environment once.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    if "xla_cpu_multi_thread_eigen" not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {ONE_THREAD_A_CALL}".strip()
    jax.config.update("jax_enable_x64", True)
    compilation_cache()

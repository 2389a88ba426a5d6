"""Settings of the whole session. Nothing of jaxflow is imported here: the shape checks must come first."""

import gc
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import jax
import pytest

ROOT = Path(__file__).resolve().parent.parent

# What the commands ask of XLA too, before anything is compiled.
FLAGS = os.environ.get("XLA_FLAGS") or "--xla_cpu_multi_thread_eigen=false"
# As the library does for what runs once (`jaxflow._core.quick_options`): compilation dominates the suite. Only once:
# a worker inherits what its parent has set, and the compilation cache distinguishes flags by their text.
QUICK = (
    "--xla_cpu_use_fusion_emitters=false --xla_disable_hlo_passes=while-loop-invariant-code-motion,simplify-while-loops"
)
os.environ["XLA_FLAGS"] = FLAGS if QUICK in FLAGS else f"{FLAGS} {QUICK}"

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_rank_promotion", "raise")

# Compilation dominates the suite: LLVM's expensive passes cost more here than they save. Results agree to
# rounding; what is measured for the record runs without this.
jax.config.update("jax_disable_most_optimizations", True)
# Processes that tests start compile the same way.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")

# A test suite compiles hundreds of small programs; all but the quickest are kept from one run to the next.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    jax.config.update("jax_compilation_cache_dir", str(ROOT / ".jax_cache"))
# All of them: reading one back takes some milliseconds, compiling the least of them twenty.
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)

# Lines of the source in compiled programs are read by nobody here, and take a twentieth of the time of tracing.
jax.config.update("jax_traceback_in_locations_limit", 0)
os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")

# Tracing makes millions of small objects that live as long as their program. Looking through them for cycles after
# every seven hundred new ones takes a sixth of the suite's time.
gc.set_threshold(100_000, 50, 1000)

# An example may compile, so none has a deadline. What runs in CI is the same each time.
hypothesis.settings.register_profile("jaxflow", deadline=None, max_examples=50, derandomize=bool(os.environ.get("CI")))
hypothesis.settings.load_profile("jaxflow")


# The most that one module was seen to add are some ten thousand.
MOST_MAPS = 16_000


def memory_maps() -> int:
    """How many memory maps this process has; too many where the platform does not say."""
    known = Path("/proc/self/maps")
    return len(known.read_bytes().splitlines()) if known.exists() else MOST_MAPS + 1


@pytest.fixture(scope="module", autouse=True)
def programs_end_with_their_module() -> Iterator[None]:
    """Every compiled program takes a few memory maps, of which Linux gives a process 65,530.

    A worker that kept the programs of all modules ran out of them near the end of the suite, and died by a
    segmentation fault wherever it compiled next. As long as half of them are free the next module finds what it
    shares with the ones before, traced already.
    """
    yield
    if memory_maps() > MOST_MAPS:
        jax.clear_caches()
        gc.collect()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked:
        try:
            jax.devices("gpu")
        except RuntimeError as error:
            for item in marked:
                item.add_marker(pytest.mark.skip(reason=f"no GPU: {str(error).splitlines()[0]}"))
    # Files with long tests first, so that no worker ends minutes after the other. (xdist's own order would put files of
    # few tests last, and those are the long ones.)
    slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    items.sort(key=lambda item: -slow[item.path])

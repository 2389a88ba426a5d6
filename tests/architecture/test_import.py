"""What `import jaxflow` does, seen from a fresh interpreter: nothing heavy, nothing global."""

import json
import os
import subprocess
import sys

from tests.architecture.floors import LAZY

PROBE = """
import json, sys
import jax
before = jax.config.values.copy()
import jaxflow
changed = [name for name, value in jax.config.values.items() if before.get(name, value) != value]
print(json.dumps({"modules": sorted({name.partition(".")[0] for name in sys.modules}), "changed": changed}))
"""


def test_import_is_light_and_changes_no_setting():
    environment = {name: value for name, value in os.environ.items() if name != "JAX_ENABLE_X64"}
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROBE],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr
    seen = json.loads(run.stdout)
    assert "jaxflow" in seen["modules"]
    assert not LAZY & set(seen["modules"])
    assert seen["changed"] == []

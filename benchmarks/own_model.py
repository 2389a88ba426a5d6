"""Limits of a user's own models: python benchmarks/own_model.py --count 50.

Two-layer ReLU networks (16 units, 20 data on two sides of a plane, logistic loss), instance by instance to their KKT
points; the exact flow, small-step descent and the hard-margin flow against each other at one loss; the scripts of
docs/own-model.md, each in a process of its own with nothing compiled. Written to results/own_model.json.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from _common import RESULTS, configure, counts, environment, print_table, spread, write
from jax.flatten_util import ravel_pytree

import jaxflow as jf
from jaxflow.flow import hard_margin_flow

PAGE = Path(__file__).parents[1] / "docs" / "own-model.md"
# Losses at which the exact flow is left, and at which paths are compared.
LEFT, COMPARED = -100.0, -400.0
STEPS = (1e-2, 1e-3, 1e-4)
# The method was settled on these networks; those of another seed are the ones that it had never met.
SEED = 19
# Scripts of the page, each with what it alone contains.
SCRIPTS = {
    "ReLU network": "use_final_bias=False",
    "attention, W = U U^T": "class SymmetricAttention",
    "attention, a head of one's own": "def curved",
    "matrix sensing, 5 x 5, rank 1": "class Sensing",
    "squared hinge": "def squared_hinge",
    "a prediction of one's own": "theory.register",
}


class Network(eqx.Module):
    """Two layers, both trained."""

    W: jax.Array
    a: jax.Array

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.a @ jax.nn.relu(self.W @ x)


def instance(key: jax.Array, d: int) -> tuple[jf.EmpiricalRisk, Network]:
    """Normal inputs, labels by a random plane, weights of the usual sizes."""
    keys = jax.random.split(key, 4)
    inputs = jax.random.normal(keys[0], (20, d))
    labels = jnp.sign(inputs @ jax.random.normal(keys[1], (d,)))
    W = jax.random.normal(keys[2], (16, d)) / np.sqrt(d)
    model = Network(W, 0.25 * jax.random.normal(keys[3], (16,)))
    return jf.EmpiricalRisk(jf.data.LinearData(inputs, labels), "logistic"), model


def kkt_points(d: int, count: int, seed: int) -> dict[str, Any]:
    """`count` instances to their limits, one after another in one program."""
    find = eqx.filter_jit(lambda key: jf.find_limit(*instance(key, d)))
    found = [find(jax.random.fold_in(jax.random.key(seed), i)) for i in range(count)]
    residuals = np.array([float(limit.kkt_residual) for limit in found])
    odd = [i for i, limit in enumerate(found) if str(limit.outcome) != "kkt_point"]
    return {
        "d": d,
        "seed": seed,
        "outcomes": counts([str(limit.outcome) for limit in found]),
        "residual <= 1e-6": int(np.sum(residuals <= 1e-6)),
        "largest residual": float(residuals.max()),
        "sliding kinks": spread([int(limit.kkt.sliding.sum()) for limit in found]),
        "turned": spread([float(limit.turned) for limit in found]),
        "path error": spread([float(limit.path_error) for limit in found]),
        "exact steps": spread([int(limit.trajectory.stats["num_steps"]) for limit in found]),
        "others": {i: str(found[i]) for i in odd},
    }


@eqx.filter_jit
def compare(key: jax.Array, d: int, steps: tuple[float, ...]) -> dict[str, Any]:
    """Directions at one loss: of the exact flow, of descent, and of the hard-margin flow from the earlier loss."""
    risk, model = instance(key, d)
    controller = diffrax.PIDController(rtol=1e-5, atol=1e-7)

    def exact(model: Any, log_loss: float) -> Any:
        stop = jf.LossExcess(log_loss)
        how: dict[str, Any] = {"clock": jf.ArcLength(timed=False), "until": 1e6, "solver": "Bosh3", "throw": False}
        return jf.integrate(risk, model, controller=controller, stop=stop, max_steps=4_000_000, **how).final.model

    left = exact(model, LEFT)
    truth, unravel = ravel_pytree(exact(left, COMPARED))
    start, _ = ravel_pytree(left)
    growth = jnp.log(jnp.linalg.norm(truth) / jnp.linalg.norm(start))

    def margins(theta: jax.Array) -> jax.Array:
        values = risk.source.outputs(unravel(theta))
        return risk.source.targets(values) * values

    present = jnp.ones(20, bool)
    path = hard_margin_flow(margins, start, jnp.asarray(2.0), present=present, target=0.0, until=growth)

    def descend(step: float) -> jax.Array:
        def body(theta: jax.Array) -> jax.Array:
            push, _ = ravel_pytree(risk.scaled_gradient(unravel(theta)).gradient)
            return theta - step * push / jnp.linalg.norm(push)

        # The smallest margin stands for the loss.
        return jax.lax.while_loop(lambda x: jnp.min(margins(x)) < -COMPARED, body, start)

    def apart(theta: jax.Array) -> jax.Array:
        return jnp.linalg.norm(theta / jnp.linalg.norm(theta) - truth / jnp.linalg.norm(truth))

    return {
        "turned": apart(start),
        "hard-margin flow": apart(path.state.weights),
        "its estimate": path.error,
        "descent": [apart(descend(step)) for step in steps],
    }


def scripts() -> dict[str, Any]:
    """The page's scripts, each from a cold process: seconds on the clock and of the processor.

    The first block of the page is what all of them begin with.
    """
    head, *blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
    times = {}
    for name, sign in SCRIPTS.items():
        (block,) = (block for block in blocks if sign in block)
        with tempfile.TemporaryDirectory() as folder:
            clean = {k: v for k, v in os.environ.items() if k != "JAX_COMPILATION_CACHE_DIR"}
            before, begun = os.times(), time.perf_counter()
            command = [sys.executable, "-c", head + block]
            run = subprocess.run(command, cwd=folder, env=clean, capture_output=True, text=True)
            wall, after = time.perf_counter() - begun, os.times()
        if run.returncode or not run.stdout.strip():
            raise RuntimeError(f"{name}: {run.stderr}")
        used = after.children_user + after.children_system - before.children_user - before.children_system
        times[name] = {"wall": wall, "processor": used, "printed": run.stdout.strip()}
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--compared", type=int, default=6)
    parser.add_argument("--scripts", action="store_true", help="these alone, in the place of those of the record")
    parser.add_argument("--seed", type=int, default=SEED, help="another one: these networks alone, added to the record")
    arguments = parser.parse_args()
    configure()
    record: dict[str, Any] = {"environment": environment(), "networks": [], "paths": []}
    if arguments.seed != SEED or arguments.scripts:
        record = json.loads((RESULTS / "own_model.json").read_text())
    for d in () if arguments.scripts else (2, 5):
        record["networks"].append(kkt_points(d, arguments.count, arguments.seed))
        write(RESULTS / "own_model.json", record)
    if arguments.seed != SEED:
        return
    for i in range(0 if arguments.scripts else arguments.compared):
        found = compare(jax.random.fold_in(jax.random.key(SEED), i), 2, STEPS)
        record["paths"].append(jax.tree.map(float, found) | {"steps": list(STEPS)})
        write(RESULTS / "own_model.json", record)
    record["scripts"] = scripts()
    write(RESULTS / "own_model.json", record)
    rows = [[row["d"], str(row["outcomes"]), row["largest residual"]] for row in record["networks"]]
    print_table("networks", ["d", "outcomes", "largest residual"], rows)
    timed = [[name, row["wall"], row["processor"]] for name, row in record["scripts"].items()]
    print_table("scripts, cold", ["script", "wall s", "processor s"], timed)


if __name__ == "__main__":
    main()

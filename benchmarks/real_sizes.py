"""Networks on digits of scikit-learn: python benchmarks/real_sizes.py --weights 5005 50050 --classes 2 10.

Two layers without biases; starts of Equinox. Ten classes: the first `--data` of all digits. Two classes: the first of
those that are 3 or 8, or, of more than those 357, digits below five against the others. The units are as many as make
the number of weights. `--activation`: `relu`, or its square `relu2`, which is smooth, with margins of degree three.
Margins of tanh or GELU are not homogeneous: no theorem names their limit, and there is no row of them.

`--steps`: of the hard-margin flow, after which a row has what was reached. A `--gap` of 1e-4 asks for KKT residuals of
1e-6.
"""

import resource
from collections.abc import Callable
from itertools import product
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from _common import begun, clocked, environment
from sklearn.datasets import load_digits

import jaxflow as jf

PIXELS = 64
ACTIVATIONS: dict[str, Callable[[Any], Any]] = {"relu": jax.nn.relu, "relu2": lambda x: jax.nn.relu(x) ** 2}


def instance(weights: int, classes: int, data: int = 100, activation: str = "relu") -> tuple[jf.EmpiricalRisk, Any]:
    found: Any = load_digits()
    images, digits = found.data, found.target
    outputs = 1 if classes == 2 else classes
    among = np.isin(digits, (3, 8)) if classes == 2 else digits < classes
    few = data <= np.sum(among)
    chosen = np.flatnonzero(among if few else digits < 10)[:data]
    targets: Any = digits[chosen]
    if classes == 2:
        targets = np.where(targets == 3 if few else targets < 5, 1.0, -1.0)
    risk = jf.EmpiricalRisk(
        (images[chosen] / 16.0, jnp.asarray(targets)), "logistic" if classes == 2 else "cross_entropy"
    )
    width, out = round(weights / (PIXELS + outputs)), "scalar" if classes == 2 else classes
    plain: dict[str, Any] = {"use_bias": False, "use_final_bias": False, "key": jax.random.key(0)}
    return risk, eqx.nn.MLP(PIXELS, out, width, 1, ACTIVATIONS[activation], **plain)


def case(weights: int, classes: int, data: int, activation: str, steps: int, gap: float) -> dict[str, Any]:
    risk, model = instance(weights, classes, data, activation)
    method, place = jf.ModelStaged(hard_margin_steps=steps), environment()
    limit, spent = clocked(lambda: jf.find_limit(risk, model, method=method, gap=gap, progress=True))
    row = {"weights": sum(x.size for x in jax.tree.leaves(eqx.filter(model, eqx.is_array))), "classes": classes}
    row |= {"data": data, "activation": activation}
    row |= {"seconds": spent.wall, "processor_seconds": spent.processor}
    # Rows stay from run to run, and each says where it is from.
    row |= {name: place[name] for name in ("processor", "load_average")}
    row |= {"outcome": str(limit.outcome), "residual": float(limit.kkt_residual)}
    row |= {"support": int(jnp.sum(limit.support)), "kinks": int(jnp.sum(limit.kkt.sliding))}
    # Of this process so far, in GiB: cases come in the order of their sizes.
    row["memory"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return row


if __name__ == "__main__":
    more: dict[str, Any] = {"data": (100,), "activation": ("relu",), "gap": 1e-4}
    same = ("weights", "classes", "data", "activation")
    asked, record = begun(__doc__, "real_sizes", same, weights=(5005, 50050), classes=(2, 10), steps=2048, **more)
    for activation, data, classes, weights in product(asked.activation, asked.data, asked.classes, asked.weights):
        record.add(case(weights, classes, data, activation, asked.steps, asked.gap))

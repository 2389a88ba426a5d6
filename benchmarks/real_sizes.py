"""ReLU networks on digits of scikit-learn: python benchmarks/real_sizes.py --weights 5005 50050 --classes 2 10.

Two layers without biases on 100 digits, 3 against 8, or the first 100 of all ten; starts of Equinox. The units are as
many as make the number of weights. `--steps`: of the hard-margin flow, after which a row has what was reached. A
`--gap` of 1e-4 asks for KKT residuals of 1e-6.
"""

import resource
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from _common import Record, clocked, settings
from sklearn.datasets import load_digits

import jaxflow as jf

DATA, PIXELS = 100, 64


def instance(weights: int, classes: int) -> tuple[jf.EmpiricalRisk, Any]:
    found: Any = load_digits()
    images, digits = found.data, found.target
    outputs = 1 if classes == 2 else classes
    chosen = np.flatnonzero(np.isin(digits, (3, 8)) if classes == 2 else digits < classes)[:DATA]
    targets = jnp.where(digits[chosen] == 3, 1.0, -1.0) if classes == 2 else jnp.asarray(digits[chosen])
    risk = jf.EmpiricalRisk((images[chosen] / 16.0, targets), "logistic" if classes == 2 else "cross_entropy")
    width, out = round(weights / (PIXELS + outputs)), "scalar" if classes == 2 else classes
    plain: dict[str, Any] = {"use_bias": False, "use_final_bias": False, "key": jax.random.key(0)}
    return risk, eqx.nn.MLP(PIXELS, out, width, 1, **plain)


def case(weights: int, classes: int, steps: int, gap: float) -> dict[str, Any]:
    risk, model = instance(weights, classes)
    method = jf.ModelStaged(hard_margin_steps=steps)
    limit, spent = clocked(lambda: jf.find_limit(risk, model, method=method, gap=gap, progress=True))
    row = {"weights": sum(x.size for x in jax.tree.leaves(eqx.filter(model, eqx.is_array))), "classes": classes}
    row |= {"seconds": spent.wall, "outcome": str(limit.outcome), "residual": float(limit.kkt_residual)}
    row |= {"support": int(jnp.sum(limit.support)), "kinks": int(jnp.sum(limit.kkt.sliding))}
    row |= {"turned": float(limit.turned), "path_error": float(limit.path_error), "growth": float(limit.growth)}
    row |= {"exact_steps": int(limit.trajectory.stats["num_steps"])}
    # Of this process so far, in GiB: cases come in the order of their sizes.
    row["memory"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return row


def main() -> None:
    asked = settings(__doc__, "real_sizes", weights=(5005, 50050), classes=(2, 10), steps=400, gap=1e-4)
    record = Record(asked.out, same=("weights", "classes"))
    for classes in asked.classes:
        for weights in asked.weights:
            record.add(case(weights, classes, asked.steps, asked.gap))


if __name__ == "__main__":
    main()

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np  # noqa: F401 (for the examples)

import jaxflow as jf

jax.config.update("jax_enable_x64", True)

data, head = jf.data.random_tokens(jax.random.key(0), n=3, T=4, d=4)
model = jf.models.CombinedAttention.init(jax.random.key(1), data, head)
risk = jf.EmpiricalRisk(data, "logistic")
limit = jf.find_limit(risk, model)

linear = jf.data.LinearData(jnp.array([[1.0, 0.5, 0.2], [0.3, 1.0, -0.4]]), jnp.array([1.0, 1.0]))
network = jf.models.DiagonalLinearNetwork.init(jax.random.key(2), linear)
own = eqx.nn.MLP(3, "scalar", 4, 1, use_bias=False, use_final_bias=False, key=jax.random.key(3))


def draw(key, d=2):
    return {"value": jax.random.normal(key, (d,)).sum()}


study = jf.study.Study(draw, {"d": [2, 3]}, trials=10, block=10)
results = study.run("draws.zarr", progress=False)

"""What `integrate` cannot do is said by one sentence that begins with the argument."""

from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

import jaxflow as jf
from jaxflow.flow import Factors, Filippov, LayerScores, Mirror, MultiplierNewton
from jaxflow.models import CombinedAttention, DiagonalLinear, DiagonalLinearNetwork, FactoredAttention, HadamardNetwork

DATA, HEAD = jf.data.random_tokens(jax.random.key(0), 3, 4, 3)
RISK, JOINT = (jf.EmpiricalRisk(DATA, "logistic", t) for t in (None, jf.models.attention_and_head))
W, KQ = (kind.init(jax.random.key(1), DATA, HEAD) for kind in (CombinedAttention, FactoredAttention))
CURVED = FactoredAttention(KQ.K, KQ.Q, jf.models.MLPHead(jnp.eye(3)))
INPUTS = jf.data.LinearData(DATA.queries, DATA.labels)
LINEAR, SQUARED = (jf.EmpiricalRisk(INPUTS, loss) for loss in ("exponential", "squared"))
TWO, THREE = (DiagonalLinearNetwork((jnp.ones(3),) * depth) for depth in (2, 3))
FIRST = jf.EmpiricalRisk(INPUTS, "exponential", eqx.tree_at(lambda m: m.weights, TWO, (True, False)))
PLANE = jf.EmpiricalRisk.from_function(lambda x: jnp.abs(x[0]) - x[1])
EQUAL = HadamardNetwork(DiagonalLinear(), jnp.ones(3), jnp.array([0.5, -1.0, 0.2]))

TIME: dict[str, Any] = {"clock": "log_time", "until": 1.0}
FAR = TIME | {"clock": jf.LogArcLength(timed=False), "solver": MultiplierNewton()}
CAPPED = TIME | {"clock": jf.LogArcLength(cap=10.0)}
NO_MARGINS = "coordinates: Weights gives no margins of this model"
READINGS = "solver: Filippov saves points at readings only"
REFUSED = [
    (JOINT, W, CAPPED, "clock: a cap needs a model homogeneous"),
    (SQUARED, TWO, CAPPED | {"coordinates": Mirror(3.0)}, "clock: a cap"),
    (SQUARED, TWO, TIME | {"coordinates": Mirror(jf.margin.Schatten(3))}, "coordinates: a Schatten potential is for"),
    (RISK, W, TIME | {"solver": "tsit6"}, "solver: unknown name 'tsit6'; did you mean 'Tsit5'\\? Known: "),
    (RISK, W, TIME | {"solver": "zzz"}, "solver: unknown name 'zzz'\\. Known: "),
    (RISK, KQ, TIME | {"coordinates": "scores"}, "coordinates: Scores need CombinedAttention"),
    (RISK, W, TIME | {"coordinates": Factors()}, "coordinates: Factors need FactoredAttention"),
    (JOINT, KQ, TIME | {"coordinates": Factors()}, "coordinates: .* another `trainable`"),
    (RISK, KQ, FAR | {"clock": "log_time", "coordinates": Factors()}, "clock: MultiplierNewton needs LogArcLength"),
    (RISK, CURVED, FAR | {"coordinates": Factors()}, ".*needs a linear head"),
    (RISK, W, TIME | {"coordinates": LayerScores()}, "coordinates: LayerScores need"),
    (LINEAR, THREE, TIME | {"coordinates": "halves"}, "coordinates: Halves need"),
    (RISK, KQ, FAR, NO_MARGINS),
    (LINEAR, THREE, FAR, NO_MARGINS),
    (SQUARED, TWO, FAR, NO_MARGINS),
    (FIRST, TWO, FAR, NO_MARGINS),
    (SQUARED, EQUAL, TIME | {"coordinates": "log_hadamard"}, r"u: \|u_i\| = \|v_i\|.* at i = 1"),
    (SQUARED, jnp.zeros(3), TIME | {"coordinates": "log_hadamard"}, "coordinates: LogHadamard needs"),
    (PLANE, jnp.ones(2), TIME | {"solver": Filippov(), "saveat": diffrax.SaveAt(dense=True)}, READINGS),
    (PLANE, jnp.ones(2), TIME | {"solver": Filippov(), "adjoint": diffrax.DirectAdjoint()}, READINGS),
    (RISK, W, TIME | {"saveat": diffrax.SaveAt(ts=[0.7, 0.5])}, "save_at: readings must increase"),
    (RISK, W, TIME | {"saveat": diffrax.SaveAt(ts=[0.7, 2.0])}, "save_at: ends past until"),
    (RISK, W, TIME | {"saveat": diffrax.SaveAt(t1=True), "save_at": jnp.ones(1)}, "saveat: save_at is the same"),
    (RISK, W, TIME | {"saveat": diffrax.SaveAt(t1=True, solver_state=True)}, "saveat: states of solvers"),
    (RISK, W, TIME | {"saveat": diffrax.SaveAt(t1=True, fn=lambda t, y, args: y)}, "saveat: `fn` would see"),
    (RISK, W, TIME | {"saveat": diffrax.SaveAt(subs=[diffrax.SubSaveAt(t1=True)])}, "saveat: expected one set"),
]


@pytest.mark.parametrize(("risk", "model", "how", "message"), REFUSED)
def test_what_integrate_cannot_do_is_named(risk: Any, model: Any, how: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        jf.integrate(risk, model, **how)

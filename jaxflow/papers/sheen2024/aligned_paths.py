"""Flows of (K, Q) on data of Assumption 4, or of data that break it, to log t = 1e6 against the exact limit."""

from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from jaxflow._core import RESULTS, linalg
from jaxflow.data import TokenData, paired_tokens
from jaxflow.limits.self_certificate import combined_velocity
from jaxflow.losses import Exponential
from jaxflow.margin import attention_svm, certify, solve
from jaxflow.models import FactoredAttention
from jaxflow.papers.registry import Data
from jaxflow.papers.sheen2024.blocks import in_blocks
from jaxflow.risk import EmpiricalRisk
from jaxflow.theory import (
    Frame,
    accumulate,
    aligned_limit,
    aligned_start,
    alignment_error,
    alignment_frame,
    assumption_2,
    assumption_3,
    assumption_4,
    cauchy_gap,
    lift,
    margin_of,
    reduced_program,
    score_gap_needed,
)


def log_times(until: float = 1e6) -> np.ndarray:
    """The 25 values of log t at which everything is measured."""
    return np.concatenate([np.linspace(-4.0, 12.0, 9), np.geomspace(30.0, until, 16)])


WIDTH = 8
# n, L, d; room for pairs outside of the span of the optimal tokens.
SHAPE = (2, 3, 4)
# Nothing is integrated beside the weights here: the limit pulls errors of a step back.
RTOL = 1e-6


class Setting(NamedTuple):
    r"""Data of Assumptions 2 and 4 and a start.

    - `multiple` of the gap that Assumption 3 needs with equal gaps; `cosines`, `outside`: see `paired_tokens`.
    - `columns`: $d_e$. The factors have d columns, of which those beyond $d_e$ (of $KV$, $QV$) start at zero and stay
      there: the flow of d × $d_e$ factors. None for d.
    - `omega`: $\omega_0$, common to all coordinates, of the start (5).
    - `start`: `"unbalanced"` (5), `"balanced"` ($\xi_k=\xi_q=\omega_0\mathbf 1$, aligned), or `"misaligned"`: factors
      with independent normal entries of variance $\omega_0^2/d$.
    """

    n: int
    T: int
    d: int
    multiple: Any = 1.5
    cosines: tuple[Any, Any] = (0.2, 0.6)
    outside: Any = False
    columns: Any = None
    omega: Any = 0.3
    start: Any = "unbalanced"


STARTS = ("unbalanced", "balanced", "misaligned")


def follow_aligned(setting: Setting, keys: Key[Array, " b"], breaks: Array | None = None, until: float = 1e6) -> Data:
    r"""For a batch of instances `(b, ...)`, at the times `log_times(until)` `(b, m)` where nothing else is said:

    - `equal`, `small`, `orthogonal`, `parallel`, `paired` `(b,)`: slacks of Assumptions 2, 3 and 4 (i)–(iii).
    - `ok` `(b,)`, `steps` `(b,)`: of the integration.
    - `alignment`: the alignment error, relative to $\|K\|_F$.
    - `conserved`: the largest change of an entry of $K^\top K-Q^\top Q$, over $\|K\|_F^2$.
    - `margin`: μ; `attention`: the least attention on an optimal token; `trained` `(b, n)`: that of each sequence at
      the end.
    - `weights_excess`, `velocity_excess`: $\|W\|_*/(\mu\,\mathrm{opt})-1$ for W and for its velocity, with the optimum
      of (W⋆-SVM), and `oracle_excess` with $\sum_i1/((1-c_i)\|x_i\|\|z_i\|)$ for the velocity.
    - `flow_gap`: the duality gap of the flow's instantaneous multipliers with its velocity (or weights, if smaller).
    - `cauchy`: Cauchy gap of $\widehat W$.
    - `result`, `program_gap` `(b,)`: (W⋆-SVM) by its solver; `oracle` `(b,)`: exact limit's nuclear norm over the
      optimum minus 1; `correlation` `(b,)`: of the exact limit with the solver's solution.
    - `lifted_gap`, `lifted_residual` `(b,)`: duality gap in (W⋆-SVM) of the lifted solution of (42), and the residual
      of (44).

    **Arguments:** `breaks` `(b, 3)`: amounts by which Assumption 4 (i), (ii), (iii) are broken; None: not at all.
    """
    breaks = jnp.zeros((keys.shape[0], 3)) if breaks is None else breaks
    # As arrays these do not ask for another compilation.
    columns = setting.d if setting.columns is None else setting.columns
    dynamic = {"multiple": setting.multiple, "omega": setting.omega, "outside": setting.outside, "columns": columns}
    dynamic |= {"start": STARTS.index(setting.start)}
    setting = setting._replace(**{name: jnp.asarray(value) for name, value in dynamic.items()})
    setting = setting._replace(cosines=tuple(jnp.asarray(c) for c in setting.cosines))
    return in_blocks(partial(_block, setting, jnp.asarray(log_times(until))), (keys, breaks), WIDTH)


@eqx.filter_jit
def _block(setting: Setting, times: Array, arguments: tuple[Array, Array]) -> dict[str, Array]:
    return jax.vmap(partial(_one, setting, times))(*arguments)


def draw(setting: Setting, key: Any, breaks: Any = (0.0, 0.0, 0.0)) -> tuple[TokenData, Array, Array]:
    """Data, head, and the optimal tokens, one-hot."""
    data, head, index = paired_tokens(
        key,
        setting.n,
        setting.T,
        setting.d,
        setting.multiple * score_gap_needed(setting.n, setting.T),
        cosines=setting.cosines,
        outside=setting.outside,
        break_i=breaks[0],
        break_ii=breaks[1],
        break_iii=breaks[2],
    )
    return data, head, jax.nn.one_hot(index, setting.T, dtype=bool)


def start(setting: Setting, key: Any, frame: Frame) -> tuple[Array, Array, Array]:
    """K(0), Q(0) and V."""
    d = setting.d
    key_V, key_side, key_K, key_Q = jax.random.split(key, 4)
    V, _ = linalg.qr(jax.random.normal(key_V, (d, d)))
    # Entries of Λ beyond d_e are zero.
    ones = jnp.where(jnp.arange(d) < setting.columns, setting.omega, 0.0)
    large = jnp.sqrt(2.0) * ones
    side = jax.random.bernoulli(key_side, 0.5, (d,))
    size = setting.omega / jnp.sqrt(d)
    starts = (
        aligned_start(frame, jnp.where(side, large, 0.0), jnp.where(side, 0.0, large), V),
        aligned_start(frame, ones, ones, V),
        (size * jax.random.normal(key_K, (d, d)), size * jax.random.normal(key_Q, (d, d))),
    )
    K, Q = (jnp.stack(factor)[setting.start] for factor in zip(*starts, strict=True))
    return K, Q, V


def _one(setting: Setting, times: Array, key: Any, breaks: Any) -> dict[str, Any]:
    data, head, best = draw(setting, key, breaks)
    frame = alignment_frame(data, best)
    K, Q, V = start(setting, jax.random.fold_in(key, 1), frame)
    model = FactoredAttention(K, Q, head)
    risk = EmpiricalRisk(data, Exponential())
    path = accumulate(risk, model, times, integrals=False, rtol=RTOL)
    models = path.models
    W = jax.vmap(FactoredAttention.combined_weights)(models)
    velocity = jax.vmap(lambda m, g: combined_velocity(m, jax.tree.map(lambda x: -x, g)))(
        models, path.gradients.gradient
    )
    attention = jax.vmap(lambda m: jnp.min(jnp.where(best, m.attention(data), 1.0), axis=-1))(models)
    drift = jax.vmap(FactoredAttention.conserved)(models) - model.conserved()[None]
    square = jnp.sum(models.K**2, axis=(1, 2))
    margin = jax.vmap(lambda W: margin_of(data, best, W))(W)
    found: dict[str, Any] = {
        "ok": path.result == RESULTS.successful,
        "steps": path.steps,
        "alignment": jax.vmap(lambda m: alignment_error(frame, m.K, m.Q, V))(models),
        "conserved": jnp.max(jnp.abs(drift), axis=(1, 2)) / square,
        "margin": margin,
        "attention": jnp.min(attention, axis=-1),
        "trained": attention[-1],
        "cauchy": cauchy_gap(W / jnp.where(margin > 0, margin, jnp.nan)[:, None, None]),
    }
    program = attention_svm(data, best, "nuclear")
    solution = solve(program)
    optimum = solution.certificate.primal_value
    exact, value = aligned_limit(data, best)
    # One mapped call for all certificates: see `jaxflow.limits.flow_certificate`.
    points = jnp.stack([W, velocity])
    certificates = jax.vmap(jax.vmap(lambda W, p: certify(program, W, p, "flow")), in_axes=(0, None))(
        points, path.gradients.multipliers
    )
    reduced = reduced_program(data, best, frame)
    small = solve(reduced)
    lifted, weights, residual = lift(data, best, frame, small.primal, small.dual)
    lifted_certificate = certify(program, lifted, weights)
    sizes = jnp.linalg.norm(exact) * jnp.linalg.norm(solution.primal)
    found |= {
        "weights_excess": certificates.primal_value[0] / optimum - 1.0,
        "velocity_excess": certificates.primal_value[1] / optimum - 1.0,
        "oracle_excess": certificates.primal_value[1] / value - 1.0,
        "flow_gap": jnp.min(certificates.duality_gap, axis=0),
        "result": solution.result.value,
        "program_gap": solution.certificate.duality_gap,
        "oracle": value / optimum - 1.0,
        "correlation": jnp.sum(exact * solution.primal) / jnp.where(sizes > 0, sizes, 1.0),
        "lifted_gap": lifted_certificate.duality_gap,
        "lifted_residual": residual,
        "equal": assumption_2(data, head).slack,
        "small": assumption_3(risk, model).slack,
    }
    slacks = assumption_4(data, best)
    return found | {name: part.slack for name, part in zip(("orthogonal", "parallel", "paired"), slacks, strict=True)}

"""Flows of (K, Q) on data of Assumption 4, or of data that break it, against the exact limit."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxflow._core import RESULTS, linalg
from jaxflow.data import TokenData
from jaxflow.limits.self_certificate import combined_velocity
from jaxflow.losses import Exponential
from jaxflow.margin import attention_svm, certify, solve
from jaxflow.models import FactoredAttention
from jaxflow.papers.experiment import Dataset, Part, Table, arrays_of
from jaxflow.papers.sheen2024 import frame as frames
from jaxflow.papers.sheen2024.accumulated import LOG_TIMES, accumulate
from jaxflow.papers.sheen2024.instances import paired_tokens
from jaxflow.papers.sheen2024.separability import assumption_2, assumption_3, assumption_4, score_gap_needed
from jaxflow.risk import EmpiricalRisk
from jaxflow.study import subkey

# n, L, d; room for pairs outside of the span of the optimal tokens.
SHAPE = (2, 3, 4)
# Nothing is integrated beside the weights here: the limit pulls errors of a step back.
RTOL = 1e-6
TRIALS = {"quick": 8, "paper": 48, "large": 1024}
# Of all that reads these numbers; they are computed once in a folder.
STARTS = ("unbalanced", "balanced", "misaligned")
# d_e < d: the second sequence's direction has no column.
NARROW = 1


def setting(**more: Any) -> Table:
    r"""Data of Assumptions 2 and 4 and a start; all of them share one compiled program.

    - `multiple` of the gap that Assumption 3 needs with equal gaps; `cosines`, `outside`: see `paired_tokens`;
      `breaks`: amounts by which Assumption 4 (i), (ii) and (iii) are broken.
    - `columns`: $d_e$. The factors have d columns, of which those beyond $d_e$ (of $KV$, $QV$) start at zero and stay
      there: the flow of d × $d_e$ factors.
    - `omega`: $\omega_0$, common to all coordinates, of the start (5).
    - `start`: number in `STARTS`. `"unbalanced"` is (5), `"balanced"` $\xi_k=\xi_q=\omega_0\mathbf 1$, aligned, and
      `"misaligned"` has factors with independent normal entries of variance $\omega_0^2/d$.
    """
    given = {"multiple": 1.5, "cosines": (0.2, 0.6), "outside": False, "breaks": (0.0, 0.0, 0.0), "columns": SHAPE[2]}
    return arrays_of(Table(given, omega=0.3, start=0).replace(**more))


def hypotheses_of(flows: Table) -> np.ndarray:
    """Who is inside Theorem 5.1: Assumptions 2, 3 and 4."""
    slacks = (flows.equal, flows.small, flows.orthogonal, flows.parallel, flows.paired)
    return np.all([np.asarray(slack) >= 0 for slack in slacks], axis=0)


def draw(setting: Table, key: Any) -> tuple[TokenData, Array, Array]:
    """Data, head, and the optimal tokens, one-hot."""
    n, T, d = SHAPE
    data, head, index = paired_tokens(
        subkey(key, "data"),
        n,
        T,
        d,
        setting.multiple * score_gap_needed(n, T),
        cosines=setting.cosines,
        outside=setting.outside,
        break_i=setting.breaks[0],
        break_ii=setting.breaks[1],
        break_iii=setting.breaks[2],
    )
    return data, head, jax.nn.one_hot(index, T, dtype=bool)


def start(setting: Table, key: Any, frame: Table) -> tuple[Array, Array, Array]:
    """K(0), Q(0) and V."""
    d = SHAPE[2]
    V, _ = linalg.qr(jax.random.normal(subkey(key, "V"), (d, d)))
    # Entries of Λ beyond d_e are zero.
    ones = jnp.where(jnp.arange(d) < setting.columns, setting.omega, 0.0)
    large = jnp.sqrt(2.0) * ones
    side = jax.random.bernoulli(subkey(key, "factor that starts at zero"), 0.5, (d,))
    size = setting.omega / jnp.sqrt(d)
    starts = (
        frames.aligned_start(frame, jnp.where(side, large, 0.0), jnp.where(side, 0.0, large), V),
        frames.aligned_start(frame, ones, ones, V),
        tuple(size * jax.random.normal(subkey(key, name), (d, d)) for name in ("K", "Q")),
    )
    K, Q = (jnp.stack(factor)[setting.start] for factor in zip(*starts, strict=True))
    return K, Q, V


def follow(key: Any, setting: Table) -> Table:
    r"""The flow of one instance, at the m times `LOG_TIMES` where a field has that axis, and the programs it is held
    against.

    - `equal`, `small`, `orthogonal`, `parallel`, `paired`: slacks of Assumptions 2, 3 and 4 (i)–(iii).
    - `ok`: whether the integration reached its end. `alignment`: the alignment error, relative to $\|K\|_F$.
      `attention`: the least attention on an optimal token.
    - `weights_excess`, `velocity_excess`: $\|W\|_*/(\mu\,\mathrm{opt})-1$ for W and for its velocity, with the
      optimum of (W⋆-SVM), and `oracle_excess` with $\sum_i1/((1-c_i)\|x_i\|\|z_i\|)$ for the velocity.
    - `result`: of (W⋆-SVM) by its solver; `oracle`: exact limit's nuclear norm over the optimum minus 1.
    - `lifted_gap`, `lifted_residual`: duality gap in (W⋆-SVM) of the lifted solution of (42), and the residual of (44).
    """
    data, head, best = draw(setting, key)
    frame = frames.alignment_frame(data, best)
    K, Q, V = start(setting, key, frame)
    model = FactoredAttention(K, Q, head)
    risk = EmpiricalRisk(data, Exponential())
    path = accumulate(risk, model, jnp.asarray(LOG_TIMES), integrals=False, rtol=RTOL)
    models = path.models
    W = jax.vmap(FactoredAttention.combined_weights)(models)
    velocity = jax.vmap(lambda m, g: combined_velocity(m, jax.tree.map(lambda x: -x, g)))(
        models, path.gradients.gradient
    )
    attention = jax.vmap(lambda m: jnp.min(jnp.where(best, m.attention(data), 1.0), axis=-1))(models)
    program = attention_svm(data, best, "nuclear")
    solution = solve(program)
    optimum = solution.certificate.primal_value
    exact, value = frames.aligned_limit(data, best)
    # One mapped call for all certificates: see `jaxflow.limits.flow_certificate`.
    points = jnp.stack([W, velocity])
    certificates = jax.vmap(jax.vmap(lambda W, p: certify(program, W, p, "flow")), in_axes=(0, None))(
        points, path.gradients.multipliers
    )
    small = solve(frames.reduced_program(data, best))
    lifted, weights, residual = frames.lift(data, best, frame, small.primal, small.dual)
    orthogonal, parallel, paired = (part.slack for part in assumption_4(data, best))
    return Table(
        equal=assumption_2(data, head).slack,
        small=assumption_3(risk, model).slack,
        orthogonal=orthogonal,
        parallel=parallel,
        paired=paired,
        ok=path.result == RESULTS.successful,
        alignment=jax.vmap(lambda m: frames.alignment_error(frame, m.K, m.Q, V))(models),
        attention=jnp.min(attention, axis=-1),
        weights_excess=certificates.primal_value[0] / optimum - 1.0,
        velocity_excess=certificates.primal_value[1] / optimum - 1.0,
        oracle_excess=certificates.primal_value[1] / value - 1.0,
        result=solution.result.value,
        oracle=value / optimum - 1.0,
        lifted_gap=certify(program, lifted, weights).duality_gap,
        lifted_residual=residual,
    )


def another_optimum(key: Any, setting: Table) -> Table:
    r"""Beside the exact limit $\sum_is_iu^k_iu_i^{q\top}$ another matrix with its norm and margins, by construction.

    $\frac12\sqrt{s_1s_2}(u^k_1u_2^{q\top}+u^k_2u_1^{q\top})$ is added. That leaves the trace of $U_K^\top WU_Q$ as
    it is and the matrix positive semidefinite, so that its nuclear norm is the trace still.

    `excess` of its nuclear norm over that of the limit, minus 1; `apart`: 1 − correlation of the two.
    """
    data, _, best = draw(setting, key)
    exact, value = frames.aligned_limit(data, best)
    frame = frames.alignment_frame(data, best)
    sizes = frames.singular_entries(frame, exact)
    block = jnp.outer(frame.keys[:, 0], frame.queries[:, 1]) + jnp.outer(frame.keys[:, 1], frame.queries[:, 0])
    other = exact + 0.5 * jnp.sqrt(sizes[0] * sizes[1]) * block
    program = attention_svm(data, best, "nuclear")
    norm = program.norm(other) / jnp.min(program.margins(other))
    product = jnp.linalg.norm(exact) * jnp.linalg.norm(other)
    return Table(excess=norm / value - 1.0, apart=1.0 - jnp.sum(exact * other) / product)


# `starts` `(4, b)`: from each of `STARTS`, and with $d_e<d$, on the same instances; `shapes` `(2, b)`: projections of
# negative sign, and pairs outside of the optimal tokens' span, where the nuclear optimum is not unique; `others` `(1,
# b)`: on the latter instances.
ALIGNED = Dataset(
    "sheen2024",
    "aligned-flows",
    {
        "starts": Part(
            follow,
            {name: setting(start=number) for number, name in enumerate(STARTS)} | {"narrow": setting(columns=NARROW)},
            TRIALS,
        ),
        "shapes": Part(
            follow,
            {"negative": setting(cosines=(-0.9, -0.2)), "outside": setting(outside=True)},
            TRIALS,
            own_instances=True,
        ),
        "others": Part(
            another_optimum, {"outside": setting(outside=True)}, TRIALS, instances="shapes", own_instances=True
        ),
    },
)

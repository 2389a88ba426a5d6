"""The hypotheses of Theorem 4.1 of Boix-Adserà et al. (2023), measured on an instance."""

import jax.numpy as jnp

from jaxflow._core import checked
from jaxflow.models import HadamardNetwork
from jaxflow.theory.incremental import StageResult, Stages
from jaxflow.theory.prediction import Assumption


@checked()
def stage_assumptions(stages: Stages, model: HadamardNetwork) -> tuple[Assumption, ...]:
    r"""Assumptions 4.3 (all three clauses) and 4.4 over the stages that were learned, with their slack.

    Assumption 2.1 (smooth loss, bounded data) holds for every finite sample and every loss here whose derivative
    is continuous; Assumption 4.5 is measured by `return_distances`.

    **Arguments:** `stages` of `model`, whose weights at the start are looked at.

    **Example:**

    ```python
    start = jf.models.HadamardNetwork.init(jax.random.key(0), jf.models.DiagonalLinear(), p=3)
    squared = jf.EmpiricalRisk(linear, "squared")
    jf.theory.stage_assumptions(jf.theory.incremental_learning(squared, start), start)
    ```
    """
    logs = model.log_weights
    # (u - v)/(u + v) or its inverse, whichever is smaller: zero where |u| = |v|.
    balance = jnp.min(jnp.exp(-jnp.abs(logs.log_sum - logs.log_difference)))
    learned = stages.results == StageResult.learned
    tied = jnp.any(stages.results == StageResult.degenerate)
    gap = jnp.where(tied, 0.0, jnp.min(jnp.where(learned, stages.gaps, jnp.inf)))
    leaving = jnp.min(jnp.where(learned, stages.leaving, jnp.inf))
    curvature = jnp.min(jnp.where(learned, stages.curvatures, jnp.inf))
    return (
        Assumption("|u_i(0)| ≠ |v_i(0)| for all i (Assumption 4.3)", balance > 0, balance),
        Assumption("the smallest waiting time has no equal (Assumption 4.3)", gap > 0, gap),
        Assumption("g_i ≠ 0 where a coordinate has left (Assumption 4.3)", leaving > 0, leaving),
        Assumption("stationary points are strict minima on their support (Assumption 4.4)", curvature > 0, curvature),
    )

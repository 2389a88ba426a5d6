"""Theorem 7: from close to a locally-optimal direction, W converges to it: descent, and the flow beside it."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxflow._core import Outcome
from jaxflow.gradient_descent import descend
from jaxflow.losses import Logistic
from jaxflow.margin import attention_svm, solve
from jaxflow.models import CombinedAttention
from jaxflow.papers.experiment import Mask, Statement, Table, register, stacked, swept
from jaxflow.papers.tarzanagh2023.verify import instances as draws
from jaxflow.papers.tarzanagh2023.verify.cones import LOCAL
from jaxflow.papers.tarzanagh2023.verify.follow import ALIGNED, astray, follow_all, misalignment, reached
from jaxflow.papers.tarzanagh2023.verify.instances import CHOICES as TOKENS
from jaxflow.risk import EmpiricalRisk

INSTANCES = {"quick": 3, "paper": 12, "large": 200}
D = 4
# Locally-optimal choices tried on each instance; where there are fewer, all.
CHOICES = 4
# 1 − corr of the starts. 0 stands for the proof's own μ(α) of (67); the other asks how far one may go.
CORRELATIONS = (0.0, 1e-1)
# The proof requires R so large that T exp(−RΘδ) is small, δ of (67) and Θ = 1/‖W^mm_α‖: RΘδ is this.
EXPONENT = 20.0
# Steps of descent with η = 1/L_W before the flow takes over. At these norms ∇L is about e^-20: what is left of the way
# is further than any number of steps of this size.
STEPS = {"quick": 500, "paper": 5_000, "large": 50_000}
# Normalised steps, of this share of ‖W(0)‖: 1 − corr falls like the norm to the power −2, down to that share squared.
NORMALISED, SHARE = 2_000, 0.01


_programs = jax.jit(draws.programs_of)


def _runs(scale: str, key: Any) -> Table:
    r"""At each of the angles `CORRELATIONS` (a) a start for each of c choices α, followed by the flow, and by the flow
    from where descent has ended.

    - `reached` `(a, 2, c)`: certified for $W^{mm}_\alpha$; `left`: for other tokens; `stationary`: ends at a stationary
      point; `misaligned`: 1 − corr with $W^{mm}_\alpha$.
    - Of the `descents` `(a, c)`: its columns.
    """
    starts = []
    for one in jax.random.split(key, INSTANCES[scale]):
        key_data, key_pick, key_start = jax.random.split(one, 3)
        given = draws.random_instance(key_data, D)
        every = jax.tree.map(np.asarray, _programs(given.data, given.head, jnp.asarray(TOKENS)))
        local = np.flatnonzero(np.isin(every.status, LOCAL))
        for number in np.asarray(jax.random.permutation(key_pick, local))[:CHOICES]:
            choice = every.at(number)
            mu, radius = cone_of(given, choice)
            target = jnp.asarray(np.arange(draws.T) == TOKENS[number][:, None])
            noise = np.asarray(jax.random.normal(jax.random.fold_in(key_start, int(number)), (D, D)))
            noise = np.pad(noise, (0, draws.SHAPE[2] - D))
            for apart in CORRELATIONS:
                start = jnp.asarray(near(choice.weights, noise, apart or mu, radius))
                starts.append(given.replace(start=start, target=target))
    every_start = stacked(starts)
    after, found = descents(every_start, STEPS[scale])
    ends = follow_all([every_start, after])
    by_start = Table(
        found,
        reached=reached(ends),
        left=astray(ends),
        stationary=ends.outcome == Outcome.finite_stationary_point.value,
        misaligned=ends.misaligned,
    )
    return jax.tree.map(lambda x: np.moveaxis(x.reshape(*x.shape[:-1], -1, len(CORRELATIONS)), -1, 0), by_start)


def cone_of(given: Table, choice: Table) -> tuple[float, float]:
    r"""$\mu(\alpha)=\frac18(\min(\frac12,\delta)/A)^2$ of (67), and R in units of $\|W^{mm}_\alpha\|$.

    δ is half the least distance between the margins of a support and of another token of the same sequence; a
    sequence without support tokens has none.
    """
    beyond = np.where(choice.support, np.inf, choice.excess).min(axis=1)
    delta = 0.5 * float(np.where(choice.support.any(axis=1), beyond, np.inf).min())
    tokens, queries = np.asarray(given.data.tokens), np.asarray(given.data.queries)
    sizes = np.linalg.norm(tokens, axis=2) * np.linalg.norm(queries, axis=1)[:, None]
    A = float(sizes.max()) * float(np.linalg.norm(choice.weights))
    return (min(0.5, delta) / A) ** 2 / 8, EXPONENT / min(delta, 1.0)


@partial(jax.jit, static_argnums=1)
def descents(starts: Table, steps: int) -> tuple[Table, dict[str, Any]]:
    r"""Plain descent with $\eta=1/L_W$ (where it ends is an instance's new start) and normalised descent.

    **Returns:** besides, `near_first` and `near_last`: 1 − corr with $W^{mm}_\alpha$ before normalised steps and after.
    """

    def one(given: Table) -> tuple[Table, dict[str, Any]]:
        risk, model = EmpiricalRisk(given.data, Logistic()), CombinedAttention(given.start, given.head)
        plain = draws.plain_descent(given.data, given.head, given.start, steps)
        share = SHARE * jnp.linalg.norm(given.start)
        unit = descend(risk, model, steps=NORMALISED, learning_rate=share, normalised="jointly", throw=False)
        aim = solve(attention_svm(given.data, given.target, "frobenius")).primal
        found = {"near_first": misalignment(given.start, aim), "near_last": misalignment(unit.model.W, aim)}
        return given.replace(start=plain.model.W), found

    return jax.vmap(one)(starts)


def near(W: np.ndarray, noise: np.ndarray, apart: float, radius: float) -> np.ndarray:
    """A start with 1 − corr = `apart` in the direction of the noise, of norm `radius` times that of W."""
    size = np.linalg.norm(W)
    across = noise - np.sum(noise * W) / size**2 * W
    across = across / np.linalg.norm(across)
    corr = 1.0 - apart
    return radius * (corr * W + (1.0 - corr**2) ** 0.5 * size * across)


# Locally-optimal choices by enumeration; starts at a given angle from each in a random direction.
LOCAL_CONVERGENCE = swept("tarzanagh2023", "local-convergence", runs=_runs)


def converges(column: int) -> Statement[Table]:
    """From one of the angles."""
    # μ and R are the theorem's to choose: starts beyond the proof's own μ are outside, whatever becomes of them.
    beyond = column > 0

    def residual(one: Table) -> np.ndarray:
        # Reached by the flow and after descent; or one of them is known to end elsewhere.
        distance = np.where(one.reached.all(axis=0), one.misaligned.max(axis=0), np.nan)
        return distance if beyond else np.where((one.left | one.stationary).any(axis=0), np.inf, distance)

    def in_words(one: Table, known: Mask) -> str:
        count, falls = (int(np.sum(x)) for x in (one.reached.all(axis=0), one.near_last < one.near_first))
        return f"{count} of {one.near_first.size} starts converge; along normalised steps 1 − corr falls from {falls}"

    where = f"{CORRELATIONS[column]:g}" if beyond else "μ(α) of (67)"
    return Statement(
        source="Theorem 7",
        says=f"starts with 1 − corr(W(0), W^mm_α) = {where} and ‖W(0)‖ = {EXPONENT:g} ‖W^mm_α‖/min(δ, 1), "
        f"n = {draws.N}, T = {draws.T}, d = {D}: the flow, and descent with η = 1/L_W, which the flow takes over",
        of=lambda n: n.runs.at(column),
        residual=residual,
        bound=(ALIGNED, "1 − corr with W^mm_α of those that converge to it"),
        found=in_words,
        beyond=beyond,
    )


register(LOCAL_CONVERGENCE, title="Theorem 7", statements=[converges(column) for column in range(len(CORRELATIONS))])

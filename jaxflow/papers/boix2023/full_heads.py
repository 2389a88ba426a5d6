"""A head whose matrices are full, not diagonal: do its ranks still grow one at a time?"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxflow._core import linalg
from jaxflow.data import SampleData
from jaxflow.papers.boix2023.full_head_flow import Factors, HeadProducts, follow_head, head_risk
from jaxflow.papers.dataset import Dataset, Part
from jaxflow.papers.registry import register
from jaxflow.papers.statement import Statement, met
from jaxflow.papers.table import Table
from jaxflow.risk import EmpiricalRisk
from jaxflow.study import subkey

D, T, SAMPLES = 3, 4, 20
TRIALS = {"quick": 6, "paper": 60, "large": 1000}

LOG_ALPHAS = (-10.0, -100.0, -1000.0)

# In units of the time that the fastest direction takes from α to order one.
HORIZON = 20.0

# Two singular values are learned in one stage unless the gradient falls in between to a tenth of what it is at both:
# a plateau.
PLATEAU = 0.1

# Singular values of the products of less than this, relative to the largest of both, have not been learned at the end.
LEARNED = 0.05


def draw(key: Any) -> tuple[EmpiricalRisk, Any]:
    """The risk, and the weights of a start of size one as pairs `(2, 2d, d)`."""
    inputs = jax.random.normal(subkey(key, "X"), (SAMPLES, T, D))
    # Products of order one: entries of the four matrices have variance 1/d.
    left, right = jax.random.normal(subkey(key, "teacher"), (2, 2, D, D)) / D**0.5
    teacher = HeadProducts(left @ jnp.swapaxes(right, -1, -2))
    targets = teacher.outputs(SampleData(inputs, jnp.zeros(SAMPLES)))
    return head_risk(inputs, targets), jax.random.normal(subkey(key, "start"), (2, 2 * D, D))


def follow(key: Any, log_alpha: Any) -> Table:
    """The flow of one instance.

    The flow of one head at m accepted steps, the last one repeated: `times`, singular values of both products, the
    logarithm of the gradient's norm; whether it was followed to its end. Of its own shape: `times`, `log_gradient`
    `(m,)`; `singular` `(m, 2, d)`.
    """
    risk, weights = draw(key)
    # At zero attention is uniform: the slope of W_K W_Qᵀ is zero there.
    slopes = jax.grad(risk)(HeadProducts(jnp.zeros((2, D, D)))).products
    until = HORIZON / linalg.singular_values(slopes[1])[0]
    found = follow_head(risk, Factors.of(weights, log_alpha), log_alpha, until)
    return Table(times=found["times"], singular=found["singular"], log_gradient=found["log_gradient"], ok=found["good"])


# `paths` `(3, b)`: from each of `LOG_ALPHAS`, on the same instances: heads of dimension three taught by a head, four
# Gaussian tokens, the flow from α times Gaussian matrices.
HEADS = Dataset(
    "boix2023",
    "heads",
    {"paths": Part(follow, {f"log alpha={a:g}": np.asarray(a) for a in LOG_ALPHAS}, TRIALS, block=20, way="in turn")},
    where=f"{__name__}:HEADS",
)


def stages_of(times: np.ndarray, singular: np.ndarray, log_gradient: np.ndarray) -> list[list[int]]:
    """What each stage learns, in order: the singular values (K Q first, then V O) that pass half of their final size.

    **Arguments:** readings `(m,)`, singular values `(m, 2, d)`, logarithm of the gradient's norm `(m,)`.
    """
    final = singular[-1].ravel()
    paths = singular.reshape(len(times), -1)
    learned = np.flatnonzero((final > 0) & (final >= LEARNED * final.max()))
    # The last time from below: what grows early and shrinks again has not been learned then. 0: it starts above.
    passed = [int(np.flatnonzero(np.append(False, paths[:, i] < 0.5 * final[i])).max(initial=0)) for i in learned]
    found: list[list[int]] = []
    before = -1
    for at, i in sorted(zip(passed, learned.tolist(), strict=True)):
        between = log_gradient[before : at + 1]
        apart = not found or between.min() <= np.log(PLATEAU) + min(between[0], between[-1])
        found = [*found, [i]] if apart else [*found[:-1], [*found[-1], i]]
        before = at
    return found


def stages_by_instance(numbers: Table) -> list[list[list[int]] | None]:
    """What the stages learn at the smallest α; None where the integration failed."""
    paths = numbers.paths.at(-1)
    rows = zip(paths.times, paths.singular, paths.log_gradient, paths.ok, strict=True)
    return [stages_of(*path) if ok else None for *path, ok in rows]


def _most(numbers: Table) -> np.ndarray:
    """The most that one stage learns; NaN where nothing is known. One singular value alone is no sequence of stages: 0.
    Not integrated to the end, a head may have stages."""
    found = stages_by_instance(numbers)
    return np.asarray([
        np.nan if stages is None else 0 if sum(map(len, stages)) < 2 else max(map(len, stages)) for stages in found
    ])  # fmt: skip


def _first(numbers: Table) -> np.ndarray:
    """0 where the first stage is one singular value, the largest of W_V W_Oᵀ."""
    found = stages_by_instance(numbers)
    return np.asarray([0.0 if stages and stages[0] == [D] else 1.0 if stages else np.nan for stages in found])


ONE_AT_A_TIME = Statement[Table](
    source="Beyond: full heads",
    says="the ranks of W_K W_Qᵀ and W_V W_Oᵀ together grow by at most one a stage (between plateaus of the gradient)",
    inside=lambda n: ~(_most(n) == 0),
    residual=_most,
    bound=1.0,
    found=lambda n, known: f"{met(1.0, _most(n)[known])}; these α were chosen after 1e-2, 1e-4, 1e-8 gave 0 of 3",
)
VALUES_FIRST = Statement[Table](
    source="Beyond: full heads (first stage)",
    says="the first stage is the largest singular value of W_V W_Oᵀ alone: at zero the slope of W_K W_Qᵀ vanishes",
    residual=_first,
)

register(
    HEADS,
    title="§6: heads that are not diagonal",
    statements=[ONE_AT_A_TIME, VALUES_FIRST],
)

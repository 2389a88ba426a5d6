"""A head whose matrices are full, not diagonal: do its ranks still grow one at a time?"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxflow._core import linalg
from jaxflow.data import SampleData
from jaxflow.papers.boix2023.verify.heads_flow import Factors, HeadProducts, follow_head, head_risk
from jaxflow.papers.boix2023.verify.outside import order_evidence
from jaxflow.papers.checks import AbstractCheck, Row, register_check
from jaxflow.papers.registry import Data
from jaxflow.report import Evidence
from jaxflow.risk import EmpiricalRisk
from jaxflow.study import wilson

D, T, SAMPLES = 3, 4, 20

LOG_ALPHAS = (-10.0, -100.0, -1000.0)

# In units of the time that the fastest direction takes from α to order one.
HORIZON = 20.0

# Two singular values are learned in one stage unless the gradient falls in between to a tenth of what it is at both:
# a plateau.
PLATEAU = 0.1

# Singular values of the products of less than this, relative to the largest of both, have not been learned at the end.
LEARNED = 0.05


class Size(NamedTuple):
    """How many instances."""

    trials: int


SIZES = {"quick": Size(6), "paper": Size(60), "large": Size(1000)}


@register_check("boix2023", "heads", statements="§6: heads that are not diagonal")
class HeadsCheck(AbstractCheck):
    """Heads of dimension three taught by a head, four Gaussian tokens, the flow from α times Gaussian matrices."""

    def compute(self, scale: str, key: Any, say: Callable[[str], None]) -> Data:
        trials = SIZES[scale].trials
        say(f"{trials} heads with full matrices at {len(LOG_ALPHAS)} scales")
        return compute(trials, key)

    def rows(self, data: Data) -> list[Row]:
        return [_one_at_a_time(data), _first(data)]


def compute(trials: int, key: Any) -> Data:
    """By α, instance, accepted step (and part, and singular value)."""
    keys = jax.random.split(key, trials)
    found = [jax.device_get(_paths(keys, jnp.asarray(log_alpha))) for log_alpha in LOG_ALPHAS]
    most = max(int(one["steps"].max()) for one in found) + 1
    data: Data = {name: np.stack([np.asarray(one[name]) for one in found]) for name in ("good", "steps")}
    # Accepted steps only, the last one repeated.
    return data | {
        name: np.stack([np.asarray(one[name])[:, :most] for one in found])
        for name in ("times", "singular", "log_gradient")
    }


@jax.jit
def _paths(keys: Any, log_alpha: Any) -> dict[str, Any]:
    return jax.lax.map(lambda key: path(key, log_alpha), keys)


def instance(key: Any) -> tuple[EmpiricalRisk, Any]:
    """The risk, and the weights of a start of size one as pairs `(2, 2d, d)`."""
    key_inputs, key_teacher, key_start = jax.random.split(key, 3)
    inputs = jax.random.normal(key_inputs, (SAMPLES, T, D))
    # Products of order one: entries of the four matrices have variance 1/d.
    left, right = jax.random.normal(key_teacher, (2, 2, D, D)) / D**0.5
    teacher = HeadProducts(left @ jnp.swapaxes(right, -1, -2))
    targets = teacher.outputs(SampleData(inputs, jnp.zeros(SAMPLES)))
    return head_risk(inputs, targets), jax.random.normal(key_start, (2, 2 * D, D))


def path(key: Any, log_alpha: Any) -> dict[str, Any]:
    """The flow of one instance."""
    risk, weights = instance(key)
    # At zero attention is uniform: the slope of W_K W_Qᵀ is zero there.
    slopes = jax.grad(risk)(HeadProducts(jnp.zeros((2, D, D)))).products
    until = HORIZON / linalg.singular_values(slopes[1])[0]
    return follow_head(risk, Factors.of(weights, log_alpha), log_alpha, until)


def stages_of(times: np.ndarray, singular: np.ndarray, log_gradient: np.ndarray) -> list[list[int]]:
    """What each stage learns, in order: the singular values (K Q first, then V O) that pass half of their final size.

    **Arguments:** readings `(m,)`, singular values `(m, 2, d)`, logarithm of the gradient's norm `(m,)`.
    """
    final = singular[-1].ravel()
    paths = singular.reshape(len(times), -1)
    learned = np.flatnonzero(final >= LEARNED * final.max())
    # The last time from below: what grows early and shrinks again has not been learned then.
    passed = [int(np.flatnonzero(np.append(False, paths[:, i] < 0.5 * final[i]))[-1]) for i in learned]
    found: list[list[int]] = []
    before = -1
    for at, i in sorted(zip(passed, learned.tolist(), strict=True)):
        between = log_gradient[before : at + 1]
        apart = not found or between.min() <= np.log(PLATEAU) + min(between[0], between[-1])
        found = [*found, [i]] if apart else [*found[:-1], [*found[-1], i]]
        before = at
    return found


def _found(data: Data) -> list[list[list[list[int]]]]:
    """By α and instance; no stages where the integration failed."""
    shape = data["good"].shape
    return [
        [
            stages_of(data["times"][a, i], data["singular"][a, i], data["log_gradient"][a, i])
            if data["good"][a, i]
            else []
            for i in range(shape[1])
        ]
        for a in range(shape[0])
    ]


def _share(count: int, total: int) -> str:
    low, high = wilson(count, total) if total else (0.0, 1.0)
    return f"{count} of {total} ({float(low):.0%} to {float(high):.0%})"


def _with_lost(good: np.ndarray, lost: int) -> Evidence:
    """Evidence of those that were integrated, and of `lost` others."""
    others = np.zeros(lost, bool)
    return order_evidence(np.append(good, others), np.append(np.ones(len(good), bool), others))


def _one_at_a_time(data: Data) -> Row:
    found = _found(data)
    several = [[stages for stages in row if sum(map(len, stages)) >= 2] for row in found]
    single = [np.array([all(len(stage) == 1 for stage in stages) for stages in row], bool) for row in several]
    jumps = [stage for stages in several[-1] for stage in stages if len(stage) > 1]
    of_both = sum(min(stage) < D <= max(stage) for stage in jumps)
    largest = max((len(stage) for stages in several[-1] for stage in stages), default=0)
    total, last = data["good"].shape[1], single[-1]
    # Not integrated to the end: it may have stages, of which nothing is known.
    lost = int(np.sum(~data["good"][-1]))
    shares = ", ".join(
        f"{_share(int(s.sum()), len(s))} at α = e^({a:g})" for s, a in zip(single, LOG_ALPHAS, strict=True)
    )
    learned = sum(sum(map(len, stages)) for stages in several[-1])
    return Row(
        "Beyond: full heads",
        "the ranks of W_K W_Qᵀ and W_V W_Oᵀ together grow by at most one a stage (between plateaus of the gradient)",
        f"in {shares}, with Wilson's 95%; at the smallest α {learned} singular values, {len(jumps)} stages with more "
        f"than one, {of_both} of them with one of each product; not integrated to the end: "
        f"{int(np.sum(~data['good']))} of {data['good'].size}. These α were taken after 1e-2, 1e-4 and 1e-8 had given "
        "0 of 3 each",
        len(last) + lost,
        int(total - len(last) - lost),
        float(max(largest - 1, 0)) if len(last) else float("inf"),
        "singular values beyond one",
        order_evidence(
            np.append(last, np.zeros(lost, bool)), np.append(np.ones(len(last), bool), np.zeros(lost, bool))
        ),
        {f"single_{k}": int(s.sum()) for k, s in enumerate(single)} | {"instances": len(last)},
    )


def _first(data: Data) -> Row:
    found = [stages for stages in _found(data)[-1] if stages]
    good = np.array([stages[0] == [D] for stages in found], bool)
    total = data["good"].shape[1]
    lost = total - len(good)
    return Row(
        "Beyond: full heads (first stage)",
        "the first stage is the largest singular value of W_V W_Oᵀ alone: at zero the slope of W_K W_Qᵀ vanishes",
        f"{_share(int(good.sum()), len(good))} at α = e^({LOG_ALPHAS[-1]:g})",
        total,
        0,
        float(len(good) - good.sum()) if len(good) else float("inf"),
        "instances with another first stage",
        order_evidence(
            np.append(good, np.zeros(lost, bool)), np.append(np.ones(len(good), bool), np.zeros(lost, bool))
        ),
        {"value_first": int(good.sum()), "instances": len(good)},
    )

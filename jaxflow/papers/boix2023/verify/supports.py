"""Algorithm 1 on many random linear networks at once: how supports change."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxflow.data import LinearData
from jaxflow.losses import Squared
from jaxflow.models import DiagonalLinear, HadamardNetwork
from jaxflow.papers.checks import AbstractCheck, Row, register_check
from jaxflow.papers.registry import Data
from jaxflow.report import Evidence
from jaxflow.risk import EmpiricalRisk
from jaxflow.theory import StageResult, Stages, incremental_learning

P = 3
SAMPLES = 4

# A path may go through a support more than once; twelve stages end almost all of them.
STAGES = 4 * P


class Size(NamedTuple):
    """How many instances."""

    trials: int


SIZES = {"quick": Size(200), "paper": Size(5000), "large": Size(200_000)}


@register_check("boix2023", "supports", statements="Theorem 4.1: supports in Algorithm 1")
class SupportsCheck(AbstractCheck):
    """Linear diagonal networks of three products, four Gaussian samples with Gaussian targets."""

    def compute(self, scale: str, key: Any, say: Callable[[str], None]) -> Data:
        say(f"Algorithm 1 on {SIZES[scale].trials} instances")
        stages = jax.device_get(_predict(jax.random.split(key, SIZES[scale].trials)))
        return {
            "results": np.asarray(stages.results.value),
            "support": np.asarray(stages.products) != 0.0,
            "residuals": np.asarray(stages.residuals),
        }

    def rows(self, data: Data) -> list[Row]:
        return [_grows(data), _leaves(data)]


@jax.jit
def _predict(keys: Any) -> Stages:
    return jax.lax.map(_one, keys, batch_size=100)


def _one(key: Any) -> Stages:
    key_inputs, key_targets, key_model = jax.random.split(key, 3)
    data = LinearData(jax.random.normal(key_inputs, (SAMPLES, P)), jax.random.normal(key_targets, (SAMPLES,)))
    model = HadamardNetwork.init(key_model, DiagonalLinear(), P)
    return incremental_learning(EmpiricalRisk(data, Squared()), model, max_stages=STAGES)


def _steps(data: Data) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For every learned stage how many coordinates enter and how many leave."""
    learned = data["results"] == StageResult.learned
    before = np.concatenate([np.zeros_like(data["support"][:, :1]), data["support"][:, :-1]], axis=1)
    entering = np.sum(data["support"] & ~before, axis=-1) * learned
    leaving = np.sum(before & ~data["support"], axis=-1) * learned
    return learned, entering, leaving


def _counts(data: Data) -> str:
    ended = np.any(data["results"] == StageResult.finished, axis=1)
    stuck = np.any(data["results"] == StageResult.not_converged, axis=1)
    tied = np.any(data["results"] == StageResult.degenerate, axis=1)
    rest = len(ended) - int(ended.sum() + stuck.sum() + tied.sum())
    return (
        f"{int(ended.sum())} instances to the end, {int(stuck.sum())} without an inner limit, {int(tied.sum())} tied, "
        f"{rest} not at the end after {data['results'].shape[1]} stages"
    )


def _grows(data: Data) -> Row:
    learned, entering, _ = _steps(data)
    most, count = int(entering.max(initial=0)), int(learned.any(axis=1).sum())
    worst = float(np.max(data["residuals"], where=learned, initial=0.0))
    return Row(
        "Theorem 4.1 (supports)",
        "supp(θ^{k+1}) has at most one coordinate that supp(θ^k) has not: said of the prediction alone, to which "
        "Algorithm 1 adds one coordinate a stage by construction (the flow's own supports are those of the row on "
        "sparsity)",
        f"at most {most} enters in any of {int(learned.sum())} stages; slopes left on supports {worst:.1e} of those at "
        f"zero; {_counts(data)}",
        0,
        len(learned),
        float(max(most - 1, 0)),
        "coordinates beyond one",
        Evidence(0),
        {"largest": most, "stages": int(learned.sum()), "residual": worst, "instances": count},
    )


def _leaves(data: Data) -> Row:
    learned, _, leaving = _steps(data)
    with_departure = np.any(leaving > 0, axis=1)
    count, total = int(with_departure.sum()), len(with_departure)
    return Row(
        "Appendix A (departures)",
        "no coordinate ever leaves the support (said of the toy task; here of random linear networks)",
        f"a coordinate leaves in {count} of {total} instances ({count / total:.1%})",
        0,
        total,
        float(leaving.max(initial=0)),
        "coordinates leaving at once",
        # Said of the toy task alone: what other tasks do neither proves nor refutes it.
        Evidence(0),
        {"departures": count, "instances": total},
    )

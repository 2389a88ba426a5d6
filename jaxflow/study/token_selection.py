"""The built-in experiment: which tokens does gradient flow select, and does its limit solve their program?"""

from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Key

from jaxflow._core import as_boolean, as_integer, check_name, check_real, positive_or_one, require
from jaxflow.data import random_tokens
from jaxflow.limits import Limit, find_limit
from jaxflow.limits.find import MAX_STEPS
from jaxflow.limits.reduction import reduced
from jaxflow.limits.self_certificate import as_primal
from jaxflow.losses import Logistic
from jaxflow.models import CombinedAttention, DiagonalAttention, FactoredAttention, PromptAttention
from jaxflow.risk import EmpiricalRisk
from jaxflow.study.experiment import AbstractExperiment
from jaxflow.study.queues import Gears, Instance, Queues
from jaxflow.study.shapes import device_shapes
from jaxflow.theory import rule_of

MODELS: dict[str, Any] = {"W": CombinedAttention, "KQ": FactoredAttention, "diagonal": DiagonalAttention}
MODELS |= {"prompt": PromptAttention}
# The last number of a byte fills up the tokens of a study with several n, so that there are as many tokens to name.
NO_TOKEN = int(jnp.iinfo(jnp.uint8).max)

# Precisions of explicit stretches.
SCOUTS = ("double", "single")


def _chosen_for_device(name: str, given: int | None) -> int:
    return getattr(device_shapes(), name) if given is None else given


class TokenSelection(AbstractExperiment):
    r"""Random instances on the unit sphere (Tarzanagh et al. 2023, §3 and App. F): data, flow, selection, program.

    **Factors:** `n`, `T`, `d`, `score_gap`, `self_attention` (data); `parametrization` `"W"`, `"KQ"`, `"diagonal"` or
    `"prompt"`, and `m`, the columns of K and Q (method). W and (K, Q) are run on the same instances.

    A block is followed in the gears of `find_limit` (`jaxflow.limits.attention`), each with a queue of lanes at
    constant width, until the flow certifies its own direction to `gap`. Then the programs of the selected tokens are
    solved, independently of the flow, and Definition 2 is decided.

    **Fields:** `method`: follow every instance by `find_limit` with this method instead; `gap`: what counts as
    certified; `width`: lanes; `parts`: of a block, each a queue of its own, computed side by side on the cores of a
    CPU; `programs`: solved at a time (the defaults of these three depend on the kind of device when the experiment is
    made: `jaxflow.study.shapes`); `max_steps` of an instance; `rtol` of explicit and implicit steps; `far_rtol` of the
    first stretch by multipliers: a stretch that leaves its selection is repeated at 1e-3, as in `find_limit`. (At an
    `rtol` of 1e-5 in place of 1e-6 a few of 2,000 paths pass a separatrix on its other side and are certified there.)
    `scout`: `"double"`, or `"single"` for a device with little double precision: explicit stretches, and so the
    selection of tokens, are computed in single precision on the device of the block; everything else (draws,
    multipliers, certificates, programs) is computed in double precision (`jax_enable_x64`) on the host's CPU, with its
    number of lanes. Certificates have the same meaning, but a start that single precision cannot tell from a separatrix
    may end on its other side.

    **Example:**

    ```python
    experiment = jf.study.TokenSelection(gap=1e-6)
    jf.study.Study(experiment, {"n": [3], "T": [4], "d": [4]}, {"parametrization": ["W"]}, trials=8)
    ```
    """

    method: Any = None
    gap: float = 1e-8
    width: int = eqx.field(default=None, converter=partial(_chosen_for_device, "lanes"))
    parts: int = eqx.field(default=None, converter=partial(_chosen_for_device, "parts"))
    programs: int = eqx.field(default=None, converter=partial(_chosen_for_device, "programs"))
    scout: str = "double"
    max_steps: int = MAX_STEPS
    rtol: float = 1e-6
    far_rtol: float = 0.1

    def __check_init__(self) -> None:
        for name in ("width", "parts", "programs", "max_steps"):
            as_integer(name, getattr(self, name), 1)
        for name in ("gap", "rtol", "far_rtol"):
            check_real(name, getattr(self, name), positive=True)
        check_name("scout", self.scout, SCOUTS)
        require(
            self.scout == "double" or self.method is None,
            "scout",
            "single precision cannot be combined with a `method`; leave one of them out",
        )

    def check_cell(self, parametrization: str = "W", m: int | None = None, **factors: Any) -> None:
        _check_parametrization(parametrization, m)
        sizes = {"n": 1, "T": 2, "d": 1, "m": 1}
        for name, value in (factors if m is None else factors | {"m": m}).items():
            if name in sizes:
                as_integer(name, value, sizes[name])
        T, score_gap = factors.get("T", 2), factors.get("score_gap", 0.0)
        require(T <= NO_TOKEN, "T", f"a selected token is stored as a byte, which names {NO_TOKEN} of them; got {T}")
        check_real("score_gap", score_gap)
        require(0 <= score_gap < 2, "score_gap", f"scores lie in [-1, 1]; got {score_gap}")
        as_boolean("self_attention", factors.get("self_attention", False))

    def setup(
        self,
        key: Key[Array, ""],
        n: int = 5,
        T: int = 5,
        d: int = 4,
        score_gap: float = 0.1,
        self_attention: bool = False,
        parametrization: str = "W",
        m: int | None = None,
    ) -> tuple[EmpiricalRisk, Any]:
        _check_parametrization(parametrization, m)
        key_data, key_model = jax.random.split(key)
        data, head = random_tokens(key_data, n, T, d, score_gap, self_attention)
        size = {"m": m} if parametrization == "KQ" else {}
        return EmpiricalRisk(data, Logistic()), MODELS[parametrization].init(key_model, data, head, **size)

    def replay(self, key: Key[Array, ""], **factors: Any) -> Limit:
        """The limit of one instance in full, to the same gap and with the same budget."""
        instance = self.setup(key, **factors)
        return find_limit(*instance, method=self.method, gap=self.gap, max_steps=self.max_steps, throw=False)

    def summarize(self, limit: Limit) -> dict[str, Any]:
        final = limit.trajectory.final
        program: Any = limit.prediction.program
        flow, reference = as_primal(program, limit.flow_direction), limit.program_solution.primal
        return {
            "outcome": limit.outcome,
            "selection_status": limit.selection_status,
            "limit_kind": limit.kind,
            "token": jnp.argmax(limit.selection, axis=-1).astype(jnp.uint8),
            "excess": limit.excess,
            "flow_gap": limit.flow_certificate.duality_gap,
            "program_gap": limit.program_solution.certificate.duality_gap,
            "one_minus_corr": _one_minus_corr(flow, reference),
            "stationarity": limit.stationarity,
            "log_time": final.log_time,
            "log_log_time": final.log_log_time,
            "log_arc_length": final.log_arc_length,
            "num_steps": limit.trajectory.stats["num_steps"].astype(jnp.int32),
            # A `method` has one.
            "rounds": jnp.asarray(limit.trajectory.stats.get("rounds", 1), jnp.int32),
        }

    def padding(self) -> dict[str, int]:
        return {"token": NO_TOKEN}

    def definitions(self) -> dict[str, str]:
        return {
            "outcome": "where the flow goes; every instance has exactly one outcome",
            "selection_status": "the selected tokens by Definition 2 of Tarzanagh et al. (2023)",
            "limit_kind": "whether the limit is a direction or a point",
            "token": f"the selected token of each sequence; {NO_TOKEN} beyond the sequences of a cell with fewer",
            "excess": "norm of the flow's direction at margin one over the program's certified optimum, less one",
            "flow_gap": "relative duality gap from the flow's own multipliers and velocity, where it stopped",
            "program_gap": "relative duality gap of the program of the selected tokens, by its own dual",
            "one_minus_corr": "1 - correlation of the flow's direction, where it stopped, with the program's solution",
            "stationarity": "|grad L| / sum |p| where the flow stopped; zero at a finite stationary point",
            "log_time": "log t where the flow stopped, to leading order; infinite where it overflows",
            "log_log_time": "log log t where the flow stopped",
            "log_arc_length": "log of the length of the path",
            "num_steps": "steps of integration, rejected ones included",
            "rounds": "explicit stretches; more than one where a selection was left again",
        }

    def queues(self, factors: dict[str, Any]) -> Queues:
        return Queues(
            self,
            lambda key: Instance(*self.in_span(factors, key)),
            Gears(self.gap, self.rtol, self.far_rtol),
            device_shapes()._replace(lanes=self.width, parts=self.parts, programs=self.programs),
            self.scout,
            self.max_steps,
            method=self.method,
        )

    def in_span(self, factors: dict[str, Any], key: Any) -> tuple[EmpiricalRisk, Any]:
        """The instance that is followed, with the same logits and the same flow: in the dimensions of its span, or in a
        few more, so that several d share a compiled program (`jaxflow.limits.reduction`)."""
        risk, model = self.setup(key, **factors)
        small = reduced(risk, model, rule_of(model), shared=True)
        return (risk, model) if small is None else (small.risk, small.model)


def _check_parametrization(name: str, m: int | None) -> None:
    check_name("parametrization", name, MODELS)
    require(
        m is None or name == "KQ", "m", "only the parametrization KQ has columns to choose; give it a study of its own"
    )


def _one_minus_corr(a: Any, b: Any) -> Any:
    # 0.5 |a - b|^2 of unit vectors: 1 - <a, b> without its cancellation.
    def unit(x: Any) -> Any:
        norm = jnp.linalg.norm(x)
        return x / positive_or_one(norm)

    return 0.5 * jnp.sum((unit(a) - unit(b)) ** 2)

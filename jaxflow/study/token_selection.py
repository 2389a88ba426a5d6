"""The built-in experiment: which tokens does gradient flow select, and does its limit solve their program?"""

from collections.abc import Callable
from functools import partial
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from jaxflow._core import Code, Outcome, require, unknown_name
from jaxflow.data import TokenData, random_tokens
from jaxflow.flow import (
    ArcLength,
    Drive,
    Scores,
    SelectionSettled,
    StationaryPoint,
    Weights,
    run_queue,
)
from jaxflow.flow.solvers import state_norm
from jaxflow.limits import Limit, conclude, find_limit
from jaxflow.limits.method import STATIONARY, Staged, quick_solver
from jaxflow.limits.self_certificate import MASKED_ATTENTION, as_primal
from jaxflow.losses import Logistic
from jaxflow.models import CombinedAttention, DiagonalAttention, FactoredAttention
from jaxflow.risk import EmpiricalRisk
from jaxflow.study.experiment import AbstractExperiment
from jaxflow.trajectory import Trajectory

# The second pass: ten times the arc length and steps, a pull of 1e-9.
FURTHER = 10.0

# Instances whose programs are solved at a time.
CONCLUDED = 64

MODELS = {"W": CombinedAttention, "KQ": FactoredAttention, "diagonal": DiagonalAttention}

# K and Q together, d = 16: an implicit step solves a system of this size, and a path takes some hundred steps. At
# n = 20 a path of 200 weights takes seconds, one of 800 minutes.
LARGEST = 512

# d where a study does not say.
DIMENSION = 4

# Outcomes that no further integration would change.
CLOSED = (Outcome.globally_optimal, Outcome.locally_optimal, Outcome.finite_stationary_point)


class TokenSelection(AbstractExperiment):
    r"""Random instances on the unit sphere (Tarzanagh et al. 2023, §3 and App. F): data, flow, selection, program.

    **Factors:** `n`, `T`, `d`, `score_gap`, `self_attention` (data); `parametrization` `"W"`, `"KQ"` or
    `"diagonal"`, and `m`, the columns of K and Q (method). W and (K, Q) meet the same instances.

    Two passes over a block. The **scout** follows every instance explicitly in arc length, a queue of lanes at
    constant width, until attention has settled and what still pulls away from the selected tokens is a share of
    1e-5; then it solves the program of the selected tokens and decides Definition 2. Where that leaves the question
    open (a selection that is not locally optimal, a path into a finite stationary point) the scout goes ten times
    further, with a share of 1e-9. What is open even then goes through `find_limit`, one by one; factors of more than
    `LARGEST` weights stay undecided instead (n = 20, d = 20: some in a hundred), unless a `method` is given.

    **Fields:** `method`: of `find_limit` (None: `Staged(timed=False)`, for factors with `quick_solver()` and after a
    try with limiting dynamics from a length of 50 on); `gap`: what counts as certified; `width`: lanes; `horizon`,
    `rtol`, `scout_steps`: arc length (None: 1e3 for W, 30 for factors, which soon are stiff), tolerance and budget
    of the scout's first pass.
    """

    method: Any = None
    gap: float = 1e-8
    width: int = 8
    horizon: float | None = None
    rtol: float = 1e-4
    scout_steps: int = 1500

    def __check_init__(self) -> None:
        require(self.width >= 1, "width", f"expected at least 1, got {self.width}")
        require(self.horizon is None or self.horizon > 0, "horizon", f"expected a positive length, got {self.horizon}")

    def setup(
        self,
        key: Key[Array, ""],
        n: int = 5,
        T: int = 5,
        d: int = DIMENSION,
        score_gap: float = 0.1,
        self_attention: bool = False,
        parametrization: str = "W",
        m: int | None = None,
    ) -> tuple[EmpiricalRisk, Any]:
        if parametrization not in MODELS:
            raise unknown_name("parametrization", parametrization, MODELS)
        require(m is None or parametrization == "KQ", "m", "only the parametrization KQ has columns to choose")
        key_data, key_model = jax.random.split(key)
        data, head = random_tokens(key_data, n, T, d, score_gap, self_attention)
        size = {"m": m} if parametrization == "KQ" else {}
        return EmpiricalRisk(data, Logistic()), MODELS[parametrization].init(key_model, data, head, **size)

    def summarize(self, limit: Limit) -> dict[str, Any]:
        final = limit.trajectory.final
        program: Any = limit.prediction.program
        flow, reference = as_primal(program, limit.flow_direction), limit.program_solution.primal
        return {
            "outcome": limit.outcome,
            "selection_status": limit.selection_status,
            "limit_kind": limit.kind,
            "token": jnp.argmax(limit.selection, axis=-1).astype(jnp.uint8),
            "flow_gap": limit.flow_certificate.duality_gap,
            "program_gap": limit.program_solution.certificate.duality_gap,
            "one_minus_corr": _one_minus_corr(flow, reference),
            "stationarity": limit.stationarity,
            "log_time": final.log_time,
            "log_arc_length": final.log_arc_length,
            "num_steps": limit.trajectory.stats["num_steps"].astype(jnp.int32),
        }

    def definitions(self) -> dict[str, str]:
        return {
            "outcome": "where the flow goes; every instance has exactly one outcome",
            "selection_status": "the selected tokens by Definition 2 of Tarzanagh et al. (2023)",
            "limit_kind": "whether the limit is a direction or a point",
            "token": "the selected token of each sequence",
            "flow_gap": "relative duality gap from the flow's own multipliers and velocity, where it stopped",
            "program_gap": "relative duality gap of the program of the selected tokens, by its own dual",
            "one_minus_corr": "1 - correlation of the flow's direction, where it stopped, with the program's solution",
            "stationarity": "|grad L| / sum |p| where the flow stopped; zero at a finite stationary point",
            "log_time": "log t where the flow stopped, to leading order",
            "log_arc_length": "log of the length of the path",
            "num_steps": "steps of integration, rejected ones included",
            "scouted": "whether the explicit pass was enough",
        }

    def block_function(self, factors: dict[str, Any], trial_width: int) -> Callable[[Any], dict[str, Any]]:
        draw = jax.jit(jax.vmap(partial(self.in_span, factors)))
        scout: Any = self._scout  # Pyright takes a bound compiled function for an unbound one
        look: Any = self._look
        methods = self._methods(factors)

        def block(keys: Any) -> dict[str, Any]:
            instances = draw(keys)
            paths = scout(*instances, jnp.asarray(1.0), jnp.zeros(len(keys), bool))
            found = self._conclude(instances, paths, np.arange(len(keys)))
            table = {name: np.array(value) for name, value in found.items()}
            table["scouted"] = _closed(table)
            left = np.flatnonzero(~table["scouted"])
            if len(left):
                # The same compiled program again, in which those that are done have nothing to do.
                paths = scout(*instances, jnp.asarray(FURTHER), jnp.asarray(table["scouted"]))
                for name, value in self._conclude(instances, paths, left).items():
                    table[name][left] = np.asarray(value)
            for method in methods:
                for i in np.flatnonzero(~_closed(table)):
                    for name, value in look(*narrowed(factors, *_take(jnp.asarray(i), instances)), method).items():
                        table[name][i] = np.asarray(value)
            if not methods:
                # A selection that looked final to the scout, and is not locally optimal, may be left yet.
                doubtful = ~_closed(table) & (table["outcome"] != Outcome.failed.value)
                table["outcome"][doubtful] = Outcome.undecided.value
            names = {name: value.names for name, value in found.items() if isinstance(value, Code)}
            return {name: Code(value, names[name]) if name in names else value for name, value in table.items()}

        return block

    def _methods(self, factors: dict[str, Any]) -> list[Any]:
        """What follows the scout, each on what the ones before it left open."""
        if self.method is not None:
            return [self.method]
        if factors.get("parametrization", "W") == "W":
            return [Staged(timed=False)]
        d = factors.get("d", DIMENSION)
        if 2 * d * (factors.get("m") or d) > LARGEST:
            return []
        # Paths near a separatrix: on 21 of 22 the tokens of a reference at rtol 1e-6 without limiting dynamics, as
        # against 21 with Kvaerno5, Newton's method and rtol 1e-3, at a tenth of the time.
        how: dict[str, Any] = {"timed": False, "solver": quick_solver(), "rtol": 1e-4}
        # Limiting dynamics from a length of 50 on (exponents up to 2,500) take a fifth of the time. Finite
        # stationary points may lie beyond it, where they would pass for directions without a program: those stay
        # open.
        return [Staged(cap=50.0, **how), Staged(**how)]

    @eqx.filter_jit
    def _look(self, risk: EmpiricalRisk, model: Any, method: Any) -> dict[str, Any]:
        return self.summarize(find_limit(risk, model, method=method, gap=self.gap, throw=False))

    @eqx.filter_jit
    def _scout(self, risks: EmpiricalRisk, models: Any, times: Any, idle: Any) -> Trajectory:
        """The paths to `times` the horizon of the first pass."""
        # Finer tolerances cost steps and change no count (512 instances of W, d = 4: the same at rtol 1e-6).
        controller = diffrax.PIDController(rtol=self.rtol, atol=1e-2 * self.rtol, norm=state_norm)
        stop = StationaryPoint(STATIONARY) | SelectionSettled(0.5 * MASKED_ATTENTION, pull=1e-5 * times**-4)
        budget = (self.scout_steps * times).astype(int)
        drive = Drive(diffrax.Tsit5(), controller, stop, budget)

        def start(risk: Any, model: Any, idle: Any) -> Any:
            coordinates = Scores() if isinstance(model, CombinedAttention) else Weights()
            until = (1e3 if isinstance(model, CombinedAttention) else 30.0) if self.horizon is None else self.horizon
            clock = ArcLength(floor=0.03, timed=False)
            return drive.start(risk, model, clock=clock, coordinates=coordinates, until=until * times, idle=idle)

        lanes = run_queue(drive, eqx.filter_vmap(start)(risks, models, idle), width=self.width)
        return eqx.filter_vmap(drive.trajectory)(lanes)

    def _conclude(self, instances: Any, paths: Trajectory, rows: np.ndarray) -> dict[str, Any]:
        """Outcomes of `rows`, in groups of one size: a batch of programs waits for its slowest."""
        close: Any = self._close
        size, groups = min(CONCLUDED, len(instances[1].head.v)), []
        for first in range(0, len(rows), size):
            some = np.resize(rows[first : first + size], size)
            groups.append(close(*_take(some, (*instances, paths))))

        def joined(*parts: Any) -> np.ndarray:
            return np.concatenate([np.asarray(part) for part in parts])[: len(rows)]

        return jax.tree.map(joined, *groups)

    @eqx.filter_jit
    def _close(self, risks: Any, models: Any, paths: Any) -> dict[str, Any]:
        def close(risk: Any, model: Any, trajectory: Any) -> dict[str, Any]:
            return self.summarize(conclude(risk, model, trajectory, self.gap))

        return eqx.filter_vmap(close)(risks, models, paths)

    def in_span(self, factors: dict[str, Any], key: Any) -> tuple[EmpiricalRisk, Any]:
        """An instance as it is followed, with the same logits and the same flow: padded with zeros, so that several d
        share what is compiled; W first in coordinates of the span of tokens, queries and head where d is larger."""
        risk, model = self.setup(key, **factors)
        data: Any = risk.data
        tokens, queries, v = data.tokens, data.queries, model.head.v
        d = tokens.shape[-1]

        def padded(more: int, kind: Any, *weights: Any) -> tuple[EmpiricalRisk, Any]:
            wide = TokenData(_pad_last(tokens, more), _pad_last(queries, more), data.labels, data.mask)
            head = eqx.tree_at(lambda h: h.v, model.head, _pad_last(v, more))
            weights = tuple(jnp.pad(x, ((0, more),) * x.ndim) for x in weights)
            return EmpiricalRisk(wide, Logistic()), kind(*weights, head)

        if isinstance(model, FactoredAttention):
            # Columns of zeros stay zero as well. Fewer columns than d constrain the rank, which is to be seen.
            if model.K.shape != (d, d):
                return risk, model
            return padded(padded_factors(d) - d, FactoredAttention, model.K, model.Q)
        if not isinstance(model, CombinedAttention):
            return risk, model
        W = model.W
        vectors = jnp.concatenate([tokens.reshape(-1, d), queries.reshape(-1, d), v[None]])
        if len(vectors) < d:
            basis, _ = jnp.linalg.qr(vectors.T)
            tokens, queries, v, W = tokens @ basis, queries @ basis, v @ basis, basis.T @ W @ basis
        small = v.shape[-1]
        return padded(padded_size(small) - small, CombinedAttention, W)


def narrowed(factors: dict[str, Any], risk: EmpiricalRisk, model: Any) -> tuple[EmpiricalRisk, Any]:
    """An instance of factors without the zeros of `in_span`: an implicit method pays for every one of them, at
    n = 20, d = 10 with four minutes instead of seconds a path."""
    size, data = model.head.v.shape[-1], risk.data
    d = min(factors.get("d", size), size)
    if not isinstance(model, FactoredAttention) or d == size or not isinstance(data, TokenData):
        return risk, model
    small = TokenData(data.tokens[..., :d], data.queries[..., :d], data.labels, data.mask)
    head = eqx.tree_at(lambda h: h.v, model.head, model.head.v[:d])
    return EmpiricalRisk(small, risk.loss), FactoredAttention(model.K[:d, :d], model.Q[:d, :d], head)


def _closed(table: dict[str, Any]) -> np.ndarray:
    return np.isin(table["outcome"], [int(code) for code in CLOSED])


@eqx.filter_jit
def _take(rows: Any, tree: Any) -> Any:
    return jax.tree.map(lambda x: x[rows] if eqx.is_array(x) else x, tree)


def padded_size(d: int) -> int:
    """The next of 4, 8, 16, ...: it depends on d alone, so that no other cell of a study changes an answer."""
    return max(4, 1 << (d - 1).bit_length())


def padded_factors(d: int) -> int:
    """The next of 4, 8, 20, 32, 64, ...: K and Q are `(d, d)` and cost more to pad than the n(T - 1) numbers that W is
    followed in, most of all where an implicit method differentiates by each. 20 is where the figures end."""
    return 20 if 8 < d <= 20 else padded_size(d)


def _one_minus_corr(a: Any, b: Any) -> Any:
    # 0.5 |a - b|^2 of unit vectors: 1 - <a, b> without its cancellation.
    def unit(x: Any) -> Any:
        norm = jnp.linalg.norm(x)
        return x / jnp.where(norm > 0, norm, 1.0)

    return 0.5 * jnp.sum((unit(a) - unit(b)) ** 2)


def _pad_last(x: Any, more: int) -> Any:
    return jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, more)])

"""The answer: where the flow goes, which program its limit solves, and how sure that is."""

import abc
import enum
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from jaxflow._core import RESULTS, AbstractPrinted, Code, Outcome, SelectionStatus, is_concrete
from jaxflow.data import TokenData
from jaxflow.margin import (
    AttentionProgram,
    Certificate,
    CertificateSource,
    ProgramResult,
    Solution,
    finite_component,
    solve,
)
from jaxflow.models import OwnModel
from jaxflow.trajectory import Trajectory, describe


class LimitKind(enum.IntEnum):
    """What the flow tends to: a direction (weights diverge), a point, or nothing that was recognised."""

    direction = 1
    point = 2
    none = 3


def unknown() -> Float[Array, ""]:
    """NaN, for a number that is not known."""
    return jnp.asarray(jnp.nan)


class Rate(AbstractPrinted):
    r"""How the weights' own gap $N(W)/(\mu\,\mathrm{opt})-1$ falls along the flow: like $(\log t)^{-\text{exponent}}$.

    - `exponent`: least squares on the save points; NaN where fewer than three are usable.
    - `predicted`: $1-\kappa$ with κ the largest dual value off the support of the certified solution (a singular value
      of $A^*\lambda$, or an entry for ℓ1); 1 for the Frobenius norm, and where the support is full.
    - `log_times`, `gaps`: the points of the fit; NaN where the path had ended.
    """

    exponent: Float[Array, ""] = eqx.field(default_factory=unknown)
    predicted: Float[Array, ""] = eqx.field(default_factory=unknown)
    log_times: Float[Array, " saves"] = eqx.field(default_factory=lambda: jnp.zeros(0))
    gaps: Float[Array, " saves"] = eqx.field(default_factory=lambda: jnp.zeros(0))


class AbstractFacts(AbstractPrinted):
    """What a limit has beside the fields that every limit has."""

    # The measure in a picture of the way to the limit, and whether the program's optimum is drawn beside the answer.
    gap_label: eqx.AbstractClassVar[str]
    draws_program: eqx.AbstractClassVar[bool]

    @abc.abstractmethod
    def sentence(self, limit: "Limit") -> str:
        """What `print` shows of one limit that did not fail."""


# Fields of the three classes that were before this one.
_FORMER = {"weights": "flow_direction", "coefficients": "flow_direction", "unit": "flow_direction", "params": "end"}


class Limit(AbstractPrinted):
    r"""The limit of gradient flow from one start, with the certificate of each number.

    - `kind`: `direction` (weights diverge), `point` or `none`; `outcome`: one `Outcome`, derived from the rest.
    - `selection`: for attention the selected tokens, Booleans `(n, [k,] T)`; for a linear network the support vectors
      `(n,)`; else None. `selection_status`: the status of selected tokens by Definition 2 (where several are composed,
      by the slopes of the head at the mixture in place of scores).
    - `direction`: the limit direction; None unless `kind` is `direction`. Combined weights `(d, d)` or linear
      coefficients `(d,)` at margin one, V/μ with V the flow's velocity or its weights, whichever has less norm at
      margin one; of other models the trained parameters at norm one, a pytree like the model with `None` where frozen.
      The program's optimum is `program_solution.primal`. `flow_direction` is that array for every kind (at a point, the
      point).
    - `point`: combined weights, linear coefficients or the model at a finite limit; None unless `kind` is `point`.
      `error`, of `details`: its relative error.
    - `certificate`: of the flow's direction, by the better of two lower bounds, its own multipliers and the program's
      dual; `source` names it (for a program that is not convex, and for a point, it is the flow's own).
      `flow_certificate`: by the flow's own multipliers alone; `program_solution`: the program, solved independently of
      the flow. For p < 1 the gap is that of the ℓ1 relaxation. Where no program is known the certificates are empty
      (`Certificate.none`) and the solution is None.
    - `excess`: $N(V)/(\mu\cdot\text{optimum})-1$, how far the flow's direction (or point) is above the program's
      certified optimum; +inf where one of the two is missing, and for p < 1. It is negative beyond rounding only where
      the program does not describe this flow.
    - `stationarity`: $\|\nabla L\|/\sum|p|$ at the end, which is small at a stationary point, and infinite where
      exponents have no digits left to tell. For data a thousand times larger or smaller than one it is computed in the
      units of the data (`jaxflow.limits.units`).
    - `prediction`: program, theorem, assumptions; `rate`: see `Rate`; `trajectory`: the exact flow.
    - `details`: `AttentionFacts`, `NetworkFacts` or `ModelFacts`, whose fields are attributes of the limit too:
      `limit.kkt` is `limit.details.kkt`.

    In a batch (under `vmap`) `direction` and `point` are arrays for every member; read `kind` first.

    **Example:**

    ```python
    limit = jf.find_limit(risk, model)
    limit.selection, limit.direction, limit.outcome
    limit.excess  # how far the flow's direction is above the program's optimum
    limit.plot()
    ```
    """

    kind: Code
    outcome: Code
    flow_direction: PyTree
    end: PyTree
    stationarity: Float[Array, ""]
    trajectory: Trajectory
    details: AbstractFacts
    # What only some limits have.
    selection: Any = None  # Bool[Array, "..."] | None
    selection_status: Code = eqx.field(default_factory=lambda: Code(SelectionStatus.not_applicable, SelectionStatus))
    certificate: Certificate = eqx.field(default_factory=Certificate.none)
    flow_certificate: Certificate = eqx.field(default_factory=Certificate.none)
    excess: Float[Array, ""] = eqx.field(default_factory=lambda: jnp.asarray(jnp.inf))
    program_solution: Any = None  # Solution | None
    prediction: Any = None  # Prediction | None
    rate: Rate = eqx.field(default_factory=Rate)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "details":
            raise AttributeError(name)
        former = _FORMER.get(name)
        return getattr(self.details, name) if former is None else getattr(self, former)

    @property
    def direction(self) -> Any:
        """Where the flow goes, or None where the limit is no direction."""
        return self._if(LimitKind.direction, eqx.filter(bare(self.flow_direction), eqx.is_array))

    @property
    def point(self) -> Any:
        """The limit point, or None where there is none."""
        return self._if(LimitKind.point, bare(self.end))

    def _if(self, kind: LimitKind, value: Any) -> Any:
        single = is_concrete(self.kind) and self.kind.value.ndim == 0
        return None if single and int(self.kind) != kind else value

    @property
    def settled_outcome(self) -> Code:
        """`outcome`, with `selection_settled` in place of `undecided` where attention has settled on tokens whose
        program is solved. It is for studies that follow the flow no further; `selection_status` is the status of these
        tokens.
        """
        settled = (self.outcome == Outcome.undecided) & jnp.isfinite(self.excess)
        return Code(jnp.where(settled, Outcome.selection_settled.value, self.outcome.value), Outcome)

    def finite_component(self) -> Solution:
        r"""$W^{fin}$ of least norm that sets the proportions of attention inside the selected sets (eq. 7).

        The direction solves (Gen-SVM). Where every query selects one token, the component is zero. `result` is
        `infeasible` where no W has these proportions.
        """
        program: Any = None if self.prediction is None else self.prediction.program
        if not isinstance(program, AttentionProgram) or self.selection is None:
            raise ValueError("limit: a finite component belongs to the selected tokens of attention")
        labels = jnp.ones(program.selection.shape[:-1], program.tokens.dtype)
        data = TokenData(program.tokens, program.queries, labels, program.visible)
        return solve(finite_component(data, self.selection, self.trajectory.final.model.attention(data)))

    def to_xarray(self) -> Any:
        """Every number as an `xarray.Dataset`, for tables and for saving in a form that needs no `jaxflow` to read.

        A variable is named after its place in the limit (`certificate_duality_gap`, `trajectory_final_log_time`); the
        first axis of a batch is `member`. Codes are `uint8` with the attributes `flag_values` and `flag_meanings` of
        the CF conventions; results of integrations are their messages. The attribute `sentence` is what `print` shows.
        `pickle` keeps the limit itself, for the same version of `jaxflow`.
        """
        import xarray

        lead = ["member"] * self.kind.value.ndim
        variables: dict[str, Any] = {}
        attributes = {"sentence": str(self)}
        single = jax.tree.structure(RESULTS.successful)
        found, _ = jax.tree_util.tree_flatten_with_path(
            self, is_leaf=lambda x: isinstance(x, Code) or jax.tree.structure(x) == single
        )
        for path, value in found:
            name = jax.tree_util.keystr(path, simple=True, separator="_")
            own: dict[str, Any] = {}
            if isinstance(value, Code):
                own = {
                    "flag_values": [int(code) for code in value.names],
                    "flag_meanings": " ".join(value.names.__members__),
                }
            elif not eqx.is_array(value) and not isinstance(value, np.ndarray):
                attributes[name] = describe(value)
                continue
            numbers = np.asarray(value)
            axes = [*lead, *(f"{name}_{axis}" for axis in range(numbers.ndim - len(lead)))]
            variables[name] = (axes, numbers, own)
        return xarray.Dataset(variables, attrs=attributes)

    def plot(self) -> Any:
        """A Matplotlib figure: the gap along the flow, and the direction (or the point).

        **Raises:** `ValueError` for a batch: plot its members.
        """
        from jaxflow.plots import draw_limit

        if not is_concrete(self.kind) or self.kind.value.ndim > 0:
            raise ValueError("plot: one limit is wanted; of a batch plot its members")
        shown = self.end if int(self.kind) == LimitKind.point else self.flow_direction
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(shown) if hasattr(leaf, "shape")]
        joined = leaves[0] if len(leaves) == 1 else np.concatenate([leaf.ravel() for leaf in leaves])
        data = {
            "log_times": np.asarray(self.rate.log_times),
            "gaps": np.asarray(self.rate.gaps),
            "gap_label": self.details.gap_label,
            "limit": joined,
            "limit_label": _NAMES[LimitKind(int(self.kind))],
            "title": Outcome(int(self.outcome)).name.replace("_", " "),
        }
        if self.details.draws_program and self.program_solution is not None:
            optimum = np.asarray(self.program_solution.primal)
            if optimum.shape == joined.shape and joined.ndim == 1:
                data["program"] = optimum
        return draw_limit(data)

    def __str__(self) -> str:
        return in_words(self)


def bare(model: Any) -> Any:
    """The user's own model, where it was wrapped."""
    return model.module if isinstance(model, OwnModel) else model


def in_words(limit: Limit) -> str:
    """A limit as `print` shows it: a sentence, or the outcomes of a batch."""
    if not is_concrete(limit.kind):
        return "a traced limit"
    if limit.kind.value.ndim == 0:
        if limit.outcome == "failed":
            solved = "" if limit.program_solution is None else f" (program: {limit.program_solution.result})"
            return f"Failed: {describe(limit.trajectory.result)}{solved}."
        return limit.details.sentence(limit)
    codes, counts = np.unique(np.asarray(limit.outcome), return_counts=True)
    parts = [f"{count} {Outcome(int(code)).name}" for code, count in zip(codes, counts, strict=True)]
    return f"{limit.kind.value.size} limits: {', '.join(parts)}"


def when_of(trajectory: Trajectory) -> str:
    """When the trajectory ended: log t, or its logarithm where log t itself overflows."""
    final = trajectory.final
    log_time = float(final.log_time)
    if np.isposinf(log_time):
        return f"log log t = {float(final.log_log_time):.3g}"
    return f"log t = {log_time:.3g}"


def gaps_of(limit: Any) -> str:
    """The three numbers of a limit direction, none of which stands for another."""
    own = float(limit.flow_certificate.duality_gap)
    bound = f"the flow's own gap {own:.1e}" if np.isfinite(own) else "no bound by the flow"
    return f"{excess_of(limit)}, {bound}"


def excess_of(limit: Any) -> str:
    """The excess over the program's optimum with the program's own gap, or why there is none."""
    solution, excess = limit.program_solution, float(limit.excess)
    if solution.result == ProgramResult.infeasible:
        return "the program has no solution"
    gap = f"the program's gap {float(solution.certificate.duality_gap):.1e}"
    if not np.isfinite(excess):
        return f"no excess over the optimum is known, {gap}"
    return f"excess over the optimum {excess:.1e}, {gap}"


def bound_of(limit: Any) -> str:
    """Whose lower bound certifies the flow's direction."""
    flows = int(limit.certificate.source) == CertificateSource.flow
    return "its own multipliers" if flows else "the program's dual"


def precision_note(limit: Any) -> str:
    """What to switch on, where single precision may be why nothing is decided."""
    if jnp.finfo(limit.excess.dtype).eps < 1e-12:
        return ""
    return " This is single precision: jax.config.update('jax_enable_x64', True) may decide it."


# What the arrays are called by kind of limit.
_NAMES = {
    LimitKind.direction: "direction",
    LimitKind.point: "limit point",
    LimitKind.none: "where the flow was left",
}

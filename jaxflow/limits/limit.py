"""The answer: where the flow goes, which program its limit solves, and how sure that is."""

import enum
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from jaxflow._core import Code, Outcome, as_html, is_concrete
from jaxflow.data import TokenData
from jaxflow.limits.head_state import HeadState
from jaxflow.margin import L1, Certificate, CertificateSource, Frobenius, Nuclear, Solution, finite_component, solve
from jaxflow.theory import Prediction
from jaxflow.trajectory import Trajectory, describe


class LimitKind(enum.IntEnum):
    """What the flow tends to: a direction (weights diverge), a point, or nothing that was recognised.

    **Example:**

    ```python
    assert limit.kind == jf.limits.LimitKind.direction
    ```
    """

    direction = 1
    point = 2
    none = 3


class Rate(eqx.Module):
    r"""How the weights' own gap $N(W)/(\mu\,\mathrm{opt})-1$ falls along the flow: like $(\log t)^{-\text{exponent}}$.

    - `exponent`: least squares on the save points; NaN where fewer than three are usable.
    - `predicted`: $1-\kappa$ with κ the largest dual value off the support of the certified solution (a singular
      value of $A^*\lambda$, or an entry for ℓ1); 1 for the Frobenius norm. A solution whose support is full
      has nothing off it: 1.
    - `log_times`, `gaps`: the points of the fit; NaN where the path had ended.

    **Example:**

    ```python
    limit.rate.exponent, limit.rate.predicted
    ```
    """

    exponent: Float[Array, ""]
    predicted: Float[Array, ""]
    log_times: Float[Array, " saves"]
    gaps: Float[Array, " saves"]


class Limit(eqx.Module):
    """The limit of gradient flow from one start, with the certificate of each number.

    - `kind`: `direction`, `point` or `none`; `outcome`: one `Outcome`, derived from the rest.
    - `selection`: selected tokens, Booleans `(n, [k,] T)`; `selection_status`: their status by Definition 2
      (where several are composed, of the slopes of the head at the mixture in place of scores).
    - `direction`: the flow's direction at margin one, $V/\\mu$ `(d, d)` with V its velocity or its weights, whichever
      has less norm at margin one; None unless `kind` is `direction`. The program's optimum is
      `program_solution.primal`. `flow_direction` is that array whatever the kind (at a point, the point).
    - `point`: combined weights at a finite limit, None unless `kind` is `point`.
    - `certificate`: of the flow's direction, by the better of two lower bounds, its own multipliers and the
      program's dual; `source` names it. `flow_certificate`: by the flow's own multipliers alone;
      `program_solution`: the program, solved independently of the flow.
    - `excess`: $N(V)/(\\mu\\cdot\\text{optimum})-1$, how far the flow's direction is above the program's certified
      optimum; +inf while attention has not settled, and where the program has no optimum.
    - `stationarity`: $\\|\\nabla L\\|/\\sum|p|$ at the end, which certifies a finite stationary point;
      of data that are a thousand times as large or small as one, in their own units (`jaxflow.limits.units`).
    - `head_state`: whether the head is smooth there, or an output sits on a kink or where the head is flat.
    - `prediction`: program, theorem, assumptions; `rate`; `trajectory`.

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
    selection: Bool[Array, "*n T"]
    selection_status: Code
    weights: Float[Array, "d d"]
    certificate: Certificate
    flow_certificate: Certificate
    excess: Float[Array, ""]
    program_solution: Solution
    stationarity: Float[Array, ""]
    head_state: Code
    prediction: Prediction
    rate: Rate
    trajectory: Trajectory

    @property
    def direction(self) -> Float[Array, "*b d d"] | None:
        """Combined weights at margin one, or None where the limit is no direction."""
        return self._weights_if(LimitKind.direction)

    @property
    def flow_direction(self) -> Float[Array, "*b d d"]:
        """`direction` whatever the kind: combined weights at margin one, at a point those of the point."""
        return self.weights

    @property
    def settled_outcome(self) -> Code:
        """`outcome`, but `selection_settled` for `undecided` where attention has settled on tokens whose program is
        solved: for a study that follows the flow no further. `selection_status` says what Definition 2 says of them.
        """
        settled = (self.outcome == Outcome.undecided) & jnp.isfinite(self.excess)
        return Code(jnp.where(settled, Outcome.selection_settled.value, self.outcome.value), Outcome)

    @property
    def point(self) -> Float[Array, "*b d d"] | None:
        """Combined weights at the limit point, or None where there is none."""
        return self._weights_if(LimitKind.point)

    def finite_component(self) -> Solution:
        r"""$W^{fin}$ of least norm that sets the proportions of attention inside the selected sets (eq. 7).

        Beside it the direction solves (Gen-SVM). Where one token is selected a query, it is zero. `result` is
        `infeasible` where no W has these proportions.
        """
        program: Any = self.prediction.program
        labels = jnp.ones(program.selection.shape[:-1], program.tokens.dtype)
        data = TokenData(program.tokens, program.queries, labels, program.visible)
        return solve(finite_component(data, self.selection, self.trajectory.final.model.attention(data)))

    def _weights_if(self, kind: LimitKind) -> Float[Array, "*b d d"] | None:
        single = is_concrete(self.kind) and self.kind.value.ndim == 0
        return None if single and int(self.kind) != kind else self.weights

    def plot(self) -> Any:
        """A Matplotlib figure: the weights' gap along the flow, and the direction (or the point) as a matrix."""
        return draw_limit_of(self, self.weights, "gap of the weights along the flow")

    def __str__(self) -> str:
        return in_words(self, _sentence)

    def _repr_html_(self) -> str:
        return as_html(str(self))


def in_words(limit: Any, sentence: Callable[[Any], str]) -> str:
    """A limit of any class as `print` shows it: a sentence, or the outcomes of a batch."""
    if not is_concrete(limit.kind):
        return "a traced limit"
    if limit.kind.value.ndim == 0:
        return sentence(limit)
    codes, counts = np.unique(np.asarray(limit.outcome), return_counts=True)
    parts = [f"{count} {Outcome(int(code)).name}" for code, count in zip(codes, counts, strict=True)]
    return f"{limit.kind.value.size} limits: {', '.join(parts)}"


def _sentence(limit: Limit) -> str:
    outcome = Outcome(int(limit.outcome))
    when = when_of(limit.trajectory)
    if outcome is Outcome.failed:
        return f"Failed: {describe(limit.trajectory.result)} (program: {limit.program_solution.result})."
    if outcome is Outcome.finite_stationary_point:
        return (
            f"Gradient flow ends at a finite stationary point of norm {float(jnp.linalg.norm(limit.weights)):.3g} "
            f"(|grad L| / sum |p| = {float(limit.stationarity):.1e}); no max-margin program describes it."
            f"{_head_note(limit)}"
        )
    tokens = _tokens(np.asarray(limit.selection))
    program = f"the {_norm_name(limit)} max-margin program"
    if outcome is Outcome.infeasible_program:
        return (
            f"Gradient flow stands still at {when} with attention on tokens {tokens}, but {program} of these tokens "
            f"has no solution.{_head_note(limit)}"
        )
    numbers = gaps_of(limit)
    if outcome is Outcome.prediction_contradicted:
        return (
            f"The prediction is contradicted: gradient flow selects tokens {tokens}, and at {when} its direction "
            f"stands still elsewhere than at the optimum of {program}: {numbers}. {limit.prediction.sentence()}"
            f"{_head_note(limit)}"
        )
    open_ = outcome is Outcome.ambiguous and limit.kind == LimitKind.none
    if outcome is Outcome.undecided or open_:
        return (
            f"{outcome.name.capitalize()} at {when}: attention is on tokens {tokens}; of its direction and {program}, "
            f"{numbers} ({describe(limit.trajectory.result)}).{precision_note(limit)}{_head_note(limit)}"
        )
    return (
        f"Gradient flow selects tokens {tokens} ({outcome.name.replace('_', ' ')}) and its direction solves {program}, "
        f"certified by {bound_of(limit)} at {when}: {numbers}. {limit.prediction.sentence()}{_head_note(limit)}"
    )


def when_of(trajectory: Trajectory) -> str:
    """When the trajectory ended: log t, or its logarithm where log t itself overflows."""
    final = trajectory.final
    log_time = float(final.log_time)
    if np.isposinf(log_time):
        return f"log log t = {float(final.log_log_time):.3g}"
    return f"log t = {log_time:.3g}"


def gaps_of(limit: Any) -> str:
    """The three numbers of a limit direction, none of which stands for another."""
    return (
        f"excess over the optimum {float(limit.excess):.1e}, the program's gap "
        f"{float(limit.program_solution.certificate.duality_gap):.1e}, the flow's own gap "
        f"{float(limit.flow_certificate.duality_gap):.1e}"
    )


def bound_of(limit: Any) -> str:
    """Whose lower bound certifies the flow's direction."""
    flows = int(limit.certificate.source) == CertificateSource.flow
    return "its own multipliers" if flows else "the program's dual"


def precision_note(limit: Any) -> str:
    """What to switch on, where single precision may be why nothing is decided."""
    if jnp.finfo(limit.excess.dtype).eps < 1e-12:
        return ""
    return " This is single precision: jax.config.update('jax_enable_x64', True) may decide it."


def _head_note(limit: Limit) -> str:
    notes = {
        HeadState.on_kink: " An output sits on a kink of the head: the flow slides, a smooth integrator stalls.",
        HeadState.flat: " The head is flat at some output, whose query moves no more.",
    }
    return notes.get(HeadState(int(limit.head_state)), "")


def _tokens(selection: np.ndarray) -> str:
    rows = selection.reshape(-1, selection.shape[-1])
    names = ["+".join(str(int(t)) for t in np.flatnonzero(row)) or "-" for row in rows]
    shown = names if len(names) <= 12 else [*names[:12], "..."]
    return "(" + ", ".join(shown) + ")"


def _norm_name(limit: Limit) -> str:
    norm: Any = limit.prediction.program.norm
    names = {Frobenius: "Frobenius-norm", Nuclear: "nuclear-norm", L1: "l1-norm"}
    return names.get(type(norm), type(norm).__name__)


# What the arrays are called by kind of limit.
_NAMES = {
    LimitKind.direction: "direction",
    LimitKind.point: "limit point",
    LimitKind.none: "where the flow was left",
}


def draw_limit_of(limit: Any, values: Any, gap_label: str, program: Any = None) -> Any:
    """The way to the limit, and the limit itself (see `jaxflow.plots.draw_limit`).

    **Arguments:** `values`: a vector, a matrix, or a pytree whose arrays are joined; `program`: the optimum of the
    predicted program, of the shape of a vector.

    **Raises:** `ValueError` for a batch: plot its members.
    """
    from jaxflow.plots import draw_limit

    if not is_concrete(limit.kind) or limit.kind.value.ndim > 0:
        raise ValueError("plot: one limit is wanted; of a batch plot its members")
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(values) if hasattr(leaf, "shape")]
    joined = leaves[0] if len(leaves) == 1 else np.concatenate([leaf.ravel() for leaf in leaves])
    data = {
        "log_times": np.asarray(limit.rate.log_times),
        "gaps": np.asarray(limit.rate.gaps),
        "gap_label": gap_label,
        "limit": joined,
        "limit_label": _NAMES[LimitKind(int(limit.kind))],
        "title": Outcome(int(limit.outcome)).name.replace("_", " "),
    }
    if program is not None and np.shape(program) == joined.shape and joined.ndim == 1:
        data["program"] = np.asarray(program)
    return draw_limit(data)

"""The answer: where the flow goes, which program its limit solves, and how sure that is."""

import enum
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from jaxflow._core import Code, Outcome, is_concrete
from jaxflow.data import TokenData
from jaxflow.limits.head_state import HeadState
from jaxflow.margin import L1, Certificate, CertificateSource, Frobenius, Nuclear, Solution, finite_component, solve
from jaxflow.theory import Prediction
from jaxflow.trajectory import Trajectory, describe


class LimitKind(enum.IntEnum):
    """What the flow tends to: a direction (weights diverge), a point, or nothing that was recognised."""

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
    """

    exponent: Float[Array, ""]
    predicted: Float[Array, ""]
    log_times: Float[Array, " saves"]
    gaps: Float[Array, " saves"]


class Limit(eqx.Module):
    """The limit of gradient flow from one start; every number beside who vouches for it.

    - `kind`: `direction`, `point` or `none`; `outcome`: one `Outcome`, derived from the rest.
    - `selection`: selected tokens, Booleans `(n, [k,] T)`; `selection_status`: what Definition 2 says of them
      (where several are composed, of the slopes of the head at the mixture in place of scores).
    - `direction`: combined weights at margin one, $W/\\mu$ `(d, d)`, from the tightest certificate; None unless
      `kind` is `direction`. `flow_direction`: the same from the flow alone.
    - `point`: combined weights at a finite limit, None unless `kind` is `point`.
    - `certificate`: the tightest one, `source` says whose; `flow_certificate`: from the flow's own multipliers
      and velocity; `program_solution`: the program solved by a method that knows nothing of the flow.
    - `stationarity`: $\\|\\nabla L\\|/\\sum|p|$ at the end, which certifies a finite stationary point.
    - `head_state`: whether the head is smooth there, or an output sits on a kink or where the head is flat.
    - `prediction`: program, theorem, assumptions; `rate`; `trajectory`.

    In a batch (under `vmap`) `direction` and `point` are arrays for every member; read `kind` first.
    """

    kind: Code
    outcome: Code
    selection: Bool[Array, "*n T"]
    selection_status: Code
    weights: Float[Array, "d d"]
    flow_direction: Float[Array, "d d"]
    certificate: Certificate
    flow_certificate: Certificate
    program_solution: Solution
    stationarity: Float[Array, ""]
    head_state: Code
    prediction: Prediction
    rate: Rate
    trajectory: Trajectory

    @property
    def direction(self) -> Float[Array, "d d"] | None:
        """Combined weights at margin one, or None where the limit is no direction."""
        return self._weights_if(LimitKind.direction)

    @property
    def point(self) -> Float[Array, "d d"] | None:
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

    def _weights_if(self, kind: LimitKind) -> Float[Array, "d d"] | None:
        single = is_concrete(self.kind) and self.kind.value.ndim == 0
        return None if single and int(self.kind) != kind else self.weights

    def __str__(self) -> str:
        if not is_concrete(self.kind):
            return "a traced limit"
        if self.kind.value.ndim > 0:
            codes, counts = np.unique(np.asarray(self.outcome), return_counts=True)
            parts = [f"{count} {Outcome(int(code)).name}" for code, count in zip(codes, counts, strict=True)]
            return f"{self.kind.value.size} limits: {', '.join(parts)}"
        return _sentence(self)


def _sentence(limit: Limit) -> str:
    outcome = Outcome(int(limit.outcome))
    log_time = float(limit.trajectory.final.log_time)
    if outcome is Outcome.failed:
        return f"Failed: {describe(limit.trajectory.result)} (program: {limit.program_solution.result})."
    if outcome is Outcome.finite_stationary_point:
        return (
            f"Gradient flow ends at a finite stationary point of norm {float(jnp.linalg.norm(limit.weights)):.3g} "
            f"(|grad L| / sum |p| = {float(limit.stationarity):.1e}); no max-margin program describes it."
            f"{_head_note(limit)}"
        )
    tokens = _tokens(np.asarray(limit.selection))
    open_ = outcome is Outcome.ambiguous and limit.kind == LimitKind.none
    if outcome is Outcome.undecided or open_:
        return (
            f"{outcome.name.capitalize()} at log t = {log_time:.3g}: attention is on tokens {tokens}, the best "
            f"certificate has duality gap {float(limit.certificate.duality_gap):.1e} "
            f"({describe(limit.trajectory.result)}).{_head_note(limit)}"
        )
    who = "the flow itself" if limit.certificate.source == CertificateSource.flow else "the program's dual"
    flow_gap = float(limit.flow_certificate.duality_gap)
    beside = "" if limit.certificate.source == CertificateSource.flow else f"; the flow's own gap is {flow_gap:.1e}"
    return (
        f"Gradient flow selects tokens {tokens} ({outcome.name.replace('_', ' ')}) and its direction solves the "
        f"{_norm_name(limit)} max-margin program with duality gap {float(limit.certificate.duality_gap):.1e}, "
        f"certified by {who} at log t = {log_time:.3g}{beside}. {limit.prediction.theorem}."
        f"{_head_note(limit)}"
    )


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

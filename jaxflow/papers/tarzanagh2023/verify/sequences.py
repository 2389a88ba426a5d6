"""§7 and App. D: sequence-to-sequence and causal attention, in W and in (K, Q), with a head for every position."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxflow._core import Outcome, SelectionStatus
from jaxflow.data import TokenData, random_sequences
from jaxflow.limits import find_limit
from jaxflow.losses import Logistic
from jaxflow.margin import attention_svm, solve
from jaxflow.models import CombinedAttention, FactoredAttention, PositionHeads
from jaxflow.papers.checks import AbstractCheck, Row, register_check
from jaxflow.papers.registry import Data
from jaxflow.papers.tarzanagh2023.verify.follow import CERTIFIED, misalignment
from jaxflow.report import Evidence
from jaxflow.risk import EmpiricalRisk

N, T, D = 2, 3, 6
# Instances of the cells in W, and of the one in (K, Q), whose paths are longer.
TRIALS = {"quick": 32, "paper": 256, "large": 4096}
FACTORED = {"quick": 4, "paper": 64, "large": 512}
# Instances a call: a wider batch waits longer for its slowest member.
WIDTH = 16
# (name, causal, a head for each position, factored); every cell is self-attention, Z = X.
CELLS = (
    ("every output sees every token, one head", False, False, False),
    ("causal, one head", True, False, False),
    ("causal, a head for each position", True, True, False),
    ("causal, a head for each position", True, True, True),
)
# The flow's certified directions of W agree with the program's solution to about 1e-10.
ALIGNED = 1e-8
# A gap of g leaves 1 − corr up to g; the flow of (K, Q) closes its gap like a power of log t only.
FACTORED_GAP = 1e-3
# Programs whose optima differ by more than this, relatively, are different programs.
DIFFERENT = 1e-6


@register_check("tarzanagh2023", "sequences", statements="§7 and App. D, sequence-to-sequence and causal attention")
class Sequences(AbstractCheck):
    """Limits of the flow of the sequence risk against (11), its causal form and (SAtt-SVM) of the selected tokens."""

    def compute(self, scale: str, key: Any, say: Callable[[str], None]) -> Data:
        data: Data = {}
        for number, (name, causal, heads, factored) in enumerate(CELLS):
            trials = (FACTORED if factored else TRIALS)[scale]
            say(f"§7: {trials} instances, {name}, trained {'(K, Q)' if factored else 'W'}")
            keys = jax.random.split(jax.random.fold_in(key, number), trials)
            parts = []
            for begin in range(0, trials, WIDTH):
                index = np.minimum(np.arange(begin, begin + min(WIDTH, trials)), trials - 1)
                found = _limits(factored, keys[index], jnp.asarray(causal), jnp.asarray(heads))
                kept = min(WIDTH, trials - begin)
                parts.append({k: np.asarray(v)[:kept] for k, v in found.items()})
            data |= {f"cell{number}_{k}": np.concatenate([part[k] for part in parts]) for k in parts[0]}
        return data

    def rows(self, data: Data) -> list[Row]:
        return [_row(data, number) for number in range(len(CELLS))]


@partial(jax.jit, static_argnums=0)
def _limits(factored: bool, keys: Array, causal: Array, heads: Array) -> dict[str, Array]:
    return jax.vmap(lambda key: _one(factored, key, causal, heads))(keys)


def _one(factored: bool, key: Array, causal: Array, heads: Array) -> dict[str, Any]:
    r"""One instance. Mask and heads are values, so that one compiled program serves all cells:

    - `outcome`, `status`: how the limit ended, and what Definition 4 says of the selection;
    - `flow_gap`, `certificate_gap`: duality gaps, by the flow alone and of the tightest certificate;
    - `misaligned`: 1 − corr of the flow's direction with the solution of the program of its selection (W), or how
      far the flow's norm at margin one is above the optimum ((K, Q), whose solution need not be unique);
    - `unmasked`: the optimum of the program with future tokens as constraints too, over that without; +inf where
      infeasible;
    - `first`: whether every first output is on the first token.
    """
    key_data, key_model = jax.random.split(key)
    drawn, v = random_sequences(key_data, N, T, D, causal=True, position_heads=True)
    data = TokenData(drawn.tokens, drawn.queries, drawn.labels, drawn.visible | ~causal)
    v = jnp.where(heads, v, v[:1])
    model = (FactoredAttention if factored else CombinedAttention).init(key_model, data, PositionHeads(v))
    limit = find_limit(EmpiricalRisk(data, Logistic()), model, throw=False)
    norm = "nuclear" if factored else "frobenius"
    everything = TokenData(data.tokens, data.queries, data.labels)
    whole = solve(attention_svm(everything, limit.selection, norm)).certificate.primal_value
    optimum = limit.program_solution.certificate.primal_value
    excess = limit.flow_certificate.primal_value / optimum - 1.0
    return {
        "outcome": limit.outcome.value,
        "status": limit.selection_status.value,
        "flow_gap": limit.flow_certificate.duality_gap,
        "certificate_gap": limit.certificate.duality_gap,
        "misaligned": excess if factored else misalignment(limit.flow_direction, limit.program_solution.primal),
        "unmasked": whole / optimum,
        "first": jnp.all(limit.selection[:, 0, 0]),
        "log_time": limit.trajectory.final.log_time,
    }


LOCAL = (SelectionStatus.global_.value, SelectionStatus.local.value)


def _row(data: Data, number: int) -> Row:
    name, causal, _, factored = CELLS[number]
    cell = {k.removeprefix(f"cell{number}_"): x for k, x in data.items() if k.startswith(f"cell{number}_")}
    total = len(cell["outcome"])
    certified = cell["flow_gap"] <= (FACTORED_GAP if factored else CERTIFIED)
    local = np.isin(cell["status"], LOCAL)
    aligned = cell["misaligned"] <= (FACTORED_GAP if factored else ALIGNED)
    right = certified & local & aligned
    wrong = certified & ~right
    optimal = right & (cell["status"] == SelectionStatus.global_.value)
    stationary = (cell["outcome"] == Outcome.finite_stationary_point.value) & ~certified
    inside = total - int(stationary.sum())
    open_ = inside - int(right.sum()) - int(wrong.sum())
    measured = (
        f"{int(right.sum())} of {inside} solve the program of a locally-optimal selection (Definition 4), "
        f"{int(optimal.sum())} of the globally-optimal one; {int(wrong.sum())} certify another direction, {open_} are "
        f"undecided; of all {total}, {int(stationary.sum())} end at a stationary point"
    )
    if causal:
        different = right & (cell["unmasked"] > 1.0 + DIFFERENT)
        measured += (
            f"; constraints on future tokens would change the program of {int(different.sum())}; the first output "
            f"is on the first token in {int(cell['first'].sum())} of {total}"
        )
    # The gap of (K, Q) closes like a power of log t, of which no rate is measured here.
    evidence = Evidence(
        inside,
        int(wrong.sum()),
        open_,
        limit=factored,
        checked_by="the flow's own dual, which certifies another direction",
    )
    program = "(SAtt-SVM) in the nuclear norm" if factored else "(SAtt-SVM) in the Frobenius norm"
    how = "certified to a gap of 1e-3" if factored else "certified to a gap of 1e-8"
    return Row(
        "§7, App. D",
        f"{name}, n = {N}, K = T = {T}, d = {D}: the flow of {'(K, Q)' if factored else 'W'}, {how} by its own "
        f"multipliers, solves {program} of the tokens it selects",
        measured,
        inside,
        total - inside,
        float(cell["misaligned"][certified].max()) if certified.any() else float("inf"),
        "norm at margin one over the optimum − 1" if factored else "1 − corr with the program's solution",
        evidence,
        {"right": int(right.sum()), "wrong": int(wrong.sum()), "undecided": open_, "total": total},
    )

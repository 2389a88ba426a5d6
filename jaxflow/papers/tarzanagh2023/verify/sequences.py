"""§7 and App. D: sequence-to-sequence and causal attention, in W and in (K, Q), with a head for every position."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxflow._core import Outcome, SelectionStatus
from jaxflow.data import TokenData, random_sequences
from jaxflow.limits import find_limit
from jaxflow.losses import Logistic
from jaxflow.models import CombinedAttention, FactoredAttention, PositionHeads
from jaxflow.papers.dataset import Dataset, Draw, Say, Sweep, checksum_key
from jaxflow.papers.independent import (
    attention,
    descent_direction,
    flow_to,
    least_norm,
    margin_rows,
    misaligned,
    tokens_of,
)
from jaxflow.papers.registry import register
from jaxflow.papers.statement import Again, Mask, Statement
from jaxflow.papers.table import Table, joined, stacked
from jaxflow.papers.tarzanagh2023.verify.follow import CERTIFIED, FAR_OUT, FLOWS, misalignment
from jaxflow.risk import EmpiricalRisk

N, T, D = 2, 3, 6
# Instances of the cells in W, and of the one in (K, Q), whose paths are longer: whole calls, or less than one.
TRIALS = {"quick": 32, "paper": 256, "large": 4096}
FACTORED = {"quick": 4, "paper": 64, "large": 512}
# Instances a call: a wider batch waits longer for its slowest member.
WIDTH = 16
# The flow's certified directions of W agree with the program's solution to about 1e-10.
ALIGNED = 1e-8
# What SciPy's flows leave at log t = 50.
LEFT = 1e-3


class Cell(NamedTuple):
    """Every cell is self-attention, Z = X: with a causal mask, with a head for each position, trained as (K, Q), with a
    random mask."""

    name: str
    causal: bool = False
    heads: bool = False
    factored: bool = False
    masked: bool = False


CELLS = (
    Cell("every output sees every token, one head"),
    Cell("causal, one head", causal=True),
    Cell("causal, a head for each position", causal=True, heads=True),
    Cell("causal, a head for each position", causal=True, heads=True, factored=True),
    Cell("a random mask, a head for each position", heads=True, masked=True),
)
COMBINED = [number for number, cell in enumerate(CELLS) if not cell.factored]


def cell_of(numbers: Table, number: int) -> Table:
    """Of one of `CELLS`."""
    return numbers.factored.at(0) if CELLS[number].factored else numbers.combined.at(COMBINED.index(number))


def _compute(factored: bool, scale: str, key: Any, say: Say) -> Table:
    trials, found = (FACTORED if factored else TRIALS)[scale], []
    for number, cell in enumerate(CELLS):
        if cell.factored == factored:
            say(f"§7: {trials} instances, {cell.name}, trained {'(K, Q)' if factored else 'W'}")
            keys = jax.random.split(jax.random.fold_in(key, number), trials).reshape(-1, min(WIDTH, trials))
            calls = [_limits(factored, some, *_kind(cell)) for some in keys]
            found.append(joined(calls))
    return stacked(found)


def _kind(cell: Cell) -> tuple[Array, Array, Array]:
    # Mask and heads are values, so that one compiled program serves all cells.
    return jnp.asarray(cell.causal), jnp.asarray(cell.heads), jnp.asarray(cell.masked)


@partial(jax.jit, static_argnums=0)
def _limits(factored: bool, keys: Array, *kind: Array) -> Table:
    return jax.vmap(lambda key: _one(factored, key, *kind))(keys)


def _draw(factored: bool, key: Array, causal: Array, heads: Array, masked: Array) -> tuple[TokenData, Any, Array]:
    """Data, model, and the heads `(T, d)`. A random mask hides a token from an output with probability one third."""
    key_data, key_model = jax.random.split(key)
    drawn, v = random_sequences(key_data, N, T, D, causal=True, position_heads=True)
    seen = jax.random.bernoulli(jax.random.fold_in(key, 2), 2.0 / 3.0, (N, T, T)) | jnp.eye(T, dtype=bool)[None]
    visible = jnp.where(masked, seen, drawn.visible | ~causal)
    data = TokenData(drawn.tokens, drawn.queries, drawn.labels, visible)
    v = jnp.where(heads, v, v[:1])
    return data, (FactoredAttention if factored else CombinedAttention).init(key_model, data, PositionHeads(v)), v


def _one(factored: bool, key: Array, *kind: Array) -> Table:
    """The limit of the flow of the sequence risk of one instance.

    - `outcome` (`Outcome`): how the limit ended; `status` (`SelectionStatus`): what Definition 4 says of the selection.
    - `flow_gap`, `certificate_gap`: duality gaps, by the flow alone and of the tightest certificate.
    - `misaligned`: 1 − corr of the flow's direction with the solution of the program of its selection (W), or how
      far the flow's norm at margin one is above the optimum ((K, Q), whose solution need not be unique).
    - `log_time`.
    """
    data, model, _ = _draw(factored, key, *kind)
    limit = find_limit(EmpiricalRisk(data, Logistic()), model, throw=False)
    optimum = limit.program_solution.certificate.primal_value
    excess = limit.flow_certificate.primal_value / optimum - 1.0
    return Table(
        outcome=limit.outcome.value,
        status=limit.selection_status.value,
        flow_gap=limit.flow_certificate.duality_gap,
        certificate_gap=limit.certificate.duality_gap,
        misaligned=excess if factored else misalignment(limit.flow_direction, limit.program_solution.primal),
        log_time=limit.trajectory.final.log_time,
    )


KEY = checksum_key("sequences")
SEQUENCES = Dataset(
    "tarzanagh2023",
    "sequences",
    {
        "combined": Sweep(partial(_compute, False), KEY),
        "factored": Sweep(partial(_compute, True), KEY),
    },
    where=f"{__name__}:SEQUENCES",
)


def solves(number: int) -> Statement[Table]:
    """Of one of `CELLS`: against (11), its causal form and (SAtt-SVM) of the selected tokens."""
    name, factored = CELLS[number].name, CELLS[number].factored
    bound = CERTIFIED if factored else ALIGNED

    def certified(numbers: Table) -> Mask:
        # The dual of the flow of (K, Q) closes its gap like a power of log t only: that of the program may be better.
        found = cell_of(numbers, number)
        return (found.certificate_gap if factored else found.flow_gap) <= CERTIFIED

    def inside(numbers: Table) -> Mask:
        return (cell_of(numbers, number).outcome != Outcome.finite_stationary_point.value) | certified(numbers)

    def residual(numbers: Table) -> np.ndarray:
        found = cell_of(numbers, number)
        local = np.isin(found.status, (SelectionStatus.global_.value, SelectionStatus.local.value))
        # A limit of a selection that is not locally optimal is none of these, however near it is to its program.
        wrong = found.status == SelectionStatus.not_local.value
        far = np.where(wrong, np.inf, np.where(local, found.misaligned, np.nan))
        return np.where(certified(numbers), far, np.nan)

    def again(numbers: Table, draw: Draw, at: tuple[int, ...]) -> float:
        """1 − corr of the motion over the second half with the program of what is selected."""
        keys = jax.random.split(jax.random.fold_in(draw.key("combined"), number), TRIALS[draw.scale])
        data, model, v = _draw(False, keys[at[0]], *_kind(CELLS[number]))
        tokens = tokens_of(data, v)
        middle, end = flow_to(lambda W: descent_direction(tokens, W), np.asarray(model.W), 0.5 * FAR_OUT, FAR_OUT)
        aim = least_norm(margin_rows(tokens, np.argmax(attention(tokens, end), axis=1)))
        apart = np.nan if aim is None or np.isnan(end).any() else misaligned(end - middle, aim)
        return 0.0 if apart <= LEFT else apart

    norm = "nuclear" if factored else "Frobenius"
    return Statement(
        source="§7, App. D",
        says=f"{name}, n = {N}, K = T = {T}, d = {D}: the flow of {'(K, Q)' if factored else 'W'}, certified to a gap "
        f"of {CERTIFIED:g}, solves (SAtt-SVM) in the {norm} norm of the tokens it selects",
        inside=inside,
        residual=residual,
        bound=bound,
        unit="norm at margin one over the optimum − 1" if factored else "1 − corr with the program's solution",
        certified="the multipliers of the flow or of the program against the flow's own norm at margin one",
        again=None if factored else Again(FLOWS, again, LEFT),
    )


register(
    SEQUENCES,
    title="§7 and App. D, sequence-to-sequence and causal attention",
    statements=[solves(number) for number in range(len(CELLS))],
)

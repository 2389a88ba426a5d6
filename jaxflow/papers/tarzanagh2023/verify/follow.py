"""Limits of the flow of W for many instances with one compiled program."""

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxflow._core import Outcome
from jaxflow.data import TokenData
from jaxflow.limits import find_limit, flow_certificate
from jaxflow.losses import Logistic
from jaxflow.margin import attention_svm, solve
from jaxflow.models import CombinedAttention
from jaxflow.papers.experiment import Again, Mask, Statement, Table, joined
from jaxflow.papers.independent import limit_apart, tokens_of
from jaxflow.papers.tarzanagh2023.programs import misalignment, solved
from jaxflow.risk import EmpiricalRisk

# Instances a call: a wider batch waits longer for its slowest member.
WIDTH = 32
# The flow's own certificate counts from here.
CERTIFIED = 1e-8
# The flow's certified directions agree with the program's solution to about 1e-10.
ALIGNED = 1e-8
# A token that never regains more attention than this at log t in the thousands is not selected.
UNSELECTED = 1e-6

# What computes limits again: a flow, to this log t, and the programs of the tokens that it selects there, whose
# solutions are known to 1e-8. Tokens of nearly equal scores part late: of 95 limits of Theorems 4 and 5 that lose an
# optimal token three have others at log t = 50, one at 200, none at 400.
FLOWS, FAR_OUT, PROGRAMS = "LSODA and NNLS of SciPy", 400.0, 1e-6


def has_program(ends: Table) -> Mask:
    """The target's program has a solution."""
    return solved(ends.feasible)


def certified(ends: Table) -> Mask:
    """The flow certifies its own limit."""
    return ends.flow_gap <= CERTIFIED


def reached(ends: Table) -> Mask:
    """Certified for the target's tokens, in the direction of the target's program."""
    return ends.selected & (ends.misaligned <= ALIGNED) & certified(ends)


def astray(ends: Table) -> Mask:
    """Certified for other tokens."""
    return ~ends.selected & certified(ends)


def distance(ends: Table, wrong: Mask, right: Mask | None = None) -> np.ndarray:
    """1 − corr with $W^{mm}$ where the limit was reached, or is known to be `wrong`; NaN elsewhere."""
    return np.where((reached(ends) if right is None else right) | wrong, ends.misaligned, np.nan)


def follow(instances: Table) -> Table:
    r"""Where the flows of a batch of instances of shape `SHAPE` end, one axis.

    - `outcome`: how the limit ended (`Outcome`).
    - `feasible`: result of (Att-SVM) of the target (`ProgramResult`).
    - `selected`: whether exactly the target tokens are selected.
    - `target_attention`: the least attention that a target token has at the end.
    - `misaligned`: 1 − corr of the flow's direction with $W^{mm}$ of the target.
    - `flow_gap`: the duality gap that the flow certifies of itself, for the tokens it selected.
    - `lost_gap`: the same gap for the program without the sequences whose target token has lost its attention,
      +inf where none has, or where the direction does not keep it lost (see `_without_lost`). It is about
      data of Assumption B.2, whose other tokens exert no force on each other.

    Where tokens are nearly alike $\|W^{mm}\|$ is in the hundreds, and the steps of one call end before attention has
    settled. The flow has no memory: from that end it goes on, once, and what this certifies counts.
    """
    found = _batches(instances)
    settled = (found.flow_gap <= CERTIFIED) | (found.lost_gap <= CERTIFIED)
    late = (found.outcome == Outcome.undecided.value) & ~settled
    if late.any():
        rest = jax.tree.map(lambda x: x[late], instances)
        more = _batches(rest.replace(start=jnp.asarray(found.weights[late])))
        # A flow that is followed too far has nothing left to say; what was known of it stays.
        kept = more.flow_gap <= CERTIFIED
        for name, values in more.at(kept).named.items():
            found.named[name][np.flatnonzero(late)[kept]] = values
    return Table({name: column for name, column in found.named.items() if name != "weights"})


def follow_all(parts: Sequence[Table]) -> Table:
    """`follow` for several batches of one size in one queue, so that no call goes half empty: `(parts, b)`."""
    ends = follow(jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *parts))
    return ends.split(len(parts), -1)


def _batches(instances: Table) -> Table:
    """Blocks of `WIDTH`, one after another, the last filled up with copies."""
    total = instances.head.shape[0]
    parts = []
    for begin in range(0, total, WIDTH):
        index = np.minimum(np.arange(begin, begin + WIDTH), total - 1)
        found = _block(jax.tree.map(lambda x, index=index: x[index], instances))
        kept = min(WIDTH, total - begin)
        parts.append(found.at(slice(kept)))
    return joined(parts)


@eqx.filter_jit
def _block(instances: Table) -> Table:
    return jax.vmap(_one)(instances)


def _one(given: Table) -> Table:
    model = CombinedAttention(given.start, given.head)
    limit = find_limit(EmpiricalRisk(given.data, Logistic()), model, throw=False)
    aim = solve(attention_svm(given.data, given.target, "frobenius"))
    final = limit.trajectory.final
    attention = final.model.attention(given.data)
    return Table(
        outcome=limit.outcome.value,
        feasible=aim.result.value,
        selected=jnp.all(limit.selection == given.target),
        target_attention=jnp.min(jnp.where(given.target, attention, jnp.inf)),
        misaligned=misalignment(limit.flow_direction, aim.primal),
        flow_gap=limit.flow_certificate.duality_gap,
        weights=final.model.combined_weights(),
        lost_gap=_without_lost(given, final, attention),
    )


def _without_lost(given: Table, final: Any, attention: Array) -> Array:
    r"""The flow's gap for (Att-SVM) of the target tokens of those sequences alone that select them.

    Where all other tokens have the same score, a sequence that has lost its target has no constraint: its
    multipliers are those of the target token, which are the smaller the further that is behind. The direction
    stays if there the target is behind the best of the others by more than the least margin of the rest.
    """
    visible = given.data.visible
    lost = jnp.sum(jnp.where(given.target, attention, 0.0), axis=-1, keepdims=True) < UNSELECTED
    rest = TokenData(given.data.tokens, given.data.queries, given.data.labels, visible & (given.target | ~lost))
    program = attention_svm(rest, given.target, "frobenius")
    certificate, direction = flow_certificate(program, final.model, final.velocity, final.multipliers)
    logits = CombinedAttention(direction, given.head).logits(given.data)
    target = jnp.sum(jnp.where(given.target, logits, 0.0), axis=-1)
    ahead = jnp.max(jnp.where(visible & ~given.target, logits, -jnp.inf), axis=-1) - target
    # `direction` has the least margin one. An added sequence of one token loses nothing.
    stays = jnp.any(lost) & jnp.all(jnp.where(lost[:, 0], ahead > 1.0, True))
    return jnp.where(stays, certificate.duality_gap, jnp.inf)


def converges(
    source: str,
    says: str,
    ends: Callable[[Table], Table],
    inside: Callable[[Table], Mask] | None = None,
    again: Again[Table] | None = None,
) -> Statement[Table]:
    """That flows converge to $W^{mm}$ of their targets, by default where its program has a solution."""
    return Statement(
        source=source,
        says=says,
        inside=inside or (lambda n: has_program(ends(n))),
        residual=lambda n: distance(ends(n), astray(ends(n))),
        bound=(ALIGNED, "1 − corr with W^mm"),
        again=again,
    )


def limit_again(batch: Table) -> float:
    """1 − corr of the limit of the first instance with W^mm of the target, by NumPy and SciPy."""
    given = jax.tree.map(lambda x: x[0], batch)
    target = np.argmax(np.asarray(given.target), axis=1)
    tokens = tokens_of(given.data, given.head)
    # Without the zeros of `padded`.
    used = np.any(tokens.queries != 0.0, axis=0) | np.any(tokens.tokens != 0.0, axis=(0, 1))
    tokens = tokens._replace(
        tokens=tokens.tokens[..., used], queries=tokens.queries[:, used], heads=tokens.heads[:, used]
    )
    return limit_apart(tokens, np.asarray(given.start)[np.ix_(used, used)], target, FAR_OUT)

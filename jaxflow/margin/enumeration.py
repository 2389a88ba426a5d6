r"""All token choices of one instance, and with them every locally-optimal direction."""

import enum
import itertools
import math
from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt8

from jaxflow._core import AbstractPrinted, Code, SelectionStatus, checked, is_concrete, require
from jaxflow.data import TokenData, optimal_tokens, require_untied
from jaxflow.margin.attention import AttentionProgram, attention_svm
from jaxflow.margin.certificate import ProgramResult, Solution
from jaxflow.margin.local_optimality import decide, support_tokens
from jaxflow.margin.norms import AbstractNorm, as_norm
from jaxflow.margin.solve import solve
from jaxflow.models import token_scores

# More choices than this take hours, which is probably not intended. (n = T = 8 has 1.7e7.)
MAX_SELECTIONS = 20_000_000


class AssumptionStatus(enum.IntEnum):
    """Whether an assumption on the data holds. `undecided`: it depends on an ambiguous or unsolved program."""

    holds = 1
    violated = 2
    undecided = 3


class Enumeration(AbstractPrinted):
    r"""Every choice $\alpha$ of one token per query. N choices, q = n or n·k queries.

    - `selections` `(N, q)`: token indices; `result`, `status` `(N,)`: how the program and Definition 2 ended.
    - `norm` `(N,)`: the optimum of the program, +inf where infeasible. `gap` `(N,)`: its certified gap.
    - `assumption_D`: for every feasible $\alpha\ne$ opt some query with $\alpha_i\ne\mathrm{opt}_i$ has
      $\mathrm{opt}_i$ among its support indices. (Infeasible choices have no support indices and are
      skipped.)
    - `all_optimal_support`: the stronger condition of §5.2: for every feasible $\alpha\ne$ opt *every* query with
      $\alpha_i\ne\mathrm{opt}_i$ has $\mathrm{opt}_i$ among its support indices.
    - `assumption_B1`: all tokens are support vectors of the optimal choice (`violated` if it is infeasible).
    """

    selections: Int[Array, "N q"]
    result: Code
    status: Code
    norm: Float[Array, " N"]
    gap: Float[Array, " N"]
    assumption_D: Code
    all_optimal_support: Code
    assumption_B1: Code
    program: AttentionProgram

    @property
    def locally_optimal(self) -> Bool[Array, " N"]:
        """Which choices are locally optimal, the globally optimal one included."""
        local, best = SelectionStatus.local.value, SelectionStatus.global_.value
        return (self.status.value == local) | (self.status.value == best)

    def solutions(self, which: Any = None, chunk: int = 256) -> tuple[Array, Solution]:
        """Choices (token indices, `(M, q)`) and their solved programs; by default the locally optimal
        ones."""
        mask = np.asarray(self.locally_optimal if which is None else which)
        chosen = np.asarray(self.selections)[np.flatnonzero(mask)]
        parts = [_solve_chunk(self.program, jnp.asarray(part)) for part, _ in _padded(chosen, chunk)]
        if not parts:
            parts = [_solve_chunk(self.program, jnp.zeros((1, chosen.shape[1]), int))]
        joined = jax.tree.map(lambda *leaves: jnp.concatenate(leaves)[: len(chosen)], *parts)
        return jnp.asarray(chosen), joined


def _choices(options: list[np.ndarray], chunk: int) -> Iterator[tuple[np.ndarray, int]]:
    """All combinations in lexicographic order, in chunks of constant length, with how many of each are
    real."""
    combinations = itertools.product(*options)
    while rows := list(itertools.islice(combinations, chunk)):
        yield from _padded(np.array(rows, np.int32), chunk)


def _padded(rows: np.ndarray, chunk: int) -> Iterator[tuple[np.ndarray, int]]:
    for start in range(0, len(rows), chunk):
        part = rows[start : start + chunk]
        yield np.concatenate([part, np.repeat(part[-1:], chunk - len(part), axis=0)]), len(part)


def _select(program: AttentionProgram, choice: Int[Array, " q"]) -> AttentionProgram:
    T = program.selection.shape[-1]
    mask = jax.nn.one_hot(choice, T, dtype=bool).reshape(program.selection.shape)
    return eqx.tree_at(lambda p: p.selection, program, mask)


@eqx.filter_jit
def _solve_chunk(program: AttentionProgram, choices: Int[Array, "c q"]) -> Solution:
    return jax.vmap(lambda choice: solve(_select(program, choice)))(choices)


class _Decided(eqx.Module):
    """How a choice ended, and for three conditions `(3,)` whether each is met and whether it may be: that some query,
    or every one that selects another token, has the optimal one as support, and that all tokens are support."""

    result: UInt8[Array, "..."]
    status: UInt8[Array, "..."]
    value: Float[Array, "..."]
    gap: Float[Array, "..."]
    meets: Bool[Array, "... 3"]
    may_meet: Bool[Array, "... 3"]


@eqx.filter_jit
def _decide_chunk(program: AttentionProgram, scores: Float[Array, "n ..."], choices: Int[Array, "c q"]) -> _Decided:
    best = optimal_tokens(scores, program.visible)

    def one(choice: Int[Array, " q"]) -> _Decided:
        selected = _select(program, choice)
        solution = solve(selected)
        clear, unclear, _ = support_tokens(selected, solution)
        there = jnp.any(selected.selection & best, axis=-1)

        def met(support: Array) -> Array:
            # opt_i is a support index of a query that does not select it (selected tokens are never support).
            at_best = jnp.any(support & best, axis=-1)
            return jnp.stack([jnp.any(at_best), jnp.all(there | at_best), jnp.all(support | ~selected.active)])

        certificate, status = solution.certificate, decide(selected, scores, solution).status
        bounds = certificate.primal_value, certificate.duality_gap
        return _Decided(solution.result.value, status.value, *bounds, met(clear), met(clear | unclear))

    return jax.vmap(one)(choices)


@checked(least={"chunk": 1})
def enumerate_selections(
    data: TokenData, head: Any, norm: str | AbstractNorm = "frobenius", *, chunk: int = 256
) -> Enumeration:
    r"""Solves the program of every choice of visible tokens and decides Definition 2 for each.

    **Arguments:**

    - `data`, `head`: one instance and its head.
    - `norm`: as for `attention_svm`.
    - `chunk`: choices solved at once; it bounds the memory for every $T^n$.

    **Returns:** an `Enumeration`; `.solutions()` gives the locally-optimal directions.

    **Raises:** `ValueError` for traced, invalid or tied data, an unknown norm, or more than 2e7 choices.

    Source: Tarzanagh et al. (2023) Definition 2, Assumptions B.1 and D.
    """
    require(is_concrete(data), "data", "enumerate_selections runs outside jit and vmap")
    data.check()
    norm = as_norm(norm)
    scores = token_scores(data, head)
    require(bool(np.isfinite(np.asarray(scores)).all()), "head", "gives scores that are not finite")
    require_untied(scores, data.visible)
    visible = np.asarray(data.visible).reshape(-1, data.tokens.shape[-2])
    options = [np.flatnonzero(row) for row in visible]
    total = math.prod(len(option) for option in options)
    require(total <= MAX_SELECTIONS, "data", f"{total} selections; at most {MAX_SELECTIONS} are enumerated")
    best = optimal_tokens(scores, data.visible)
    program = attention_svm(data, best, norm)

    chunk = min(chunk, total)
    selections, parts = [], []
    for choices, real in _choices(options, chunk):
        found = _decide_chunk(program, scores, jnp.asarray(choices))
        selections.append(choices[:real])
        parts.append(jax.tree.map(lambda x, real=real: np.asarray(x)[:real], found))
    chosen = np.concatenate(selections)
    all_of = jax.tree.map(lambda *x: np.concatenate(x), *parts)
    result, meets, may_meet = all_of.result, all_of.meets, all_of.may_meet
    is_best = (chosen == np.asarray(jnp.argmax(best, axis=-1)).reshape(1, -1)).all(axis=1)
    # A choice whose program was neither solved nor refuted leaves Assumption D open.
    solved = np.isin(result, (ProgramResult.optimal.value, ProgramResult.inaccurate.value))
    open_ = ~solved & (result != ProgramResult.infeasible.value)

    def for_all_others(which: int) -> Code:
        broken = (solved & ~is_best & ~may_meet[:, which]).any()
        unsure = (~is_best & (open_ | (solved & ~meets[:, which] & may_meet[:, which]))).any()
        return Code(_assumption(bool(broken), bool(unsure)), AssumptionStatus)

    at_best = is_best & solved
    b1 = _assumption(
        bool((at_best & ~may_meet[:, 2]).any()) or not at_best.any(), not bool((at_best & meets[:, 2]).any())
    )
    if (is_best & open_).any():
        b1 = AssumptionStatus.undecided
    return Enumeration(
        selections=jnp.asarray(chosen),
        result=Code(result, ProgramResult),
        status=Code(all_of.status, SelectionStatus),
        norm=jnp.asarray(all_of.value),
        gap=jnp.asarray(all_of.gap),
        assumption_D=for_all_others(0),
        all_optimal_support=for_all_others(1),
        assumption_B1=Code(b1, AssumptionStatus),
        program=program,
    )


def _assumption(violated: bool, undecided: bool) -> AssumptionStatus:
    if violated:
        return AssumptionStatus.violated
    return AssumptionStatus.undecided if undecided else AssumptionStatus.holds

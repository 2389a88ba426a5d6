r"""Instances of figures 8 and 11: attention that composes tokens for a head $1^\top\mathrm{ReLU}(Vx)$.

Random instances, the published descent, the programs of the sets that it selects, and how well these predict its
direction. Every instance is kept, with the reason for which the paper leaves it out.
"""

import enum
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Key

from jaxflow._core import good, positive_or_one
from jaxflow.data import TokenData
from jaxflow.data.random import unit_sphere
from jaxflow.losses import Logistic
from jaxflow.margin import attention_svm, finite_component, solve
from jaxflow.models import CombinedAttention, MLPHead
from jaxflow.papers.experiment import Mask, Table, mapped
from jaxflow.papers.tarzanagh2023.programs import feasible, misalignment, solved
from jaxflow.papers.tarzanagh2023.protocol import published_descent
from jaxflow.risk import EmpiricalRisk

# Instances computed together; saved weights of 500 take 8 MB.
BATCH = 500
# §6: tokens with softmax above the first are selected, below the second masked; "We also excluded instances with
# softmax outputs falling between".
SELECTED = 1e-3
MASKED = 1e-6
# Certified gap of what counts as solved: equalities are eliminated to 1e-11, and correlations are read to 1e-6.
GAP = 1e-9


class Fate(enum.IntEnum):
    """Whether the paper's filter keeps an instance, and if not why; what comes later in this list prevails."""

    not_run = 0
    kept = 1
    uncertified = 2
    infeasible = 3
    nothing_masked = 4
    between = 5
    failed = 6


# `trials` instances for each d of `dimensions`; points of the descent are saved every `every` steps. The first `flows`
# of them are followed by the flow, too, and by descent with steps of the lengths `rates` over a path of the length
# `small`. The published code draws until 500 instances have passed the filter. At d = 10 about 2 in 100 do.
SIZE = Table(
    trials=10_000,
    flows=60,
    dimensions=(4, 6, 8, 10),
    n=3,
    T=4,
    steps=2000,
    every=100,
    rates=(1e-2, 1e-3, 1e-4),
    small=10.0,
)
SIZES = {
    "quick": SIZE.replace(trials=200, flows=20, dimensions=(4, 8)),
    "paper": SIZE,
    "large": SIZE.replace(trials=50_000),
}


def kept(found: Table) -> Mask:
    """The instances that the paper's filter keeps."""
    return found.fate == Fate.kept


def several(found: Table) -> Mask:
    """The sequences of which several tokens are selected."""
    return found.tokens_selected > 1


def data_of(problem: Table) -> TokenData:
    """The data of what `draw` gives."""
    return TokenData(problem.tokens, problem.queries, problem.labels)


def start_of(problem: Table) -> tuple[EmpiricalRisk, CombinedAttention]:
    """The risk of these data, with the logistic loss, and the model at its start."""
    return EmpiricalRisk(data_of(problem), Logistic()), CombinedAttention(problem.W, MLPHead(problem.V))


def draw(n: int, T: int, d: int, widest: int, key: Key[Array, ""]) -> Table:
    r"""One instance. Tokens $x_{it}$ and queries $z_i$ are uniform on the unit sphere.

    The paper writes the head as $1^\top\mathrm{ReLU}(x)$ and v, which it does not use, as a point of the unit sphere;
    here V `(d, d)` is one, $\|V\|_F=1$ (d units), as in the published code. Labels are uniform on the $2^n-1$ sign
    patterns with a −1, which is the law of fair labels drawn again until one is −1. W(0) has entries $U(\pm1/\sqrt d)$.

    **Returns:** `tokens` `(n, T, d)`, `queries` `(n, d)`, `labels` `(n,)`, `V` and `W` `(d, d)`, with zeros up to the
    `widest` d: one program serves all d.
    """
    key_tokens, key_queries, key_labels, key_head, key_start = jax.random.split(key, 5)
    tokens, queries = unit_sphere(key_tokens, n, T, d), unit_sphere(key_queries, n, d)
    # Bit i of the number is set where label i is +1; all bits set is left out.
    bits = (jax.random.randint(key_labels, (), 0, 2**n - 1) >> jnp.arange(n)) & 1
    labels = jnp.where(bits == 1, 1.0, -1.0)
    V = unit_sphere(key_head, d * d).reshape(d, d)
    W = CombinedAttention.init(key_start, TokenData(tokens, queries, labels), MLPHead(V)).W

    def pad(x: Array, axes: int) -> Array:
        return jnp.pad(x, [(0, 0)] * (x.ndim - axes) + [(0, widest - d)] * axes)

    return Table(tokens=pad(tokens, 1), queries=pad(queries, 1), labels=labels, V=pad(V, 2), W=pad(W, 2))


draws = mapped(static=4)(draw)


@mapped(static=2)
def descents(steps: int, every: int, problem: Table) -> Table:
    """The published protocol on a batch: saved `weights` `(m, d, d)`, columns of `attention_columns` `(n, T)` and
    `log_time` of the last step; whether it went well, `good`."""
    risk, model = start_of(problem)
    path = published_descent(risk, model, steps=steps, save_at=jnp.arange(0, steps + 1, every))
    final, saved = path.final, path.saved
    return Table(
        weights=saved.model.W,  # pyright: ignore[reportOptionalMemberAccess]
        log_time=final.log_time,
        good=jnp.asarray(good(path.result)),
        **attention_columns(jax.nn.log_softmax(final.model.logits(risk.data), axis=-1)),
    )


def attention_columns(log_attention: Array) -> dict[str, Array]:
    """Of logarithms of softmax: which tokens are `selected`, and the `top` one of each sequence."""
    attention, tokens = jnp.exp(log_attention), log_attention.shape[-1]
    return {
        "log_attention": log_attention,
        "attention": attention,
        "selected": attention > SELECTED,
        "top": jax.nn.one_hot(jnp.argmax(log_attention, axis=-1), tokens, dtype=bool),
    }


@mapped()
def directions(problem: Table, selection: Array) -> Table:
    """(Gen-SVM) of the sets; (Att-SVM) where each has one token."""
    return _answer(attention_svm(data_of(problem), selection))


@mapped()
def finite_components(problem: Table, selection: Array, attention: Array) -> Table:
    """Equation (7), with the last attention of the descent for s*."""
    return _answer(finite_component(data_of(problem), selection, attention))


def _answer(program: Any) -> Table:
    """The solution of a program, `weights`, and how it was found, `result` (`ProgramResult`)."""
    solution = solve(program, tolerance=GAP)
    return Table(weights=solution.primal, result=solution.result.value)


@mapped()
def measured(problem: Table, path: Table, direction: Table, single: Table, finite: Table) -> Table:
    r"""What descents of a batch select and mask, and how well the solutions of their programs predict them.

    - `fate` (`Fate`); `labels`, `tokens_selected`, how many, of each sequence; `log_masked`: log10 of the largest
      softmax of the others, −inf where there is none.
    - `svmeq`, `mm`, `one` `(m,)`: $1-\mathrm{corr}$ of the descent's weights with each baseline, at every saved step;
      NaN without a solution. $W^{SVMeq}=W^{fin}+\gamma\bar W^{mm}$ is fitted to the last weights and held fixed, as
      published: γ attains $\min_\gamma\|W^{fin}+\gamma\bar W^{mm}-W\|_F$; $W^{mm}$ solves (Gen-SVM), $W^{1token}$
      (Att-SVM) for the top tokens.
    """
    selected, attention, weights = path.selected, path.attention, path.weights
    size = jnp.linalg.norm(direction.weights)
    # Without a masked token (Gen-SVM) asks nothing and its solution is zero: there is no direction to add.
    known = solved(direction.result) & solved(finite.result) & (size > 0)
    unit = direction.weights / positive_or_one(size)
    gamma = jnp.sum((weights[-1] - finite.weights) * unit)
    between = jnp.any((attention <= SELECTED) & (attention >= MASKED))

    def curve(target: Array, usable: Bool[Array, ""]) -> Array:
        return jnp.where(usable, jax.vmap(partial(misalignment, target))(weights), jnp.nan)

    return Table(
        fate=fate_of(direction.result, finite.result, jnp.any(~selected), between, path.good),
        labels=problem.labels,
        tokens_selected=jnp.sum(selected, axis=-1),
        log_masked=jnp.max(jnp.where(selected, -jnp.inf, path.log_attention)) / jnp.log(10.0),
        svmeq=curve(finite.weights + gamma * unit, known),
        mm=curve(unit, known),
        one=curve(single.weights, solved(single.result)),
    )


def fate_of(direction: Array, finite: Array, sparse: Array, between: Array, good: Array) -> Array:
    """The `Fate` by the results of (Gen-SVM) and of eq. (7), whether a token is masked or between, and the descent."""
    fate = jnp.full(jnp.shape(good), Fate.kept.value)
    for found, code in (
        (~(solved(direction) & solved(finite)), Fate.uncertified),
        (~(feasible(direction) & feasible(finite)), Fate.infeasible),
        (~sparse, Fate.nothing_masked),
        (between, Fate.between),
        (~good, Fate.failed),
    ):
        fate = jnp.where(found, code.value, fate)
    return fate


# A scale, and one of its d.
Cell = tuple[Table, int]


def cells(scale: str) -> dict[str, Cell]:
    """Those of a scale."""
    return {f"d = {d}": (SIZES[scale], d) for d in SIZES[scale].dimensions}


def problems_of(keys: Array, cell: Cell) -> Table:
    """The instances of these keys."""
    size, d = cell
    return draws(size.n, size.T, d, max(size.dimensions), keys)


def instances_of(keys: Array, cell: Cell) -> Table:
    """The published descent and its programs."""
    (size, _), problems = cell, problems_of(keys, cell)
    path = descents(size.steps, size.every, problems)
    programs = [directions(problems, chosen) for chosen in (path.selected, path.top)]
    programs.append(finite_components(problems, path.selected, path.attention))
    return measured(problems, path, *programs)


REASONS = {
    Fate.kept: "kept",
    Fate.uncertified: "a program without certified solution",
    Fate.infeasible: "(Gen-SVM) or eq. (7) infeasible",
    Fate.nothing_masked: "no token masked",
    Fate.between: "softmax between 1e-6 and 1e-3",
    Fate.failed: "descent failed",
}


def fates_in_words(fate: np.ndarray) -> str:
    """How many of how many ended in what: "412 kept, 88 no token masked, of 500"."""
    counts = np.bincount(fate.ravel(), minlength=len(Fate))
    parts = [f"{counts[code]:,} {words}" for code, words in REASONS.items() if counts[code]]
    return f"{', '.join(parts)}, of {fate.size:,}"

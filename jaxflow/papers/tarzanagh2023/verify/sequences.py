r"""§7 and App. D: sequence-to-sequence and causal attention, in W and in (K, Q), with a head for every position.

Also for sequences: Corollary 2, regularisation paths with several outputs, and Lemma 16, its separating cones.
"""

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
from jaxflow.models import CombinedAttention, FactoredAttention, PositionHeads, token_scores
from jaxflow.papers.experiment import Draw, Part, checksum_key, keys_of, mapped, register, swept
from jaxflow.papers.independent import Tokens, attention, flow, least_norm, margin_rows, misaligned, tokens_of
from jaxflow.papers.statement import Again, Mask, Statement
from jaxflow.papers.table import Table, joined, stacked
from jaxflow.papers.tarzanagh2023.programs import best_of, misalignment, solved
from jaxflow.papers.tarzanagh2023.verify.cones import feasible_choices, in_cone, local, looked_at
from jaxflow.papers.tarzanagh2023.verify.follow import CERTIFIED, FAR_OUT, FLOWS
from jaxflow.papers.tarzanagh2023.verify.instances import choices_of_tokens, masks
from jaxflow.papers.tarzanagh2023.verify.path_limits import combined_paths, factored_paths, tends
from jaxflow.papers.tarzanagh2023.verify.paths import nuclear_programs
from jaxflow.papers.tarzanagh2023.verify.regularization_path import cone_depth, low_and_high
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


# Every cell is self-attention, Z = X: with a causal mask, with a head for each position, trained as (K, Q), with a
# random mask.
PLAIN = Table(name="every output sees every token, one head", causal=False, heads=False, factored=False, masked=False)
CAUSAL = PLAIN.replace(name="causal, a head for each position", causal=True, heads=True)
CELLS = (
    PLAIN,
    PLAIN.replace(name="causal, one head", causal=True),
    CAUSAL,
    CAUSAL.replace(factored=True),
    PLAIN.replace(name="a random mask, a head for each position", heads=True, masked=True),
)
COMBINED = [number for number, cell in enumerate(CELLS) if not cell.factored]


def cell_of(numbers: Table, number: int) -> Table:
    """Of one of `CELLS`."""
    return numbers.factored.at(0) if CELLS[number].factored else numbers.combined.at(COMBINED.index(number))


def _compute(factored: bool, scale: str, key: Any) -> Table:
    trials, found = (FACTORED if factored else TRIALS)[scale], []
    for number, cell in enumerate(CELLS):
        if cell.factored == factored:
            calls = keys_of(key, number, trials).reshape(-1, min(WIDTH, trials))
            found.append(joined(_limits(factored, some, *_kind(cell)) for some in calls))
    return stacked(found)


def _kind(cell: Table) -> tuple[Array, Array, Array]:
    # Mask and heads are values, so that one compiled program serves all cells.
    return jnp.asarray(cell.causal), jnp.asarray(cell.heads), jnp.asarray(cell.masked)


def _draw(factored: bool, key: Array, causal: Array, heads: Array, masked: Array) -> tuple[TokenData, Any, Array]:
    """Data, model, and the heads `(T, d)`. A random mask hides a token from an output with probability one third."""
    key_data, key_model = jax.random.split(key)
    drawn, v = random_sequences(key_data, N, T, D, causal=True, position_heads=True)
    seen = jax.random.bernoulli(jax.random.fold_in(key, 2), 2.0 / 3.0, (N, T, T)) | jnp.eye(T, dtype=bool)[None]
    visible = jnp.where(masked, seen, drawn.visible | ~causal)
    data = TokenData(drawn.tokens, drawn.queries, drawn.labels, visible)
    v = jnp.where(heads, v, v[:1])
    return data, (FactoredAttention if factored else CombinedAttention).init(key_model, data, PositionHeads(v)), v


@mapped(static=1, axes=(0, None, None, None))
def _limits(factored: bool, key: Array, causal: Array, heads: Array, masked: Array) -> Table:
    """The limit of the flow of the sequence risk of one instance.

    - `outcome` (`Outcome`): how the limit ended; `status` (`SelectionStatus`): what Definition 4 says of the selection.
    - `flow_gap`, `certificate_gap`: duality gaps, by the flow alone and of the tightest certificate.
    - `misaligned`: 1 − corr of the flow's direction with the solution of the program of its selection (W), or how
      far the flow's norm at margin one is above the optimum ((K, Q), whose solution need not be unique).
    """
    data, model, _ = _draw(factored, key, causal, heads, masked)
    limit = find_limit(EmpiricalRisk(data, Logistic()), model, throw=False)
    optimum = limit.program_solution.certificate.primal_value
    excess = limit.flow_certificate.primal_value / optimum - 1.0
    return Table(
        outcome=limit.outcome.value,
        status=limit.selection_status.value,
        flow_gap=limit.flow_certificate.duality_gap,
        certificate_gap=limit.certificate.duality_gap,
        misaligned=excess if factored else misalignment(limit.flow_direction, limit.program_solution.primal),
    )


SEQUENCES = swept("tarzanagh2023", "sequences", combined=partial(_compute, False), factored=partial(_compute, True))


def solves(number: int) -> Statement[Table]:
    """Of one of `CELLS`: against (11), its causal form and (SAtt-SVM) of the selected tokens."""
    name, factored = CELLS[number].name, CELLS[number].factored

    def certified(found: Table) -> Mask:
        # The dual of the flow of (K, Q) closes its gap like a power of log t only: that of the program may be better.
        return (found.certificate_gap if factored else found.flow_gap) <= CERTIFIED

    def residual(found: Table) -> np.ndarray:
        local = np.isin(found.status, (SelectionStatus.global_.value, SelectionStatus.local.value))
        # A limit of a selection that is not locally optimal is none of these, however near it is to its program.
        wrong = found.status == SelectionStatus.not_local.value
        far = np.where(wrong, np.inf, np.where(local, found.misaligned, np.nan))
        return np.where(certified(found), far, np.nan)

    def again(found: Table, draw: Draw, at: tuple[int, ...]) -> float:
        """1 − corr of the motion over the second half with the program of what is selected."""
        key = keys_of(draw.key("combined"), number, TRIALS[draw.scale])[at[0]]
        data, model, v = _draw(False, key, *_kind(CELLS[number]))
        tokens = tokens_of(data, v)
        (middle,), (end,) = flow(tokens, np.asarray(model.W)[None], 0.5 * FAR_OUT, FAR_OUT)
        aim = least_norm(margin_rows(tokens, np.argmax(attention(tokens, end), axis=1)))
        apart = np.nan if aim is None or np.isnan(end).any() else misaligned(end - middle, aim)
        return 0.0 if apart <= LEFT else apart

    norm = "nuclear" if factored else "Frobenius"
    return Statement(
        source="§7, App. D",
        says=f"{name}, n = {N}, K = T = {T}, d = {D}: the flow of {'(K, Q)' if factored else 'W'}, certified to a gap "
        f"of {CERTIFIED:g}, solves (SAtt-SVM) in the {norm} norm of the tokens it selects",
        of=lambda n: cell_of(n, number),
        inside=lambda found: (found.outcome != Outcome.finite_stationary_point.value) | certified(found),
        residual=residual,
        bound=(
            CERTIFIED if factored else ALIGNED,
            "norm at margin one over the optimum − 1" if factored else "1 − corr with the program's solution",
        ),
        certified="the multipliers of the flow or of the program against the flow's own norm at margin one",
        again=None if factored else Again(FLOWS, again, LEFT),
    )


register(
    SEQUENCES,
    title="§7 and App. D, sequence-to-sequence and causal attention",
    statements=[solves(number) for number in range(len(CELLS))],
)

# Small enough for paths from every choice of tokens; (SAtt-SVM) is feasible in most of them.
PATHS = ((1, 2, 3, 2), (2, 2, 2, 3), (1, 3, 3, 3))
CONES = ((1, 2, 3, 4), (2, 2, 3, 4), (2, 3, 3, 6))
# Paths compile for every size: the quick scale takes the first one alone.
SIZES = {"quick": 1, "paper": 3, "large": 3}
INSTANCES = {"quick": 6, "paper": 12, "large": 256}
CHOICE_TRIALS = {"quick": 3, "paper": 20, "large": 300}
# Bounds R = 4^k, far beyond the norms of the programs: there distances fall like 1/R.
LEVELS = 11

# n sequences of T tokens with K outputs each, in dimension d: n, K, T, d.
Shape = tuple[int, int, int, int]
# Paths of W, or (True) of (K, Q), on instances of one of `PATHS`.
PathCell = tuple[Shape, bool]


def in_words(shape: Shape) -> str:
    """A shape."""
    return "n = {}, K = {}, T = {}, d = {}".format(*shape)


def _cells(scale: str) -> dict[str, PathCell]:
    cells = [(shape, factored) for shape in PATHS[: SIZES[scale]] for factored in (False, True)]
    return {f"{'K, Q' if factored else 'W'}, {in_words(shape)}": (shape, factored) for shape, factored in cells}


def _key_of(seed: int, cell: PathCell) -> Array:
    """The same for both parametrisations."""
    return jax.random.split(jax.random.split(PATH_KEY(seed))[0], len(PATHS))[PATHS.index(cell[0])]


def _choices(scale: str, key: Any) -> Table:
    keys = jax.random.split(jax.random.split(key)[1], len(CONES))
    parts = []
    for size, own in enumerate(keys):
        parts += [choices_of(size, one, trial) for trial, one in enumerate(jax.random.split(own, CHOICE_TRIALS[scale]))]
    return joined(parts)


@mapped(static=1)
def draw(shape: Shape, key: Array) -> tuple[TokenData, PositionHeads]:
    """One instance."""
    n, K, T, d = shape
    data, v = random_sequences(key, n, T, d, k=K, self_attention=False, position_heads=True)
    return data, PositionHeads(v)


def paths_on(keys: Array, cell: PathCell) -> Table:
    """Of W or of (K, Q) towards the optimal tokens."""
    shape, factored = cell
    (data, heads), radii = draw(shape, keys), 4.0 ** np.arange(LEVELS)
    if not factored:
        return combined_paths(data, heads, radii)
    convex = jax.tree.map(np.asarray, nuclear_programs(None, data, heads))
    return factored_paths(keys, data, heads, shape[-1], radii, solved(convex.result), convex.weights)


def choices_of(size: int, key: Array, trial: int = 0) -> Table:
    r"""Columns of `looked_at` and `feasible_choices` of one instance, its place among `CONES`, `size`, and its number,
    `trial`; `optimal`: whether α = opt; `anywhere`: the depth of a random matrix in the same cone.
    """
    found = _choices_of_one(CONES[size], key, jnp.asarray(_all_choices(CONES[size])))
    return feasible_choices(found, size=size, trial=trial)


def _chosen(size: int, choices: Table, draw_: Draw, at: int) -> tuple[Tokens, np.ndarray]:
    shape = CONES[size]
    own = jax.random.split(jax.random.split(draw_.key("choices"))[1], len(CONES))[size]
    key = jax.random.split(own, CHOICE_TRIALS[draw_.scale])[int(choices.trial[at])]
    data, heads = jax.tree.map(lambda x: x[0], draw(shape, jax.random.split(key)[:1]))
    return tokens_of(data, np.stack([one.v for one in heads.heads])), _all_choices(shape)[choices.choice[at]]


def _all_choices(shape: Shape) -> np.ndarray:
    n, K, T, _ = shape
    return choices_of_tokens(n * K, T)


@partial(jax.jit, static_argnums=0)
def _choices_of_one(shape: Shape, key: Array, choices: Array) -> Table:
    key_data, key_anywhere = jax.random.split(key)
    data, heads = jax.tree.map(lambda x: x[0], draw(shape, key_data[None]))
    scores, best = token_scores(data, heads), best_of(data, heads)
    anywhere = CombinedAttention(jax.random.normal(key_anywhere, (shape[-1], shape[-1])), heads).logits(data)

    def one(selection: Array) -> tuple[Array, Array]:
        depth, _ = cone_depth(anywhere, *low_and_high(scores, data.visible, selection))
        return jnp.all(selection == best), depth

    optimal, depth = jax.vmap(one)(masks(choices, data))
    return Table(looked_at(data, heads, choices).named, optimal=optimal, anywhere=depth)


PATH_KEY = checksum_key("sequence-paths")
# Queries of their own, a linear head for each output (Assumption E), labels of both signs, logistic loss. `paths`
# `(2k, b, m)`: for each of the first k of `PATHS` those of W, and then of (K, Q) with d columns.
SEQUENCE_PATHS = swept(
    "tarzanagh2023",
    "sequence-paths",
    {"paths": Part(paths_on, _cells, INSTANCES, block=12, draw_from=_key_of, way="as a block")},
    choices=_choices,
)


# (86) prints the minimum over i alone, and the limit of (K, Q) has Q Kᵀ for K Qᵀ.
def tend(cell: int) -> Statement[Table]:
    """Of one size, paths of W or of (K, Q)."""
    shape = PATHS[cell // 2]
    what = (
        "W̄_R/R → W^mm/‖W^mm‖_F of (SERM-W)",
        "K̄_R Q̄_Rᵀ/R → W*^mm/‖W*^mm‖_* of (SERM-KQ) with m = d columns",
    )[cell % 2]
    says = (
        f"{what}, least of the paths from all {len(_all_choices(shape))} choices of tokens, a linear head for "
        f"each output, {in_words(shape)}"
    )
    # Its proof is Corollary 1 for each norm.
    return tends("Corollaries 1, 2", says, lambda n: n.paths.at(cell))


def lemma16(size: int) -> list[Statement[Table]]:
    """Of one size."""

    def choices(numbers: Table) -> Table:
        return numbers.choices.at(numbers.choices.size == size)

    def says(what: str) -> str:
        return f"W^mm_α and cone_ε(α) for sequences, {what}; {in_words(CONES[size])}"

    def cone(what: str, group: Callable[[Table], Mask], member: bool = True) -> Statement[Table]:
        return in_cone("Lemma 16", says(what), choices, group, partial(_chosen, size), member)

    return [
        cone("locally optimal α, every T_ik non-empty: in it", lambda c: local(c) & ~c.empty),
        cone("locally optimal α, some T_ik empty: in it", lambda c: local(c) & c.empty),
        cone(
            "α not locally optimal: outside of it for all ε > 0",
            lambda c: c.status == SelectionStatus.not_local.value,
            member=False,
        ),
        Statement(
            source="Lemma 16",
            says=says("α = opt: a random W is in it, as all are"),
            inside=lambda n: choices(n).optimal,
            # Where an optimum is not unique some token has the same score: none has in these draws.
            residual=lambda n: np.where(np.isposinf(choices(n).anywhere), 0.0, 1.0),
        ),
    ]


register(
    SEQUENCE_PATHS,
    title="Corollary 2 and Lemma 16 of App. D",
    statements=lambda n: [
        *(tend(cell) for cell in range(len(n.paths.inside))),
        *(statement for size in range(len(CONES)) for statement in lemma16(size)),
    ],
)

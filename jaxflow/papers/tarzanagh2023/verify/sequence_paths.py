r"""App. D for sequences: Corollary 2, regularisation paths with several outputs, and Lemma 16, its separating cones."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxflow._core import SelectionStatus
from jaxflow.data import TokenData, optimal_tokens, random_sequences
from jaxflow.margin import ProgramResult
from jaxflow.models import CombinedAttention, PositionHeads, token_scores
from jaxflow.papers.dataset import Dataset, Draw, Part, Say, Sweep, checksum_key
from jaxflow.papers.independent import Tokens, tokens_of
from jaxflow.papers.registry import register
from jaxflow.papers.statement import Mask, Statement
from jaxflow.papers.table import Table, joined
from jaxflow.papers.tarzanagh2023.verify.cones import CLEAR, SUPPORT, in_cone, local
from jaxflow.papers.tarzanagh2023.verify.path_instances import choices_of_tokens, masks, programs_of
from jaxflow.papers.tarzanagh2023.verify.path_limits import (
    all_starts,
    combined_paths,
    factored_paths,
    paths_of,
    tends,
)
from jaxflow.papers.tarzanagh2023.verify.paths import noise_of, nuclear_programs
from jaxflow.papers.tarzanagh2023.verify.regularization_path import cone_depth, low_and_high

# Small enough for paths from every choice of tokens; (SAtt-SVM) is feasible in most of them.
PATHS = ((1, 2, 3, 2), (2, 2, 2, 3), (1, 3, 3, 3))
CONES = ((1, 2, 3, 4), (2, 2, 3, 4), (2, 3, 3, 6))
# Paths compile for every size: the quick scale takes the first one alone.
SIZES = {"quick": 1, "paper": 3, "large": 3}
INSTANCES = {"quick": 6, "paper": 12, "large": 256}
TRIALS = {"quick": 3, "paper": 20, "large": 300}
# Bounds R = 4^k, far beyond the norms of the programs: there distances fall like 1/R.
LEVELS = 11


# n sequences of T tokens with K outputs each, in dimension d: n, K, T, d.
Shape = tuple[int, int, int, int]
# Paths of W, or (True) of (K, Q), on instances of one of `PATHS`.
Cell = tuple[Shape, bool]


def in_words(shape: Shape) -> str:
    """A shape."""
    return "n = {}, K = {}, T = {}, d = {}".format(*shape)


def _cells(scale: str) -> dict[str, Cell]:
    cells = [(shape, factored) for shape in PATHS[: SIZES[scale]] for factored in (False, True)]
    return {f"{'K, Q' if factored else 'W'}, {in_words(shape)}": (shape, factored) for shape, factored in cells}


def _key_of(seed: int, cell: Cell) -> Array:
    """The same for both parametrisations."""
    return jax.random.split(jax.random.split(KEY(seed))[0], len(PATHS))[PATHS.index(cell[0])]


def _choices(scale: str, key: Any, say: Say) -> Table:
    keys = jax.random.split(jax.random.split(key)[1], len(CONES))
    parts = []
    for size, (own, shape) in enumerate(zip(keys, CONES, strict=True)):
        say(f"Lemma 16: all choices of {TRIALS[scale]} instances, {in_words(shape)}")
        parts += [choices_of(size, one, trial) for trial, one in enumerate(jax.random.split(own, TRIALS[scale]))]
    return joined(parts)


@partial(jax.jit, static_argnums=0)
def draw(shape: Shape, keys: Array) -> tuple[TokenData, PositionHeads]:
    """A batch of instances."""
    n, K, T, d = shape

    def one(key: Array) -> tuple[TokenData, PositionHeads]:
        data, v = random_sequences(key, n, T, d, k=K, self_attention=False, position_heads=True)
        return data, PositionHeads(v)

    return jax.vmap(one)(keys)


def paths_on(keys: Array, cell: Cell) -> Table:
    """Of W or of (K, Q) towards the optimal tokens."""
    shape, factored = cell
    data, heads = draw(shape, keys)
    starts, radii = all_starts(data, heads), 4.0 ** np.arange(LEVELS)
    if not factored:
        return paths_of(combined_paths(data, heads, starts.matrices, radii), radii, starts.solved, starts.aim)
    convex = {name: np.asarray(x) for name, x in nuclear_programs(None, data, heads).items()}
    solved = convex["result"] == ProgramResult.optimal.value
    found = factored_paths(data, heads, starts.matrices + noise_of(keys, starts), shape[-1], radii)
    return paths_of(found, radii, solved, convex["weights"], several=True)


def choices_of(size: int, key: Array, trial: int = 0) -> Table:
    r"""Every feasible choice α of one instance.

    - `size`: of the instance, its place among `CONES`; `trial`: its number; `choice`: the place of α among all.
    - `status`: Definition 4 (`SelectionStatus`); `empty`: whether some $\mathcal T_{ik}$ is; `near`: whether a margin
      is too close to one to say.
    - `depth`: the largest ε‖W‖ with $W^{mm}_\alpha$ in $\mathrm{cone}_\varepsilon(\alpha)$, (86) with the minimum
      over i and k: +inf where no token scores higher, −inf where one does and none scores lower.
    - `optimal`: whether α = opt; `anywhere`: the depth of a random matrix in the same cone.
    """
    choices = jnp.asarray(_all_choices(CONES[size]))
    found = jax.tree.map(np.asarray, _one(CONES[size], key, choices))
    feasible = found.pop("result") == ProgramResult.optimal.value
    where = np.flatnonzero(feasible)
    mine = {"size": np.full(where.size, size), "trial": np.full(where.size, trial), "choice": where}
    return Table(mine, **{name: x[feasible] for name, x in found.items()})


def _chosen(size: int, choices: Table, draw_: Draw, at: int) -> tuple[Tokens, np.ndarray]:
    shape = CONES[size]
    own = jax.random.split(jax.random.split(draw_.key("choices"))[1], len(CONES))[size]
    key = jax.random.split(own, TRIALS[draw_.scale])[int(choices.trial[at])]
    data, heads = jax.tree.map(lambda x: x[0], draw(shape, jax.random.split(key)[:1]))
    return tokens_of(data, np.stack([one.v for one in heads.heads])), _all_choices(shape)[choices.choice[at]]


def _all_choices(shape: Shape) -> np.ndarray:
    n, K, T, _ = shape
    return choices_of_tokens(n * K, T)


@partial(jax.jit, static_argnums=0)
def _one(shape: Shape, key: Array, choices: Array) -> dict[str, Array]:
    key_data, key_anywhere = jax.random.split(key)
    data, heads = jax.tree.map(lambda x: x[0], draw(shape, key_data[None]))
    found = programs_of(data, heads, choices)
    scores = token_scores(data, heads)
    best = optimal_tokens(scores, data.visible)
    anywhere = CombinedAttention(jax.random.normal(key_anywhere, (shape[-1], shape[-1])), heads).logits(data)

    def one(selection: Array, W: Array, support: Array) -> dict[str, Array]:
        logits = CombinedAttention(W, heads).logits(data)
        own = jnp.sum(jnp.where(selection, logits, 0.0), axis=-1, keepdims=True)
        excess = jnp.where(selection, jnp.inf, own - logits - 1.0)
        low, high = low_and_high(scores, data.visible, selection)
        return {
            "empty": jnp.any(~jnp.any(support, axis=-1)),
            "near": jnp.any((excess > SUPPORT) & (excess <= CLEAR)),
            "depth": cone_depth(logits, low, high)[0],
            "optimal": jnp.all(selection == best),
            "anywhere": cone_depth(anywhere, low, high)[0],
        }

    looked = jax.vmap(one)(masks(choices, data), found["weights"], found["support"])
    return looked | {"status": found["status"], "result": found["result"]}


KEY = checksum_key("sequence-paths")
# Queries of their own, a linear head for each output (Assumption E), labels of both signs, logistic loss. `paths`
# `(2k, b, m)`: for each of the first k of `PATHS` those of W, and then of (K, Q) with d columns.
SEQUENCE_PATHS = Dataset(
    "tarzanagh2023",
    "sequence-paths",
    {
        "paths": Part(paths_on, _cells, INSTANCES, block=12, draw_from=_key_of, way="as a block"),
        "choices": Sweep(_choices, KEY),
    },
    where=f"{__name__}:SEQUENCE_PATHS",
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
        return in_cone(
            "Lemma 16", says(what), choices, group, lambda n, draw_, at: _chosen(size, choices(n), draw_, at), member
        )

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
        *(tend(cell) for cell in range(len(n.paths.starts))),
        *(statement for size in range(len(CONES)) for statement in lemma16(size)),
    ],
)

r"""App. D for sequences: Corollary 2, regularisation paths with several outputs, and Lemma 16, its separating cones."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxflow._core import SelectionStatus
from jaxflow.data import TokenData, optimal_tokens, random_sequences
from jaxflow.limits import cone_depth, low_and_high
from jaxflow.margin import ProgramResult
from jaxflow.models import CombinedAttention, PositionHeads, token_scores
from jaxflow.papers.checks import AbstractCheck, Row, register_check
from jaxflow.papers.registry import Data
from jaxflow.papers.tarzanagh2023.verify.path_instances import (
    apart,
    choices_of_tokens,
    factors,
    masks,
    programs_of,
    unit,
)
from jaxflow.papers.tarzanagh2023.verify.path_rows import row_of_path
from jaxflow.papers.tarzanagh2023.verify.paths import (
    NOISE,
    above_optimum,
    combined_paths,
    factored_paths,
    nuclear_programs,
    programs,
)
from jaxflow.report import count_evidence


class Shape(NamedTuple):
    """n sequences of T tokens with K outputs each, in dimension d."""

    n: int
    K: int
    T: int
    d: int

    def in_words(self) -> str:
        return f"n = {self.n}, K = {self.K}, T = {self.T}, d = {self.d}"


# Small enough for paths from every choice of tokens; (SAtt-SVM) is feasible in most of them.
PATHS = (Shape(1, 2, 3, 2), Shape(2, 2, 2, 3), Shape(1, 3, 3, 3))
CONES = (Shape(1, 2, 3, 4), Shape(2, 2, 3, 4), Shape(2, 3, 3, 6))
# Paths compile for every size: the quick scale takes the first one alone.
SIZES = {"quick": 1, "paper": 3, "large": 3}
INSTANCES = {"quick": 6, "paper": 12, "large": 256}
TRIALS = {"quick": 3, "paper": 20, "large": 300}
# Bounds R = 4^k, far beyond the norms of the programs: there distances fall like 1/R.
LEVELS = 11
# A margin within SUPPORT of one is support, one within CLEAR too close to call; as in the check of Lemma 5.
SUPPORT, CLEAR = 1e-9, 1e-6
LOCAL = (SelectionStatus.local.value, SelectionStatus.global_.value)
DECIDED = (*LOCAL, SelectionStatus.not_local.value)


class Choices(NamedTuple):
    r"""All feasible choices α of random instances.

    - `status`: Definition 4 (`SelectionStatus`); `empty`: whether some $\mathcal T_{ik}$ is; `near`: whether a margin
      is too close to one to say.
    - `depth`: the largest ε‖W‖ with $W^{mm}_\alpha$ in $\mathrm{cone}_\varepsilon(\alpha)$, (86) with the minimum
      over i and k: +inf where no token scores higher, −inf where one does and none scores lower.
    - `optimal`: whether α = opt; `anywhere`: the depth of a random matrix in the same cone.
    """

    status: np.ndarray
    empty: np.ndarray
    near: np.ndarray
    depth: np.ndarray
    optimal: np.ndarray
    anywhere: np.ndarray


class Paths(NamedTuple):
    """Paths of W and of (K, Q) towards the optimal tokens, as `verify.paths` has them, and their programs."""

    radii: np.ndarray
    result: np.ndarray
    aim: np.ndarray
    W: Data
    nuclear_result: np.ndarray
    nuclear_aim: np.ndarray
    KQ: Data


@register_check("tarzanagh2023", "sequence-paths", statements="Corollary 2 and Lemma 16 of App. D")
class SequencePaths(AbstractCheck):
    """Queries of their own, a linear head for each output (Assumption E), labels of both signs, logistic loss."""

    def compute(self, scale: str, key: Any, say: Callable[[str], None]) -> Data:
        key_paths, key_cones = jax.random.split(key)
        found: Data = {}
        for number, shape in enumerate(PATHS[: SIZES[scale]]):
            say(f"Corollary 2: paths of W and of K, Q on {INSTANCES[scale]} instances, {shape.in_words()}")
            keys = jax.random.split(jax.random.split(key_paths, len(PATHS))[number], INSTANCES[scale] + 1)
            part = _paths(shape, keys[:-1], keys[-1])._asdict()
            groups = {name: part.pop(name) for name in ("W", "KQ")}
            found |= {f"paths{number}_{name}": np.asarray(value) for name, value in part.items()}
            for group, values in groups.items():
                found |= {f"paths{number}_{group}_{name}": np.asarray(x) for name, x in values.items()}
        for number, shape in enumerate(CONES):
            say(f"Lemma 16: all choices of {TRIALS[scale]} instances, {shape.in_words()}")
            keys = jax.random.split(jax.random.split(key_cones, len(CONES))[number], TRIALS[scale])
            found |= {f"cones{number}_{name}": x for name, x in choices_of(shape, keys)._asdict().items()}
        return found

    def rows(self, data: Data) -> list[Row]:
        rows: list[Row] = []
        for number, shape in enumerate(PATHS):
            if f"paths{number}_radii" in data:
                rows += [row(paths_in(data, number), shape) for row in (_row_combined, _row_factored)]
        for number, shape in enumerate(CONES):
            rows += _rows_of_cones(Choices(*(data[f"cones{number}_{name}"] for name in Choices._fields)), shape)
        return rows


def paths_in(data: Data, number: int) -> Paths:
    """What is saved of one size."""
    head = f"paths{number}_"

    def group(name: str) -> Data:
        start = f"{head}{name}_"
        return {key.removeprefix(start): value for key, value in data.items() if key.startswith(start)}

    return Paths(
        radii=data[f"{head}radii"],
        result=data[f"{head}result"],
        aim=data[f"{head}aim"],
        W=group("W"),
        nuclear_result=data[f"{head}nuclear_result"],
        nuclear_aim=data[f"{head}nuclear_aim"],
        KQ=group("KQ"),
    )


@partial(jax.jit, static_argnums=0)
def draw(shape: Shape, keys: Array) -> tuple[TokenData, PositionHeads]:
    """A batch of instances."""

    def one(key: Array) -> tuple[TokenData, PositionHeads]:
        data, v = random_sequences(key, shape.n, shape.T, shape.d, k=shape.K, self_attention=False, position_heads=True)
        return data, PositionHeads(v)

    return jax.vmap(one)(keys)


def _paths(shape: Shape, keys: Array, key_noise: Array) -> Paths:
    outputs = shape.n * shape.K
    data, heads = draw(shape, keys)
    found = {name: np.asarray(x) for name, x in programs(data, heads, choices_of_tokens(outputs, shape.T)).items()}
    best = np.asarray(jax.vmap(lambda a, h: optimal_tokens(token_scores(a, h), a.visible))(data, heads))
    chosen = best.argmax(axis=-1).reshape(len(best), outputs)
    which = np.ravel_multi_index(tuple(chosen.T), (shape.T,) * outputs)
    solved = (found["result"] == ProgramResult.optimal.value)[..., None, None]
    starts = unit(np.where(solved, found["weights"], found["push"]))
    radii = 4.0 ** np.arange(LEVELS)
    rows = np.arange(len(best))
    # Columns beyond the rank of a start are not zero, where they would stay.
    noise = NOISE * np.asarray(jax.random.normal(key_noise, starts.shape))
    K, Q = factors(starts + noise, shape.d)
    nuclear = {name: np.asarray(x) for name, x in nuclear_programs(None, data, heads).items()}
    return Paths(
        radii=radii,
        result=found["result"][rows, which],
        aim=found["weights"][rows, which],
        W=combined_paths(data, heads, starts, radii),
        nuclear_result=nuclear["result"],
        nuclear_aim=nuclear["weights"],
        KQ=factored_paths(data, heads, K, Q, np.sqrt(2.0 * radii)),
    )


def choices_of(shape: Shape, keys: Array) -> Choices:
    """Every feasible choice of every instance, one after another."""
    choices = jnp.asarray(choices_of_tokens(shape.n * shape.K, shape.T))
    parts = []
    for key in keys:
        found = jax.tree.map(np.asarray, _one(shape, key, choices))
        feasible = found.pop("result") == ProgramResult.optimal.value
        parts.append(Choices(**{name: x[feasible] for name, x in found.items()}))
    return Choices(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


@partial(jax.jit, static_argnums=0)
def _one(shape: Shape, key: Array, choices: Array) -> dict[str, Array]:
    key_data, key_anywhere = jax.random.split(key)
    data, heads = jax.tree.map(lambda x: x[0], draw(shape, key_data[None]))
    found = programs_of(data, heads, choices)
    scores = token_scores(data, heads)
    best = optimal_tokens(scores, data.visible)
    anywhere = CombinedAttention(jax.random.normal(key_anywhere, (shape.d, shape.d)), heads).logits(data)

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


def _as_path(part: Data, radii: np.ndarray) -> Data:
    """One set of paths in the names that `row_of_path` reads."""
    return {f"path_{name}": part[name] for name in ("status", "objective", "residual", "found")} | {"radii": radii}


# (86) prints the minimum over i alone, and the limit of (K, Q) has Q Kᵀ for K Qᵀ.
def _row_combined(paths: Paths, shape: Shape) -> Row:
    return row_of_path(
        "Corollary 2",
        f"W̄_R/R → W^mm/‖W^mm‖_F of (SERM-W), least of the paths from all {shape.T ** (shape.n * shape.K)} choices of "
        f"tokens, a linear head for each output, {shape.in_words()}",
        _as_path(paths.W, paths.radii),
        "path",
        paths.result == ProgramResult.optimal.value,
        apart(paths.W["weights"], paths.aim[:, None]),
        "",
    )


def _row_factored(paths: Paths, shape: Shape) -> Row:
    return row_of_path(
        "Corollary 2",
        f"K̄_R Q̄_Rᵀ/R → W*^mm/‖W*^mm‖_* of (SERM-KQ) with m = d columns, least of the paths from all "
        f"{shape.T ** (shape.n * shape.K)} choices of tokens, a linear head for each output, {shape.in_words()}",
        _as_path(paths.KQ, paths.radii),
        "path",
        paths.nuclear_result == ProgramResult.optimal.value,
        apart(paths.KQ["weights"], paths.nuclear_aim[:, None]),
        "",
        above_optimum(paths.radii, paths.KQ["margin"], paths.nuclear_aim),
    )


def _rows_of_cones(found: Choices, shape: Shape) -> list[Row]:
    local = np.isin(found.status, LOCAL)
    known = np.isin(found.status, DECIDED) & ~found.near
    inside, outside = found.depth > CLEAR, found.depth <= SUPPORT
    # Where an optimum is not unique some token has the same score: none has in these draws.
    everywhere = np.isposinf(found.anywhere)
    not_local = found.status == SelectionStatus.not_local.value
    return [
        _row_of_cone(
            found, local & ~found.empty, inside, known, "locally optimal α, every T_ik non-empty: in it", shape
        ),
        _row_of_cone(found, local & found.empty, inside, known, "locally optimal α, some T_ik empty: in it", shape),
        _row_of_cone(found, not_local, outside, known, "α not locally optimal: outside of it for all ε > 0", shape),
        _row_of_cone(
            found,
            found.optimal,
            everywhere,
            np.ones(len(local), bool),
            "α = opt: a random W is in it, as all are",
            shape,
        ),
    ]


def _row_of_cone(
    found: Choices, group: np.ndarray, good: np.ndarray, known: np.ndarray, what: str, shape: Shape
) -> Row:
    asked, depth = int(group.sum()), found.depth[group & known]
    finite = depth[np.isfinite(depth)]
    wrong = int((group & known & ~good).sum())
    lowest = int(np.isneginf(depth).sum())
    ends = f", {lowest} of all select a token with the lowest score of its sequence" if lowest else ""
    return Row(
        "Lemma 16",
        f"W^mm_α and cone_ε(α) for sequences, {what}; {shape.in_words()}",
        f"{wrong} of {int((group & known).sum())} are not{ends}; {int((group & ~known).sum())} too close to call",
        asked,
        int(len(group) - asked),
        float(wrong),
        "choices for which it is not so",
        # The programs are solved to a duality gap; the rest is arithmetic on their margins.
        count_evidence(
            good[group],
            decided=known[group],
            checked_by="the duality gaps of the programs, on whose margins the rest is arithmetic",
        ),
        {"wrong": wrong, "instances": asked, "finite": len(finite)},
    )

r"""Lemma 5 (Lemma 16): $W^{mm}_\alpha\in\mathrm{cone}_\varepsilon(\alpha)$ for small ε iff α is locally optimal."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxflow._core import SelectionStatus
from jaxflow.data import TokenData
from jaxflow.models import token_scores
from jaxflow.papers.experiment import Again, Draw, Mask, Statement, Table, joined, keys_of, register, swept
from jaxflow.papers.independent import Tokens, least_norm, margin_rows, tokens_of
from jaxflow.papers.tarzanagh2023.programs import solved
from jaxflow.papers.tarzanagh2023.verify.instances import CHOICES, masks, programs_of, random_instance
from jaxflow.papers.tarzanagh2023.verify.regularization_path import cone_depth, low_and_high

TRIALS = {"quick": 3, "paper": 20, "large": 300}
DIMENSIONS = (4, 6)
# A margin within this of one is support; solutions are certified to better. As in Definition 2's decision.
SUPPORT = 1e-9
CLEAR = 1e-6

LOCAL = (SelectionStatus.local.value, SelectionStatus.global_.value)
DECIDED = (*LOCAL, SelectionStatus.not_local.value)


def local(choices: Table) -> Mask:
    """Locally optimal, or globally."""
    return np.isin(choices.status, LOCAL)


def decided(choices: Table) -> Mask:
    """Neither the status nor a margin is too close to call."""
    return np.isin(choices.status, DECIDED) & ~choices.near


def compute(scale: str, key: Any) -> Table:
    """Every feasible choice of tokens of `TRIALS` instances for each d."""
    drawn = ((d, *pair) for d in DIMENSIONS for pair in enumerate(keys_of(key, d, TRIALS[scale])))
    return joined(choices_of(one, d, trial) for d, trial, one in drawn)


def choices_of(key: Any, d: int, trial: int = 0) -> Table:
    """Columns of `looked_at` and `feasible_choices` of one random instance, its `d` and its number, `trial`."""
    given = random_instance(key, d)
    return feasible_choices(_looked_at(given.data, given.head, jnp.asarray(CHOICES)), d=d, trial=trial)


def feasible_choices(found: Table, **instance: int) -> Table:
    """What was found of the choices whose program has a solution; `choice`: the place of each among all; whose they
    are."""
    where = np.flatnonzero(solved(found.result))
    kept = {name: np.asarray(x)[where] for name, x in found.named.items() if name != "result"}
    return Table(kept, choice=where, **{name: np.full(where.size, value) for name, value in instance.items()})


def looked_at(data: TokenData, head: Any, choices: Array) -> Table:
    r"""Each choice α of the tokens of one instance.

    `result` (`ProgramResult`) and `status` by Definition 2 or 4 (`SelectionStatus`); `empty`: some support set is;
    `near`: some margin is too close to one to call; `depth`: the largest ε (before the division by $\|W\|_F$) with
    $W^{mm}_\alpha$ in the cone, $\min_i\max_{t\in\mathrm{low}}\min_{\tau\in\mathrm{high}}$ of (5), or (86) with the
    minimum over i and k: +inf where no token scores higher, −inf where one does and none scores lower.
    """
    found, scores = programs_of(data, head, choices), token_scores(data, head)

    def one(selection: Array, support: Array, excess: Array) -> Table:
        return Table(
            empty=jnp.any(~jnp.any(support, axis=-1)),
            near=jnp.any((excess > SUPPORT) & (excess <= CLEAR)),
            # Of two logits the difference is that of margins, the other way around.
            depth=cone_depth(-excess, *low_and_high(scores, data.visible, selection))[0],
        )

    looked = jax.vmap(one)(masks(choices, data), found.support, found.excess)
    return Table(looked.named, status=found.status, result=found.result)


_looked_at = jax.jit(looked_at)


def depth_again(given: Tokens, selection: np.ndarray) -> float:
    """The depth of one choice, by the solution of its program from SciPy."""
    W = least_norm(margin_rows(given, selection))
    if W is None:
        return np.nan
    logits = np.einsum("ntd,de,ne->nt", given.tokens, W, given.queries)
    depth = np.inf
    for scores, visible, a, own in zip(given.scores, given.visible, logits, selection, strict=True):
        others = visible & (np.arange(len(a)) != own)
        low, high = others & (scores < scores[own]), others & (scores >= scores[own])
        if high.any():
            depth = min(depth, a[low].max(initial=-np.inf) - a[high].max())
    return float(depth)


CONES = swept("tarzanagh2023", "cones", choices=compute)


def in_cone(
    source: str,
    says: str,
    choices: Callable[[Any], Table],
    group: Callable[[Table], Mask],
    chosen: Callable[[Table, Draw, int], tuple[Tokens, np.ndarray]],
    member: bool = True,
) -> Statement[Table]:
    """Of the choices of a group: a member of the cone has a depth above zero, the others none for any ε > 0.

    `choices`: columns of `choices_of`; `chosen`: the data of one of them and its tokens, drawn again.
    """
    sign = -1.0 if member else 1.0

    def again(found: Table, draw: Draw, at: tuple[int, ...]) -> float:
        return sign * depth_again(*chosen(found, draw, at[0]))

    return Statement(
        source=source,
        says=says,
        of=choices,
        inside=group,
        # Out of the cone for all ε: the depth is at most zero, to the rounding of margins.
        residual=lambda found: np.where(decided(found), sign * found.depth, np.nan),
        bound=(
            -np.nextafter(CLEAR, 1.0) if member else SUPPORT,
            "−ε‖W‖, the cone's slack" if member else "ε‖W‖, the cone's slack",
        ),
        again=Again("NNLS of SciPy", again, CLEAR),
    )


def _lemma5(says: str, group: Callable[[Table], Mask], member: bool = True) -> Statement[Table]:
    return in_cone("Lemma 5", says, lambda n: n.choices, group, _chosen, member)


def _chosen(found: Table, draw: Draw, at: int) -> tuple[Tokens, np.ndarray]:
    d = int(found.d[at])
    given = random_instance(keys_of(draw.key("choices"), d, TRIALS[draw.scale])[int(found.trial[at])], d)
    return tokens_of(given.data, given.head), CHOICES[found.choice[at]]


STATEMENTS = [
    _lemma5("locally optimal α, every T_i non-empty: in the cone", lambda c: local(c) & ~c.empty),
    _lemma5("locally optimal α, some T_i empty: in the cone", lambda c: local(c) & c.empty),
    *(_lemma5(f"the same with d = {d} alone", lambda c, d=d: local(c) & c.empty & (c.d == d)) for d in DIMENSIONS),
    _lemma5(
        "α not locally optimal: outside of cone_ε(α) for all ε > 0",
        lambda c: c.status == SelectionStatus.not_local.value,
        member=False,
    ),
    Statement[Table](
        source="Lemma 5",
        says="α = opt, which is unique: cone_ε(opt) is the set of all matrices, as no token has to be barred (m = d)",
        inside=lambda n: n.choices.status == SelectionStatus.global_.value,
        residual=lambda n: np.where(np.isposinf(n.choices.depth), 0.0, 1.0),
    ),
]

register(CONES, title="Lemma 5", statements=STATEMENTS)

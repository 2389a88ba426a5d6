r"""Lemma 5 (Lemma 16): $W^{mm}_\alpha\in\mathrm{cone}_\varepsilon(\alpha)$ for small ε iff α is locally optimal."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np
from jaxtyping import Bool, Float, Int

from jaxflow._core import SelectionStatus
from jaxflow.margin import ProgramResult
from jaxflow.papers.dataset import Dataset, Sweep, checksum_key
from jaxflow.papers.registry import register
from jaxflow.papers.statement import Mask, Statement, largest
from jaxflow.papers.tarzanagh2023.verify.choices import CHOICES, N, T, all_choices, random_instance

X = TypeVar("X")

TRIALS = {"quick": 3, "paper": 20, "large": 300}
DIMENSIONS = (4, 6)
# A margin within this of one is support; solutions are certified to better. As in Definition 2's decision.
SUPPORT = 1e-9
CLEAR = 1e-6

LOCAL = (SelectionStatus.local.value, SelectionStatus.global_.value)
# Choices are those whose programs were solved to a duality gap.
MARGINS = "the duality gaps of the programs, on whose margins the rest is arithmetic"
DECIDED = (*LOCAL, SelectionStatus.not_local.value)


class Choices(NamedTuple):
    r"""All feasible choices of tokens of random instances, one after the other.

    `status` by Definition 2 (`SelectionStatus`); `empty`: some support set is; `near`: some margin is too close to
    one to call; `depth`: the largest ε (before the division by $\|W\|_F$) with $W^{mm}_\alpha$ in the cone,
    $\min_i\max_{t\in\mathrm{low}}\min_{\tau\in\mathrm{high}}$ of (5): +inf where no token scores higher, −inf
    where one does and none scores lower. `d`: of the instance.
    """

    status: Int[Any, " c"]
    empty: Bool[Any, " c"]
    near: Bool[Any, " c"]
    depth: Float[Any, " c"]
    d: Int[Any, " c"]

    @property
    def local(self) -> Mask:
        """Locally optimal, or globally."""
        return np.isin(self.status, LOCAL)

    @property
    def decided(self) -> Mask:
        """Neither the status nor a margin is too close to call."""
        return np.isin(self.status, DECIDED) & ~self.near


class ConeNumbers(NamedTuple):
    """`choices`: of all instances."""

    choices: Choices


def compute(scale: str, key: Any, say: Callable[[str], None]) -> Choices:
    """Every feasible choice of tokens of `TRIALS` instances for each d."""
    parts = []
    for d in DIMENSIONS:
        say(f"Lemma 5: all {T**N} choices of {TRIALS[scale]} instances with n = {N}, T = {T}, d = {d}")
        parts += [choices_of(one, d) for one in jax.random.split(jax.random.fold_in(key, d), TRIALS[scale])]
    return Choices(*(np.concatenate(values) for values in zip(*parts, strict=True)))


def choices_of(key: Any, d: int) -> Choices:
    """All feasible choices of one random instance."""
    found = all_choices(random_instance(key, d))
    feasible = found["result"] == ProgramResult.optimal.value
    excess, scores = found["excess"][feasible], found["scores"]
    index = CHOICES[feasible][:, :, None]
    scores = np.broadcast_to(scores, excess.shape)
    own = np.take_along_axis(scores, index, axis=2)
    other = np.arange(T) != index
    low, high = other & (scores < own), other & (scores >= own)
    nearest_low = np.where(low, excess, np.inf).min(axis=2)
    nearest_high = np.where(high, excess, np.inf).min(axis=2, initial=np.inf)
    barred = high.any(axis=2)
    # inf − inf would be a sequence of one token.
    depth = np.where(barred, np.where(barred, nearest_high, 0.0) - nearest_low, np.inf)
    return Choices(
        status=found["status"][feasible],
        empty=np.any(~np.any(found["support"][feasible], axis=2), axis=1),
        near=np.any(other & (excess > SUPPORT) & (excess <= CLEAR), axis=(1, 2)),
        depth=depth.min(axis=1),
        d=np.full(len(excess), d),
    )


CONES = Dataset(
    "tarzanagh2023",
    "cones",
    ConeNumbers,
    {"choices": Sweep(Choices, compute, checksum_key("cones"))},
    where=f"{__name__}:CONES",
)


def in_cone(
    source: str, says: str, choices: Callable[[X], Any], group: Callable[[Any], Mask], member: bool = True
) -> Statement[X]:
    """Of the choices of a group: a member of the cone has a depth above zero, the others none for any ε > 0.

    `choices` has a `depth`, and which are `decided`.
    """

    def residual(numbers: X) -> np.ndarray:
        found = choices(numbers)
        # Out of the cone for all ε: the depth is at most zero, to the rounding of margins.
        return np.where(found.decided, -found.depth if member else found.depth, np.nan)

    bound = -np.nextafter(CLEAR, 1.0) if member else SUPPORT

    def in_words(numbers: X, known: Mask) -> str:
        found = choices(numbers)
        wrong = int(np.sum(residual(numbers)[known] > bound))
        apart = int((group(found) & ~found.decided).sum())
        text = f"{wrong} of {int(known.sum())} are not"
        depth = found.depth[known]
        if np.isneginf(depth).any():
            text += f", {int(np.isneginf(depth).sum())} of them select a token with the lowest score of its sequence"
            text += f", the others miss it by {largest(-depth[np.isfinite(depth)]):.1e} at most" * member
        return text + f"; {apart} too close to call" * (apart > 0)

    return Statement(
        source=source,
        says=says,
        inside=lambda n: group(choices(n)),
        residual=residual,
        bound=bound,
        unit="−ε‖W‖, the cone's slack" if member else "ε‖W‖, the cone's slack",
        found=in_words,
        checked_by=lambda n, known: MARGINS,
    )


def _lemma5(says: str, group: Callable[[Choices], Mask], member: bool = True) -> Statement[ConeNumbers]:
    return in_cone("Lemma 5", says, lambda n: n.choices, group, member)


def _empty_at(d: int) -> Callable[[Choices], Mask]:
    return lambda c: c.local & c.empty & (c.d == d)


STATEMENTS = [
    _lemma5("locally optimal α, every T_i non-empty: in the cone", lambda c: c.local & ~c.empty),
    _lemma5("locally optimal α, some T_i empty: in the cone", lambda c: c.local & c.empty),
    *(_lemma5(f"the same with d = {d} alone", _empty_at(d)) for d in DIMENSIONS),
    _lemma5(
        "α not locally optimal: outside of cone_ε(α) for all ε > 0",
        lambda c: c.status == SelectionStatus.not_local.value,
        member=False,
    ),
]

register(
    CONES,
    "cones",
    title="Lemma 5",
    run_times={
        "quick": f"{T**N} choices of each of 6 instances, seconds",
        "paper": f"{T**N} choices of each of 40 instances",
        "large": f"{T**N} choices of each of 600 instances",
    },
    statements=STATEMENTS,
    verified=True,
)

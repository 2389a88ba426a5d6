"""Theorems 3 and 6 by discrete descent with the step sizes that they state, and Theorem 6's step size itself."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxflow._core import positive_or_one
from jaxflow.data import random_tokens
from jaxflow.margin import is_locally_optimal
from jaxflow.papers.experiment import Draw, Part, checksum_key, keys_of, mapped, register, swept
from jaxflow.papers.independent import first_step_needed, tokens_of
from jaxflow.papers.statement import BELOW_ZERO, Again, Mask, Statement
from jaxflow.papers.table import Table, stacked
from jaxflow.papers.tarzanagh2023.programs import optimal_program, solved
from jaxflow.papers.tarzanagh2023.verify import instances as draws
from jaxflow.papers.tarzanagh2023.verify.assumptions import SEPARATING
from jaxflow.papers.tarzanagh2023.verify.follow import PROGRAMS, converges, follow_all
from jaxflow.papers.verdicts import common_rate

# Six flows for each instance, in batches of 32.
TRIALS = {"quick": 16, "paper": 64, "large": 1024}
STEPS = {"quick": 10_000, "paper": 100_000, "large": 4_000_000}
# Of instances that are still on their way after that: some stay near a saddle for as long.
LATER = {"quick": 1_000_000, "paper": 10_000_000, "large": 40_000_000}
# Theorem 3: (n, T, d) of Assumption B.1, where few tokens in many dimensions all are support vectors, and of B.2.
GROWING = {"B.1": (2, 3, 10), "B.2": (3, 3, 3)}
# Descent that goes before the flow, of Theorem 6 at the sizes of the check by the flow.
LEAD = {"quick": 500, "paper": 5_000, "large": 50_000}
# First steps: far below the bound, at it, and as large as step 3 of the proof requires.
FIRST = ("1/L_W", "1/‖W^mm‖", "R_μ/‖∇L(0)‖")
# W(k) grows like log k and ‖∇L(W(k))‖ falls like 1/k: over the last tenfold of steps by this much at least.
FALL = 0.5
# ‖∇L(W(k))‖ is 1/k up to powers of log k, which move an exponent over a tenfold of steps by 1/log k.
LOGARITHMS = 0.1


def steepness(growing: Table) -> tuple[np.ndarray, np.ndarray]:
    """After a tenth of the steps of each run: ‖∇L‖ over its value there, and by how much ‖W‖ grows."""
    fall = np.exp(growing.log_gradient[..., 2] - growing.log_gradient[..., 1])
    return fall, growing.norm[..., 2] - growing.norm[..., 1]


def last(growing: Table) -> list[np.ndarray]:
    """`steepness` of the second run where there was one."""
    again = ~np.isnan(growing.norm[..., 1, 2])
    return [np.where(again, values[..., 1], values[..., 0]) for values in steepness(growing)]


def met(first: Table) -> Mask:
    """The hypotheses of Theorem 6 but for the size of the step."""
    return first.solved & first.holds


def _first(scale: str, key: Any) -> Table:
    return stacked(_separating(shape, keys_of(key, 10 + k, TRIALS[scale])) for k, shape in enumerate(SEPARATING))


def _flows(scale: str, key: Any) -> Table:
    steps = _first(scale, key).first
    starts = [
        _after_first(shape, LEAD[scale], keys_of(key, 10 + k, TRIALS[scale]), jnp.asarray(steps[k, :, index]))
        for k, shape in enumerate(SEPARATING)
        for index in range(len(FIRST))
    ]
    return follow_all(starts).split(len(SEPARATING), len(FIRST))


@eqx.filter_jit
def _growing(name: str, shape: tuple[int, int, int], keys: Array, steps: int) -> tuple[Array, Array, Array]:
    """Whether the assumption is met, and ‖W‖ and log ‖∇L‖ after a hundredth, a tenth and all of the steps."""

    def one(key: Array) -> tuple[Array, Array, Array]:
        key_data, key_start = jax.random.split(key)
        data, head = (draws.equal_scores if name == "B.2" else random_tokens)(key_data, *shape)
        best, solution = optimal_program(data, head)
        inside = solved(solution.result.value)
        if name == "B.1":
            inside &= jnp.all(is_locally_optimal(data, head, best, solution).support | best)
        start = jax.random.normal(key_start, (head.size, head.size))
        saves = jnp.asarray([steps // 100, steps // 10, steps])
        saved: Any = draws.plain_descent(data, head, start, steps, saves).saved
        return inside, jnp.exp(saved.log_norm), saved.log_gradient_norm

    return jax.vmap(one)(keys)


def growing_longer(keys: Array, cell: tuple[str, int, int]) -> Table:
    """Descent with `STEPS`, and with `LATER` steps once more for those that are not growing after the first.

    `inside`: whether the assumption is met; `norm`, `log_gradient` `(2, 3)`: ‖W‖ and log ‖∇L‖ after a hundredth, a
    tenth and all steps of both, NaN where the former were enough.
    """
    (name, steps, later), shape = cell, GROWING[cell[0]]
    inside, *first = (np.asarray(value) for value in _growing(name, shape, keys, steps))
    norm, log_gradient = (np.stack([value, np.full_like(value, np.nan)], axis=1) for value in first)
    found = Table(inside=inside, norm=norm, log_gradient=log_gradient)
    # NaN does neither.
    fall, rise = steepness(found)
    grows = (fall <= FALL) & (rise > 0)
    for index in np.flatnonzero(inside & ~grows[:, 0]):
        _, norm[index, 1], log_gradient[index, 1] = (x[0] for x in _growing(name, shape, keys[index][None], later))
    return found


@mapped(static=1)
def _separating(shape: tuple[int, int, int], key: Array) -> Table:
    """Assumption C, and what the statement and its proof say of the first step.

    Whether the program is `solved` and Assumption C `holds`; `first` `(3,)`: the steps `FIRST`; `ratio`: the proof's
    η(0) times ‖W^mm‖; `push`: the least margin of −∇L/‖∇L‖ at a point of the cone with the least margin `least`.
    """
    n, T, d = shape
    key_data, key_V, key_size = jax.random.split(key, 3)
    data, head = random_tokens(key_data, n, T, d)
    best, solution = optimal_program(data, head)
    size = jnp.linalg.norm(solution.primal)
    theta = 1.0 / positive_or_one(size)
    down = -draws.gradient_of(data, head, jnp.zeros((d, d)))
    margins = draws.margins_of(data, best, down)
    holds = jnp.min(margins) > 0
    # W(1) is a multiple of −∇L(0), so in S_μ of (48) with this μ; (59) says how long it has to be.
    slope = jnp.linalg.norm(down)
    mu = jnp.min(margins) / slope / theta
    gaps = draws.gaps_of(data, head, best, theta)
    bound = draws.radius(gaps, jnp.where(holds, mu, 1.0), theta, T)
    first = jnp.stack([1.0 / draws.smoothness(data, head), theta, bound / slope])
    # (63a): does −∇L separate all tokens anywhere in the cone? At a point of it, half of the way out to a random one.
    line, margin, out = draws.way_out(data, best, solution.primal * theta, jax.random.normal(key_V, (d, d)), 40)
    point, least = line[out // 2], margin[out // 2] / theta
    far = draws.radius(gaps, least, theta, T)
    there = -draws.gradient_of(data, head, far * (1.0 + jax.random.uniform(key_size)) * point)
    return Table(
        solved=solved(solution.result.value),
        holds=holds,
        first=first,
        ratio=bound / slope / theta,
        push=jnp.min(draws.margins_of(data, best, there / jnp.linalg.norm(there))),
        least=least,
    )


@mapped(static=2)
def _after_first(shape: tuple[int, int, int], steps: int, key: Array, eta: Array) -> Any:
    """Where the first step of size η and then `steps` steps of 1/L_W have led, as the start of an instance."""
    data, head = random_tokens(jax.random.split(key, 3)[0], *shape)
    start = -eta * draws.gradient_of(data, head, jnp.zeros((shape[2], shape[2])))
    return draws.padded(draws.instance(data, head, draws.plain_descent(data, head, start, steps).final.model.W))


# Plain descent: steps η = 1/L_W with the constant of (3). `flows` `(2, 3, b)`: from where it has led after each first
# step.
DESCENTS = swept(
    "tarzanagh2023",
    "descents",
    {
        "growing": Part(
            growing_longer,
            lambda scale: {f"Assumption {name}": (name, STEPS[scale], LATER[scale]) for name in GROWING},
            TRIALS,
            block=16,
            draw_from=lambda seed, cell: jax.random.fold_in(
                checksum_key("descents")(seed), list(GROWING).index(cell[0])
            ),
            way="as a block",
        )
    },
    first=_first,
    flows=_flows,
)


def grows(name: str) -> Statement[Table]:
    """Of one assumption."""
    cell, (n, T, d) = list(GROWING).index(name), GROWING[name]

    def residual(growing: Table) -> np.ndarray:
        falls, rises = last(growing)
        # A start that is still on its way is not at rest: only a gradient that falls while the norm does not grow is.
        return np.where((falls <= FALL) & (rises <= 0), np.inf, falls)

    return Statement(
        source="Theorem 3",
        says=f"descent with η = 1/L_W from random W(0), Assumption {name}, n = {n}, T = {T}, d = {d}: ‖∇L(W(k))‖ → 0 "
        "and ‖W(k)‖ → ∞",
        of=lambda n: n.growing.at(cell),
        inside=lambda growing: growing.inside,
        residual=residual,
        bound=(FALL, "‖∇L‖ over its value at a tenth of the steps"),
        rate=lambda growing, known: common_rate(
            -np.log10(last(growing)[0][growing.inside]), 1.0, bias=LOGARITHMS, law="‖∇L(W(k))‖ against k"
        ),
        # The gradient has not fallen at all.
        late=1.0,
    )


def stepped(size: int, index: int) -> Statement[Table]:
    """Of one size, after one first step."""
    n, T, d = SEPARATING[size]

    def inside(numbers: Table) -> Mask:
        ratio = numbers.first.ratio[size]
        # The proof's first step is larger than the statement allows wherever this ratio is above one.
        return met(numbers.first)[size] & ((ratio <= 1.0) | (index != 2))

    more = ", more than the statement allows" * (index == 2)
    return converges(
        "Theorem 6",
        f"Assumption C, W(0) = 0, descent with η(0) = {FIRST[index]}{more}, η(k) = 1/L_W, then the flow, n = {n}, "
        f"T = {T}, d = {d}: W^mm",
        lambda n: n.flows.at((size, index)),
        inside,
    )


def _ratio_again(numbers: Table, draw: Draw, at: tuple[int, ...]) -> float:
    shape = SEPARATING[at[0]]
    key = keys_of(draw.key("first"), 10 + at[0], TRIALS[draw.scale])[at[1]]
    return first_step_needed(tokens_of(*random_tokens(jax.random.split(key, 3)[0], *shape)))


ALLOWED = Statement[Table](
    source="Theorem 6",
    says="the step sizes allowed, η(0) ≤ c/‖W^mm‖ with c = 1, include one with which step 3 of its proof works: W(1) "
    "in C̄_{μ,R_μ}, η(0) ≥ R_μ/‖∇L(0)‖ with R_μ of (59)",
    inside=lambda n: met(n.first),
    residual=lambda n: n.first.ratio,
    bound=(1.0, "the proof's η(0) times ‖W^mm‖; at most 1"),
    again=Again("NNLS of SciPy and (59) in NumPy", _ratio_again, PROGRAMS),
)

SEPARATES = Statement[Table](
    source="Theorem 6",
    says="(63a) of its proof: −∇L(W) separates all optimal tokens at every W of C̄_{μ,R}, R ≥ R_μ; one random W for "
    "each instance, whether Assumption C holds or not",
    inside=lambda n: n.first.solved & (n.first.least > 0),
    residual=lambda n: -n.first.push,
    bound=(BELOW_ZERO, "−min ⟨(x_opt − x_t)zᵀ, −∇L⟩/‖∇L‖; below 0"),
)

register(
    DESCENTS,
    title="Theorems 3 and 6 by descent",
    statements=[
        *(grows(name) for name in GROWING),
        *(stepped(size, index) for size in range(len(SEPARATING)) for index in range(len(FIRST))),
        ALLOWED,
        SEPARATES,
    ],
)

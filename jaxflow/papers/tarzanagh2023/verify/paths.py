"""Theorem 2 by regularisation paths of W and of (K, Q), and with it Lemmas 3 and 15."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxflow.data import TokenData, random_tokens
from jaxflow.margin import Nuclear, ProgramResult, numerical_rank
from jaxflow.papers.experiment import Mask, Part, Statement, Table, checksum_key, mapped, register, stacked, swept
from jaxflow.papers.tarzanagh2023.programs import optimal_program, solved
from jaxflow.papers.tarzanagh2023.verify.follow import follow_all, reached
from jaxflow.papers.tarzanagh2023.verify.instances import instance, padded
from jaxflow.papers.tarzanagh2023.verify.path_limits import combined_paths, factored_paths, tends

# Instances with n, T, d, at the bound max(T − 1, n) of Theorem 1: every choice of tokens can be separated; columns m of
# K and Q; how many exponents k of the bounds R = 4^k.
SIZE = Table(instances=12, shape=(3, 3, 3), columns=(3, 2), levels=8)
SIZES = {
    "quick": SIZE.replace(instances=8, shape=(2, 3, 2), columns=(2,)),
    "paper": SIZE,
    "large": SIZE.replace(instances=256, levels=10),
}
# The bound from which the flow is started beside the path.
FLOW_LEVEL = 2
# Values of programs are certified to about this.
SAME = 1e-8
# Points of the paths are stationary to 1e-6, relative to the gradient.
BALANCED = 1e-5
ANSWERS = (ProgramResult.optimal.value, ProgramResult.stationary.value)


def convex(programs: Table) -> Mask:
    """The convex program is solved."""
    return solved(programs.result[0])


def aim(programs: Table, m: int) -> tuple[Mask, np.ndarray]:
    """Of rank ≤ m: solved, and weights; by the convex program where its solution has that rank."""
    fits = convex(programs) & (programs.rank[0] <= m)
    if fits.all() or m != int(programs.shape[0]) - 1:
        return fits, programs.weights[0]
    return fits | np.isin(programs.result[1], ANSWERS), np.where(fits[:, None, None], *programs.weights)


def _drawn(scale: str, key: Any) -> tuple[Table, TokenData, Array]:
    size = SIZES[scale]
    return size, *_draw(size.shape, jax.random.split(_of_instances(key), size.instances))


def _of_instances(key: Array) -> Array:
    return jax.random.split(key)[0]


@mapped(static=1)
def _draw(shape: tuple[int, int, int], key: Array) -> tuple[TokenData, Array]:
    return random_tokens(key, *shape)


@mapped(static=1)
def nuclear_programs(rank: int | None, data: TokenData, head: Any) -> Table:
    """(Att-SVM*) of the optimal tokens: `result`, `value`, `rank`, `weights`; with `rank` the program with that bound,
    a stationary point of it (`ProgramResult.stationary`)."""
    _, solution = optimal_program(data, head, Nuclear(rank=rank) if rank else "nuclear")
    return Table(
        result=solution.result.value,
        value=solution.certificate.primal_value,
        rank=numerical_rank(solution.primal),
        weights=solution.primal,
    )


def _radii(size: Table) -> np.ndarray:
    return 4.0 ** np.arange(size.levels)


def _combined(scale: str, key: Any) -> Table:
    size, data, head = _drawn(scale, key)
    return combined_paths(data, head, _radii(size), _flows)


def _flows(data: TokenData, head: Array, path: Array) -> Mask:
    """The flow from zero and from the path's point at a moderate bound."""
    point = path[:, FLOW_LEVEL]
    given = jax.vmap(lambda a, v, W: padded(instance(a, v, W)))
    return reached(follow_all([given(data, head, W) for W in (jnp.zeros_like(point), point)])).T


def _factored(keys: Array, cell: tuple[Table, int]) -> Table:
    size, m = cell
    data, head = _draw(size.shape, keys)
    return factored_paths(keys, data, head, m, _radii(size), *aim(_solved(size, data, head), m))


def _solved(size: Table, data: TokenData, head: Array) -> Table:
    """(Att-SVM*) of the optimal tokens, the convex one and the one with rank ≤ n − 1: `result` (`ProgramResult`),
    `value`, `rank` `(2, b)` and solution `weights` `(2, b, d, d)`. `shape`: n, T, d; `columns` of K and Q."""
    found = [nuclear_programs(rank, data, head) for rank in (None, size.shape[0] - 1)]
    return Table(stacked(found).named, shape=np.asarray(size.shape), columns=np.asarray(size.columns))


# Paths from every choice of tokens; neither programs nor flows use them. `combined` `(b, m)`: of W, with flows from
# zero and from the path's point at R = 4^`FLOW_LEVEL`; `factored` `(c, b, m)`: of (K, Q) with each number of columns.
PATHS = swept(
    "tarzanagh2023",
    "regularization-paths",
    {
        "factored": Part(
            _factored,
            lambda scale: {f"m = {m}": (SIZES[scale], m) for m in SIZES[scale].columns},
            {scale: size.instances for scale, size in SIZES.items()},
            block=6,
            draw_from=lambda seed, cell: _of_instances(checksum_key("regularization-paths")(seed)),
            way="as a block",
        )
    },
    combined=_combined,
    programs=lambda scale, key: _solved(*_drawn(scale, key)),
)


def _same(combined: Table, known: Mask) -> str:
    zero, point = np.sum(combined.flows[known], axis=0)
    return f"flows tend to it, too: {zero} from zero, {point} from the path at R = {4**FLOW_LEVEL}, of {known.sum()}"


def lemma3(m: int) -> Statement[Table]:
    """With this bound on the rank."""

    def differs(numbers: Table) -> np.ndarray:
        (result, bounded), value = numbers.programs.result, numbers.programs.value
        return np.where(solved(result) & np.isin(bounded, ANSWERS), np.abs(value[1] / value[0] - 1.0), np.nan)

    return Statement(
        source="Lemma 3",
        says="(Att-SVM*) with rank ≤ m has the value C_cvx of the convex program where a solution of that has rank at "
        f"most m, m = {m}",
        inside=lambda n: convex(n.programs) & (n.programs.rank[0] <= m),
        residual=differs,
        bound=(SAME, "|C*/C_cvx − 1|"),
    )


LEMMA15 = Statement[Table](
    source="Lemma 15",
    says="solutions of (KQ-RP) have ‖KQᵀ‖_* = R and KᵀK = QᵀQ, so that the products solve the problem over ‖W‖_* ≤ R",
    # A point of the path that was not found is undecided.
    residual=lambda n: np.where(
        n.factored.found, np.maximum(n.factored.balance, np.abs(n.factored.size - 1.0)), np.nan
    ),
    bound=(BALANCED, "|‖KQᵀ‖_*/R − 1| or ‖KᵀK − QᵀQ‖/R"),
)


def statements(numbers: Table) -> list[Statement[Table]]:
    """Of the sizes of this scale."""
    n, T, d = numbers.programs.shape
    where = f"least of the paths from all {T**n} choices of tokens, n = {n}, T = {T}, d = {d}"

    def factored(cell: int, m: int) -> Statement[Table]:
        says = f"K̄_R Q̄_Rᵀ/R → W*^mm/C* for (KQ-RP) with m = {m} columns, {where}"
        return tends("Theorem 2", says, lambda n: n.factored.at(cell))

    return [
        tends("Theorem 2", f"W̄_R/R → W^mm/‖W^mm‖ for (W-RP), {where}", lambda n: n.combined, _same),
        *(factored(cell, int(m)) for cell, m in enumerate(numbers.programs.columns)),
        lemma3(int(n) - 1),
        LEMMA15,
    ]


register(PATHS, title="Theorem 2 and Lemmas 3, 15", statements=statements)

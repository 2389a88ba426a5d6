r"""The vertex that solves a real program in the ℓ1 norm, by the simplex method on its dual.

$$\max_\lambda b^\top\lambda\quad\text{s.t.}\quad r=A^\top\lambda,\ -1\le r\le1,\quad
\lambda_k\ge0\ (k\in I),\ \lambda_j\text{ free}\ (j\in E)$$
is a linear program with bounded variables that λ = 0 satisfies, so that there is no first phase (Dantzig, Linear
Programming and Extensions, 1963, ch. 18). A table keeps the basic variables, r at first, as linear functions of the
others, which stand at a bound, and in a last row the objective: the rates at the end are $\rho_j$ for $r_j=\pm1$, and
for $\lambda_k=0$ what the k-th margin lacks. The variable enters that improves the objective fastest for the length
of its edge (Goldfarb, Reid, Math. Program. 12, 1977). A variable that nothing stops is a Farkas ray.

A pivot is one plain update of $(d+1)(m+1)$ numbers, where an interior point step factorises. Random programs take 13 to
17 pivots for d = 10 and 20. The table also holds the inverse of the equations of the vertex, with which λ and ρ are
refined from the rows alone. Nothing here is trusted: what does not certify, and what is not the only solution, is
for the interior point.
"""

import enum

import equinox as eqx
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jaxflow._core import positive_or_one
from jaxflow.margin.conclude import default_tolerance

# Pivots for each basic variable that may leave, and some: random programs take at most two and a half for each.
PIVOTS, MORE_PIVOTS = 4, 20


class Kind(enum.IntEnum):
    """What a variable of the table is, and where it stands when it is not basic.

    - `weight`, `free`: a weight at zero, of an inequality or an equality. `unused`: one that must stay zero.
    - `low`, `high`: an entry of r at -1 (or basic), and at 1.
    """

    weight = 0
    free = 1
    unused = 2
    low = 3
    high = 4


class Vertex(eqx.Module):
    r"""`weights` λ and `primal` ρ; `ray`: λ is a Farkas ray instead; `unique`: away from every other vertex and no
    variable at two bounds; `pivots` done, and whether they came to their `end`."""

    weights: Float[Array, " m"]
    primal: Float[Array, " d"]
    ray: Bool[Array, ""]
    unique: Bool[Array, ""]
    pivots: Int[Array, ""]
    end: Bool[Array, ""]


class _State(eqx.Module):
    """`table` with a row for each basic variable and the objective, a column for each other and the values;
    `names`, len(Kind)·variable + kind, of rows, then of columns; `place` of the last that entered; `status` 0 under
    way, 1 optimal, 2 at a ray."""

    table: Float[Array, "rows columns"]
    names: Int[Array, " variables"]
    pivots: Int[Array, ""]
    place: Int[Array, ""]
    status: Int[Array, ""]


def find_vertex(
    rows: Float[Array, "m d"],
    inequality: Bool[Array, " m"],
    equality: Bool[Array, " m"],
    targets: Float[Array, " m"],
) -> Vertex:
    """The vertex from rows and targets of any scale."""
    m, d = rows.shape
    used = inequality | equality
    # Rows of size one, and the largest target: the objective tells what is rounding in every rate.
    sizes = jnp.max(jnp.abs(rows), axis=1)
    sizes = jnp.where(used & (sizes > 0), sizes, 1.0)
    rows = jnp.where(used[:, None], rows / sizes[:, None], 0.0)
    targets = jnp.where(used, targets / sizes, 0.0)
    height = positive_or_one(jnp.max(jnp.abs(targets)))
    targets = targets / height
    table = jnp.pad(jnp.concatenate([rows.T, targets[None, :]]), ((0, 0), (0, 1)))
    kinds = jnp.where(inequality, Kind.weight, jnp.where(equality, Kind.free, Kind.unused))
    names = len(Kind) * jnp.arange(d + m) + jnp.concatenate([jnp.full((d,), Kind.low), kinds])
    nothing = jnp.zeros((), int)
    state = _State(table, names, nothing, nothing, nothing)
    limit = PIVOTS * min(m, d) + MORE_PIVOTS

    def unfinished(state: _State) -> Bool[Array, ""]:
        return (state.status == 0) & (state.pivots < limit)

    return _read(lax.while_loop(unfinished, _pivot, state), rows, targets, sizes, height)


def _kind(names: Int[Array, "..."]) -> Int[Array, "..."]:
    return names % len(Kind)


def _pivot(state: _State) -> _State:
    """One variable enters, and goes to its other bound or takes the place of the first that it drives to one."""
    table, names = state.table, state.names
    d, m = (length - 1 for length in table.shape)
    noise = default_tolerance(table.dtype, 5e4)
    rates, kinds = table[d, :m], _kind(names[d:])
    ways = jnp.where((kinds == Kind.high) | ((kinds == Kind.free) & (rates < 0)), -1.0, 1.0)
    gains = jnp.where(kinds == Kind.unused, 0.0, ways * rates)
    # At the end no rate is larger than the objective and one.
    able = gains > noise * (1.0 + jnp.abs(table[d, m]))
    keys = jnp.where(able, gains**2 / (1.0 + jnp.sum(table[:d, :m] ** 2, axis=0)), 0.0)
    place = jnp.argmax(keys)
    optimal = ~(keys[place] > 0)

    column, enters = table[:, place], names[d + place]
    way, kind = jnp.sign(column[d]), _kind(enters)
    change = way * column[:d]
    basic = _kind(names[:d])
    bound = jnp.where(basic >= Kind.low, 1.0, jnp.where((basic == Kind.weight) & (change < 0), 0.0, jnp.inf))
    steep = jnp.abs(change)
    stops = steep > noise * jnp.maximum(1.0, jnp.max(steep))
    room = jnp.maximum(bound - jnp.sign(change) * table[:d, m], 0.0)
    lengths = jnp.where(stops, room / jnp.where(stops, steep, 1.0), jnp.inf)
    first = jnp.argmin(lengths)
    across = jnp.where(kind >= Kind.low, 2.0, jnp.inf)
    length = jnp.minimum(lengths[first], across)
    ray = ~optimal & ~jnp.isfinite(length)
    moves = ~optimal & ~ray
    swaps = moves & (lengths[first] < across)

    pivot = column[first]
    row = jnp.where(swaps, table[first] / jnp.where(swaps, pivot, 1.0), 0.0)
    row = jnp.where(swaps & (jnp.arange(m + 1) == place), -1.0 / jnp.where(swaps, pivot, 1.0), row)
    row = jnp.where(jnp.arange(m + 1) == m, jnp.where(moves, -way * length, 0.0), row)
    here, there = swaps & (jnp.arange(d + 1) == first), swaps & (jnp.arange(m + 1) == place)
    column = jnp.where(here, 1.0, column)
    stood = jnp.where(kind == Kind.high, 1.0, jnp.where(kind == Kind.low, -1.0, 0.0))
    kept = jnp.where(here[:, None] | there[None, :], 0.0, table)
    kept = jnp.where(here[:, None] & (jnp.arange(m + 1) == m)[None, :], stood, kept)
    table = kept - column[:, None] * row[None, :]

    leaves = names[first]
    up = Kind.high - Kind.low
    leaves = jnp.where((_kind(leaves) == Kind.low) & (change[first] > 0), leaves + up, leaves)
    crosses = jnp.where(kind == Kind.low, enters + up, enters - up)
    slots = jnp.arange(d + m)
    now = jnp.where(swaps, leaves, jnp.where(moves, crosses, enters))
    names = jnp.where(slots == d + place, now, names)
    names = jnp.where(swaps & (slots == first), jnp.where(kind == Kind.high, enters - up, enters), names)
    status = jnp.where(optimal, 1, jnp.where(ray, 2, 0))
    return _State(table, names, state.pivots + moves, place, status)


def _read(state: _State, rows: Float[Array, "m d"], targets: Float[Array, " m"], sizes: Array, height: Array) -> Vertex:
    """λ and ρ of a table, refined, in the units of the program."""
    m, d = rows.shape
    table, kinds = state.table, _kind(state.names)
    near = default_tolerance(targets.dtype, 5e6)
    ray = state.status == 2
    slots = jnp.zeros_like(kinds).at[state.names // len(Kind)].set(jnp.arange(d + m))
    way = jnp.sign(table[d, state.place])
    entries, weights = slots[:d], slots[d:]
    on, active = entries >= d, weights < d
    column, row = jnp.where(on, entries - d, 0), jnp.where(active, weights, 0)
    inverse = jnp.where(active[:, None] & on[None, :], table[row[:, None], column[None, :]], 0.0)
    bounds = jnp.where(on, jnp.where(kinds[entries] == Kind.high, 1.0, -1.0), 0.0)
    bounds = jnp.where(ray, 0.0, bounds)
    values = jnp.where(ray, way * table[:d, state.place], table[:d, m])
    weight = jnp.where(active, values[row], 0.0)
    weight = jnp.where(ray & (weights == d + state.place), way, weight)
    rates = table[d, :m]
    rho = jnp.where(on, rates[column], 0.0)
    # Each refinement gains the digits that the table has.
    for _ in range(2):
        weight = weight + inverse @ (bounds - weight @ rows)
        rho = rho + (targets - rows @ rho) @ inverse

    far = jnp.abs(rates) > near * jnp.max(jnp.abs(rates))
    unique = jnp.all(far | (kinds[d:] == Kind.unused))
    heaviest = jnp.max(jnp.where(kinds[:d] == Kind.weight, table[:d, m], 0.0))
    inside = jnp.where(kinds[:d] == Kind.weight, table[:d, m] > near * heaviest, jnp.abs(table[:d, m]) < 1.0 - near)
    unique = unique & jnp.all(inside | (kinds[:d] == Kind.free))
    return Vertex(weight / sizes, rho * height, ray, unique, state.pivots, state.status > 0)

r"""Theorems 1 and 2, Corollaries 1 to 3: limit directions on random separable data."""

from itertools import accumulate
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.integrate import solve_ivp

from jaxflow._core import Outcome, checked
from jaxflow.data import LinearData
from jaxflow.limits import find_limit
from jaxflow.models import (
    AbstractLinearNetwork,
    Decomposition,
    DeepLinearNetwork,
    DiagonalLinearNetwork,
    LinearConvolutionalNetwork,
    LinearTensorNetwork,
    decomposition_of,
)
from jaxflow.papers.experiment import BELOW_ZERO, Again, Dataset, Draw, Part, Statement, Table, common_rate, register
from jaxflow.papers.independent import RTOL
from jaxflow.papers.yun2021.flows import classification, direction_distance, random_decomposition, separable
from jaxflow.study import subkey
from jaxflow.theory import push_direction

# Beyond ρ^L = 1e6 the flow is the limiting one; its margins keep a floor of about one over that.
FLOOR = 1e-5
# A slow component with dual slack 1 − κ leaves at most this at the lengths reached.
SLOW = 1e-2
# L = 3: the exponent is fitted where ‖β‖ grows by a factor of eight only, with margins not yet equal.
FITTED = 0.25
# A loss of e^-100: with the direction of a separator it falls like e^-μ‖β‖.
SMALL_LOSS = -100.0
# Where SciPy's flows end, and the gap up to which a flow may still be on its way.
LOG_TIME, LATE = 1e6, 1e-2
# Networks by name; "transformed": a random S with more rows than columns, and random orthonormal U_1, U_2.
KINDS = (
    "fully connected",
    "fully connected, L = 3",
    "fully connected, L = 4",
    "diagonal",
    "convolutional",
    "transformed",
    "diagonal, L = 3",
    "convolutional, L = 3",
)
CONNECTED, CONNECTED_3, CONNECTED_4, DIAGONAL, CONVOLUTIONAL, TRANSFORMED, DIAGONAL_3, CONVOLUTIONAL_3 = range(8)
# n data in d dimensions.
SIZES = {"quick": (2, 4), "paper": (5, 10), "large": (5, 20)}
TRIALS = {"quick": 3, "paper": 100, "large": 1000}


def network_of(kind: str, key: Any, data: LinearData, equal: bool = True) -> Any:
    """A start of size one: the loss falls below one soon, and the last layer is zero, as Theorem 2 allows; `equal`: of
    three diagonal layers the others are the same."""
    depth = int(kind[-1]) if "L" in kind else 2
    if kind.startswith("fully connected"):
        return DeepLinearNetwork.init(key, data, width=2, depth=depth, alpha=0.7)
    if kind.startswith("convolutional"):
        return LinearConvolutionalNetwork.init(key, data, depth=depth, alpha=0.5)
    if kind.startswith("diagonal"):
        scheme = "equal" if equal and depth > 2 else "zero_last"
        return DiagonalLinearNetwork.init(key, data, depth=depth, alpha=0.7, scheme=scheme)
    d = data.inputs.shape[1]
    first = 0.7 * jax.random.normal(subkey(key, "v_1"), (d + 2,))
    return LinearTensorNetwork.from_decomposition(random_decomposition(key, d + 1, d), (first, jnp.zeros(d + 3)))


def follow(key: Any, setting: tuple[str, int, int]) -> Table:
    r"""Where `find_limit` ends on one data set: one of `KINDS`, on n points in d dimensions.

    - `outcome`; `start`: λα² of the theorem's condition on the start (of Corollary 1: one less the loss there).
    - `flow_gap`, `stationarity`, `least_multiplier`: of the flow's own certificate;
    - `singular`: the residual of (8); `share`: of ρ on singular values below the top (NaN unless L = 2 and the network
      decomposes).
    - `drift`: $1-\cos$ between the last direction of $X^\top r$ and that at half of the exact flow's last points.
    - `log_loss`: log L where the flow ends.
    - `exponent`, `predicted`: of the gap of the weights in log t, fitted and by the certified dual; `slope`: of the
      distance of directions in ‖β‖.
    """
    network, n, d = setting
    X, y = separable(subkey(key, "data"), n, d)
    data = LinearData(X, y)
    model = network_of(network, subkey(key, "start"), data)
    limit = find_limit(classification(X, y), model, throw=False)
    final: Any = limit.trajectory.final
    saved: Any = limit.trajectory.points
    end = jax.tree.map(lambda x: x[None], push_direction(X, final.multipliers))
    pushes = jnp.concatenate([jax.vmap(lambda p: push_direction(X, p))(saved.multipliers), end])
    share = jnp.asarray(jnp.nan)
    if network in ("diagonal", "convolutional", "transformed"):
        share = 1.0 - top_singular_share(final.model, decomposition_of(final.model), data, final.multipliers)
    beta = final.model.linear_coefficients()
    return Table(
        outcome=limit.outcome.value,
        start=limit.prediction.assumptions[-1].slack,
        flow_gap=limit.flow_certificate.duality_gap,
        stationarity=limit.flow_certificate.stationarity,
        least_multiplier=jnp.min(-y * final.multipliers) / jnp.max(jnp.abs(final.multipliers)),
        singular=limit.singular_residual,
        share=share,
        drift=0.5 * jnp.sum((pushes[-1] - pushes[len(pushes) // 2]) ** 2),
        log_loss=classification(X, y).log_value(final.model),
        exponent=limit.rate.exponent,
        predicted=limit.rate.predicted,
        slope=_approach(saved, beta),
    )


@checked()
def top_singular_share(
    network: AbstractLinearNetwork, decomposition: Decomposition, data: LinearData, multipliers: Float[Array, " n"]
) -> Float[Array, ""]:
    r"""Theorem 2 for L = 2: the least $|[S u]_j|/\max_k|[Su]_k|$ over components that stay in ρ, weighted.

    $\sum_j|\rho_j||[Su]_j|/(\sum_j|\rho_j|\max_k|[Su]_k|)$, one exactly where ρ lives on top singular vectors only.
    """
    push = jnp.abs(decomposition.transform @ push_direction(data.inputs, multipliers))
    rho = jnp.abs(decomposition.singular_coefficients(network.layers))
    return jnp.sum(rho * push) / (jnp.sum(rho) * jnp.max(push))


def _approach(saved: Any, beta: Any) -> Any:
    r"""The slope of $\log\|\hat\beta(t)-\hat\beta_\infty\|$ against $\log\|\beta(t)\|$ over the save points."""
    path = jax.vmap(lambda model: model.linear_coefficients())(saved.model)
    y = jnp.log(jax.vmap(lambda one: direction_distance(one, beta))(path))
    x = jnp.log(jnp.linalg.norm(path, axis=1))
    x = x - jnp.mean(x)
    return jnp.sum(x * y) / jnp.sum(x**2)


LIMITS = Dataset(
    "yun2021",
    "directions",
    {
        "limits": Part(
            follow, lambda scale: {kind: (kind, *SIZES[scale]) for kind in KINDS}, TRIALS, block=25, way="in turn"
        )
    },
)


def _followed(limits: Table, values: Any) -> np.ndarray:
    """Of flows that got there."""
    return np.where(np.isfinite(values) & (limits.outcome != Outcome.failed.value), values, np.nan)


def _starts(row: int) -> Any:
    """Who satisfies the condition on the start. Corollary 1 has none at time zero."""
    return lambda n: (n.limits.start[row] > 0) | (row < DIAGONAL)


def _stationary(limits: Table) -> np.ndarray:
    return np.maximum(limits.stationarity, -limits.least_multiplier)


def _certified(limits: Table, values: Any) -> np.ndarray:
    """Of flows whose limit their own multipliers certify: by the duality gap, or by KKT where ‖ρ‖_(2/3) is least."""
    convex = np.arange(len(KINDS))[:, None] < DIAGONAL_3
    certified = np.where(convex, limits.flow_gap, _stationary(limits)) <= FLOOR
    return np.where(certified, _followed(limits, values), np.nan)


# Directions that are certified are limits themselves.
OWN_DUAL = f"the flow's own multipliers to {FLOOR:.0e}"

SINGULAR = Statement[Table](
    source="Theorem 1",
    says="layers converge in direction to singular vectors of M(−u), u the direction of X^T r: residual of (8)",
    residual=lambda n: _certified(n.limits, n.limits.singular),
    bound=(SLOW, "residual of (8) relative to s"),
    certified=f"{OWN_DUAL}; what is left is of slow components",
)
TURNS = Statement[Table](
    source="Remark 1",
    says="X^T r has settled in direction, as Theorem 2 assumes of its limit: 1 − cos between its last value and that "
    f"at half of the exact flow's last points is at most {SLOW:g}",
    inside=lambda n: np.stack([_starts(row)(n) for row in range(len(KINDS))]),
    residual=lambda n: _followed(n.limits, n.limits.drift),
    bound=(SLOW, "1 − cos"),
)

LOSS = Statement[Table](
    source="Theorem 2 (loss)",
    says="L(Θ(t)) → 0 from starts with λ > 0, networks that decompose: log L where the flow ends, in the direction of "
    "a separator",
    inside=lambda n: n.limits.start[DIAGONAL:] > 0,
    residual=lambda n: _certified(n.limits, n.limits.log_loss)[DIAGONAL:],
    bound=(SMALL_LOSS, "log L"),
    # A loss of one and more has not fallen.
    late=0.0,
    certified=OWN_DUAL,
)


def connected_gap(layers: list[np.ndarray], rows: np.ndarray) -> float:
    """The own duality gap of a fully connected network at log t = `LOG_TIME`, by LSODA; NaN where it fails."""
    places = np.cumsum([layer.size for layer in layers])[:-1]

    def products(flat: np.ndarray) -> tuple[list[np.ndarray], list[np.ndarray], np.ndarray]:
        parts = [part.reshape(layer.shape) for part, layer in zip(np.split(flat, places), layers, strict=True)]
        before = list(accumulate(parts[:-1], np.matmul, initial=np.eye(rows.shape[1])))
        after = list(accumulate(parts[-2::-1], lambda last, part: part @ last, initial=parts[-1]))
        return before, after[:-1], after[-1]

    def field(s: float, flat: np.ndarray) -> np.ndarray:
        before, after, beta = products(flat)
        pull = np.exp(s - rows @ beta) @ rows
        moves = [np.outer(left.T @ pull, right) for left, right in zip(before[:-1], after[::-1], strict=True)]
        return np.concatenate([*(move.ravel() for move in moves), before[-1].T @ pull])

    start = np.concatenate([layer.ravel() for layer in layers])
    found = solve_ivp(field, (0.0, LOG_TIME), start, method="LSODA", rtol=RTOL, atol=1e-2 * RTOL)
    beta = products(found.y[:, -1])[2]
    margins = rows @ beta
    weights = np.exp(np.min(margins) - margins)
    gap = np.linalg.norm(beta) * np.linalg.norm(weights @ rows) / (np.min(margins) * np.sum(weights)) - 1.0
    return float(gap) if found.success and np.min(margins) > 0 else np.nan


def max_margin_direction(row: int) -> Statement[Table]:
    """Corollary 1, of fully connected networks of one depth."""

    def again(numbers: Table, draw: Draw, at: tuple[int, ...]) -> float:
        key, (kind, n, d) = draw.instance("limits", at[0], row)
        X, y = separable(subkey(key, "data"), n, d)
        start = network_of(kind, subkey(key, "start"), LinearData(X, y))
        return connected_gap([np.asarray(layer) for layer in start.layers], np.asarray(y[:, None] * X))

    says = f"fully connected networks, L = {2 + row}: β converges in direction to the l2 max-margin classifier"
    # Four layers leave a gap of 3e-4 at the end of SciPy's flows.
    check = Again("LSODA of SciPy", again, 1e-3)
    return certified(row, "Corollary 1", says, late=LATE, again=check)


def certified(row: int, source: str, says: str, **more: Any) -> Statement[Table]:
    """The flow's own duality gap."""
    return Statement(
        source=source,
        says=f"{says}, by the flow's dual",
        inside=_starts(row),
        residual=lambda n: _followed(n.limits, n.limits.flow_gap)[row],
        bound=(FLOOR, "the flow's own duality gap"),
        certified=OWN_DUAL,
        **more,
    )


def decays(row: int) -> Statement[Table]:
    """The gap of the weights falls, with the exponent in log t that 1 − κ of the certified dual predicts."""
    return Statement(
        source="beyond the paper",
        says=f"{KINDS[row]}, L = 2: what is left of slow coordinates decays like (log t)^−(1−κ)",
        of=lambda n: n.limits.at(row),
        inside=lambda limits: (limits.start > 0) | (row < DIAGONAL),
        residual=lambda limits: -_followed(limits, limits.exponent),
        bound=(BELOW_ZERO, "minus the fitted exponent"),
        rate=lambda limits, known: common_rate(
            _followed(limits, limits.exponent), limits.predicted, law="the weights' gap against log t"
        ),
    )


def top_vectors(row: int) -> Statement[Table]:
    """The proof of Theorem 2 for L = 2."""
    return Statement(
        source="Theorem 2",
        says=f"{KINDS[row]}, L = 2: parameters converge in direction to top singular vectors of M(−u)",
        inside=_starts(row),
        residual=lambda n: _certified(n.limits, n.limits.share)[row],
        bound=(SLOW, "share of ρ on singular values below the top"),
        certified=f"{OWN_DUAL}; what is left is of slow components",
    )


def stationary(row: int, source: str, says: str) -> Statement[Table]:
    """L = 3: a residual alone says little of sparse points, so signs of the multipliers and margins are held too."""
    return Statement(
        source=source,
        says=says,
        inside=_starts(row),
        residual=lambda n: _followed(n.limits, _stationary(n.limits))[row],
        bound=(FLOOR, "KKT residual, or minus the least multiplier"),
        certified=OWN_DUAL,
    )


def _slopes(numbers: Table) -> np.ndarray:
    return _followed(numbers.limits, numbers.limits.slope)[DIAGONAL_3]


APPROACH = Statement[Table](
    source="beyond the paper",
    says="diagonal networks, L = 3: entries of ρ off the support tend to constants, so that the direction of β "
    "approaches its limit like 1/‖β‖",
    residual=lambda n: np.abs(_slopes(n) + 1.0),
    bound=(FITTED, "|fitted exponent of ‖β‖ + 1|"),
    rate=lambda n, known: common_rate(-_slopes(n), 1.0, bias=FITTED, law="distance of directions against ‖β‖"),
    # Those that are late at the lengths seen decide nothing, unless they do not approach it at all.
    late=1.0,
)

register(
    LIMITS,
    title="Theorems 1 and 2, Corollaries 1 to 3",
    statements=[
        SINGULAR,
        *(max_margin_direction(row) for row in range(DIAGONAL)),
        decays(CONNECTED),
        *(
            statement
            for row, source, says in (
                (DIAGONAL, "Corollary 2", "diagonal networks, L = 2: l1 max-margin"),
                (CONVOLUTIONAL, "Corollary 3", "full-length convolutional networks, L = 2: DFT-domain l1 max-margin"),
                (
                    TRANSFORMED,
                    "Theorem 2",
                    "a random S with more rows than columns, L = 2: l1 max-margin of the rows S x_i",
                ),
            )
            for statement in (certified(row, source, says), decays(row), top_vectors(row))
        ),
        stationary(
            DIAGONAL_3,
            "Corollary 2",
            "diagonal networks, L = 3: a stationary point of the l_(2/3) max-margin program by the flow's multipliers",
        ),
        stationary(
            CONVOLUTIONAL_3,
            "Corollary 3",
            "full-length convolutional networks, L = 3: a stationary point of the DFT-domain l_(2/3) max-margin "
            "program by the flow's multipliers",
        ),
        APPROACH,
        TURNS,
        LOSS,
    ],
)

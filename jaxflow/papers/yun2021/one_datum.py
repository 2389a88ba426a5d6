r"""Theorems 3 and 5, Corollary 4: one data point, two layers, any network."""

from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np

from jaxflow._core import good, linalg
from jaxflow.data import LinearData
from jaxflow.flow import LossExcess, integrate
from jaxflow.models import LinearConvolutionalNetwork, as_tensor_network
from jaxflow.papers.experiment import Dataset, Part, Rate, Statement, Table, common_rate, power_laws, register
from jaxflow.papers.yun2021.closed_forms import direction_limit, filtered_direction, point_limit
from jaxflow.papers.yun2021.flows import direction_distance, distance, far_out, regression
from jaxflow.papers.yun2021.starts import NETWORKS, start_at
from jaxflow.study import subkey
from jaxflow.theory.pairs import data_singular

# Dopri8 at rtol 1e-13 keeps three digits of this.
CLOSED = 1e-10
# Directions at the end of the path, where the singular gap allows.
DIRECTION = 1e-8
# Lengths of the classification paths: log‖β‖ = 2 log ℓ, about 300.
FAR = 150.0
SAVES = 60
# Errors between 1e-9 and 1e-2 still have their next terms in them: exponents are fitted to this.
FITTED = 0.02
# A loss of e^-100: at these lengths the margin is e^300 or so.
SMALL_LOSS = -100.0
# 1 − cos that is small at the smallest α.
PARALLEL = 1e-3
LENGTHS = (1, 2, 3)
# The dimension, and scales of Theorem 5 in increasing order.
SIZES = {
    "quick": (4, (1e-4, 1.0, 10.0)),
    "paper": (5, (1e-4, 1e-2, 1.0, 10.0)),
    "large": (5, (1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0)),
}
TRIALS = {"quick": 4, "paper": 100, "large": 1000}
TIES = {"quick": 4, "paper": 16, "large": 64}

# A network on one point in d dimensions, from starts of these sizes `(a,)`.
Setting = tuple[str, int, Any]


def end(key: Any, setting: Setting) -> Table:
    """The flow of a regression, one datum of Theorem 5, from starts of a sizes `alphas`: relative distance `error` of
    the layers from their limit points, |cos(β, x)| as `along`, the `slack` of the condition on the start, whether the
    flow was `followed`. All `(a,)`."""
    network, d, alphas = setting
    x, z = (jax.random.normal(subkey(key, name), (d,)) for name in ("x", "start"))
    sign = jax.random.rademacher(subkey(key, "sign"), ()).astype(float)
    y = jax.random.uniform(subkey(key, "y"), (), minval=0.5, maxval=2.0) * sign

    def one(alpha: Any) -> Table:
        start = start_at(network, x, z, alpha)
        closed = point_limit(start, x, y)
        # The residual decays at the rate ‖x‖|y| or α²‖x‖² or faster, once the plateau, log(1/α)/‖x‖ long, is passed.
        # (Much longer, and the explicit method only hovers at its stability limit.)
        until = (20.0 + 2 * jnp.log(1.0 / alpha) + 40.0 / jnp.abs(y)) / jnp.linalg.norm(x) / jnp.maximum(1.0, alpha**2)
        path = integrate(
            regression(x[None], y[None]),
            start,
            clock="physical_time",
            until=until,
            solver=diffrax.Dopri8(),
            controller=diffrax.PIDController(rtol=1e-13, atol=1e-16),
            stop=LossExcess(jnp.log(1e-12 * jnp.abs(y))),
            # For α = 10 the step that Diffrax would begin with can overflow, from which its controller does not come
            # back.
            dt0=1e-5,
            throw=False,
        )
        pairs = zip(as_tensor_network(path.final.model).layers, closed.layers, strict=True)
        beta = path.final.model.linear_coefficients()
        along = jnp.abs(beta @ x) / jnp.linalg.norm(beta) / jnp.linalg.norm(x)
        error = jnp.maximum(*(distance(a, b) for a, b in pairs))
        return Table(alphas=alpha, error=error, along=along, slack=closed.slack, followed=good(path.result))

    return jax.lax.map(one, alphas)


def turn(key: Any, setting: tuple[int, int]) -> Table:
    r"""The flow of the exponential loss with filters of a length in d dimensions, far out.

    One datum of Theorem 3 at m save points: distances `errors` `(m, 3)` of the directions of $v_1,v_2,\beta$, the
    `second` component of ρ over the first, `sizes` log‖β‖ `(m,)`; the `rate` of the singular gap, the `slack` of the
    condition on the start, distances of the predicted direction from that of Corollary 4, `filtered`, and of yx,
    `datum`; `log_loss` at the end; and whether the flow was followed, `ok`.
    """
    length, d = setting
    x = jax.random.normal(subkey(key, "x"), (d,))
    y = jax.random.rademacher(subkey(key, "y"), ()).astype(float)
    start = LinearConvolutionalNetwork.init(
        subkey(key, "start"), LinearData(x[None], y[None]), sizes=(length,), scheme="zero_last"
    )
    predicted = direction_limit(start, x, y)
    path = far_out(start, x, y, FAR, jnp.linspace(0.5, FAR, SAVES))
    _, found = data_singular(start, x)

    def look(model: Any) -> tuple[Any, Any, Any]:
        beta = model.linear_coefficients()
        first, second = model.layers
        rho = jnp.abs((found.left.T @ first) * (found.right.T @ second))
        aims = (predicted.first, predicted.second, predicted.coefficients)
        errors = jnp.stack([direction_distance(a, b) for a, b in zip((first, second, beta), aims, strict=True)])
        # The slowest component alone: a third one, which decays faster, would bend the line.
        return errors, rho[1] / rho[0] if len(rho) > 1 else jnp.asarray(0.0), jnp.log(jnp.linalg.norm(beta))

    errors, second, sizes = jax.vmap(look)(path.points.model)
    filtered, _ = filtered_direction(x, y)
    return Table(
        errors=errors,
        second=second,
        sizes=sizes,
        rate=predicted.rate,
        slack=predicted.slack,
        filtered=direction_distance(predicted.coefficients, filtered),
        datum=direction_distance(predicted.coefficients, y * x),
        log_loss=-y * (x @ path.final.model.linear_coefficients()),
        ok=good(path.result),
    )


def tie(key: Any, setting: None) -> Table:
    """x with $x^\\top\\overleftarrow x=(x_1+x_3)(x_2+x_4)=0$: both singular values are equal, d = 4.

    A start at a tie of both singular values: the `rest` of β outside of the span of both filtered versions, and the
    `least` of its coefficients there.
    """
    x, y = jnp.asarray([1.0, 2.0, -1.0, 3.0]), jnp.asarray(1.0)
    data = LinearData(x[None], y[None])
    start = LinearConvolutionalNetwork.init(subkey(key, "start"), data, sizes=(2,), scheme="zero_last")
    beta = far_out(start, x, y, 60.0).final.model.linear_coefficients()
    both = jnp.stack([2 * x + s * (jnp.roll(x, 1) + jnp.roll(x, -1)) for s in (1.0, -1.0)])
    # Any nonnegative combination of both is a limit.
    unit = beta / jnp.linalg.norm(beta)
    mix = linalg.lstsq(both.T, unit)
    return Table(rest=jnp.linalg.norm(both.T @ mix - unit), least=jnp.min(mix))


ONE_DATUM = Dataset(
    "yun2021",
    "single",
    {
        "ends": Part(
            end,
            lambda scale: {name: (name, SIZES[scale][0], np.asarray(SIZES[scale][1])) for name in NETWORKS},
            TRIALS,
            block=25,
            way="in turn",
        ),
        "turns": Part(
            turn,
            lambda scale: {f"k_1={length}": (length, SIZES[scale][0]) for length in LENGTHS},
            TRIALS,
            block=25,
            way="in turn",
        ),
        "tie": Part(tie, {"k_1=2": None}, TIES, way="in turn"),
    },
)


def closed_form(row: int) -> Statement[Table]:
    """Theorem 5 for one network."""
    return Statement(
        source="Theorem 5",
        says=f"{NETWORKS[row]} network, L = 2, n = 1: both layers' limit points in closed form, α from 1e-4 to 10",
        of=lambda n: n.ends.at(row),
        inside=lambda ends: ends.slack > 0,
        residual=lambda ends: np.where(ends.followed, ends.error, np.nan),
        bound=(CLOSED, "relative distance of the layers"),
    )


def _apart(numbers: Table) -> np.ndarray:
    """1 − cos(β, x) of the fully connected network, `(b, a)`; below a rounding nothing can be seen to fall."""
    ends = numbers.ends
    return np.where(ends.followed[0], np.maximum(1.0 - ends.along[0], np.finfo(float).eps), np.nan)


def _parallel_rate(numbers: Table, known: np.ndarray) -> Rate | None:
    """From the two smallest scales."""
    rise = np.diff(np.log(_apart(numbers)[:, :2]), axis=1) / np.diff(np.log(numbers.ends.alphas[0][:, :2]), axis=1)
    return common_rate(rise[:, 0], None, law="1 − cos against α")


PARALLEL_LIMIT = Statement[Table](
    source="Theorem 5",
    says="α → 0: limits become independent of the start (fully connected, α = 1e-4: β is parallel to x)",
    residual=lambda n: _apart(n)[:, 0],
    bound=(PARALLEL, "1 − cos(β, x)"),
    rate=_parallel_rate,
)


def _last(turns: Table) -> np.ndarray:
    """The last distances of v_1, v_2 and β, `(b, 3)`; NaN where the singular gap does not allow the accuracy.

    ‖β‖ to half the power s₂/s₁ − 1 must be below it, with a factor for constants; else the end decides nothing.
    """
    allowed = 0.5 * turns.rate * turns.sizes[:, -1] < np.log(DIRECTION) - 5.0
    return np.where((turns.ok & allowed)[:, None], turns.errors[:, -1], np.nan)


def aligned(row: int) -> Statement[Table]:
    """Theorem 3 for filters of one length."""
    return Statement(
        source="Theorem 3",
        says=f"convolutional network, filters of length {LENGTHS[row]}: directions of v_1, v_2 and β, signs included",
        of=lambda n: n.turns.at(row),
        inside=lambda turns: turns.slack > 0,
        residual=lambda turns: _last(turns).max(axis=1),
        bound=(DIRECTION, "distance of unit vectors"),
    )


def named(row: int) -> Statement[Table]:
    """Corollary 4: the direction in closed form, for filters of one or two entries."""

    def off(turns: Table) -> np.ndarray:
        last = _last(turns)[:, 2]
        return np.where(np.isnan(last), np.nan, np.maximum((turns.datum, turns.filtered)[row], last))

    return Statement(
        source="Corollary 4",
        says=(
            "k_1 = 1: β converges in direction to yx",
            "k_1 = 2: β converges in direction to 2yx ± (y←x + y→x) by the sign of the autocorrelation",
        )[row],
        of=lambda n: n.turns.at(row),
        inside=lambda turns: turns.slack > 0,
        residual=off,
        bound=(DIRECTION, "distance of unit vectors"),
    )


def decays(row: int, product: bool) -> Statement[Table]:
    """How what is left of the second singular component falls with ‖β‖: in ρ, the `product`, or in β."""
    share = 1.0 if product else 0.5

    def exponents(turns: Table) -> tuple[np.ndarray, np.ndarray]:
        errors, sizes = turns.second if product else turns.errors[:, :, 2], turns.sizes
        return power_laws(sizes, errors, (errors < 1e-2) & (errors > 1e-9) & np.isfinite(sizes), least=5)

    def rate(turns: Table, known: np.ndarray) -> Rate | None:
        fitted, half = exponents(turns)
        return common_rate(-fitted, -share * turns.rate, half=half, bias=FITTED, law="what is left against ‖β‖")

    what = "ρ, the product of both layers' second components," if product else "β, in which mixed products remain,"
    power = "‖β‖^(s_2/s_1 − 1)" if product else "‖β‖^((s_2/s_1 − 1)/2)"
    return Statement(
        source="Theorem 3",
        says=f"filters of length {LENGTHS[row]}: the rest of {what} decays like {power}, exponents fitted",
        of=lambda n: n.turns.at(row),
        inside=lambda turns: turns.slack > 0,
        residual=lambda turns: np.abs(exponents(turns)[0] - share * turns.rate),
        bound=(FITTED, "fitted − predicted exponent"),
        rate=rate,
    )


LOSS = Statement[Table](
    source="Theorem 3 (loss)",
    says="the training loss L(Θ(t)) → 0 from starts with λ > 0; filters of length 1, 2 and 3: log L at the end",
    inside=lambda n: n.turns.slack > 0,
    residual=lambda n: np.where(n.turns.ok, n.turns.log_loss, np.nan),
    bound=(SMALL_LOSS, "log L"),
    # A loss of one and more has not fallen.
    late=0.0,
)
TIED = Statement[Table](
    source="Corollary 4",
    says="k_1 = 2 at a tie, x^T ←x = 0, of which the corollary does not speak: the limit is a combination of both "
    "filtered versions, chosen by the start",
    residual=lambda n: np.maximum(n.tie.rest, -np.minimum(n.tie.least, 0.0)),
    bound=(DIRECTION, "rest outside of their cone"),
)


def _of_length(row: int) -> list[Statement[Table]]:
    found = [aligned(row)]
    found += [decays(row, True), decays(row, False)] if LENGTHS[row] > 1 else []
    return found + ([named(row)] if LENGTHS[row] <= 2 else [])


register(
    ONE_DATUM,
    title="Theorems 3 and 5, Corollary 4",
    statements=[
        *(closed_form(row) for row in range(len(NETWORKS))),
        PARALLEL_LIMIT,
        *(statement for row in range(len(LENGTHS)) for statement in _of_length(row)),
        TIED,
        LOSS,
    ],
)

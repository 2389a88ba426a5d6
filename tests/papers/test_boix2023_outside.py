"""Algorithm 1 outside its assumptions: weight decay against the flow, full heads against their weights, verdicts."""

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxflow.losses import Logistic
from jaxflow.papers.boix2023.verify import decay, heads
from jaxflow.papers.boix2023.verify.heads_flow import Factors, HeadProducts, follow_head
from jaxflow.papers.boix2023.verify.outside import instance
from jaxflow.report import Verdict
from jaxflow.theory import StageResult


@pytest.fixture(scope="module")
def measured() -> dict[str, np.ndarray]:
    return decay.compute(decay.Size(2), jax.random.key(1))


def test_the_flow_with_decay_passes_the_predicted_stages(measured):
    times = measured["times"]
    learned = ~np.isnan(times)
    assert learned.sum() >= 4 and not measured["failed"].any()
    # 1/log(1/α) = 1e-3, times the logarithm of the ratio of half a product to α²'s prefactor: of order ten.
    assert np.max(np.abs(measured["crossings"] / times - 1.0)[learned]) <= 2e-2
    assert np.max(measured["distance"][learned]) <= decay.WEIGHTS
    assert np.max(measured["excess"]) <= decay.MINIMISER
    rows = decay.DecayCheck().rows(measured)
    assert [row.verdict for row in rows] == [Verdict.holds, Verdict.holds]


def test_logarithms_with_decay_against_weights():
    risk, model = instance(jax.random.key(3), Logistic())
    log_alpha, rate = -6.0, 0.05
    readings = jnp.linspace(0.0, 10.0, decay.READINGS)
    good, path = decay.flow_with_decay(risk, model.scaled(log_alpha), log_alpha, rate, readings)
    start = model.scaled(log_alpha)

    def field(time, weights, args):
        slopes = jax.grad(lambda w: risk(type(model)(model.h, *w)) + 0.5 * rate * jnp.sum(w**2))(weights)
        return log_alpha * slopes

    plain = diffrax.diffeqsolve(
        diffrax.ODETerm(field), diffrax.Tsit5(), 0.0, 10.0, None, jnp.stack([start.u, start.v]),
        stepsize_controller=diffrax.PIDController(rtol=1e-9, atol=1e-12),
    )  # fmt: skip
    assert bool(good)
    u, v = plain.ys[0]
    # The tolerance of the logarithms, 1e-5 a step over some hundred steps that forget most of it.
    assert np.allclose(path[-1], u * v, atol=1e-4 * float(jnp.max(jnp.abs(u * v))))


def test_decay_verdicts_follow_the_numbers(measured):
    check = decay.DecayCheck()
    swapped = measured | {"crossings": -measured["crossings"]}
    assert check.rows(swapped)[0].evidence.contradicted == check.rows(swapped)[0].instances > 0
    assert check.rows(swapped)[0].verdict == Verdict.not_settled
    lost = measured | {"crossings": np.full_like(measured["crossings"], np.nan), "failed": np.ones(2, bool)}
    assert check.rows(lost)[0].evidence.undecided == check.rows(swapped)[0].instances
    assert check.rows(measured | {"excess": np.array([0.1, 0.0])})[1].verdict == Verdict.not_settled
    stuck = np.full_like(measured["results"], StageResult.not_converged)
    nobody = measured | {"results": stuck, "excess": np.full(2, np.nan)}
    assert check.rows(nobody)[1].verdict == Verdict.not_settled and check.rows(nobody)[1].evidence.undecided == 2


def test_readings_stand_close_at_stages_however_late_the_next_one_is():
    times = np.array([3.2, 4.9, 1.6e5])
    readings = decay.readings_of(times, 3.2e5)
    assert readings.shape == (decay.READINGS,) and np.all(np.diff(readings) > 0)
    assert readings[0] == 0.0 and readings[-1] == pytest.approx(3.2e5)
    for time in times:
        near = readings[np.abs(readings - time) < 0.05 * time]
        # A stage takes some thousandths of a unit.
        assert np.min(np.abs(near - time)) <= 1e-9 * time and np.min(np.diff(near)) <= 1e-3


def test_crossings_go_away_from_zero():
    times = np.array([0.0, 1.0, 2.0, 3.0])
    assert decay.crossings(times, -np.exp([-3.0, -1.0, -2.0, 0.0]), -np.exp(-1.5)) == pytest.approx([0.75, 2.25])


def test_factors_of_a_full_head_against_its_weights():
    risk, weights = heads.instance(jax.random.key(2))
    log_alpha, until = -2.0, 20.0
    scaled = jnp.exp(log_alpha) * weights

    def products(pair):
        return pair[:, : heads.D] @ jnp.swapaxes(pair[:, heads.D :], -1, -2)

    start = Factors.of(weights, log_alpha)
    # Rounding of a QR factorisation.
    assert jnp.allclose(start.products(), products(scaled), atol=1e-14)
    plain = diffrax.diffeqsolve(
        diffrax.ODETerm(lambda t, w, args: log_alpha * jax.grad(lambda w: risk(HeadProducts(products(w))))(w)),
        diffrax.Tsit5(), 0.0, until, None, scaled,
        stepsize_controller=diffrax.PIDController(rtol=1e-9, atol=1e-12),
    )  # fmt: skip
    found = jax.jit(lambda: follow_head(risk, start, log_alpha, until))()
    assert bool(found["good"])
    expected = jnp.linalg.svd(products(plain.ys[0]), compute_uv=False)
    # 1e-4 a step, of which the fit to the teacher forgets most.
    assert np.allclose(found["singular"][-1], expected, atol=1e-3 * float(expected.max()))


def path_of(apart: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """V O learns at 2, K Q at 5; the third value of each is never learned."""
    times = np.arange(9.0)
    singular = np.zeros((9, 2, 3))
    singular[2:, 1, 0] = 1.0
    singular[5:, 0, 0] = 0.5
    singular[:, 0, 2] = 1e-9
    gradient = np.zeros(9)
    gradient[3 if apart else 7] = -5.0
    return times, singular, gradient


def test_stages_of_full_heads_by_hand():
    assert heads.stages_of(*path_of(True)) == [[3], [0]]
    assert heads.stages_of(*path_of(False)) == [[3, 0]]
    check = heads.HeadsCheck()

    def verdicts(apart: bool, good: bool = True) -> list[Verdict]:
        times, singular, gradient = (np.broadcast_to(x, (3, 2, *x.shape)) for x in path_of(apart))
        data = {"times": times, "singular": singular, "log_gradient": gradient, "good": np.full((3, 2), good)}
        return [row.verdict for row in check.rows(data)]

    assert verdicts(True) == [Verdict.holds, Verdict.holds]
    assert verdicts(False) == [Verdict.not_settled] * 2
    assert verdicts(True, good=False) == [Verdict.not_settled] * 2

"""Algorithm 1 outside its assumptions: weight decay against the flow, full heads against their weights, verdicts."""

from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxflow import papers
from jaxflow.losses import Logistic
from jaxflow.papers.boix2023 import beyond_assumptions, full_heads, weight_decay
from jaxflow.papers.boix2023.full_head_flow import Factors, HeadProducts, follow_head
from jaxflow.papers.claims import Finding
from jaxflow.papers.verdicts import Verdict
from jaxflow.theory import StageResult
from tests.papers.made_up import boix2023 as made_up


def found(name: str, numbers: Any) -> list[Finding]:
    return next(entry for entry in papers.entries_of("boix2023") if entry.name == name).find(numbers)[0]


@pytest.fixture(scope="module")
def measured() -> weight_decay.DecayNumbers:
    rows = [weight_decay.follow(key, None) for key in jax.random.split(jax.random.key(1), 2)]
    return weight_decay.DecayNumbers(jax.tree.map(lambda *x: np.stack(x)[None], *rows))


@pytest.mark.slow
def test_the_flow_with_decay_passes_the_predicted_stages(measured: weight_decay.DecayNumbers) -> None:
    flows = measured.flows
    learned = ~np.isnan(flows.times)
    assert learned.sum() >= 4 and flows.ok.all()
    # 1/log(1/α) = 1e-3, times the logarithm of the ratio of half a product to α²'s prefactor: of order ten.
    assert np.max(np.abs(flows.passed / flows.times - 1.0)[learned]) <= 2e-2
    assert np.max(flows.distance[learned]) <= weight_decay.WEIGHTS
    assert np.max(flows.excess) <= weight_decay.MINIMISER
    assert [one.verdict for one in found("decay", measured)] == [Verdict.holds, Verdict.holds]


@pytest.mark.slow
def test_logarithms_with_decay_against_weights():
    risk, model = beyond_assumptions.draw(jax.random.key(3), Logistic())
    log_alpha, rate = -6.0, 0.05
    readings = jnp.linspace(0.0, 10.0, weight_decay.READINGS)
    good, path = weight_decay.flow_with_decay(risk, model.scaled(log_alpha), log_alpha, rate, readings)
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


def test_decay_verdicts_follow_the_numbers() -> None:
    good, swapped, lost = made_up.decays()
    assert [one.verdict for one in found("decay", good)] == [Verdict.holds] * 2
    order, end = found("decay", swapped)
    assert order.evidence.contradicted == order.evidence.inside == 3 and order.verdict is Verdict.not_settled
    assert end.verdict is Verdict.not_settled
    assert [one.evidence.undecided for one in found("decay", lost)] == [3, 3]
    # A product that comes back is no instance of an order.
    back = good.flows.coordinates.copy()
    back[0, 0, 1] = 0
    again = weight_decay.DecayNumbers(good.flows._replace(coordinates=back))
    assert found("decay", again)[0].evidence.inside == 2
    stuck = good.flows._replace(
        results=np.full_like(good.flows.results, StageResult.not_converged), excess=np.full((1, 3), np.nan)
    )
    assert found("decay", weight_decay.DecayNumbers(stuck))[1].evidence.undecided == 3


def test_an_order_needs_all_of_its_times() -> None:
    times = np.array([1.0, 2.0, np.nan])
    assert beyond_assumptions.disorder(np.array([1.0, 2.0, np.nan]), times) == 0.0
    assert beyond_assumptions.disorder(np.array([2.0, 1.0, np.nan]), times) == 1.0
    assert np.isnan(beyond_assumptions.disorder(np.array([1.0, np.nan, np.nan]), times))
    assert beyond_assumptions.well_apart(np.stack([times, [1.0, 1.05, 2.0]])).tolist() == [True, False]


def test_readings_stand_close_at_stages_however_late_the_next_one_is():
    times = np.array([3.2, 4.9, 1.6e5])
    readings = weight_decay.readings_of(times, 3.2e5)
    assert readings.shape == (weight_decay.READINGS,) and np.all(np.diff(readings) > 0)
    assert readings[0] == 0.0 and readings[-1] == pytest.approx(3.2e5)
    for time in times:
        near = readings[np.abs(readings - time) < 0.05 * time]
        # A stage takes some thousandths of a unit.
        assert np.min(np.abs(near - time)) <= 1e-9 * time and np.min(np.diff(near)) <= 1e-3


def test_crossings_go_away_from_zero():
    times = np.array([0.0, 1.0, 2.0, 3.0])
    assert weight_decay.crossings(times, -np.exp([-3.0, -1.0, -2.0, 0.0]), -np.exp(-1.5)) == pytest.approx([0.75, 2.25])


@pytest.mark.slow
def test_factors_of_a_full_head_against_its_weights():
    risk, weights = full_heads.draw(jax.random.key(2))
    log_alpha, until = -2.0, 20.0
    scaled = jnp.exp(log_alpha) * weights

    def products(pair):
        return pair[:, : full_heads.D] @ jnp.swapaxes(pair[:, full_heads.D :], -1, -2)

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


def test_stages_of_full_heads_by_hand() -> None:
    assert full_heads.stages_of(*made_up.head_path(True)) == [[3], [0]]
    assert full_heads.stages_of(*made_up.head_path(False)) == [[3, 0]]

    def verdicts(*arguments: bool) -> list[Verdict]:
        return [one.verdict for one in found("heads", made_up.head(*arguments))]

    assert verdicts(True) == [Verdict.holds, Verdict.holds]
    assert verdicts(False) == [Verdict.not_settled] * 2
    assert verdicts(True, False) == [Verdict.not_settled] * 2

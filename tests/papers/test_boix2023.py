"""Incremental learning; weight decay and full heads, outside of the assumptions, against weights."""

from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxflow as jf
from jaxflow.papers.boix2023 import beyond_assumptions, full_heads, small_instances, supports, toy
from jaxflow.papers.boix2023.full_heads import Factors, HeadProducts, follow_head
from jaxflow.papers.boix2023.perturbations import NOISE
from jaxflow.papers.boix2023.product_paths import follow_products
from jaxflow.papers.table import Table
from tests.papers.recorded import entry_of, letters


def test_figures_with_noise_are_on_the_task_of_figure_2() -> None:
    names = [data.study(part, "quick", 0).experiment.name() for data, part in ((toy.TOY, "paths"), (NOISE, "noise"))]
    assert names == ["boix2023.toy.stages"] * 2


def test_a_path_keeps_its_ends_when_it_is_filled_up() -> None:
    assert toy.filled(np.arange(3.0), 5).tolist() == [0, 1, 2, 2, 2]
    assert toy.filled(np.arange(9.0), 5).tolist() == [0, 2, 4, 6, 8]


@pytest.mark.slow
def test_the_last_plateau_ends_where_the_next_stage_begins() -> None:
    """Stages at 1 and 1/0.85: a quarter of the first one's time after it, the second has been learned."""
    pull = np.array([1.0, 0.85])
    risk = jf.EmpiricalRisk(jf.data.LinearData(np.sqrt(2) * np.eye(2), np.sqrt(2) * pull), jf.losses.Squared())
    model = jf.models.HadamardNetwork.init(jax.random.key(0), jf.models.DiagonalLinear(), 2)
    seen = small_instances.compare(risk, model, most=1)
    assert seen.inside and seen.predicted[0] == pytest.approx(1.0, rel=1e-12)
    assert seen.distance[-1, 0] <= small_instances.WEIGHTS


def test_products_of_one_stage_are_told_from_those_of_two() -> None:
    # Two coordinates of their own, whose slopes differ by a half or by a billionth.
    def entries(second: float) -> Table:
        risk = jf.EmpiricalRisk(jf.data.LinearData(np.eye(2), np.array([1.0, second])), jf.losses.Squared())
        start = jf.models.HadamardNetwork(jf.models.DiagonalLinear(), np.ones(2), 0.5 * np.ones(2))
        paths = [follow_products(risk, start.scaled(a), a, 6.0) for a in supports.LOG_ALPHAS]
        order = [supports.entries_of(path) for path in paths]
        times = np.array([[time for time, _ in one] for one in order])
        return Table(
            coordinates=np.array([[i for _, i in one] for one in order]), times=times, inside=np.ones(()), ok=np.True_
        )

    assert supports.together(entries(0.5)) == 0.0
    close = supports.together(entries(1.0 + 1e-9))
    assert np.isnan(close) or close == 1.0


# Weight decay


@pytest.mark.slow
def test_the_flow_with_decay_passes_the_predicted_stages() -> None:
    rows = [beyond_assumptions.follow_decay(key, None) for key in jax.random.split(jax.random.key(1), 2)]
    measured = Table(flows=jax.tree.map(lambda *x: np.stack(x)[None], *rows))
    flows = measured.flows
    learned = ~np.isnan(flows.times)
    assert learned.sum() >= 4 and flows.ok.all()
    # 1/log(1/α) = 1e-3, times the logarithm of the ratio of half a product to α²'s prefactor: of order ten.
    assert np.max(np.abs(flows.passed / flows.times - 1.0)[learned]) <= 2e-2
    assert np.max(flows.excess) <= beyond_assumptions.MINIMISER
    assert letters(entry_of("boix2023", "decay").find(measured)[0]) == "HH"


def by_diffrax(field: Any, until: float, start: jax.Array) -> jax.Array:
    """Where plain weights end."""
    controller = diffrax.PIDController(rtol=1e-9, atol=1e-12)
    return diffrax.diffeqsolve(
        diffrax.ODETerm(field), diffrax.Tsit5(), 0.0, until, None, start, stepsize_controller=controller
    ).ys[0]


@pytest.mark.slow
def test_logarithms_with_decay_against_weights() -> None:
    risk, model = beyond_assumptions.draw(jax.random.key(3), jf.losses.Logistic())
    log_alpha, rate = -6.0, 0.05
    start = model.scaled(log_alpha)
    readings = jnp.linspace(0.0, 10.0, beyond_assumptions.READINGS)
    good, path = beyond_assumptions.flow_with_decay(risk, start, log_alpha, rate, readings)

    def field(time, weights, args):
        slopes = jax.grad(lambda w: risk(type(model)(model.h, *w)) + 0.5 * rate * jnp.sum(w**2))(weights)
        return log_alpha * slopes

    assert bool(good)
    u, v = by_diffrax(field, 10.0, jnp.stack([start.u, start.v]))
    # The tolerance of the logarithms, 1e-5 a step over some hundred steps that forget most of it.
    assert np.allclose(path[-1], u * v, atol=1e-4 * float(jnp.max(jnp.abs(u * v))))


def test_an_order_needs_all_of_its_times() -> None:
    times = np.array([1.0, 2.0, np.nan])
    assert beyond_assumptions.disorder(np.array([1.0, 2.0, np.nan]), times) == 0.0
    assert beyond_assumptions.disorder(np.array([2.0, 1.0, np.nan]), times) == 1.0
    assert np.isnan(beyond_assumptions.disorder(np.array([1.0, np.nan, np.nan]), times))
    assert beyond_assumptions.well_apart(np.stack([times, [1.0, 1.05, 2.0]])).tolist() == [True, False]


def test_readings_stand_close_at_stages_however_late_the_next_one_is() -> None:
    times = np.array([3.2, 4.9, 1.6e5])
    readings = beyond_assumptions.readings_of(times, 3.2e5)
    assert readings.shape == (beyond_assumptions.READINGS,) and np.all(np.diff(readings) > 0)
    assert readings[0] == 0.0 and readings[-1] == pytest.approx(3.2e5)
    for time in times:
        near = readings[np.abs(readings - time) < 0.05 * time]
        # A stage takes some thousandths of a unit.
        assert np.min(np.abs(near - time)) <= 1e-9 * time and np.min(np.diff(near)) <= 1e-3


def test_crossings_go_away_from_zero() -> None:
    times = np.array([0.0, 1.0, 2.0, 3.0])
    assert beyond_assumptions.crossings(times, -np.exp([-3.0, -1.0, -2.0, 0.0]), -np.exp(-1.5)) == pytest.approx(
        [0.75, 2.25]
    )


# Full heads


@pytest.mark.slow
def test_factors_of_a_full_head_against_its_weights() -> None:
    risk, weights = full_heads.draw(jax.random.key(2))
    log_alpha, until = -2.0, 20.0
    scaled = jnp.exp(log_alpha) * weights

    def products(pair):
        return pair[:, : full_heads.D] @ jnp.swapaxes(pair[:, full_heads.D :], -1, -2)

    start = Factors.of(weights, log_alpha)
    # Rounding of a QR factorisation.
    assert jnp.allclose(start.products(), products(scaled), atol=1e-14)
    head = jax.jit(lambda: follow_head(risk, start, log_alpha, until))()
    assert bool(head.ok)
    plain = by_diffrax(
        lambda t, w, args: log_alpha * jax.grad(lambda w: risk(HeadProducts(products(w))))(w), until, scaled
    )
    expected = jnp.linalg.svd(products(plain), compute_uv=False)
    # 1e-4 a step, of which the fit to the teacher forgets most.
    assert np.allclose(head.singular[-1], expected, atol=1e-3 * float(expected.max()))


def test_stages_of_full_heads_by_hand() -> None:
    """V O learns at 2, K Q at 5; the third value of each is never learned."""
    times = np.arange(9.0)
    singular, gradient = np.zeros((9, 2, 3)), np.zeros((2, 9))
    singular[2:, 1, 0], singular[5:, 0, 0], singular[:, 0, 2] = 1.0, 0.5, 1e-9
    # A plateau between them, or after both.
    gradient[0, 3] = gradient[1, 7] = -5.0
    assert full_heads.stages_of(times, singular, gradient[0]) == [[3], [0]]
    assert full_heads.stages_of(times, singular, gradient[1]) == [[3, 0]]
    # One that never moves has no stages; one that is there from the start has learned all of it in one.
    assert full_heads.stages_of(times, np.zeros((9, 2, 3)), np.zeros(9)) == []
    assert full_heads.stages_of(times, np.ones((9, 2, 1)), np.zeros(9)) == [[0, 1]]

"""`find_limit` of models that are linear in their parameters: every kind of data, in every unit, no false point.

The quasi-separated data are those of a public question: a slope diverges in every unit, and no minimum exists.
"""

import importlib
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from scipy.optimize import nnls
from scipy.special import expit

import jaxflow as jf
from jaxflow._core import is_affine
from jaxflow.limits import affine_limit
from jaxflow.limits.kantorovich import kantorovich
from jaxflow.limits.own_model import wrapped
from jaxflow.margin.thin import thin_margin
from tests.limits.models import Linear, Products

SLOPES = np.array([-1.0, -1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0])
LABELS = np.array([-1.0, -1.0, -1.0, 1.0, 1.0, 1.0, 1.0, 1.0])
# With one more label turned round the data have a minimum.
TURNED = np.where(np.arange(8) == 1, 1.0, LABELS)
UNITS = np.array([1e-3, 1.0, 300.0, 1e3, 1e6])

RNG = np.random.default_rng(0)
POINTS = RNG.normal(size=(30, 2))
SIDES, NOISY = (np.sign(POINTS @ [1.0, -0.5] + noise) for noise in (0.0, RNG.normal(size=30)))


def minimum(rows: np.ndarray, start: np.ndarray) -> np.ndarray:
    """Of the logistic loss, by Newton's method from nearby with slopes in extended precision."""
    rows, w = rows.astype(np.longdouble), np.asarray(start).astype(np.longdouble)
    for _ in range(20):
        p = 1 / (1 + np.exp(rows @ w))
        hessian = (rows * (p * (1 - p))[:, None]).T @ rows
        w = w + np.linalg.solve(hessian.astype(float), (rows.T @ p).astype(float))
    return w


def within_its_error(rows: np.ndarray, w: Any, error: Any) -> np.longdouble:
    """How far a minimum is from where it is said to be, which the relative error bounds."""
    exact = minimum(rows, w)
    apart = np.sqrt(np.sum((np.asarray(w) - exact) ** 2))
    assert np.isinf(error) or apart <= float(error) * np.sqrt(np.sum(exact**2))
    return apart


def largest_margin(rows: np.ndarray) -> np.ndarray:
    """The direction of it, by CVXPY."""
    return importlib.import_module("classes").svm(rows, np.zeros((0, rows.shape[1])))


def quasi(unit: Any) -> jax.Array:
    return jnp.stack([jnp.ones(8), unit * jnp.asarray(SLOPES)], axis=1)


@jax.jit
@jax.vmap
def limits_of(inputs: jax.Array, labels: jax.Array, start: jax.Array) -> Any:
    return jf.find_limit(jf.EmpiricalRisk(jf.data.LinearData(inputs, labels), "logistic"), Linear(start))


@pytest.mark.slow
def test_a_slope_that_diverges_is_a_direction_in_every_unit() -> None:
    inputs = jax.vmap(quasi)(jnp.asarray(UNITS))
    starts = 0.1 * jax.random.normal(jax.random.key(1), (len(UNITS), 2)).at[0].set(0.0)
    found = limits_of(inputs, jnp.tile(LABELS, (len(UNITS), 1)), starts)
    assert set(found.outcome.name) == {"globally_optimal"} and np.all(found.excess <= 1e-8)
    np.testing.assert_allclose(found.flow_direction.module.w, np.tile([0.0, 1.0], (len(UNITS), 1)), atol=1e-8)
    assert np.all(np.asarray(found.linear.growing) == (SLOPES != 0)[None, :])
    # The intercept comes to rest where the five data that stay have it: one against four.
    np.testing.assert_allclose(found.component.w[:, 0], np.log(4.0), rtol=1e-10)
    assert np.all(np.abs(found.component.w[:, 0] / np.log(4.0) - 1.0) <= found.linear.error)
    assert np.all(found.linear.error <= 1e-10)
    one = jax.tree.map(lambda x: x[2], found)
    assert "no minimum" in str(one) and "3 of 8 data diverge" in str(one) and "Ji and Telgarsky" in str(one)
    assert "orthogonal to the others" in str(one) and one.point is None and one.outcome == "globally_optimal"


NETWORKS = {
    "deep": lambda data: jf.models.DeepLinearNetwork.init(jax.random.key(0), data, depth=2, alpha=0.1),
    "diagonal": lambda data: jf.models.DiagonalLinearNetwork((0.3 * jnp.ones(2), 0.1 * jnp.ones(2))),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_calls_it_no_point_and_ends_at_one_that_exists(name: str) -> None:
    def limit_of(unit: float, labels: np.ndarray) -> Any:
        data = jf.data.LinearData(quasi(unit), jnp.asarray(labels))
        return jf.find_limit(jf.EmpiricalRisk(data, "logistic"), NETWORKS[name](data), throw=False)

    for unit in (1e-3, 1.0, 300.0, 1e3):
        limit = limit_of(unit, LABELS)
        assert limit.kind != jf.limits.LimitKind.point and limit.outcome != "finite_stationary_point"
    assert limit_of(1.0, TURNED).outcome == "finite_stationary_point"


@pytest.mark.slow
def test_an_error_is_relative_to_the_minimum_however_small() -> None:
    """Each input has both labels, nearly: with an error relative to one, 27 of 40 were larger than was claimed."""
    rng = np.random.default_rng(4)
    base, other = rng.normal(size=(2, 4, 2))
    gaps = np.array([0.0, 1e-9, 1e-6, 1e-3, 1.0])
    inputs = np.concatenate([np.tile(base, (5, 1, 1)), base + gaps[:, None, None] * other], axis=1)
    labels = np.repeat([1.0, -1.0], 4)
    found = limits_of(jnp.asarray(inputs), jnp.tile(labels, (5, 1)), jnp.zeros((5, 2)))
    assert set(found.outcome.name) == {"finite_stationary_point"}
    assert np.isinf(found.stationary.error[0]) and np.all(found.stationary.error[1:] <= 1e-3)
    ends, stationary = found.end.module.w, found.stationary
    for x, w, error, distance in zip(inputs, ends, stationary.error, stationary.distance, strict=True):
        assert within_its_error(labels[:, None] * x, w, error) <= float(distance) <= 1e-12
    text = str(jax.tree.map(lambda x: x[0], found))
    assert "away from zero" in text and "relative" not in text


@pytest.mark.slow
def test_features_in_units_ten_thousand_apart_are_decided_in_few_steps() -> None:
    """The slowest rate of a path is 1e-9 of its fastest; sums over multipliers would have an excess of 1e-7."""
    rng = np.random.default_rng(90)
    inputs = rng.normal(size=(24, 40, 5))
    labels = np.sign(np.einsum("knd,kd->kn", inputs, rng.normal(size=(24, 5))))
    inputs = inputs * 10.0 ** rng.uniform(-2.0, 2.0, size=(24, 1, 5))
    found = limits_of(jnp.asarray(inputs), jnp.asarray(labels), jnp.asarray(rng.normal(size=(24, 5))))
    assert set(found.outcome.name) == {"globally_optimal"} and np.all(found.excess <= 1e-10)
    assert np.max(found.trajectory.stats["num_steps"]) <= 100
    for rows, w in zip(labels[..., None] * inputs, found.flow_direction.module.w, strict=True):
        margins = rows @ w
        active = margins <= (1.0 + 1e-9) * margins.min()
        # The optimality conditions: a positive combination of the rows with the least margin.
        assert margins.min() > 0 and nnls(rows[active].T, w)[1] <= 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("what", ["columns", "rows", "start"])
def test_overlapping_data_of_any_units_from_any_start_have_a_point(what: str) -> None:
    """Columns up to 1e12 apart, rows up to 1e8, or margins of 1e5 at the start: the flow to log t = 2 is far from its
    point, and the curvature there far from that of any other point."""
    rng = np.random.default_rng(11)
    half = rng.normal(size=(24, 20, 5))
    # No direction makes a margin positive and that of its opposite not negative.
    inputs = np.concatenate([half, -rng.uniform(size=(24, 20, 1)) * half], axis=1)
    starts = rng.normal(size=(24, 5))
    columns = 10.0 ** rng.uniform(-6.0, 6.0, size=(24, 1, 5)) if what == "columns" else np.ones((24, 1, 5))
    inputs = inputs * columns
    if what == "rows":
        inputs *= 10.0 ** rng.uniform(-4.0, 4.0, size=(24, 40, 1))
    if what == "start":
        starts *= 1e5
    found = limits_of(jnp.asarray(inputs), jnp.ones((24, 40)), jnp.asarray(starts / columns[:, 0]))
    assert set(found.outcome.name) == {"finite_stationary_point"}
    for rows, w, error in zip(inputs, found.end.module.w, found.error, strict=True):
        # The gradient by each parameter, of terms that cancel; a margin is known to the error of the point.
        terms = rows * expit(-rows @ w)[:, None]
        known = 1e-11 + error * np.max(np.abs(rows) @ np.abs(w))
        assert np.all(np.abs(terms.sum(axis=0)) <= known * np.abs(terms).sum(axis=0))
        # Of a start of 1e5 so many digits less are left.
        assert error <= (1e-6 if what == "start" else 1e-8)


@pytest.mark.slow
def test_one_datum_that_is_small_beside_the_others_has_a_point_within_its_error() -> None:
    """In an orthonormal basis of all rows it has the roundings of the others, 1e-11 of itself."""
    rng = np.random.default_rng(5)
    inputs = np.abs(rng.normal(size=(24, 20, 4)))
    inputs[:, 0] *= -1e-5
    found = limits_of(jnp.asarray(inputs), jnp.ones((24, 20)), jnp.asarray(rng.normal(size=(24, 4))))
    rests = found.outcome.name == "finite_stationary_point"
    assert set(found.outcome.name) == {"finite_stationary_point", "globally_optimal"} and rests.sum() >= 5
    for rows, w, error in zip(inputs[rests], found.end.module.w[rests], found.error[rests], strict=True):
        within_its_error(rows, w, error)
        assert error <= 1e-10


@pytest.mark.slow
def test_of_a_wrong_frame_nothing_is_certified_and_the_velocity_shows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program's solution that is off by a thousandth: the path leaves its frame, with the velocity of the flow."""
    rng = np.random.default_rng(3)
    inputs = rng.normal(size=(30, 4))
    labels = np.sign(inputs @ rng.normal(size=4))

    def off(rows: jax.Array, growing: jax.Array, start: jax.Array) -> Any:
        found = thin_margin(rows, growing, start)
        w = found.primal + 1e-3 * jnp.linalg.norm(found.primal) * jnp.array([0.5, -0.5, 0.5, -0.5])
        return eqx.tree_at(lambda f: f.primal, found, w / jnp.min(jnp.where(growing, rows @ w, jnp.inf)))

    risk = jf.EmpiricalRisk((jnp.asarray(inputs), jnp.asarray(labels)), "logistic")
    given = wrapped(risk, Linear(jnp.zeros(4)))

    def limit() -> Any:
        # A function of its own: what was traced with the other program is not found again. In the right frame the path
        # takes 19 steps; in the other one it spends any budget.
        return eqx.filter_jit(lambda: affine_limit.affine_limit(*given, 1e-8, 400, None, jf.margin.Frobenius()))()

    right = limit()
    monkeypatch.setattr(affine_limit, "thin_margin", off)
    wrong = limit()
    assert right.outcome == "globally_optimal" and wrong.outcome == "undecided"
    np.testing.assert_allclose(*(x.flow_direction.module.w for x in (wrong, right)), rtol=0, atol=1e-8)


@pytest.mark.slow
def test_separable_data_go_to_the_largest_margin_of_cvxpy() -> None:
    """With the intercept of a layer of Equinox."""
    model = eqx.nn.Linear(2, "scalar", key=jax.random.key(0))
    limit = jf.find_limit(jf.EmpiricalRisk((POINTS, SIDES), "logistic"), model)
    assert limit.outcome == "globally_optimal", str(limit)
    direction = np.concatenate([np.ravel(x) for x in jax.tree.leaves(limit.direction)])
    # Of a direction whose norm exceeds the optimum by 1e-8 the distance is at most the root of twice that.
    assert np.linalg.norm(direction - largest_margin(SIDES[:, None] * np.c_[POINTS, np.ones(30)])) <= 2e-4


def test_a_column_of_a_table_that_comes_twice_shares_its_weight() -> None:
    """A table of pandas, whose labels are words."""
    table = pd.DataFrame(np.c_[POINTS, POINTS[:, 0]], columns=["age", "salary", "age in years"])
    words = pd.Series(np.where(NOISY > 0, "yes", "no"))
    limit = jf.find_limit(jf.EmpiricalRisk((table, words), "logistic"), Linear(jnp.zeros(3)))
    once = minimum(NOISY[:, None] * POINTS, np.zeros(2)).astype(float)
    assert limit.outcome == "finite_stationary_point" and limit.error <= 1e-10
    np.testing.assert_allclose(limit.point.w, [once[0] / 2, once[1], once[0] / 2], rtol=1e-8)


@pytest.mark.slow
def test_least_squares_from_any_start_and_with_fewer_data_than_weights() -> None:
    rng = np.random.default_rng(1)
    for shape in ((30, 2), (3, 5)):
        inputs, targets, start = rng.normal(size=shape), rng.normal(size=shape[0]), rng.normal(size=shape[1])
        limit = jf.find_limit(jf.EmpiricalRisk((inputs, targets), "squared"), Linear(jnp.asarray(start)))
        expected = start + np.linalg.pinv(inputs) @ (targets - inputs @ start)
        assert np.linalg.norm(limit.point.w - expected) <= float(limit.error) * np.linalg.norm(expected)
    assert limit.outcome == "limit_point"


@pytest.mark.slow
def test_five_thousand_weights_and_few_data() -> None:
    """A linear model moves in the span of its data; the limit point of a network of this size is refused with the ways
    that are left (its direction is not: tests/flow/test_hard_margin_products.py)."""
    inputs = np.random.default_rng(3).normal(size=(30, 5000))
    limit = jf.find_limit(jf.EmpiricalRisk((inputs, SIDES), "logistic"), Linear(jnp.zeros(5000)))
    assert limit.outcome == "globally_optimal"
    # In the span of the data, whose Gram matrix is all that counts.
    values, basis = np.linalg.eigh(inputs @ inputs.T)
    small = largest_margin(SIDES[:, None] * basis * np.sqrt(values))
    assert np.linalg.norm(limit.direction.w - inputs.T @ (basis @ (small / np.sqrt(values)))) <= 2e-4
    network = eqx.nn.MLP(2, "scalar", width_size=1000, depth=1, use_final_bias=False, key=jax.random.key(0))
    message = "^model: 4000 trained numbers; .*`trainable` of the risk.*integrate or descend"
    with pytest.raises(ValueError, match=message):
        jf.find_limit(jf.EmpiricalRisk((POINTS, SIDES), "squared"), network)


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["logistic", "exponential", lambda q: jnp.log1p(jnp.exp(-2.0 * q))])
def test_separable_data_with_a_column_twice_from_zero(loss: Any) -> None:
    inputs = np.array([[1, 0, 1], [1, 0, 1], [1, 2, 1], [1, 1, 1]], float)
    limit = jf.find_limit(jf.EmpiricalRisk((inputs, [1.0, 1.0, -1.0, -1.0]), loss), Linear(jnp.zeros(3)))
    assert limit.outcome == "globally_optimal" and float(limit.excess) <= 1e-8
    np.testing.assert_allclose(limit.direction.w, np.array([0.5, -2.0, 0.5]) / np.sqrt(4.5), atol=1e-8)
    np.testing.assert_allclose(limit.margin, 4.5**-0.5, rtol=1e-8)
    assert limit.linear.separability == "separable" and not np.any(limit.component.w)


def test_affine_is_read_off_the_program() -> None:
    x = jnp.ones(3)
    linear = eqx.nn.Linear(3, "scalar", key=jax.random.key(0))
    for function in (lambda v: 2.0 * v + 1.0, lambda v: jnp.sum(v) * x, lambda v: jax.jit(jnp.dot)(x, v)):
        assert is_affine(function, x)
    assert is_affine(lambda v: jax.vmap(eqx.tree_at(lambda m: m.weight, linear, v[None]))(jnp.eye(3)), x)
    for function in (lambda v: v * v, jax.nn.relu, jnp.sin, lambda v: v / v[0]):
        assert not is_affine(function, x)


@pytest.mark.slow
@pytest.mark.parametrize("unit", [1e-3, 1.0, 300.0])
def test_a_channel_to_infinity_is_no_minimum_of_a_nonlinear_model(unit: float) -> None:
    def bound(labels: np.ndarray, w: Any) -> float:
        """Of the products whose coefficients are w."""
        theta = jnp.concatenate([jnp.sqrt(jnp.abs(w)), jnp.sign(w) * jnp.sqrt(jnp.abs(w))])
        risk = jf.EmpiricalRisk((quasi(unit), labels), "logistic")
        return float(kantorovich(risk, lambda x: Products(x[:2], x[2:]), theta).bound)

    for slope in (10.0, 15.0, 18.4):
        assert bound(LABELS, jnp.array([np.log(4.0), slope / unit])) > 0.5
    rows = TURNED[:, None] * np.asarray(quasi(unit))
    assert bound(TURNED, jnp.asarray(minimum(rows, np.zeros(2)).astype(float))) < 1e-3


@pytest.mark.slow
def test_groups_of_thousands_are_decided_in_few_steps() -> None:
    """Roundings of a sum of many multipliers are not those of one: with a unit of time for the largest alone the path
    of 10,000 data took 512 steps, and had not come to rest."""
    rng = np.random.default_rng(0)
    group = rng.integers(0, 3, 10_000)
    inputs = np.concatenate([np.ones((10_000, 1)), np.eye(3)[group]], axis=1)
    labels = np.where(rng.random(10_000) < np.array([0.2, 0.5, 0.9])[group], 1.0, -1.0)
    pure = np.where(group == 2, 1.0, labels)
    mixed, quasi = (
        jf.find_limit(jf.EmpiricalRisk((jnp.asarray(inputs), jnp.asarray(y)), "logistic"), Linear(jnp.zeros(4)))
        for y in (labels, pure)
    )
    assert mixed.outcome == "finite_stationary_point" and mixed.stationary.error <= 1e-10
    share = [np.mean(labels[group == k] > 0) for k in range(3)]
    logits = mixed.point.w[0] + mixed.point.w[1:]
    np.testing.assert_allclose(logits, np.log(np.array(share) / (1 - np.array(share))), rtol=1e-10)
    assert quasi.outcome == "globally_optimal" and quasi.linear.separability == "quasi_separable"
    for taken in (mixed.trajectory.stats, quasi.trajectory.stats):
        assert taken["num_steps"] < 60
        assert taken["num_steps"] == taken["num_accepted_steps"] + taken["num_rejected_steps"]

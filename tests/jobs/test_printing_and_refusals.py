"""What a stranger reads: every object in at most six lines with its numbers; every refusal one sentence."""

import pickle
import re
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray

import jaxflow as jf
from tests.limits.models import Linear

DATA, HEAD = jf.data.random_tokens(jax.random.key(0), n=3, T=4, d=4)
RISK = jf.EmpiricalRisk(DATA, "logistic")
START = jf.models.CombinedAttention.init(jax.random.key(1), DATA, HEAD)


INPUTS = np.random.default_rng(0).normal(size=(30, 2))
LABELS = np.sign(INPUTS @ [1.0, -0.5])


def regression(inputs: Any = INPUTS, labels: Any = LABELS, loss: Any = "logistic", width: int = 2) -> Any:
    return jf.find_limit(jf.EmpiricalRisk((inputs, labels), loss), Linear(jnp.zeros(width)))


@pytest.fixture(scope="module")
def objects() -> dict[str, Any]:
    limit = jf.find_limit(RISK, START)
    path = jf.integrate(RISK, START, clock="log_time", until=5.0)
    how = {"clock": "physical_time", "until": 1e30, "solver": "tsit5"}
    short = jf.integrate(RISK, START, **how, max_steps=200, throw=False)
    linear = regression()
    return {
        "limit": limit,
        "certificate": limit.certificate,
        "flow_certificate": limit.flow_certificate,
        "program_solution": limit.program_solution,
        "prediction": limit.prediction,
        "rate": limit.rate,
        "details": limit.details,
        "outcome": limit.outcome,
        "path": path,
        "its points": jf.integrate(RISK, START, clock="log_time", until=5.0, save_at=jnp.linspace(1.0, 5.0, 9)),
        "point": path.final,
        "result": path.result,
        "result of a rule": limit.trajectory.result,
        "results": jax.tree.map(lambda x: jnp.stack([x, x]), path.result),
        "batch": jax.tree.map(lambda x: jnp.stack([x, x]) if eqx.is_array(x) else x, path),
        "risk": RISK,
        "data": DATA,
        "model": START,
        "gradient": RISK.scaled_gradient(START),
        "program": limit.prediction.program,
        "study": jf.study.Study(jf.study.TokenSelection(), {"d": [2, 4]}, trials=5),
        "diagnosis": jf.diagnose(short, RISK, **how),
        "linear limit": linear,
        "kkt": linear.kkt,
        "stationary": linear.stationary,
        "linear details": linear.details,
        "cone": jf.margin.recession_cone(LABELS[:, None] * INPUTS),
        "selections": jf.margin.enumerate_selections(DATA, HEAD),
    }


@pytest.mark.slow
def test_prints_are_short_and_have_numbers(objects: dict[str, Any]) -> None:
    for name, value in objects.items():
        for text in (str(value), repr(value)):
            assert len(text.splitlines()) <= 6, f"{name}: {text}"
            assert not re.search(r"\b(f64|f32|i64|bool|u8)\[| object at 0x", text), f"{name}: {text}"
            assert "<>" not in text and "['' " not in text and "differential equation" not in text, text


@pytest.mark.slow
def test_what_an_undecided_network_says_of_data_that_are_not_separable() -> None:
    data = jf.data.LinearData(np.array([[1.0, 0.5], [1.0, 0.5], [0.2, 1.0]]), np.array([1.0, -1.0, 1.0]))
    network = jf.models.DiagonalLinearNetwork((jnp.ones(2), 0.5 * jnp.ones(2)))
    limit = jf.find_limit(jf.EmpiricalRisk(data, "logistic"), network, max_steps=20, throw=False)
    assert limit.outcome == "undecided"
    assert "the program has no solution" in str(limit) and "inf" not in str(limit)


def test_a_limit_in_a_notebook(objects: dict[str, Any]) -> None:
    for name in ("limit", "certificate", "program_solution", "path", "linear limit", "study"):
        shown = objects[name]._repr_html_()
        assert shown.startswith("<pre") and "f64[" not in shown
    # The text names the rule that stopped a path.
    text = str(objects["limit"].trajectory)
    assert "stopped by a rule" in text and "event" not in text


def test_a_limit_is_saved(objects: dict[str, Any], tmp_path: Any) -> None:
    """Its numbers, read by xarray alone; a batch has its members first; and the limit itself by pickle."""
    limit, linear = objects["limit"], objects["linear limit"]
    for one in (limit, linear):
        one.to_xarray().to_zarr(tmp_path / "limit.zarr", mode="w", consolidated=False)
        back = xarray.open_zarr(tmp_path / "limit.zarr", consolidated=False)
        assert back.load().identical(one.to_xarray())
        assert float(back.certificate_duality_gap) == float(one.certificate.duality_gap)
        assert back.attrs["sentence"] == str(one) and str(jf.study.decode(back.outcome).item()) == str(one.outcome)
    assert np.array_equal(limit.to_xarray().selection, limit.selection)
    batch = jax.tree.map(lambda x: jnp.stack([x, x]) if eqx.is_array(x) else x, limit).to_xarray()
    assert batch.outcome.dims == ("member",) and batch.flow_direction.shape == (2, 4, 4)
    again = pickle.loads(pickle.dumps(limit))
    assert str(again) == str(limit) and again.trajectory.result == limit.trajectory.result


REFUSED = {
    "NaN": (
        lambda: regression(np.where(np.arange(60).reshape(30, 2) == 7, np.nan, INPUTS)),
        r"^inputs: NaN .* \(3, 1\)",
    ),
    "too many weights": (lambda: regression(width=3), r"^model: does not accept one input of shape \(2,\)"),
    "a loss of residuals": (
        lambda: regression(labels=INPUTS[:, 0], loss=lambda r: jnp.where(jnp.abs(r) < 1, r**2 / 2, jnp.abs(r) - 0.5)),
        r"^loss: a function is a loss of the margin .*AbstractLoss, or use 'squared'",
    ),
    "a gap below rounding": (lambda: jf.find_limit(RISK, START, gap=1e-20), r"^gap: 1e-20 is below what float64"),
}


@pytest.mark.parametrize("job", REFUSED)
def test_refused_in_one_sentence(job: str) -> None:
    call, message = REFUSED[job]
    with pytest.raises(ValueError) as refusal:
        call()
    text = str(refusal.value)
    assert re.search(message, text), text
    assert "Traceback" not in text and len(text) < 400, text

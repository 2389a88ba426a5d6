"""Outcomes of an experiment's own; rows of a study; an experiment of two methods."""

import enum

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxflow as jf
from jaxflow._core import Code, Outcome
from jaxflow.report import study_html
from jaxflow.study import AbstractExperiment, Study, percentages, status, summary, to_dataframe


class Coin(enum.IntEnum):
    heads = 1
    tails = 2
    edge = 30


def toss(key, bias=0.5):
    first, second = jax.random.uniform(key, (2,))
    side = jnp.where(second < 0.05, Coin.edge, jnp.where(first < bias, Coin.heads, Coin.tails))
    return {"outcome": Code(side, Coin), "value": first}


class Failed(enum.IntEnum):
    failed = 3


class Nine(enum.IntEnum):
    fine = 9


@pytest.fixture(scope="module")
def coins(tmp_path_factory):
    path = tmp_path_factory.mktemp("coins") / "coins.zarr"
    study = Study(toss, {"bias": [0.2, 0.8]}, trials=50, block=32)
    return study, path, study.run(path, progress=False).load()


def test_outcomes_of_its_own_are_stored_counted_and_told(coins):
    study, path, results = coins
    names = jf.study.decode(results["outcome"])
    assert set(np.unique(names)) <= {"heads", "tails", "edge"}
    for at, bias in enumerate((0.2, 0.8)):
        again = [str(study.replay(trial=trial, bias=bias)["outcome"]) for trial in range(3)]
        assert again == names.values[at, :3].tolist()
    counts = status(path).counts
    assert sum(counts.values()) == 100 and counts["heads"] == int((names == "heads").sum())
    assert f"{int((names == 'edge').sum())} edge" in str(status(path))
    assert "edge" in summary(results).columns and "not_run" not in summary(results).columns
    text = study_html(path)
    assert "an outcome of the experiment" in text and "heads" in text


def test_percentages_of_its_own_outcomes(coins):
    _, _, results = coins
    table = percentages(results)
    names = jf.study.decode(results["outcome"])
    assert list(table["outcome"].values) == ["heads", "tails", "failed", "edge"]
    heads = (names == "heads").sum("trial")
    assert np.array_equal(table["count"].sel(outcome="heads"), heads) and int(table["ran"][0]) == 50
    # What failed is no answer; everything else is, unless the caller says otherwise.
    assert table.attrs["given"] == "heads, tails, edge"
    sides = percentages(results, given=["heads", "tails"], groups={"a side": ["heads", "tails"]})
    assert np.allclose(sides["given_percentage"], 100.0)
    with pytest.raises(ValueError, match="given: unknown name 'headz'; did you mean 'heads'?"):
        percentages(results, given=["headz"])


class Separable(enum.IntEnum):
    separable = 1
    not_separable = 2


def separability(key):
    solution = jf.margin.solve(jf.margin.max_margin(jax.random.normal(key, (3, 2)), jnp.ones(3)))
    return {"outcome": Code(jnp.where(solution.result == "infeasible", 2, 1), Separable)}


def test_percentages_of_a_known_distribution(tmp_path):
    with Study(separability, trials=400, block=100).run(tmp_path / "r.zarr", progress=False) as results:
        found = percentages(results).sel(outcome="separable")
        # Wendel (1962): three random points of the plane lie in a half-plane with probability 3/4.
        assert float(found.low) <= 75.0 <= float(found.high)


@pytest.mark.parametrize(
    ("names", "message"), [(Failed, "Failed: failed has the code 9"), (Nine, "Nine: failed has the code 9")]
)
def test_the_code_of_failure_is_kept_for_failure(names, message, tmp_path):
    study = Study(lambda key: {"outcome": Code(next(iter(names)).value, names)}, trials=2)
    with pytest.raises(ValueError, match=message):
        study.run(tmp_path / "r.zarr", progress=False)


def test_one_row_an_instance(small):
    results = small[1]
    table = to_dataframe(results)
    assert len(table) == 40
    assert list(table.columns[:3]) == ["d", "parametrization", "trial"]
    assert {"direction_0", "direction_1"} <= set(table.columns)
    for at in (0, 7, 39):
        row = table.iloc[at]
        one = results.sel(d=row["d"], parametrization=row["parametrization"], trial=row["trial"])
        assert row["outcome"] == jf.study.decode(one["outcome"]).item()
        assert row["direction_1"] == float(one["direction"][1]) and row["steps"] == int(one["steps"])
    counted = table.groupby(["d", "parametrization"])["outcome"].count()
    assert (counted == 10).all()


class Pair(AbstractExperiment):
    """As the documentation says: two methods, and no more."""

    def setup(self, key, d=2):
        inputs = jnp.eye(d) + 0.1 * jax.random.normal(key, (d, d))
        network = jf.models.DiagonalLinearNetwork((jnp.ones(d), jnp.ones(d)))
        return jf.EmpiricalRisk(jf.data.LinearData(inputs, jnp.ones(d)), "exponential"), network

    def summarize(self, limit):
        return {"outcome": limit.outcome, "excess": limit.excess}


@pytest.mark.slow
def test_an_experiment_is_two_methods(tmp_path):
    results = Study(Pair(), {"d": [2]}, trials=2, block=2).run(tmp_path / "r.zarr", progress=False)
    assert set(results["outcome"].values.ravel()) <= {code.value for code in Outcome}
    assert int((results["outcome"] == Outcome.globally_optimal).sum()) == 2

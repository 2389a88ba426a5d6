"""Studies and the command line as people use them: no number lost, none twice, and a word of what is going on."""

import enum
import logging
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
import xarray
from typer.testing import CliRunner

import jaxflow as jf
from jaxflow.cli.study import app


def projection(key: Any, d: int = 2, method: str = "l2") -> dict[str, Any]:
    """A cheap function of a key: the size of a random vector in a norm."""
    x = jax.random.normal(key, (d,))
    return {"size": jnp.sum(jnp.abs(x)) if method == "l1" else jnp.linalg.norm(x)}


def study_of(trials: int = 10, **how: Any) -> jf.study.Study:
    return jf.study.Study(projection, {"d": [2, 3]}, {"method": ["l1", "l2"]}, trials=trials, seed=0, block=5, **how)


def test_export_to_csv_and_read_without_the_library(tmp_path: Any) -> None:
    results = study_of().run(tmp_path / "r.zarr", progress=False)
    jf.study.to_dataframe(results).to_csv(tmp_path / "r.csv", index=False)
    table = pd.read_csv(tmp_path / "r.csv")
    assert len(table) == 40 and {"d", "method", "size"} <= set(table.columns)
    alone = xarray.open_dataset(tmp_path / "r.zarr", engine="zarr", consolidated=False)
    np.testing.assert_allclose(table["size"].sum(), float(alone["size"].sum()), rtol=1e-12)
    # Both methods meet the same vectors, of which |x|_2 <= |x|_1.
    l1, l2 = (table[table.method == name]["size"].to_numpy() for name in ("l1", "l2"))
    assert np.all(l2 <= l1 + 1e-12)
    alone.close()
    results.close()


def test_an_interrupted_study_goes_on_where_it_was(tmp_path: Any) -> None:
    calls = []

    def stopped_once(key: Any, d: int = 2) -> dict[str, Any]:
        calls.append(d)
        if d == 3 and calls.count(3) == 1:
            raise KeyboardInterrupt
        return {"size": jnp.linalg.norm(jax.random.normal(key, (d,)))}

    study = jf.study.Study(stopped_once, {"d": [2, 3]}, trials=10, block=5)
    with pytest.raises((KeyboardInterrupt, jf.study.Interrupted)):
        study.run(tmp_path / "r.zarr", progress=False)
    results = study.run(tmp_path / "r.zarr", progress=False)
    whole = study.run(tmp_path / "whole.zarr", progress=False)
    np.testing.assert_array_equal(results["size"], whole["size"])
    assert jf.study.status(tmp_path / "r.zarr").complete and np.unique(results["size"]).size == 20
    results.close()
    whole.close()


def test_a_study_is_not_silent(tmp_path: Any, caplog: Any) -> None:
    with caplog.at_level(logging.INFO, logger="jaxflow.study"):
        study_of().run(tmp_path / "r.zarr").close()
    lines = [record.getMessage() for record in caplog.records]
    assert "0/40 instances" in lines[0] and any("compiling d=2, method=l1" in line for line in lines)
    assert any("compiled for" in line for line in lines) and "40/40 instances" in lines[-1]


class Separable(enum.IntEnum):
    separable = 1
    not_separable = 2


def test_percentages_of_a_known_distribution(tmp_path: Any) -> None:
    def separability(key: Any) -> dict[str, Any]:
        solution = jf.margin.solve(jf.margin.max_margin(jax.random.normal(key, (3, 2)), jnp.ones(3)))
        return {"outcome": jf.Code(jnp.where(solution.result == "infeasible", 2, 1), Separable)}

    results = jf.study.Study(separability, trials=400, block=100).run(tmp_path / "r.zarr", progress=False)
    table = jf.study.percentages(results)
    # Wendel (1962): three random points of the plane lie in a half-plane with probability 3/4.
    found = table.sel(outcome="separable")
    assert float(found.low) <= 75.0 <= float(found.high)
    results.close()


class Sphere(jf.study.AbstractExperiment):
    """A distribution of one's own: tokens of two clusters."""

    apart: float = 0.5

    def setup(self, key: Any, n: int = 3, parametrization: str = "W") -> Any:
        data, head = jf.data.random_tokens(key, n, 3, 4)
        data = jf.data.TokenData(data.tokens + self.apart * jnp.eye(4)[None, :1], data.queries, data.labels)
        kind = {"W": jf.models.CombinedAttention, "KQ": jf.models.FactoredAttention}[parametrization]
        return jf.EmpiricalRisk(data, "logistic"), kind.init(jf.study.subkey(key, "start"), data, head)

    def summarize(self, limit: Any) -> dict[str, Any]:
        return {"outcome": limit.outcome, "excess": limit.excess}


@pytest.mark.slow
def test_a_distribution_of_ones_own(tmp_path: Any) -> None:
    study = jf.study.Study(Sphere(), {"n": [2, 3]}, {"parametrization": ["W"]}, trials=8, block=8)
    results = study.run(tmp_path / "r.zarr", progress=False)
    names = jf.study.decode(results.outcome)
    assert np.mean(np.isin(names, ("globally_optimal", "locally_optimal"))) >= 0.8
    assert np.all(results.excess.values[np.isin(names, ("globally_optimal", "locally_optimal"))] <= 1e-8)
    # Alone an instance has the same answer.
    alone = study.replay(n=3, parametrization="W", trial=5)
    assert str(alone.outcome) == str(names.sel(n=3, parametrization="W", trial=5).item())
    results.close()


def test_columns_of_w_are_refused() -> None:
    with pytest.raises(ValueError, match="^m: only the parametrization KQ has columns to choose; give it a study"):
        jf.study.Study(jf.study.TokenSelection(), {"d": [2]}, {"parametrization": ["W", "KQ"], "m": [2]}, trials=2)


BAD = {
    "no file": (None, "nofile.toml"),
    "no experiment": ("trials = 4\n", "experiment"),
    "a wrong name": ('experiment = "TokenSelektion"\ntrials = 4\n', "TokenSelektion"),
    "a wrong factor": ('experiment = "TokenSelection"\ntrials = 4\n[data_factors]\nD = [2]\n', "'D'"),
    "no TOML": ("trials = = 4\n", "spec.toml"),
    "trials in words": ('experiment = "TokenSelection"\ntrials = "four"\n', "trials"),
}


@pytest.mark.parametrize("which", BAD)
def test_wrong_files_are_refused_in_one_line(which: str, tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    text, word = BAD[which]
    name = "nofile.toml" if text is None else "spec.toml"
    if text is not None:
        (tmp_path / name).write_text(text)
    found = CliRunner().invoke(app, ["run", name, "--out", "r.zarr"], env={"COLUMNS": "300"})
    said = found.output.strip()
    assert found.exit_code == 2 and word in said and "Traceback" not in said and "Errno" not in said
    assert len(said.splitlines()) == 1, said

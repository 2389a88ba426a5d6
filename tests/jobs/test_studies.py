"""Studies as people use them: exported, read without the library, and compared with a probability that is known."""

import enum
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
import xarray

import jaxflow as jf


def projection(key: Any, d: int = 2, method: str = "l2") -> dict[str, Any]:
    """A cheap function of a key: the size of a random vector in a norm."""
    x = jax.random.normal(key, (d,))
    return {"size": jnp.sum(jnp.abs(x)) if method == "l1" else jnp.linalg.norm(x)}


def test_export_to_csv_and_read_without_the_library(tmp_path: Any) -> None:
    study = jf.study.Study(projection, {"d": [2, 3]}, {"method": ["l1", "l2"]}, trials=10, seed=0, block=5)
    results = study.run(tmp_path / "r.zarr", progress=False)
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


def test_columns_of_w_are_refused() -> None:
    with pytest.raises(ValueError, match="^m: only the parametrization KQ has columns to choose; give it a study"):
        jf.study.Study(jf.study.TokenSelection(), {"d": [2]}, {"parametrization": ["W", "KQ"], "m": [2]}, trials=2)

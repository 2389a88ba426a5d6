"""Two methods on the same instances: how often one has an outcome and the other does not."""

import json
from typing import Any

import numpy as np

from jaxflow._core import as_plain, check_name, require
from jaxflow.study.counting import as_codes, outcomes_of, require_results, wilson
from jaxflow.study.tables import Table, as_text, cells, factor_names


def paired(
    results: Any, factor: str, a: Any, b: Any, *, outcome: Any = "globally_optimal", confidence: float = 0.95
) -> Any:
    r"""McNemar's comparison of two values of a method factor, which are run on the same instances.

    Only instances count that have the outcome by one method and not by the other: $n_a$ by `a` alone, $n_b$ by `b`
    alone. If both are equally likely, $n_a$ is binomial of $n_a+n_b$ at ½; `p_value` is that of the exact two-sided
    test. The interval for the difference of the shares is Newcombe's, from Wilson's intervals and the correlation of
    the two methods (Newcombe 1998, Statistics in Medicine 17, 2635, method 10).

    **Arguments:** `results` of a study; `factor`: a method factor, `a` and `b` two of its values; `outcome`: the
    outcome that counts, one name or several; `confidence` of the interval.

    **Returns:** an `xarray.Dataset` with the other axes of the study but `trial`: `pairs` (both methods ran), `both`,
    `only_a`, `only_b`, `neither`; `difference` of the percentages, a minus b, with `low` and `high`; `p_value`. Without
    pairs these are NaN.

    **Raises:** `ValueError` for a factor whose values have other instances, and for unknown values and outcomes.

    **Example:**

    ```python
    study = jf.study.Study(draw, method_factors={"d": [2, 3]}, trials=10, block=10)
    both = study.run("pairs.zarr", progress=False)
    jf.study.paired(both, "d", 2, 3, outcome="undecided").p_value
    ```
    """
    import xarray
    from scipy.stats import binomtest

    require_results(results)
    codes, known = results["outcome"], method_factors(results)
    data = factor in codes.dims and factor not in (*known, "trial")
    require(not data, "factor", f"the instances of {factor!r} differ; factors that share them are {known}")
    check_name("factor", factor, known)
    values = [as_plain(value) for value in results[factor].values]
    places = []
    for argument, value in (("a", a), ("b", b)):
        require(as_plain(value) in values, argument, f"{value!r} is no value of {factor}; known are {values}")
        places.append(values.index(as_plain(value)))
    require(places[0] != places[1], "b", f"expected another value of {factor} than a")
    wanted = as_codes("outcome", [outcome] if isinstance(outcome, str) else outcome, outcomes_of(results))
    first, second = (codes.isel({factor: at}, drop=True).transpose(..., "trial") for at in places)
    ran = ((first != 0) & (second != 0)).values
    one, two = (np.isin(x.values, wanted) & ran for x in (first, second))
    both, only_a, only_b = (x.sum(-1) for x in (one & two, one & ~two, two & ~one))
    pairs = ran.sum(-1)
    low, high = _newcombe(both, only_a, only_b, pairs, confidence)
    difference = np.where(pairs > 0, (only_a - only_b) / np.maximum(pairs, 1), np.nan)

    def test(one: Any, other: Any, of: Any) -> float:
        return np.nan if of == 0 else 1.0 if one + other == 0 else float(binomtest(one, one + other).pvalue)

    found = {
        "pairs": pairs,
        "both": both,
        "only_a": only_a,
        "only_b": only_b,
        "neither": pairs - both - only_a - only_b,
    }
    found |= {"difference": 100 * difference, "low": 100 * low, "high": 100 * high}
    found["p_value"] = np.vectorize(test, otypes=[float])(only_a, only_b, pairs)
    dims = first.dims[:-1]
    answer = xarray.Dataset(
        {name: (dims, value) for name, value in found.items()}, {d: results[d].values for d in dims}
    )
    answer.attrs = {"factor": factor, "a": values[places[0]], "b": values[places[1]], "confidence": confidence}
    return answer


def _newcombe(both: Any, only_a: Any, only_b: Any, pairs: Any, confidence: float) -> tuple[np.ndarray, np.ndarray]:
    """The interval of the difference of two shares of the same instances."""
    n = np.maximum(pairs, 1)
    neither, p, q = pairs - both - only_a - only_b, (both + only_a) / n, (both + only_b) / n
    (low_p, high_p), (low_q, high_q) = (wilson(both + some, pairs, confidence) for some in (only_a, only_b))
    product = (both + only_a) * (only_b + neither) * (both + only_b) * (only_a + neither)
    covariance = both * neither - only_a * only_b
    # Newcombe's correction for continuity, of a positive correlation only.
    covariance = np.where(covariance > 0, np.maximum(covariance - pairs / 2, 0.0), covariance)
    correlation = np.where(product > 0, covariance / np.sqrt(np.maximum(product, 1)), 0.0)

    def length(x: Any, y: Any) -> Any:
        return np.sqrt(np.maximum(x**2 - 2 * correlation * x * y + y**2, 0.0))

    low, high = p - q - length(p - low_p, high_q - q), p - q + length(high_p - p, q - low_q)
    return np.where(pairs > 0, low, np.nan), np.where(pairs > 0, high, np.nan)


def method_factors(results: Any) -> list[str]:
    """The factors that share their instances; of results that do not tell their study, all."""
    told = json.loads(results.attrs.get("study", "null"))
    names = factor_names(results)
    return [name for name in names if told is None or name in dict(told["method_factors"])]


def comparisons(results: Any) -> list[Table]:
    """A table for each method factor with two values: every outcome that occurred, by one method and by the other."""
    found = []
    for factor in method_factors(results):
        if results.sizes[factor] != 2:
            continue
        a, b = (as_plain(value) for value in results[factor].values)
        others = tuple(name for name in factor_names(results) if name != factor)
        rows = []
        for name, code in outcomes_of(results).items():
            if code == 0 or not bool((results["outcome"] == code).any()):
                continue
            for cell, row in cells(paired(results, factor, a, b, outcome=name), others):
                counts = [int(row[count]) for count in ("both", "only_a", "only_b")]
                if not any(counts):
                    continue
                interval = f"{float(row.difference):+.1f} [{float(row.low):+.1f}, {float(row.high):+.1f}]"
                test = f"{float(row.p_value):.2g}"
                rows.append((*cell, name, f"{int(row.pairs):,}", *(f"{count:,}" for count in counts), interval, test))
        one, two = as_text(a), as_text(b)
        columns = (*others, "outcome", "pairs", "both", f"{one} alone", f"{two} alone", "difference in %", "p")
        caption = f"Difference: {one} less {two}, with Newcombe's interval at 95%. p: McNemar's exact test, two-sided."
        found.append(Table(f"The same instances by {factor}", columns, tuple(sorted(rows)), caption))
    return found

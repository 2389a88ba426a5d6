"""Outcomes counted: percentages with their intervals and, always, what they are percentages of."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from jaxflow._core import Outcome, require, unknown_name

# Where the question was answered. The others ran, and count among all instances.
DECIDED = (
    Outcome.globally_optimal,
    Outcome.locally_optimal,
    Outcome.not_locally_optimal,
    Outcome.finite_stationary_point,
    Outcome.limit_point,
    Outcome.infeasible_program,
)

DEFINITIONS = {
    Outcome.not_run: "not run yet; in no denominator",
    Outcome.globally_optimal: "the direction is certified, and in every sequence the optimal token is selected",
    Outcome.locally_optimal: "the direction is certified, and the selected tokens are locally optimal (Definition 2)",
    Outcome.not_locally_optimal: "the direction is certified, but the selected tokens are not locally optimal",
    Outcome.finite_stationary_point: "the gradient vanishes at finite weights; no max-margin program describes them",
    Outcome.limit_point: "the flow tends to a point",
    Outcome.infeasible_program: "the program of the selected tokens is certified to have no solution",
    Outcome.ambiguous: "tied tokens, or margins too close to call",
    Outcome.undecided: "the budget of steps ran out, or nothing was certified",
    Outcome.failed: "a numerical method failed, or no worker survived",
}


def wilson(count: Any, total: Any, confidence: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
    r"""Wilson's score interval for a proportion $p$ of which `count` of `total` were seen.

    $$\frac{\hat p+\frac{z^2}{2n}\pm z\sqrt{\frac{\hat p(1-\hat p)}{n}+\frac{z^2}{4n^2}}}{1+z^2/n}$$

    It stays within 0 and 1 and says something where the count is 0 or `total` (Wilson 1927).

    **Arguments:** arrays that broadcast; `confidence` between 0 and 1.

    **Returns:** lower and upper ends; 0 and 1 where the total is 0.
    """
    require(0 < confidence < 1, "confidence", f"expected a number between 0 and 1, got {confidence}")
    count, total = np.asarray(count, float), np.asarray(total, float)
    z2 = statistics.NormalDist().inv_cdf(0.5 + confidence / 2) ** 2
    n = np.maximum(total, 1.0)
    p = count / n
    centre = (p + z2 / (2 * n)) / (1 + z2 / n)
    half = np.sqrt(z2 * (p * (1 - p) / n + z2 / (4 * n**2))) / (1 + z2 / n)
    # Exactly 0 and 1 at the ends, where rounding would leave 1e-17.
    low = np.where((total == 0) | (count == 0), 0.0, centre - half)
    high = np.where((total == 0) | (count == total), 1.0, centre + half)
    return low, high


def percentages(
    results: Any,
    over: str | Sequence[str] = "trial",
    *,
    given: Iterable[Outcome | str] = DECIDED,
    groups: Mapping[str, Iterable[Outcome | str]] | None = None,
    confidence: float = 0.95,
) -> Any:
    """How often each outcome occurred, of all instances that ran and of those in `given`, side by side.

    **Arguments:**

    - `results`: of a study, complete or not.
    - `over`: the axes that are pooled; a row remains for each value of the others.
    - `given`: the condition of the conditional percentages; by default the decided outcomes, that is all but
      `ambiguous`, `undecided` and `failed`.
    - `groups`: names for sets of outcomes, which may overlap (`"local, including global"`); by default every
      outcome by itself.
    - `confidence`: of the intervals (Wilson's).

    **Returns:** an `xarray.Dataset` with the remaining axes and `outcome` (or `group`): `count`, `percentage`,
    `low`, `high` (of all that ran), `given_percentage`, `given_low`, `given_high`, which is NaN where nothing
    satisfied the condition; without that axis the denominators `ran` and `given`, and `not_run`.

    **Raises:** `ValueError` for unknown axes or outcomes.
    """
    import xarray

    pooled = [over] if isinstance(over, str) else list(over)
    codes = results["outcome"]
    for name in pooled:
        if name not in codes.dims:
            raise unknown_name("over", name, [str(dim) for dim in codes.dims])
    condition = as_outcomes("given", given)
    kept = [str(dim) for dim in codes.dims if dim not in pooled]
    values = codes.transpose(*kept, *pooled).values
    shape = values.shape[: len(kept)]
    table = np.stack([(values == code).reshape(*shape, -1).sum(-1) for code in Outcome], axis=-1)
    ran = table[..., 1:].sum(-1)
    held = table[..., [int(code) for code in condition]].sum(-1)
    axis, sets = "outcome", {code.name: (code,) for code in Outcome if code != Outcome.not_run}
    if groups is not None:
        axis, sets = "group", {name: as_outcomes(f"groups[{name!r}]", members) for name, members in groups.items()}
    count = np.stack([table[..., [int(m) for m in members]].sum(-1) for members in sets.values()], axis=-1)
    both = [[int(m) for m in members if m in condition] for members in sets.values()]
    conditional = np.stack([table[..., members].sum(-1) for members in both], axis=-1)

    dims = [*kept, axis]
    found: dict[str, Any] = {"count": (dims, count), "ran": (kept, ran), "given": (kept, held)}
    found["not_run"] = (kept, table[..., 0])
    for prefix, part, whole in (("", count, ran), ("given_", conditional, held)):
        whole = np.broadcast_to(whole[..., None], part.shape)
        percentage = np.where(whole > 0, 100 * part / np.maximum(whole, 1), np.nan)
        low, high = wilson(part, whole, confidence)
        for name, value in (("percentage", percentage), ("low", 100 * low), ("high", 100 * high)):
            found[prefix + name] = (dims, value)
    coordinates = {name: results[name].values for name in kept if name in results.coords} | {axis: list(sets)}
    answer = xarray.Dataset(found, coords=coordinates)
    names = ", ".join(code.name for code in condition)
    answer.attrs = {"confidence": confidence, "given": names, "pooled": ", ".join(pooled)}
    answer["percentage"].attrs["long_name"] = "percentage of all instances that ran"
    answer["given_percentage"].attrs["long_name"] = f"percentage of the instances that ended in one of: {names}"
    answer["ran"].attrs["long_name"] = "denominator: instances that ran, however they ended"
    answer["given"].attrs["long_name"] = f"denominator: instances that ended in one of: {names}"
    return answer


def as_outcomes(argument: str, names: Iterable[Outcome | str]) -> tuple[Outcome, ...]:
    """**Raises:** `ValueError` for a name that is no outcome, with the nearest; for `not_run`, which is no end."""
    found = []
    for name in names:
        if isinstance(name, str) and name not in Outcome.__members__:
            raise unknown_name(argument, name, Outcome.__members__)
        outcome = Outcome[name] if isinstance(name, str) else Outcome(name)
        require(outcome != Outcome.not_run, argument, "an instance that was not run has not ended")
        found.append(outcome)
    return tuple(found)


def decode(codes: Any) -> Any:
    """The names of codes: of a variable of a results Dataset (by its own `flag_meanings`), or of outcomes.

    **Returns:** an `xarray.DataArray` of strings for a `DataArray`, else a NumPy array (or one string).

    **Raises:** `ValueError` for a number that is no code.
    """
    attributes = getattr(codes, "attrs", {})
    names = {int(code): code.name for code in Outcome}
    if "flag_meanings" in attributes:
        values = np.atleast_1d(attributes["flag_values"]).tolist()
        names = dict(zip(values, str(attributes["flag_meanings"]).split(), strict=True))
    values = np.asarray(codes)
    unknown = sorted(set(np.unique(values).tolist()) - names.keys())
    require(not unknown, "codes", f"{unknown} stand for nothing; known are {names}")
    found = np.asarray([names[value] for value in values.ravel().tolist()], dtype=str).reshape(values.shape)
    if hasattr(codes, "dims"):
        kept = {name: value for name, value in attributes.items() if not name.startswith("flag_")}
        answer = codes.copy(data=found)
        answer.attrs = kept
        return answer
    return found if found.ndim else str(found)

"""Outcomes counted: percentages with their intervals and, always, what they are percentages of."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from jaxflow._core import Outcome, SelectionStatus, as_plain, check_name, check_real, require

# Where the question was answered. The others ran, and count among all instances.
DECIDED = (
    Outcome.globally_optimal,
    Outcome.locally_optimal,
    Outcome.not_locally_optimal,
    Outcome.finite_stationary_point,
    Outcome.limit_point,
    Outcome.infeasible_program,
    Outcome.prediction_contradicted,
    Outcome.kkt_point,
)

DEFINITIONS = {
    Outcome.not_run: "not run yet; in no denominator",
    Outcome.globally_optimal: "the flow's direction is certified, and in every sequence the optimal token is selected",
    Outcome.locally_optimal: "the flow's direction is certified, and the selected tokens are locally optimal "
    "(Definition 2)",
    Outcome.not_locally_optimal: "the flow's direction is certified, by its own multipliers too, but the selected "
    "tokens are not locally optimal",
    Outcome.finite_stationary_point: "the gradient vanishes at finite weights; no max-margin program describes them",
    Outcome.limit_point: "the flow tends to a point",
    Outcome.infeasible_program: "the program of the selected tokens is certified to have no solution, and the flow's "
    "direction stands still",
    Outcome.ambiguous: "tied tokens, or margins too close to call",
    Outcome.undecided: "the budget of steps ran out, or nothing was certified",
    Outcome.failed: "a numerical method failed, or no worker survived",
    Outcome.prediction_contradicted: "the flow has settled on another direction, or point, than the predicted one",
    Outcome.selection_settled: "attention has settled on selected tokens whose program is certified, and the study "
    "followed the flow no further; the direction is not certified",
    Outcome.kkt_point: "the flow's direction tends to a stationary point of the margin problem in the parameters; that "
    "it is optimal is not claimed",
}

# What counts as an answer: the rules of `percentages`.
RULES = {
    "certified": "certified outcomes only",
    "settled": "certified outcomes, and settled selections by their status",
}


def wilson(count: Any, total: Any, confidence: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
    r"""Wilson's score interval for a proportion $p$, of which `count` of `total` were observed.

    $$\frac{\hat p+\frac{z^2}{2n}\pm z\sqrt{\frac{\hat p(1-\hat p)}{n}+\frac{z^2}{4n^2}}}{1+z^2/n}$$

    It stays within 0 and 1, and is not empty where the count is 0 or `total` (Wilson 1927).

    **Arguments:** arrays that broadcast; `confidence` between 0 and 1.

    **Returns:** lower and upper ends; 0 and 1 where the total is 0.

    **Example:**

    ```python
    low, high = jf.study.wilson(73, 100)
    assert low < 0.73 < high
    ```
    """
    confidence = _share("confidence", confidence)
    count, total = _numbers("count", count), _numbers("total", total)
    require(bool(np.all((0 <= total) & (total < np.inf))), "total", f"expected numbers from 0, got {total}")
    try:
        within = bool(np.all((0 <= count) & (count <= total)))
    except ValueError as error:
        raise ValueError(f"count: its shape {count.shape} does not fit the shape {total.shape} of total") from error
    require(within, "count", f"expected numbers from 0 to total, got {count} of {total}")
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
    given: Iterable[Outcome | str] | None = None,
    groups: Mapping[str, Iterable[Outcome | str]] | None = None,
    confidence: float = 0.95,
    rule: str = "certified",
) -> Any:
    """How often each outcome occurred: of all instances that ran, and of those in `given`.

    **Arguments:**

    - `results`: of a study, complete or not.
    - `over`: the axes that are pooled; a row remains for each value of the others.
    - `given`: the condition of the conditional percentages; by default the decided outcomes (`DECIDED`; for an
      experiment with outcomes of its own, all but `ambiguous`, `undecided` and `failed`).
    - `groups`: names for sets of outcomes, which may overlap (`"local, including global"`); by default every
      outcome by itself.
    - `confidence`: of the intervals (Wilson's).
    - `rule`: `"certified"` counts outcomes as they are: the direction of the flow is certified. `"settled"` also counts
      a settled selection that is locally optimal as `globally_optimal` or `locally_optimal`, though its direction was
      not followed to a certificate (`settled_selections`; it needs the variable `selection_status`). `attrs["rule"]`
      names the rule; call twice for both counts.

    **Returns:** an `xarray.Dataset` with the remaining axes and `outcome` (or `group`): `count`, `percentage`,
    `low`, `high` (of all that ran), `given_percentage`, `given_low`, `given_high`, which is NaN where nothing
    satisfied the condition; without that axis the denominators `ran` and `given`, and `not_run`.

    **Raises:** `ValueError` for unknown axes, outcomes or rules, and for the rule `"settled"` where settled selections
    have no status.

    **Example:**

    ```python
    jf.study.percentages(results)["percentage"].sel(outcome="globally_optimal")
    ```
    """
    import xarray

    require_results(results)
    listed = isinstance(over, Iterable) and all(isinstance(name, str) for name in over)
    require(listed, "over", f"expected the name of an axis, or several, got {over!r}")
    confidence = _share("confidence", confidence)
    pooled = [over] if isinstance(over, str) else list(dict.fromkeys(over))
    check_name("rule", rule, RULES)
    codes = results["outcome"]
    if rule == "settled" and bool((codes == Outcome.selection_settled.value).any()):
        require("selection_status" in results, "rule", "settled selections are counted by their `selection_status`")
        statuses = results["selection_status"].transpose(*codes.dims).values
        codes = codes.copy(data=settled_selections(codes.values, statuses))
    for name in pooled:
        check_name("over", name, [str(dim) for dim in codes.dims])
    names = outcomes_of(results)
    condition = decided(names) if given is None else as_codes("given", given, names)
    axis, sets = "outcome", {name: (code,) for name, code in names.items() if code}
    if groups is not None:
        table_of_names = isinstance(groups, Mapping) and len(groups) > 0 and all(isinstance(n, str) for n in groups)
        require(table_of_names, "groups", f"expected a table of names and lists of outcomes, got {groups!r}")
        axis, sets = "group", {name: as_codes(f"groups[{name!r}]", some, names) for name, some in groups.items()}
    # The codes are read from the store once for all outcomes. Their attributes do not describe a count.
    codes = codes.compute().drop_attrs()

    def counted(members: Iterable[int]) -> Any:
        return codes.isin(list(members)).sum(pooled)

    def of_sets(chosen: Iterable[int]) -> Any:
        each = [counted(code for code in members if code in chosen) for members in sets.values()]
        return xarray.concat(each, xarray.IndexVariable(axis, list(sets))).transpose(..., axis)

    count, conditional = of_sets(names.values()), of_sets(condition)
    ran, held = counted(code for code in names.values() if code), counted(condition)
    found = {"count": count, "ran": ran, "given": held, "not_run": counted([Outcome.not_run.value])}
    for prefix, part, whole in (("", count, ran), ("given_", conditional, held)):
        low, high = wilson(part, whole.broadcast_like(part).transpose(*part.dims), confidence)
        found[prefix + "percentage"] = 100 * part / whole.where(whole > 0)
        found |= {prefix + name: (part.dims, 100 * end) for name, end in (("low", low), ("high", high))}
    answer = xarray.Dataset(found)
    told = ", ".join(name for name, code in names.items() if code in condition)
    answer.attrs = {"confidence": confidence, "given": told, "pooled": ", ".join(pooled), "rule": rule}
    answer["count"].attrs["long_name"] = f"instances that ended so, counted by the rule: {RULES[rule]}"
    answer["percentage"].attrs["long_name"] = "percentage of all instances that ran"
    answer["given_percentage"].attrs["long_name"] = f"percentage of the instances that ended in one of: {told}"
    answer["ran"].attrs["long_name"] = "denominator: instances that ran, however they ended"
    answer["given"].attrs["long_name"] = f"denominator: instances that ended in one of: {told}"
    return answer


def settled_selections(outcomes: Any, statuses: Any) -> np.ndarray:
    """Codes of `Outcome` by the rule `"settled"`: `selection_settled` becomes `globally_optimal` or `locally_optimal`
    where the selection has that status (`SelectionStatus`). With another status it stays `selection_settled`: a
    selection that is not locally optimal may be left later.

    **Example:**

    ```python
    settled, globally = int(jf.Outcome.selection_settled), int(jf.SelectionStatus.global_)
    assert jf.study.settled_selections([settled], [globally])[0] == jf.Outcome.globally_optimal
    ```
    """
    outcomes, statuses = np.asarray(outcomes), np.asarray(statuses)
    for name, codes in (("outcomes", outcomes), ("statuses", statuses)):
        require(codes.dtype.kind in "iu" or not codes.size, name, f"expected codes, got {codes.dtype}")
    same = outcomes.shape == statuses.shape or not statuses.ndim
    require(same, "statuses", f"expected the shape {outcomes.shape} of the outcomes, got {statuses.shape}")
    settled = outcomes == Outcome.selection_settled.value
    found = np.where(settled & (statuses == SelectionStatus.global_.value), Outcome.globally_optimal.value, outcomes)
    found = np.where(settled & (statuses == SelectionStatus.local.value), Outcome.locally_optimal.value, found)
    return found.astype(outcomes.dtype)


def require_results(results: Any) -> None:
    """**Raises:** `ValueError` for what is not the results of a study."""
    import xarray

    dataset = isinstance(results, xarray.Dataset)
    require(dataset, "results", f"expected the results of a study (an xarray.Dataset), got {type(results).__name__}")
    require("outcome" in results, "results", "the Dataset holds no `outcome`; it is not of a study")
    require("trial" in results["outcome"].dims, "results", "its `outcome` has no axis `trial`; give all of a study")


def _share(argument: str, value: Any) -> float:
    share = float(as_plain(check_real(argument, value, positive=True)))
    require(share < 1, argument, f"expected a number between 0 and 1, got {value}")
    return share


def _numbers(argument: str, value: Any) -> np.ndarray:
    try:
        return np.asarray(value, float)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{argument}: expected numbers, got {value!r}") from error


def outcomes_of(results: Any) -> dict[str, int]:
    """Names and codes of a study's outcomes, in the order of the codes: as stored beside them, else `Outcome`'s."""
    return {name: code for code, name in sorted(_names_of(results["outcome"].attrs).items())}


def _names_of(attributes: Mapping[str, Any]) -> dict[int, str]:
    """Codes and their names, as they are stored beside an array, else `Outcome`'s."""
    if "flag_meanings" not in attributes:
        return {int(code): code.name for code in Outcome}
    values = map(int, np.atleast_1d(attributes["flag_values"]))
    return dict(zip(values, str(attributes["flag_meanings"]).split(), strict=True))


def decided(names: Mapping[str, int]) -> tuple[int, ...]:
    """The codes that answer the question: `DECIDED`, or of other outcomes all that do not say the opposite."""
    if dict(names) == {code.name: int(code) for code in Outcome}:
        return tuple(int(code) for code in DECIDED)
    open_ = {Outcome.not_run.name, Outcome.ambiguous.name, Outcome.undecided.name, Outcome.failed.name}
    return tuple(code for name, code in names.items() if name not in open_)


def as_codes(argument: str, wanted: Iterable[Outcome | str], names: Mapping[str, int]) -> tuple[int, ...]:
    """**Raises:** `ValueError` for a name that is no outcome, with the nearest; for `not_run`, which is no end."""
    found = []
    listed = isinstance(wanted, Iterable) and not isinstance(wanted, str | bytes)
    require(listed, argument, f"expected a list of outcomes, got {wanted!r}")
    for name in wanted:
        number = as_plain(name)
        coded = isinstance(number, int) and not isinstance(number, bool)
        require(isinstance(name, str) or coded, argument, f"expected outcomes or their names, got {name!r}")
        text = name if isinstance(name, str) else next((n for n, code in names.items() if code == number), str(name))
        check_name(argument, text, names)
        require(names[text] != Outcome.not_run, argument, "an instance that was not run has not ended")
        found.append(names[text])
    return tuple(found)


def decode(codes: Any) -> Any:
    """The names of codes: of a variable of a results Dataset (by its own `flag_meanings`), or of outcomes.

    **Returns:** an `xarray.DataArray` of strings for a `DataArray`, else a NumPy array (or one string).

    **Raises:** `ValueError` for a number that is not a code.
    """
    attributes = getattr(codes, "attrs", {})
    names = _names_of(attributes)
    values = np.asarray(codes)
    require(values.dtype.kind in "iu" or not values.size, "codes", f"expected numbers of outcomes, got {codes!r}")
    unknown = sorted(set(np.unique(values).tolist()) - names.keys())
    require(not unknown, "codes", f"{unknown} stand for nothing; known are {names}")
    found = np.asarray([names[value] for value in values.ravel().tolist()], dtype=str).reshape(values.shape)
    if hasattr(codes, "dims"):
        kept = {name: value for name, value in attributes.items() if not name.startswith("flag_")}
        answer = codes.copy(data=found)
        answer.attrs = kept
        return answer
    return found if found.ndim else str(found)

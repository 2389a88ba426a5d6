"""Calls of studies, and wrong uses of them with what the whole sentence says."""

import itertools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import xarray

import jaxflow.study as s
from tests.arguments.harness import Call, call
from tests.arguments.kinds import INF, KEY, NAN, boolean, count, number, optional, path, seed, text, thing
from tests.study.cheap import HostExperiment, cheap, small_study, tiny_study


def takes_anything(key, **factors):
    return {"value": 1.0}


def needs(key, d, T):
    return {"value": d * T}


def keyless():
    return {"value": 1.0}


def of_tokens(**cell: Any) -> s.Study:
    """A study of one cell."""
    return s.Study(s.TokenSelection(), {name: [value] for name, value in cell.items()})


RESULTS = xarray.Dataset({"outcome": (("d", "trial"), np.ones((2, 3), np.uint8))}, coords={"d": [2, 3]})
NO_RESULTS = (None, "r.zarr", 3, [1, 2], {}, xarray.Dataset(), RESULTS["outcome"], RESULTS.isel(trial=0))
OF_STUDY = (RESULTS, None, *NO_RESULTS)
SHARE = (0.95, None, 0, 1, 95, -1, NAN, "0.95", None, True, [0.9, 0.8])
ONE = {"trial": (0, count(0)), "d": (2, None, [2], None, {}, NAN, np.ones(2))}
NO_FACTOR = ((), np.zeros(0), [[1, 2]], np.ones((2, 2)), [{}], [set()], [b"a"], [INF], [NAN], [1 + 2j], [2, 2], [None])
NO_FACTOR += ([True, 1], [2, "a"], [10**30], [2**60 + 1, 0.5], ["a\0", "a"], ["a\nb"], ["\ud800"], ["x" * 5000])
NO_FACTOR += ([object()], [KEY])
NO_LIST = (4, "24", b"24", None, {2: 3}, {2, 3}, np.array(2), jnp.asarray(2), itertools.count())

CALLS: list[Call] = [
    *map(call, (tiny_study().status, tiny_study().plot, s.open_results, s.status)),
    call(
        small_study,
        row="Study",
        trials=(10, count(), 10**12, np.int64(-3)),
        block=(4, optional(count()), 10**12, np.int64(-3)),
        seed=(0, seed),
        data_factors=({"d": [2]}, None, [("d", [2])], "d", 3, ["d"]),
    ),
    call(
        lambda data_factors: small_study(data_factors={"d": data_factors}),
        row="Study, a list of values",
        data_factors=([2, 3], None, *NO_LIST),
    ),
    call(lambda d: small_study(data_factors={"d": d}), row="Study, values", d=([2, 3], None, *NO_FACTOR)),
    call(
        lambda factors: small_study(takes_anything, data_factors={factors: [1]}, method_factors={}),
        row="Study, names of factors",
        factors=("d", None, 3, "key"),
    ),
    call(
        lambda experiment: s.Study(experiment),
        row="Study of an experiment",
        experiment=(cheap, None, None, 3, "cheap", HostExperiment, int, keyless, [cheap]),
    ),
    call(
        lambda experiment, name: s.FunctionExperiment(experiment, name),
        row="FunctionExperiment",
        experiment=(cheap, None, 3),
        name=(None, None, 3, ["a"], "a\0", "a\nb"),
    ),
    call(tiny_study().run, executor=(None, None, 4, "dsak", ["serial"]), allow_mixed=(False, boolean)),
    call(lambda store_path: s.study_of_store(store_path), row="study_of_store"),
    call(lambda spec: s.read_spec(spec), row="read_spec", spec=("spec.toml", path)),
    *(call(use, **ONE) for use in (tiny_study().recompute, tiny_study().replay)),
    *(call(use, results=OF_STUDY) for use in (s.summary, s.quantities, s.to_dataframe)),
    call(
        s.percentages,
        results=OF_STUDY,
        over=("trial", None, 3, None, "trails", [3], ["trial", "e"]),
        given=(None, None, 3, "failed", ["x"], [77], [None], [[1]], [True]),
        groups=(None, None, 3, {}, ["a"], {"a": 3}, {"a": ["x"]}, {3: []}),
        confidence=SHARE,
        rule=("certified", thing),
    ),
    call(
        s.paired,
        results=OF_STUDY,
        factor=("d", None, "dd", "trial", None, 3, ["d"]),
        a=(2, None, 4, None, "2", [2]),
        b=(3, None, 2, 4, None, "3"),
        outcome=("failed", None, "x", 3, None, [77]),
        confidence=SHARE,
    ),
    call(
        s.wilson,
        count=(1, None, -1, 11, NAN, "a", None, [1, "a"], [[1], [2, 3]], [1, 2, 3]),
        total=([10, 10], None, -1, NAN, INF, "a", None),
        confidence=SHARE,
    ),
    call(s.decode, codes=(3, None, 77, -1, 1.5, "failed", None, [1, 77], [None], True)),
    call(
        s.settled_selections,
        outcomes=([11], None, ["a"], [1.5], [None], [True]),
        statuses=([1], None, ["a"], [1, 2], [1.5], [[1]]),
    ),
    call(
        s.plot,
        results=OF_STUDY,
        kind=("bars", None, "bar", 3, None, ["bars"]),
        x=("d", None, "dd", 3, ["d"]),
        y=(None, None, "dd", 3, ["d"]),
        outcome=("failed", None, "x", 3, None, ["failed"]),
        conditional=(False, boolean),
    ),
    call(
        s.trial_key,
        experiment=("a", text),
        data_factors=({}, None, 3, None, [2], {"d": NAN}, {"d": {1, 2}}),
        trial=(0, count(0)),
    ),
    call(s.subkey, name=("a", text)),
    call(
        s.TokenSelection,
        **dict.fromkeys(("width", "parts", "programs"), (4, optional(count()))),
        **dict.fromkeys(("rtol", "far_rtol"), (1e-3, number(positive=True))),
        scout=("double", thing),
    ),
    call(
        of_tokens,
        row="Study of token selection",
        n=(5, count()),
        T=(5, count(2), 300),
        d=(2, count()),
        score_gap=(0.1, None, -0.1, 2.0, "a", True),
        self_attention=(False, None, 1),
        parametrization=("W", None, "V"),
    ),
]

# What a sentence begins with and, after three dots, has in it; and the call.
SENTENCES: list[tuple[str, Callable[[], Any]]] = [
    ("block: ... more files than a store holds", lambda: small_study(trials=10**8, block=1)),
    ("data_factors['d'] ... expected a list of values, got '24'", lambda: small_study(data_factors={"d": "24"})),
    ("d: a factor needs at least one value", lambda: small_study(data_factors={"d": []})),
    ("d: 2 is given twice; one instance would have two", lambda: small_study(data_factors={"d": [2, 2.0]})),
    ("factors: unknown name 'spraed'; did you mean 'spread'?", lambda: small_study(data_factors={"spraed": [1.0]})),
    ("trial: ... the store uses itself", lambda: small_study(takes_anything, data_factors={"trial": [1]})),
    *(
        (f"{name}: the name of a factor", lambda name=name: small_study(takes_anything, data_factors={name: [1]}))
        for name in ("a b", "../a", "", "x" * 300, "<script>")
    ),
    ("factors: needs needs T as well", lambda: small_study(needs, data_factors={"d": [1]}, method_factors={})),
    (
        "method_factors: parametrization is a data factor as well",
        lambda: small_study(data_factors={"parametrization": ["W"]}),
    ),
    ("factors: give parametrization as well", lambda: small_study().recompute(d=3, trial=0)),
    ("groups['x']: an instance that was not run", lambda: s.percentages(RESULTS, groups={"x": ["not_run"]})),
    ("y: a heat map needs two factors", lambda: s.plot(RESULTS, "heat_map", x="d", y="d")),
    (
        "m: only the parametrization KQ has columns to choose; give it a study",
        lambda: s.Study(s.TokenSelection(), {}, {"parametrization": ["W", "KQ"], "m": [2]}),
    ),
]

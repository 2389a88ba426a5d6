"""Every public function, given what it cannot use: a sentence that names the argument, before anything is computed."""

import functools
import itertools
import json
import os
import tempfile
import traceback

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray

import jaxflow.study as s
from tests.study.cheap import HostExperiment, cheap, said, small_study, tiny_study


def takes_anything(key, **factors):
    return {"value": 1.0}


def needs(key, d, T):
    return {"value": d * T}


def keyless():
    return {"value": 1.0}


RESULTS = xarray.Dataset({"outcome": (("d", "trial"), np.ones((2, 3), np.uint8))}, coords={"d": [2, 3]})


def study(**changes):
    return functools.partial(small_study, **changes)


def case(argument, function, *given, **named):
    return argument, functools.partial(function, *given, **named)


NOT_INTEGERS = (2.5, 4.0, "4", None, [4], True, float("nan"), float("inf"), np.float64(4), jnp.ones(2), 10**400)
NOT_PATHS = (None, 3, "", "  ", b"r.zarr", ["r.zarr"], "s3://bucket/r.zarr", "a\0b")
NOT_RESULTS = (None, "r.zarr", 3, [1, 2], {}, xarray.Dataset(), RESULTS["outcome"], RESULTS.isel(trial=0))
NOT_BOOLEANS = ("no", 1, None, 0.0, [])

# What the sentence begins with and has in it, and the call.
CASES = [
    case("trials: expected at least 1, got 0", study(trials=0)),
    case("block: expected at least 1", study(block=0)),
    case("d: a factor needs at least one value", study(data_factors={"d": []})),
    case("data_factors['d'] ... expected a list of values, got '24'", study(data_factors={"d": "24"})),
    case("d: 2 is given twice; one instance would have two results", study(data_factors={"d": [2, 2.0]})),
    case("d: ... values of different kinds", study(data_factors={"d": [2, "a"]})),
    case("d: ... expected numbers, Booleans or strings, got None", study(data_factors={"d": [None]})),
    case("d: ... contains NaN or an infinity", study(data_factors={"d": [float("nan")]})),
    case("factors: unknown name 'spraed'; did you mean 'spread'?", study(data_factors={"spraed": [1.0]})),
    case("factors: unknown name 'trial'", study(data_factors={"trial": [1]})),
    case("factors: needs needs T as well", small_study, needs, data_factors={"d": [1]}, method_factors={}),
    case("method_factors: parametrization is a data factor as well", study(data_factors={"parametrization": ["W"]})),
    case("experiment: expected an experiment", s.Study, HostExperiment),
    case("executor: unknown name 'dsak'; did you mean 'dask'?", tiny_study().run, "r.zarr", executor="dsak"),
    case("factors: give parametrization as well", small_study().replay, d=2, trial=0),
    case("factors: give parametrization as well", small_study().recompute, d=3, trial=0),
    case("factors: unknown name 'parametrisation'; did you mean", small_study().replay, parametrisation="W", trial=0),
    case("rule: unknown name 'setled'; did you mean 'settled'", s.percentages, RESULTS, rule="setled"),
    case("over: unknown name 'trails'; did you mean 'trial'", s.percentages, RESULTS, over="trails"),
    case("given: unknown name 'globaly_optimal'; did you mean", s.percentages, RESULTS, given=["globaly_optimal"]),
    case("groups['x']: an instance that was not run", s.percentages, RESULTS, groups={"x": ["not_run"]}),
    case("codes ... [77] stand for nothing", s.decode, np.array([1, 77])),
    case("kind: unknown name 'bar'; did you mean 'bars'?", s.plot, RESULTS, "bar"),
    case("x: unknown name 'dd'; did you mean 'd'?", s.plot, RESULTS, x="dd"),
    case("outcome: unknown name 'globaly_optimal'", s.plot, RESULTS, "curves", outcome="globaly_optimal"),
    case("y: a heat map needs two factors", s.plot, RESULTS, "heat_map", x="d", y="d"),
    case("factor: unknown name 'trial'", s.paired, RESULTS, "trial", 0, 1),
    case("b: 4 is no value of d", s.paired, RESULTS, "d", 2, 4),
    case("b: expected another value", s.paired, RESULTS, "d", 2, 2),
    case("outcome: unknown name 'globaly_optimal'", s.paired, RESULTS, "d", 2, 3, outcome="globaly_optimal"),
    case("m: only the parametrization KQ has columns", s.TokenSelection().setup, jax.random.key(0), m=2),
    *(case(name, study(**{name: value})) for name in ("trials", "seed") for value in NOT_INTEGERS),
    # A block of None is that of the kind of device.
    *(case("block", study(block=value)) for value in NOT_INTEGERS if value is not None),
    *(case(name, study(**{name: value})) for name in ("trials", "block") for value in (0, -1, 10**12, np.int64(-3))),
    case("seed", study(seed=2**64)),
    case("block", study(trials=10**8, block=1)),
    case("trials", study(trials=10**9)),
    *(case("data_factors", study(data_factors=value)) for value in ([("d", [2])], "d", 3, ["d"])),
    *(
        case("data_factors['d']", study(data_factors={"d": value}))
        for value in (4, "24", b"24", None, {2: 3}, {2, 3}, np.array(2), jnp.asarray(2), itertools.count())
    ),
    *(
        case("d:", study(data_factors={"d": value}))
        for value in (
            (),
            np.zeros(0),
            [[1, 2]],
            np.ones((2, 2)),
            [{}],
            [set()],
            [b"a"],
            [float("inf")],
            [1 + 2j],
            [2, 2],
            [True, 1],
            [10**30],
            [2**60 + 1, 0.5],
            ["a\0", "a"],
            ["a\nb"],
            ["\ud800"],
            ["x" * 5000],
            [object()],
            [jax.random.key(0)],
        )
    ),
    case("factors", small_study, takes_anything, data_factors={3: [1]}, method_factors={}),
    case("factors", small_study, takes_anything, data_factors={"key": [1]}, method_factors={}),
    case("trial", small_study, takes_anything, data_factors={"trial": [1]}, method_factors={}),
    *(
        case(f"{name}:", small_study, takes_anything, data_factors={name: [1]}, method_factors={})
        for name in ("a b", "../a", "", "a/b", "x" * 300, "<script>")
    ),
    *(case("experiment", s.Study, value) for value in (None, 3, "cheap", HostExperiment, int, keyless, [cheap])),
    case("experiment", s.FunctionExperiment, 3),
    *(case("name", s.FunctionExperiment, cheap, name=value) for value in (3, ["a"], "a\0")),
    *(
        case(argument, tiny_study().run, "r.zarr", **{argument: value})
        for argument in ("progress", "overwrite", "allow_mixed")
        for value in NOT_BOOLEANS
    ),
    *(
        case("store_path", use, value)
        for use in (tiny_study().run, tiny_study().status, s.open_results)
        for value in NOT_PATHS
    ),
    *(case("store_path", use, value) for use in (s.status, s.study_of_store, tiny_study().plot) for value in NOT_PATHS),
    case("store_path", tiny_study().run, "/"),
    case("executor: expected None, a name or a concurrent", tiny_study().run, "r.zarr", executor=4),
    case("executor", tiny_study().run, "r.zarr", executor=["serial"]),
    *(case("verify", s.status, "r.zarr", verify=value) for value in NOT_BOOLEANS),
    *(case("spec", s.read_spec, value) for value in NOT_PATHS),
    *(case("trial", tiny_study().recompute, trial=value) for value in (*NOT_INTEGERS, -1)),
    *(case("d:", tiny_study().recompute, trial=0, d=value) for value in ([2], None, {}, float("nan"), np.ones(2))),
    *(case("factors", tiny_study().recompute, trial=0, **{name: 2}) for name in ("dd", "T")),
    *(case("trial", tiny_study().replay, trial=value) for value in (*NOT_INTEGERS, -1)),
    *(case("d:", tiny_study().replay, trial=0, d=value) for value in ([2], None, {}, float("nan"), np.ones(2))),
    *(case("factors", tiny_study().replay, trial=0, **{name: 2}) for name in ("dd", "T")),
    *(case("results", use, value) for use in (s.percentages, s.summary, s.quantities) for value in NOT_RESULTS),
    *(case("results", use, value) for use in (s.to_dataframe, s.plot) for value in NOT_RESULTS),
    *(case("over", s.percentages, RESULTS, value) for value in (3, None, "trails", [3], ["trial", "e"])),
    *(
        case("given", s.percentages, RESULTS, given=value)
        for value in (3, "failed", ["x"], [77], [None], [[1]], [True])
    ),
    *(
        case("groups", s.percentages, RESULTS, groups=value)
        for value in (3, {}, ["a"], {"a": 3}, {"a": ["x"]}, {3: []})
    ),
    *(
        case("confidence", s.percentages, RESULTS, confidence=value)
        for value in (0, 1, 95, -1, float("nan"), "0.95", None, True, [0.9])
    ),
    *(case("results", s.paired, value, "d", 2, 3) for value in NOT_RESULTS),
    *(case("factor", s.paired, RESULTS, value, 2, 3) for value in ("dd", "trial", None, 3, ["d"])),
    *(case("a", s.paired, RESULTS, "d", value, 3) for value in (4, None, "2", [2])),
    *(case("b", s.paired, RESULTS, "d", 2, value) for value in (2, 4, None, "3")),
    *(case("outcome", s.paired, RESULTS, "d", 2, 3, outcome=value) for value in ("x", 3, None, [77])),
    *(case("confidence", s.paired, RESULTS, "d", 2, 3, confidence=value) for value in (0, 1, 95, "a", None)),
    *(case("rule", s.percentages, RESULTS, rule=value) for value in ("setled", None, 3, ["settled"])),
    *(case("confidence", s.wilson, 1, 2, value) for value in (0, 1, 95.0, float("nan"), "a", None, [0.9, 0.8])),
    *(case("count", s.wilson, value, 10) for value in (-1, 11, float("nan"), "a", None, [1, "a"], [[1], [2, 3]])),
    *(case("total", s.wilson, 0, value) for value in (-1, float("nan"), float("inf"), "a", None)),
    case("count", s.wilson, [1, 2, 3], [4, 5]),
    *(case("codes", s.decode, value) for value in (77, -1, 1.5, "failed", None, [1, 77], [None], True)),
    *(case("outcomes", s.settled_selections, value, [1]) for value in (["a"], [1.5], [None], [True])),
    *(case("statuses", s.settled_selections, [11], value) for value in (["a"], [1, 2], [1.5], [[1]])),
    *(case("kind", s.plot, RESULTS, value) for value in ("bar", 3, None, ["bars"])),
    *(case(name, s.plot, RESULTS, **{name: value}) for name in ("x", "y") for value in ("dd", 3, ["d"])),
    *(case("outcome", s.plot, RESULTS, outcome=value) for value in ("x", 3, None, ["failed"])),
    *(case("conditional", s.plot, RESULTS, conditional=value) for value in NOT_BOOLEANS),
    *(case("seed", s.trial_key, value, "a", {}, 0) for value in ("a", None, 1.5, True)),
    *(case("experiment", s.trial_key, 0, value, {}, 0) for value in (3, None, ["a"])),
    *(
        case("data_factors", s.trial_key, 0, "a", value, 0)
        for value in (3, None, [2], {"d": float("nan")}, {"d": {1, 2}})
    ),
    *(case("trial", s.trial_key, 0, "a", {}, value) for value in ("a", None, 1.5, -1)),
    *(
        case("key", s.subkey, value, "a")
        for value in (3.5, None, jnp.zeros(3, jnp.uint32), jax.random.split(jax.random.key(0)))
    ),
    *(case("name", s.subkey, jax.random.key(0), value) for value in (3, None, b"a")),
    *(
        case(name, s.TokenSelection, **{name: value})
        for name in ("width", "parts", "programs", "max_steps")
        for value in (0, -1, 2.5, "a", True)
    ),
    *(case(name, s.TokenSelection, **{name: None}) for name in ("max_steps",)),
    *(
        case(name, s.TokenSelection, **{name: value})
        for name in ("gap", "rtol", "far_rtol")
        for value in (0, -1.0, float("nan"), float("inf"), "a", True)
    ),
    *(
        case(name, s.Study, s.TokenSelection(), {name: [5, value]})
        for name in ("n", "T", "d")
        for value in (0, -1, 2.5)
    ),
    *(case("score_gap", s.Study, s.TokenSelection(), {"score_gap": [value]}) for value in (-0.1, 2.0)),
    *(case("score_gap", s.Study, s.TokenSelection(), {"score_gap": [value]}) for value in ("a", True)),
    case("self_attention", s.Study, s.TokenSelection(), {"self_attention": [1]}),
    case("parametrization", s.Study, s.TokenSelection(), {}, {"parametrization": ["W", "V"]}),
    case(
        "m: only the parametrization KQ has columns to choose; give it a study",
        s.Study,
        s.TokenSelection(),
        {},
        {"parametrization": ["W", "KQ"], "m": [2]},
    ),
]


def complaints() -> list[str]:
    """What is wrong with the answer of each case: none for a `ValueError` of one line that begins with the name and
    has in it what else is asked for (after three dots)."""
    found = []
    for argument, call in CASES:
        try:
            call()
        except ValueError as error:
            text, (begins, *has) = str(error), argument.split(" ... ")
            if (
                not text.startswith(begins)
                or any(words not in text for words in has)
                or "\n" in text
                or len(text) > 500
            ):
                found.append(f"{argument} of {call}: {text[:200]}")
        except Exception:
            found.append(f"{argument} of {call}: {traceback.format_exc()[-300:]}")
        else:
            found.append(f"{argument} of {call}: no error")
    return found


def main() -> None:
    """The table in a folder of its own, without the checks of shapes and types that the tests switch on."""
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        print(json.dumps({"complaints": complaints(), "written": os.listdir(folder), "cases": len(CASES)}))


def test_every_wrong_argument_is_named():
    """In a process of its own: a user's has no beartype, which would answer first."""
    found = json.loads(said("-c", "from tests.study.test_arguments import main; main()").splitlines()[-1])
    assert found["complaints"] == []
    assert found["written"] == [] and found["cases"] == len(CASES) > 300


@pytest.mark.parametrize(
    "values",
    [
        (2, 3),
        np.array([2, 3]),
        jnp.asarray([2, 3]),
        range(2, 4),
        (v for v in (2, 3)),
        [np.int32(2), np.uint8(3)],
        [2.0, 3],
    ],
)
def test_what_counts_as_a_list_of_values(values):
    found = small_study(data_factors={"d": values}, trials=np.int64(10), seed=np.uint8(0), block=jnp.asarray(4))
    assert found.plan.same(small_study().plan)
    assert all(type(value) in (int, float) for value in found.plan.factors["d"])
    assert [type(number) for number in (found.plan.trials, found.plan.seed, found.plan.block)] == [int] * 3


def test_settings_are_what_a_store_gives_back(tmp_path):
    """A number of NumPy is a number; a tuple is a list in a file, and the study the same."""
    path = tmp_path / "r.zarr"
    study = tiny_study(HostExperiment(pause=np.float64(0.0), method=(1, np.int64(2))))
    assert study.experiment.settings()["method"] == [1, 2]
    study.run(path, progress=False)
    assert study.status(path).complete
    partial = [tiny_study(functools.partial(cheap, spread=spread)) for spread in (1.0, 2.0)]
    assert not partial[0].plan.same(partial[1].plan)

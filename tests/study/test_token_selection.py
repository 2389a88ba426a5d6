"""The built-in experiment: certified outcomes, the same whoever the neighbours are, and one trial again in full."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxflow as jf
from jaxflow._core import Outcome
from jaxflow.study import AbstractExperiment, Study, TokenSelection, decode, open_results, percentages, queues
from jaxflow.study.keys import as_keys, key_data
from jaxflow.study.token_selection import padded_size

FACTORS = {"n": 3, "T": 3, "d": 3}
B = 12


@pytest.fixture(scope="module")
def blocks():
    """Blocks of W and of (K, Q) on the same keys, and the functions that computed them."""
    keys = jax.random.split(jax.random.key(4), B)
    experiment = TokenSelection(width=4)
    functions = {p: experiment.block_function({**FACTORS, "parametrization": p}, B) for p in ("W", "KQ")}
    return experiment, keys, functions, {p: function(keys) for p, function in functions.items()}


@pytest.mark.parametrize("parametrization", ["W", "KQ"])
def test_directions_are_certified_and_locally_optimal(blocks, parametrization):
    _, _, _, found = blocks
    table = {name: np.asarray(value) for name, value in found[parametrization].items()}
    decided = np.isin(table["outcome"], [Outcome.globally_optimal, Outcome.locally_optimal])
    assert decided.sum() >= B - 2
    assert np.all(table["program_gap"][decided] <= 1e-8)
    # Definition 2 says local, or better.
    assert np.all(np.isin(table["selection_status"][decided], [1, 2]))
    assert np.all(table["outcome"] != Outcome.not_run) and np.all(table["outcome"] != Outcome.failed)
    assert np.all(table["excess"][decided] <= 1e-8)
    assert np.all(np.isfinite(table["log_log_time"]))


@pytest.mark.parametrize("parametrization", ["W", "KQ"])
def test_neighbours_change_no_bit(blocks, parametrization):
    _, keys, functions, found = blocks
    order = np.random.default_rng(0).permutation(B)
    moved = functions[parametrization](keys[order])
    for name, value in found[parametrization].items():
        np.testing.assert_array_equal(np.asarray(moved[name]), np.asarray(value)[order], err_msg=name)


@pytest.mark.slow
def test_the_parts_of_a_block_are_blocks_of_their_size(blocks, monkeypatch):
    """Two parts side by side, or one after the other, or alone: a trial's bits depend on the size of its part only."""
    experiment, keys, functions, found = blocks
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    alone = TokenSelection(width=4, parts=1).block_function({**FACTORS, "parametrization": "W"}, B // 2)
    halves = [alone(keys[: B // 2]), alone(keys[B // 2 :])]
    one_by_one = functions["W"](keys)
    for name, value in found["W"].items():
        np.testing.assert_array_equal(np.asarray(one_by_one[name]), np.asarray(value), err_msg=name)
        joined = np.concatenate([np.asarray(half[name]) for half in halves])
        np.testing.assert_array_equal(joined, np.asarray(value), err_msg=name)


def test_padding_with_zeros_changes_nothing_but_rounding(blocks):
    experiment, keys, _, found = blocks
    assert padded_size(3) == 4 and padded_size(4) == 4 and padded_size(5) == 8 and padded_size(1) == 4
    risk, model = experiment.setup(keys[0], **FACTORS)
    wide_risk, wide_model = experiment.in_span(FACTORS, keys[0])
    assert wide_risk.data.tokens.shape[-1] == 4
    np.testing.assert_allclose(wide_risk(wide_model), risk(model), rtol=1e-14)
    assert jnp.all(wide_model.W[3:] == 0) and jnp.all(wide_model.W[:, 3:] == 0)


@pytest.mark.parametrize(("parametrization", "d", "followed"), [("W", 20, 8), ("KQ", 5, 8), ("KQ", 4, 4)])
def test_the_flow_that_is_followed_is_the_same(parametrization, d, followed):
    # In coordinates of a span (n T + n + 1 = 7 vectors) or padded: the same risk, and a gradient of the same size.
    experiment, key = TokenSelection(), jax.random.key(5)
    factors = {"n": 2, "T": 2, "d": d, "parametrization": parametrization}

    @jax.jit
    def both(key):
        instances = experiment.setup(key, **factors), experiment.in_span(factors, key)
        return [
            (risk.data.tokens, model.logits(risk.data), risk(model), risk.scaled_gradient(model).log_norm)
            for risk, model in instances
        ]

    (_, logits, loss, log_norm), (tokens, other_logits, other_loss, other_log_norm) = both(key)
    assert tokens.shape[-1] == followed
    np.testing.assert_allclose(other_logits, logits, atol=1e-14)
    np.testing.assert_allclose(other_loss, loss, rtol=1e-14)
    np.testing.assert_allclose(float(other_log_norm), float(log_norm), rtol=1e-12)


def test_columns_that_constrain_the_rank_stay():
    experiment, factors = TokenSelection(), {"n": 2, "T": 2, "d": 5, "m": 1, "parametrization": "KQ"}
    assert experiment.in_span(factors, jax.random.key(0))[1].K.shape == (5, 1)


def test_replay_is_the_limit_in_full(blocks):
    experiment, keys, _, found = blocks
    limit = experiment.replay(keys[0], **FACTORS)
    stored = {name: np.asarray(value)[0] for name, value in found["W"].items()}
    assert int(limit.outcome) == stored["outcome"]
    np.testing.assert_array_equal(np.argmax(limit.selection, axis=-1), stored["token"])
    # Both end where the flow certifies itself. How far that is depends on the solver: a replay takes five stages a step
    # and has save points to pass, a study one stage and longer steps.
    gap = experiment.gap
    assert stored["flow_gap"] <= gap and float(limit.flow_certificate.duality_gap) <= gap


def test_both_parametrisations_meet_the_same_instances(blocks):
    experiment, keys, _, _ = blocks
    one, _ = experiment.setup(keys[3], **FACTORS, parametrization="W")
    other, _ = experiment.setup(keys[3], **FACTORS, parametrization="KQ")
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.slow
def test_a_study_of_it_end_to_end(tmp_path):
    # The block of the fixture, so that nothing is compiled anew.
    factors = {"n": [3], "T": [3], "d": [3]}
    study = Study(TokenSelection(width=4), factors, {"parametrization": ["W"]}, trials=B, seed=1, block=B)
    with study.run(tmp_path / "study.zarr", progress=False) as results:
        assert set(np.unique(decode(results.outcome))) <= {outcome.name for outcome in Outcome}
        assert not np.any(results.outcome.values == Outcome.not_run)
        outcome = int(results.outcome.sel(**FACTORS, parametrization="W", trial=4))
    assert int(study.replay(trial=4, **FACTORS, parametrization="W").outcome) == outcome


@pytest.mark.slow
def test_replayed_and_recomputed_as_the_store_has_it(tmp_path):
    """At d = 2, where paths of (K, Q) are stiff: by explicit steps alone trial 138 takes 5,146 of them."""
    factors = {"n": [5], "T": [5], "d": [2]}
    experiment = TokenSelection(width=2, parts=1, programs=2)
    study = Study(experiment, factors, {"parametrization": ["KQ"]}, trials=4, block=2)
    with study.run(tmp_path / "study.zarr", progress=False) as results:
        for trial in range(4):
            stored = results.sel(n=5, T=5, d=2, parametrization="KQ", trial=trial)
            again = study.recompute(trial=trial)
            for name, value in again.items():
                np.testing.assert_array_equal(value, stored[name].values, err_msg=name)
            assert int(study.replay(trial=trial).outcome) == int(stored.outcome)
    block = study.recompute(trial=138)
    assert block["num_steps"] < 1_000 and block["outcome"] == Outcome.locally_optimal
    limit = study.replay(trial=138)
    assert int(limit.outcome) == block["outcome"]
    np.testing.assert_array_equal(np.argmax(limit.selection, axis=-1), block["token"])
    assert float(limit.flow_certificate.duality_gap) <= experiment.gap


def test_a_replay_asks_for_the_gap_of_its_experiment():
    key, loose = jax.random.key(4), TokenSelection(gap=1e-2)
    near, far = (experiment.replay(key, **FACTORS) for experiment in (loose, TokenSelection()))
    assert near.trajectory.final.log_arc_length < far.trajectory.final.log_arc_length
    assert 1e-8 < float(near.flow_certificate.duality_gap) <= 1e-2


def test_bad_factors_name_themselves():
    with pytest.raises(ValueError, match="parametrization"):
        TokenSelection().setup(jax.random.key(0), parametrization="V")
    with pytest.raises(ValueError, match="m: only"):
        TokenSelection().setup(jax.random.key(0), m=2)
    with pytest.raises(ValueError, match="width"):
        TokenSelection(width=0)
    with pytest.raises(ValueError, match="parts"):
        TokenSelection(parts=0)
    with pytest.raises(ValueError, match="max_steps"):
        TokenSelection(max_steps=0)
    with pytest.raises(ValueError, match="scout.*single"):
        TokenSelection(scout="half")
    with pytest.raises(ValueError, match="scout: single precision"):
        TokenSelection(scout="single", method=jf.Staged())
    with jax.enable_x64(False), pytest.raises(ValueError, match="scout.*jax_enable_x64"):
        TokenSelection(scout="single").block_function({}, 4)
    with pytest.raises(ValueError, match="factors"):
        Study(TokenSelection(), {"dimension": [2]})
    assert jf.study.TokenSelection is TokenSelection


def test_every_instance_is_followed_to_its_own_certificate(blocks):
    """No outcome rests on the program alone: where one is definite, the flow's own gap is what was asked for."""
    experiment, _, _, found = blocks
    for table in found.values():
        outcome, gap = np.asarray(table["outcome"].value), np.asarray(table["flow_gap"])
        selected = np.isin(outcome, [Outcome.globally_optimal, Outcome.locally_optimal, Outcome.not_locally_optimal])
        assert selected.sum() >= B // 2
        assert np.all(gap[selected] <= experiment.gap)
        assert np.all(np.asarray(table["rounds"]) >= 1)


@pytest.mark.slow
def test_a_path_beside_a_separatrix_ends_where_the_accurate_one_does():
    """Trial 35 of the study with seed 0: at 1e-5 in place of the default the last query ends at token 0, certified."""
    keys = as_keys(key_data(0, "TokenSelection", {"d": 4}, [35]))
    factors = {"d": 4, "parametrization": "KQ"}
    token, accurate = (
        experiment.block_function(factors, 1)(keys)["token"][0].tolist()
        for experiment in (TokenSelection(), TokenSelection(rtol=1e-8))
    )
    assert token == accurate == [3, 4, 2, 4, 2]


@pytest.mark.slow
def test_a_far_stretch_that_rests_at_a_repelling_direction_is_followed_again():
    """Of 10,000 instances at d = 3 three came to rest, in long steps, at directions up to 0.01 above the optimum, and
    no later round left them: a prediction was called contradicted which the flow, in short steps, keeps."""
    trials, factors = [2522, 4936, 9379, 1525], {"n": 5, "T": 5, "d": 3, "score_gap": 0.1}
    keys = as_keys(key_data(0, "TokenSelection", factors, trials))
    table = TokenSelection().block_function({**factors, "parametrization": "KQ", "m": 3}, len(trials))(keys)
    assert np.asarray(table["outcome"].value).tolist() == [2, 2, 1, 2]
    assert np.all(table["flow_gap"] <= 1e-8) and np.all(table["excess"] <= 1e-8)
    assert np.all(np.asarray(table["rounds"]) <= 4)


@pytest.mark.slow
def test_a_far_stretch_of_W_that_leaves_its_selection_is_followed_again():
    """Four of 1,024: at a tolerance of 0.1 they left their selections far out (e^2,875 and more), from where no round
    goes on: three were `failed`, one undecided."""

    def key(block, trial):
        return jax.random.split(jax.random.fold_in(jax.random.key(5), block), 256)[trial]

    keys = jnp.stack([key(1, 100), key(1, 223), key(2, 120), key(3, 92)])
    table = TokenSelection(parts=1).block_function({"n": 5, "T": 5, "d": 4, "parametrization": "W"}, 4)(keys)
    assert np.asarray(table["outcome"].value).tolist() == [2, 2, 2, 2]
    assert np.all(table["flow_gap"] <= 1e-8) and np.all(table["excess"] <= 1e-8)
    assert np.asarray(table["token"]).tolist() == [[3, 0, 2, 2, 0], [4, 0, 2, 0, 0], [3, 0, 2, 3, 0], [0, 3, 0, 4, 2]]


@pytest.mark.slow
@pytest.mark.parametrize("parametrization", ["W", "KQ"])
def test_scouts_in_single_precision_find_the_same(blocks, monkeypatch, parametrization):
    """The selection in single precision, the certificate in double. Paths that single precision leaves without a
    selection go again in double."""
    _, keys, _, found = blocks
    expected = {name: np.asarray(getattr(value, "value", value)) for name, value in found[parametrization].items()}
    precisions = []
    original = queues.Block._turned

    def turned(self, gear, lost, risks, models, ways):
        precisions.append(models.head.v.dtype)
        nothing = again and models.head.v.dtype == jnp.float32
        return ways if nothing else original(self, gear, lost, risks, models, ways)

    monkeypatch.setattr(queues.Block, "_turned", turned)
    factors = {**FACTORS, "parametrization": parametrization}
    for again in (False, True):
        precisions.clear()
        table = TokenSelection(width=4, scout="single").block_function(factors, B)(keys)
        assert jnp.float32 in precisions and (not again or jnp.float64 in precisions)
        for name in ("outcome", "token", "selection_status", "limit_kind"):
            np.testing.assert_array_equal(np.asarray(getattr(table[name], "value", table[name])), expected[name])
        for name, value in table.items():
            assert np.asarray(getattr(value, "value", value)).dtype == expected[name].dtype, name
        decided = np.isin(expected["outcome"], [1, 2])
        assert np.all(table["flow_gap"][decided] <= 1e-8) and np.all(table["program_gap"][decided] <= 1e-8)


@pytest.mark.slow
def test_a_path_that_spends_its_budget_is_undecided():
    """Whatever its last direction looks like: what would have followed is not known."""
    factors, keys = {"n": 5, "T": 5, "d": 2, "parametrization": "W"}, jax.random.split(jax.random.key(7), B)
    whole, cut = (TokenSelection(max_steps=most).block_function(factors, B)(keys) for most in (2000, 120))
    expected, outcome = (np.asarray(table["outcome"].value) for table in (whole, cut))
    spent = np.asarray(cut["num_steps"]) >= 120
    assert 0 < spent.sum() < B and np.all(outcome[spent] == Outcome.undecided)
    np.testing.assert_array_equal(outcome[~spent], expected[~spent])


@pytest.mark.slow
def test_another_method_follows_every_instance_too():
    # That of a replay, whose program is then one with that of the replay above.
    experiment = TokenSelection(width=2, method=jf.Staged())
    keys = jax.random.split(jax.random.key(8), 2)
    table = experiment.block_function({**FACTORS, "parametrization": "W"}, 2)(keys)
    for i in range(2):
        limit = experiment.replay(keys[i], **FACTORS, parametrization="W")
        assert int(limit.outcome) == int(np.asarray(table["outcome"].value)[i])


class Twisted(AbstractExperiment):
    """A distribution of one's own: the instances of `TokenSelection`, with tokens a thousand times as large."""

    size: float = 1.0
    keep: str = "weights"

    def setup(self, key, n=3, T=3, d=3):
        risk, model = TokenSelection().setup(key, n=n, T=T, d=d)
        data = risk.data
        moved = jf.data.TokenData(self.size * data.tokens, data.queries, data.labels)
        return jf.EmpiricalRisk(moved, jf.losses.Logistic()), model

    def summarize(self, limit):
        kept = limit.rate.exponent if self.keep == "rate" else limit.flow_direction
        return {"outcome": limit.outcome, "excess": limit.excess, self.keep: kept}


@pytest.mark.slow
def test_an_experiment_of_ones_own_is_followed_in_queues(blocks):
    """With the default method it needs nothing else than `setup` and `summarize`; the limit is that of `setup`."""
    _, keys, _, found = blocks
    block = Twisted().block_function(FACTORS, B)
    assert isinstance(block, queues.Block)
    table = {name: np.asarray(getattr(value, "value", value)) for name, value in block(keys).items()}
    np.testing.assert_array_equal(table["outcome"], np.asarray(found["W"]["outcome"].value))
    assert table["weights"].shape == (B, 3, 3) and np.all(table["excess"] <= 1e-8)
    limit = Twisted().replay(keys[0], **FACTORS)
    np.testing.assert_allclose(
        table["weights"][0], limit.flow_direction, atol=1e-3 * np.abs(limit.flow_direction).max()
    )


def test_what_a_queue_does_not_keep_is_computed_by_find_limit():
    assert not isinstance(Twisted(keep="rate").block_function(FACTORS, B), queues.Block)
    with pytest.raises(queues.ReadsSaves):
        queues.Block(Twisted(keep="rate").queues(FACTORS), B).eval_shape(jax.random.split(jax.random.key(0), B))


def test_other_models_and_methods_have_no_queues():
    class Staged(Twisted):
        method: jf.Staged = jf.Staged()

    class Replayed(Twisted):
        def replay(self, key, **factors):
            return super().replay(key, **factors)

    class Linear(Twisted):
        def setup(self, key, d=2):
            network = jf.models.DiagonalLinearNetwork((jnp.ones(d), jnp.ones(d)))
            return jf.EmpiricalRisk(jf.data.LinearData(jnp.eye(d), jnp.ones(d)), "exponential"), network

    class Headed(Twisted):
        def setup(self, key, d=3):
            risk, model = super().setup(key, d=d)
            return jf.EmpiricalRisk(risk.data, "logistic", trainable=jax.tree.map(lambda _: True, model)), model

    assert Twisted().queues({"d": 3}) is not None
    for experiment in (Staged(), Replayed(), Linear(), Headed()):
        assert experiment.queues({"d": 3}) is None


@pytest.mark.slow
def test_n_and_T_and_d_are_factors_of_one_study(tmp_path):
    """Tokens are as many as the largest n; where there are fewer, their number is followed by the number of none."""
    experiment = TokenSelection(width=2, parts=1, programs=2)
    study = Study(experiment, {"n": [3, 2], "T": [3], "d": [2]}, {"parametrization": ["W"]}, trials=3, block=2)
    path = tmp_path / "n.zarr"
    with study.run(path, progress=False) as results:
        tokens = results["token"]
        assert tokens.attrs["padding_value"] == 255 and tokens.dtype == np.uint8
        assert tokens.shape == (2, 1, 1, 1, 3, 3)
        assert np.all(tokens.sel(n=3).values < 3) and np.all(tokens.sel(n=2).values[..., :2] < 3)
        assert np.all(tokens.sel(n=2).values[..., 2] == 255)
        assert np.all(percentages(results)["ran"] == 3)
        stored = results.sel(n=2, T=3, d=2, parametrization="W", trial=2).load()
    for name, value in study.recompute(trial=2, n=2).items():
        np.testing.assert_array_equal(value, stored[name].values, err_msg=name)
    limit = study.replay(trial=2, n=2)
    np.testing.assert_array_equal(np.argmax(limit.selection, axis=-1), stored["token"].values[:2])
    # A block that is gone comes back with the same bytes, whatever it is filled up with.
    before = {file: file.read_bytes() for file in path.rglob("c/**/*") if file.is_file()}
    (path / "outcome/c/1/0/0/0/1").unlink()
    study.run(path, progress=False).close()
    assert {file: file.read_bytes() for file in path.rglob("c/**/*") if file.is_file()} == before
    assert jf.study.status(path, verify=True).complete
    with open_results(path) as results:
        assert "token_2" in jf.study.to_dataframe(results)

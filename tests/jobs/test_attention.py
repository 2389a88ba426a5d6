"""Attention as people bring it, against programs solved by CVXPY and plain descent."""

from typing import Any

import cvxpy
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxflow as jf

DATA, HEAD = jf.data.random_tokens(jax.random.key(0), n=3, T=4, d=4)
RISK = jf.EmpiricalRisk(DATA, "logistic")
CERTIFIED = ("globally_optimal", "locally_optimal", "not_locally_optimal")


def start(seed: int = 1) -> Any:
    return jf.models.CombinedAttention.init(jax.random.key(seed), DATA, HEAD)


@pytest.fixture(scope="module")
def limit() -> Any:
    return jf.find_limit(RISK, start())


def is_optimal(found: Any, data: jf.data.TokenData, norm: str = "frobenius", rtol: float = 1e-6) -> None:
    """No W is shorter that gives the chosen tokens a margin of one, by CVXPY alone."""
    assert found.outcome in CERTIFIED
    tokens, queries = np.asarray(data.tokens, float), np.asarray(data.queries, float)
    chosen, d = np.argmax(found.selection, -1), tokens.shape[-1]
    weights = cvxpy.Variable((d, d))
    kind: Any = {"frobenius": "fro", "nuclear": "nuc"}[norm]
    margins = [
        (tokens[i, chosen[i]] - tokens[i, t]) @ weights @ queries[i] >= 1
        for i in range(len(tokens))
        for t in range(tokens.shape[1])
        if t != chosen[i]
    ]
    least = cvxpy.Problem(cvxpy.Minimize(cvxpy.norm(weights, kind)), margins).solve()
    np.testing.assert_allclose(np.linalg.norm(found.direction, kind), least, rtol=rtol)


def test_why_does_my_attention_select_token_3(limit: Any) -> None:
    """Because it has the largest score."""
    scores = np.asarray(DATA.labels)[:, None] * np.asarray(DATA.tokens @ HEAD)
    chosen = np.argmax(scores, axis=1)
    assert limit.outcome == "globally_optimal" and np.array_equal(np.argmax(limit.selection, -1), chosen)
    assert f"selects tokens ({', '.join(map(str, chosen))})" in str(limit)
    is_optimal(limit, DATA)
    logits = np.einsum("itd,de,ie->it", DATA.tokens, limit.direction, DATA.queries)
    margins = logits[np.arange(3), chosen][:, None] - logits
    np.testing.assert_allclose(np.sort(margins, axis=1)[:, 1:].min(), 1.0, rtol=1e-9)


def test_normalised_descent_turns_towards_the_direction_of_the_flow(limit: Any) -> None:
    path = jf.descend(RISK, start(), steps=3000, learning_rate=0.1, save_at=[300, 3000])
    weights = np.asarray(path.saved.model.W)
    turned = [np.sum(w * limit.direction) / np.linalg.norm(w) / np.linalg.norm(limit.direction) for w in weights]
    assert turned[0] < turned[1] and turned[1] > 0.999


def test_save_points_and_a_run_continued_from_a_checkpoint(limit: Any, tmp_path: Any) -> None:
    whole = jf.integrate(RISK, start(), clock="log_time", until=5.0, save_at=jnp.linspace(1.0, 5.0, 9))
    assert whole.log_norm.shape == (9,)
    np.testing.assert_allclose(whole.to_xarray().log_time, np.linspace(1.0, 5.0, 9), rtol=1e-12)
    # From t = e^3 on for the rest of the time.
    half = jf.integrate(RISK, start(), clock="log_time", until=3.0)
    eqx.tree_serialise_leaves(tmp_path / "model.eqx", half.model)
    loaded = eqx.tree_deserialise_leaves(tmp_path / "model.eqx", start())
    rest = jf.integrate(RISK, loaded, clock="log_time", until=float(np.log(np.exp(5.0) - np.exp(3.0))))
    np.testing.assert_allclose(rest.model.W, whole.model.W, rtol=1e-4, atol=1e-5)
    again = jf.find_limit(RISK, loaded)
    assert again.outcome == limit.outcome and np.array_equal(again.selection, limit.selection)
    np.testing.assert_allclose(again.direction, limit.direction, atol=3e-4)


def test_the_norm_depends_on_the_parametrisation() -> None:
    found = jf.find_limit(RISK, jf.models.FactoredAttention.init(jax.random.key(1), DATA, HEAD))
    is_optimal(found, DATA, "nuclear", rtol=1e-5)


@pytest.mark.parametrize("types", ["int64 float32 bool", "float32 float64 int64", "float32 float32 float32"])
def test_mixed_types_and_a_common_first_token(types: str) -> None:
    """Such as one for the class: no sequence selects it here, and it must not count as the same token elsewhere."""
    tokens, queries = np.round(4 * np.asarray(DATA.tokens)), np.round(4 * np.asarray(DATA.queries))
    tokens[:, 0] = tokens[0, 0]
    labels = np.asarray(DATA.labels)
    kinds = types.split()
    data = jf.data.TokenData.validated(
        tokens.astype(kinds[0]),
        queries.astype(kinds[1]),
        labels > 0 if kinds[2] == "bool" else labels.astype(kinds[2]),
    )
    model = jf.models.CombinedAttention(np.zeros((4, 4), np.float32), np.asarray(HEAD))
    found = jf.find_limit(jf.EmpiricalRisk(data, "logistic"), model)
    assert found.direction.dtype == np.float64
    is_optimal(found, data)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_heads_with_kinks_from_zero_claim_nothing_false(seed: int) -> None:
    """A certified direction is the optimum of its program; where the path slides on a kink, `print` reports it."""
    head = jf.models.MLPHead(jax.random.normal(jax.random.key(5), (8, 4)))
    data, _ = jf.data.random_tokens(jax.random.key(seed), n=3, T=4, d=4)
    model = jf.models.CombinedAttention(jnp.zeros((4, 4)), head)
    found = jf.find_limit(jf.EmpiricalRisk(data, "logistic"), model, throw=False)
    if found.outcome in CERTIFIED:
        is_optimal(found, data)
    else:
        assert found.outcome == "undecided" and "kink" in str(found)

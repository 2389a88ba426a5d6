import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxflow.data import TokenData

N, T, D, K = 3, 4, 2, 5


def arguments(k: int | None = None) -> dict[str, np.ndarray]:
    """Numbers for n sequences with one output each, or k."""
    rng = np.random.default_rng(0)
    outputs = (N,) if k is None else (N, k)
    return {
        "tokens": rng.normal(size=(N, T, D)),
        "queries": rng.normal(size=(*outputs, D)),
        "labels": rng.choice([-1, 1], outputs),
    }


@pytest.mark.parametrize("k", [None, 1, K])
def test_shapes(k):
    data = TokenData.validated(**arguments(k))
    outputs = (N,) if k is None else (N, k)
    assert data.single_query == (k is None)
    assert data.output_shape == outputs
    assert data.visible.shape == (*outputs, T)
    assert bool(data.visible.all())
    assert data.labels.dtype == data.tokens.dtype  # integers are accepted


def test_mask_of_a_sequence_holds_for_all_its_queries():
    mask = np.ones((N, T), bool)
    mask[1, 2] = False
    data = TokenData.validated(**arguments(K), mask=mask)
    assert data.visible.shape == (N, K, T)
    np.testing.assert_array_equal(data.visible, np.repeat(mask[:, None], K, axis=1))


def test_mask_of_each_query():
    causal = np.broadcast_to(np.tril(np.ones((K, T), bool)), (N, K, T))
    np.testing.assert_array_equal(TokenData.validated(**arguments(K), mask=causal).visible, causal)
    single = np.asarray([[True, False, True, True]] * N)
    np.testing.assert_array_equal(TokenData.validated(**arguments(), mask=single).visible, single)


def test_one_visible_token_is_legitimate():
    mask = np.zeros((N, T), bool)
    mask[:, 1] = True
    TokenData.validated(**arguments(), mask=mask)
    one_token = {**arguments(), "tokens": np.ones((N, 1, D))}
    TokenData.validated(**one_token, mask=np.ones((N, 1), bool))


@pytest.mark.parametrize(
    "name, value, message",
    [
        ("tokens", np.ones((T, D)), r"^tokens: expected shape \(n, T, d\), got \(4, 2\)"),
        ("queries", np.ones((N, D + 1)), r"^queries: expected shape .*got \(3, 3\)"),
        ("queries", np.ones((N + 1, D)), r"^queries: "),
        ("queries", np.ones(D), r"^queries: "),
        ("queries", np.ones((N, K, D + 1)), r"^queries: "),
        ("labels", np.ones(N + 1), r"^labels: expected one label for each query, shape \(3,\), got \(4,\)"),
        ("labels", np.ones((N, 1)), r"^labels: "),
        ("mask", np.ones((N, T + 1), bool), r"^mask: expected shape \(3, 4\), got \(3, 5\)"),
        ("mask", np.ones(T, bool), r"^mask: "),
    ],
)
def test_wrong_shape_names_the_argument(name, value, message):
    with pytest.raises(ValueError, match=message):
        TokenData(**{**arguments(), name: value})


def test_wrong_mask_of_several_queries_shows_both_shapes():
    with pytest.raises(ValueError, match=r"^mask: expected shape \(3, 4\) or \(3, 5, 4\), got \(3, 2, 4\)"):
        TokenData(**arguments(K), mask=np.ones((N, 2, T), bool))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("name, index", [("tokens", (1, 2, 0)), ("queries", (2, 1))])
def test_not_finite_names_argument_and_index(name, index, bad):
    given = arguments()
    given[name][index] = bad
    with pytest.raises(ValueError) as caught:
        TokenData.validated(**given)
    assert str(caught.value) == f"{name}: NaN or infinite entry at index {index}"


@pytest.mark.parametrize("bad", [0, 2, np.nan, 0.5])
def test_labels_are_signs(bad):
    given = arguments()
    given["labels"] = np.asarray([1.0, bad, -1.0])
    with pytest.raises(ValueError, match=r"^labels: labels must be \+1 or -1; index \(1,\) is not"):
        TokenData.validated(**given)


def test_nothing_to_select():
    with pytest.raises(ValueError, match="^tokens: one token and no mask"):
        TokenData.validated(**{**arguments(), "tokens": np.ones((N, 1, D))})
    mask = np.ones((N, T), bool)
    mask[2] = False
    with pytest.raises(ValueError, match=r"^mask: every token is hidden from query \(2,\)"):
        TokenData.validated(**arguments(), mask=mask)


@pytest.mark.parametrize("shape", [(0, T, D), (N, 0, D), (N, T, 0)])
def test_empty_axis(shape):
    n, _, d = shape
    with pytest.raises(ValueError, match="^tokens: empty axis"):
        TokenData.validated(np.ones(shape), np.ones((n, d)), np.ones(n))


def test_batches_are_mapped_over_not_checked():
    batch = {name: np.stack([value, value]) for name, value in arguments().items()}
    data = TokenData(**batch)  # shapes agree, with one more axis in front
    with pytest.raises(ValueError, match="^tokens: expected one instance .*jax.vmap"):
        data.check()
    per_instance = jax.vmap(lambda one: one.tokens.sum())(data)
    np.testing.assert_allclose(per_instance, batch["tokens"].sum((1, 2, 3)), rtol=1e-14)  # ~24 roundings


def test_traced_values_are_not_judged():
    given = arguments()
    given["tokens"][0, 0, 0] = np.nan
    data = TokenData(**given)
    with pytest.raises(ValueError, match="^tokens"):
        data.check()

    @jax.jit
    def inside(data):
        data.check()
        return data.tokens

    assert bool(jnp.isnan(inside(data)[0, 0, 0]))

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxflow.data import LinearData, TokenData, optimal_tokens, require_untied, tied_sequences
from jaxflow.margin import max_margin
from jaxflow.risk import EmpiricalRisk

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


def test_masks_of_a_sequence_and_of_each_query():
    mask = np.ones((N, T), bool)
    mask[1, 2] = False
    visible = TokenData.validated(**arguments(K), mask=mask).visible
    np.testing.assert_array_equal(visible, np.repeat(mask[:, None], K, axis=1))
    causal = np.broadcast_to(np.tril(np.ones((K, T), bool)), (N, K, T))
    np.testing.assert_array_equal(TokenData.validated(**arguments(K), mask=causal).visible, causal)
    np.testing.assert_array_equal(TokenData.validated(**arguments(), mask=mask).visible, mask)
    # One visible token is legitimate.
    TokenData.validated(**arguments(), mask=np.broadcast_to(np.arange(T) == 1, (N, T)))
    with pytest.raises(ValueError, match=r"^mask: expected shape \(3, 4\) or \(3, 5, 4\), got \(3, 2, 4\)"):
        TokenData(**arguments(K), mask=np.ones((N, 2, T), bool))


def test_mask_of_integers_is_one_of_booleans_and_an_additive_one_is_refused():
    mask = np.asarray([[True, False, True, True]] * N)
    np.testing.assert_array_equal(TokenData(**arguments(), mask=mask.astype(int)).mask, mask)
    with pytest.raises(ValueError, match="^mask: .* in place of an additive mask, of 0 and -inf, pass mask == 0"):
        TokenData(**arguments(), mask=np.where(mask, 0.0, -np.inf))
    with pytest.raises(ValueError, match="^mask: expected True and False, or integers 0 and 1"):
        TokenData(**arguments(), mask=-mask.astype(int))


# Three labels in every form that two classes may have.
FORMS = ([1, -1, 1], [1.0, 0.0, 1.0], [1, 0, 1], [True, False, True], ["yes", "no", "yes"])


@pytest.mark.parametrize("labels", [*FORMS, np.asarray(["yes", "no", "yes"], object), jnp.asarray([1, 0, 1])])
def test_two_classes_become_signs(labels):
    signs = [1.0, -1.0, 1.0]
    given = arguments()
    inputs = given["queries"]
    assert TokenData.validated(**{**given, "labels": labels}).labels.tolist() == signs
    assert max_margin(inputs, labels).labels.tolist() == signs
    assert EmpiricalRisk((inputs, labels), "logistic").data.targets.tolist() == signs
    data = LinearData(inputs, labels)
    assert EmpiricalRisk(data, "logistic").data.targets.tolist() == signs
    # Numbers are what they are where they may be real values.
    real = signs if np.asarray(labels).dtype.kind in "bUO" else np.asarray(labels).tolist()
    assert EmpiricalRisk(data, "squared").data.targets.tolist() == real


@pytest.mark.parametrize("labels", [[0, 1, 2], [1, 2, 1], [0, 0, 0], [True] * 3, ["a"] * 3, ["a", "b", "c"]])
def test_more_or_fewer_than_two_classes_are_refused(labels):
    given = arguments()
    with pytest.raises(ValueError, match="^labels: expected two classes .* of which the later one is [+]1[)], got "):
        TokenData.validated(**{**given, "labels": labels})
    with pytest.raises(ValueError, match="^labels: expected two classes"):
        EmpiricalRisk((given["queries"], labels), "logistic")
    with pytest.raises(ValueError, match="^targets: expected two classes"):
        EmpiricalRisk(LinearData(given["queries"], labels), "logistic")


def test_several_labels_a_sequence_and_traced_ones():
    given = arguments(K)
    data = TokenData.validated(**{**given, "labels": given["labels"] > 0})
    np.testing.assert_array_equal(data.labels, given["labels"])
    traced = jax.jit(lambda labels: TokenData(**{**arguments(), "labels": labels}).labels)(jnp.asarray([1.0, 0.0, 1.0]))
    assert traced.tolist() == [1.0, 0.0, 1.0]


def test_nothing_to_select():
    with pytest.raises(ValueError, match="^tokens: one token and no mask"):
        TokenData.validated(**{**arguments(), "tokens": np.ones((N, 1, D))})
    mask = np.ones((N, T), bool)
    mask[2] = False
    with pytest.raises(ValueError, match=r"^mask: every token is hidden from query \(2,\)"):
        TokenData.validated(**arguments(), mask=mask)


def test_batches_are_mapped_over_not_checked():
    batch = {name: np.stack([value, value]) for name, value in arguments().items()}
    # Shapes agree, with one more axis in front.
    for data, name in ((TokenData(**batch), "tokens"), (LinearData(batch["queries"], batch["labels"]), "inputs")):
        with pytest.raises(ValueError, match=f"^{name}: expected one instance .*jax.vmap"):
            data.check()
        first = jax.vmap(lambda one, name=name: getattr(one, name)[0])(data)
        np.testing.assert_array_equal(first, getattr(data, name)[:, 0])


@pytest.mark.parametrize("shape", [(0, D), (N, 0)])
def test_an_empty_axis_is_named(shape):
    with pytest.raises(ValueError, match="^inputs: empty axis"):
        LinearData.validated(np.ones(shape), np.ones(shape[0]))


def test_traced_values_are_not_judged():
    given = arguments()
    given["tokens"][0, 0, 0] = np.nan
    data = TokenData(**given)
    with pytest.raises(ValueError, match=r"^tokens: NaN or infinite entry at index \(0, 0, 0\)$"):
        data.check()

    @jax.jit
    def inside(data):
        data.check()
        return data.tokens

    assert bool(jnp.isnan(inside(data)[0, 0, 0]))


@pytest.mark.parametrize("k", [None, K])
def test_copies_are_equal_tokens_that_are_visible(k):
    given = arguments(k)
    given["tokens"][:, 2] = given["tokens"][:, 0]
    given["tokens"][:, 3] = given["tokens"][:, 0]
    # Sizes of other sequences do not matter: here all tokens of the second differ by less than roundings of the first.
    given["tokens"][0] *= 1e20
    data = TokenData(**given, mask=np.array([[True, True, True, False]] * N))
    shape = data.output_shape
    np.testing.assert_array_equal(data.copies(jnp.zeros(shape, int)), np.broadcast_to([1, 0, 1, 0], (*shape, T)))
    np.testing.assert_array_equal(data.copies(jnp.ones(shape, int)), np.broadcast_to([0, 1, 0, 0], (*shape, T)))


# Scores


SCORES = jnp.asarray([[0.1, 0.9, 0.3], [0.5, 0.2, 0.5], [-1.0, -2.0, -3.0]])
ALL = jnp.ones(SCORES.shape, bool)
BEST = [[0, 1, 0], [1, 0, 1], [1, 0, 0]]


@pytest.mark.parametrize(
    ("scores", "visible", "best", "tied"),
    [
        (SCORES, ALL, BEST, [False, True, False]),
        # Hidden tokens are never optimal, nor is NaN.
        (SCORES, ALL.at[0, 1].set(False).at[1, 0].set(False), [[0, 0, 1], [0, 0, 1], [1, 0, 0]], [False] * 3),
        (SCORES, ~ALL, np.zeros((3, 3)), [False] * 3),
        (SCORES.at[0, 0].set(jnp.nan), ALL, [[0, 0, 0], *BEST[1:]], [False, True, False]),
        # Several queries.
        (jnp.stack([SCORES, SCORES[::-1]]), jnp.stack([ALL, ALL]), [BEST, BEST[::-1]], [[False, True, False]] * 2),
    ],
)
def test_optimal_tokens_and_ties(scores, visible, best, tied):
    np.testing.assert_array_equal(optimal_tokens(scores, visible), best)
    np.testing.assert_array_equal(tied_sequences(scores, visible), tied)


def test_ties_are_reported_with_their_indices():
    require_untied(SCORES[::2], ALL[::2])
    with pytest.raises(ValueError) as caught:
        require_untied(SCORES, ALL)
    assert str(caught.value) == "data: ambiguous, optimal tokens are tied (sequence (1,): tokens [0, 2])"
    with pytest.raises(ValueError, match=r"sequence \(0, 1\): tokens \[0, 2\]; sequence \(1, 1\)"):
        require_untied(jnp.stack([SCORES, SCORES[::-1]]), jnp.stack([ALL, ALL]))
    # Under a trace they are left to the outcome.
    jax.jit(require_untied)(SCORES, ALL)

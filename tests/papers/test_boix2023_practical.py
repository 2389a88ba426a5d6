"""The practical transformers: models, spectra, data, and training that continues exactly where it stopped."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxflow.papers.boix2023 import lora, training
from jaxflow.papers.boix2023 import practical as pr
from jaxflow.papers.boix2023.practical.spectra import head_products, measure
from jaxflow.papers.boix2023.practical.train import next_token, optimizer_of, text_batches
from jaxflow.papers.table import Table
from tests.papers.recorded import entry_of, letters

SMALL = pr.Shape(layers=1, heads=2, width=4, head=2, mlp=4)


def test_stable_rank():
    assert pr.stable_rank(jnp.diag(jnp.array([2.0, 1.0, 0.0]))) == pytest.approx(1.25)
    assert pr.stable_rank(jnp.zeros((2, 2))) == 0.0


def test_head_products_are_those_of_the_heads_and_scale_leaves_the_token_mapper():
    model = pr.ViT.init(jax.random.key(0), SMALL, side=8, channels=1, classes=3)
    half = pr.rescaled(model, 0.5)
    assert jnp.all(half.mapper.weight == model.mapper.weight) and jnp.all(half.positions == model.positions)
    assert jnp.allclose(half.classes.bias, 0.5 * model.classes.bias)
    products, halved = pr.head_products(model), pr.head_products(half)
    attention = model.blocks[0].attention
    for part, left, right in (("KQ", attention.key, attention.query), ("VO", attention.value, attention.output)):
        assert jnp.allclose(products[part][0, 1], left[1] @ right[1].T)
        assert jnp.allclose(halved[part], 0.25 * products[part])
    assert model(jnp.ones((8, 8, 1))).shape == (3,)
    with pytest.raises(ValueError, match="^patch: 3 does not divide"):
        pr.ViT.init(jax.random.key(0), SMALL, side=8, channels=1, classes=3, patch=3)


def test_patches_are_tiles_of_the_image():
    model = pr.ViT.init(jax.random.key(0), SMALL, side=4, channels=1, classes=2, patch=2)
    image = jax.random.normal(jax.random.key(1), (4, 4, 1))
    # A permutation of the tiles with their positions changes nothing.
    moved = jnp.roll(image, 2, axis=1)
    swapped = eqx.tree_at(lambda m: m.positions, model, model.positions[jnp.array([1, 0, 3, 2])])
    assert jnp.allclose(model(image), swapped(moved), rtol=1e-10)


def test_a_token_sees_only_those_before_it():
    model = pr.GPT.init(jax.random.key(0), SMALL, vocabulary=5, length=4)
    a, b = model(jnp.array([1, 2, 3, 4])), model(jnp.array([1, 2, 0, 0]))
    assert jnp.allclose(a[:2], b[:2]) and not jnp.allclose(a[2:], b[2:])


def test_digits_and_text():
    images = pr.digits()
    assert images.images.shape == (1797, 8, 8, 1) and images.images.max() == 1.0 and len(np.unique(images.labels)) == 10
    tokens, vocabulary = pr.library_text(any_version=True)
    assert tokens.max() == vocabulary - 1 and len(tokens) > 100_000


def test_a_text_that_is_not_pinned_is_refused(monkeypatch):
    monkeypatch.setattr("jaxflow.papers.boix2023.practical.data.PINS", {})
    with pytest.raises(ValueError, match="^any_version: the help topics of Python .* not pinned"):
        pr.library_text()


@pytest.mark.parametrize(
    "load, message",
    [
        (lambda folder: pr.cifar(folder / "none"), "^folder: .* is missing"),
        (lambda folder: pr.cifar(folder), "^folder: .*data_batch_1 is missing; CIFAR-10"),
        (lambda folder: pr.cifar(folder, 7), "^classes: "),
        (lambda folder: pr.image_folder(folder / "none"), "^folder: .* is missing"),
        (lambda folder: pr.image_folder(folder), "^folder: .* holds no"),
        (lambda folder: pr.local_text(folder / "none"), "^file: .* is missing"),
    ],
)
def test_missing_data_are_named(load, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        load(tmp_path)


def test_local_files_are_read(tmp_path):
    import pickle

    from matplotlib.image import imsave

    batch = {b"data": np.arange(2 * 3072, dtype=np.uint8).reshape(2, 3072), b"fine_labels": [3, 4]}
    (tmp_path / "train").write_bytes(pickle.dumps(batch))
    read = pr.cifar(tmp_path, 100)
    assert read.images.shape == (2, 32, 32, 3) and list(read.labels) == [3, 4]
    assert read.images[0, 0, 1, 0] == 1 / 255 and read.images[0, 0, 0, 1] == (1024 % 256) / 255
    (tmp_path / "images" / "cat").mkdir(parents=True)
    imsave(tmp_path / "images" / "cat" / "one.png", np.full((6, 9, 3), 0.5))
    square = pr.image_folder(tmp_path / "images", side=4)
    assert square.images.shape == (1, 4, 4, 3) and np.allclose(square.images, 0.5, atol=1e-2)


def start(n: int):
    keys = jax.random.split(jax.random.key(3), n)
    return eqx.filter_vmap(lambda key: pr.GPT.init(key, SMALL, vocabulary=7, length=4))(keys), keys


@pytest.mark.slow
def test_training_continues_exactly_where_it_stopped(tmp_path):
    tokens = np.tile(np.arange(7), 20)
    recipe = pr.Recipe("adam", 1e-2, 2, 8, 4)
    draw = text_batches(tokens, 4)
    models, keys = start(2)

    def run(at, folder):
        return pr.train(models, keys, recipe, next_token, draw, measure, at, folder=folder, say=lambda line: None)

    whole = run([4, 8], None)
    run([4], tmp_path)
    resumed = run([4, 8], tmp_path)
    assert np.array_equal(whole.losses, resumed.losses) and np.array_equal(whole.steps, resumed.steps)
    assert np.array_equal(whole.measured["KQ"].rank, resumed.measured["KQ"].rank)
    assert whole.losses[-1].mean() < whole.losses[0].mean() and np.all(whole.measured["KQ"].rank >= 1.0)
    with pytest.raises(ValueError, match="^folder: .* holds a run with"):
        pr.train(models, keys, recipe._replace(rate=1.0), next_token, draw, measure, [4], folder=tmp_path)
    with pytest.raises(ValueError, match="^at: 9 is past"):
        run([9], None)


def test_unknown_optimizer_is_named():
    with pytest.raises(ValueError, match="^optimizer: unknown name 'adan'; did you mean 'adam'"):
        optimizer_of(pr.Recipe("adan", 1.0, 0, 1, 1))


@pytest.mark.slow
def test_spectra_of_what_is_added_and_of_the_start():
    shape = pr.Shape(layers=2, heads=2, width=8, head=2, mlp=4)
    then = pr.ViT.init(jax.random.key(0), shape, side=8, channels=1, classes=3)
    now = pr.ViT.init(jax.random.key(1), shape, side=8, channels=1, classes=3)
    found, before, after = measure(now, then), head_products(then), head_products(now)
    for part, here in found.items():
        for matrix, rank, values in (
            (after[part] - before[part], here.rank, here.spectrum),
            (before[part], here.initial, here.initial_spectrum),
            (after[part], here.weights, here.weights_spectrum),
        ):
            singular = np.linalg.svd(np.asarray(matrix), compute_uv=False)
            count = values.shape[-1]
            # As many values as the factors are wide; the others are rounding.
            assert np.all(singular[..., count:] < 1e-12)
            np.testing.assert_allclose(values, singular[..., :count] / singular[..., :1], atol=1e-12)
            np.testing.assert_allclose(rank, np.sum(singular**2, -1) / singular[..., 0] ** 2, rtol=1e-12)
        np.testing.assert_allclose(here.top, np.linalg.norm(after[part] - before[part], 2, axis=(-2, -1)), rtol=1e-12)
    still = measure(then, then)["KQ"]
    # Nothing is added: what is left is rounding of the triangular factors.
    assert np.all(still.top < 1e-14)


@pytest.mark.slow
def test_runs_have_both_products_on_one_axis():
    size = pr.Size(SMALL, pr.Recipe("adam", 1e-3, 1, 2, 4), scales=(1.0, 0.1), seeds=2, points=2)
    found = pr.image_runs(size, jax.random.key(0), lambda line: None)
    assert found.losses.shape == (2, 2, 2) and found.rank.shape == (2, 2, 2, 2, 1, 2)
    assert {*training.OF_RUNS, *training.OF_PRODUCTS} == set(found.named)
    # A tenth of every layer is a hundredth of both products.
    np.testing.assert_allclose(found.initial_top[:, 0, 1], 0.01 * found.initial_top[:, 0, 0], rtol=1e-5)


def test_adapters_start_as_the_model_and_train_products_of_their_rank_alone():
    base = pr.ViT.init(jax.random.key(0), SMALL, side=8, channels=1, classes=3)
    model = pr.Adapted.init(jax.random.key(1), base, 3, 1, 0.5)
    image = jax.random.normal(jax.random.key(2), (8, 8, 1))
    # Rounding: the same sums in another order.
    assert jnp.allclose(model(image), base(image), atol=1e-12)
    gradient = eqx.filter_grad(lambda m: m(image)[0])(model)
    frozen = gradient.base.blocks[0].attention
    assert all(not jnp.any(leaf) for leaf in (frozen.key, frozen.query, frozen.value, frozen.output, gradient.kept))
    assert jnp.any(gradient.base.classes.weight) and jnp.any(gradient.right["VO"][..., 0])
    assert not jnp.any(gradient.right["VO"][..., 1:])


def test_an_update_cut_down_to_its_whole_rank_is_the_update():
    then = pr.ViT.init(jax.random.key(0), SMALL, side=8, channels=1, classes=3)
    now = pr.ViT.init(jax.random.key(1), SMALL, side=8, channels=1, classes=3)
    image = jax.random.normal(jax.random.key(2), (8, 8, 1))
    # Heads of dimension two: differences of products have rank four at most.
    assert jnp.allclose(pr.cut(now, then, 4, 4)(image), now(image), atol=1e-12)
    attention = [block.attention for block in then.blocks]
    initial = eqx.tree_at(lambda m: [block.attention for block in m.blocks], now, attention)
    assert jnp.allclose(pr.cut(now, then, 0, 4)(image), initial(image), atol=1e-12)


def bounded(needed):
    """Runs of one scale with rising stable ranks in which these ranks suffice."""
    one, tried = np.ones((1, 1, 1, len(needed))), np.array([0, 1, 2, 4])
    enough = tried >= np.array(needed)[:, None]
    stable = np.linspace(1.0, 16.0, len(needed)).reshape(1, 1, 1, -1, 1, 1)
    runs = {"scales": np.ones((1, 1, 1)), "ranks": tried[None, None], "steps": np.full((1, 1), 10)}
    runs |= {"full_loss": one, "full_accuracy": one, "KQ_rank": stable, "VO_rank": stable}
    for way in ("lora", "cut"):
        runs |= {f"{way}_loss": np.where(enough, 1.05, 1.2)[None, None, None]}
        runs |= {f"{way}_accuracy": np.where(enough, 0.998, 0.9)[None, None, None]}
    return Table(runs=Table(runs))


def test_verdicts_on_sufficient_ranks_follow_the_numbers():
    def said(needed):
        return entry_of("boix2023", "lora").find(bounded(needed))[0]

    runs = lora.runs_of(bounded([0, 1, 4, 9]))
    assert lora.sufficient(runs, "lora", 0).tolist() == [[0, 1, 4, 8]]
    lucky = lora.runs_of(bounded([0, 0, 0, 0]))
    lucky.cut_loss[0, 0] = [1.0, 9.0, 1.0, 1.0]
    assert lora.sufficient(lucky, "cut", 0).tolist() == [[2, 0, 0, 0]]
    # Four runs are too few for a small p-value: 2 of 24 permutations.
    four = said([0, 1, 2, 4])
    assert "ρ = 1.00, p = 0.0833" in four[0].measured
    assert letters([four[0], four[-1], said([4, 4, 9, 9])[-1]]) == "OHC"
    assert letters(said([1, 1, 1, 1]))[0] == "O"
    x = np.arange(9.0)
    assert lora.correlation(x, -x)[0] == pytest.approx(-1.0) and lora.correlation(x, -x)[1] < 0.01


def by_hand(shape: pr.Shape, first: int, last: int, tokens: int) -> int:
    """Numbers in a transformer: four matrices a head, an MLP and two normalisations a layer, and what is around."""
    layer = 4 * shape.heads * shape.width * shape.head + 2 * shape.width * shape.mlp + shape.mlp + 5 * shape.width
    around = first + tokens * shape.width + 2 * shape.width + (shape.width + 1) * last
    return shape.layers * layer + around


@pytest.mark.parametrize("name", list(pr.PRESETS))
def test_presets_by_name(name):
    found = pr.preset(name)
    assert found.recipe.optimizer == ("sgd" if name.endswith("sgd") else "adam")
    optimizer_of(found.recipe)
    assert found.size().shape == found.shape and found.size().recipe == found.recipe
    with pytest.raises(ValueError, match="^preset: unknown name 'cifar1'"):
        pr.preset("cifar1")


# ViT-B/16 has 86.6 million with a class token and biases in its attention; GPT-2 124 with one vocabulary.
@pytest.mark.parametrize(
    ("name", "usual", "more"),
    [("cifar100", None, 0), ("imagenet", 86.6e6, 0), ("wikitext103-tokens", 124e6, 50257 * 769)],
)
def test_presets_have_the_published_size(name, usual, more):
    found = pr.preset(name)
    if found.length:
        first, tokens = found.outputs * 768, 256
    else:
        first, tokens = (found.patch**2 * 3 + 1) * found.shape.width, (found.side // found.patch) ** 2
    assert found.parameters() == by_hand(found.shape, first, found.outputs, tokens)
    assert usual is None or found.parameters() - more == pytest.approx(usual, rel=0.01)

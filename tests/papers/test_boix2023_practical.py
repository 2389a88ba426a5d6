"""The practical transformers: models, spectra, data, and training that continues exactly where it stopped."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxflow.papers.boix2023 import lora_claims, rank_claims
from jaxflow.papers.boix2023 import practical as pr
from jaxflow.papers.boix2023.practical.runs import measure
from jaxflow.papers.boix2023.practical.train import next_token, optimizer_of, text_batches
from jaxflow.report import Verdict

SMALL = pr.Shape(layers=1, heads=2, width=4, head=2, mlp=4)


def test_stable_rank_and_spectrum():
    matrix = jnp.diag(jnp.array([2.0, 1.0, 0.0]))
    assert pr.stable_rank(matrix) == pytest.approx(1.25) and jnp.allclose(
        pr.normalised_spectrum(matrix), jnp.array([1.0, 0.5, 0.0])
    )
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
    monkeypatch.setattr("jaxflow.papers.boix2023.practical.text.PINS", {})
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
    found = pr.cifar(tmp_path, 100)
    assert found.images.shape == (2, 32, 32, 3) and list(found.labels) == [3, 4]
    assert found.images[0, 0, 1, 0] == 1 / 255 and found.images[0, 0, 0, 1] == (1024 % 256) / 255
    (tmp_path / "images" / "cat").mkdir(parents=True)
    imsave(tmp_path / "images" / "cat" / "one.png", np.full((6, 9, 3), 0.5))
    square = pr.image_folder(tmp_path / "images", side=4)
    assert square.images.shape == (1, 4, 4, 3) and np.allclose(square.images, 0.5, atol=1e-2)


def start(n: int):
    keys = jax.random.split(jax.random.key(3), n)
    return eqx.filter_vmap(lambda key: pr.GPT.init(key, SMALL, vocabulary=7, length=4))(keys), keys


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
    assert np.array_equal(whole.measured["KQ_rank"], resumed.measured["KQ_rank"])
    assert whole.losses[-1].mean() < whole.losses[0].mean() and np.all(whole.measured["KQ_rank"] >= 1.0)
    with pytest.raises(ValueError, match="^folder: .* holds a run with"):
        pr.train(models, keys, recipe._replace(rate=1.0), next_token, draw, measure, [4], folder=tmp_path)
    with pytest.raises(ValueError, match="^at: 9 is past"):
        run([9], None)


def test_unknown_optimizer_is_named():
    with pytest.raises(ValueError, match="^optimizer: unknown name 'adan'; did you mean 'adam'"):
        optimizer_of(pr.Recipe("adan", 1.0, 0, 1, 1))


def ranks(by_scale: list[list[float]]) -> dict[str, np.ndarray]:
    """Two measurements of each (scale, seed), the second given, the first one lower by a half."""
    last = np.asarray(by_scale)[None, :, :, None, None]
    values = np.concatenate([last - 0.5, last])
    data = {"images_scales": np.array([1.0, 0.1]), "images_steps": np.array([1, 2])}
    data["images_published"] = np.asarray(True)
    data["images_losses"] = np.ones(values.shape[:3])
    for part in ("KQ", "VO"):
        data |= {f"images_{part}_rank": values, f"images_{part}_initial": np.full(values.shape, 3.0)}
    return data


def test_verdicts_follow_the_numbers():
    def verdict(by_scale):
        return rank_claims.by_scale(ranks(by_scale))[0][0].verdict

    assert verdict([[2.0, 2.0], [1.5, 1.5]]) == Verdict.holds
    assert verdict([[2.0, 2.0], [2.5, 2.5]]) == Verdict.not_settled
    assert verdict([[2.0, 2.0], [1.5, 2.5]]) == Verdict.not_settled
    grown = rank_claims.growth(ranks([[2.0, 2.0], [1.5, 1.5]]), ("images",))[0]
    assert [claim.verdict for claim in grown] == [Verdict.holds] * 4
    shrunk = ranks([[2.0, 2.0], [1.5, 1.5]])
    shrunk = {k: v[::-1] + (9.0 if k.endswith("_rank") else 0.0) if k.endswith(("_rank", "_initial")) else v
              for k, v in shrunk.items()}  # fmt: skip
    assert [claim.verdict for claim in rank_claims.growth(shrunk, ("images",))[0]] == [Verdict.not_settled] * 4
    # A network that is not the paper's proves and refutes nothing of it.
    toy = shrunk | {"images_published": np.asarray(False)}
    found = rank_claims.growth(toy, ("images",))[0] + rank_claims.by_scale(toy)[0]
    assert [claim.verdict for claim in found] == [Verdict.outside_hypotheses] * 6


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


def lora_data(needed: list[int]) -> dict[str, np.ndarray]:
    """Four runs of one scale with stable ranks 1, 2, 3, 4 in which these ranks suffice."""
    ranks = np.array([0, 1, 2, 4])
    enough = ranks >= np.array(needed)[None, :, None]
    data = {"ranks": ranks, "scales": np.array([1.0]), "steps": np.array(10)}
    data |= {"full_loss": np.ones((1, 4)), "full_accuracy": np.ones((1, 4))}
    for way in ("lora", "cut"):
        data |= {f"{way}_loss": np.where(enough, 1.05, 1.2), f"{way}_accuracy": np.where(enough, 0.998, 0.9)}
    stable = np.arange(1.0, 5.0).reshape(1, 4, 1, 1)
    return data | {"KQ_rank": stable, "VO_rank": stable}


def test_verdicts_on_sufficient_ranks_follow_the_numbers():
    found = lora_claims.sufficient(lora_data([0, 1, 4, 9]))
    assert found["lora_sufficient"].tolist() == [[0, 1, 4, 8]]
    lucky = lora_data([0, 0, 0, 0])
    lucky["cut_loss"][0, 0] = [1.0, 9.0, 1.0, 1.0]
    assert lora_claims.sufficient(lucky)["cut_sufficient"].tolist() == [[2, 0, 0, 0]]
    # Four runs are too few for a small p-value: 2 of 24 permutations.
    claims = lora_claims.claims_of(lora_data([0, 1, 2, 4]))[0]
    assert claims[0].values["rho"] == pytest.approx(1.0) and claims[0].values["p"] == pytest.approx(2 / 24)
    assert claims[0].verdict == Verdict.not_settled and claims[-1].verdict == Verdict.holds
    assert lora_claims.claims_of(lora_data([4, 4, 9, 9]))[0][-1].verdict == Verdict.not_settled
    same = lora_claims.claims_of(lora_data([1, 1, 1, 1]))[0]
    assert "no correlation is defined" in same[0].measured and same[0].verdict == Verdict.not_settled
    x = np.arange(9.0)
    assert lora_claims.correlation(x, -x)[0] == pytest.approx(-1.0) and lora_claims.correlation(x, -x)[1] < 0.01


def by_hand(shape: pr.Shape, first: int, last: int, tokens: int) -> int:
    """Numbers in a transformer: four matrices a head, an MLP and two normalisations a layer, and what is around."""
    layer = 4 * shape.heads * shape.width * shape.head + 2 * shape.width * shape.mlp + shape.mlp + 5 * shape.width
    around = first + tokens * shape.width + 2 * shape.width + (shape.width + 1) * last
    return shape.layers * layer + around


@pytest.mark.parametrize("name", list(pr.PRESETS))
def test_presets_have_the_published_size(name):
    found = pr.preset(name)
    assert found.recipe.optimizer == ("sgd" if name.endswith("sgd") else "adam")
    optimizer_of(found.recipe)
    size = found.size()
    assert size.shape == found.shape and size.recipe == found.recipe
    if found.length:
        first, tokens = found.outputs * 768, 256
    else:
        first, tokens = (found.patch**2 * 3 + 1) * found.shape.width, (found.side // found.patch) ** 2
    assert found.parameters() == by_hand(found.shape, first, found.outputs, tokens)


def test_presets_near_the_usual_counts_and_by_name():
    # ViT-B/16 has 86.6 million with a class token and biases in its attention; GPT-2 124 with one vocabulary.
    assert pr.preset("imagenet").parameters() == pytest.approx(86.6e6, rel=0.01)
    assert pr.preset("wikitext103-tokens").parameters() - 50257 * 769 == pytest.approx(124e6, rel=0.01)
    with pytest.raises(ValueError, match="^preset: unknown name 'cifar1'"):
        pr.preset("cifar1")

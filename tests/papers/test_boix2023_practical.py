"""The practical transformers: models, spectra, data, and training that continues exactly where it stopped."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxflow.papers.boix2023 import lora_claims, rank_claims
from jaxflow.papers.boix2023 import practical as pr
from jaxflow.papers.boix2023.practical.runs import runs_of
from jaxflow.papers.boix2023.practical.spectra import Part, head_products, measure
from jaxflow.papers.boix2023.practical.train import next_token, optimizer_of, text_batches
from jaxflow.papers.registry import find_figure
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
    assert np.array_equal(whole.measured["KQ"].rank, resumed.measured["KQ"].rank)
    assert whole.losses[-1].mean() < whole.losses[0].mean() and np.all(whole.measured["KQ"].rank >= 1.0)
    with pytest.raises(ValueError, match="^folder: .* holds a run with"):
        pr.train(models, keys, recipe._replace(rate=1.0), next_token, draw, measure, [4], folder=tmp_path)
    with pytest.raises(ValueError, match="^at: 9 is past"):
        run([9], None)


def test_unknown_optimizer_is_named():
    with pytest.raises(ValueError, match="^optimizer: unknown name 'adan'; did you mean 'adam'"):
        optimizer_of(pr.Recipe("adan", 1.0, 0, 1, 1))


def spectrum(rank: np.ndarray) -> np.ndarray:
    """Two normalised singular values with these stable ranks, between one and two, and two zeros."""
    second = np.sqrt(np.clip(rank - 1.0, 0.0, 1.0))
    return np.stack([np.ones_like(second), second, 0 * second, 0 * second], axis=-1)


def ranks(
    by_scale: list[list[float]], prefix: str = "images", *, start: float = 1.9, published: bool = True
) -> dict[str, np.ndarray]:
    """Four measurements of each (scale, seed), two layers of two heads: the last rank given, the others lower.

    The singular values grow to their last values one after another."""
    last = np.asarray(by_scale)[None, :, :, None, None]
    values = np.broadcast_to(
        last - np.array([0.3, 0.2, 0.1, 0.0])[:, None, None, None, None], (4, *last.shape[1:3], 2, 2)
    )
    first = np.full(values.shape, start)
    data = {f"{prefix}_scales": np.array([1.0, 0.1]), f"{prefix}_steps": np.array([1, 2, 3, 4])}
    data |= {f"{prefix}_published": np.asarray(published), f"{prefix}_losses": np.ones(values.shape[:3])}
    grown = spectrum(values)
    # Of half of their last value: the first from the first measurement, the second from the second, and so on.
    growth = np.where(np.arange(4)[:, None] >= np.arange(4)[None, :], 1.0, 0.1)[:, None, None, None, None, :]
    for name in ("KQ", "VO"):
        part = Part(
            rank=values,
            initial=first,
            weights=first,
            spectrum=np.maximum(grown, 0.01) * growth,
            initial_spectrum=spectrum(first)[..., :2],
            weights_spectrum=spectrum(first)[..., :2],
            top=np.ones(values.shape),
            initial_top=np.ones(values.shape),
        )
        data |= {f"{prefix}_{name}_{field}": value for field, value in part._asdict().items()}
    return data


def both_networks(by_scale: list[list[float]], published: bool = False) -> dict[str, np.ndarray]:
    """The same of a small network and of that of Appendix B."""
    return ranks(by_scale, published=published) | ranks(by_scale, "network", published=published)


def worse(data: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The same backwards in time, from a start of rank one: ranks fall and singular values vanish in order."""
    turned = {k: v[::-1] if v.ndim > 3 else v for k, v in data.items()}
    fallen = {k: np.ones_like(v) for k, v in data.items() if k.endswith(("_initial", "_weights"))}
    bare = {
        k: v * np.array([1.0, 0.0]) for k, v in data.items() if k.endswith(("initial_spectrum", "weights_spectrum"))
    }
    return turned | fallen | bare


def test_verdicts_follow_the_numbers():
    out, holds, open_ = Verdict.outside_hypotheses, Verdict.holds, Verdict.not_settled

    def verdicts(data, figure=rank_claims.by_scale):
        return [claim.verdict for claim in figure(data)[0]]

    # The paper's networks, then each of ours.
    ordered = [[1.6, 1.6], [1.5, 1.5]]
    assert verdicts(ranks(ordered)) == [holds, out, out]
    assert verdicts(ranks([[1.6, 1.6], [1.7, 1.7]])) == verdicts(ranks([[1.6, 1.6], [1.5, 1.7]])) == [open_, out, out]
    # Networks that are not the paper's prove and refute nothing of it; of themselves they say what they say.
    assert verdicts(ranks(ordered, published=False)) == [out, holds, holds]
    assert verdicts(ranks([[1.6, 1.6], [1.7, 1.7]], published=False)) == [out, open_, open_]

    def growth(data):
        return rank_claims.growth(data, ("images",))

    toy = ranks(ordered, published=False)
    assert verdicts(toy, growth) == [out, holds, holds] * 2
    assert verdicts(worse(toy), growth) == [out, open_, open_] * 2
    assert verdicts(toy, rank_claims.evolution) == [out, holds, holds] * 3
    assert verdicts(worse(toy), rank_claims.evolution)[:6] == [out, open_, open_] * 2
    # All singular values at once, as far as the measurements tell.
    at_once = toy | {k: np.broadcast_to(v[-1:], v.shape) for k, v in toy.items() if k.endswith("_spectrum")}
    claim = rank_claims.evolution(at_once)[0][1]
    assert claim.verdict == open_ and claim.evidence.undecided == claim.evidence.inside


def test_verdicts_on_spectra_follow_the_numbers():
    out, holds, open_ = Verdict.outside_hypotheses, Verdict.holds, Verdict.not_settled
    toy = both_networks([[1.6, 1.6], [1.5, 1.5]])
    figures = {name: find_figure("boix2023", name).figure for name in ("fig1", "fig5", "fig14", "fig15")}

    def verdicts(name, data):
        return [claim.verdict for claim in figures[name].claims(data)[0]]

    # The paper's networks, then the small one and that of Appendix B.
    assert verdicts("fig1", toy) == [out, holds, holds] * 3
    assert verdicts("fig1", worse(toy)) == [out, open_, open_] * 3
    # Half of the start's stable rank: 1.5 of 1.9 is not.
    assert verdicts("fig5", toy) == [out] + [open_] * 4 + [out] + [holds] * 4
    small = toy | {k: np.full_like(v, 0.9) for k, v in toy.items() if k.endswith("_rank")}
    assert verdicts("fig5", small)[:5] == [out] + [holds] * 4
    for name in ("fig14", "fig15"):
        assert verdicts(name, toy) == ([out] + [holds] * 4) * 2
        assert verdicts(name, worse(toy)) == ([out] + [open_] * 4) * 2
        assert verdicts(name, toy | {"images_published": np.asarray(True)})[0] == holds


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


def test_pictures_of_spectra_are_drawn_from_what_is_saved():
    toy = both_networks([[1.6, 1.6], [1.5, 1.5]])
    assert runs_of(toy, "images").parts["KQ"].rank.shape == (4, 2, 2, 2, 2)
    for name, axes in (("fig1", 2), ("fig5", 4), ("fig14", 8), ("fig15", 4), ("fig6", 4)):
        figure = find_figure("boix2023", name).figure.draw(toy)
        assert len(figure.axes) == axes and all(axis.lines for axis in figure.axes)


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

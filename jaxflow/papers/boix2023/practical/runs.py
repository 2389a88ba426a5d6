"""Training runs behind figures 1, 4 to 7, 14 and 15, digits by ViTs, help texts by a GPT, and the published models."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxflow._core import unknown_name
from jaxflow.papers.boix2023.practical.data import ImageSet, digits, library_text
from jaxflow.papers.boix2023.practical.models import GPT, GPT2, VIT_B16, VIT_CIFAR, Shape, Transformer, ViT, rescaled
from jaxflow.papers.boix2023.practical.spectra import measure
from jaxflow.papers.boix2023.practical.train import (
    ADAM_CIFAR,
    ADAM_IMAGENET,
    ADAM_WIKITEXT,
    SGD_CIFAR,
    Recipe,
    classification,
    image_batches,
    next_token,
    text_batches,
    train,
)
from jaxflow.papers.experiment import Table, stacked


class Size(NamedTuple):
    """`seeds` runs for each of `scales` of the initial weights; measured at `points` steps.

    `published`: the network and recipe are those of the paper.
    """

    shape: Shape
    recipe: Recipe
    scales: tuple[float, ...]
    seeds: int
    points: int
    patch: int = 4
    length: int = 32
    published: bool = False


SMALL = Shape(2, 4, 32, 8, 32)
SCALES = (1.0, 0.3, 0.1)

IMAGES = {
    "quick": Size(SMALL, Recipe("adam", 1e-3, 20, 200, 32), SCALES, 5, 8),
    "paper": Size(SMALL, Recipe("adam", 1e-3, 50, 1000, 32), SCALES, 5, 20),
    "large": Size(VIT_CIFAR, Recipe("adam", 1e-4, 420, 14_000, 64), SCALES, 5, 40, patch=2),
}

TEXTS = {
    "quick": Size(SMALL, Recipe("adam", 1e-3, 20, 200, 8), (1.0,), 3, 8),
    "paper": Size(SMALL, Recipe("adam", 1e-3, 50, 1000, 16), (1.0,), 5, 20),
    "large": Size(GPT2, Recipe("adam", 3e-4, 500, 20_000, 16), (1.0,), 3, 40, length=256),
}

# The network of Appendix B itself, on the same digits: 15 million weights, of which two cores see few steps.
NETWORKS = {
    "quick": Size(VIT_CIFAR, Recipe("adam", 1e-4, 2, 6, 16), (1.0,), 1, 2),
    "paper": Size(VIT_CIFAR, Recipe("adam", 1e-4, 10, 200, 64), (1.0,), 1, 8),
    "large": Size(VIT_CIFAR, ADAM_CIFAR._replace(batch=256), (1.0,), 5, 40),
}


def by_sgd(size: Size) -> Size:
    """The same with SGD at the rate of Appendix B.1, 0.3, and the same warm-up and schedule."""
    return size._replace(recipe=size.recipe._replace(optimizer="sgd", rate=SGD_CIFAR.rate))


def image_runs(
    size: Size,
    key: Any,
    say: Callable[[str], None],
    *,
    data: ImageSet | None = None,
    folder: Path | str | None = None,
) -> Table:
    r"""Trains on `data`, digits by default, with checkpoints in `folder`.

    **Returns:** runs measured at p `steps`, from s `scales` of the start and t seeds, which share batches and initial
    directions: `losses` of the last batch `(p, s, t)`; `published`: network, recipe and data of the paper; columns of
    `spectra.measure` `(2, p, s, t, l, h)`, of $W_KW_Q^\top$ and $W_VW_O^\top$ in each of l layers and h heads, spectra
    with an axis more.
    """
    # The paper does not train on digits, whatever the network.
    size = size._replace(published=size.published and data is not None)
    data = digits() if data is None else data
    _, side, _, channels = data.images.shape
    make = partial(ViT.init, shape=size.shape, side=side, channels=channels, classes=data.classes, patch=size.patch)
    draw = image_batches(data.images, data.labels)
    return _runs(size, key, say, make, classification, draw, folder)


def text_runs(
    size: Size,
    key: Any,
    say: Callable[[str], None],
    *,
    text: tuple[np.ndarray, int] | None = None,
    folder: Path | str | None = None,
) -> Table:
    """As `image_runs`, on tokens with the size of their vocabulary; the help topics by default."""
    size = size._replace(published=size.published and text is not None)
    tokens, vocabulary = library_text() if text is None else text
    make = partial(GPT.init, shape=size.shape, vocabulary=vocabulary, length=size.length)
    return _runs(size, key, say, make, next_token, text_batches(tokens, size.length), folder)


def start_models(size: Size, key: Any, make: Any) -> tuple[Any, Any]:
    """Models `make(key)` at every scale and seed in single precision, and the keys of their batches: leading axis
    scales × seeds, the seeds running fastest. Runs of one seed share batches and initial directions."""
    starts, batches = jax.vmap(jax.random.split, out_axes=1)(jax.random.split(key, size.seeds))
    scales = jnp.asarray(size.scales, jnp.float32)

    def start(scale: Any, key: Any) -> Any:
        model = rescaled(make(key), scale)
        return jax.tree.map(lambda x: x.astype(jnp.float32) if eqx.is_inexact_array(x) else x, model)

    models = eqx.filter_vmap(start)(jnp.repeat(scales, size.seeds), jnp.tile(starts, len(size.scales)))
    return models, jnp.tile(batches, len(size.scales))


def _runs(size: Size, key: Any, say: Any, make: Any, loss: Any, draw: Any, folder: Path | str | None) -> Table:
    models, runs = start_models(size, key, make)
    at = np.unique(np.linspace(0, size.recipe.steps, size.points + 1).round().astype(int))[1:]
    steps = [int(step) for step in at]
    found = train(models, runs, size.recipe, loss, draw, measure, steps, folder=folder, say=say)
    shape, both = (len(at), len(size.scales), size.seeds), stacked(found.measured[part] for part in ("KQ", "VO"))
    return Table(
        jax.tree.map(lambda x: x.reshape(2, *shape, *x.shape[3:]), both).named,
        steps=found.steps,
        losses=np.reshape(found.losses, shape),
        scales=np.asarray(size.scales),
        published=np.asarray(size.published),
    )


class Preset(NamedTuple):
    """A model, how it is trained, and what its inputs are like.

    For images `side`, `channels` and `patch`; for text `length`. `outputs`: classes, or the size of the vocabulary.
    """

    shape: Shape
    recipe: Recipe
    outputs: int
    side: int = 0
    channels: int = 3
    patch: int = 4
    length: int = 0

    def init(self, key: jax.Array) -> Transformer:
        """The model, in full size."""
        if self.length:
            return GPT.init(key, self.shape, self.outputs, self.length)
        return ViT.init(key, self.shape, self.side, self.channels, self.outputs, self.patch)

    def size(self, scales: tuple[float, ...] = (1.0,), seeds: int = 1, points: int = 40) -> Size:
        """For `image_runs` or `text_runs`."""
        return Size(
            self.shape, self.recipe, scales, seeds, points, patch=self.patch, length=self.length, published=True
        )

    def parameters(self) -> int:
        """How many numbers are trained; nothing is allocated."""
        model = eqx.filter_eval_shape(self.init, jax.random.key(0))
        return sum(leaf.size for leaf in jax.tree.leaves(eqx.filter(model, lambda x: hasattr(x, "size"))))


# Appendix B. Wikitext-103 is read as bytes here (at most 256), where the paper takes GPT-2's own tokens.
PRESETS = {
    "cifar10": Preset(VIT_CIFAR, ADAM_CIFAR, 10, side=32),
    "cifar100": Preset(VIT_CIFAR, ADAM_CIFAR, 100, side=32),
    "cifar10-sgd": Preset(VIT_CIFAR, SGD_CIFAR, 10, side=32),
    "cifar100-sgd": Preset(VIT_CIFAR, SGD_CIFAR, 100, side=32),
    "imagenet": Preset(VIT_B16, ADAM_IMAGENET, 1000, side=224, patch=16),
    "wikitext103": Preset(GPT2, ADAM_WIKITEXT, 256, length=256),
    "wikitext103-tokens": Preset(GPT2, ADAM_WIKITEXT, 50257, length=256),
}


def preset(name: str) -> Preset:
    """One of `PRESETS`. **Raises:** `ValueError` with the nearest name."""
    if name not in PRESETS:
        raise unknown_name("preset", name, PRESETS)
    return PRESETS[name]

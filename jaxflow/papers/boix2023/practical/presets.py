"""The published models and recipes by name."""

from typing import NamedTuple

import equinox as eqx
import jax

from jaxflow._core import unknown_name
from jaxflow.papers.boix2023.practical.models import GPT, GPT2, VIT_B16, VIT_CIFAR, Shape, Transformer, ViT
from jaxflow.papers.boix2023.practical.runs import Size
from jaxflow.papers.boix2023.practical.train import ADAM_CIFAR, ADAM_IMAGENET, ADAM_WIKITEXT, SGD_CIFAR, Recipe


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

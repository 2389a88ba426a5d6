"""`reproduce boix2023 lora`: does the stable rank of ΔW predict the rank that suffices? Beyond the paper."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxflow.papers.boix2023 import lora_claims
from jaxflow.papers.boix2023.practical.adapters import Adapted, cut
from jaxflow.papers.boix2023.practical.images import digits
from jaxflow.papers.boix2023.practical.models import ViT
from jaxflow.papers.boix2023.practical.runs import IMAGES, Size, digits_key, start_models
from jaxflow.papers.boix2023.practical.spectra import head_products, stable_rank
from jaxflow.papers.boix2023.practical.train import classification, image_batches, train
from jaxflow.papers.registry import AbstractFigure, Data, register_figure
from jaxflow.plots import draw_sufficient_rank
from jaxflow.report import Claim

RUN_TIMES = {
    "quick": "2 seeds of 3 scales and 3 ranks, 100 steps of Adam, about a minute",
    "paper": "5 seeds of 3 scales and 6 ranks, 1,000 steps of Adam, about five minutes on two cores",
    "large": "the published size of the model, for an accelerator",
}


class Ranks(NamedTuple):
    """Training as in figure 7, and the ranks that updates of every head are held to."""

    size: Size
    ranks: tuple[int, ...]


SIZES = {
    "quick": Ranks(IMAGES["quick"]._replace(seeds=2, recipe=IMAGES["quick"].recipe._replace(steps=100)), (0, 1, 4)),
    # ΔW_K W_Qᵀ has a rank of twice the heads' dimension (8) at most.
    "paper": Ranks(IMAGES["paper"], (0, 1, 2, 4, 8, 16)),
    "large": Ranks(IMAGES["large"], (0, 1, 2, 4, 8, 16, 32)),
}


@register_figure("boix2023", "lora", title="The rank of updates that suffices", run_times=RUN_TIMES)
class LoraFigure(AbstractFigure):
    r"""The runs of figure 7 again, with updates of bounded rank: by adapters in training, and cut down after it."""

    def compute(self, scale: str, seed: int, say: Callable[[str], None]) -> Data:
        return compute(SIZES[scale], digits_key(seed), say)

    def draw(self, data: Data) -> Any:
        return draw_sufficient_rank(data | lora_claims.sufficient(data), 1.0 + lora_claims.TOLERANCE)

    def claims(self, data: Data) -> tuple[list[Claim], list[str]]:
        return lora_claims.claims_of(data)


def compute(what: Ranks, key: Any, say: Callable[[str], None]) -> Data:
    """Losses and accuracies over all images, with axes scale, seed (and rank) for `full`, `cut` and `lora`; stable
    ranks of what full training added, `(scale, seed, layer, head)`."""
    size, ranks = what
    data = digits()
    side, channels = data.images.shape[1], data.images.shape[-1]
    make = partial(ViT.init, shape=size.shape, side=side, channels=channels, classes=data.classes, patch=size.patch)
    models, runs = start_models(size, key, make)
    draw = image_batches(data.images, data.labels)
    images, labels = jnp.asarray(data.images, jnp.float32), jnp.asarray(data.labels, jnp.int32)
    width = max(ranks)

    def judge(model: Any) -> Any:
        right = jnp.argmax(jax.vmap(model)(images), axis=-1) == labels
        return {"loss": classification(model, (images, labels)), "accuracy": jnp.mean(right)}

    def measure(model: Any, initial: Any) -> Any:
        now, then = head_products(model), head_products(initial)
        found = {f"{part}_rank": stable_rank(now[part] - then[part]) for part in now}
        cuts = jax.lax.map(lambda rank: judge(cut(model, initial, rank, width)), jnp.asarray(ranks))
        return found | {"full": judge(model), "cut": cuts}

    steps = [size.recipe.steps]
    say("full training")
    full = train(models, runs, size.recipe, classification, draw, measure, steps, say=say).measured
    count = len(size.scales) * size.seeds
    scales = jnp.repeat(jnp.asarray(size.scales, jnp.float32), size.seeds)

    def adapted(key: Any, base: Any, scale: Any, rank: Any) -> Any:
        found = Adapted.init(jax.random.fold_in(key, size.recipe.steps), base, width, rank, scale)
        return jax.tree.map(lambda x: x.astype(jnp.float32) if eqx.is_inexact_array(x) else x, found)

    losses, accuracies = [], []
    for rank in ranks:
        say(f"adapters of rank {rank}")
        # Every rank starts from the same directions: those that are switched off are the last ones.
        starts = eqx.filter_vmap(adapted)(runs, models, scales, jnp.full(count, rank))
        found = train(starts, runs, size.recipe, classification, draw, lambda now, _: judge(now), steps, say=say)
        losses.append(found.measured["loss"][0])
        accuracies.append(found.measured["accuracy"][0])

    def split(x: Any) -> np.ndarray:
        return np.asarray(x).reshape(len(size.scales), size.seeds, *np.shape(x)[1:])

    flat = {f"{kind}_{name}": split(full[kind][name][0]) for kind in ("full", "cut") for name in ("loss", "accuracy")}
    flat |= {name: split(full[name][0]) for name in ("KQ_rank", "VO_rank")}
    flat |= {"lora_loss": split(np.stack(losses, -1)), "lora_accuracy": split(np.stack(accuracies, -1))}
    return flat | {"scales": np.asarray(size.scales), "ranks": np.asarray(ranks), "steps": np.asarray(steps[0])}

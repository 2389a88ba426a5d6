"""`reproduce boix2023 fig4`: stable rank during training: digits and text."""

from collections.abc import Callable
from typing import Any

import jax

from jaxflow.papers.boix2023 import rank_claims
from jaxflow.papers.boix2023.practical.runs import IMAGES, TEXTS, by_sgd, image_runs, text_runs
from jaxflow.papers.registry import AbstractFigure, Data, register_figure
from jaxflow.plots import draw_rank_growth
from jaxflow.report import Claim

RUN_TIMES = {
    "quick": "5 seeds on images (Adam, SGD) and 3 on text, 200 steps, about a minute",
    "paper": "5 seeds on images (Adam, SGD) and on text, 1,000 steps, some minutes on two cores",
    "large": "the published size of the model, for an accelerator",
}


@register_figure("boix2023", "fig4", title="Stable rank during training: digits and text", run_times=RUN_TIMES)
class Figure4(AbstractFigure):
    r"""Figure 4 of Boix-Adserà et al. (2023) in kind: a vision transformer on digits.

    Of figures 12 and 13, by SGD; and of figure 20, a GPT-style model on the help topics of the standard library. All
    layers are trained on the cross-entropy, from the default initial scale.
    """

    def compute(self, scale: str, seed: int, say: Callable[[str], None]) -> Data:
        key = jax.random.key(seed)
        images = IMAGES[scale]._replace(scales=(1.0,))
        found = image_runs(images, jax.random.fold_in(key, 7), say)
        # The same starts and batches.
        sgd = image_runs(by_sgd(images), jax.random.fold_in(key, 7), say)
        found |= {f"sgd_{name.removeprefix('images_')}": value for name, value in sgd.items()}
        return found | text_runs(TEXTS[scale], jax.random.fold_in(key, 20), say)

    def draw(self, data: Data) -> Any:
        return draw_rank_growth(
            data, {"images": "ViT, digits, Adam", "sgd": "ViT, digits, SGD", "text": "GPT, help topics"}
        )

    def claims(self, data: Data) -> tuple[list[Claim], list[str]]:
        return rank_claims.growth(data, ("images", "sgd", "text"))

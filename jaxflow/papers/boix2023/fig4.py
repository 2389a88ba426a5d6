"""`reproduce boix2023 fig4`: stable rank during training: digits and text."""

from collections.abc import Callable
from typing import Any

from jaxflow.papers.boix2023 import rank_claims
from jaxflow.papers.boix2023.practical.runs import (
    IMAGES,
    NETWORKS,
    TEXTS,
    by_sgd,
    digits_key,
    image_runs,
    text_key,
    text_runs,
)
from jaxflow.papers.registry import AbstractFigure, Data, register_figure
from jaxflow.plots import draw_rank_growth
from jaxflow.report import Claim

PREFIXES = ("images", "sgd", "network", "text")

RUN_TIMES = {
    "quick": "5 seeds on images (Adam, SGD) and 3 on text, 200 steps, and 6 of the ViT of Appendix B, two minutes",
    "paper": "5 seeds on images (Adam, SGD) and on text, 1,000 steps, and 200 of the ViT of Appendix B, ten minutes",
    "large": "the published size of the model, for an accelerator",
}


@register_figure("boix2023", "fig4", title="Stable rank during training: digits and text", run_times=RUN_TIMES)
class Figure4(AbstractFigure):
    r"""Figure 4 of Boix-Adserà et al. (2023) in kind, on data that are at hand.

    The paper's are the ViT of its Appendix B (6 layers of 8 heads, width 512, heads of 128, patches of 4; Adam, rate
    1e-4) on CIFAR-10 and CIFAR-100, ViT-B/16 on ImageNet and GPT-2 on Wikitext-103. Here that ViT of Appendix B is
    trained on scikit-learn's digits ("network"; of its 500 epochs at a batch of 512 only the first steps), and a small
    one by Adam and, as in figures 12 and 13, by SGD; and as in figure 20 a GPT-style model, on the help topics of the
    standard library. All layers are trained on the cross-entropy, from the default initial scale.
    """

    def compute(self, scale: str, seed: int, say: Callable[[str], None]) -> Data:
        images = IMAGES[scale]._replace(scales=(1.0,))
        found = image_runs(images, digits_key(seed), say)
        # The same starts and batches.
        for prefix, size in (("sgd", by_sgd(images)), ("network", NETWORKS[scale])):
            runs = image_runs(size, digits_key(seed), say)
            found |= {f"{prefix}_{name.removeprefix('images_')}": value for name, value in runs.items()}
        return found | text_runs(TEXTS[scale], text_key(seed), say)

    def draw(self, data: Data) -> Any:
        return draw_rank_growth(data, {prefix: rank_claims.RUNS[prefix] for prefix in PREFIXES})

    def claims(self, data: Data) -> tuple[list[Claim], list[str]]:
        return rank_claims.growth(data, PREFIXES)

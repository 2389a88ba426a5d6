"""E. Boix-Adserà, E. Littwin, E. Abbe, S. Bengio, J. Susskind, Transformers learn through gradual rank increase."""

from jaxflow.papers.boix2023 import beyond_assumptions as beyond_assumptions
from jaxflow.papers.boix2023 import full_heads as full_heads
from jaxflow.papers.boix2023 import log_scale as log_scale
from jaxflow.papers.boix2023 import lora as lora
from jaxflow.papers.boix2023 import perturbations as perturbations
from jaxflow.papers.boix2023 import ranks as ranks
from jaxflow.papers.boix2023 import small_instances as small_instances
from jaxflow.papers.boix2023 import stages as stages
from jaxflow.papers.boix2023 import supports as supports
from jaxflow.papers.experiment import Paper, register_paper

register_paper(
    Paper(
        "boix2023",
        "Transformers learn through gradual rank increase",
        "E. Boix-Adserà, E. Littwin, E. Abbe, S. Bengio, J. Susskind, NeurIPS 2023, arXiv:2306.07042",
        # Theorem 4.1 predicts stages, not a program: `theory.incremental_learning` answers by it, not `predict`.
        (),
    )
)

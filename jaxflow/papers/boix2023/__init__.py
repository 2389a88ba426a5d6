"""E. Boix-Adserà, E. Littwin, E. Abbe, S. Bengio, J. Susskind, Transformers learn through gradual rank increase."""

from jaxflow.papers.boix2023 import fig2 as fig2
from jaxflow.papers.boix2023 import fig3 as fig3
from jaxflow.papers.boix2023 import fig4 as fig4
from jaxflow.papers.boix2023 import fig6 as fig6
from jaxflow.papers.boix2023 import fig7 as fig7
from jaxflow.papers.boix2023 import fig8 as fig8
from jaxflow.papers.boix2023 import fig9 as fig9
from jaxflow.papers.boix2023 import fig10 as fig10
from jaxflow.papers.boix2023 import fig11 as fig11
from jaxflow.papers.boix2023 import lora as lora
from jaxflow.papers.boix2023 import spectra as spectra
from jaxflow.papers.boix2023 import verify as verify
from jaxflow.papers.registry import Paper, register_paper

register_paper(
    Paper(
        "boix2023",
        "Transformers learn through gradual rank increase",
        "E. Boix-Adserà, E. Littwin, E. Abbe, S. Bengio, J. Susskind, NeurIPS 2023, arXiv:2306.07042",
        # Theorem 4.1 predicts stages, not a program: `theory.incremental_learning` answers by it, not `predict`.
        (),
    )
)

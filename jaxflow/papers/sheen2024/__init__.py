"""H. Sheen, S. Chen, T. Wang, H. H. Zhou, Implicit Regularization of Gradient Flow on One-Layer Softmax Attention."""

from jaxflow.models import DiagonalAttention, FactoredAttention
from jaxflow.papers.experiment import Paper, Theorem, register_paper
from jaxflow.papers.sheen2024 import alignment as alignment
from jaxflow.papers.sheen2024 import failures as failures
from jaxflow.papers.sheen2024 import multipliers as multipliers
from jaxflow.papers.sheen2024 import norms as norms
from jaxflow.papers.sheen2024 import rates as rates
from jaxflow.papers.sheen2024 import separability as separability

register_paper(
    Paper(
        "sheen2024",
        "Implicit Regularization of Gradient Flow on One-Layer Softmax Attention",
        "H. Sheen, S. Chen, T. Wang, H. H. Zhou, 2024, arXiv:2403.08699",
        (
            Theorem("Theorem 4.1", "flow of diagonal (k, q): direction of the l1-norm program", DiagonalAttention),
            Theorem(
                "Theorem 5.1",
                "flow of (K, Q) from an aligned start: direction of the nuclear-norm program",
                FactoredAttention,
            ),
        ),
    )
)

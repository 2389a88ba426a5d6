"""C. Yun, S. Krishnan, H. Mobahi, A unifying view on implicit bias in training linear neural networks."""

from jaxflow.models import DeepLinearNetwork, DiagonalLinearNetwork, LinearConvolutionalNetwork
from jaxflow.papers.experiment import Paper, Theorem, register_paper
from jaxflow.papers.yun2021 import alpha_sweep as alpha_sweep
from jaxflow.papers.yun2021 import decomposing as decomposing
from jaxflow.papers.yun2021 import designed as designed
from jaxflow.papers.yun2021 import dual_form as dual_form
from jaxflow.papers.yun2021 import filters as filters
from jaxflow.papers.yun2021 import fully_connected as fully_connected
from jaxflow.papers.yun2021 import limit_directions as limit_directions
from jaxflow.papers.yun2021 import limit_points as limit_points
from jaxflow.papers.yun2021 import loss_bounds as loss_bounds
from jaxflow.papers.yun2021 import multiplier_direction as multiplier_direction
from jaxflow.papers.yun2021 import one_datum as one_datum
from jaxflow.papers.yun2021 import phase as phase
from jaxflow.papers.yun2021 import plane as plane

register_paper(
    Paper(
        "yun2021",
        "A unifying view on implicit bias in training linear neural networks",
        "C. Yun, S. Krishnan, H. Mobahi, ICLR 2021, arXiv:2010.02501",
        (
            Theorem("Corollary 1", "fully connected: direction of the l2 max-margin classifier", DeepLinearNetwork),
            Theorem("Corollary 2", "diagonal: direction of an l_(2/L) max-margin program", DiagonalLinearNetwork),
            Theorem(
                "Corollary 3",
                "full-length convolutions: direction of a DFT-domain l_(2/L) max-margin program",
                LinearConvolutionalNetwork,
            ),
        ),
    )
)

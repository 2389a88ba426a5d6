"""D. Ataee Tarzanagh, Y. Li, C. Thrampoulidis, S. Oymak, Transformers as Support Vector Machines."""

from jaxflow.models import CombinedAttention, FactoredAttention
from jaxflow.papers.experiment import Paper, Theorem, register_paper
from jaxflow.papers.tarzanagh2023 import conjecture as conjecture
from jaxflow.papers.tarzanagh2023 import factored as factored
from jaxflow.papers.tarzanagh2023 import fig1 as fig1
from jaxflow.papers.tarzanagh2023 import fig5 as fig5
from jaxflow.papers.tarzanagh2023 import fig6 as fig6
from jaxflow.papers.tarzanagh2023 import fig7 as fig7
from jaxflow.papers.tarzanagh2023 import fig8 as fig8
from jaxflow.papers.tarzanagh2023 import fig9 as fig9
from jaxflow.papers.tarzanagh2023 import fig10 as fig10
from jaxflow.papers.tarzanagh2023 import fig12 as fig12
from jaxflow.papers.tarzanagh2023 import ranks as ranks
from jaxflow.papers.tarzanagh2023 import verify as verify

register_paper(
    Paper(
        "tarzanagh2023",
        "Transformers as Support Vector Machines",
        "D. Ataee Tarzanagh, Y. Li, C. Thrampoulidis, S. Oymak, 2023, arXiv:2308.16898",
        (
            Theorem(
                "Theorem 2",
                "regularisation path of (K, Q): direction of the nuclear-norm (Att-SVM*)",
                FactoredAttention,
            ),
            Theorem(
                "Theorem 7",
                "descent on W from close enough: direction of the Frobenius-norm (Att-SVM) of the selected tokens",
                CombinedAttention,
            ),
        ),
    )
)

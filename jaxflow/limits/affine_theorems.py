"""What is known of the direction of a model that is affine in its parameters."""

from typing import Any

from jaxflow.margin import AbstractNorm, Lp, Schatten
from jaxflow.models import NextTokenAttention
from jaxflow.risk import EmpiricalRisk

THEOREM = (
    "Ji and Telgarsky (2019), Theorem 2.1, and Soudry et al. (2018), Theorem 3: the direction of a linear model is "
    "that of the l2 max margin of the data that can be separated, orthogonal to the others"
)
CLASSES = (
    "Soudry et al. (2018), Theorem 7: the direction of a linear model of separable data of many classes is that of the "
    "multiclass SVM. Where only some margins can be separated no theorem is cited, and the program is the l2 "
    "(Frobenius) max margin of these, orthogonal to the others"
)
CONTINUATIONS = (
    "Thrampoulidis (2024), Implicit Optimization Bias of Next-Token Prediction in Linear Models: the outputs of a "
    "context's continuations tend to their log-odds where all of these can be met, and the direction is that of the l2 "
    "(Frobenius) max margin over the other words, orthogonal to differences of continuations"
)
GRAPH = (
    "Li et al. (2024), Mechanics of Next Token Prediction with Self-Attention: the direction of W is that of the "
    "Graph-SVM, and words of one strongly connected component keep finite shares. Where embeddings are linearly "
    "dependent and that program has no solution no theorem is cited, and the program is the l2 (Frobenius) max margin "
    "of the pairs that can be separated, orthogonal to the others"
)
MIRROR = (
    "Sun, Ahn, Thrampoulidis and Azizan (2022), Mirror Descent Maximizes Generalized Margin and Can Be Implemented "
    "Efficiently: with the potential |theta|_p^p / p the direction of a linear model of separable data is that of the "
    "lp max margin"
)
SPECTRAL = (
    "Sun, Gatmiry, Ahn and Azizan (2023), A Unified Approach to Controlling Implicit Regularization via Mirror "
    "Descent: with a homogeneous potential, here of singular values, the direction of a linear model of separable data "
    "is that of the max margin in the norm of the potential"
)


def theorem_of(risk: EmpiricalRisk, model: Any, norm: AbstractNorm, many: bool) -> str:
    """The theorem, for many classes or for two, of mirror flow in the norm of its potential."""
    if isinstance(norm, Lp | Schatten):
        mirror = SPECTRAL if isinstance(norm, Schatten) else MIRROR
        return f"{mirror}. Of many classes no theorem is cited" if many else mirror
    if not many:
        return THEOREM
    return GRAPH if isinstance(model, NextTokenAttention) else CONTINUATIONS if risk.soft else CLASSES

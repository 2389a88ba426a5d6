r"""What Yun, Krishnan, Mobahi (2021) predict for each linear network: a program, and where ρ is to be read off."""

import abc
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Inexact

from jaxflow._core import checked
from jaxflow.data import LinearData
from jaxflow.losses import Exponential, Logistic, Squared
from jaxflow.margin import L1, AbstractNorm, Frobenius, Lp, max_margin, minimum_norm
from jaxflow.models import (
    AbstractLinearNetwork,
    Decomposition,
    DeepLinearNetwork,
    DeepMatrixSensing,
    DiagonalLinearNetwork,
    LinearConvolutionalNetwork,
    LinearTensorNetwork,
    as_tensor_network,
)
from jaxflow.risk import EmpiricalRisk
from jaxflow.theory.linear_assumptions import below_one, equal_layers, fully_connected_start, small_layer
from jaxflow.theory.norm_like import InterpolationProgram, NormLike, interpolation_program
from jaxflow.theory.prediction import Assumption, Prediction, register
from jaxflow.theory.single_datum import data_singular


class AbstractPrimal(eqx.Module):
    r"""Where the primal of a predicted program is read off a network."""

    @property
    @abc.abstractmethod
    def faithful(self) -> bool:
        r"""Whether $\beta=S^\top\rho$."""

    @abc.abstractmethod
    def __call__(self, network: Any) -> Inexact[Array, " m"]:
        """ρ."""


class Coefficients(AbstractPrimal):
    r"""$\rho=\beta(\Theta)$."""

    @property
    def faithful(self) -> bool:
        return True

    def __call__(self, network: Any) -> Inexact[Array, " m"]:
        return network.linear_coefficients()


class FourierCoefficients(AbstractPrimal):
    r"""$\rho=F^{-\top}\beta(\Theta)=F^*\beta(\Theta)$ with the unitary F: $\beta=\mathrm{Re}(F^\top\rho)$."""

    @property
    def faithful(self) -> bool:
        return True

    def __call__(self, network: Any) -> Inexact[Array, " m"]:
        return jnp.fft.ifft(network.linear_coefficients(), norm="ortho")


class SingularCoefficients(AbstractPrimal):
    r"""$\rho=\bigodot_lU_l^\top v_l$ of a decomposition; `at_datum`: of one that holds at one datum only."""

    decomposition: Decomposition
    at_datum: bool = eqx.field(static=True, default=False)

    @property
    def faithful(self) -> bool:
        return not self.at_datum

    def __call__(self, network: Any) -> Inexact[Array, " m"]:
        # The structured forms' layers as the vectors of the general form.
        if isinstance(network, DeepMatrixSensing):
            return self.decomposition.singular_coefficients(tuple(W.reshape(-1) for W in network.layers))
        layers = network.layers if all(v.ndim == 1 for v in network.layers) else as_tensor_network(network).layers
        return self.decomposition.singular_coefficients(layers)


def sparse_norm(depth: int) -> AbstractNorm:
    r"""$\ell_{2/L}$: ℓ1 for L = 2, a quasi-norm beyond."""
    return L1() if depth == 2 else Lp(2.0 / depth)


@checked()
def primal_map(risk: EmpiricalRisk, network: AbstractLinearNetwork) -> AbstractPrimal:
    """Where to read ρ of `predict(risk, network).program` off a network of this kind.

    **Example:**

    ```python
    read = jf.theory.primal_map(jf.EmpiricalRisk(linear, "exponential"), network)
    ```
    """
    data = linear_data(risk)
    if not risk.loss.margin:
        program: Any = predict_regression(risk, network).program
        if not isinstance(program, InterpolationProgram):
            return Coefficients()
        return SingularCoefficients(program.decomposition, at_datum=not _decomposes(network))
    if isinstance(network, DeepLinearNetwork):
        return Coefficients()
    if isinstance(network, DiagonalLinearNetwork):
        return Coefficients()
    if isinstance(network, LinearConvolutionalNetwork) and network.full_length:
        return FourierCoefficients()
    if isinstance(network, LinearTensorNetwork) and network.decomposition is not None:
        return SingularCoefficients(network.decomposition)
    return SingularCoefficients(_at_datum(network, data), at_datum=True)


def linear_data(risk: EmpiricalRisk) -> LinearData:
    """**Raises:** `ValueError` for a risk on anything but `LinearData`."""
    data = risk.data
    if not isinstance(data, LinearData):
        raise ValueError("risk: linear networks need a risk on LinearData")
    return data


def predict_classification(risk: EmpiricalRisk, network: AbstractLinearNetwork) -> Prediction:
    """Corollaries 1–3, Theorem 2 with a decomposition, Theorem 3 for one datum."""
    data = linear_data(risk)
    X, y, depth = data.inputs, data.targets, network.depth
    smooth = jnp.asarray(isinstance(risk.loss, Exponential | Logistic))
    common = Assumption("the loss is exponential (or logistic, with the same tail)", smooth, smooth - 1.0)
    if isinstance(network, DeepLinearNetwork):
        return Prediction(
            max_margin(X, y, Frobenius()),
            "Yun et al. (2021), Corollary 1: once the loss is below one, the linear coefficients of a fully connected "
            "network converge in direction to the l2 max-margin classifier",
            (common, below_one(risk, network)),
        )
    what = "the solution" if depth == 2 else "a stationary point"
    norm = sparse_norm(depth)
    if isinstance(network, DiagonalLinearNetwork):
        return Prediction(
            max_margin(X, y, norm),
            f"Yun et al. (2021), Corollary 2: if X^T r converges in direction, the linear coefficients of a diagonal "
            f"network converge in direction to {what} of the l_(2/{depth}) max-margin program",
            (common, small_layer(network.layers, "Corollary 2")),
        )
    if isinstance(network, LinearConvolutionalNetwork) and network.full_length:
        etas = tuple(jnp.fft.fft(w, norm="ortho") for w in network.layers)
        return Prediction(
            max_margin(X, y, norm, "dft"),
            f"Yun et al. (2021), Corollary 3: if X^T r converges in direction, the coefficients of a full-length "
            f"convolutional network converge in direction to {what} of the DFT-domain l_(2/{depth}) max-margin program",
            (common, small_layer(etas, "Corollary 3")),
        )
    if isinstance(network, LinearTensorNetwork) and network.decomposition is not None:
        found = network.decomposition
        return Prediction(
            max_margin(X, y, norm, found.transform),
            f"Yun et al. (2021), Theorem 2: if X^T r converges in direction, the coefficients rho of an orthogonally "
            f"decomposable network converge in direction to {what} of the l_(2/{depth}) max-margin program",
            (common, small_layer(found.transformed(network.layers))),
        )
    found = _at_datum(network, data)
    etas = SingularCoefficients(found).decomposition.transformed(as_tensor_network(network).layers)
    return Prediction(
        max_margin(X, y, L1(), found.transform),
        "Yun et al. (2021), Theorem 3: on one data point both layers converge in direction to top singular vectors of "
        "M(x), with weights that solve the l1 max-margin program on its singular values",
        (common, small_layer(etas, "Theorem 3")),
    )


def predict_regression(risk: EmpiricalRisk, network: AbstractLinearNetwork) -> Prediction:
    """Corollaries 5–7 and Theorem 4 with a decomposition, or on one datum; Theorem 6.2 for fully connected networks.

    **Raises:** `ValueError` for a network without a decomposition on several data.
    """
    data = linear_data(risk)
    squared = jnp.asarray(isinstance(risk.loss, Squared))
    common = Assumption("the loss is the squared error", squared, squared - 1.0)
    if isinstance(network, DeepLinearNetwork):
        return Prediction(
            minimum_norm(data.inputs, data.targets, Frobenius()),
            "Yun et al. (2021), Theorem 6: as the scale of the start tends to zero, the limit of a fully connected "
            "network tends to the interpolation of least l2 norm",
            (common, *fully_connected_start(network)),
        )
    if not _decomposes(network):
        # On one datum its singular vectors decompose the data tensor for any network.
        found = _at_datum(network, data)
        etas = found.transformed(as_tensor_network(network).layers)
        rows = data.inputs @ found.transform.T
        return Prediction(
            InterpolationProgram(NormLike(jnp.abs(etas[0]), network.depth), rows, data.targets, found, etas),
            "Yun et al. (2021), Theorem 4 at one data point: the singular coefficients of M(x) converge to the "
            "interpolation of least Q_(L, alpha, eta)",
            (common, equal_layers(etas)),
        )
    program = interpolation_program(network, data)
    names = {
        DiagonalLinearNetwork: "Corollary 5: the linear coefficients of a diagonal network converge",
        LinearConvolutionalNetwork: "Corollary 6 with its factor restored: on even data the linear coefficients of a "
        "convolutional network converge",
        DeepMatrixSensing: "Corollary 7: with sensor matrices that commute, the eigenvalues of the product converge",
        LinearTensorNetwork: "Theorem 4: the singular coefficients of an orthogonally decomposable network converge",
    }
    return Prediction(
        program,
        f"Yun et al. (2021), {names[type(network)]} to the interpolation of least Q_(L, alpha, eta)",
        (common, equal_layers(program.etas), *program.assumptions(network, data)),
    )


def predict_linear(risk: EmpiricalRisk, model: Any, selection: Any) -> Prediction:
    """The rule for all linear networks; `selection` is not used, the start is."""
    return predict_classification(risk, model) if risk.loss.margin else predict_regression(risk, model)


for _kind in (
    DiagonalLinearNetwork,
    LinearConvolutionalNetwork,
    DeepLinearNetwork,
    LinearTensorNetwork,
    DeepMatrixSensing,
):
    register(_kind)(predict_linear)


def _decomposes(network: AbstractLinearNetwork) -> bool:
    """Whether the structure of the network decomposes its data tensor on all data."""
    if isinstance(network, LinearConvolutionalNetwork):
        return network.full_length
    return getattr(network, "decomposition", None) is not None or not isinstance(network, LinearTensorNetwork)


def _at_datum(network: AbstractLinearNetwork, data: LinearData) -> Decomposition:
    r"""On one datum x, $\mathsf M(x)=U_1\mathrm{diag}(Sx)U_2^\top$ with $S=sx^\top/\|x\|^2$. L = 2.

    **Raises:** `ValueError` for several data or layers, where only Theorem 1 speaks (see `singular_residual`), and for
    matrix sensing, whose layers are no vectors.
    """
    if data.inputs.shape[0] != 1 or network.depth != 2 or isinstance(network, DeepMatrixSensing):
        raise ValueError(
            f"model: no theorem names a program for {type(network).__name__} on {data.inputs.shape[0]} data with "
            f"{network.depth} layers; its limit directions are singular vectors (Theorem 1): see "
            "jaxflow.theory.singular_residual. A LinearTensorNetwork may be given its orthogonal decomposition."
        )
    x = data.inputs[0]
    _, found = data_singular(network, x)
    return Decomposition(jnp.outer(found.values, x) / (x @ x), (found.left, found.right))

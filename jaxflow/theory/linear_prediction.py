r"""What Yun, Krishnan, Mobahi (2021) predict for each linear network: a program, and how ρ follows from the network."""

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
from jaxflow.theory.pairs import data_singular
from jaxflow.theory.prediction import Assumption, Prediction, register


class Primal(eqx.Module):
    r"""Where the primal ρ of a predicted program is read off a network.

    $\rho=\bigodot_lU_l^\top v_l$ of a `decomposition`, else $\rho=\beta(\Theta)$, or where the program is in the DFT
    domain, `fourier`, $\rho=F^*\beta(\Theta)$ with the unitary F. `faithful`: whether $\beta=S^\top\rho$, which a
    decomposition that holds at one datum only is not.
    """

    decomposition: Decomposition | None = None
    fourier: bool = eqx.field(static=True, default=False)
    faithful: bool = eqx.field(static=True, default=True)

    def __call__(self, network: Any) -> Inexact[Array, " m"]:
        """ρ."""
        if self.decomposition is None:
            beta = network.linear_coefficients()
            return jnp.fft.ifft(beta, norm="ortho") if self.fourier else beta
        # The structured forms' layers as the vectors of the general form.
        if isinstance(network, DeepMatrixSensing):
            return self.decomposition.singular_coefficients(tuple(W.reshape(-1) for W in network.layers))
        layers = network.layers if all(v.ndim == 1 for v in network.layers) else as_tensor_network(network).layers
        return self.decomposition.singular_coefficients(layers)


@checked()
def primal_map(risk: EmpiricalRisk, network: AbstractLinearNetwork) -> Primal:
    """The function that computes ρ of `predict(risk, network).program` from a network of this kind."""
    return (_classification if risk.loss.margin else _regression)(risk, network)[1]


def predict_linear(risk: EmpiricalRisk, model: Any, selection: Any) -> Prediction:
    """The rule for all linear networks; `selection` is not used, the start is."""
    return (_classification if risk.loss.margin else _regression)(risk, model)[0]


def _linear_data(risk: EmpiricalRisk) -> LinearData:
    data = risk.data
    if not isinstance(data, LinearData):
        raise ValueError("risk: linear networks need a risk on LinearData")
    return data


def _classification(risk: EmpiricalRisk, network: AbstractLinearNetwork) -> tuple[Prediction, Primal]:
    """Corollaries 1–3, Theorem 2 with a decomposition, Theorem 3 for one datum."""
    data, depth = _linear_data(risk), network.depth
    what = "the solution" if depth == 2 else "a stationary point"
    sparse = f"to {what} of the l_(2/{depth}) max-margin program"
    norm: AbstractNorm = L1() if depth == 2 else Lp(2.0 / depth)
    transform, read, layers = None, Primal(), network.layers
    if isinstance(network, DeepLinearNetwork):
        norm, name, says = (
            Frobenius(),
            "Corollary 1",
            "once the loss is below one, the linear coefficients of a fully connected network converge in direction to "
            "the l2 max-margin classifier",
        )
    elif isinstance(network, DiagonalLinearNetwork):
        name, says = (
            "Corollary 2",
            "if X^T r converges in direction, the linear coefficients of a diagonal network converge in direction "
            + sparse,
        )
    elif isinstance(network, LinearConvolutionalNetwork) and network.full_length:
        transform, read = "dft", Primal(fourier=True)
        layers = tuple(jnp.fft.fft(w, norm="ortho") for w in layers)
        name, says = (
            "Corollary 3",
            "if X^T r converges in direction, the coefficients of a full-length convolutional network converge in "
            f"direction to {what} of the DFT-domain l_(2/{depth}) max-margin program",
        )
    elif isinstance(network, LinearTensorNetwork) and network.decomposition is not None:
        found = network.decomposition
        transform, read, layers = found.transform, Primal(found), found.transformed(layers)
        name, says = (
            "Theorem 2",
            "if X^T r converges in direction, the coefficients rho of an orthogonally decomposable network converge in "
            "direction " + sparse,
        )
    else:
        found = _at_datum(network, data)
        transform, read = found.transform, Primal(found, faithful=False)
        layers = found.transformed(as_tensor_network(network).layers)
        name, says = (
            "Theorem 3",
            "on one data point both layers converge in direction to top singular vectors of M(x), with weights that "
            "solve the l1 max-margin program on its singular values",
        )
    smooth = jnp.asarray(isinstance(risk.loss, Exponential | Logistic))
    common = Assumption("the loss is exponential (or logistic, with the same tail)", smooth, smooth - 1.0)
    start = below_one(risk, network) if isinstance(network, DeepLinearNetwork) else small_layer(layers, name)
    program = max_margin(data.inputs, data.targets, norm, transform)
    return Prediction(program, f"Yun et al. (2021), {name}: {says}", (common, start)), read


def _regression(risk: EmpiricalRisk, network: AbstractLinearNetwork) -> tuple[Prediction, Primal]:
    """Corollaries 5–7 and Theorem 4 with a decomposition, or on one datum; Theorem 6.2 for fully connected networks.

    **Raises:** `ValueError` for a network without a decomposition on several data.
    """
    data = _linear_data(risk)
    squared = jnp.asarray(isinstance(risk.loss, Squared))
    common = Assumption("the loss is the squared error", squared, squared - 1.0)
    if isinstance(network, DeepLinearNetwork):
        theorem = (
            "Yun et al. (2021), Theorem 6: as the scale of the start tends to zero, the limit of a fully connected "
            "network tends to the interpolation of least l2 norm"
        )
        program = minimum_norm(data.inputs, data.targets, Frobenius())
        return Prediction(program, theorem, (common, *fully_connected_start(network))), Primal()
    if _decomposes(network):
        program = interpolation_program(network, data)
    else:
        # On one datum its singular vectors decompose the data tensor for any network.
        found = _at_datum(network, data)
        etas = found.transformed(as_tensor_network(network).layers)
        norm = NormLike(jnp.abs(etas[0]), network.depth)
        program = InterpolationProgram(norm, data.inputs @ found.transform.T, data.targets, found, etas)
    names = {
        DiagonalLinearNetwork: "Corollary 5: the linear coefficients of a diagonal network converge",
        LinearConvolutionalNetwork: "Corollary 6 with its factor restored: on even data the linear coefficients of a "
        "convolutional network converge",
        DeepMatrixSensing: "Corollary 7: with sensor matrices that commute, the eigenvalues of the product converge",
        LinearTensorNetwork: "Theorem 4: the singular coefficients of an orthogonally decomposable network converge",
    }
    at_datum = "Theorem 4 at one data point: the singular coefficients of M(x) converge"
    name = names[type(network)] if _decomposes(network) else at_datum
    more = program.assumptions(network, data) if _decomposes(network) else ()
    return Prediction(
        program,
        f"Yun et al. (2021), {name} to the interpolation of least Q_(L, alpha, eta)",
        (common, equal_layers(program.etas), *more),
    ), Primal(program.decomposition, faithful=_decomposes(network))


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

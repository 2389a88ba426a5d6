r"""Assumption 1 (found and verified), Lemma 5.1, and the conjugation in the KKT conditions of (38)."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxflow._core import linalg
from jaxflow.margin import L1, ProgramResult, max_margin, solve
from jaxflow.models import Decomposition, convolutional_tensor, decomposition_of, diagonal_tensor
from jaxflow.models.linear_convolution import LinearConvolutionalNetwork
from jaxflow.models.profiles import angle_of, edge, height
from jaxflow.papers.checks import AbstractCheck, Row, register_check
from jaxflow.papers.registry import Data
from jaxflow.papers.yun2021.verify.shared import map_instances, residual_row, separable
from jaxflow.theory import find_decomposition, verify_decomposition

TRIALS = {"quick": 5, "paper": 100, "large": 1000}
# Factorisations of matrices of size ten keep twelve digits.
FOUND = 1e-10
# Programs are certified to about this.
KKT = 1e-8


@register_check("yun2021", "structure", statements="Assumption 1, Lemma 5.1, equation (38)")
class Structure(AbstractCheck):
    """Tensors that are orthogonally decomposable, and some that are not."""

    def compute(self, scale: str, key: Any, say: Callable[[str], None]) -> Data:
        trials = TRIALS[scale]
        say(f"Assumption 1: {trials} tensors of each kind")
        keys = jax.random.split(key, trials)
        data: Data = {"real": np.asarray([_found(_real_tensor(k)) for k in keys])}
        data["filters"] = np.asarray([_found(convolutional_tensor(d, (d, d))) for d in (2, 3, 5, 8)])
        data["short"] = np.asarray([_found(convolutional_tensor(d, (2, d))) for d in (4, 6)])
        data["random"] = np.asarray([_found(jax.random.normal(k, (4, 5, 3))) for k in keys])
        data["given"] = np.asarray([_given(d, L) for d in (2, 3) for L in (3, 4)])
        say("Lemma 5.1 and (38)")
        lemma = [_lemma(depth) for depth in (2, 3, 4, 5, 8)]
        data |= {f"lemma.{name}": np.asarray([one[name] for one in lemma]) for name in lemma[0]}
        return data | {f"kkt.{name}": value for name, value in map_instances(_kkt, keys).items()}

    def rows(self, data: Data) -> list[Row]:
        def row(
            source: str, checked: str, values: np.ndarray, tolerance: float, residual: str, more: str = "", by: str = ""
        ) -> Row:
            inside = np.ones(values.shape, bool)
            return residual_row(source, checked, values, inside, tolerance, residual, more=more, checked_by=by)

        decided = np.concatenate([data["short"], data["random"]])
        solved = data["kkt.solved"]
        conjugated = bool(solved.any() and np.all(data["kkt.conjugate"][solved] <= KKT))
        return [
            row(
                "Assumption 1",
                "L = 2: a decomposition is found where there is one: random U_1, U_2, S (with more rows than columns "
                "too), full-length convolutions over the complex numbers",
                np.concatenate([data["real"], data["filters"]]),
                FOUND,
                "largest residual of (9), U^H U = I",
            ),
            row(
                "Assumption 1",
                "L = 2: where there is none (short filters, random tensors) the residual says so",
                -decided,
                -1e-3,
                "minus the residual",
            ),
            row(
                "Assumption 1",
                "L = 3 and 4: the decompositions of D.2 and D.3, diagonal and full-length convolutional, are right",
                data["given"],
                FOUND,
                "largest residual",
            ),
            row(
                "Lemma 5.1",
                "h_L is odd and strictly increasing on (−c_L, c_L), c_L = ∞, π/2, 1 for L = 2, 3, 4; L to 8",
                np.maximum(data["lemma.odd"], -data["lemma.slope"]),
                1e-12,
                "oddness, or minus the least increase",
                f"; h_L reaches {data['lemma.top'].min():.0e} at the edge",
            ),
            row(
                "Equation (38)",
                "KKT: S* Σ μ_i y_i x_i, conjugated as the display after (38) has it, is a subgradient of ‖ρ‖₁",
                data["kkt.conjugate"],
                KKT,
                "misalignment",
                f"; {int(data['kkt.solved'].sum())} programs solved",
            ),
            row(
                "Equation (38)",
                "KKT with S Σ ν_i y_i x_i, unconjugated: what replacing μ by ν of (37) would give",
                data["kkt.plain"],
                KKT,
                "misalignment",
                by="the conjugated condition, which the same solutions and multipliers meet" if conjugated else "",
            ),
        ]


def _found(tensor: Any) -> float:
    _, (sum_of_terms, unitary, *_) = find_decomposition(tensor)
    return float(max(1e-10 - sum_of_terms.slack, 1e-10 - unitary.slack))


def _real_tensor(key: Any) -> Any:
    """m = 5 terms for d = 3 inputs: S has more rows than columns."""
    u, v, s = jax.random.split(key, 3)
    left, _ = linalg.qr(jax.random.normal(u, (6, 5)))
    right, _ = linalg.qr(jax.random.normal(v, (7, 5)))
    return Decomposition(jax.random.normal(s, (5, 3)), (left, right)).tensor()


def _given(d: int, depth: int) -> float:
    one = jnp.eye(d)
    diagonal = verify_decomposition(diagonal_tensor(d, depth), Decomposition(one, (one,) * depth))
    network = LinearConvolutionalNetwork((jnp.ones(d),) * depth)
    conv = verify_decomposition(convolutional_tensor(d, (d,) * depth), decomposition_of(network))
    return float(max(1e-10 - a.slack for a in (diagonal[0], diagonal[1], conv[0], conv[1])))


def _lemma(depth: int) -> dict[str, float]:
    c = min(edge(depth), 20.0)
    t = jnp.linspace(-0.9999, 0.9999, 2001) * c
    h = height(depth, angle_of(depth, t))
    return {
        "odd": float(jnp.max(jnp.abs(h + h[::-1]) / jnp.maximum(jnp.abs(h), 1.0))),
        "slope": float(jnp.min(jnp.diff(h))),
        "top": float(h[-1]),
    }


def _kkt(key: Any, n: int = 3, d: int = 4) -> dict[str, Any]:
    X, y = separable(key, n, d)
    program = max_margin(X, y, L1(), "dft")
    solution = solve(program)
    rho, mu = solution.primal, solution.dual
    S: Any = program.transform

    def misaligned(combined: Any) -> Any:
        inner = jnp.sum(jnp.real(jnp.conj(rho) * combined))
        return 1.0 - inner / (jnp.sum(jnp.abs(rho)) * jnp.max(jnp.abs(combined)))

    plain = S @ (X.T @ (mu * y))
    solved = solution.result == ProgramResult.optimal
    return {
        "conjugate": jnp.where(solved, misaligned(jnp.conj(plain)), jnp.nan),
        "plain": jnp.where(solved, misaligned(plain), jnp.nan),
        "solved": solved,
    }

r"""`reproduce results rates`: one law for four parametrisations, distance ~ $(\log t)^{-(1-\kappa)}$.

κ is the largest dual value off the support of the limit's program: an entry of $B\lambda$ for diagonal weights, one in
the Fourier domain for convolutions, the next singular value of $A^*\lambda$ for (K, Q), and 0 for W, whose norm has no
support.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxflow._core import RESULTS
from jaxflow.data import LinearData, random_tokens
from jaxflow.limits.rate import off_support
from jaxflow.limits.self_certificate import as_primal
from jaxflow.losses import Exponential
from jaxflow.margin import ProgramResult, attention_svm, solve
from jaxflow.models import CombinedAttention, DiagonalAttention, FactoredAttention, LinearConvolutionalNetwork
from jaxflow.papers.drawing import dress, of
from jaxflow.papers.experiment import Again, Dataset, Draw, Mask, Part, Statement, Table, median, register
from jaxflow.papers.independent import flow, given_and_start, margin_rows, product
from jaxflow.papers.sheen2024.accumulated import accumulate
from jaxflow.papers.sheen2024.diagonal import behind_face
from jaxflow.papers.sheen2024.rates import bend, observed_exponent
from jaxflow.papers.verdicts import Rate, common_rate, power_laws
from jaxflow.papers.yun2021.flows import separable
from jaxflow.plots import COLORS, new_figure
from jaxflow.risk import EmpiricalRisk
from jaxflow.study import subkey
from jaxflow.theory import predict

# Exponents are fitted over the last two decades.
LOG_TIMES = np.geomspace(1e2, 1e6, 17)
FIRST = int(np.argmin(np.abs(LOG_TIMES - 1e4)))
# Beside the power there is an error of order 1/log t, and several components off the support add up.
BIAS = 0.1
# Margins of active constraints differ by logarithms of their multipliers' ratios, some 40 units. One that is further
# behind at the first time of the fit waits: until it is active the rate is that of the program without it.
BEHIND = 100.0
# Of Clarabel, what is zero in its answers, and what is left of an exponent.
SOLVER, SUPPORT, AGREE = 1e-10, 1e-5, 2e-2
# Attention on the selected tokens at the end.
SETTLED = 1.0 - 1e-6
TRIALS = {"quick": 12, "paper": 100, "large": 1000}
# n, T, d of tokens, and n, d of points.
TOKENS, POINTS = (3, 3, 4), (3, 5)

# What each parametrisation is called, its program's norm, and the starts.
FAMILIES: dict[str, tuple[str, str, Callable[..., Any]]] = {
    "diagonal": ("diagonal weights", "l1", DiagonalAttention.init),
    "convolutional": ("convolutions, L = 2", "", LinearConvolutionalNetwork.init),
    "combined": ("W", "frobenius", CombinedAttention.init),
    "factored": ("(K, Q), m = d", "nuclear", FactoredAttention.init),
}
CALLED = [called for called, _, _ in FAMILIES.values()]


def start(key: Any, name: str) -> tuple[Any, Any]:
    """Data and the model from which the flow starts."""
    _, _, init = FAMILIES[name]
    if name == "convolutional":
        data = LinearData(*separable(subkey(key, "data"), *POINTS))
        return data, init(subkey(key, "start"), data, depth=2, alpha=0.5)
    data, head = random_tokens(subkey(key, "data"), *TOKENS)
    return data, init(subkey(key, "start"), data, head)


def follow(key: Any, name: str) -> Table:
    r"""One flow: `gaps` `(17,)`, $N(W)/(\mu\,\mathrm{opt})-1$ at `LOG_TIMES`; `predicted`: 1 − κ; `behind`: of the
    constraints with positive multipliers the largest margin over the least one, less one, at the first time of the fit;
    `ok`: the flow was followed; `solved`: one token is selected in every sequence, and their program is solved."""
    data, model = start(key, name)
    risk = EmpiricalRisk(data, Exponential())
    path = accumulate(risk, model, jnp.asarray(LOG_TIMES), integrals=False, rtol=1e-9)
    if path.result != RESULTS.successful:
        gone, no = np.full(len(LOG_TIMES), np.nan), np.asarray(False)
        return Table(gaps=gone, predicted=gone[0], behind=gone[0], ok=no, solved=no)
    last: Any = jax.tree.map(lambda x: x[-1], path.models)
    if name == "convolutional":
        program: Any = predict(risk, model).program
        # β = Sᵀρ with S unitary.
        primals = jax.vmap(lambda model: jnp.conj(program.transform) @ model.linear_coefficients())(path.models)
        settled = True
    else:
        attention = last.attention(data)
        settled = bool(jnp.all(jnp.max(attention, axis=-1) >= SETTLED))
        selection = attention == jnp.max(attention, axis=-1, keepdims=True)
        program = attention_svm(data, selection, FAMILIES[name][1])
        primals = jax.vmap(lambda model: as_primal(program, model.combined_weights()))(path.models)
    solution = solve(program)
    values = np.asarray(jax.vmap(program.norm)(primals))
    margins = np.asarray(jax.vmap(program.margins)(primals)).reshape(len(LOG_TIMES), -1)
    return Table(
        gaps=values / (np.min(margins, axis=-1) * float(solution.certificate.primal_value)) - 1.0,
        predicted=np.asarray(1.0 - off_support(program, solution)),
        behind=np.asarray(behind_face(program, solution.dual, primals[FIRST])),
        ok=np.asarray(True),
        solved=np.asarray(settled and bool(solution.result == ProgramResult.optimal)),
    )


RATES = Dataset("results", "rates", {"flows": Part(follow, {name: name for name in FAMILIES}, TRIALS, way="on host")})


def _inside(flows: Table) -> Mask:
    """Followed, with a program that is solved, none of whose constraints waits."""
    return flows.ok & flows.solved & (flows.behind * LOG_TIMES[FIRST] <= BEHIND)


def _exponents(flows: Table) -> np.ndarray:
    gaps = flows.gaps
    return observed_exponent(gaps.reshape(-1, gaps.shape[-1]), LOG_TIMES).reshape(gaps.shape[:-1])


def _law(cell: int) -> Statement[Table]:
    def rate(flows: Table, known: np.ndarray) -> Rate | None:
        gaps = np.maximum(flows.gaps[known, FIRST:], np.finfo(float).tiny)
        slopes, halves = power_laws(np.log(LOG_TIMES[FIRST:]), gaps)
        return common_rate(-slopes, flows.predicted[known], half=halves, bias=BIAS, law="the distance against log t")

    def again(flows: Table, draw: Draw, at: tuple[int, ...]) -> float:
        key, name = draw.instance("flows", at[0], cell)
        exponent, kappa = exponent_again(name, *start(key, name))
        return abs(exponent - (1.0 - kappa))

    return Statement(
        source=f"Rate law, {CALLED[cell]}",
        says="N(W)/(μ opt) − 1 falls like (log t)^−(1−κ) between log t = 1e4 and 1e6.",
        of=lambda n: n.flows.at(cell),
        inside=_inside,
        residual=lambda flows: np.abs(_exponents(flows) - flows.predicted),
        bound=(BIAS, "|observed exponent − (1 − κ)|"),
        limit=False,
        rate=rate,
        again=Again("LSODA of SciPy with CVXPY's program", again, AGREE),
    )


def exponent_again(name: str, data: Any, model: Any) -> tuple[float, float]:
    """The exponent over the same times, and κ: by LSODA, NumPy and CVXPY; NaN where one of them fails."""
    import cvxpy

    given, begin = given_and_start(data, model)
    ends = LOG_TIMES[FIRST:]
    found = flow(given, begin, *ends, kind=name, loss="exponential")
    if np.isnan(found).any():
        return np.nan, np.nan
    weights = np.stack([product(name, parts) for parts in found])
    if name == "convolutional":
        S, rows = np.fft.fft(np.eye(len(given[0][0])), norm="ortho"), given[1][:, None] * given[0]
    else:
        logits = np.einsum("ntd,de,ne->nt", given.tokens, weights[-1], given.queries)
        rows = margin_rows(given, np.argmax(logits, axis=1))
        S = np.eye(rows.shape[1])
    if name == "diagonal":
        rows, weights = (np.diagonal(x, axis1=1, axis2=2) for x in (rows, weights))
    size = {"combined": lambda W: cvxpy.norm(W, "fro"), "factored": cvxpy.normNuc}.get(
        name, lambda x: cvxpy.norm1(S @ x)
    )
    unknown: Any = cvxpy.Variable(rows.shape[1:])
    margins: list[Any] = [cvxpy.sum(cvxpy.multiply(row, unknown)) >= 1 for row in rows]
    problem = cvxpy.Problem(cvxpy.Minimize(size(unknown)), margins)
    problem.solve(solver="CLARABEL", tol_gap_abs=SOLVER, tol_gap_rel=SOLVER, tol_feas=SOLVER)
    if unknown.value is None:
        return np.nan, np.nan
    values = np.array([_norm(name, S, x) / np.min(rows.reshape(len(rows), -1) @ x.ravel()) for x in weights])
    gaps = values / _norm(name, S, unknown.value) - 1.0
    dual = np.einsum("k,k...->...", np.array([float(one.dual_value) for one in margins]), rows)
    slope = np.polyfit(np.log(ends), np.log(np.maximum(gaps, np.finfo(float).tiny)), 1)[0]
    return -float(slope), _kappa(name, S, unknown.value, dual)


def _norm(name: str, S: np.ndarray, weights: np.ndarray) -> float:
    if name in ("combined", "factored"):
        return float(np.linalg.norm(weights, "fro" if name == "combined" else "nuc"))
    return float(np.sum(np.abs(S @ weights)))


def _kappa(name: str, S: np.ndarray, primal: np.ndarray, dual: np.ndarray) -> float:
    if name == "combined":
        return 0.0
    sizes, values = (
        np.linalg.svd(x, compute_uv=False) if name == "factored" else np.abs(S @ x) for x in (primal, dual)
    )
    return float(np.max(values[sizes <= SUPPORT * np.max(sizes)], initial=0.0) / np.max(values))


LAWS = [_law(cell) for cell in range(len(FAMILIES))]


def _notes(numbers: Table) -> list[str]:
    flows, notes, inside = numbers.flows, [], _inside(numbers.flows)
    off = _exponents(flows) - flows.predicted
    for cell, called in enumerate(CALLED):
        kept, here = inside[cell], off[cell][inside[cell]]
        within, total = int(np.sum(np.abs(here) <= BIAS)), int(kept.sum())
        turning = int(np.sum(bend(flows.gaps[cell][kept], LOG_TIMES)[np.abs(here) > BIAS] > BIAS))
        waits = flows.ok[cell] & flows.solved[cell] & ~kept
        notes.append(
            f"{called}: within {BIAS:g} on {of(within, total)}, median difference {median(here):.3f}, least "
            f"{here.min(initial=np.inf):.2f}, largest "
            f"{here.max(initial=-np.inf):.2f}; of those off the exponents of the last two decades of {turning} differ "
            f"by more than {BIAS:g}. Excluded beforehand: {int(np.sum(~flows.ok[cell]))} not followed, "
            f"{int(np.sum(flows.ok[cell] & ~flows.solved[cell]))} without a settled selection whose program is solved, "
            f"{int(waits.sum())} with a constraint of the limit that is not active at log t = 1e4."
        )
    return notes


def draw(numbers: Table) -> Any:
    """Observed exponents against 1 − κ, and the distances: of each parametrisation one colour, line and mark."""
    figure, (left, right) = new_figure(2, width=9.0)
    inside, exponents = _inside(numbers.flows), _exponents(numbers.flows)
    looks = zip(FAMILIES, CALLED, ("o", "s", "^", "D"), ("-", "--", "-.", ":"), strict=True)
    for cell, (name, called, mark, line) in enumerate(looks):
        color, kept = COLORS.get(name, "#CC79A7"), inside[cell]
        # Marks at other times for each, so that they do not cover each other.
        marks: Any = {"marker": mark, "markevery": (cell, 8), "markersize": 3.5}
        for row in numbers.flows.gaps[cell][kept]:
            left.plot(LOG_TIMES, row, line, color=color, linewidth=0.7, **marks)
        look: Any = {"marker": mark, "color": color, "linestyle": "none", "markersize": 4.0}
        right.plot(numbers.flows.predicted[cell][kept], exponents[cell][kept], label=called, **look)
    dress(left, "(a) distances, marks as in (b)", r"$\log t$", r"$N(W)/(\mu\,\mathrm{opt})-1$", log="xy")
    right.plot([0, 1], [0, 1], "--", color=COLORS["program"], linewidth=0.9, label=r"exponent $=1-\kappa$")
    dress(right, "(b) exponents from 1e4 to 1e6", r"$1-\kappa$, from the certified dual", ylim=(-0.05, 1.5))
    right.set_ylabel(r"minus the observed exponent of $\log t$")
    right.legend(frameon=False, fontsize=8, loc="upper left")
    return figure


register(
    RATES,
    title="One rate law for diagonal weights, convolutions, W and (K, Q): (log t)^-(1-κ)",
    statements=LAWS,
    notes=_notes,
    draw=draw,
)

r"""`reproduce results multistart`: flows of (K, Q) with fewer columns than dimensions, from many starts.

Section 2.1 of Tarzanagh et al. (2023) reads its experiments as a bias towards the global minima of (KQ-SVM). Here the
tokens are kept and the start is drawn again and again.
"""

from typing import Any

import jax
import numpy as np
from scipy.optimize import minimize, nnls

from jaxflow._core import Outcome
from jaxflow.data import random_tokens
from jaxflow.limits import find_limit
from jaxflow.losses import Logistic
from jaxflow.models import FactoredAttention
from jaxflow.papers.drawing import dress, look_of_errors, of, share_and_error
from jaxflow.papers.experiment import Again, Dataset, Draw, Mask, Part, Statement, Table, register
from jaxflow.papers.independent import flow, given_and_start, margin_rows, tokens_of
from jaxflow.plots import COLORS, new_figure
from jaxflow.risk import EmpiricalRisk
from jaxflow.study import subkey

# Columns m of K and Q, sequences n, tokens T, dimension d; and how many starts for the same tokens.
Setting = tuple[int, int, int, int, int]

STARTS = {"quick": 16, "paper": 64, "large": 256}
SHAPES = ((1, 2, 3, 4), (1, 3, 3, 4), (1, 3, 3, 8), (2, 3, 3, 4), (4, 3, 3, 4))
FEWER = np.array([m < d for m, _, _, d in SHAPES])
TRIALS = {"quick": 20, "paper": 250, "large": 1000}
# Directions are 1e-6 from their limit or closer: of one with a larger residual nothing is said.
KKT = 1e-4
# Margins of a limit that are one, to the same accuracy.
ACTIVE = 1e-4
# Values of one KKT point agree to about 1e-8.
ABOVE = 1e-4
# From here on LSODA has the direction of the factors to 1e-2: near enough for SLSQP to stay at the same KKT point.
LOG_TIME = 300.0
# What two searches by SLSQP leave.
SOLVED = 1e-5


def start(key: Any, setting: Setting) -> tuple[Any, Any, list[Any]]:
    """Data, head and the models from which the flow starts, entries uniform on ±1/√d."""
    m, n, T, d, starts = setting
    data, head = random_tokens(subkey(key, "data"), n, T, d)
    keys = jax.random.split(subkey(key, "starts"), starts)
    return data, head, [FactoredAttention.init(one, data, head, m=m) for one in keys]


def one(key: Any, setting: Setting) -> Table:
    """One choice of tokens, from every start, `(starts,)`.

    - `outcome`: of the flow. `tokens`: the selection as a number to the base T. `value`: the nuclear norm of the flow's
      direction at margin one. `kkt`: the residual of the KKT conditions of (KQ-SVM) there, by NNLS.
    """
    (_, n, T, _, _), (data, head, models) = setting, start(key, setting)
    risk, given = EmpiricalRisk(data, Logistic()), tokens_of(data, head)
    found = []
    for model in models:
        limit = find_limit(risk, model, throw=False)
        chosen = np.argmax(np.asarray(limit.selection), axis=-1)
        value, residual = kkt_residual(margin_rows(given, chosen), np.asarray(limit.flow_direction))
        found.append((int(limit.outcome), int(chosen @ T ** np.arange(n)), value, residual))
    outcomes, tokens, value, residual = map(np.array, zip(*found, strict=True))
    return Table(flow=outcomes, tokens=tokens.astype(np.int32), value=value, kkt=residual)


def kkt_residual(rows: np.ndarray, W: np.ndarray) -> tuple[float, float]:
    r"""‖W‖_* at margin one, and how far W is from a KKT point of (KQ-SVM), by NNLS; NaN without a margin.

    With $W=U\Sigma V^\top$ and $G=\sum_k\lambda_kR_k$, λ ≥ 0 on the margins that are one, the conditions are $GV=U$ and
    $G^\top U=V$. The residual is relative to ‖(U, V)‖.
    """
    margins = np.einsum("kde,de->k", rows, W)
    if not (np.all(np.isfinite(W)) and margins.min() > 0.0):
        return np.nan, np.nan
    left, sizes, right = np.linalg.svd(W / margins.min())
    rank = int(np.sum(sizes > ACTIVE * sizes[0]))
    U, V = left[:, :rank], right[:rank].T
    active = rows[margins <= (1.0 + ACTIVE) * margins.min()]
    columns = [np.concatenate([(R @ V).ravel(), (R.T @ U).ravel()]) for R in active]
    aim = np.concatenate([U.ravel(), V.ravel()])
    return float(np.sum(sizes)), float(nnls(np.stack(columns, axis=1), aim)[1] / np.linalg.norm(aim))


MULTISTART = Dataset(
    "results",
    "multistart",
    {
        "starts": Part(
            one,
            lambda scale: {"m={}, n={}, T={}, d={}".format(*shape): (*shape, STARTS[scale]) for shape in SHAPES},
            TRIALS,
            way="on host",
        )
    },
)


def _at_a_point(numbers: Table) -> Mask:
    """Starts whose flow ends in the direction of a KKT point."""
    ends = numbers.starts
    return np.logical_and(ends.kkt <= KKT, ends.flow != int(Outcome.finite_stationary_point))


def _least(numbers: Table) -> np.ndarray:
    """The least value of the starts that select the same tokens; each start's own where it is alone."""
    ends = numbers.starts
    same = ends.tokens[..., :, None] == ends.tokens[..., None, :]
    value = np.where(_at_a_point(numbers), ends.value, np.inf)
    return np.min(np.where(same, value[..., None, :], np.inf), axis=-1)


def _excess(numbers: Table) -> np.ndarray:
    """How far each start's value is above the least one; NaN where its direction is no KKT point yet."""
    known = _at_a_point(numbers)
    least = np.where(known, _least(numbers), 1.0)
    return np.where(known, numbers.starts.value / least - 1.0, np.nan)


def _directions(numbers: Table, fewer: bool) -> Mask:
    where = np.broadcast_to(np.equal(FEWER, fewer)[:, None, None], numbers.starts.value.shape)
    return where & (numbers.starts.flow != int(Outcome.finite_stationary_point))


def _value_again(rows: np.ndarray, K: np.ndarray, Q: np.ndarray) -> float:
    """(KQ-SVM) from a direction, by SLSQP of SciPy, which may report a failed line search at a KKT point; NaN where the
    direction has no margin, or SLSQP ends elsewhere."""
    least = np.min(np.einsum("kde,dm,em->k", rows, K, Q))
    if not least > 0.0:
        return np.nan
    shape = (2, *K.shape)

    def margins(x: np.ndarray) -> np.ndarray:
        K, Q = x.reshape(shape)
        return np.einsum("kde,dm,em->k", rows, K, Q) - 1.0

    def slopes(x: np.ndarray) -> np.ndarray:
        K, Q = x.reshape(shape)
        by_K, by_Q = np.einsum("kde,em->kdm", rows, Q), np.einsum("kde,dm->kem", rows, K)
        return np.stack([by_K, by_Q], axis=1).reshape(len(rows), -1)

    found = minimize(
        lambda x: (0.5 * x @ x, x),
        (np.stack([K, Q]) / np.sqrt(least)).ravel(),
        jac=True,
        method="SLSQP",
        constraints={"type": "ineq", "fun": margins, "jac": slopes},
        options={"ftol": 1e-12, "maxiter": 500},
    )
    K, Q = found.x.reshape(shape)
    value, residual = kkt_residual(rows, K @ Q.T)
    return value if residual <= KKT else np.nan


def _excess_again(numbers: Table, draw: Draw, at: tuple[int, ...]) -> float:
    """Both starts followed by LSODA, and their ends by SLSQP."""
    cell, trial, own = at
    key, setting = draw.instance("starts", trial, cell)
    (_, n, T, _, _), (data, _, models) = setting, start(key, setting)
    ends = numbers.starts.at((cell, trial))
    same = np.equal(ends.tokens, ends.tokens[own]) & _at_a_point(numbers)[cell, trial]
    best = int(np.argmin(np.where(same, ends.value, np.inf)))
    chosen = ends.tokens[own] // T ** np.arange(n) % T

    def value(model: Any) -> float:
        given, begin = given_and_start(data, model)
        (end,) = flow(given, begin, LOG_TIME, kind="factored")
        return _value_again(margin_rows(given, chosen), *end)

    return value(models[own]) / value(models[best]) - 1.0


def _least_is_found(source: str, says: str, fewer: bool) -> Statement[Table]:
    return Statement(
        source=source,
        says=says,
        inside=lambda n: _directions(n, fewer),
        residual=_excess,
        bound=(ABOVE, "nuclear norm over the least one found, less one"),
        again=Again("LSODA and SLSQP of SciPy, from both starts,", _excess_again, SOLVED),
    )


NONE = "of flows that select the same tokens none ends in a direction above the least one found"
LEAST = _least_is_found(
    "Tarzanagh et al. (2023), §2.1, m < d",
    f"GD is indeed biased towards the global minima of (KQ-SVM) (read here as: {NONE}).",
    True,
)
LEAST_FULL = _least_is_found("The same, m = d", f"{NONE.capitalize()}.", False)
POINTS = Statement[Table](
    source="Tarzanagh et al. (2023), §2.1",
    says="It can potentially converge towards a Karush-Kuhn-Tucker (KKT) point of the max-margin SVM (read here as: "
    "every direction is one).",
    inside=lambda n: _directions(n, True) | _directions(n, False),
    residual=lambda n: n.starts.kkt,
    bound=(KKT, "KKT residual by NNLS"),
    # One that is still on its way.
    late=1.0,
)


def _counts(numbers: Table) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """For each shape: instances with two KKT points for the same tokens, all instances with a KKT point, starts above
    the least value, starts at KKT points."""
    known, excess = _directions(numbers, True) | _directions(numbers, False), _excess(numbers)
    above = known & (excess > ABOVE)
    at = known & ~np.isnan(excess)
    return above.any(-1).sum(-1), at.any(-1).sum(-1), above.sum((-2, -1)), at.sum((-2, -1))


def _notes(numbers: Table) -> list[str]:
    notes, excess = [], np.where(np.isnan(_excess(numbers)), 0.0, _excess(numbers))
    for cell, shape in enumerate(SHAPES):
        several, all_, above, at = (x[cell] for x in _counts(numbers))
        selections = np.median([len(np.unique(row)) for row in numbers.starts.tokens[cell]])
        text = (
            f"m, n, T, d = {', '.join(map(str, shape))}: instances with several values for the same tokens "
            f"{of(several, all_)}; {above} of {at} starts end above the least one, by at most "
            f"{100 * excess[cell].max():.2g}%; selections an instance: {selections:g} (median)."
        )
        if above:
            trial = int(np.argmax(excess[cell].max(axis=-1)))
            ends = numbers.starts.at((cell, trial))
            own = int(np.argmax(excess[cell, trial]))
            text += f" Trial {trial}: {ends.value[own]:.4f} and {_least(numbers)[cell, trial, own]:.4f}."
        notes.append(text)
    return [*notes, f"Replay: `{__name__}.one(*Draw(MULTISTART, scale, seed).instance('starts', trial, cell))`."]


def draw(numbers: Table) -> Any:
    """How often starts end above the least value, and by how much."""
    figure, (left, right) = new_figure(2, width=9.0)
    several, all_, above, at = _counts(numbers)
    (share, error), places = share_and_error(several, all_), np.arange(len(SHAPES))
    left.bar(places, share, color=COLORS["factored"], width=0.6)
    left.errorbar(places, share, yerr=error, **look_of_errors())
    dress(left, "(a) one choice of tokens, several KKT points", y="instances with several limits (%)")
    excess, known = _excess(numbers), _directions(numbers, True) | _directions(numbers, False)
    for cell, values in enumerate(np.where(known, excess, np.nan)):
        shown = values[values > ABOVE]
        spread = np.linspace(-0.25, 0.25, max(len(shown), 1))[: len(shown)]
        right.plot(cell + spread, 100.0 * np.sort(shown), "o", color=COLORS["factored"], markersize=3.0)
        right.annotate(
            f"{above[cell]}/{at[cell]}", (cell, 0.95), xycoords=("data", "axes fraction"), ha="center", fontsize=8
        )
    dress(right, "(b) starts above the least (at the top: of all)", y="nuclear norm above the least (%)")
    right.set_xlim(-0.6, len(SHAPES) - 0.4)
    for axis in (left, right):
        axis.set_xticks(places, [f"{m}, {n}, {d}" for m, n, _, d in SHAPES])
        dress(axis, x="$m$, $n$, $d$ ($T=3$)", ylim=(0.0, None))
    # Room for the counts.
    right.set_ylim(top=1.15 * right.get_ylim()[1])
    return figure


register(
    MULTISTART,
    title="Flows of (K, Q) from many starts with the same tokens: several KKT points of (KQ-SVM) where m < d",
    statements=[LEAST, LEAST_FULL, POINTS],
    notes=_notes,
    draw=draw,
)

r"""`reproduce results hypotheses`: which assumptions make which flow select the optimal tokens.

Theorems 4 and 7 of Tarzanagh et al. (2023) contradict each other on two sequences of two tokens (`explicit_case`): B.2
holds, and where a wrong token is selected in the second one its $\mathcal T_2$ is empty, so that the choice is locally
optimal by Definition 2. Here each assumption is tested for W, (K, Q) and diagonal weights. The conjecture of §5.2 is
tested on instances that a search has moved towards the boundary of Assumption D.
"""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import nnls

from jaxflow._core import Outcome
from jaxflow.data import TokenData, optimal_tokens, random_tokens
from jaxflow.limits import find_limit
from jaxflow.losses import Exponential
from jaxflow.margin import ProgramResult, attention_svm, solve
from jaxflow.models import CombinedAttention, DiagonalAttention, FactoredAttention, token_scores
from jaxflow.papers.drawing import dress, look_of_errors, of, share_and_error
from jaxflow.papers.experiment import Again, Dataset, Draw, Mask, Part, Statement, Table, register
from jaxflow.papers.independent import Tokens, attention, flow, given_and_start, margin_rows, product, tokens_of
from jaxflow.papers.sheen2024.instances import equal_score_tokens
from jaxflow.papers.sheen2024.separability import assumption_3, score_gap_needed
from jaxflow.papers.tarzanagh2023.verify.instances import equal_scores
from jaxflow.plots import COLORS, new_figure
from jaxflow.risk import EmpiricalRisk
from jaxflow.study import subkey

MODELS = {"combined": CombinedAttention, "factored": FactoredAttention, "diagonal": DiagonalAttention}
NAMES = {"combined": "W", "factored": "(K, Q)", "diagonal": "diagonal"}
NORMS = {"combined": "frobenius", "factored": "nuclear", "diagonal": "l1"}
HATCHES = {"combined": "", "factored": "////", "diagonal": "...."}
# What is assumed, and whether the start is small or of size three.
ROWS = (
    ("B.1", "small"),
    ("D", "small"),
    ("B.1, D", "small"),
    ("B.1, D near its boundary", "small"),
    ("B.1, D", "large"),
    ("B.2", "small"),
    ("B.2", "large"),
    ("B.2, Assumption 3", "small"),
    ("B.2, gap of Assumption 3", "large"),
)
SHAPE = (3, 3, 6)
SIZES = {"small": 1e-2, "large": 3.0}
TRIALS = {"quick": 8, "paper": 200, "large": 2000}
# Draws until an instance satisfies what is assumed; steps of the search, and how far one moves tokens and queries.
DRAWS, SEARCH, MOVE = 400, 200, 0.1
# A gap above what Assumption 3 needs at W = 0: a small start is within it.
ABOVE = 1.1
# Multipliers below this share of the largest are zero, and the assumption is not decided.
POSITIVE = 1e-6
# Attention on all optimal tokens where they are selected, and of one that is not.
SELECTED, LOST = 1e-2, 0.5
# From here on attention that was lost has stayed lost; LSODA goes to the second.
LATE, LOG_TIME = 1e4, 300.0

# What is assumed, the size of the start, the parametrisation.
Setting = tuple[str, str, str]


def multipliers(given: Tokens, choice: np.ndarray) -> np.ndarray | None:
    """Of (Att-SVM) of a choice, over the largest `(n, T)`, zero at the choice, by SciPy's NNLS (as `least_norm`); None
    where it has no solution."""
    rows = margin_rows(given, choice).reshape(-1, given.tokens.shape[-1] * given.queries.shape[-1])
    E, aim = np.vstack([rows.T, np.ones(len(rows))]), np.append(np.zeros(rows.shape[1]), 1.0)
    dual, off = nnls(E, aim, maxiter=100 * len(rows))
    if off**2 <= np.finfo(float).eps:
        return None
    found = np.zeros(given.visible.shape)
    found[np.arange(given.tokens.shape[1]) != choice[:, None]] = dual / np.max(dual)
    return found


def slacks(given: Tokens) -> tuple[float, float]:
    """Of Assumptions B.1 and D, each zero where it fails.

    B.1: the least multiplier of the optimal tokens' program. D: over all other choices with a program, the least of the
    largest multipliers of optimal tokens; one of them is a support token where that is positive.
    """
    n, T = given.visible.shape
    best, sequences = np.argmax(given.scores, axis=1), np.arange(n)
    own = multipliers(given, best)
    if own is None:
        return 0.0, 0.0
    least = 1.0
    for choice in map(np.array, itertools.product(range(T), repeat=n)):
        other = choice != best
        found = multipliers(given, choice) if other.any() else None
        if found is not None:
            least = min(least, float(np.max(found[sequences, best][other])))
    return float(np.min(own[np.arange(T) != best[:, None]])), least


def draw_data(key: Any, assumed: str) -> tuple[Any, Any]:
    """Data and head that satisfy what is assumed; those of the last draw where none does."""
    if "B.2" in assumed:
        gap = ABOVE * score_gap_needed(*SHAPE[:2])
        return equal_scores(key, *SHAPE) if assumed == "B.2" else equal_score_tokens(key, *SHAPE, gap)
    data, head = random_tokens(key, *SHAPE)
    for number in range(DRAWS):
        data, head = random_tokens(subkey(key, f"draw {number}"), *SHAPE)
        if holds(assumed, *slacks(tokens_of(data, head))):
            break
    return (search(key, data, head), head) if "boundary" in assumed else (data, head)


def holds(assumed: str, B1: Any, D: Any) -> Any:
    """Whether exactly these of B.1 and D hold: an instance of one of them alone is none of both."""
    return ((B1 > POSITIVE) == ("B.1" in assumed)) & ((D > POSITIVE) == ("D" in assumed))


def search(key: Any, data: Any, head: Any) -> Any:
    """Random moves of tokens and queries that keep B.1 and D and bring D nearer to its boundary."""
    luck = np.random.default_rng(np.asarray(jax.random.key_data(subkey(key, "search"))))
    given = tokens_of(data, head)
    _, nearest = slacks(given)
    for _ in range(SEARCH):
        tokens, queries = (x + MOVE * luck.normal(size=x.shape) for x in (given.tokens, given.queries))
        moved = given._replace(tokens=tokens, queries=queries)
        B1, D = slacks(moved)
        if B1 > POSITIVE and POSITIVE < D < nearest:
            given, nearest = moved, D
    return TokenData(jnp.asarray(given.tokens), jnp.asarray(given.queries), data.labels)


def start(key: Any, setting: Setting) -> tuple[Any, Any]:
    """Data, and the model from which the flow starts: entries normal of a size, that of W for factors too."""
    assumed, how, kind = setting
    data, head = draw_data(subkey(key, "data"), assumed)
    shape, size = (SHAPE[2],) if kind == "diagonal" else (SHAPE[2],) * 2, SIZES[how]
    one, two = jax.random.normal(subkey(key, "start"), (2, *shape))
    if kind == "combined":
        return data, CombinedAttention(size * one, head)
    return data, MODELS[kind](size**0.5 * one, size**0.5 * two, head)


def follow(key: Any, setting: Setting) -> Table:
    """One flow.

    `B1`, `D`: their slacks; `small`: that of Assumption 3 at the start; `feasible`: the optimal tokens' program in the
    norm of this parametrisation has a solution; `outcome`, `log_time`: of the flow; `attention`: the least one on an
    optimal token at its end; `empty`: in some sequence whose optimal token has lost its attention no token is a support
    token of the choice that the flow ends with.
    """
    data, model = start(key, setting)
    risk, given = EmpiricalRisk(data, Exponential()), tokens_of(data, model.head.v)
    best = optimal_tokens(token_scores(data, model.head), data.visible)
    limit = find_limit(risk, model, throw=False)
    end: Any = limit.trajectory.final.model
    weights = np.asarray(end.attention(data))
    least = np.min(np.where(np.asarray(best), weights, 1.0), axis=-1)
    found = multipliers(given, np.argmax(weights, axis=-1))
    bare = np.zeros(SHAPE[0], bool) if found is None else ~np.any(found > POSITIVE, axis=-1)
    B1, D = slacks(given)
    return Table(
        B1=np.asarray(B1),
        D=np.asarray(D),
        small=np.asarray(assumption_3(risk, model).slack),
        feasible=np.asarray(solve(attention_svm(data, best, NORMS[setting[2]])).result == ProgramResult.optimal),
        flow=np.asarray(int(limit.outcome)),
        log_time=np.asarray(limit.trajectory.final.log_time),
        attention=np.min(least),
        empty=np.any(bare & (least < LOST)),
    )


CELLS = {f"{assumed}, {how} start, {NAMES[m]}": (assumed, how, m) for m in MODELS for assumed, how in ROWS}
# `flows` `(27, b)`: the rows of one parametrisation after those of another.
HYPOTHESES = Dataset("results", "hypotheses", {"flows": Part(follow, CELLS, TRIALS, way="on host")})


def _inside(numbers: Table, cell: int) -> Mask:
    """What is assumed holds, and the optimal tokens can be selected at all."""
    flows, (assumed, _, _) = numbers.flows.at(cell), list(CELLS.values())[cell]
    if "B.2" in assumed:
        return flows.feasible & ((flows.small >= 0) | ("Assumption 3" not in assumed or "gap" in assumed))
    return flows.feasible & holds(assumed, flows.B1, flows.D)


def _missed(numbers: Table, cell: int) -> np.ndarray:
    """1 less the least attention on an optimal token; NaN where the flow has not settled."""
    flows = numbers.flows.at(cell)
    rests = flows.flow == int(Outcome.finite_stationary_point)
    return np.where(rests | (flows.log_time >= LATE), 1.0 - flows.attention, np.nan)


def _selects(cell: int) -> Statement[Table]:
    assumed, how, kind = list(CELLS.values())[cell]

    def again(numbers: Table, draw: Draw, at: tuple[int, ...]) -> float:
        key, _ = draw.instance("flows", at[0], cell)
        given, begin = given_and_start(*start(key, (assumed, how, kind)))
        (end,) = flow(given, begin, LOG_TIME, kind=kind, loss="exponential")
        weights = attention(given, product(kind, end))
        return 1.0 - float(np.min(weights[np.arange(len(weights)), np.argmax(given.scores, axis=1)]))

    return Statement(
        source=f"{assumed}, {how} start",
        says=f"{NAMES[kind]}: the flow selects the optimal tokens.",
        inside=lambda n: _inside(n, cell),
        residual=lambda n: _missed(n, cell),
        bound=(SELECTED, "1 − least attention on an optimal token"),
        late=LOST,
        again=Again("LSODA of SciPy", again, SELECTED),
    )


def _counts(numbers: Table) -> tuple[np.ndarray, np.ndarray]:
    """How many flows of each cell miss an optimal token, of how many that are inside and settled: `(3, rows)`."""
    pairs = [(_inside(numbers, cell), _missed(numbers, cell)) for cell in range(len(CELLS))]
    wrong = [[np.sum(inside & (off > LOST)), np.sum(inside & ~np.isnan(off))] for inside, off in pairs]
    counts = np.array(wrong).reshape(len(MODELS), len(ROWS), 2)
    return counts[..., 0], counts[..., 1]


def _notes(numbers: Table) -> list[str]:
    missed, total = _counts(numbers)
    notes = []
    for row, (assumed, how) in enumerate(ROWS):
        told = [f"{name} {of(missed[at, row], total[at, row])}" for at, name in enumerate(NAMES.values())]
        notes.append(f"{assumed}, {how} start, flows that miss an optimal token: {', '.join(told)}.")
    flows, cells = numbers.flows, list(CELLS.values())
    wrong = np.stack([_inside(numbers, cell) & (_missed(numbers, cell) > LOST) for cell in range(len(cells))])
    kind = np.array([assumed.startswith("B.2") and kind == "combined" for assumed, _, kind in cells])
    lost = wrong[kind]
    near = np.array(["boundary" in assumed for assumed, _, _ in cells])
    least = flows.D[near]
    return [
        *notes,
        f"W under B.2: of {int(lost.sum())} flows that miss one {int(np.sum(lost & flows.empty[kind]))} end with a "
        "choice that leaves T_i empty in a sequence that has lost its optimal token.",
        f"Searched towards the boundary of D: its slack is {np.median(least):.1e} (median).",
    ]


def draw(numbers: Table) -> Any:
    """The share of flows that select another token than an optimal one, for each assumption and parametrisation, whose
    bars are told apart by hatches too."""
    figure, (axis,) = new_figure(1, width=9.0, height=4.2)
    missed, total = _counts(numbers)
    for at, name in enumerate(MODELS):
        places, (share, error) = np.arange(len(ROWS)) + 0.25 * (at - 1), share_and_error(missed[at], total[at])
        look = {"color": COLORS[name], "hatch": HATCHES[name], "edgecolor": "white", "linewidth": 0.0}
        axis.barh(places, share, height=0.22, label=NAMES[name], **look)
        axis.errorbar(share, places, xerr=error, **look_of_errors())
        for place, count in zip(places, total[at], strict=True):
            axis.annotate(f"of {count}", (1.01, place), xycoords=("axes fraction", "data"), va="center", fontsize=6)
    axis.set_yticks(np.arange(len(ROWS)), [f"{assumed}; {how} start" for assumed, how in ROWS], fontsize=8)
    axis.invert_yaxis()
    dress(axis, x="flows that miss an optimal token (%, Wilson 95%)", xlim=(0.0, 100.0))
    # Bars reach everywhere inside.
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    return figure


register(
    HYPOTHESES,
    title="Which assumptions make which flow select the optimal tokens",
    statements=[_selects(cell) for cell in range(len(CELLS))],
    notes=_notes,
    draw=draw,
)

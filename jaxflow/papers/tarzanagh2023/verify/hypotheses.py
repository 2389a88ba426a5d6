"""Assumptions A, B.2, C, D and E: what satisfies them, and how often random data do."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxflow._core import SelectionStatus
from jaxflow.data import TokenData, optimal_tokens, random_tokens
from jaxflow.limits import low_and_high
from jaxflow.losses import Correlation, Exponential, Logistic
from jaxflow.margin import ProgramResult, attention_svm, is_locally_optimal, solve
from jaxflow.models import CombinedAttention, ConcaveHead, LinearHead, MLPHead, token_scores
from jaxflow.papers.checks import AbstractCheck, Row, register_check
from jaxflow.papers.registry import Data
from jaxflow.papers.tarzanagh2023.verify.instances import equal_scores
from jaxflow.papers.tarzanagh2023.verify.path_instances import choices_of_tokens, masks
from jaxflow.report import bounded_evidence, count_evidence
from jaxflow.risk import EmpiricalRisk
from jaxflow.study import wilson

TRIALS = {"quick": 64, "paper": 256, "large": 8192}
# Loss, with M0 and M1 of Assumption A on [-INTERVAL, INTERVAL].
INTERVAL = 5.0
LOSSES: dict[str, tuple[Any, float, float]] = {
    "logistic": (Logistic(), 0.25, 1.0),
    "exponential": (Exponential(), float(np.exp(INTERVAL)), float(np.exp(INTERVAL))),
    "correlation": (Correlation(), 0.0, 1.0),
}
# n = T = 3 for the assumptions on data: 27 choices of tokens; d from the bound of Theorem 1 on.
N, T = 3, 3
DIMENSIONS = (3, 6, 12, 24)
HEADS = ("linear", "convex", "mlp", "concave")
# Sums of a few numbers of order one.
ROUNDING = 1e-12


@register_check("tarzanagh2023", "hypotheses", statements="Assumptions A, B.2, C, D, E")
class Hypotheses(AbstractCheck):
    """Every instance is drawn once and counted, whether it satisfies an assumption or not."""

    def compute(self, scale: str, key: Any, say: Callable[[str], None]) -> Data:
        trials = TRIALS[scale]
        say(f"Assumptions A to E: {trials} draws each")
        found = {f"A_{name}": np.asarray(_losses(name, jax.random.fold_in(key, 0), trials)) for name in LOSSES}
        keys = jax.random.split(jax.random.fold_in(key, 1), trials)
        found |= {f"B2_{name}": np.asarray(x) for name, x in _equal(keys).items()}
        for number, d in enumerate(DIMENSIONS):
            keys = jax.random.split(jax.random.fold_in(key, 100 + number), trials)
            for name, x in _optimal_support(keys, d).items():
                found[f"D{d}_{name}"] = np.asarray(x)
        keys = jax.random.split(jax.random.fold_in(key, 2), trials)
        return found | {f"E_{name}": np.asarray(_top_score(name, keys)) for name in HEADS}

    def rows(self, data: Data) -> list[Row]:
        return [_row_a(data), _row_b2(data), _row_c(data), _row_d(data), _row_e(data)]


def _losses(name: str, key: Any, count: int) -> Array:
    """For pairs u, w of the interval: |ℓ'(u) − ℓ'(w)|/|u − w| − M0, |ℓ'(u)| − M1 and ℓ'(u); all at most 0, the last
    below it."""
    loss, M0, M1 = LOSSES[name]
    slope = jax.vmap(jax.grad(lambda f: loss.value(f, jnp.ones(()))))
    u, w = jax.random.uniform(key, (2, 100 * count), minval=-INTERVAL, maxval=INTERVAL)
    bend = jnp.abs(slope(u) - slope(w)) / jnp.abs(u - w)
    return jnp.stack([bend - M0, jnp.abs(slope(u)) - M1, slope(u)])


@jax.jit
def _equal(keys: Array) -> dict[str, Array]:
    def one(key: Array) -> dict[str, Array]:
        data, head = equal_scores(key, 5, 5, 4)
        scores = token_scores(data, head)
        best = optimal_tokens(scores, data.visible)
        others = jnp.where(best, jnp.nan, scores)
        spread = jnp.nanmax(others, axis=1) - jnp.nanmin(others, axis=1)
        return {
            "spread": jnp.max(spread),
            "gap": jnp.min(jnp.max(scores, axis=1) - jnp.nanmax(others, axis=1)),
            "result": solve(attention_svm(data, best, "frobenius")).result.value,
        }

    return jax.vmap(one)(keys)


@jax.jit
def _optimal_support(keys: Array, d: Any) -> dict[str, Array]:
    """Assumptions C and D on unit-sphere data; one program for all d, coordinates beyond it are zero."""
    wide = DIMENSIONS[-1]

    def unit(key: Array, *shape: int) -> Array:
        x = jax.random.normal(key, (*shape, wide)) * (jnp.arange(wide) < d).reshape((1,) * len(shape) + (wide,))
        return x / jnp.linalg.norm(x, axis=-1, keepdims=True)

    def one(key: Array) -> dict[str, Array]:
        key_tokens, key_queries, key_head, key_labels = jax.random.split(key, 4)
        labels = jnp.where(jax.random.bernoulli(key_labels, 0.5, (N,)), 1.0, -1.0)
        data, head = TokenData(unit(key_tokens, N, T), unit(key_queries, N), labels), unit(key_head)
        best = optimal_tokens(token_scores(data, head), data.visible)
        start = CombinedAttention(jnp.zeros((wide, wide)), head)
        gradient: Any = EmpiricalRisk(data, Logistic()).scaled_gradient(start).gradient
        logits = CombinedAttention(gradient.W, head).logits(data)
        own = jnp.sum(jnp.where(best, logits, 0.0), axis=-1, keepdims=True)

        def choice(selection: Array) -> dict[str, Array]:
            solution = solve(attention_svm(data, selection, "frobenius"))
            local = is_locally_optimal(data, head, selection, solution)
            near = ~local.support & (local.excess <= 1e-6)
            same = jnp.all(selection == best)
            feasible = solution.result == ProgramResult.optimal
            return {
                # Assumption D asks it of every other feasible choice.
                "meets": same | ~feasible | jnp.any(local.support & best),
                "unsure": ~same & feasible & jnp.any(near & best) & ~jnp.any(local.support & best),
                "other": ~same & jnp.asarray(local.status == SelectionStatus.local),
                "ambiguous": jnp.asarray(local.status == SelectionStatus.ambiguous),
            }

        every = jax.vmap(choice)(masks(jnp.asarray(choices_of_tokens(N, T)), data))
        return {
            "separating": jnp.all(best | (logits > own)),
            "D": jnp.all(every["meets"]),
            "unsure": jnp.any(every["unsure"]),
            "others": jnp.sum(every["other"]),
            "ambiguous": jnp.any(every["ambiguous"]),
        }

    return jax.vmap(one)(keys)


@partial(jax.jit, static_argnums=0)
def _top_score(name: str, keys: Array) -> Array:
    r"""$Yh(x(s))-\gamma_\alpha+c_\alpha(1-s_\alpha)$ with $c_\alpha$ of (87), the largest of many s; NaN where no token
    scores below α anywhere."""

    def one(key: Array) -> Array:
        key_data, key_head, key_choice, key_s = jax.random.split(key, 4)
        data, v = random_tokens(key_data, 3, 5, 4)
        heads = {
            "linear": lambda: LinearHead(v),
            "convex": lambda: ConcaveHead(v, -0.5),
            "mlp": lambda: MLPHead(jax.random.normal(key_head, (6, 4))),
            "concave": lambda: ConcaveHead(v, 0.5),
        }
        head: Any = heads[name]()
        # A convex h preserves the top score of sequences with label 1; for linear ones the label is any.
        data = data if name == "linear" else TokenData(data.tokens, data.queries, jnp.ones(3))
        scores = token_scores(data, head)
        selection = jax.nn.one_hot(jax.random.randint(key_choice, (3,), 0, 5), 5, dtype=bool)
        low, _ = low_and_high(scores, data.visible, selection)
        own = jnp.sum(jnp.where(selection, scores, 0.0), axis=-1)
        c = jnp.min(own - jnp.max(jnp.where(low, scores, -jnp.inf), axis=-1))

        def at(key: Array) -> Array:
            spread = 5.0 * jax.random.normal(key, (3, 5))
            s = jax.nn.softmax(jnp.where(low | selection, spread, -jnp.inf), axis=-1)
            value = data.labels * jax.vmap(head)(jnp.einsum("nt,ntd->nd", s, data.tokens))
            rest = jnp.sum(jnp.where(selection, 0.0, s), axis=-1)
            return jnp.max(value - own + jnp.where(jnp.isfinite(c), c, 0.0) * rest)

        worst = jnp.max(jax.vmap(at)(jax.random.split(key_s, 200)))
        return jnp.where(jnp.isfinite(c), worst, jnp.nan)

    return jax.vmap(one)(keys)


def _row_a(data: Data) -> Row:
    parts = np.stack([data[f"A_{name}"] for name in LOSSES])
    # Differences of slopes over short distances carry roundings over that distance.
    good = (parts[:, 0] <= 1e-6) & (parts[:, 1] <= ROUNDING) & (parts[:, 2] < 0)
    bad = int(np.sum(~good))
    return Row(
        "Assumption A",
        f"logistic, exponential and correlation loss are strictly decreasing, with M0-Lipschitz derivatives of size at "
        f"most M1 on [−{INTERVAL:g}, {INTERVAL:g}] (M0, M1 = 1/4, 1; e^{INTERVAL:g}, e^{INTERVAL:g}; 0, 1)",
        f"{bad} of {parts[:, 0].size} pairs of points contradict it; ℓ' is at most {parts[:, 2].max():.1e}",
        int(parts[:, 0].size),
        0,
        float(parts[:, :2].max()),
        "|Δℓ'|/|Δu| − M0 or |ℓ'| − M1; at most 0",
        count_evidence(good),
        {"bad": bad},
    )


def _row_b2(data: Data) -> Row:
    spread, gap = data["B2_spread"], data["B2_gap"]
    bad = int(((spread > 0) | (gap <= 0)).sum())
    feasible = int((data["B2_result"] == ProgramResult.optimal.value).sum())
    return Row(
        "Assumption B.2",
        "the construction of Theorem 5's proof (non-optimal tokens moved along v to one score) satisfies it, "
        "n = T = 5, d = 4",
        f"{bad} of {spread.size} draws do not, to the last bit; the least score gap is {gap.min():.1e}; (Att-SVM) of "
        f"the optimal tokens is feasible in {feasible}",
        int(spread.size),
        0,
        float(spread.max()),
        "spread of non-optimal scores",
        count_evidence((spread <= 0) & (gap > 0)),
        {"bad": bad, "feasible": feasible},
    )


def _share(hits: np.ndarray) -> str:
    low, high = wilson(int(hits.sum()), hits.size)
    return f"{100 * hits.mean():.0f}% [{100 * float(low):.0f}, {100 * float(high):.0f}]"


def _row_c(data: Data) -> Row:
    hits = {d: data[f"D{d}_separating"] for d in DIMENSIONS}
    shares = ", ".join(f"{_share(x)} at d = {d}" for d, x in hits.items())
    total = sum(int(x.sum()) for x in hits.values())
    return Row(
        "Assumption C",
        f"it is not empty: at each d some random data satisfy it (the first step of descent separates), n = T = {N}",
        f"in {shares} of {hits[DIMENSIONS[0]].size} draws each, {total} in all",
        len(DIMENSIONS),
        0,
        float("inf"),
        "",
        # Random draws among which there is none do not prove that there is none.
        count_evidence(np.array([x.any() for x in hits.values()]), decided=np.array([x.any() for x in hits.values()])),
        {f"holds_{d}": int(x.sum()) for d, x in hits.items()},
    )


def _row_d(data: Data) -> Row:
    holds = {d: data[f"D{d}_D"] & ~data[f"D{d}_unsure"] for d in DIMENSIONS}
    shares = ", ".join(f"{_share(x)} at d = {d}" for d, x in holds.items())
    alone = ", ".join(f"{100 * (data[f'D{d}_others'] == 0).mean():.0f}%" for d in DIMENSIONS)
    bad = sum(int((x & (data[f"D{d}_others"] > 0)).sum()) for d, x in holds.items())
    total = sum(int(x.sum()) for x in holds.values())
    unsure = sum(int(data[f"D{d}_unsure"].sum()) for d in DIMENSIONS)
    met = np.concatenate([data[f"D{d}_D"] for d in DIMENSIONS])
    # A choice at the edge of local optimality, or a margin at the edge of support, decides nothing.
    clear = np.concatenate(
        [~data[f"D{d}_unsure"] & ((data[f"D{d}_others"] > 0) | ~data[f"D{d}_ambiguous"]) for d in DIMENSIONS]
    )
    alone_there = np.concatenate([data[f"D{d}_others"] == 0 for d in DIMENSIONS])
    return Row(
        "Assumption D",
        f"where it holds, W^mm is the only locally-optimal direction; all {T**N} choices of tokens, n = T = {N}",
        f"{bad} of {total} have another one; it holds in {shares} of {holds[DIMENSIONS[0]].size} draws each, no other "
        f"choice is locally optimal in {alone}; {unsure} hang on a margin within 1e-6 of one",
        int(met.sum()),
        int(np.sum(~met)),
        float(bad),
        "other locally-optimal choices",
        count_evidence(alone_there[met], decided=clear[met]),
        {"bad": bad, "holds": total} | {f"holds_{d}": int(x.sum()) for d, x in holds.items()},
    )


def _row_e(data: Data) -> Row:
    counts = {name: (data[f"E_{name}"] > ROUNDING).sum() for name in HEADS}
    asked = {name: np.isfinite(data[f"E_{name}"]).sum() for name in HEADS}
    inside = ("linear", "convex", "mlp")
    bad, total = (sum(int(x[name]) for name in inside) for x in (counts, asked))
    worst = max(float(np.nanmax(data[f"E_{name}"], initial=-np.inf)) for name in inside)
    return Row(
        "Assumption E",
        "linear heads, and convex ones with labels 1 (v·x + ‖x‖²/2 and 1ᵀReLU(Vx)), satisfy it with c_α of (87), at "
        "random α and 200 convex combinations of tokens each",
        f"{bad} of {total} do not; of concave heads v·x − ‖x‖²/2 {int(counts['concave'])} of {int(asked['concave'])} "
        f"do not; in {sum(int((~np.isfinite(data[f'E_{name}'])).sum()) for name in HEADS)} draws no token scores lower",
        total,
        sum(data[f"E_{name}"].size for name in HEADS) - total,
        worst,
        "Y h(x(s)) − γ_α + c_α(1 − s_α); at most 0",
        bounded_evidence(np.concatenate([x[np.isfinite(x)] for x in (data[f"E_{n}"] for n in inside)]), ROUNDING),
        {"bad": bad, "concave": int(counts["concave"])},
    )

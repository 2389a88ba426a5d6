"""Assumptions B.1 (exactly, and by the paper's proxy) and C: how often they hold; Theorems 3 and 6 where they do."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxflow.data import TokenData, optimal_tokens, random_tokens
from jaxflow.losses import Logistic
from jaxflow.margin import ProgramResult, attention_svm, is_locally_optimal, solve
from jaxflow.models import CombinedAttention, token_scores
from jaxflow.papers.checks import AbstractCheck, Row, register_check
from jaxflow.papers.registry import Data
from jaxflow.papers.tarzanagh2023.verify.follow import CERTIFIED, SHAPE, follow_each
from jaxflow.papers.tarzanagh2023.verify.instances import Instance, instance, padded
from jaxflow.report import Evidence, count_evidence
from jaxflow.risk import EmpiricalRisk
from jaxflow.study import wilson

# Flows of two cells fill one batch of 32 at the quick size.
TRIALS = {"quick": 16, "paper": 256, "large": 2048}
# Assumption B.1, n = T = 5 as in figure 5.
N, T = 5, 5
DIMENSIONS = (5, 10, 20, 60, 100)
PROXY = 1.1
CERTIFICATES = "the duality gaps of the programs, on whose margins the rest is arithmetic"
# Assumption C and Theorem 6: (n, T, d).
SEPARATING = ((2, 3, 6), (3, 4, 6))
ALIGNED = 1e-8


@register_check("tarzanagh2023", "assumptions", statements="Assumptions B.1 and C, Theorems 3 and 6")
class Assumptions(AbstractCheck):
    """Random unit-sphere instances; those outside an assumption are counted, none is drawn again."""

    def compute(self, scale: str, key: Any, say: Callable[[str], None]) -> Data:
        say(f"Assumption B.1: {TRIALS[scale]} instances for each d of {', '.join(map(str, DIMENSIONS))}")
        tables: dict[str, list[np.ndarray]] = {}
        for d in DIMENSIONS:
            keys = jax.random.split(jax.random.fold_in(key, d), TRIALS[scale])
            for name, value in _support(keys, d).items():
                tables.setdefault(name, []).append(np.asarray(value))
        data = {name: np.stack(values) for name, values in tables.items()}
        parts = {}
        for number, sizes in enumerate(SEPARATING):
            say(f"Theorem 6: {TRIALS[scale]} instances with n, T, d = {sizes}")
            keys = jax.random.split(jax.random.fold_in(key, 1000 + number), TRIALS[scale])
            parts[f"C{number}"], holds = _separating(*sizes, keys)
            data[f"C{number}_holds"] = np.asarray(holds)
        return data | follow_each(parts)

    def rows(self, data: Data) -> list[Row]:
        return [
            _row_b1(data),
            _row_bound(data),
            _row_3(data),
            *(_row_6(data, number) for number in range(len(SEPARATING))),
        ]


@jax.jit
def _support(keys: Array, d: Any) -> dict[str, Array]:
    """One program for all d: coordinates beyond d are zero."""
    wide = DIMENSIONS[-1]

    def unit(key: Array, *shape: int) -> Array:
        x = jax.random.normal(key, (*shape, wide)) * (jnp.arange(wide) < d).reshape((1,) * len(shape) + (wide,))
        return x / jnp.linalg.norm(x, axis=-1, keepdims=True)

    def one(key: Array) -> dict[str, Array]:
        key_tokens, key_queries, key_head, key_W, key_size = jax.random.split(key, 5)
        data, head = TokenData(unit(key_tokens, N, T), unit(key_queries, N), jnp.ones(N)), unit(key_head)
        best = optimal_tokens(token_scores(data, head), data.visible)
        solution = solve(attention_svm(data, best, "frobenius"))
        local = is_locally_optimal(data, head, best, solution)
        margins = jnp.where(best, 0.0, 1.0 + local.excess)
        size = 10.0 ** jax.random.uniform(key_size, (), minval=-1.0, maxval=1.0)
        W = size * jax.random.normal(key_W, (wide, wide))
        model = CombinedAttention(W, head)
        gradient: Any = EmpiricalRisk(data, Logistic()).scaled_gradient(model).gradient
        sizes = jnp.linalg.norm(gradient.W) * jnp.linalg.norm(solution.primal)
        return {
            "result": solution.result.value,
            "exact": jnp.all(local.support | best),
            "average": jnp.sum(margins) / (N * (T - 1)),
            "largest": jnp.max(margins),
            "push": jnp.sum(gradient.W * solution.primal) / jnp.where(sizes > 0, sizes, 1.0),
        }

    return jax.vmap(one)(keys)


@partial(jax.jit, static_argnums=(0, 1, 2))
def _separating(n: int, T: int, d: int, keys: Array) -> tuple[Instance, Array]:
    def one(key: Array) -> tuple[Instance, Array]:
        data, head = random_tokens(key, n, T, d)
        given = instance(data, head)
        gradient: Any = EmpiricalRisk(data, Logistic()).scaled_gradient(CombinedAttention(given.start, head)).gradient
        logits = jnp.einsum("ntd,de,ne->nt", data.tokens, gradient.W, data.queries)
        best = jnp.sum(jnp.where(given.target, logits, 0.0), axis=-1, keepdims=True)
        return padded(given, SHAPE), jnp.all(given.target | (logits > best))

    return jax.vmap(one)(keys)


def _row_b1(data: Data) -> Row:
    solved = data["result"] == ProgramResult.optimal.value
    exact, proxy = solved & data["exact"], solved & (data["average"] < PROXY)
    false = proxy & ~exact
    total = data["result"].shape[1]
    shares = "; ".join(
        f"d = {d}: {100 * exact[i].sum() / total:.0f}% exactly, {100 * proxy[i].sum() / total:.0f}% by the proxy"
        for i, d in enumerate(DIMENSIONS)
    )
    count, inside = int(false.sum()), int(proxy.sum())
    return Row(
        "Assumption B.1",
        f"an average margin below {PROXY} (the proxy of Figure 5) means that all tokens are support vectors; "
        f"n = T = {N}, {total} instances for each d",
        f"{count} of {inside} instances that pass the proxy have a token that is no support vector; {shares}",
        inside,
        int(proxy.size - inside),
        float((data["largest"][proxy] - 1.0).max(initial=0.0)),
        "margin − 1 of a token under the proxy",
        count_evidence(exact[proxy], checked_by=CERTIFICATES),
        {f"exact_{d}": int(exact[i].sum()) for i, d in enumerate(DIMENSIONS)}
        | {f"proxy_{d}": int(proxy[i].sum()) for i, d in enumerate(DIMENSIONS)},
    )


def _row_bound(data: Data) -> Row:
    """§4.1 posits that d ≥ (T + n) log(T + n) will suffice for Assumption B.1."""
    bound = (T + N) * np.log(T + N)
    enough = np.asarray(DIMENSIONS) >= bound
    result, exact = data["result"][enough], data["exact"][enough]
    solved = result == ProgramResult.optimal.value
    total, met = solved.size, int((solved & exact).sum())
    shares = ", ".join(
        f"{100 * (ok & yes).mean():.0f}% at d = {d}"
        for d, ok, yes in zip(np.asarray(DIMENSIONS)[enough], solved, exact, strict=True)
    )
    return Row(
        "Section 4.1",
        f"d ≥ (T + n) log(T + n) = {bound:.0f} will suffice for Assumption B.1, n = T = {N}",
        f"it holds on {met} of {total}: {shares}",
        total,
        int(data["result"].size - total),
        float((data["largest"][enough][solved] - 1.0).max(initial=0.0)),
        "margin − 1 of a token",
        count_evidence(exact, decided=solved, checked_by=CERTIFICATES),
        {"met": met, "instances": total},
    )


def _row_3(data: Data) -> Row:
    inside = (data["result"] == ProgramResult.optimal.value) & data["exact"]
    push = data["push"][inside]
    bad, total = int((push >= 0).sum()), int(inside.sum())
    return Row(
        "Theorem 3",
        f"∇L(W) ≠ 0, by ⟨∇L(W), W^mm⟩ < 0; a random W on instances of Assumption B.1, n = T = {N}",
        f"{bad} of {total} fail",
        total,
        int((~inside).sum()),
        float(push.max(initial=-1.0)),
        "cosine of ∇L and W^mm; below 0",
        Evidence(total, bad),
        {"fail": bad, "instances": total},
    )


def _row_6(data: Data, number: int) -> Row:
    n, T, d = SEPARATING[number]
    cell = {name.removeprefix(f"C{number}_"): value for name, value in data.items() if name.startswith(f"C{number}_")}
    feasible = cell["feasible"] == ProgramResult.optimal.value
    inside = cell["holds"] & feasible
    reached = cell["selected"] & (cell["misaligned"] <= ALIGNED) & (cell["flow_gap"] <= CERTIFIED)
    total, count = int(inside.sum()), int((inside & reached).sum())
    low, high = wilson(int(cell["holds"].sum()), cell["holds"].size)
    elsewhere = int((inside & ~cell["selected"] & (cell["flow_gap"] <= CERTIFIED)).sum())
    apart = ~cell["holds"] & feasible
    return Row(
        "Theorem 6",
        f"Assumption C and W(0) = 0, n = {n}, T = {T}, d = {d}: the flow converges to W^mm",
        f"{count} of {total} do, {elsewhere} converge elsewhere, {total - count - elsewhere} are undecided; "
        f"Assumption C holds in {100 * float(cell['holds'].mean()):.0f}% [{100 * float(low):.0f}, "
        f"{100 * float(high):.0f}] of {inside.size}; without it "
        f"{int((apart & reached).sum())} of {int(apart.sum())} converge to W^mm",
        total,
        inside.size - total,
        float(cell["misaligned"][inside & cell["selected"]].max(initial=0.0)) if count else float("inf"),
        "1 − corr with W^mm",
        Evidence(
            total,
            elsewhere,
            total - count - elsewhere,
            checked_by="the dual solutions of the programs that the flows do solve",
        ),
        {"reached": count, "inside": total, "elsewhere": elsewhere},
    )

"""Theorem 2 by regularisation paths of W and of (K, Q), and with it Lemmas 3 and 15."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxflow._core import linalg
from jaxflow.data import TokenData, optimal_tokens, random_tokens
from jaxflow.limits import regularization_path
from jaxflow.losses import Logistic
from jaxflow.margin import ProgramResult
from jaxflow.models import CombinedAttention, FactoredAttention, token_scores
from jaxflow.papers.checks import AbstractCheck, Row, register_check
from jaxflow.papers.registry import Data
from jaxflow.papers.tarzanagh2023.verify.follow import SHAPE, follow
from jaxflow.papers.tarzanagh2023.verify.instances import instance, padded
from jaxflow.papers.tarzanagh2023.verify.path_instances import (
    apart,
    choices_of_tokens,
    factors,
    optimal_program,
    programs_of,
    unit,
)
from jaxflow.papers.tarzanagh2023.verify.path_rows import row_of_path
from jaxflow.report import bounded_evidence, count_evidence
from jaxflow.risk import EmpiricalRisk


@dataclasses.dataclass(frozen=True)
class Size:
    """Instances with n, T, d; columns m of K and Q; exponents of the bounds R = 4^k."""

    instances: int
    shape: tuple[int, int, int]
    columns: tuple[int, ...]
    levels: int


# d at the bound max(T − 1, n) of Theorem 1: every choice of tokens can be separated.
SIZES = {
    "quick": Size(8, (2, 3, 2), (2,), 8),
    "paper": Size(12, (3, 3, 3), (3, 2), 8),
    "large": Size(256, (3, 3, 3), (3, 2), 10),
}
# Columns beyond the rank of a start are not zero, where they would stay.
NOISE = 1e-2
# The bound from which the flow is started beside the path.
FLOW_LEVEL = 2
# Both ways to the program's direction are certified to about this.
SAME = 1e-8


@register_check("tarzanagh2023", "regularization-paths", statements="Theorem 2 and Lemmas 3, 15")
class Paths(AbstractCheck):
    """Paths from every choice of tokens; neither programs nor flows use them."""

    def compute(self, scale: str, key: Any, say: Callable[[str], None]) -> Data:
        size = SIZES[scale]
        n, T, d = size.shape
        say(
            f"Theorem 2: paths of W and of K, Q with {', '.join(map(str, size.columns))} columns to R = "
            f"{4 ** (size.levels - 1)} from {T**n} choices of tokens on each of {size.instances} instances"
        )
        key_data, key_noise = jax.random.split(key)
        data, head = _draw(size.shape, jax.random.split(key_data, size.instances))
        found = {name: np.asarray(x) for name, x in programs(data, head, choices_of_tokens(n, T)).items()}
        best = np.asarray(jax.vmap(lambda a, v: optimal_tokens(token_scores(a, v), a.visible))(data, head))
        which = np.ravel_multi_index(tuple(best.argmax(axis=-1).T), (T,) * n)
        solved = (found["result"] == ProgramResult.optimal.value)[..., None, None]
        starts = unit(np.where(solved, found["weights"], found["push"]))
        radii = 4.0 ** np.arange(size.levels)
        rows = np.arange(size.instances)
        out = {
            "shape": np.asarray(size.shape),
            "radii": radii,
            "result": found["result"][rows, which],
            "aim": found["weights"][rows, which],
        }
        out |= {f"W_{name}": np.asarray(x) for name, x in combined_paths(data, head, starts, radii).items()}
        out |= self.flows(data, head, out["W_weights"])
        noise = NOISE * np.asarray(jax.random.normal(key_noise, starts.shape))
        for m in size.columns:
            K, Q = factors(starts + noise, m)
            path = factored_paths(data, head, K, Q, np.sqrt(2.0 * radii))
            out |= {f"KQ{m}_{name}": np.asarray(x) for name, x in path.items()}
        for rank in (None, n - 1):
            bounded = nuclear_programs(rank, data, head)
            out |= {f"nuclear{rank or ''}_{name}": np.asarray(x) for name, x in bounded.items()}
        return out

    def flows(self, data: TokenData, head: Any, weights: np.ndarray) -> Data:
        """The flow from zero and from the path's point at a moderate bound."""
        found: Data = {}
        for name, level in (("zero", None), ("path", FLOW_LEVEL)):
            start = jnp.zeros_like(weights[:, 0]) if level is None else jnp.asarray(weights[:, level])
            given = jax.vmap(lambda a, v, W: padded(instance(a, v, W), SHAPE))(data, head, start)
            ends = follow(given)._asdict()
            found |= {f"flow_{name}_{what}": ends[what] for what in ("selected", "misaligned", "flow_gap")}
        return found

    def rows(self, data: Data) -> list[Row]:
        columns = sorted(int(name[2:-10]) for name in data if name.startswith("KQ") and name.endswith("_objective"))
        return [
            _row_combined(data),
            *(_row_factored(data, m) for m in reversed(columns)),
            _row_lemma3(data),
            _row_lemma15(data, columns),
        ]


@partial(jax.jit, static_argnums=0)
def _draw(shape: tuple[int, int, int], keys: Array) -> Any:
    return jax.vmap(lambda key: random_tokens(key, *shape))(keys)


@jax.jit
def programs(data: TokenData, head: Any, choices: Any) -> dict[str, Array]:
    return jax.vmap(lambda a, v: programs_of(a, v, choices))(data, head)


@partial(jax.jit, static_argnums=0)
def nuclear_programs(rank: int | None, data: TokenData, head: Any) -> dict[str, Array]:
    return jax.vmap(lambda a, v: optimal_program(a, v, rank=rank))(data, head)


@jax.jit
def combined_paths(data: TokenData, head: Any, starts: Any, radii: Any) -> dict[str, Array]:
    def one(a: TokenData, v: Any, W: Array) -> dict[str, Array]:
        models = [CombinedAttention(W[s], v) for s in range(W.shape[0])]
        return _follow(a, v, models, radii)

    return jax.vmap(one)(data, head, starts)


@jax.jit
def factored_paths(data: TokenData, head: Any, K: Any, Q: Any, radii: Any) -> dict[str, Array]:
    def one(a: TokenData, v: Any, K: Array, Q: Array) -> dict[str, Array]:
        models = [FactoredAttention(K[s], Q[s], v) for s in range(K.shape[0])]
        found = _follow(a, v, models, radii)
        best = found.pop("models")
        balance = jnp.swapaxes(best.K, 1, 2) @ best.K - jnp.swapaxes(best.Q, 1, 2) @ best.Q
        nuclear = jnp.sum(linalg.singular_values(found["weights"]), axis=-1)
        return found | {"balance": jnp.sqrt(jnp.sum(balance**2, axis=(1, 2))), "nuclear": nuclear}

    return jax.vmap(one)(data, head, K, Q)


def _follow(data: TokenData, head: Any, models: list[Any], radii: Any) -> dict[str, Any]:
    best = optimal_tokens(token_scores(data, head), data.visible)
    found = regularization_path(EmpiricalRisk(data, Logistic()), models, radii, reference=best)
    path = found.path
    weights = jax.vmap(lambda model: model.combined_weights())(path)
    logits = jax.vmap(lambda model: model.logits(data))(path)
    own = jnp.sum(jnp.where(best, logits, 0.0), axis=-1, keepdims=True)
    column = jnp.arange(found.radii.size)
    kept = {"models": path} if isinstance(path, FactoredAttention) else {}
    return kept | {
        "objective": found.objective,
        "status": found.status.value,
        "residual": found.residual[found.best, column],
        "found": found.found,
        "start": found.best,
        "steps": jnp.sum(found.steps),
        "weights": weights,
        # The least margin of the optimal tokens.
        "margin": jnp.min(jnp.where(best, jnp.inf, own - logits), axis=tuple(range(1, logits.ndim))),
    }


def _row_combined(data: Data) -> Row:
    inside = data["result"] == ProgramResult.optimal.value
    distance = apart(data["W_weights"], data["aim"][:, None])
    agree = [
        int((inside & data[f"flow_{name}_selected"] & (data[f"flow_{name}_misaligned"] <= SAME)).sum())
        for name in ("zero", "path")
    ]
    flow = (
        f"; the flow from W(0) = 0 has the same limit in {agree[0]} of {int(inside.sum())}, from W̄_R at R = "
        f"{4**FLOW_LEVEL} in {agree[1]}"
    )
    n, T, d = data["shape"]
    return row_of_path(
        "Theorem 2",
        f"W̄_R/R → W^mm/‖W^mm‖ for (W-RP), least of the paths from all {T**n} choices of tokens, n = {n}, T = {T}, "
        f"d = {d}",
        data,
        "W",
        inside,
        distance,
        flow,
    )


def _aim(data: Data, m: int) -> tuple[np.ndarray, np.ndarray, bool]:
    """Of (Att-SVM*) with rank ≤ m: solved, weights, and whether the convex program answers it."""
    convex = data["nuclear_result"] == ProgramResult.optimal.value
    fits = convex & (data["nuclear_rank"] <= m)
    if fits.all() or f"nuclear{m}_result" not in data:
        return fits, data["nuclear_weights"], True
    bounded = data[f"nuclear{m}_result"]
    solved = fits | np.isin(bounded, (ProgramResult.optimal.value, ProgramResult.stationary.value))
    weights = np.where(fits[:, None, None], data["nuclear_weights"], data[f"nuclear{m}_weights"])
    return solved, weights, False


def above_optimum(radii: np.ndarray, margin: np.ndarray, aim: np.ndarray) -> np.ndarray:
    r"""By how much the nuclear norm at margin one of paths with $\|W\|_\star=R$ is above that of their program.

    **Arguments:** `radii` `(m,)`; `margin` `(instances, m)`: the least of the selected tokens; `aim`: the program's
    solutions. **Returns:** `(instances, m)`, +inf where the margin is not positive yet.
    """
    optimum = np.linalg.norm(aim, ord="nuc", axis=(1, 2))[:, None]
    with np.errstate(divide="ignore"):
        above = radii / margin / np.where(optimum > 0, optimum, 1.0) - 1.0
    return np.where((margin > 0) & (optimum > 0), above, np.inf)


def _row_factored(data: Data, m: int) -> Row:
    solved, aim, convex = _aim(data, m)
    n, T, d = data["shape"]
    distance = apart(data[f"KQ{m}_weights"], aim[:, None])
    above = above_optimum(data["radii"], data[f"KQ{m}_margin"], aim)
    bound = "" if convex else f" (rank above {m} in {int((data['nuclear_rank'] > m).sum())} of the convex solutions)"
    below = int((solved & (above[:, -1] < -SAME)).sum())
    more = f"; {below} paths end with a smaller norm at margin one than the program's" if below else ""
    return row_of_path(
        "Theorem 2",
        f"K̄_R Q̄_Rᵀ/R → W*^mm/C* for (KQ-RP) with m = {m} columns{bound}, least of the paths from all {T**n} choices "
        f"of tokens, n = {n}, T = {T}, d = {d}",
        data,
        f"KQ{m}",
        solved,
        distance,
        more,
        above,
    )


def _row_lemma3(data: Data) -> Row:
    convex = data["nuclear_result"] == ProgramResult.optimal.value
    C, rank, W = (data[f"nuclear_{name}"] for name in ("value", "rank", "weights"))
    m = int(data["shape"][0]) - 1
    value, result = data[f"nuclear{m}_value"], data[f"nuclear{m}_result"]
    answered = convex & np.isin(result, (ProgramResult.optimal.value, ProgramResult.stationary.value))
    inside, beyond = answered & (rank <= m), convex & (rank > m)
    # Solutions may differ where there are several; values may not.
    errors = np.abs(value / C - 1.0)[inside]
    moved = int((apart(data[f"nuclear{m}_weights"], W)[inside] > SAME**0.5).sum())
    larger = int((answered & beyond & (value > C * (1.0 + SAME))).sum())
    same = int((answered & beyond & (np.abs(value / C - 1.0) <= SAME)).sum())
    bad, total = int((errors > SAME).sum()), int(inside.sum())
    asked = convex & (rank <= m)
    same_value = np.abs(value / C - 1.0) <= SAME
    return Row(
        "Lemma 3",
        f"(Att-SVM*) with rank ≤ m has the value C_cvx of the convex program where a solution of that has rank at most "
        f"m, m = {m}",
        f"{bad} of {total} differ, {moved} by another solution; where the convex solution found has a larger rank, C* "
        f"is above C_cvx in {larger} and equal in {same} of {int(beyond.sum())}; {int((convex & ~answered).sum())} "
        "programs with the rank bound have no answer",
        int(asked.sum()),
        int((~asked).sum()),
        float(errors.max(initial=0.0)),
        "|C*/C_cvx − 1|",
        count_evidence(same_value[asked], decided=inside[asked]),
        {"differ": bad, "programs": total, "above": int(beyond.sum()), "larger": larger},
    )


def _row_lemma15(data: Data, columns: list[int]) -> Row:
    balance = np.concatenate([(data[f"KQ{m}_balance"] / data["radii"])[data[f"KQ{m}_found"]] for m in columns])
    size = np.concatenate([(data[f"KQ{m}_nuclear"] / data["radii"])[data[f"KQ{m}_found"]] for m in columns])
    worst = float(np.maximum(balance, np.abs(size - 1.0)).max(initial=0.0))
    # Stationary to 1e-6 relative to the gradient.
    bad = int((np.maximum(balance, np.abs(size - 1.0)) > 1e-5).sum())
    found = np.concatenate([data[f"KQ{m}_found"].ravel() for m in columns])
    errors = np.full(found.shape, np.nan)
    errors[found] = np.maximum(balance, np.abs(size - 1.0))
    return Row(
        "Lemma 15",
        "solutions of (KQ-RP) have ‖KQᵀ‖_* = R and KᵀK = QᵀQ, so that the products solve the problem over ‖W‖_* ≤ R",
        f"{bad} of {size.size} points of the paths do not; ‖KQᵀ‖_*/R is {size.min(initial=1.0):.9f} to "
        f"{size.max(initial=1.0):.9f}, ‖KᵀK − QᵀQ‖/R at most {balance.max(initial=0.0):.0e}",
        int(found.size),
        0,
        worst,
        "|‖KQᵀ‖_*/R − 1| or ‖KᵀK − QᵀQ‖/R",
        # A point of the path that was not found is undecided.
        bounded_evidence(errors, 1e-5),
        {"not": bad, "points": int(size.size)},
    )

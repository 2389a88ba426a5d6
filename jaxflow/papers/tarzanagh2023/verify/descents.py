"""Theorems 3 and 6 by discrete descent with the step sizes that they state, and Theorem 6's step size itself."""

from collections.abc import Callable
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxflow.data import optimal_tokens, random_tokens
from jaxflow.gradient_descent import descend
from jaxflow.losses import Logistic
from jaxflow.margin import ProgramResult, attention_svm, is_locally_optimal, solve
from jaxflow.models import CombinedAttention, token_scores
from jaxflow.papers.checks import AbstractCheck, Row, register_check
from jaxflow.papers.registry import Data
from jaxflow.papers.tarzanagh2023.verify.follow import CERTIFIED, SHAPE, follow_each
from jaxflow.papers.tarzanagh2023.verify.instances import equal_scores, instance, padded, smoothness
from jaxflow.report import Evidence, common_rate, count_evidence
from jaxflow.risk import EmpiricalRisk

# Logistic loss (Assumption A).
M0, M1 = 0.25, 1.0
# Six flows for each instance, in batches of 32.
TRIALS = {"quick": 16, "paper": 64, "large": 1024}
STEPS = {"quick": 10_000, "paper": 100_000, "large": 4_000_000}
# Of instances that are still on their way after that: some stay near a saddle for as long.
LATER = {"quick": 1_000_000, "paper": 10_000_000, "large": 40_000_000}
# Theorem 3: (n, T, d) of Assumption B.1, where few tokens in many dimensions all are support vectors, and of B.2.
GROWING = {"B.1": (2, 3, 10), "B.2": (3, 3, 3)}
# Theorem 6, as in the check by the flow; descent that goes before the flow.
SEPARATING = ((2, 3, 6), (3, 4, 6))
LEAD = {"quick": 500, "paper": 5_000, "large": 50_000}
# First steps: far below the bound, at it, and as large as step 3 of the proof requires.
FIRST = ("1/L_W", "1/‖W^mm‖", "R_μ/‖∇L(0)‖")
ALIGNED = 1e-8
# W(k) grows like log k and ‖∇L(W(k))‖ falls like 1/k: over the last tenfold of steps by this much at least.
FALL = 0.5
# ‖∇L(W(k))‖ is 1/k up to powers of log k, which move an exponent over a tenfold of steps by 1/log k.
LOGARITHMS = 0.1


@register_check("tarzanagh2023", "descents", statements="Theorems 3 and 6 by descent")
class Descents(AbstractCheck):
    """Plain descent: steps η = 1/L_W with the constant of (3)."""

    def compute(self, scale: str, key: Any, say: Callable[[str], None]) -> Data:
        trials, steps = TRIALS[scale], STEPS[scale]
        found: Data = {"steps": np.asarray(steps), "lead": np.asarray(LEAD[scale])}
        for number, (name, shape) in enumerate(GROWING.items()):
            say(f"Theorem 3: {steps} steps of descent on {trials} instances, Assumption {name}, n, T, d = {shape}")
            keys = jax.random.split(jax.random.fold_in(key, number), trials)
            part = _growing_longer(name, shape, keys, steps, LATER[scale])
            found |= {f"{name}_{what}": value for what, value in part.items()}
        parts = {}
        for number, shape in enumerate(SEPARATING):
            say(f"Theorem 6: {LEAD[scale]} steps of descent, then the flow, {trials} instances, n, T, d = {shape}")
            keys = jax.random.split(jax.random.fold_in(key, 10 + number), trials)
            part = {what: np.asarray(value) for what, value in _separating(shape, keys).items()}
            for index in range(len(FIRST)):
                first = jnp.asarray(part["first"][:, index])
                parts[f"C{number}_{index}"] = _after_first(shape, keys, first, LEAD[scale])
            found |= {f"C{number}_{what}": value for what, value in part.items()}
        return found | follow_each(parts)

    def rows(self, data: Data) -> list[Row]:
        rows = [_row_3(data, name) for name in GROWING]
        for number in range(len(SEPARATING)):
            rows += [_row_6(data, number, index) for index in range(len(FIRST))]
        return [*rows, _row_step(data), _row_63(data)]


def _descent(data: Any, head: Any, W: Array, steps: int, save_at: Any = None) -> Any:
    return descend(
        EmpiricalRisk(data, Logistic()),
        CombinedAttention(W, head),
        steps=steps,
        learning_rate=1.0 / smoothness(data, head, M0, M1),
        normalised=False,
        save_at=save_at,
        throw=False,
    )


@eqx.filter_jit
def _growing(name: str, shape: tuple[int, int, int], keys: Array, steps: int) -> dict[str, Array]:
    n, T, d = shape

    def one(key: Array) -> dict[str, Array]:
        key_data, key_start = jax.random.split(key)
        data, head = (equal_scores if name == "B.2" else random_tokens)(key_data, n, T, d)
        best = optimal_tokens(token_scores(data, head), data.visible)
        solution = solve(attention_svm(data, best, "frobenius"))
        local = is_locally_optimal(data, head, best, solution)
        start = jax.random.normal(key_start, (d, d))
        saves = jnp.asarray([steps // 100, steps // 10, steps])
        path = _descent(data, head, start, steps, saves)
        saved: Any = path.saved
        return {
            "result": solution.result.value,
            "support": jnp.all(local.support | best),
            "norm": jnp.exp(saved.log_norm),
            "log_gradient": saved.log_gradient_norm,
        }

    return jax.vmap(one)(keys)


def _growing_longer(
    name: str, shape: tuple[int, int, int], keys: Array, steps: int, later: int
) -> dict[str, np.ndarray]:
    """`_growing`, and once more with `later` steps for those that are not growing after the first."""
    part = {what: np.asarray(value) for what, value in _growing(name, shape, keys, steps).items()}
    for what in ("norm", "log_gradient"):
        part[f"later_{what}"] = np.full_like(part[what], np.nan)
    for index in np.flatnonzero(_inside_3(part, name) & ~_grows(part["log_gradient"], part["norm"])):
        longer = _growing(name, shape, keys[index][None], later)
        for what in ("norm", "log_gradient"):
            part[f"later_{what}"][index] = np.asarray(longer[what])[0]
    return part | {"later": np.asarray(later)}


def _inside_3(part: Data, name: str) -> np.ndarray:
    """Which instances meet the assumption of this name."""
    inside = part["result"] == ProgramResult.optimal.value
    return inside & part["support"] if name == "B.1" else inside


def _grows(log_gradient: np.ndarray, norm: np.ndarray) -> np.ndarray:
    """Whether over the last tenfold of steps the gradient falls enough and the norm grows; NaN does neither."""
    return (np.exp(log_gradient[:, 2] - log_gradient[:, 1]) <= FALL) & (norm[:, 2] > norm[:, 1])


@partial(jax.jit, static_argnums=0)
def _separating(shape: tuple[int, int, int], keys: Array) -> dict[str, Array]:
    """Assumption C, and what the statement and its proof say of the first step."""
    n, T, d = shape

    def one(key: Array) -> dict[str, Array]:
        key_data, key_V, key_size = jax.random.split(key, 3)
        data, head = random_tokens(key_data, n, T, d)
        scores = token_scores(data, head)
        best = optimal_tokens(scores, data.visible)
        solution = solve(attention_svm(data, best, "frobenius"))
        size = jnp.linalg.norm(solution.primal)
        theta = 1.0 / jnp.where(size > 0, size, 1.0)
        down = -_gradient(data, head, jnp.zeros((d, d)))
        margins = jnp.where(best, jnp.inf, _margins(data, best, down))
        holds = jnp.min(margins) > 0
        # W(1) is a multiple of −∇L(0), so in S_μ of (48) with this μ; (59) says how long it has to be.
        slope = jnp.linalg.norm(down)
        mu = jnp.min(margins) / slope / theta
        span = jnp.max(scores, axis=1) - jnp.max(jnp.where(best, -jnp.inf, scores), axis=1)
        gaps = jnp.max(scores, axis=1) - jnp.min(scores, axis=1)
        pairs = jnp.linalg.norm(data.tokens[:, :, None] - data.tokens[:, None], axis=-1)
        A = jnp.max(jnp.maximum(pairs, 1.0) * jnp.linalg.norm(data.queries, axis=-1)[:, None, None]) / theta
        safe = jnp.where(holds, mu, 1.0)
        bound = jnp.log(4.0 * T * jnp.max(gaps) * A / (safe * jnp.min(span))) / (safe * theta)
        first = jnp.stack([1.0 / smoothness(data, head, M0, M1), theta, bound / slope])
        # (63a): does −∇L separate all tokens anywhere in the cone? At a random point of it.
        noise = jax.random.normal(key_V, (d, d))
        point = _inside(data, best, solution.primal * theta, noise)
        least = jnp.min(jnp.where(best, jnp.inf, _margins(data, best, point))) / theta
        far = jnp.log(4.0 * T * jnp.max(gaps) * A / (least * jnp.min(span))) / (least * theta)
        there = -_gradient(data, head, far * (1.0 + jax.random.uniform(key_size)) * point)
        push = jnp.min(jnp.where(best, jnp.inf, _margins(data, best, there / jnp.linalg.norm(there))))
        return {
            "result": solution.result.value,
            "holds": holds,
            "first": first,
            "ratio": bound / slope / theta,
            "push": push,
            "least": least,
        }

    return jax.vmap(one)(keys)


def _gradient(data: Any, head: Any, W: Array) -> Array:
    """∇L(W) up to a positive factor, that of its log scale; exactly ∇L at a scale of zero."""
    scaled: Any = EmpiricalRisk(data, Logistic()).scaled_gradient(CombinedAttention(W, head))
    return scaled.gradient.W * jnp.where(scaled.log_scale > -100.0, jnp.exp(scaled.log_scale), 1.0)


def _margins(data: Any, best: Array, W: Array) -> Array:
    logits = jnp.einsum("ntd,de,ne->nt", data.tokens, W, data.queries)
    return jnp.sum(jnp.where(best, logits, 0.0), axis=-1, keepdims=True) - logits


def _inside(data: Any, best: Array, direction: Array, noise: Array) -> Array:
    """A unit matrix that separates the optimal tokens, as far towards the noise as half of the way out."""
    shares = jnp.linspace(0.0, 1.0, 41)[:, None, None]
    points = (1.0 - shares) * direction + shares * noise / jnp.linalg.norm(noise)
    points = points / jnp.sqrt(jnp.sum(points**2, axis=(1, 2), keepdims=True))
    clear = jax.vmap(lambda W: jnp.min(jnp.where(best, jnp.inf, _margins(data, best, W))))(points) > 0
    out = jnp.where(jnp.all(clear), 40, jnp.argmin(clear))
    return points[out // 2]


@eqx.filter_jit
def _after_first(shape: tuple[int, int, int], keys: Array, first: Array, steps: int) -> Any:
    """Instances that start where the first step of size `first` and then `steps` steps of 1/L_W have led."""
    n, T, d = shape

    def one(key: Array, eta: Array) -> Any:
        data, head = random_tokens(jax.random.split(key, 3)[0], n, T, d)
        start = -eta * _gradient(data, head, jnp.zeros((d, d)))
        path = _descent(data, head, start, steps)
        return padded(instance(data, head, path.final.model.W), SHAPE)

    return jax.vmap(one)(keys, first)


def _row_3(data: Data, name: str) -> Row:
    part = {key.removeprefix(f"{name}_"): value for key, value in data.items() if key.startswith(f"{name}_")}
    inside = _inside_3(part, name)
    steps, later, total = int(data["steps"]), int(part["later"]), int(inside.sum())
    log_g, norm = part["log_gradient"][inside], part["norm"][inside]
    grows = _grows(log_g, norm)
    later_log_g, later_norm = part["later_log_gradient"][inside], part["later_norm"][inside]
    grows_later = ~grows & _grows(later_log_g, later_norm)
    slow = total - int((grows | grows_later).sum())
    n, T, d = GROWING[name]
    # A start that is still on its way is not at rest: only a gradient that falls while the norm does not grow is.
    last = (np.isnan(later_norm[:, 2]) | grows)[:, None]
    last_log_g, last_norm = np.where(last, log_g, later_log_g), np.where(last, norm, later_norm)
    still = int(((np.exp(last_log_g[:, 2] - last_log_g[:, 1]) <= FALL) & (last_norm[:, 2] <= last_norm[:, 1])).sum())
    good = grows | grows_later
    at_rest = (np.exp(last_log_g[:, 2] - last_log_g[:, 1]) <= FALL) & (last_norm[:, 2] <= last_norm[:, 1])
    exponents = -(last_log_g[:, 2] - last_log_g[:, 1]) / np.log(10.0)
    evidence = count_evidence(
        good & ~at_rest,
        decided=good | at_rest,
        limit=True,
        rate=common_rate(exponents, 1.0, bias=LOGARITHMS, law="‖∇L(W(k))‖ against k"),
    )
    rate = ""
    if total:
        exponent, growth = (log_g[:, 2] - log_g[:, 1]) / np.log(10.0), norm[:, 2] - norm[:, 1]
        rate = f"; up to step {steps} ‖∇L‖ ~ k^p with p from {exponent.min():.2f} to {exponent.max():.2f} "
        rate += f"(median {np.median(exponent):.2f}), ‖W‖ grows by {growth.min():.2f} to {growth.max():.2f}"
    behind = int((~grows).sum())
    rest = (
        f", and from step {later // 10} to {later} in {int(grows_later.sum())} of the other {behind}" if behind else ""
    )
    return Row(
        "Theorem 3",
        f"descent with η = 1/L_W from random W(0), Assumption {name}, n = {n}, T = {T}, d = {d}: ‖∇L(W(k))‖ → 0 and "
        "‖W(k)‖ → ∞",
        f"from step {steps // 10} to {steps} the gradient at least halves and the norm grows in {total - behind} of "
        f"{total}{rest}{rate}",
        total,
        int((~inside).sum()),
        float(np.exp(log_g[:, 2]).max(initial=0.0)) if total else float("inf"),
        f"‖∇L‖ at step {steps}",
        evidence,
        {"instances": total, "behind": behind, "slow": slow, "still": still},
    )


def _row_6(data: Data, number: int, index: int) -> Row:
    n, T, d = SEPARATING[number]
    cell = {key.removeprefix(f"C{number}_"): value for key, value in data.items() if key.startswith(f"C{number}_")}
    inside = cell["holds"] & (cell["result"] == ProgramResult.optimal.value)
    # The proof's first step is larger than the statement allows wherever this ratio is above one.
    inside = inside & (cell["ratio"] <= 1.0) if index == 2 else inside
    met = cell["holds"] & (cell["result"] == ProgramResult.optimal.value)
    certified = cell[f"{index}_flow_gap"] <= CERTIFIED
    right = met & cell[f"{index}_selected"] & certified & (cell[f"{index}_misaligned"] <= ALIGNED)
    wrong = met & ~cell[f"{index}_selected"] & certified
    total, count, astray = int(met.sum()), int(right.sum()), int(wrong.sum())
    means = "the dual solutions of the programs that the flows do solve"
    allowed = "" if index < 2 else ", more than the statement allows"
    first = cell["first"][met][:, index]
    sizes = f" (median {np.median(first):.3g})" if total else ""
    return Row(
        "Theorem 6",
        f"Assumption C, W(0) = 0, descent with η(0) = {FIRST[index]}{sizes}{allowed}, η(k) = 1/L_W for "
        f"{int(data['lead'])} steps, then the flow, n = {n}, T = {T}, d = {d}: W^mm",
        f"{count} of {total} reach it, {astray} converge elsewhere, {total - count - astray} are undecided",
        int(inside.sum()),
        int(np.sum(~inside)),
        float(cell[f"{index}_misaligned"][right].max(initial=0.0)) if count else float("inf"),
        "1 − corr with W^mm",
        count_evidence(right[inside], decided=(right | wrong)[inside], checked_by=means),
        {"reached": count, "elsewhere": astray, "instances": total},
    )


def _row_step(data: Data) -> Row:
    ratio = np.concatenate([data[f"C{i}_ratio"][_separates(data, i)] for i in range(len(SEPARATING))])
    total = ratio.size
    quantiles = np.quantile(ratio, (0.0, 0.5, 1.0)) if total else np.full(3, np.nan)
    within = int((ratio <= 1.0).sum())
    return Row(
        "Theorem 6",
        "the step sizes allowed, η(0) ≤ c/‖W^mm‖ with c = 1, include one with which step 3 of its proof works: W(1) in "
        "C̄_{μ,R_μ}, η(0) ≥ R_μ/‖∇L(0)‖ with R_μ of (59)",
        f"in {within} of {total}: the least η(0) of the proof is {quantiles[0]:.0f} to {quantiles[2]:.0f} (median "
        f'{quantiles[1]:.0f}) times 1/‖W^mm‖; it says "for sufficiently large" where the statement bounds η(0) above',
        total,
        sum(data[f"C{i}_ratio"].size for i in range(len(SEPARATING))) - total,
        float(quantiles[2]),
        "the proof's η(0) times ‖W^mm‖; at most 1",
        count_evidence(
            ratio <= 1.0, checked_by="the duality gaps of the programs, on whose solutions (59) is arithmetic"
        ),
        {"within": within, "instances": total},
    )


def _separates(data: Data, number: int) -> np.ndarray:
    return data[f"C{number}_holds"] & (data[f"C{number}_result"] == ProgramResult.optimal.value)


def _row_63(data: Data) -> Row:
    solved = [data[f"C{i}_result"] == ProgramResult.optimal.value for i in range(len(SEPARATING))]
    parts = [data[f"C{i}_push"][ok & (data[f"C{i}_least"] > 0)] for i, ok in enumerate(solved)]
    push = np.concatenate(parts)
    bad = int((push <= 0).sum())
    return Row(
        "Theorem 6",
        "(63a) of its proof: −∇L(W) separates all optimal tokens at every W of C̄_{μ,R}, R ≥ R_μ; one random W for each "
        "instance, whether Assumption C holds or not",
        f"not at {bad} of {push.size} points: far out the gradient is that of the least margin alone",
        int(push.size),
        sum(data[f"C{i}_push"].size for i in range(len(SEPARATING))) - int(push.size),
        float(-push.min(initial=0.0)),
        "−min ⟨(x_opt − x_t)zᵀ, −∇L⟩/‖∇L‖; below 0",
        Evidence(push.size, bad),
        {"bad": bad, "points": int(push.size)},
    )

r"""Lemmas 11 to 14: gradients within $\bar{\mathcal C}_{\mu,R}$ of (48) and $\mathcal C_{\mu,R}(W^{mm}_\alpha)$ of (4);
Lemma 17."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxflow._core import SelectionStatus
from jaxflow.data import TokenData, optimal_tokens, random_tokens
from jaxflow.losses import Logistic
from jaxflow.margin import ProgramResult, attention_svm, solve
from jaxflow.models import CombinedAttention, log_attention, token_scores
from jaxflow.papers.checks import AbstractCheck, Row, register_check
from jaxflow.papers.registry import Data
from jaxflow.papers.tarzanagh2023.verify.path_instances import choices_of_tokens, masks, programs_of
from jaxflow.report import Evidence, Rate, count_evidence, fit
from jaxflow.risk import EmpiricalRisk

TRIALS = {"quick": 64, "paper": 1024, "large": 16384}
# d at the bound of Theorem 1; small enough for locally-optimal choices beside the optimal one.
N, T, D = 3, 4, 3
# Norms in units of the R of a lemma.
FACTORS = (1.0, 4.0, 16.0, 64.0)
# Sums of a few numbers, relative to their size.
ROUNDING = 1e-9


@register_check("tarzanagh2023", "cone-lemmas", statements="Lemmas 11, 12, 13, 14, 17")
class ConeLemmas(AbstractCheck):
    """One random W and V in the cone of each instance, with the proofs' own μ and R."""

    def compute(self, scale: str, key: Any, say: Callable[[str], None]) -> Data:
        trials = TRIALS[scale]
        say(f"Lemmas 11 to 14, 17: {trials} instances with n, T, d = {N}, {T}, {D}")
        keys = jax.random.split(key, trials)
        found = {f"global_{name}": np.asarray(x) for name, x in _global(keys).items()}
        data, head, programs = _programs(keys)
        local = np.asarray(programs["status"]) == SelectionStatus.local.value
        # The first in a random order; an instance without one is counted apart.
        order = np.asarray(jax.random.uniform(jax.random.fold_in(key, 1), local.shape))
        pick = np.where(local, order, -1.0).argmax(axis=1)
        rows = np.arange(trials)
        chosen = jnp.asarray(choices_of_tokens(N, T)[pick])
        W, support = programs["weights"][rows, pick], programs["support"][rows, pick]
        part = _local(jax.random.split(jax.random.fold_in(key, 2), trials), data, head, chosen, W, support)
        found |= {f"local_{name}": np.asarray(x) for name, x in part.items()} | {"local_any": local.any(axis=1)}
        found["local_empty"] = np.any(~np.any(np.asarray(support), axis=2), axis=1, keepdims=True)[:, 0]
        return found | _ranks(np.random.default_rng(int(jax.random.randint(key, (), 0, 2**31 - 1))), trials)

    def rows(self, data: Data) -> list[Row]:
        solved = data["global_inside"]
        some = data["local_any"] & np.isfinite(data["local_bound"]).all(axis=1)
        full, empty = some & ~data["local_empty"], some & data["local_empty"]
        printed = {name: x[:, 0] if name.startswith("local_") and x.ndim > 1 else x for name, x in data.items()}
        return [
            _ratio_row(data, "Lemma 11", "global", solved, "W in C̄_{μ,R} of (48)"),
            _bounds_row(data, "Lemma 12", "global", solved, "V in S_μ, W in C̄_{μ,R}, R = R_μ of (59): (60)"),
            _bounds_row(printed, "Lemma 13", "local", full, "V, W in cone_μ(W^mm_α), R of (74), no T_i empty: (75)"),
            _sign_row(data, empty),
            _ratio_row(printed, "Lemma 14", "local", full, "W in C_{μ,R}(W^mm_α), no T_i empty"),
            _row_17(data),
        ]


def _numbers(data: TokenData, head: Any, selection: Array, W: Array) -> tuple[Array, Array, Array, Array]:
    """At W: −∇L over its scale, that scale, |ℓ'_i| and log(1 − s_iα)."""
    model = CombinedAttention(W, head)
    scaled: Any = EmpiricalRisk(data, Logistic()).scaled_gradient(model)
    slopes = jax.nn.sigmoid(-data.labels * model.outputs(data))
    log_s = log_attention(model.logits(data), data.visible)
    rest = jax.nn.logsumexp(jnp.where(selection, -jnp.inf, log_s), axis=-1)
    return -scaled.gradient.W, scaled.log_scale, slopes, rest


def _margins(data: TokenData, selection: Array, W: Array) -> Array:
    logits = jnp.einsum("ntd,de,ne->nt", data.tokens, W, data.queries)
    own = jnp.sum(jnp.where(selection, logits, 0.0), axis=-1, keepdims=True)
    return jnp.where(selection, jnp.inf, own - logits)


def _both(data: TokenData, head: Any, selection: Array, aim: Array, W: Array, V: Array) -> dict[str, Array]:
    """−⟨∇L(W), V⟩ and the ratio of Lemmas 11 and 14, whose π is this less 1; with Σ|ℓ'|q γ over the same scale."""
    down, scale, slopes, rest = _numbers(data, head, selection, W)
    ratio = jnp.sum(down * W) * jnp.linalg.norm(aim) / (jnp.linalg.norm(W) * jnp.sum(down * aim))
    return {"push": jnp.sum(down * V), "ratio": ratio, "weights": slopes * jnp.exp(rest - scale) / slopes.size}


@jax.jit
def _global(keys: Array) -> dict[str, Array]:
    def one(key: Array) -> dict[str, Array]:
        key_data, key_W, key_share, key_V = jax.random.split(key, 4)
        data, head = random_tokens(key_data, N, T, D)
        scores = token_scores(data, head)
        best = optimal_tokens(scores, data.visible)
        solution = solve(attention_svm(data, best, "frobenius"))
        size = jnp.linalg.norm(solution.primal)
        solved = (solution.result == ProgramResult.optimal) & (size > 0)
        theta = 1.0 / jnp.where(size > 0, size, 1.0)
        aim = solution.primal * theta
        # From W^mm towards a random direction, by a random share of the way out of the separating set.
        noise = jax.random.normal(key_W, (D, D))
        shares = jnp.linspace(0.0, 1.0, 65)[:, None, None]
        line = (1.0 - shares) * aim + shares * noise / jnp.linalg.norm(noise)
        line = line / jnp.sqrt(jnp.sum(line**2, axis=(1, 2), keepdims=True))
        least = jax.vmap(lambda U: jnp.min(_margins(data, best, U)))(line)
        out = jnp.where(jnp.all(least > 0), 64, jnp.argmin(least > 0))
        index = jnp.minimum((jax.random.uniform(key_share) * out).astype(int), jnp.maximum(out - 1, 0))
        U, mu = line[index], least[index] / theta
        best_gap = jnp.max(scores, axis=1) - jnp.max(jnp.where(best, -jnp.inf, scores), axis=1)
        worst_gap = jnp.max(scores, axis=1) - jnp.min(scores, axis=1)
        pairs = jnp.linalg.norm(data.tokens[:, :, None] - data.tokens[:, None], axis=-1)
        A = jnp.max(jnp.maximum(pairs, 1.0) * jnp.linalg.norm(data.queries, axis=-1)[:, None, None]) / theta
        usable = solved & (mu > 0)
        mu = jnp.where(usable, mu, 1.0)
        # (59); its γ_min is meant as the least gap, the supremum in the text says the largest.
        bound = jnp.log(4.0 * T * jnp.max(worst_gap) * A / (mu * jnp.min(best_gap))) / (mu * theta)
        # Between two members of S_μ, so that it is one; of norm ‖W^mm‖.
        V = aim + jax.random.uniform(key_V) * (U - aim)
        V = V / (theta * jnp.linalg.norm(V))
        at = jax.vmap(lambda factor: _both(data, head, best, solution.primal, factor * bound * U, V))
        found = at(jnp.asarray(FACTORS))
        weights = found.pop("weights")
        return found | {
            "lower": 0.5 * mu * jnp.sum(weights * best_gap, axis=-1),
            "upper": 2.0 * A * jnp.sum(weights * worst_gap, axis=-1),
            "inside": usable,
            "bound": bound,
            "mu": mu,
        }

    return jax.vmap(one)(keys)


@jax.jit
def _programs(keys: Array) -> Any:
    def one(key: Array) -> Any:
        data, head = random_tokens(jax.random.fold_in(key, 7), N, T, D)
        return data, head, programs_of(data, head, jnp.asarray(choices_of_tokens(N, T)))

    return jax.vmap(one)(keys)


@jax.jit
def _local(keys: Array, data: TokenData, head: Any, chosen: Any, W: Any, support: Any) -> dict[str, Array]:
    def one(key: Array, a: TokenData, v: Any, choice: Array, aim: Array, support: Array) -> dict[str, Array]:
        selection = masks(choice[None], a)[0]
        margins = _margins(a, selection, aim)
        # (67): half the distance between support tokens and others of the same sequence, where it has some.
        others = jnp.where(support | selection, jnp.inf, margins - 1.0)
        printed = 0.5 * jnp.min(jnp.where(jnp.any(support, axis=1, keepdims=True), others, jnp.inf))
        return jax.vmap(lambda delta: bounds(key, a, v, selection, aim, support, margins, delta))(
            # As printed, and over the margins of all sequences.
            jnp.stack([printed, 0.5 * jnp.min(others)])
        )

    def bounds(
        key: Array,
        a: TokenData,
        v: Any,
        selection: Array,
        aim: Array,
        support: Array,
        margins: Array,
        delta: Array,
    ) -> dict[str, Array]:
        scores = token_scores(a, v)
        size = jnp.linalg.norm(aim)
        theta = 1.0 / jnp.where(size > 0, size, 1.0)
        A = jnp.max(jnp.linalg.norm(a.tokens, axis=2) * jnp.linalg.norm(a.queries, axis=1)[:, None]) / theta
        mu = (jnp.minimum(0.5, delta) / A) ** 2 / 8.0
        own = jnp.sum(jnp.where(selection, scores, 0.0), axis=-1)
        low = own - jnp.max(jnp.where(support, scores, -jnp.inf), axis=-1)
        high = own - jnp.min(jnp.where(support, scores, jnp.inf), axis=-1)
        # A sequence without support tokens has no gaps.
        low, high = (jnp.where(jnp.any(support, axis=1), x, 0.0) for x in (low, high))
        gamma = jnp.min(jnp.where(jnp.any(support, axis=1), low, jnp.inf))
        spread = jnp.max(scores) - jnp.min(scores)
        bound = jnp.maximum(2.0, 1.0 / delta) / theta * jnp.log(64.0 * T * spread * A / gamma)

        def near(key: Array) -> Array:
            key_noise, key_share = jax.random.split(key)
            noise = jax.random.normal(key_noise, aim.shape)
            across = noise - jnp.sum(noise * aim) * theta**2 * aim
            across = across / jnp.linalg.norm(across)
            corr = 1.0 - mu * jax.random.uniform(key_share)
            return corr * aim * theta + jnp.sqrt(1.0 - corr**2) * across

        U, V = (near(k) for k in jax.random.split(key))
        at = jax.vmap(lambda factor: _both(a, v, selection, aim, factor * bound * U, V / theta))
        found = at(jnp.asarray(FACTORS))
        weights = found.pop("weights")
        return found | {
            "lower": 0.125 * jnp.sum(weights * low, axis=-1),
            "upper": 2.0 * jnp.sum(weights * high, axis=-1),
            "bound": bound,
            "mu": mu,
        }

    return jax.vmap(one)(keys, data, head, chosen, W, support)


def _ranks(random: np.random.Generator, trials: int) -> Data:
    """Lemma 17 on random matrices: least singular values of [A; B], and of B projected on P."""
    least, projected = [], []
    for _ in range(trials):
        n, m = random.integers(1, 5, size=2)
        p = int(n + m + random.integers(0, 4))
        A = random.normal(size=(n, p))
        null = np.linalg.svd(A)[2][n:]
        size = int(random.integers(m, p - n + 1))
        P = np.linalg.qr(null.T @ random.normal(size=(p - n, size)))[0]
        # Mostly in the row space of A: all that tells the rows apart lies in P.
        B = 1e-3 * random.normal(size=(m, size)) @ P.T + random.normal(size=(m, n)) @ A
        projected.append(np.linalg.svd(B @ P, compute_uv=False)[-1])
        least.append(np.linalg.svd(np.concatenate([A, B]), compute_uv=False)[-1])
    return {"rank_least": np.asarray(least), "rank_projected": np.asarray(projected)}


def _ratio_row(data: Data, source: str, name: str, inside: np.ndarray, where: str) -> Row:
    needed = np.maximum(data[f"{name}_ratio"][inside] - 1.0, 0.0).max(axis=0, initial=0.0)
    total = int(inside.sum())
    # The statement wants any π > 0 from some R on: what is needed must fall, at the end at least like 1/R.
    each = np.maximum(data[f"{name}_ratio"][inside] - 1.0, 0.0)
    falls = each[:, -1] <= 2.0 * needed[-2] * FACTORS[-2] / FACTORS[-1] + ROUNDING
    seen = needed > ROUNDING
    rate = None
    if seen.sum() >= 3:
        slope, half = fit(np.log(np.asarray(FACTORS)[seen]), np.log(needed[seen]))
        rate = Rate(-slope, half, None, law="the largest π needed against R")
    sizes = ", ".join(f"{x:.1e}" for x in needed)
    return Row(
        source,
        f"⟨∇L, W/‖W‖⟩ ≥ (1 + π)⟨∇L, W^mm/‖W^mm‖⟩ for every π > 0 from some R on, {where}, n = {N}, T = {T}, d = {D}",
        f"the largest π needed at {', '.join(f'{x:g}' for x in FACTORS)} times the proof's R_μ is {sizes}",
        total,
        int((~inside).sum()),
        float(needed[-1]),
        f"π needed at {FACTORS[-1]:g} R_μ",
        count_evidence(falls, decided=falls, limit=True, rate=rate),
        {f"pi_{x:g}": float(y) for x, y in zip(FACTORS, needed, strict=True)},
    )


def _bounds_row(data: Data, source: str, name: str, inside: np.ndarray, where: str) -> Row:
    push, lower, upper = (data[f"{name}_{what}"][inside] for what in ("push", "lower", "upper"))
    below, above = lower / push, push / upper
    wrong = (push <= 0) | (below > 1.0 + ROUNDING) | (above > 1.0 + ROUNDING)
    bad = int(wrong.sum())
    total = int(inside.sum())
    return Row(
        source,
        f"−⟨∇L(W), V⟩ lies between the bounds of the proof, so that there is no stationary point, {where}, n = {N}, "
        f"T = {T}, d = {D}",
        f"not at {bad} of {push.size} points ({total} instances at {', '.join(f'{x:g}' for x in FACTORS)} R); the "
        f"lower bound is at most {below.max(initial=0.0):.2f} of it, and it at most {above.max(initial=0.0):.2f} of "
        "the upper",
        total,
        int((~inside).sum()),
        float(max(below.max(initial=0.0), above.max(initial=0.0))),
        "lower bound / −⟨∇L, V⟩ / upper bound, each at most 1",
        count_evidence(np.asarray(~wrong.any(axis=tuple(range(1, wrong.ndim))))),
        {"bad": bad, "points": int(push.size)},
    )


def _sign_row(data: Data, inside: np.ndarray) -> Row:
    push = data["local_push"][inside]
    # The statement is for all R from some on: judged at the largest.
    bad, mended, total = int((push[:, 0, -1] <= 0).sum()), int((push[:, 1, -1] <= 0).sum()), int(inside.sum())
    return Row(
        "Lemma 13",
        f"−⟨∇L(W), V⟩ > 0 within cone_μ(W^mm_α) where some T_i is empty, μ of (67), n = {N}, T = {T}, d = {D}",
        f"not in {bad} of {total} instances at {FACTORS[-1]:g} R; with a δ over the tokens of all sequences, those "
        f"without support tokens too, not in {mended}",
        total,
        int((~inside).sum()),
        float(-push[:, 0, -1].min(initial=np.inf)) if total else float("inf"),
        "⟨∇L, V⟩ on its own scale; below 0",
        Evidence(total, bad),
        {"bad": bad, "mended": mended, "instances": total},
    )


def _row_17(data: Data) -> Row:
    least, projected = data["rank_least"], data["rank_projected"]
    inside = projected > 1e-9
    bad = int((least[inside] <= 1e-12).sum())
    return Row(
        "Lemma 17",
        "[A; B] has full row rank if A has and B projected on a subspace of the null space of A has; B nearly in the "
        "row space of A",
        f"{bad} of {int(inside.sum())} do not; the least singular value is {least[inside].min(initial=np.inf):.1e}",
        int(inside.sum()),
        int((~inside).sum()),
        float(least[inside].min(initial=np.inf)),
        "least singular value; above 0",
        Evidence(int(inside.sum()), bad),
        {"bad": bad},
    )

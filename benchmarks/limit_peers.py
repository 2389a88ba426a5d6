"""Limits a second, against what is run in their place: python benchmarks/limit_peers.py.

Ours is the block of `TokenSelection`, on as many cores as it takes: limits whose direction is certified to 1e-8, a
second. Against it stand 2,000 steps of descent: the published protocol in PyTorch, one instance after the other, with
`autograd`; and normalised descent, SGD and Adam by Optax, vmapped. None of these certifies anything: the gap that they
reached is computed here, by the multipliers of their ends, after their time has been taken.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import plain_flows as plain
from _common import Row, begun, best, clocked, missing, one_thread, spread

import jaxflow as jf
from jaxflow.limits import flow_certificate
from jaxflow.limits.self_certificate import select, settled
from jaxflow.margin import attention_svm
from jaxflow.study import TokenSelection

SIZE = {"n": 5, "T": 5, "d": 4}
# Instances of ours and of vmapped descent, and of PyTorch.
BLOCK, VMAPPED, ALONE = 500, 100, 4
STEPS, RATE, GAP = 2000, 0.1, 1e-8
CERTIFIED = (jf.Outcome.globally_optimal, jf.Outcome.locally_optimal, jf.Outcome.not_locally_optimal)
# Over the published protocol.
TARGETS = {"W": 1000.0, "KQ": 300.0}
NORMS = {"W": "frobenius", "KQ": "nuclear"}


def published(some: plain.Instances) -> np.ndarray:
    """Ends of the published protocol: normalised steps of 0.1, K and Q each by its own norm, as its authors run it."""
    torch, tiny = one_thread(), 2.0**-52
    ends = []
    for tokens, queries, labels, head, start in zip(*some.arrays, some.starts, strict=True):
        X, Z, y, v = (torch.from_numpy(part.copy()) for part in (tokens, queries, labels, head))
        d = X.shape[-1]
        shape = (1, d, d) if start.size == d * d else (2, d, d)
        parameters = [torch.from_numpy(part.copy()).requires_grad_() for part in start.reshape(shape)]
        for _ in range(STEPS):
            W = parameters[0] if len(parameters) == 1 else parameters[0] @ parameters[1].T
            attention = torch.softmax((X @ W @ Z[:, :, None]).squeeze(-1), dim=-1)
            outputs = (attention[:, None] @ X).squeeze(1) @ v
            loss = torch.nn.functional.softplus(-y * outputs).mean()
            if len(parameters) == 2:
                loss = loss + tiny * sum((part**2).sum() for part in parameters)
            loss.backward()
            with torch.no_grad():
                for part in parameters:
                    part -= RATE * part.grad / (part.grad.norm() + tiny)
                    part.grad = None
        ends.append(torch.stack(parameters).detach().numpy().ravel())
    return np.stack(ends)


def descended(optimizer: optax.GradientTransformation) -> Callable[..., Any]:
    """2,000 steps by Optax with `jax.grad`, compiled and vmapped."""

    def one(start: Any, *data: Any) -> Any:
        def step(_: Any, carry: Any) -> Any:
            flat, memory = carry
            updates, memory = optimizer.update(jax.grad(plain.attention_loss)(flat, *data), memory, flat)
            return optax.apply_updates(flat, updates), memory

        return jax.lax.fori_loop(0, STEPS, step, (start, optimizer.init(start)))[0]

    return jax.jit(jax.vmap(one))


def judged(risk: Any, model: Any, ends: np.ndarray, norm: str) -> Row:
    """Whether attention has settled at each end, and its duality gap by its own multipliers."""

    def one(risk: Any, model: Any, flat: Any) -> Any:
        if isinstance(model, jf.models.CombinedAttention):
            there = eqx.tree_at(lambda m: m.W, model, flat.reshape(model.W.shape))
        else:
            there = eqx.tree_at(lambda m: (m.K, m.Q), model, tuple(flat.reshape(2, *model.K.shape)))
        scaled, attention = risk.scaled_gradient(there), there.attention(risk.data)
        velocity = jax.tree.map(jnp.negative, scaled.gradient)
        program = attention_svm(risk.data, select(attention), norm)
        certificate, _ = flow_certificate(program, there, velocity, scaled.multipliers)
        return certificate.duality_gap, settled(attention)

    gaps, done = (np.asarray(part) for part in jax.jit(jax.vmap(one))(risk, model, jnp.asarray(ends)))
    # Where attention has not settled there is no selection, and no program whose gap would mean anything.
    gaps = np.where(done, gaps, np.inf)
    return {"own_gap": spread(gaps), "certified": int(np.sum(gaps <= GAP))}


def ours(experiment: TokenSelection, factors: Row, keys: Any) -> Row:
    """A block of the study."""
    block = experiment.block_function(factors, len(keys))
    jax.block_until_ready(block(keys))
    found, seconds = best(lambda: block(keys), 3, 20.0)
    certified = np.isin(found["outcome"], CERTIFIED)
    return {
        "method": "jaxflow, a study's block",
        "instances": len(keys),
        "own_gap": spread(np.asarray(found["flow_gap"])[certified]),
        "certified": int(certified.sum()),
        "certified_per_second": float(certified.sum()) / seconds.wall,
    }


def case_rows(name: str, scale: float) -> list[Row]:
    """Ours, and every descent on the first instances of the same block."""
    experiment, factors = TokenSelection(), {**SIZE, "parametrization": name}
    keys = jax.random.split(jax.random.key(0), max(16, int(BLOCK * scale)))
    vmapped, alone = max(4, int(VMAPPED * scale)), max(1, int(ALONE * scale))
    risk, model = jax.jit(jax.vmap(lambda key: experiment.setup(key, **factors)))(keys[:vmapped])
    some = plain.of_attention(risk, model)
    starts, *data = (jnp.asarray(part) for part in (some.starts, *some.arrays))

    common = {"model": name, "n_T_d": list(SIZE.values())}

    def peer(method: str, number: int, seconds: float, ends: np.ndarray, to_reach: float | None = None) -> Row:
        few = jax.tree.map(lambda leaf: leaf[:number], (risk, model))
        rate = number / seconds
        times = {"ends_per_second": rate, "ratio": mine["certified_per_second"] / rate, "ratio_to_reach": to_reach}
        return common | {"method": method, "instances": number} | times | judged(*few, ends, NORMS[name])

    # The published protocol before and after ours: the faster run counts.
    absent, protocol = missing("torch"), "PyTorch, published protocol"
    runs = [] if absent else [clocked(published, some.first(alone))]
    mine = ours(experiment, factors, keys)
    table = [common | mine]
    if absent:
        table.append(common | {"method": protocol, "not_installed": absent})
    else:
        runs.append(clocked(published, some.first(alone)))
        seconds = min(spent.wall for _, spent in runs)
        table.append(peer(protocol, alone, seconds, runs[0][0], TARGETS[name]))
    optimizers = {
        "vmap, normalised descent": optax.chain(optax.normalize_by_update_norm(eps=2.0**-52), optax.sgd(RATE)),
        "vmap, Optax SGD": optax.sgd(RATE),
        "vmap, Optax Adam": optax.adam(RATE),
    }
    for method, optimizer in optimizers.items():
        run = descended(optimizer)
        jax.block_until_ready(run(starts, *data))
        ends, spent = best(partial(run, starts, *data), 2)
        table.append(peer(method, vmapped, spent.wall, np.asarray(ends)))
    return table


if __name__ == "__main__":
    asked, record = begun(__doc__, "limit_peers", scale=1.0, peers=None, only="")
    for name in TARGETS:
        if asked.only in name:
            record.add(*case_rows(name, asked.scale))

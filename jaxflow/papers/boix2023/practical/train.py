"""Training with checkpoints: many runs at once, measured on the way."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Key, PyTree

from jaxflow._core import require, unknown_name
from jaxflow.papers.table import Table


class Recipe(NamedTuple):
    """Optimizer by name (`adam` or `sgd`), peak learning rate after a linear warm-up, steps, batch.

    The rate falls as a cosine to zero after the warm-up. No weight decay, no dropout.
    """

    optimizer: str
    rate: float
    warmup: int
    steps: int
    batch: int


# Appendix B, in steps of 50,000 images: 500 epochs of CIFAR with 15 of warm-up, by Adam and by SGD (whose batch and
# warm-up are not given), and 360 of ImageNet's 1,281,167 images.
ADAM_CIFAR = Recipe("adam", 1e-4, 15 * 98, 500 * 98, 512)
SGD_CIFAR = Recipe("sgd", 3e-1, 15 * 98, 500 * 98, 512)
ADAM_IMAGENET = Recipe("adam", 3e-3, 15 * 313, 360 * 313, 4096)

# 3 epochs of Wikitext-103: some 118 million tokens of GPT-2 in blocks of 256,
# 8 blocks on each of two devices. The rate falls linearly in the script that the paper used, as a cosine here.
ADAM_WIKITEXT = Recipe("adam", 3e-4, 0, 86_400, 16)

Loss = Callable[[Any, Any], Float[Array, ""]]
Draw = Callable[[Key[Array, ""], int], Any]
Measure = Callable[[Any, Any], PyTree]


def classification(model: Any, batch: Any) -> Float[Array, ""]:
    """Mean cross-entropy of `(images, labels)`."""
    images, labels = batch
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(jax.vmap(model)(images), labels))


def next_token(model: Any, batch: Any) -> Float[Array, ""]:
    """Mean cross-entropy of every next token of `(b, T + 1)` tokens."""
    outputs = jax.vmap(model)(batch[:, :-1])
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(outputs, batch[:, 1:]))


def image_batches(images: Any, labels: Any) -> Draw:
    """Independent draws with replacement."""
    images, labels = jnp.asarray(images, jnp.float32), jnp.asarray(labels, jnp.int32)

    def draw(key: Key[Array, ""], size: int) -> Any:
        rows = jax.random.randint(key, (size,), 0, images.shape[0])
        return images[rows], labels[rows]

    return draw


def text_batches(tokens: Any, length: int) -> Draw:
    """Windows of `length + 1` tokens that begin anywhere."""
    tokens = jnp.asarray(tokens, jnp.int32)
    require(tokens.shape[0] > length + 1, "tokens", f"a text of {tokens.shape[0]} tokens is shorter than {length + 2}")

    def draw(key: Key[Array, ""], size: int) -> Any:
        starts = jax.random.randint(key, (size,), 0, tokens.shape[0] - length - 1)
        return tokens[starts[:, None] + jnp.arange(length + 1)[None, :]]

    return draw


def optimizer_of(recipe: Recipe) -> optax.GradientTransformation:
    """**Raises:** `ValueError` with the nearest name."""
    schedule = optax.warmup_cosine_decay_schedule(0.0, recipe.rate, recipe.warmup, recipe.steps)
    known = {"adam": optax.adam, "sgd": optax.sgd}
    if recipe.optimizer not in known:
        raise unknown_name("optimizer", recipe.optimizer, known)
    return known[recipe.optimizer](schedule)


def train(
    models: Any,
    keys: Key[Array, " runs"],
    recipe: Recipe,
    loss: Loss,
    draw: Draw,
    measure: Measure,
    at: list[int],
    *,
    folder: Path | str | None = None,
    say: Callable[[str], None] = print,
) -> Table:
    """Trains a batch of models of one shape, each by its own batches, and measures at the given steps.

    **Arguments:** `models`: arrays with a leading axis of runs; `keys`: of each run's batches, of which step s takes
    `fold_in(key, s)`; `measure(model, initial model)`; `at`: increasing steps, the last at most `recipe.steps`;
    `folder`: for checkpoints; a run that finds some of its own there continues, exactly as if it had not stopped.

    **Returns:** `steps` `(m,)` at which was measured; `losses` `(m, runs)`; `measured`: a pytree with leading axes m,
    runs.

    **Raises:** `ValueError` for a checkpoint of another recipe.
    """
    require(bool(at) and at == sorted(set(at)) and 0 < at[0], "at", f"expected increasing steps from 1 on, got {at}")
    require(at[-1] <= recipe.steps, "at", f"{at[-1]} is past the last step {recipe.steps}")
    optimizer = optimizer_of(recipe)
    params, fixed = eqx.partition(models, eqx.is_inexact_array)
    kind = jnp.result_type(*jax.tree.leaves(params))
    first = params
    state = jax.vmap(optimizer.init)(params)

    def one_step(params: Any, state: Any, key: Any, step: Any) -> Any:
        batch = draw(jax.random.fold_in(key, step), recipe.batch)
        value, gradient = jax.value_and_grad(lambda p: loss(eqx.combine(p, fixed), batch))(params)
        updates, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, updates), state, value

    @jax.jit
    def advance(params: Any, state: Any, begin: Any, end: Any) -> Any:
        def body(step: Any, carry: Any) -> Any:
            params, state, _ = carry
            return jax.vmap(one_step, in_axes=(0, 0, 0, None))(params, state, keys, step)

        return jax.lax.fori_loop(begin, end, body, (params, state, jnp.zeros(keys.shape, kind)))

    # What is not trained is static, and shared by the runs.
    look = jax.jit(jax.vmap(lambda now, then: measure(eqx.combine(now, fixed), eqx.combine(then, fixed))))
    begin, done = 0, []
    store = None if folder is None else Path(folder)
    if store is not None:
        shapes = (jax.eval_shape(lambda k: jnp.zeros(k.shape, kind), keys), jax.eval_shape(look, params, first))
        entry = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes)
        begin, params, state, done = _restore(store, recipe, params, state, entry)
    for end in (step for step in at if step > begin):
        params, state, value = advance(params, state, begin, end)
        done.append((end, np.asarray(value), jax.device_get(look(params, first))))
        say(f"step {end} of {at[-1]}: loss {float(np.mean(done[-1][1])):.4f}")
        begin = end
        if store is not None:
            _save(store, recipe, begin, params, state, done)
    kept = [entry for entry in done if entry[0] in at]
    measured = jax.tree.map(lambda *x: np.stack(x), *[entry[2] for entry in kept])
    steps, losses = np.array([entry[0] for entry in kept]), np.stack([entry[1] for entry in kept])
    return Table(steps=steps, losses=losses, measured=measured)


def _save(store: Path, recipe: Recipe, step: int, params: Any, state: Any, done: list[Any]) -> None:
    store.mkdir(parents=True, exist_ok=True)
    eqx.tree_serialise_leaves(store / "state.partial", (params, state, [entry[1:] for entry in done]))
    (store / "state.partial").replace(store / f"state-{step}.eqx")
    note = {"recipe": recipe._asdict(), "step": step, "measured": [entry[0] for entry in done]}
    # The note names the state it belongs to and comes last: an interrupted write leaves the previous pair.
    (store / "note.partial").write_text(json.dumps(note), encoding="utf-8")
    (store / "note.partial").replace(store / "note.json")
    for old in store.glob("state-*.eqx"):
        if old.name != f"state-{step}.eqx":
            old.unlink()


def _restore(store: Path, recipe: Recipe, params: Any, state: Any, measured: Any) -> tuple[int, Any, Any, list[Any]]:
    """What `_save` left; `measured` shows the shape of one entry."""
    if not (store / "note.json").exists():
        return 0, params, state, []
    note = json.loads((store / "note.json").read_text(encoding="utf-8"))
    found = Recipe(**note["recipe"])
    require(found == recipe, "folder", f"{store} holds a run with {found}, not {recipe}")
    like = (params, state, [measured for _ in note["measured"]])
    params, state, entries = eqx.tree_deserialise_leaves(store / f"state-{note['step']}.eqx", like)
    return note["step"], params, state, [(step, *entry) for step, entry in zip(note["measured"], entries, strict=True)]

"""Small valid arguments that the tables share, and what an argument of each name may be, unless a table says else."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxflow as jf
from tests.arguments import kinds as k

N, T, D = 3, 4, 2
TOKENS = np.random.default_rng(0).normal(size=(N, T, D))
QUERIES = np.random.default_rng(1).normal(size=(N, D))
LABELS = np.array([1.0, -1.0, 1.0])
HEAD = jnp.array([0.6, -0.8])
SELECTION = np.eye(T, dtype=bool)[[0, 1, 2]]
MASK = np.ones((N, T), bool)
SCORES = np.arange(12.0).reshape(N, T)
MATRIX, VECTOR = np.array([[1.0, 2.0], [3.0, 5.0]]), np.array([1.0, 2.0])

DATA = jf.data.TokenData(TOKENS, QUERIES, LABELS)
MODEL = jf.models.CombinedAttention(MATRIX, HEAD)
RISK = jf.EmpiricalRisk(DATA, "logistic")

INPUTS = np.array([[1.0, 0.5], [0.3, 1.0], [0.2, -0.4]])
LINEAR = jf.data.LinearData(INPUTS, LABELS)
LAYERS = (VECTOR, np.array([0.5, 0.1]))
NETWORK = jf.models.DiagonalLinearNetwork(LAYERS)
LINEAR_RISK = jf.EmpiricalRisk(LINEAR, "exponential")
HADAMARD = jf.models.HadamardNetwork(jf.models.DiagonalLinear(), np.array([0.1, 0.2]), np.array([0.05, 0.1]))
VECTOR_PROGRAM = jf.margin.max_margin(INPUTS, LABELS)
SOLUTION = jf.margin.Solution(
    jnp.zeros((D, D)),
    jnp.zeros((N, T)),
    jf.margin.Certificate.none(),
    jf.Code(0, jf.margin.ProgramResult),
    jnp.asarray(0),
)

# What is no prediction head.
NO_HEAD = (None, "abc", {}, 3, True, np.array(["a", "b"]), jnp.asarray(1.0), VECTOR + 1j)
# A model of the wrong kind or shape, or with a NaN; where none goes, nor a class in place of an object.
OTHER_SIZE = jf.models.CombinedAttention(np.ones((3, 3)), HEAD)
BAD_MODELS = (jf.models.CombinedAttention(MATRIX * k.NAN, HEAD), OTHER_SIZE)
NO_MODEL = (None, 3, "abc", {}, jnp.ones(2), jf.models.CombinedAttention, *BAD_MODELS)
NO_LAYERS = ((), [VECTOR], (VECTOR, "a"), (VECTOR, None), (VECTOR, VECTOR + 1j), [[1.0, [2.0]]])
NO_LAYERS += ((VECTOR, np.ones(3)), (MATRIX, MATRIX))


def own(x: jax.Array) -> jax.Array:
    """A model that is a function."""
    return x.sum()


POSITIVE, RATIO = k.number(positive=True), k.number(positive=True, most=1.0)
NONNEGATIVE, FAR = k.number(least=0.0), (100.0, k.optional(POSITIVE))
# Parameters may hold NaN: a flow that fails is a result.
PARAMETER, FIRST, FREE = k.array(nan=True), k.array(nan=True, higher=False), k.array(lower=False, higher=False)

# Of each name: a valid value, its kind, and further wrong values.
USUAL: dict[str, tuple[Any, ...]] = {
    "K": (MATRIX, FIRST),
    "Q": (MATRIX, PARAMETER),
    "T": (3, k.count(2)),
    "W": (MATRIX, FIRST),
    "adjoint": (None, k.optional(k.thing)),
    "alpha": (1.0, k.number()),
    "attention": (np.full((3, 4), 0.25), k.array(), np.full((3, 4), -0.25)),
    "batch": (2, k.optional(k.count())),
    "cap": (10.0, k.number(positive=True, infinite=True)),
    "causal": (True, k.boolean),
    "certify": (own, k.function),
    "change": (1e-4, POSITIVE),
    "chunk": (4, k.count()),
    "clock": ("log_time", k.thing),
    "controller": (None, k.optional(k.thing)),
    "coordinates": (None, k.optional(k.thing)),
    "d": (2, k.count()),
    "data": (DATA, k.thing),
    "decay": (0.0, NONNEGATIVE),
    "decomposition": (None, k.optional(k.thing)),
    "degree": (1, k.count()),
    "depth": (2, k.count(2)),
    "draws": (5, k.count()),
    "dt0": (None, k.optional(POSITIVE)),
    "dual": (LABELS, k.optional(k.array(nan=True))),
    "epsilon": (0.0, NONNEGATIVE),
    "far": FAR,
    "figure": ("fig1", k.thing),
    "floor": (0.0, NONNEGATIVE),
    "folder": (None, k.optional(k.path), b"abc", ["a"]),
    "gap": (1e-3, POSITIVE),
    "hard_margin_steps": (8, k.count()),
    "head": (HEAD, None, *NO_HEAD),
    "horizon": FAR,
    "inputs": (INPUTS, k.array()),
    "k": (3, k.optional(k.count()), 2),
    "key": (k.KEY, k.key),
    "labels": (LABELS, k.array(), [1.0, 0.0, 2.0]),
    "lead": (0.5, k.optional(NONNEGATIVE)),
    "learning_rate": (0.1, k.optional(POSITIVE)),
    "log_alpha": (-3.0, k.number(), 0.0, 1.0),
    "log_arc_length": (3.0, k.number(infinite=True)),
    "log_excess": (-3.0, k.number()),
    "log_loss": (-100.0, k.number(), 0.0, 1.0),
    "log_time": (3.0, k.number(infinite=True)),
    "loss": ("exponential", k.thing, "", b"abc", True, jnp.ones(2)),
    "m": (2, k.optional(k.count())),
    "margins": (own, k.function),
    "mask": (MASK, k.optional(k.mask), "abc", 0.5, k.KEY),
    "matrix": (MATRIX, k.array(nan=True, lower=False)),
    "max_iterations": (20, k.count()),
    "max_stages": (2, k.optional(k.count())),
    "max_steps": (8, k.count()),
    "max_time": (3.0, k.number(positive=True, infinite=True)),
    "model": (MODEL, None, *NO_MODEL),
    "n": (2, k.count()),
    "near": FAR,
    "norm": ("l2", k.thing),
    "normalised": ("jointly", None, "joint", None, True, 3, [], jnp.ones(2)),
    "only": ((), k.sequence, "single", ["no such"], [3]),
    "optimizer": (None, k.optional(k.thing)),
    "out": ("o", k.optional(k.path)),
    "overwrite": (False, k.boolean),
    "p": (1.5, POSITIVE),
    "paper": ("yun2021", k.thing),
    "pieces": (8, k.count()),
    "position_heads": (False, k.boolean),
    "potential": (1.5, POSITIVE),
    "primal": (MATRIX, k.array()),
    "program": (VECTOR_PROGRAM, k.thing),
    "progress": (False, k.boolean, "yes", 3, 1.0, {}, []),
    "pull": (None, k.optional(NONNEGATIVE)),
    "queries": (QUERIES, k.array()),
    "rank": (2, k.optional(k.count())),
    "reduction": ("sum", k.thing, "", b"mean", True, jnp.ones(2)),
    "report": (None, k.optional(k.function)),
    "ridge": (0.0, NONNEGATIVE),
    "risk": (RISK, k.thing),
    "rows": (INPUTS, k.array()),
    "rtol": (1e-3, RATIO),
    "saves": (8, k.count(0)),
    "say": (print, k.function),
    "scale": ("quick", k.thing),
    "scheme": ("random", k.thing),
    "score_gap": (0.1, k.number(least=0.0, most=1.0)),
    "scores": (SCORES, k.array(nan=True, lower=False, higher=False)),
    "seed": (0, k.seed),
    "selection": (SELECTION, k.mask, SELECTION.astype(int)),
    "self_attention": (False, k.boolean),
    "separate": (False, k.boolean),
    "solution": (SOLUTION, k.thing),
    "solver": (None, k.optional(k.thing)),
    "source": ("program", k.thing),
    "sparse": (False, k.boolean),
    "starts": (2, k.count()),
    "steps": (3, k.count(0)),
    "stop": (None, k.optional(k.thing)),
    "store_path": ("r.zarr", k.path, "/", ""),
    "symmetric": (False, k.boolean),
    "targets": (LABELS, k.array()),
    "throw": (False, k.boolean),
    "timed": (True, k.boolean),
    "tokens": (TOKENS, k.array(higher=False), np.ones((0, 4, 2))),
    "tolerance": (1e-6, POSITIVE),
    "trainable": (None, None, "abc", 3, True, 1j),
    "transform": (np.eye(2), k.optional(k.array(mixed=True))),
    "unit": (1.0, POSITIVE),
    "until": (1.0, k.number()),
    "value": (own, k.function),
    "verify": (False, k.boolean),
    "visible": (MASK, k.mask, MASK.astype(int)),
    "weights": (LAYERS, k.sequence, *NO_LAYERS),
}

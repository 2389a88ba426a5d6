"""Small valid arguments that the tables share, and what an argument of a usual name may be."""

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
PROGRAM = jf.margin.attention_svm(DATA, SELECTION)
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
BAD_MODELS = (jf.models.CombinedAttention(MATRIX * k.NAN, HEAD), jf.models.CombinedAttention(np.ones((3, 3)), HEAD))
NO_MODEL = (None, 3, "abc", {}, jnp.ones(2), jf.models.CombinedAttention, *BAD_MODELS)


def own(x: jax.Array) -> jax.Array:
    """A model that is a function."""
    return x.sum()


USUAL = {
    "key": (k.KEY, k.key()),
    "n": (2, k.count()),
    "T": (3, k.count(2)),
    "d": (2, k.count()),
    "depth": (2, k.count(2)),
    "data": (DATA, k.instance()),
    "head": (HEAD, k.values(*NO_HEAD)),
    "risk": (RISK, k.instance()),
    "model": (MODEL, k.values(*NO_MODEL)),
    "selection": (SELECTION, k.mask()),
    "visible": (MASK, k.mask()),
    "inputs": (INPUTS, k.array()),
    "trainable": (None, k.values("abc", 3, True, 1j)),
    "until": (1.0, k.number()),
    "unit": (1.0, k.number(positive=True)),
    "floor": (0.0, k.number(least=0.0)),
    "tolerance": (1e-6, k.number(positive=True)),
    "gap": (1e-3, k.number(positive=True)),
    "dt0": (None, k.number(positive=True, nothing=True)),
    "max_steps": (8, k.count()),
    "stop": (None, k.instance(nothing=True)),
    "report": (None, k.function(nothing=True)),
    "timed": (True, k.boolean()),
    "pairs": (False, k.boolean()),
    "overwrite": (False, k.boolean()),
    "throw": (False, k.boolean()),
    "progress": (False, k.values("yes", None, 3, 1.0, {}, [])),
}

"""Small valid arguments that the tables share, and what an argument of a usual name may be."""

import diffrax
import jax
import jax.numpy as jnp
import numpy as np

import jaxflow as jf
from tests.arguments.kinds import (
    KEY,
    NAN,
    array,
    boolean,
    choice,
    count,
    function,
    instance,
    key,
    mask,
    number,
    text,
    values,
)

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
CERTIFICATE = jf.margin.Certificate.none()
SOLUTION = jf.margin.Solution(
    jnp.zeros((D, D)), jnp.zeros((N, T)), CERTIFICATE, jf.Code(0, jf.margin.ProgramResult), jnp.asarray(0)
)

# What is no prediction head.
NO_HEAD = (None, "abc", {}, 3, True, np.array(["a", "b"]), jnp.asarray(1.0), VECTOR + 1j)
# A model of the wrong kind or shape, or with a NaN; where none goes, nor a class in place of an object.
BAD_MODELS = (jf.models.CombinedAttention(MATRIX * NAN, HEAD), jf.models.CombinedAttention(np.ones((3, 3)), HEAD))
NO_MODEL = (None, 3, "abc", {}, jnp.ones(2), jf.models.CombinedAttention, *BAD_MODELS)


def own(x: jax.Array) -> jax.Array:
    """A model that is a function."""
    return x.sum()


USUAL = {
    "key": (KEY, key()),
    "n": (2, count()),
    "T": (3, count(2)),
    "d": (2, count()),
    "depth": (2, count(2)),
    "data": (DATA, instance()),
    "head": (HEAD, values(*NO_HEAD)),
    "risk": (RISK, instance()),
    "model": (MODEL, values(*NO_MODEL)),
    "network": (NETWORK, instance()),
    "program": (PROGRAM, instance()),
    "loss": (jf.losses.Logistic(), instance()),
    "selection": (SELECTION, mask()),
    "visible": (MASK, mask()),
    "inputs": (INPUTS, array()),
    "targets": (LABELS, array()),
    "start": (VECTOR, array()),
    "norm": ("frobenius", choice()),
    "scheme": ("random", choice()),
    "theorem": ("Theorem 2", text()),
    "trainable": (None, values("abc", 3, True, 1j)),
    "until": (1.0, number()),
    "unit": (1.0, number(positive=True)),
    "alpha": (1.0, number()),
    "floor": (0.0, number(least=0.0)),
    "tolerance": (1e-6, number(positive=True)),
    "gap": (1e-3, number(positive=True)),
    "dt0": (None, number(positive=True, nothing=True)),
    "max_steps": (8, count()),
    "clock": (jf.LogTime(), instance()),
    "solver": (diffrax.Tsit5(), instance()),
    "controller": (diffrax.ConstantStepSize(), instance()),
    "stop": (None, instance(nothing=True)),
    "report": (None, function(nothing=True)),
    "timed": (True, boolean()),
    "pairs": (False, boolean()),
    "shared": (False, boolean()),
    "overwrite": (False, boolean()),
    "throw": (False, boolean()),
    "progress": (False, values("yes", None, 3, 1.0, {}, [])),
    "width": (3.0, number(positive=True)),
    "height": (3.0, number(positive=True)),
}

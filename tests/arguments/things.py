"""Small valid arguments that the tables share."""

import jax
import jax.numpy as jnp
import numpy as np

import jaxflow as jf
from jaxflow.papers.sheen2024.frame import Frame

KEY = jax.random.key(0)
N, T, D = 3, 4, 2
TOKENS = np.random.default_rng(0).normal(size=(N, T, D))
QUERIES = np.random.default_rng(1).normal(size=(N, D))
LABELS = np.array([1.0, -1.0, 1.0])
HEAD = jnp.array([0.6, -0.8])
SELECTION = np.eye(T, dtype=bool)[[0, 1, 2]]
MATRIX = np.array([[1.0, 2.0], [3.0, 5.0]])

DATA = jf.data.TokenData(TOKENS, QUERIES, LABELS)
MODEL = jf.models.CombinedAttention(MATRIX, HEAD)
RISK = jf.EmpiricalRisk(DATA, "logistic")

INPUTS = np.array([[1.0, 0.5], [0.3, 1.0], [0.2, -0.4]])
LINEAR = jf.data.LinearData(INPUTS, LABELS)
LAYERS = (np.array([1.0, 2.0]), np.array([0.5, 0.1]))
NETWORK = jf.models.DiagonalLinearNetwork(LAYERS)
LINEAR_RISK = jf.EmpiricalRisk(LINEAR, "exponential")
SQUARED = jf.EmpiricalRisk(LINEAR, "squared")

SAMPLES = jf.data.SampleData(np.ones((3, 2)), np.zeros(3))
HADAMARD = jf.models.HadamardNetwork(jf.models.DiagonalLinear(), np.array([0.1, 0.2]), np.array([0.05, 0.1]))
DECOMPOSITION = jf.models.Decomposition(jnp.eye(2), (jnp.eye(2), jnp.eye(2)))
FRAME = Frame(jnp.eye(2), jnp.eye(2), jnp.array([0, 1, 2]))
PROGRAM = jf.margin.attention_svm(DATA, SELECTION)
VECTOR_PROGRAM = jf.margin.max_margin(INPUTS, LABELS)
CERTIFICATE = jf.margin.Certificate.none()
SOLUTION = jf.margin.Solution(
    jnp.zeros((D, D)), jnp.zeros((N, T)), CERTIFICATE, jf.Code(0, jf.margin.ProgramResult), jnp.asarray(0)
)


def own(x: jax.Array) -> jax.Array:
    """A model that is a function."""
    return x.sum()

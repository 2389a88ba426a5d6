"""Calls of models and margin."""

import jax.numpy as jnp
import numpy as np

import jaxflow as jf
from tests.arguments.harness import Call, call
from tests.arguments.kinds import (
    NAN,
    array,
    boolean,
    choice,
    count,
    function,
    instance,
    integers,
    mask,
    number,
    sequence,
    values,
)
from tests.arguments.usual import (
    DATA,
    HEAD,
    INPUTS,
    LABELS,
    LAYERS,
    LINEAR,
    MATRIX,
    MODEL,
    PROGRAM,
    SCORES,
    SELECTION,
    SOLUTION,
    VECTOR,
    VECTOR_PROGRAM,
)

m, g = jf.models, jf.margin
# Parameters may hold NaN: a flow that fails is a result.
PARAMETER, FIRST = array(nan=True), array(nan=True, higher=False)
POINTS = (INPUTS, array(lower=False, higher=False))
NETWORKS = ("key", "alpha", "scheme")


def layers_of(*wrong):
    return sequence((), [VECTOR], (VECTOR, "a"), (VECTOR, None), (VECTOR, VECTOR + 1j), [[1.0, [2.0]]], *wrong)


MODELS: list[Call] = [
    call(m.CombinedAttention, "head", W=(MATRIX, FIRST)),
    call(m.FactoredAttention, "head", K=(MATRIX, FIRST), Q=(MATRIX, PARAMETER)),
    call(m.DiagonalAttention, "head", k=(VECTOR, FIRST), q=(VECTOR, PARAMETER)),
    call(m.PromptAttention, "head", p=(VECTOR, FIRST), K=(MATRIX, array(nan=True, higher=False, nothing=True))),
    call(m.NextTokenAttention, W=(MATRIX, FIRST), embeddings=(INPUTS, array(nan=True, higher=False))),
    call(m.NextTokenAttention.init, "key", embeddings=(INPUTS, array(lower=False, higher=False))),
    call(m.CombinedAttention.init, "key", "data", "head"),
    call(m.FactoredAttention.init, "key", "data", "head", m=(2, count(nothing=True))),
    call(m.DiagonalAttention.init, "key", "data", "head"),
    call(m.PromptAttention.init, "key", "data", "head", K=(MATRIX, array(nan=True, higher=False, nothing=True))),
    call(m.MultiHeadAttention.init, "key", "data", heads=([HEAD, HEAD], sequence([], [None]))),
    call(m.MultiHeadAttention, parts=((MODEL,), sequence((), (3,), (MODEL, "a")))),
    call(m.LinearHead, v=(VECTOR, FIRST)),
    call(m.MLPHead, V=(MATRIX, FIRST)),
    call(m.ConcaveHead, v=(VECTOR, FIRST), lam=(0.1, values("a", None, 1j, {}, True))),
    call(m.PositionHeads, heads=((HEAD, HEAD), sequence((), (None,), ("a",), (m.PositionHeads((HEAD,)),)))),
    call(lambda head: m.FunctionHead(head), row="FunctionHead", head=(jnp.sum, function())),
    call(lambda model: m.OwnModel(model), row="OwnModel", model=(jnp.sum, values(None, 3, NAN, "abc", {}, []))),
    call(m.as_head, "head"),
    call(
        m.HadamardNetwork,
        h=(m.DiagonalLinear(), function()),
        u=(VECTOR, FIRST),
        v=(VECTOR, PARAMETER),
        logs=(None, instance(nothing=True)),
    ),
    call(m.HadamardNetwork.init, "key", h=(m.DiagonalLinear(), function()), p=(3, count()), log_scale=(0.0, number())),
    call(m.DiagonalTransformer.init, "key", "d", layers=(1, count()), heads=(1, count()), m=(2, count())),
    call(m.DiagonalLinearNetwork, weights=(LAYERS, layers_of((VECTOR, np.ones(3)), (MATRIX, MATRIX)))),
    call(m.DeepLinearNetwork, weights=((MATRIX, VECTOR), layers_of((VECTOR, MATRIX), (MATRIX, np.ones(3))))),
    call(m.DeepMatrixSensing, weights=((MATRIX, MATRIX), layers_of((MATRIX, np.ones((3, 2)))))),
    call(m.LinearConvolutionalNetwork, weights=((VECTOR, VECTOR), layers_of((np.ones(3), VECTOR)))),
    call(
        m.LinearTensorNetwork,
        data_tensor=(np.ones((2, 2, 2)), PARAMETER),
        weights=(LAYERS, layers_of((VECTOR, np.ones(3)))),
        activation=(None, function(nothing=True)),
        decomposition=(None, instance(nothing=True)),
    ),
    call(m.DiagonalLinearNetwork.init, *NETWORKS, "depth", data=(LINEAR, instance())),
    call(m.DeepLinearNetwork.init, *NETWORKS, data=(LINEAR, instance())),
    call(m.LinearConvolutionalNetwork.init, *NETWORKS, data=(LINEAR, instance())),
    call(m.as_tensor_network, "network"),
    call(
        m.contract,
        tensor=(np.ones((2, 2)), array(mixed=True, higher=False)),
        vectors=((VECTOR, VECTOR), sequence(("a", "b"), (VECTOR, np.ones(3)))),
        skip=(None, values(7, -1, kind=count(0, nothing=True))),
    ),
    call(m.convolution, a=(np.ones(3), array()), b=(VECTOR, values(np.ones(4), kind=array()))),
    call(m.cross_correlation, a=(np.ones(3), array()), b=(VECTOR, array())),
    call(m.convolutional_tensor, "d", sizes=((2, 2), sequence((), (0, 2), (2.5, 2), ("a",)))),
    call(m.diagonal_tensor, "d", "depth"),
    call(m.fully_connected_tensor, dims=((2, 2), sequence((), (0, 2), (2.5, 2), ("a",)))),
    call(m.decomposition_of, "network"),
    call(m.even_decomposition, "depth", d=(2, count(2))),
    call(m.even_part, x=(VECTOR, array(lower=False, higher=False))),
    call(m.real_decomposition, "network", "inputs"),
    call(m.head_gradients, "head", points=POINTS),
    call(m.head_outputs, "head", points=POINTS),
    call(m.token_scores, "data", "head"),
    call(m.token_slopes, "data", gradients=(INPUTS, array())),
    call(m.mix, "data", attention=(SCORES, array())),
    call(m.log_attention, "visible", logits=(SCORES, array(infinite=True, lower=False, higher=False))),
    call(
        m.Saturation.at,
        "visible",
        logits=(SCORES, array(infinite=True, lower=False, higher=False)),
        slopes=(SCORES, array(lower=False, higher=False)),
    ),
    call(
        m.linearize_outputs,
        outputs=(lambda model: model.outputs(DATA), function()),
        model=(MODEL, None),
        trainable=(True, None),
    ),
    call(m.outputs_of, "data", model=(MODEL, values(None, 3, "abc", {}, jnp.ones(2)))),
]

MARGIN: list[Call] = [
    call(g.attention_svm, "data", "selection", norm=("frobenius", values(g.Lp(0.5), kind=choice()))),
    call(g.prompt_svm, "data", "selection", K=(MATRIX, array(nan=True, nothing=True))),
    call(
        lambda selection: g.attention_svm(DATA, selection),
        row="attention_svm by indices",
        selection=([0, 1, 2], integers([0, 1, 7], [-1, 0, 0], [0, 1])),
    ),
    call(g.recession_cone, rows=(INPUTS, array())),
    call(
        g.max_margin,
        "inputs",
        labels=(LABELS, array(wrong=([1.0, 0.0, 2.0],))),
        norm=("l2", values("nuclear", kind=choice())),
        transform=(np.eye(2), values("fft", kind=array(mixed=True, nothing=True))),
    ),
    call(
        g.minimum_norm,
        *("inputs", "targets"),
        norm=("l2", choice()),
        transform=(np.eye(2), array(mixed=True, nothing=True)),
    ),
    call(
        g.completion,
        matrix=(MATRIX, array(nan=True, lower=False)),
        mask=(None, values("a", 3, np.ones(2, bool), MATRIX, {})),
        norm=("nuclear", choice()),
        symmetric=(False, boolean()),
    ),
    call(g.Nuclear, rank=(2, count(nothing=True))),
    call(g.Lp, p=(1.5, number(positive=True))),
    call(g.Schatten, p=(1.5, number(positive=True))),
    call(
        g.solve,
        program=(PROGRAM, instance()),
        tolerance=(1e-6, number(positive=True, nothing=True)),
        max_steps=(5, count(nothing=True)),
        starts=(2, count()),
        solver=(None, function(nothing=True)),
    ),
    call(g.solve_cvxpy, program=(VECTOR_PROGRAM, instance()), solver=("CLARABEL", choice())),
    call(
        g.certify,
        program=(VECTOR_PROGRAM, instance()),
        primal=(VECTOR, array(nan=True)),
        dual=(LABELS, array(nan=True, nothing=True)),
        source=("program", choice()),
    ),
    call(
        g.finite_component,
        *("data", "selection"),
        attention=(np.full((3, 4), 0.25), array(wrong=(np.full((3, 4), -0.25),))),
    ),
    call(g.enumerate_selections, "data", "head", "norm", chunk=(4, count())),
    call(g.is_locally_optimal, "data", "head", selection=(SELECTION, mask()), solution=(SOLUTION, instance())),
    call(g.numerical_rank, "tolerance", primal=(MATRIX, array())),
]

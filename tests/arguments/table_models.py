"""Calls of models and margin."""

import jax.numpy as jnp
import numpy as np

import jaxflow as jf
from jaxflow.papers.tarzanagh2023.combination import best_combination
from tests.arguments.harness import Call, call
from tests.arguments.kinds import (
    NAN,
    array,
    choice,
    count,
    function,
    instance,
    integers,
    key,
    mask,
    number,
    sequence,
    values,
)
from tests.arguments.table_core import SCORES
from tests.arguments.things import (
    DATA,
    HEAD,
    INPUTS,
    KEY,
    LABELS,
    LAYERS,
    LINEAR,
    MATRIX,
    MODEL,
    NETWORK,
    PROGRAM,
    SELECTION,
    SOLUTION,
    VECTOR_PROGRAM,
)

m, th, g = jf.models, jf.theory, jf.margin
VECTOR = np.array([1.0, 2.0])
# What is no prediction head.
NO_HEAD = (None, "abc", {}, 3, 1.0, True, np.array(["a", "b"]), jnp.asarray(1.0), VECTOR + 1j, b"abc")
MASK = np.ones((3, 4), bool)
ROWS = np.arange(6.0).reshape(3, 2)


def layers_of(*wrong):
    return sequence(
        (),
        [VECTOR],
        (VECTOR, "a"),
        (VECTOR, None),
        (VECTOR, VECTOR + 1j),
        (VECTOR, np.ones(2, bool)),
        [[1.0, [2.0]]],
        *wrong,
    )


STARTED = {"key": (KEY, key()), "data": (DATA, instance()), "head": (HEAD, values(*NO_HEAD))}
NETWORKS = {"key": (KEY, key()), "data": (LINEAR, instance()), "alpha": (1.0, number()), "scheme": ("random", choice())}
MODELS: list[Call] = [
    call(
        "CombinedAttention",
        m.CombinedAttention,
        W=(MATRIX, array(nan=True, higher=False)),
        head=(HEAD, values(*NO_HEAD)),
    ),
    call(
        "FactoredAttention",
        m.FactoredAttention,
        K=(MATRIX, array(nan=True, higher=False)),
        Q=(MATRIX, array(nan=True)),
        head=(HEAD, values(*NO_HEAD)),
    ),
    call(
        "DiagonalAttention",
        m.DiagonalAttention,
        k=(VECTOR, array(nan=True, higher=False)),
        q=(VECTOR, array(nan=True)),
        head=(HEAD, values(*NO_HEAD)),
    ),
    call("CombinedAttention.init", m.CombinedAttention.init, **STARTED),
    call("FactoredAttention.init", m.FactoredAttention.init, **STARTED, m=(2, count(nothing=True))),
    call("DiagonalAttention.init", m.DiagonalAttention.init, **STARTED),
    call(
        "MultiHeadAttention.init",
        m.MultiHeadAttention.init,
        key=(KEY, key()),
        data=(DATA, instance()),
        heads=([HEAD, HEAD], sequence([], [None])),
    ),
    call("MultiHeadAttention", m.MultiHeadAttention, parts=((MODEL,), sequence((), (3,), (MODEL, "a")))),
    call("LinearHead", m.LinearHead, v=(VECTOR, array(nan=True, higher=False))),
    call("MLPHead", m.MLPHead, V=(MATRIX, array(nan=True, higher=False))),
    call(
        "ConcaveHead",
        m.ConcaveHead,
        v=(VECTOR, array(nan=True, higher=False)),
        lam=(0.1, values("a", None, 1j, {}, True)),
    ),
    call(
        "PositionHeads",
        m.PositionHeads,
        heads=((HEAD, HEAD), sequence((), (None,), ("a",), (m.PositionHeads((HEAD,)),))),
    ),
    call("FunctionHead", lambda head: m.FunctionHead(head), head=(jnp.sum, function())),
    call("OwnModel", lambda model: m.OwnModel(model), model=(jnp.sum, values(None, 3, 2.5, NAN, "abc", {}, []))),
    call("as_head", m.as_head, head=(HEAD, values(*NO_HEAD))),
    call(
        "HadamardNetwork",
        m.HadamardNetwork,
        h=(m.DiagonalLinear(), function()),
        u=(VECTOR, array(nan=True, higher=False)),
        v=(VECTOR, array(nan=True)),
        logs=(None, instance(nothing=True)),
    ),
    call(
        "HadamardNetwork.init",
        m.HadamardNetwork.init,
        key=(KEY, key()),
        h=(m.DiagonalLinear(), function()),
        p=(3, count()),
        log_scale=(0.0, number()),
    ),
    call(
        "DiagonalTransformer.init",
        m.DiagonalTransformer.init,
        key=(KEY, key()),
        d=(2, count()),
        layers=(1, count()),
        heads=(1, count()),
        m=(2, count()),
    ),
    call(
        "DiagonalLinearNetwork",
        m.DiagonalLinearNetwork,
        weights=(LAYERS, layers_of((VECTOR, np.ones(3)), (MATRIX, MATRIX))),
    ),
    call(
        "DeepLinearNetwork",
        m.DeepLinearNetwork,
        weights=((MATRIX, VECTOR), layers_of((VECTOR, MATRIX), (MATRIX, np.ones(3)))),
    ),
    call("DeepMatrixSensing", m.DeepMatrixSensing, weights=((MATRIX, MATRIX), layers_of((MATRIX, np.ones((3, 2)))))),
    call(
        "LinearConvolutionalNetwork",
        m.LinearConvolutionalNetwork,
        weights=((VECTOR, VECTOR), layers_of((np.ones(3), VECTOR))),
    ),
    call(
        "LinearTensorNetwork",
        m.LinearTensorNetwork,
        data_tensor=(np.ones((2, 2, 2)), array(nan=True)),
        weights=(LAYERS, layers_of((VECTOR, np.ones(3)))),
        activation=(None, function(nothing=True)),
        decomposition=(None, instance(nothing=True)),
    ),
    call("DiagonalLinearNetwork.init", m.DiagonalLinearNetwork.init, **NETWORKS, depth=(2, count(2))),
    call("DeepLinearNetwork.init", m.DeepLinearNetwork.init, **NETWORKS),
    call("LinearConvolutionalNetwork.init", m.LinearConvolutionalNetwork.init, **NETWORKS),
    call("as_tensor_network", m.as_tensor_network, network=(NETWORK, instance())),
    call(
        "contract",
        m.contract,
        tensor=(np.ones((2, 2)), array(mixed=True, higher=False)),
        vectors=((VECTOR, VECTOR), sequence(("a", "b"), (VECTOR, np.ones(3)))),
        skip=(None, values(7, -1, kind=count(0, nothing=True))),
    ),
    call("convolution", m.convolution, a=(np.ones(3), array()), b=(VECTOR, values(np.ones(4), kind=array()))),
    call("cross_correlation", m.cross_correlation, a=(np.ones(3), array()), b=(VECTOR, array())),
    call(
        "convolutional_tensor",
        m.convolutional_tensor,
        d=(2, count()),
        sizes=((2, 2), sequence((), (0, 2), (2.5, 2), ("a",))),
    ),
    call("diagonal_tensor", m.diagonal_tensor, d=(2, count()), depth=(2, count(2))),
    call("fully_connected_tensor", m.fully_connected_tensor, dims=((2, 2), sequence((), (0, 2), (2.5, 2), ("a",)))),
    call("decomposition_of", m.decomposition_of, network=(NETWORK, instance())),
    call("even_decomposition", m.even_decomposition, d=(2, count(2)), depth=(2, count(2))),
    call("even_part", m.even_part, x=(VECTOR, array(lower=False, higher=False))),
    call("real_decomposition", m.real_decomposition, network=(NETWORK, instance()), inputs=(INPUTS, array())),
    call(
        "head_gradients",
        m.head_gradients,
        head=(HEAD, values(*NO_HEAD)),
        points=(INPUTS, array(lower=False, higher=False)),
    ),
    call(
        "head_outputs", m.head_outputs, head=(HEAD, values(*NO_HEAD)), points=(INPUTS, array(lower=False, higher=False))
    ),
    call("token_scores", m.token_scores, data=(DATA, instance()), head=(HEAD, values(*NO_HEAD))),
    call("token_slopes", m.token_slopes, data=(DATA, instance()), gradients=(INPUTS, array())),
    call("mix", m.mix, data=(DATA, instance()), attention=(SCORES, array())),
    call(
        "log_attention",
        m.log_attention,
        logits=(SCORES, array(infinite=True, lower=False, higher=False)),
        visible=(MASK, mask()),
    ),
    call(
        "Saturation.at",
        m.Saturation.at,
        logits=(SCORES, array(infinite=True, lower=False, higher=False)),
        visible=(MASK, mask()),
        slopes=(SCORES, array(lower=False, higher=False)),
    ),
    call(
        "linearize_outputs",
        m.linearize_outputs,
        outputs=(lambda model: model.outputs(DATA), function()),
        model=(MODEL, None),
        trainable=(True, None),
    ),
    call("outputs_of", m.outputs_of, model=(MODEL, values(None, 3, "abc", {}, jnp.ones(2))), data=(DATA, instance())),
]

MARGIN: list[Call] = [
    call(
        "attention_svm",
        g.attention_svm,
        data=(DATA, instance()),
        selection=(SELECTION, mask()),
        norm=("frobenius", values(g.Lp(0.5), kind=choice())),
    ),
    call(
        "attention_svm by indices",
        lambda selection: g.attention_svm(DATA, selection),
        selection=([0, 1, 2], integers(values=([0, 1, 7], [-1, 0, 0], [0, 1]))),
    ),
    call("recession_cone", g.recession_cone, rows=(INPUTS, array())),
    call(
        "max_margin",
        g.max_margin,
        inputs=(INPUTS, array()),
        labels=(LABELS, array(classes=True, values=([1.0, 0.0, 2.0],))),
        norm=("l2", values("nuclear", kind=choice())),
        transform=(np.eye(2), values("fft", kind=array(mixed=True, nothing=True))),
    ),
    call(
        "minimum_norm",
        g.minimum_norm,
        inputs=(INPUTS, array()),
        targets=(LABELS, array()),
        norm=("l2", choice()),
        transform=(np.eye(2), array(mixed=True, nothing=True)),
    ),
    call("Nuclear", g.Nuclear, rank=(2, count(nothing=True))),
    call("Lp", g.Lp, p=(0.5, number(positive=True, most=0.9))),
    call(
        "solve",
        g.solve,
        program=(PROGRAM, instance()),
        tolerance=(1e-6, number(positive=True, nothing=True)),
        max_steps=(5, count(nothing=True)),
        starts=(2, count()),
        solver=(None, function(nothing=True)),
    ),
    call("solve_cvxpy", g.solve_cvxpy, program=(VECTOR_PROGRAM, instance()), solver=("CLARABEL", choice())),
    call(
        "certify",
        g.certify,
        program=(VECTOR_PROGRAM, instance()),
        primal=(VECTOR, array(nan=True)),
        dual=(LABELS, array(nan=True, nothing=True)),
        source=("program", choice()),
    ),
    call(
        "best_combination",
        best_combination,
        weights=(MATRIX, array()),
        finite=(MATRIX, array()),
        direction=(MATRIX, array()),
    ),
    call(
        "finite_component",
        g.finite_component,
        data=(DATA, instance()),
        selection=(SELECTION, mask()),
        attention=(np.full((3, 4), 0.25), array(values=(np.full((3, 4), -0.25),))),
    ),
    call(
        "enumerate_selections",
        g.enumerate_selections,
        data=(DATA, instance()),
        head=(HEAD, values(*NO_HEAD)),
        norm=("frobenius", choice()),
        chunk=(4, count()),
    ),
    call(
        "is_locally_optimal",
        g.is_locally_optimal,
        data=(DATA, instance()),
        head=(HEAD, values(*NO_HEAD)),
        selection=(SELECTION, mask()),
        solution=(SOLUTION, instance()),
    ),
    call("numerical_rank", g.numerical_rank, primal=(MATRIX, array()), tolerance=(1e-8, number(positive=True))),
]

"""Calls of theory."""

import jax.numpy as jnp
import numpy as np

import jaxflow as jf
from jaxflow.papers.boix2023.assumptions import return_distances, stage_assumptions
from jaxflow.papers.sheen2024.accumulated import accumulate
from jaxflow.papers.sheen2024.diagonal import (
    PlusMinusAttention,
    averaged_residuals,
    constraint_rows,
    integral_form,
    unbalanced_start,
)
from jaxflow.papers.sheen2024.directions import cauchy_gap, directions, margin_normalised, margin_of
from jaxflow.papers.sheen2024.frame import (
    aligned_limit,
    aligned_start,
    alignment_error,
    alignment_frame,
    lift,
    reduced_program,
    singular_entries,
)
from jaxflow.papers.sheen2024.limiting_face import limiting_face, second_order_multipliers
from jaxflow.papers.sheen2024.separability import (
    assumption_1,
    assumption_2,
    assumption_3,
    assumption_4,
    diagonal_separability,
    score_gap_needed,
)
from jaxflow.papers.yun2021.closed_forms import direction_limit, filtered_direction, point_limit
from jaxflow.papers.yun2021.decomposing import find_decomposition, verify_decomposition
from jaxflow.papers.yun2021.pushes import push_converges, top_singular_share
from tests.arguments.harness import Call, call, part
from tests.arguments.kinds import (
    array,
    boolean,
    count,
    instance,
    key,
    mask,
    number,
    sequence,
    text,
    values,
)
from tests.arguments.table_core import SCORES
from tests.arguments.table_models import NO_HEAD, ROWS, VECTOR
from tests.arguments.things import (
    DATA,
    DECOMPOSITION,
    FRAME,
    HADAMARD,
    HEAD,
    INPUTS,
    KEY,
    LABELS,
    LINEAR,
    LINEAR_RISK,
    MATRIX,
    MODEL,
    NETWORK,
    RISK,
    SELECTION,
    SQUARED,
)

m, th = jf.models, jf.theory
SELECTED = {"data": (DATA, instance()), "selection": (SELECTION, mask())}
ETAS = ((VECTOR, VECTOR), sequence((), ("a", "b"), (VECTOR, None)))
TENSOR = np.ones((2, 2, 2))
ONE_PAIR = th.pairs_of(NETWORK, INPUTS[:1])
THEORY: list[Call] = [
    call(
        "accumulate",
        accumulate,
        risk=(RISK, instance()),
        model=(MODEL, values(None, 3, "abc", jnp.ones(2))),
        log_times=([0.5, 1.0], array(values=([1.0, 0.5], []))),
        integrals=(True, boolean()),
        rtol=(1e-6, number(positive=True)),
        max_steps=(8, count()),
    ),
    call("aligned_limit", aligned_limit, **SELECTED),
    call(
        "aligned_start",
        aligned_start,
        frame=(FRAME, instance()),
        xi_k=(VECTOR, array()),
        xi_q=(VECTOR, array()),
        V=(MATRIX, array()),
    ),
    call(
        "alignment_error",
        alignment_error,
        frame=(FRAME, instance()),
        K=(MATRIX, array()),
        Q=(MATRIX, array()),
        V=(MATRIX, array()),
    ),
    part("alignment_frame", alignment_frame, **SELECTED, place=(None, values("a", 3, [0, 1], nothing := {}))),
    call(
        "all_hold",
        th.all_hold,
        assumptions=((th.Assumption("a", jnp.asarray(True), jnp.asarray(1.0)),), sequence((3,), ("a",))),
    ),
    call("assumption_1", assumption_1, data=(DATA, instance()), head=(HEAD, values(*NO_HEAD))),
    call(
        "assumption_2",
        assumption_2,
        data=(DATA, instance()),
        head=(HEAD, values(*NO_HEAD)),
        tolerance=(1e-6, number(positive=True)),
    ),
    call("assumption_3", assumption_3, risk=(RISK, instance()), model=(MODEL, values(None, 3, "abc"))),
    call("assumption_4", assumption_4, **SELECTED, tolerance=(1e-6, number(positive=True))),
    call(
        "averaged_residuals",
        averaged_residuals,
        **SELECTED,
        omega=(VECTOR, array()),
        beta=(VECTOR, array()),
        pushes=(SCORES, array()),
        optimum=(VECTOR, array()),
    ),
    call("below_one", th.below_one, risk=(LINEAR_RISK, instance()), network=(NETWORK, instance())),
    call("cauchy_gap", cauchy_gap, path=(ROWS, array(nan=True, lower=False, higher=False))),
    call("constraint_rows", constraint_rows, **SELECTED),
    call("diagonal_separability", diagonal_separability, data=(DATA, instance()), head=(HEAD, values(*NO_HEAD))),
    call("direction_limit", direction_limit, network=(NETWORK, instance()), x=(VECTOR, array()), y=(1.0, number())),
    call("point_limit", point_limit, network=(NETWORK, instance()), x=(VECTOR, array()), y=(1.0, number())),
    call("directions", directions, **SELECTED, weights=(np.ones((2, 2, 2)), array())),
    call("equal_layers", th.equal_layers, etas=ETAS),
    call("layer_gap", th.layer_gap, etas=ETAS),
    call("small_layer", th.small_layer, etas=ETAS, theorem=("Theorem 2", text())),
    call("filtered_direction", filtered_direction, x=(VECTOR, array()), y=(1.0, number())),
    call("find_decomposition", find_decomposition, data_tensor=(TENSOR, array()), seed=(0, count(0))),
    call(
        "verify_decomposition",
        verify_decomposition,
        data_tensor=(TENSOR, array()),
        decomposition=(DECOMPOSITION, instance()),
    ),
    call(
        "fully_connected_start", th.fully_connected_start, network=(m.DeepLinearNetwork((MATRIX, VECTOR)), instance())
    ),
    call(
        "incremental_learning",
        th.incremental_learning,
        risk=(SQUARED, instance()),
        model=(HADAMARD, instance()),
        max_stages=(2, count(nothing=True)),
        max_time=(3.0, number(positive=True, infinite=True)),
        log_alpha=(-3.0, values(0.0, 1.0, kind=number(nothing=True))),
        decay=(0.0, number(least=0.0)),
    ),
    call("integral_form", integral_form, **SELECTED, omega=(VECTOR, array()), pushes=(SCORES, array())),
    call(
        "interpolation_limit",
        th.interpolation_limit,
        rows=(INPUTS, array()),
        targets=(LABELS, array()),
        start=(VECTOR, array()),
        depth=(2, count(2)),
    ),
    call("interpolation_program", th.interpolation_program, network=(NETWORK, instance()), data=(LINEAR, instance())),
    part("lift", lift, **SELECTED, frame=(FRAME, instance()), primal=(VECTOR, array()), dual=(np.ones(3), array())),
    call(
        "limiting_face",
        limiting_face,
        rows=(np.ones((3, 4, 2)), array()),
        dual=(SCORES, array()),
        beta=(VECTOR, array()),
    ),
    call("margin_normalised", margin_normalised, **SELECTED, W=(MATRIX, array())),
    call("margin_of", margin_of, **SELECTED, W=(MATRIX, array())),
    call("pairs_of", th.pairs_of, network=(NETWORK, instance()), inputs=(INPUTS, array())),
    call(
        "predict",
        th.predict,
        risk=(RISK, instance()),
        model=(MODEL, values(None, 3, "abc")),
        selection=(SELECTION, mask(nothing=True)),
    ),
    call("primal_map", th.primal_map, risk=(LINEAR_RISK, instance()), network=(NETWORK, instance())),
    call("push_converges", push_converges, directions=(ROWS, array()), tolerance=(1e-6, number(positive=True))),
    call("push_direction", th.push_direction, inputs=(INPUTS, array()), multipliers=(LABELS, array())),
    call("reduced_program", reduced_program, **SELECTED, frame=(FRAME, instance())),
    call("register", th.register, model=(type(MODEL), values(None, 3, "abc", MODEL))),
    call("rule_of", th.rule_of, model=(MODEL, values(None, 3, "abc", {}))),
    call(
        "return_distances",
        return_distances,
        risk=(SQUARED, instance()),
        model=(HADAMARD, instance()),
        before=(VECTOR, array()),
        after=(VECTOR, array()),
        key=(KEY, key()),
        draws=(2, count()),
        noise=(0.1, number(positive=True)),
    ),
    call("score_gap_needed", score_gap_needed, n=(2, count()), T=(3, count(2))),
    call(
        "second_order_multipliers",
        second_order_multipliers,
        log_times=([1.0, 2.0], array()),
        multipliers=(np.ones((2, 3, 4)), array()),
    ),
    call("singular_entries", singular_entries, frame=(FRAME, instance()), W=(MATRIX, array())),
    call(
        "singular_residual",
        th.singular_residual,
        network=(NETWORK, instance()),
        data=(LINEAR, instance()),
        multipliers=(LABELS, array()),
    ),
    call("theorem_or_failures", th.theorem_or_failures, theorem=("a", text()), assumptions=((), sequence((3,)))),
    call(
        "top_singular_share",
        top_singular_share,
        network=(NETWORK, instance()),
        decomposition=(DECOMPOSITION, instance()),
        data=(LINEAR, instance()),
        multipliers=(LABELS, array()),
    ),
    call(
        "unbalanced_start",
        unbalanced_start,
        omega=(VECTOR, array()),
        head=(HEAD, values(*NO_HEAD)),
        in_key=(None, values("a", 3, [0.5, 1.0])),
    ),
    call(
        "PlusMinusAttention",
        PlusMinusAttention,
        w_plus=(VECTOR, array(nan=True, higher=False)),
        w_minus=(VECTOR, array(nan=True)),
        head=(HEAD, values(*NO_HEAD)),
    ),
    *(
        call(
            f.__name__,
            f,
            pairs=(ONE_PAIR, instance()),
            network=(NETWORK, instance()),
            target=(1.0, number()),
        )
        for f in (th.datum_direction, th.datum_limit)
    ),
    call(
        "pair_limit",
        th.pair_limit,
        pairs=(ONE_PAIR, instance()),
        network=(NETWORK, instance()),
        targets=(LABELS[:1], array()),
        dual=(LABELS[:1], array()),
    ),
    part("stage_assumptions", stage_assumptions, stages=(None, instance()), model=(HADAMARD, None)),
]

"""Calls of data, losses, risks, teachers and descent."""

import jax.numpy as jnp
import numpy as np

import jaxflow as jf
from tests.arguments.harness import Call, call
from tests.arguments.kinds import (
    KEY,
    NAN,
    array,
    boolean,
    choice,
    count,
    function,
    instance,
    integers,
    key,
    mask,
    number,
    path,
    values,
)
from tests.arguments.usual import DATA, HADAMARD, INPUTS, LABELS, MASK, QUERIES, SCORES, TOKENS, own

data, losses = jf.data, jf.losses
ROWS, LABELLED = array(lower=False, higher=False), array(lower=False, higher=False)
BAD_DATA = (data.TokenData(TOKENS * NAN, QUERIES, LABELS), data.TokenData(TOKENS, QUERIES, 2 * LABELS))
NO_SCALAR = (1j, [1], KEY)
# Faults of the kinds in forms that are tried once.
RARE: list[Call] = [
    call(
        data.random_tokens,
        key=(KEY, values(10**400, np.int32([0, 1]))),
        n=(2, values(*NO_SCALAR)),
        T=(3, values(jnp.ones(2), {})),
        d=(2, values(np.float64(2.0), "two")),
        score_gap=(0.1, values(*NO_SCALAR, jnp.asarray(NAN))),
        self_attention=(False, values(1.0, [True])),
    ),
    call(
        data.TokenData,
        tokens=(TOKENS, values("abc", True, KEY)),
        queries=(QUERIES, values({}, {1.0}, b"abc")),
        labels=(LABELS, values("abc", KEY)),
        mask=(MASK, values("abc", 0.5, KEY)),
    ),
    call(
        jf.EmpiricalRisk,
        data=(DATA, values(True, [1.0], {}, jnp.ones(3))),
        loss=("logistic", values("", b"abc", True, jnp.ones(2))),
        reduction=("mean", values("", b"mean", True, jnp.ones(2))),
    ),
    call(jf.EmpiricalRisk.from_function, value=(own, values(True, jnp.ones(3)))),
    call(lambda loss: losses.MarginLoss(loss), row="MarginLoss", loss=(lambda q: jnp.exp(-q), values(True, {}))),
    call(jf.descend, "risk", "model", steps=(3, count(0)), save_at=([1, 3], values(1j, KEY))),
    call(jf.compilation_cache, folder=(None, values(b"abc", ["a"]))),
]
CALLS: list[Call] = [
    call(
        data.TokenData,
        tokens=(TOKENS, values(np.ones((4, 4, 2)), kind=array(nan=True, higher=False))),
        queries=(QUERIES, values(QUERIES.T, kind=array(nan=True))),
        labels=(LABELS, array(nan=True)),
        mask=(MASK, mask(nothing=True, numbers=True)),
    ),
    call(
        data.TokenData.validated,
        tokens=(TOKENS, values(np.ones((0, 4, 2)), kind=array(higher=False))),
        queries=(QUERIES, array()),
        labels=(LABELS, array(wrong=([1, 0, -1], [0, 0, 0], [2.0, 1, 1]))),
        mask=(MASK, values(~MASK, kind=mask(nothing=True, numbers=True))),
    ),
    call(data.LinearData, inputs=(INPUTS, array(nan=True)), targets=(LABELS, array(nan=True))),
    call(data.LinearData.validated, "inputs", targets=(LABELS, array())),
    call(
        data.SampleData,
        inputs=(INPUTS, array(nan=True, lower=False, higher=False)),
        targets=(LABELS, array(nan=True, lower=False, higher=False)),
    ),
    call(
        data.SampleData.validated,
        inputs=(INPUTS, ROWS),
        targets=(LABELS, array(lower=False, higher=False, wrong=(1.0, [1.0, 2.0]))),
    ),
    call(data.causal_mask, "n", T=(3, count())),
    *(
        call(
            draw,
            *("key", "n", "T", "d"),
            score_gap=(0.1, number(least=0.0, most=1.0)),
            self_attention=(False, boolean()),
        )
        for draw in (data.draw_tokens, data.random_tokens)
    ),
    call(
        data.random_sequences,
        *("key", "n", "T", "d"),
        k=(3, values(2, kind=count(nothing=True))),
        causal=(True, boolean()),
        self_attention=(True, boolean()),
        position_heads=(False, boolean()),
    ),
    call(data.score_gap_acceptance, "key", "T", "d", score_gap=(0.1, number()), draws=(5, count())),
    *(
        call(function_, "visible", scores=(SCORES, array(nan=True, lower=False, higher=False)))
        for function_ in (data.optimal_tokens, data.tied_sequences)
    ),
    call(data.require_untied, "visible", scores=(SCORES, array(infinite=True, lower=False, higher=False))),
    # Losses and risks.
    call(losses.as_loss, loss=("logistic", choice())),
    call(lambda loss: losses.MarginLoss(loss), row="MarginLoss", loss=(lambda q: jnp.exp(-q), function())),
    *(call(function_, "loss") for function_ in (losses.tail_of, losses.tail_rate, losses.self_concordance)),
    call(lambda loss: losses.log_slope_excess(loss, jnp.zeros(2)), "loss", row="log_slope_excess"),
    call(lambda loss: losses.value_of_margins(loss, jnp.zeros(2)), "loss", row="value_of_margins"),
    call(lambda loss: losses.margins_of(loss, jnp.zeros(2), jnp.ones(2)), "loss", row="margins_of"),
    call(lambda loss: losses.scaled_by_output(loss, jnp.zeros(2), jnp.ones(2)), "loss", row="scaled_by_output"),
    call(lambda loss: losses.weights_of(loss, jnp.zeros(2), jnp.ones(2)), "loss", row="weights_of"),
    call(
        jf.EmpiricalRisk,
        "trainable",
        data=(DATA, values(*BAD_DATA, (1, 2, 3), (INPUTS,), kind=instance())),
        loss=("logistic", choice()),
        reduction=("mean", choice()),
    ),
    call(
        lambda inputs, labels: jf.EmpiricalRisk((inputs, labels), "logistic"),
        row="EmpiricalRisk of a pair",
        inputs=(INPUTS, ROWS),
        labels=(LABELS, values([1.0, 0.0, 0.5], [2.0] * 3, kind=LABELLED)),
    ),
    call(
        jf.EmpiricalRisk.from_margins,
        "trainable",
        margins=(own, function()),
        loss=("exponential", values("squared", kind=choice())),
        reduction=("sum", choice()),
    ),
    call(jf.EmpiricalRisk.from_function, "trainable", value=(own, function())),
    call(jf.teachers.taught, inputs=(INPUTS, ROWS), teacher=(HADAMARD, instance())),
    call(jf.teachers.diagonal_head_task, "key", "n", "d", T=(2, count()), scale=(1.0, number())),
    call(
        jf.descend,
        *("risk", "model", "throw"),
        steps=(3, count(0)),
        optimizer=(None, instance(nothing=True)),
        learning_rate=(0.1, number(positive=True, nothing=True)),
        normalised=("jointly", values("joint", None, True, 3, [], jnp.ones(2))),
        epsilon=(0.0, number(least=0.0)),
        ridge=(0.0, number(least=0.0)),
        batch=(2, count(nothing=True)),
        key=(KEY, key()),
        save_at=([1, 3], integers([3, 1], [1, 1], [-1, 2], [1, 9], [], nothing=True)),
    ),
    call(jf.compilation_cache, folder=(None, path(nothing=True))),
]

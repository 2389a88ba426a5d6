"""Calls of data, losses, risks and descent."""

import jax.numpy as jnp
import numpy as np

import jaxflow as jf
from jaxflow.papers.sheen2024.instances import equal_score_tokens, paired_tokens
from jaxflow.papers.tarzanagh2023.protocol import published_protocol
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
    key,
    mask,
    number,
    path,
    sequence,
    values,
)
from tests.arguments.things import (
    DATA,
    HADAMARD,
    HEAD,
    INPUTS,
    KEY,
    LABELS,
    MATRIX,
    MODEL,
    NETWORK,
    QUERIES,
    RISK,
    TOKENS,
    own,
)

MASK = np.ones((3, 4), bool)
SCORES = np.arange(12.0).reshape(3, 4)
SIZES = {"n": (2, count()), "T": (3, count(2)), "d": (2, count())}
# A model of the wrong kind, or with a NaN; where neither goes, nor a class in place of an object.
BAD_MODELS = (jf.models.CombinedAttention(MATRIX * NAN, HEAD), jf.models.CombinedAttention(np.ones((3, 3)), HEAD))
NO_MODEL = (None, 3, "abc", {}, jnp.ones(2), np.ones((2, 2)), jf.models.CombinedAttention, *BAD_MODELS)


data = jf.data
CALLS: list[Call] = [
    call(
        "TokenData",
        data.TokenData,
        tokens=(TOKENS, values(np.ones((4, 4, 2)), kind=array(nan=True, higher=False))),
        queries=(QUERIES, values(QUERIES.T, kind=array(nan=True))),
        labels=(LABELS, array(nan=True, classes=True)),
        mask=(MASK, mask(nothing=True, numbers=True)),
    ),
    call(
        "TokenData.validated",
        data.TokenData.validated,
        tokens=(TOKENS, values(np.ones((0, 4, 2)), kind=array(higher=False))),
        queries=(QUERIES, array()),
        labels=(LABELS, array(classes=True, values=([1, 0, -1], [0, 0, 0], [2.0, 1, 1]))),
        mask=(MASK, values(~MASK, kind=mask(nothing=True, numbers=True))),
    ),
    call(
        "LinearData",
        data.LinearData,
        inputs=(INPUTS, array(nan=True)),
        targets=(LABELS, array(nan=True, classes=True)),
    ),
    call(
        "LinearData.validated",
        data.LinearData.validated,
        inputs=(INPUTS, array()),
        targets=(LABELS, array(classes=True)),
    ),
    call(
        "SampleData",
        data.SampleData,
        inputs=(INPUTS, array(nan=True, lower=False, higher=False)),
        targets=(LABELS, array(nan=True, lower=False, higher=False, classes=True)),
    ),
    call(
        "SampleData.validated",
        data.SampleData.validated,
        inputs=(INPUTS, array(lower=False, higher=False)),
        targets=(LABELS, array(lower=False, higher=False, classes=True, values=(1.0, [1.0, 2.0]))),
    ),
    call("causal_mask", data.causal_mask, n=(2, count()), T=(3, count())),
    *(
        call(
            function_.__name__,
            function_,
            key=(KEY, key()),
            **SIZES,
            score_gap=(0.1, number(least=0.0, most=1.0)),
            self_attention=(False, boolean()),
        )
        for function_ in (data.draw_tokens, data.random_tokens)
    ),
    call(
        "equal_score_tokens",
        equal_score_tokens,
        key=(KEY, key()),
        n=(2, count()),
        T=(3, count(2)),
        d=(3, count(2)),
        score_gap=(0.5, number(positive=True)),
        spread=(0.0, number(least=0.0)),
        margin=(-1.0, number(infinite=True)),
    ),
    call(
        "paired_tokens",
        paired_tokens,
        key=(KEY, key()),
        n=(2, count()),
        T=(3, values(4, kind=count(3))),
        d=(4, count(3)),
        score_gap=(0.5, number(positive=True)),
        cosines=((0.2, 0.6), sequence((0.6, 0.2), (0.2,), (0.2, NAN), ("a", "b"), (-0.2, 0.6), (0.2, 1.5))),
        outside=(False, boolean()),
        break_i=(0.0, number()),
        break_ii=(0.0, number()),
        break_iii=(0.0, number()),
    ),
    call(
        "random_sequences",
        data.random_sequences,
        key=(KEY, key()),
        **SIZES,
        k=(3, values(2, kind=count(nothing=True))),
        causal=(True, boolean()),
        self_attention=(True, boolean()),
        position_heads=(False, boolean()),
    ),
    call(
        "score_gap_acceptance",
        data.score_gap_acceptance,
        key=(KEY, key()),
        T=(3, count(2)),
        d=(2, count()),
        score_gap=(0.1, number()),
        draws=(5, count()),
    ),
    call(
        "optimal_tokens",
        data.optimal_tokens,
        scores=(SCORES, array(nan=True, lower=False, higher=False)),
        visible=(MASK, mask()),
    ),
    call(
        "tied_sequences",
        data.tied_sequences,
        scores=(SCORES, array(nan=True, lower=False, higher=False)),
        visible=(MASK, mask()),
    ),
    call(
        "require_untied",
        data.require_untied,
        scores=(SCORES, array(infinite=True, lower=False, higher=False)),
        visible=(MASK, mask()),
    ),
    # Losses and risks.
    call("as_loss", jf.losses.as_loss, loss=("logistic", choice())),
    call("MarginLoss", lambda loss: jf.losses.MarginLoss(loss), loss=(lambda q: jnp.exp(-q), function())),
    call("tail_of", jf.losses.tail_of, loss=(jf.losses.Logistic(), instance())),
    call("tail_rate", jf.losses.tail_rate, loss=(jf.losses.Logistic(), instance())),
    call("self_concordance", jf.losses.self_concordance, loss=(jf.losses.Logistic(), instance())),
    call(
        "log_slope_excess",
        lambda loss: jf.losses.log_slope_excess(loss, jnp.zeros(2)),
        loss=(jf.losses.Logistic(), instance()),
    ),
    call(
        "EmpiricalRisk",
        jf.EmpiricalRisk,
        data=(DATA, values(jf.data.TokenData(TOKENS * NAN, QUERIES, LABELS), (1, 2, 3), (INPUTS,), kind=instance())),
        loss=("logistic", choice()),
        trainable=(None, values("abc", 3, 2.5, True, b"abc", 1j, NAN)),
        reduction=("mean", choice()),
    ),
    call(
        "EmpiricalRisk of a pair",
        lambda inputs, labels: jf.EmpiricalRisk((inputs, labels), "logistic"),
        inputs=(INPUTS, array(lower=False, higher=False)),
        labels=(LABELS, array(lower=False, higher=False, classes=True, values=([1.0, 0.0, 0.5], [2.0] * 3))),
    ),
    call(
        "EmpiricalRisk.from_margins",
        jf.EmpiricalRisk.from_margins,
        margins=(own, function()),
        loss=("exponential", values("squared", kind=choice())),
        trainable=(None, values("abc", 3)),
        reduction=("sum", choice()),
    ),
    call(
        "EmpiricalRisk.from_function",
        jf.EmpiricalRisk.from_function,
        value=(own, function()),
        trainable=(None, values("abc", 3)),
    ),
    call(
        "taught", jf.teachers.taught, inputs=(INPUTS, array(lower=False, higher=False)), teacher=(HADAMARD, instance())
    ),
    call(
        "diagonal_head_task",
        jf.teachers.diagonal_head_task,
        key=(KEY, key()),
        n=(2, count()),
        T=(2, count()),
        d=(2, count()),
        scale=(1.0, number()),
    ),
    # Descent.
    call(
        "descend",
        jf.descend,
        risk=(RISK, instance()),
        model=(MODEL, values(*NO_MODEL)),
        steps=(3, count(0)),
        optimizer=(None, instance(nothing=True)),
        learning_rate=(0.1, number(positive=True, nothing=True)),
        normalised=("jointly", values("joint", None, True, 3, [], {}, jnp.ones(2), b"jointly")),
        epsilon=(0.0, number(least=0.0)),
        ridge=(0.0, number(least=0.0)),
        save_at=([1, 3], integers(nothing=True, values=([3, 1], [1, 1], [-1, 2], [1, 9], [], [0.5, 1.0]))),
        throw=(True, boolean()),
    ),
    call(
        "published_protocol",
        published_protocol,
        model=(MODEL, values(None, 3, "abc", {}, jnp.ones(2), jf.models.CombinedAttention, NETWORK)),
    ),
    call("compilation_cache", jf.compilation_cache, folder=(None, path(nothing=True))),
]

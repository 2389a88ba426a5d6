"""Calls of the library but for studies: data, risks, descent, flows, limits, models, programs, theory, papers."""

import diffrax
import jax.numpy as jnp
import numpy as np

import jaxflow as jf
from jaxflow import data, limits, margin, models, papers, theory
from tests.arguments import kinds as k
from tests.arguments import usual as u
from tests.arguments.harness import Call, call

FREE = k.array(lower=False, higher=False)
BAD_DATA = (data.TokenData(u.TOKENS * k.NAN, u.QUERIES, u.LABELS), data.TokenData(u.TOKENS, u.QUERIES, 2 * u.LABELS))
NO_SCALAR = (1j, [1], k.KEY)
# Faults of the kinds in forms that are tried once.
RARE: list[Call] = [
    call(
        data.random_tokens,
        key=(k.KEY, k.values(10**400, np.int32([0, 1]))),
        n=(2, k.values(*NO_SCALAR)),
        T=(3, k.values(jnp.ones(2), {})),
        d=(2, k.values(np.float64(2.0), "two")),
        score_gap=(0.1, k.values(*NO_SCALAR, jnp.asarray(k.NAN))),
        self_attention=(False, k.values(1.0, [True])),
    ),
    call(
        data.TokenData,
        tokens=(u.TOKENS, k.values("abc", True, k.KEY)),
        queries=(u.QUERIES, k.values({}, {1.0}, b"abc")),
        labels=(u.LABELS, k.values("abc", k.KEY)),
        mask=(u.MASK, k.values("abc", 0.5, k.KEY)),
    ),
    call(
        jf.EmpiricalRisk,
        data=(u.DATA, k.values(True, [1.0], {}, jnp.ones(3))),
        loss=("logistic", k.values("", b"abc", True, jnp.ones(2))),
        reduction=("mean", k.values("", b"mean", True, jnp.ones(2))),
    ),
    call(jf.descend, "risk", "model", steps=(3, k.count(0)), save_at=([1, 3], k.values(1j, k.KEY))),
    call(jf.compilation_cache, folder=(None, k.values(b"abc", ["a"]))),
]
DATA: list[Call] = [
    call(
        data.TokenData,
        tokens=(u.TOKENS, k.values(np.ones((4, 4, 2)), kind=k.array(nan=True, higher=False))),
        queries=(u.QUERIES, k.values(u.QUERIES.T, kind=k.array(nan=True))),
        labels=(u.LABELS, k.array(nan=True)),
        mask=(u.MASK, k.mask(nothing=True, numbers=True)),
    ),
    call(
        data.TokenData.validated,
        tokens=(u.TOKENS, k.values(np.ones((0, 4, 2)), kind=k.array(higher=False))),
        queries=(u.QUERIES, k.array()),
        labels=(u.LABELS, k.array(wrong=([1, 0, -1], [0, 0, 0], [2.0, 1, 1]))),
        mask=(u.MASK, k.values(~u.MASK, kind=k.mask(nothing=True, numbers=True))),
    ),
    call(data.LinearData, inputs=(u.INPUTS, k.array(nan=True)), targets=(u.LABELS, k.array(nan=True))),
    call(data.LinearData.validated, "inputs", targets=(u.LABELS, k.array())),
    call(
        data.SampleData.validated,
        inputs=(u.INPUTS, FREE),
        targets=(u.LABELS, k.array(lower=False, higher=False, wrong=(1.0, [1.0, 2.0]))),
    ),
    call(data.causal_mask, "n", T=(3, k.count())),
    *(
        call(
            draw,
            *("key", "n", "T", "d"),
            score_gap=(0.1, k.number(least=0.0, most=1.0)),
            self_attention=(False, k.boolean()),
        )
        for draw in (data.draw_tokens, data.random_tokens)
    ),
    call(
        data.random_sequences,
        *("key", "n", "T", "d"),
        k=(3, k.values(2, kind=k.count(nothing=True))),
        causal=(True, k.boolean()),
        self_attention=(True, k.boolean()),
        position_heads=(False, k.boolean()),
    ),
    call(data.score_gap_acceptance, "key", "T", "d", score_gap=(0.1, k.number()), draws=(5, k.count())),
    *(
        call(score, "visible", scores=(u.SCORES, k.array(nan=True, lower=False, higher=False)))
        for score in (data.optimal_tokens, data.tied_sequences)
    ),
    call(data.require_untied, "visible", scores=(u.SCORES, k.array(infinite=True, lower=False, higher=False))),
    call(
        jf.EmpiricalRisk,
        "trainable",
        data=(u.DATA, k.values(*BAD_DATA, (1, 2, 3), (u.INPUTS,), kind=k.instance())),
        loss=("logistic", k.choice()),
        reduction=("mean", k.choice()),
    ),
    call(
        lambda inputs, labels: jf.EmpiricalRisk((inputs, labels), "logistic"),
        row="EmpiricalRisk of a pair",
        inputs=(u.INPUTS, FREE),
        labels=(u.LABELS, k.values([1.0, 0.0, 0.5], [2.0] * 3, kind=FREE)),
    ),
    call(
        jf.EmpiricalRisk.from_margins,
        "trainable",
        margins=(u.own, k.function()),
        loss=("exponential", k.values("squared", kind=k.choice())),
        reduction=("sum", k.choice()),
    ),
    call(jf.EmpiricalRisk.from_function, "trainable", value=(u.own, k.function())),
    call(
        jf.descend,
        *("risk", "model", "throw"),
        steps=(3, k.count(0)),
        optimizer=(None, k.instance(nothing=True)),
        learning_rate=(0.1, k.number(positive=True, nothing=True)),
        normalised=("jointly", k.values("joint", None, True, 3, [], jnp.ones(2))),
        epsilon=(0.0, k.number(least=0.0)),
        ridge=(0.0, k.number(least=0.0)),
        batch=(2, k.count(nothing=True)),
        key=(k.KEY, k.key()),
        save_at=([1, 3], k.integers([3, 1], [1, 1], [-1, 2], [1, 9], [], nothing=True)),
    ),
    call(jf.compilation_cache, folder=(None, k.path(nothing=True))),
]

HOW = {
    "gap": (1e-4, k.number(positive=True, nothing=True)),
    "max_steps": (8, k.count(nothing=True)),
    "throw": (False, k.boolean()),
    "progress": (False, k.values("yes", None, 3, 1.0, {}, [])),
}
FAR = {name: (100.0, k.number(positive=True, nothing=True)) for name in ("near", "far", "horizon")}
OTHER_SIZE = models.CombinedAttention(np.ones((3, 3)), u.HEAD)
BAD_NETWORKS = (
    models.DiagonalLinearNetwork((np.ones(2) * np.nan, np.ones(2))),
    models.DiagonalLinearNetwork((np.ones(3), np.ones(3))),
)
FLOWS: list[Call] = [
    call(
        jf.integrate,
        *("risk", "model", "until", "stop", "dt0", "max_steps", "throw", "progress"),
        clock=("log_time", k.choice()),
        solver=(None, k.choice(nothing=True)),
        controller=(None, k.instance(nothing=True)),
        coordinates=(None, k.choice(nothing=True)),
        save_at=([0.5, 1.0], k.array(nothing=True, wrong=([1.0, 0.5], [0.5, 0.5], [], [0.5, 2.0]))),
        adjoint=(None, k.instance(nothing=True)),
    ),
    call(
        lambda saveat: jf.integrate(u.RISK, u.MODEL, clock="log_time", until=1.0, saveat=saveat),
        row="integrate",
        saveat=(diffrax.SaveAt(t1=True), k.instance(nothing=True)),
    ),
    call(
        lambda until, save_at: jf.integrate(u.RISK, u.MODEL, clock="arc_length", until=until, save_at=save_at),
        row="integrate in arc length",
        until=(1.0, k.values(-1.0, -3)),
        save_at=([0.5], k.values([-1.0, 0.5])),
    ),
    call(jf.LogTime, "unit"),
    call(jf.RescaledTime, log_alpha=(-3.0, k.values(0.0, 1.0, kind=k.number()))),
    call(jf.ArcLength, "floor", "timed"),
    call(jf.LogArcLength, "unit", "floor", "timed", cap=(10.0, k.number(positive=True, infinite=True))),
    call(jf.CertificateGap, "gap", certify=(u.own, k.function())),
    call(
        jf.SelectionSettled,
        tolerance=(1e-3, k.number(positive=True, most=1.0)),
        pull=(None, k.number(least=0.0, nothing=True)),
    ),
    call(jf.StationaryPoint, "tolerance", degree=(1, k.count())),
    call(jf.LossExcess, log_excess=(-3.0, k.number())),
    call(jf.Budget, log_time=(3.0, k.number(infinite=True)), log_arc_length=(3.0, k.number(infinite=True))),
    call(lambda rule: jf.Budget() | rule, row="rules joined", rule=(jf.Budget(), k.instance())),
    call(jf.Filippov, method=(diffrax.Tsit5(), k.instance()), pieces=(8, k.count())),
    call(
        jf.MultiplierNewton,
        method=(diffrax.Kvaerno5(), k.values(diffrax.Tsit5(), kind=k.instance())),
        change=(1e-4, k.number(positive=True)),
        max_iterations=(20, k.count()),
    ),
    call(jf.Dual, decomposition=(None, k.instance(nothing=True))),
    call(jf.Scores, lead=(0.5, k.number(least=0.0, nothing=True))),
    call(jf.LogHadamard, separate=(False, k.boolean()), sparse=(False, k.boolean())),
    call(jf.diagnose, trajectory=(None, k.instance()), risk=(None, None), clock=(None, None), until=(1, None)),
    call(
        jf.find_limit,
        *("risk", "model"),
        method=(None, k.values(jf.LinearStaged, 3, "staged", {}, jf.ModelStaged())),
        **HOW,
    ),
    call(
        jf.find_limit,
        row="find_limit, linear",
        risk=(u.LINEAR_RISK, k.values(u.RISK, kind=k.instance())),
        model=(u.NETWORK, k.values(None, 3, "abc", *BAD_NETWORKS)),
        method=(None, k.values(jf.Staged(), 3, "staged")),
    ),
    call(
        lambda model: jf.find_limit(jf.EmpiricalRisk((u.INPUTS, u.LABELS), "logistic"), model),
        row="find_limit, own",
        model=(u.own, k.values(None, 3, "abc", {}, jnp.ones(2), u.own)),
    ),
    call(
        limits.find_limits,
        "risk",
        model=(models.MultiHeadAttention((u.MODEL, u.MODEL)), k.values(u.MODEL, kind=k.instance())),
        method=(None, k.values(3, "staged")),
        **HOW,
    ),
    call(
        jf.Staged,
        *("floor", "timed", "report"),
        **FAR,
        cap=(100.0, k.number(positive=True, nothing=True, infinite=True)),
        saves=(8, k.count(0)),
        solver=(None, k.instance(nothing=True)),
        rtol=(1e-3, k.number(positive=True, most=1.0)),
    ),
    call(
        jf.LinearStaged,
        "report",
        near=(10.0, k.number(positive=True)),
        far=FAR["far"],
        log_time=(200.0, k.number(positive=True)),
        rtol=(1e-9, k.number(positive=True, most=1.0)),
        saves=(8, k.count(3)),
        coordinates=(None, k.instance(nothing=True)),
    ),
    call(
        jf.ModelStaged,
        *("tolerance", "report"),
        degree=(2.0, k.number(positive=True, nothing=True)),
        log_loss=(-100.0, k.values(0.0, 1.0, kind=k.number())),
        rtol=(1e-3, k.number(positive=True, most=1.0, nothing=True)),
        hard_margin_steps=(8, k.count()),
        potential=(1.5, k.number(positive=True)),
    ),
    call(
        limits.kkt_residual,
        "risk",
        direction=(u.MODEL, k.values(None, 3, "abc", {}, OTHER_SIZE)),
        model=(u.MODEL, k.values(3, "abc", OTHER_SIZE)),
        near=(1e-6, k.number(least=0.0, most=1.0)),
    ),
]

# Parameters may hold NaN: a flow that fails is a result.
PARAMETER, FIRST = k.array(nan=True), k.array(nan=True, higher=False)
NO_LAYERS = ((), [u.VECTOR], (u.VECTOR, "a"), (u.VECTOR, None), (u.VECTOR, u.VECTOR + 1j), [[1.0, [2.0]]])
MODELS: list[Call] = [
    call(models.CombinedAttention, "head", W=(u.MATRIX, FIRST)),
    call(models.FactoredAttention, "head", K=(u.MATRIX, FIRST), Q=(u.MATRIX, PARAMETER)),
    call(models.CombinedAttention.init, "key", "data", "head"),
    call(models.FactoredAttention.init, "key", "data", "head", m=(2, k.count(nothing=True))),
    call(models.MultiHeadAttention, parts=((u.MODEL,), k.sequence((), (3,), (u.MODEL, "a")))),
    call(
        models.DiagonalLinearNetwork,
        weights=(u.LAYERS, k.sequence(*NO_LAYERS, (u.VECTOR, np.ones(3)), (u.MATRIX, u.MATRIX))),
    ),
    call(
        models.DiagonalLinearNetwork.init,
        *("key", "depth"),
        alpha=(1.0, k.number()),
        scheme=("random", k.choice()),
        data=(u.LINEAR, k.instance()),
    ),
]

MARGIN: list[Call] = [
    call(margin.attention_svm, "data", "selection", norm=("frobenius", k.values(margin.Lp(0.5), kind=k.choice()))),
    call(margin.prompt_svm, "data", "selection", K=(u.MATRIX, k.array(nan=True, nothing=True))),
    call(
        lambda selection: margin.attention_svm(u.DATA, selection),
        row="attention_svm by indices",
        selection=([0, 1, 2], k.integers([0, 1, 7], [-1, 0, 0], [0, 1])),
    ),
    call(margin.recession_cone, rows=(u.INPUTS, k.array())),
    call(
        margin.max_margin,
        "inputs",
        labels=(u.LABELS, k.array(wrong=([1.0, 0.0, 2.0],))),
        norm=("l2", k.values("nuclear", kind=k.choice())),
        transform=(np.eye(2), k.values("fft", kind=k.array(mixed=True, nothing=True))),
    ),
    call(
        margin.minimum_norm,
        "inputs",
        targets=(u.LABELS, k.array()),
        norm=("l2", k.choice()),
        transform=(np.eye(2), k.array(mixed=True, nothing=True)),
    ),
    call(
        margin.completion,
        matrix=(u.MATRIX, k.array(nan=True, lower=False)),
        mask=(None, k.values("a", 3, np.ones(2, bool), u.MATRIX, {})),
        norm=("nuclear", k.choice()),
        symmetric=(False, k.boolean()),
    ),
    call(margin.Nuclear, rank=(2, k.count(nothing=True))),
    call(margin.Lp, p=(1.5, k.number(positive=True))),
    call(margin.Schatten, p=(1.5, k.number(positive=True))),
    call(
        margin.solve,
        program=(u.PROGRAM, k.instance()),
        tolerance=(1e-6, k.number(positive=True, nothing=True)),
        max_steps=(5, k.count(nothing=True)),
        starts=(2, k.count()),
        solver=(None, k.function(nothing=True)),
    ),
    call(margin.solve_cvxpy, program=(u.VECTOR_PROGRAM, k.instance()), solver=("CLARABEL", k.choice())),
    call(
        margin.certify,
        program=(u.VECTOR_PROGRAM, k.instance()),
        primal=(u.VECTOR, k.array(nan=True)),
        dual=(u.LABELS, k.array(nan=True, nothing=True)),
        source=("program", k.choice()),
    ),
    call(
        margin.finite_component,
        *("data", "selection"),
        attention=(np.full((3, 4), 0.25), k.array(wrong=(np.full((3, 4), -0.25),))),
    ),
    call(margin.enumerate_selections, "data", "head", norm=("frobenius", k.choice()), chunk=(4, k.count())),
    call(margin.is_locally_optimal, "data", "head", "selection", solution=(u.SOLUTION, k.instance())),
    call(margin.numerical_rank, "tolerance", primal=(u.MATRIX, k.array())),
]

RUN = {"paper": ("yun2021", k.choice()), "scale": ("quick", k.choice()), "out": ("o", k.path(nothing=True))}
RUN |= {"overwrite": (False, k.boolean()), "progress": (False, k.boolean())}
RUN |= {"seed": (0, k.seed()), "say": (print, k.function())}
PAPERS: list[Call] = [
    call(
        theory.predict,
        "risk",
        model=(u.MODEL, k.values(None, 3, "abc")),
        selection=(u.SELECTION, k.mask(nothing=True)),
    ),
    call(
        theory.incremental_learning,
        risk=(jf.EmpiricalRisk(u.LINEAR, "squared"), k.instance()),
        model=(u.HADAMARD, k.instance()),
        max_stages=(2, k.count(nothing=True)),
        max_time=(3.0, k.number(positive=True, infinite=True)),
        log_alpha=(-3.0, k.values(0.0, 1.0, kind=k.number(nothing=True))),
        decay=(0.0, k.number(least=0.0)),
    ),
    call(papers.reproduce, figure=("fig1", k.choice()), **RUN),
    call(papers.verify, only=((), k.sequence("single", ["no such"], [3])), **RUN),
]
CALLS = [*RARE, *DATA, *FLOWS, *MODELS, *MARGIN, *PAPERS]

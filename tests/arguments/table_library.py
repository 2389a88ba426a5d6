"""Calls of the library but for studies, and what is unusual in their arguments."""

import diffrax
import jax.numpy as jnp
import numpy as np

import jaxflow as jf
from jaxflow import data, limits, margin, models, papers, theory
from tests.arguments import kinds as k
from tests.arguments import usual as u
from tests.arguments.harness import Call, call

BAD_DATA = (data.TokenData(u.TOKENS * k.NAN, u.QUERIES, u.LABELS), data.TokenData(u.TOKENS, u.QUERIES, 2 * u.LABELS))
NO_SCALAR = (1j, [1], k.KEY)
UNTRIED = (None, None)
DATA: list[Call] = [
    *map(call, (data.LinearData.validated, data.draw_tokens, data.optimal_tokens, data.tied_sequences)),
    *map(call, (jf.EmpiricalRisk.from_function, jf.compilation_cache)),
    call(
        data.TokenData,
        tokens=(u.TOKENS, u.FIRST, np.ones((4, 4, 2)), "abc", True, k.KEY),
        queries=(u.QUERIES, u.PARAMETER, u.QUERIES.T, {}, {1.0}, b"abc"),
        labels=(u.LABELS, u.PARAMETER, "abc", k.KEY),
    ),
    call(
        data.TokenData.validated,
        labels=(u.LABELS, k.array(), [1, 0, -1], [0, 0, 0], [2.0, 1, 1]),
        mask=(u.MASK, k.optional(k.mask), ~u.MASK),
    ),
    call(data.LinearData, inputs=(u.INPUTS, u.PARAMETER), targets=(u.LABELS, u.PARAMETER)),
    call(data.SampleData.validated, inputs=(u.INPUTS, u.FREE), targets=(u.LABELS, u.FREE, 1.0, [1.0, 2.0])),
    call(data.causal_mask, T=(3, k.count())),
    # Rarer forms of the same faults.
    call(
        data.random_tokens,
        key=(k.KEY, k.key, 10**400, np.int32([0, 1])),
        n=(2, k.count(), *NO_SCALAR),
        T=(3, k.count(2), jnp.ones(2), {}),
        d=(2, k.count(), np.float64(2.0), "two"),
        score_gap=(0.1, k.number(least=0.0, most=1.0), *NO_SCALAR, jnp.asarray(k.NAN)),
        self_attention=(False, k.boolean, 1.0, [True]),
    ),
    call(data.random_sequences, self_attention=(True, k.boolean)),
    call(data.score_gap_acceptance, score_gap=(0.1, k.number())),
    call(data.require_untied, scores=(u.SCORES, k.array(infinite=True, lower=False, higher=False))),
    call(jf.EmpiricalRisk, data=(u.DATA, k.thing, *BAD_DATA, (1, 2, 3), (u.INPUTS,), True, [1.0], {}, jnp.ones(3))),
    call(
        lambda inputs, labels: jf.EmpiricalRisk((inputs, labels), "logistic"),
        row="EmpiricalRisk of a pair",
        inputs=(u.INPUTS, u.FREE),
        labels=(u.LABELS, u.FREE, [1.0, 0.0, 0.5], [2.0] * 3),
    ),
    call(jf.EmpiricalRisk.from_margins, loss=("exponential", k.thing, "squared")),
    call(jf.descend, save_at=([1, 3], k.optional(k.integers), [3, 1], [1, 1], [-1, 2], [1, 9], [], 1j, k.KEY)),
]

HOW = {"gap": (1e-4, k.optional(u.POSITIVE)), "max_steps": (8, k.optional(k.count()))}
BAD_NETWORKS = (
    models.DiagonalLinearNetwork((np.ones(2) * np.nan, np.ones(2))),
    models.DiagonalLinearNetwork((np.ones(3), np.ones(3))),
)
FLOWS: list[Call] = [
    *map(call, (jf.LogTime, jf.RescaledTime, jf.ArcLength, jf.LogArcLength, jf.CertificateGap, jf.StationaryPoint)),
    *map(call, (jf.LossExcess, jf.Budget, jf.Dual, jf.Scores, jf.LogHadamard)),
    call(jf.integrate, save_at=([0.5, 1.0], k.optional(k.array()), [1.0, 0.5], [0.5, 0.5], [], [0.5, 2.0])),
    call(
        lambda saveat: jf.integrate(u.RISK, u.MODEL, clock="log_time", until=1.0, saveat=saveat),
        row="integrate",
        saveat=(diffrax.SaveAt(t1=True), k.optional(k.thing)),
    ),
    call(
        lambda until, save_at: jf.integrate(u.RISK, u.MODEL, clock="arc_length", until=until, save_at=save_at),
        row="integrate in arc length",
        until=(1.0, None, -1.0, -3),
        save_at=([0.5], None, [-1.0, 0.5]),
    ),
    call(jf.SelectionSettled, tolerance=(1e-3, u.RATIO)),
    call(lambda rule: jf.Budget() | rule, row="rules joined", rule=(jf.Budget(), k.thing)),
    call(jf.Filippov, method=(diffrax.Tsit5(), k.thing)),
    call(jf.MultiplierNewton, method=(diffrax.Kvaerno5(), k.thing, diffrax.Tsit5())),
    call(
        jf.diagnose,
        trajectory=(None, k.thing),
        **dict.fromkeys(("risk", "clock", "until", "solver", "coordinates"), UNTRIED),
    ),
    call(jf.find_limit, method=(None, None, jf.LinearStaged, 3, "staged", {}, jf.ModelStaged()), **HOW),
    call(
        jf.find_limit,
        row="find_limit, linear",
        risk=(u.LINEAR_RISK, k.thing, u.RISK),
        model=(u.NETWORK, None, None, 3, "abc", *BAD_NETWORKS),
        method=(None, None, jf.Staged(), 3, "staged"),
        **HOW,
    ),
    call(
        lambda model: jf.find_limit(jf.EmpiricalRisk((u.INPUTS, u.LABELS), "logistic"), model),
        row="find_limit, own",
        model=(u.own, None, None, 3, "abc", {}, jnp.ones(2), u.own),
    ),
    call(
        limits.find_limits,
        model=(models.MultiHeadAttention((u.MODEL, u.MODEL)), k.thing, u.MODEL),
        method=(None, None, 3, "staged"),
        **HOW,
    ),
    call(jf.Staged, cap=(100.0, k.optional(k.number(positive=True, infinite=True)))),
    call(jf.LinearStaged, near=(10.0, u.POSITIVE), log_time=(200.0, u.POSITIVE), saves=(8, k.count(3))),
    call(jf.ModelStaged, degree=(2.0, k.optional(u.POSITIVE)), rtol=(1e-3, k.optional(u.RATIO))),
    call(
        limits.kkt_residual,
        direction=(u.MODEL, None, None, 3, "abc", {}, u.OTHER_SIZE),
        model=(u.MODEL, None, 3, "abc", u.OTHER_SIZE),
        near=(1e-6, k.number(least=0.0, most=1.0)),
    ),
]

MODELS: list[Call] = [
    *map(call, (models.CombinedAttention, models.FactoredAttention, models.DiagonalLinearNetwork)),
    *map(call, (models.CombinedAttention.init, models.FactoredAttention.init)),
    call(models.MultiHeadAttention, parts=((u.MODEL,), k.sequence, (), (3,), (u.MODEL, "a"))),
    call(models.DiagonalLinearNetwork.init, data=(u.LINEAR, k.thing), head=UNTRIED),
]

ATTENTION_NORM = ("frobenius", k.thing)
MARGIN: list[Call] = [
    *map(call, (margin.recession_cone, margin.minimum_norm, margin.Nuclear, margin.Lp, margin.Schatten)),
    *map(call, (margin.finite_component, margin.is_locally_optimal, margin.numerical_rank)),
    call(margin.attention_svm, norm=(*ATTENTION_NORM, margin.Lp(0.5))),
    call(margin.prompt_svm, K=(u.MATRIX, k.optional(u.PARAMETER))),
    call(
        lambda selection: margin.attention_svm(u.DATA, selection),
        row="attention_svm by indices",
        selection=([0, 1, 2], k.integers, [0, 1, 7], [-1, 0, 0], [0, 1]),
    ),
    call(
        margin.max_margin,
        norm=("l2", k.thing, "nuclear"),
        transform=(np.eye(2), k.optional(k.array(mixed=True)), "fft"),
    ),
    call(
        margin.completion,
        mask=(None, None, "a", 3, np.ones(2, bool), u.MATRIX, {}),
        norm=("nuclear", k.thing),
    ),
    call(
        margin.solve,
        tolerance=(1e-6, k.optional(u.POSITIVE)),
        max_steps=(5, k.optional(k.count())),
        solver=(None, k.optional(k.function)),
    ),
    call(margin.solve_cvxpy, solver=("CLARABEL", k.thing)),
    call(margin.certify, primal=(u.VECTOR, u.PARAMETER)),
    call(margin.enumerate_selections, norm=ATTENTION_NORM),
]

PAPERS: list[Call] = [
    *map(call, (papers.reproduce, papers.verify)),
    call(
        theory.predict,
        model=(u.MODEL, None, None, 3, "abc"),
        selection=(u.SELECTION, k.optional(k.mask), u.SELECTION.astype(int)),
    ),
    call(
        theory.incremental_learning,
        risk=(jf.EmpiricalRisk(u.LINEAR, "squared"), k.thing),
        model=(u.HADAMARD, k.thing),
        log_alpha=(-3.0, k.optional(k.number()), 0.0, 1.0),
    ),
]
CALLS = [*DATA, *FLOWS, *MODELS, *MARGIN, *PAPERS]

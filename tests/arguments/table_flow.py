"""Calls of flow and limits."""

import diffrax
import jax.numpy as jnp
import numpy as np

import jaxflow as jf
from tests.arguments.harness import Call, call
from tests.arguments.kinds import INF, array, boolean, choice, count, function, instance, mask, number, values
from tests.arguments.usual import INPUTS, LABELS, LINEAR_RISK, MODEL, NETWORK, RISK, SCORES, own

flow = jf.flow
FLOW: list[Call] = [
    call(
        jf.integrate,
        *("risk", "model", "until", "stop", "dt0", "max_steps", "throw", "progress"),
        clock=("log_time", choice()),
        solver=(None, choice(nothing=True)),
        controller=(None, instance(nothing=True)),
        coordinates=(None, choice(nothing=True)),
        save_at=([0.5, 1.0], array(nothing=True, wrong=([1.0, 0.5], [0.5, 0.5], [], [0.5, 2.0]))),
        adjoint=(None, instance(nothing=True)),
    ),
    call(
        lambda saveat: jf.integrate(RISK, MODEL, clock="log_time", until=1.0, saveat=saveat),
        row="integrate",
        saveat=(diffrax.SaveAt(t1=True), instance(nothing=True)),
    ),
    call(
        lambda until, save_at: jf.integrate(RISK, MODEL, clock="arc_length", until=until, save_at=save_at),
        row="integrate in arc length",
        until=(1.0, values(-1.0, -3)),
        save_at=([0.5], values([-1.0, 0.5])),
    ),
    call(jf.LogTime, "unit"),
    call(jf.RescaledTime, log_alpha=(-3.0, values(0.0, 1.0, kind=number()))),
    call(jf.ArcLength, "floor", "timed"),
    call(jf.LogArcLength, "unit", "floor", "timed", cap=(10.0, number(positive=True, infinite=True))),
    call(flow.as_clock, clock=("log_time", choice())),
    call(flow.as_solver, "clock", solver=("tsit5", choice(nothing=True))),
    call(
        flow.as_controller,
        "solver",
        controller=(None, instance(nothing=True)),
        clock=(None, instance(nothing=True)),
    ),
    call(jf.CertificateGap, "gap", certify=(own, function())),
    call(
        jf.SelectionSettled,
        tolerance=(1e-3, number(positive=True, most=1.0)),
        pull=(None, number(least=0.0, nothing=True)),
    ),
    call(jf.StationaryPoint, "tolerance", "pairs", degree=(1, count())),
    call(jf.LossExcess, log_excess=(-3.0, number())),
    call(jf.Budget, log_time=(3.0, number(infinite=True)), log_arc_length=(3.0, number(infinite=True))),
    call(flow.Unsaturated, share=(0.9, number(positive=True, most=1.0))),
    call(flow.Returned, share=(0.1, number(positive=True, most=1.0))),
    call(flow.Stiff, steps=(15, count())),
    call(flow.SelfCertified, "gap"),
    call(flow.AtRest, "tolerance", "pairs"),
    call(lambda rule: jf.Budget() | rule, row="rules joined", rule=(jf.Budget(), instance())),
    call(lambda rule: jf.Budget() & rule, row="rules joined", rule=(jf.Budget(), instance())),
    call(jf.Filippov, method=(diffrax.Tsit5(), instance()), pieces=(8, count())),
    call(
        jf.MultiplierNewton,
        method=(diffrax.Kvaerno5(), values(diffrax.Tsit5(), kind=instance())),
        change=(1e-4, number(positive=True)),
        max_iterations=(20, count()),
    ),
    call(jf.Dual, decomposition=(None, instance(nothing=True))),
    call(jf.Scores, lead=(0.5, number(least=0.0, nothing=True))),
    call(flow.Mirror, p=(1.5, number(positive=True))),
    call(flow.Halves, conserved=(None, array(nothing=True))),
    call(jf.LogHadamard, separate=(False, boolean()), sparse=(False, boolean())),
    call(flow.Drive, "solver", "controller", "stop", "max_steps", "report", always=(None, instance(nothing=True))),
    call(
        flow.Drive(diffrax.Tsit5(), diffrax.PIDController(rtol=1e-3, atol=1e-6)).start,
        *("risk", "clock", "until", "dt0"),
        model=(MODEL, values(None, 3, "abc", jf.models.CombinedAttention(np.ones((3, 3)), MODEL.head))),
        coordinates=(jf.Weights(), instance()),
        save_at=([0.5, 1.0], array(nothing=True, wrong=([1.0, 0.5], [0.5, 2.0]))),
    ),
    call(
        flow.hard_margin_flow,
        *("tolerance", "max_steps", "report"),
        margins=(lambda w: w, function()),
        weights=(np.array([1.0, 2.0]), array()),
        degree=(1.0, number(positive=True)),
        present=(np.array([True, True]), mask()),
        target=(1e-3, number(positive=True)),
        until=(INF, number(infinite=True)),
    ),
    call(flow.run_queue, row="run_queue", drive=(None, instance()), lanes=(None, None), width=(1, None)),
]

limits = jf.limits
HOW = {
    "gap": (1e-4, number(positive=True, nothing=True)),
    "max_steps": (8, count(nothing=True)),
    "throw": (False, boolean()),
    "progress": (False, values("yes", None, 3, 1.0, {}, [])),
}
FAR = {name: (100.0, number(positive=True, nothing=True)) for name in ("near", "far", "horizon")}
BAD_NETWORKS = (
    jf.models.DiagonalLinearNetwork((np.ones(2) * np.nan, np.ones(2))),
    jf.models.DiagonalLinearNetwork((np.ones(3), np.ones(3))),
)
LIMITS: list[Call] = [
    call(
        jf.limits.compare,
        path=(NETWORK, instance()),
        risk=(LINEAR_RISK, instance()),
        norms=(["l2"], values("l2", 3, [], ["abc"], [None], ["nuclear"], {})),
    ),
    call(
        jf.find_limit,
        *("risk", "model"),
        method=(None, values(jf.LinearStaged, 3, "staged", {}, jf.ModelStaged())),
        **HOW,
    ),
    call(
        jf.find_limit,
        row="find_limit, linear",
        risk=(LINEAR_RISK, values(RISK, kind=instance())),
        model=(NETWORK, values(None, 3, "abc", *BAD_NETWORKS)),
        method=(None, values(jf.Staged(), 3, "staged")),
    ),
    call(
        lambda model: jf.find_limit(jf.EmpiricalRisk((INPUTS, LABELS), "logistic"), model),
        row="find_limit, own",
        model=(own, values(None, 3, "abc", {}, jnp.ones(2), own)),
    ),
    call(
        limits.find_limits,
        "risk",
        model=(jf.models.MultiHeadAttention((MODEL, MODEL)), values(MODEL, kind=instance())),
        method=(None, values(3, "staged")),
        **HOW,
    ),
    call(
        jf.Staged,
        *("floor", "timed", "report"),
        **FAR,
        cap=(100.0, number(positive=True, nothing=True, infinite=True)),
        saves=(8, count(0)),
        solver=(None, instance(nothing=True)),
        rtol=(1e-3, number(positive=True, most=1.0)),
    ),
    call(
        jf.LinearStaged,
        "report",
        near=(10.0, number(positive=True)),
        far=FAR["far"],
        log_time=(200.0, number(positive=True)),
        rtol=(1e-9, number(positive=True, most=1.0)),
        saves=(8, count(3)),
        coordinates=(None, instance(nothing=True)),
    ),
    call(
        jf.ModelStaged,
        *("tolerance", "report"),
        degree=(2.0, number(positive=True, nothing=True)),
        log_loss=(-100.0, values(0.0, 1.0, kind=number())),
        rtol=(1e-3, number(positive=True, most=1.0, nothing=True)),
        hard_margin_steps=(8, count()),
        potential=(1.5, number(positive=True)),
    ),
    call(
        limits.kkt_residual,
        "risk",
        direction=(MODEL, values(None, 3, "abc", {}, jf.models.CombinedAttention(np.ones((3, 3)), MODEL.head))),
        model=(MODEL, values(3, "abc", jf.models.CombinedAttention(np.ones((3, 3)), MODEL.head))),
        near=(1e-6, number(least=0.0, most=1.0)),
    ),
    call(
        limits.flow_certificate,
        "program",
        model=(MODEL, instance()),
        velocity=(MODEL, None),
        multipliers=(SCORES, array(lower=False, higher=False)),
    ),
    call(limits.conclude, "risk", model=(MODEL, None), trajectory=(None, instance()), gap=(1e-4, None)),
]

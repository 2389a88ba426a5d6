r"""Theorems 1 and 2, Corollaries 1 to 3: limit directions on random separable data."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxflow._core import Outcome
from jaxflow.data import LinearData
from jaxflow.limits import find_limit
from jaxflow.models import (
    DeepLinearNetwork,
    DiagonalLinearNetwork,
    LinearConvolutionalNetwork,
    decomposition_of,
)
from jaxflow.papers.checks import AbstractCheck, Row, register_check
from jaxflow.papers.registry import Data
from jaxflow.papers.yun2021.verify.shared import (
    classification,
    direction_distance,
    late_row,
    map_instances,
    residual_row,
    separable,
)
from jaxflow.report import Rate, common_rate
from jaxflow.theory import push_converges, push_direction, top_singular_share

# Beyond ρ^L = 1e6 the flow is the limiting one; its margins keep a floor of about one over that.
FLOOR = 1e-5
# A slow component with dual slack 1 − κ leaves at most this at the lengths reached.
SLOW = 1e-2
# L = 3: the exponent is fitted where ‖β‖ grows by a factor of eight only, with margins not yet equal.
FITTED = 0.25


class Size(NamedTuple):
    """Instances of each network, n data in d dimensions."""

    trials: int
    n: int
    d: int


SIZES = {"quick": Size(3, 2, 4), "paper": Size(100, 5, 10), "large": Size(1000, 5, 20)}
KINDS = ("connected", "diagonal", "convolutional", "diagonal3")


@register_check("yun2021", "directions", statements="Theorems 1 and 2, Corollaries 1 to 3")
class Directions(AbstractCheck):
    """`find_limit` on random data, every instance with its outcome."""

    def compute(self, scale: str, key: Any, say: Callable[[str], None]) -> Data:
        size = SIZES[scale]
        data: Data = {}
        for i, kind in enumerate(KINDS):
            say(f"{kind}: {size.trials} data sets, n = {size.n}, d = {size.d}")
            keys = jax.random.split(jax.random.fold_in(key, i), size.trials)
            found = map_instances(lambda k, kind=kind: _limit(k, kind, size), keys)
            data |= {f"{kind}.{name}": value for name, value in found.items()}
        return data

    def rows(self, data: Data) -> list[Row]:
        parts = {kind: _part(data, kind) for kind in KINDS}
        return [
            _singular_row(parts),
            _corollary_1(parts["connected"]),
            *_theorem_2(parts),
            _approach_row(parts["diagonal3"]),
            _push_row(parts),
        ]


def _limit(key: Any, kind: str, size: Size) -> dict[str, Any]:
    data_key, start_key = jax.random.split(key)
    X, y = separable(data_key, size.n, size.d)
    data = LinearData(X, y)
    risk = classification(X, y)
    # A start of size one: the loss falls below one soon, and the last layer is zero, as Theorem 2 allows.
    if kind == "connected":
        model: Any = DeepLinearNetwork.init(start_key, data, width=2, alpha=0.7)
    elif kind == "convolutional":
        model = LinearConvolutionalNetwork.init(start_key, data, alpha=0.5)
    elif kind == "diagonal3":
        model = DiagonalLinearNetwork.init(start_key, data, depth=3, alpha=0.7, scheme="equal")
    else:
        model = DiagonalLinearNetwork.init(start_key, data, alpha=0.7)
    limit = find_limit(risk, model, throw=False)
    final, saved = limit.trajectory.final, limit.trajectory.points
    end = jax.tree.map(lambda x: x[None], push_direction(X, final.multipliers))
    pushes = jnp.concatenate([jax.vmap(lambda p: push_direction(X, p))(saved.multipliers), end])
    share = jnp.asarray(jnp.nan)
    if kind in ("diagonal", "convolutional"):
        share = 1.0 - top_singular_share(final.model, decomposition_of(final.model), data, final.multipliers)
    beta = final.model.linear_coefficients()
    theirs = limit.program_solution
    program: Any = limit.prediction.program
    aim = theirs.primal if program.transform is None else program.coefficients(theirs.primal)
    return {
        "outcome": limit.outcome.value,
        "flow_gap": limit.flow_certificate.duality_gap,
        "program_gap": theirs.certificate.duality_gap,
        "stationarity": limit.flow_certificate.stationarity,
        "least_multiplier": jnp.min(-y * final.multipliers) / jnp.max(jnp.abs(final.multipliers)),
        "singular": limit.singular_residual,
        "apart": direction_distance(beta, aim),
        "share": share,
        "drift": -push_converges(pushes).slack,
        "exponent": limit.rate.exponent,
        "predicted": limit.rate.predicted,
        "slope": _approach(saved, beta),
        "slack": limit.prediction.assumptions[-1].slack,
        "log_time": final.log_time,
        "num_steps": limit.trajectory.stats["num_steps"],
    }


def _approach(saved: Any, beta: Any) -> Any:
    r"""The slope of $\log\|\hat\beta(t)-\hat\beta_\infty\|$ against $\log\|\beta(t)\|$ over the save points."""
    path = jax.vmap(lambda model: model.linear_coefficients())(saved.model)
    y = jnp.log(jax.vmap(lambda one: direction_distance(one, beta))(path))
    x = jnp.log(jnp.linalg.norm(path, axis=1))
    x = x - jnp.mean(x)
    return jnp.sum(x * y) / jnp.sum(x**2)


def _part(data: Data, kind: str) -> Data:
    return {name.removeprefix(f"{kind}."): value for name, value in data.items() if name.startswith(f"{kind}.")}


def _followed(part: Data) -> np.ndarray:
    return part["outcome"] != Outcome.failed.value


def _gap_rate(part: Data) -> Rate | None:
    """The exponent of the weights' own gap against log t, which 1 − κ of the certified dual predicts."""
    followed = _followed(part)
    exponents = np.where(followed, part["exponent"], np.nan)
    return common_rate(exponents, np.asarray(part["predicted"], float), law="the weights' gap against log t")


def _singular_row(parts: dict[str, Data]) -> Row:
    values = np.concatenate([np.where(_followed(p), p["singular"], np.nan) for p in parts.values()])
    each = ", ".join(f"{kind} {np.nanmax(p['singular']):.0e}" for kind, p in parts.items())
    return residual_row(
        "Theorem 1",
        "layers converge in direction to singular vectors of M(−u), u the direction of X^T r: residual of (8)",
        values,
        np.ones(values.shape, bool),
        SLOW,
        "residual of (8) relative to s",
        more=f"; largest: {each}",
        limit=True,
    )


def _corollary_1(part: Data) -> Row:
    return residual_row(
        "Corollary 1",
        "fully connected networks: β converges in direction to the l2 max-margin classifier, by the flow's own dual",
        np.where(_followed(part), part["flow_gap"], np.nan),
        np.ones(part["flow_gap"].shape, bool),
        FLOOR,
        "the flow's own duality gap",
        more=f"; distance of unit vectors up to {np.nanmax(part['apart']):.0e}",
        limit=True,
        rate=_gap_rate(part),
    )


def _theorem_2(parts: dict[str, Data]) -> list[Row]:
    rows = []
    for kind, source, words in (
        ("diagonal", "Corollary 2", "diagonal networks, L = 2: l1 max-margin"),
        ("convolutional", "Corollary 3", "full-length convolutional networks, L = 2: DFT-domain l1 max-margin"),
    ):
        part = parts[kind]
        inside = part["slack"] > 0 if kind == "diagonal" else np.ones(part["slack"].shape, bool)
        exponents, predicted = part["exponent"], part["predicted"]
        rows.append(
            residual_row(
                source,
                f"{words}: the flow's own certificate; what is left of slow coordinates decays like (log t)^−(1−κ)",
                np.where(_followed(part), part["flow_gap"], np.nan),
                inside,
                SLOW,
                "the flow's own duality gap",
                more=(
                    f"; {int(np.sum(part['flow_gap'] <= FLOOR))} below {FLOOR:.0e}, "
                    f"median {np.median(part['flow_gap']):.0e}; "
                    f"programs certified to {np.nanmax(part['program_gap']):.0e}; fitted exponent of the gap, median "
                    f"{np.nanmedian(exponents):.2f}, 1 − κ of the duals, median {np.nanmedian(predicted):.2f}"
                ),
                limit=True,
                rate=_gap_rate(part),
            )
        )
        rows.append(
            residual_row(
                "Theorem 2",
                f"{kind}, L = 2: parameters converge in direction to top singular vectors of M(−u)",
                np.where(_followed(part), part["share"], np.nan),
                inside,
                SLOW,
                "share of ρ on singular values below the top",
                limit=True,
            )
        )
    deep = parts["diagonal3"]
    rows.append(
        residual_row(
            "Corollary 2",
            "diagonal networks, L = 3: a stationary point of the l_(2/3) max-margin program by the flow's multipliers "
            "(a residual alone says little of sparse points: signs of the multipliers and margins are held too)",
            np.where(_followed(deep), np.maximum(deep["stationarity"], -deep["least_multiplier"]), np.nan),
            np.ones(deep["slack"].shape, bool),
            FLOOR,
            "KKT residual, or minus the least multiplier",
            more=f"; {int(np.sum(deep['apart'] > 1e-3))} of {deep['apart'].size} are not the best stationary point "
            "that a search from 8 starts finds: local, not global",
            limit=True,
        )
    )
    return rows


def _approach_row(deep: Data) -> Row:
    slope = np.where(_followed(deep), deep["slope"], np.nan)
    known = slope[np.isfinite(slope)]
    row = residual_row(
        "beyond the paper",
        "diagonal networks, L = 3: entries of ρ off the support tend to constants, so that the direction of β "
        "approaches its limit like 1/‖β‖",
        np.abs(slope + 1.0),
        np.ones(slope.shape, bool),
        FITTED,
        "|fitted exponent of ‖β‖ + 1|",
        more=f"; exponents from {known.min(initial=np.inf):.2f} to {known.max(initial=-np.inf):.2f}, median "
        f"{np.median(known) if len(known) else np.nan:.2f}; "
        f"the best stationary point found is certified to {np.nanmedian(deep['program_gap']):.1e} (median) by the "
        "convex dual, which says nothing of a program that is not convex",
        rate=common_rate(-slope, 1.0, bias=FITTED, law="distance of directions against ‖β‖"),
    )
    # Of a limit, seen at finite lengths: those that are late decide nothing.
    return late_row(row)


def _push_row(parts: dict[str, Data]) -> Row:
    values = np.concatenate([np.where(_followed(p), p["drift"], np.nan) + 1e-6 for p in parts.values()])
    each = ", ".join(f"{kind} {np.nanmax(p['drift']) + 1e-6:.0e}" for kind, p in parts.items())
    row = residual_row(
        "Remark 1",
        "X^T r converges in direction, which Theorem 2 assumes: 1 − cos between its last value and that at half of the "
        "exact flow's last points",
        values,
        np.ones(values.shape, bool),
        SLOW,
        "1 − cos",
        more=f"; largest: {each}",
    )
    # A direction that still turns may settle later: no counterexample, and no support either.
    return late_row(row)

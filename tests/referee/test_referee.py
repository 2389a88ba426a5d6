"""The referee accepts right claims, made here from NumPy and SciPy, and finds wrong ones; and it judges the library."""

from functools import partial
from typing import Any

import numpy as np
import pytest
from scipy.optimize import linprog, minimize

from tests.referee import attention, draws, flow, networks, paths, programs, returns, run

# Attention


def nearest(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The least-norm point at margin one, and its multipliers."""
    lam = programs.frobenius_dual(rows)
    point = (lam / lam.sum()) @ rows
    return point / (point @ point), lam


def separating(data: Any, selected: np.ndarray, i: int) -> Any:
    """A right claim for combined weights, if a path settles on these tokens."""
    rows = attention.constraints(data, selected, i).reshape(-1, 36)
    W, lam = nearest(rows)
    scores = data.scores[i]
    chosen = scores[np.arange(len(scores)), selected]
    beaten = (scores < chosen[:, None])[np.arange(scores.shape[1]) != selected[:, None]]
    if (scores.max(-1) == chosen).all():
        outcome, status = "globally_optimal", "global_"
    elif beaten[rows @ W <= 1.0 + 1e-6].all():
        outcome, status = "locally_optimal", "local"
    else:
        outcome, status = "not_locally_optimal", "not_local"
    return attention.Claim(outcome, status, selected, W.reshape(6, 6), lam)


def other_direction(rows: np.ndarray, W: np.ndarray, by: float, seed: int) -> np.ndarray:
    """Another one at margin one, whose norm is larger by about the square of `by`."""
    other = W.ravel() + by * np.linalg.norm(W) * np.random.default_rng(seed).normal(size=W.size) / W.size**0.5
    return (other / (rows @ other).min()).reshape(W.shape)


def test_claims_of_attention_are_judged() -> None:
    rng = np.random.default_rng(0)
    data = attention.ordinary(rng, 4, 3, 3, 6)
    path = flow.follow("W", data, attention.start(rng, "W", 4, 6, 1.0))
    for i in range(4):
        claim = separating(data, path.selected[i], i)
        W, swapped = claim.direction, claim.selected.copy()
        swapped[0] = (swapped[0] + 1) % 3
        rows = attention.constraints(data, claim.selected, i).reshape(-1, 36)
        said = {
            "right": [claim],
            "undecided": [claim._replace(outcome="undecided")],
            "wrong": [
                *(claim._replace(direction=w) for w in (-W, 1.001 * W, other_direction(rows, W, 2e-3, i))),
                separating(data, swapped, i),
                claim._replace(status="not_local" if claim.status != "not_local" else "global_"),
                *(claim._replace(outcome=name) for name in ("finite_stationary_point", "infeasible_program")),
            ],
        }
        for verdict, claims in said.items():
            for one in claims:
                assert attention.judge("W", data, one, path, i).verdict == verdict, one


@pytest.mark.slow
def test_paths_from_far_out_are_those_of_small_steps() -> None:
    rng = np.random.default_rng(0)
    data, theta = attention.ordinary(rng, 2, 3, 3, 4), attention.start(rng, "W", 2, 4, 30.0)
    far, plain = flow.follow_far("W", data, theta), flow.follow("W", data, theta)
    assert (plain.lead >= flow.LEAD).all() and (far.lead >= flow.LEAD).all()
    np.testing.assert_array_equal(far.selected, plain.selected)


# Linear networks


def claim_of(outcome: str, beta: np.ndarray, error: float = 1e-12, n: int = 3) -> Any:
    return networks.Claim(outcome, beta, error, "tolerances", np.ones(n))


def test_points_are_judged_by_their_own_error() -> None:
    # From the identity a deep network never leaves the span of the inputs: its limit is the least-norm point.
    data, theta, _ = run.drawn("deep network", "regression, identity", 1)
    data, theta = data.take(0), tuple(w[0] for w in theta)
    least = np.linalg.pinv(data.inputs) @ data.targets
    size, free = np.linalg.norm(least), np.linalg.svd(data.inputs)[2][3]
    shift = least + 1e-5 * size * free
    said = {
        "right": [("limit_point", least, 1e-12), ("limit_point", shift, 2e-5), ("limit_point", least, np.inf)],
        "wrong": [
            ("limit_point", shift, 1e-9),
            ("limit_point", least + 1e-2 * size * free, np.inf),
            ("limit_point", -least, 1e-12),
            ("limit_point", least + 1e-5 * np.random.default_rng(3).normal(size=6), 1e-9),
            ("limit_point", np.full(6, np.nan), 1e-9),
            ("finite_stationary_point", np.zeros(6), np.inf),
            ("prediction_contradicted", least, 1e-12),
        ],
        "undecided": [("undecided", least, 1e-12), ("failed", least, 1e-12)],
    }
    for verdict, claims in said.items():
        for outcome, beta, error in claims:
            claim = claim_of(outcome, beta, error)
            assert networks.judge_point("deep network", data, theta, claim).verdict == verdict, claim


@pytest.mark.slow
def test_a_path_of_diagonal_attention_is_followed_back_from_far_out() -> None:
    data, theta, _ = run.drawn("diagonal", "(3, 3, 4)", 1440)
    end = returns.follow_back(data.take(996), tuple(x[996] for x in theta))
    assert end.rests and end.furthest > 1000
    # By the same method in C, with 128 bits and a tenth of the tolerance.
    known = np.array([17.12952886, -63.53499438, 49.09112896, -36.43685663])
    np.testing.assert_allclose(end.beta, known, rtol=1e-6)
    claim = attention.Claim("finite_stationary_point", "", np.zeros(3), np.diag(known), np.zeros(6))
    assert attention.judge_rest(claim, end.beta).verdict == "right"
    assert attention.judge_rest(claim._replace(direction=np.diag(1.01 * known)), end.beta).verdict == "wrong"


def classification(model: str, n: int, depth: int = 2, change: Any = None, **how: Any) -> tuple[Any, Any, Any]:
    kind, rng = draws.Kind("labels", "logistic", depth, alpha=0.5, change=change), np.random.default_rng(4)
    data = draws.ordinary(rng, kind, model, 1)
    data = paths.Vectors(data.inputs[:, :n], data.targets[:, :n])
    data, theta = data.take(0), tuple(w[0] for w in draws.start(rng, kind, model, 1))
    path = paths.follow_out(model, data, theta, "logistic", **how)

    def verdict(outcome: str, beta: np.ndarray) -> str:
        claim = claim_of(outcome, beta, n=n)
        return networks.judge_direction(model, data, theta, "logistic", claim, path).verdict

    return data, path, verdict


def optimum_of(model: str, rows: np.ndarray) -> np.ndarray:
    if model == "deep network":
        return nearest(rows)[0]
    if model == "diagonal network":
        both = linprog(np.ones(8), -np.hstack([rows, -rows]), -np.ones(len(rows))).x
        return both[:4] - both[4:]
    # One row: its largest mode alone, and the conjugate of that.
    spectrum = np.fft.fft(rows[0])
    beta = np.fft.ifft(np.where(np.abs(spectrum) >= np.abs(spectrum).max() * (1 - 1e-12), spectrum, 0.0)).real
    return beta / (rows[0] @ beta)


@pytest.mark.parametrize(("model", "n"), [("diagonal network", 6), ("deep network", 6), ("convolutional network", 1)])
def test_directions_are_judged_by_their_program(model: str, n: int) -> None:
    data, _, verdict = classification(model, n)
    rows = data.targets[:, None] * data.inputs
    best = optimum_of(model, rows)
    assert verdict("globally_optimal", best) == "right"
    assert verdict("undecided", best) == "undecided"
    for wrong in (-best, 1.001 * best, other_direction(rows, best, 2e-2, 5)):
        assert verdict("globally_optimal", wrong) == "wrong"
    for outcome in ("finite_stationary_point", "infeasible_program", "prediction_contradicted"):
        assert verdict(outcome, best) == "wrong", outcome


def test_stationary_points_of_deep_sparse_programs() -> None:
    # Of one datum every coordinate alone is stationary; the flow chooses one of them, and stands there far out.
    data, path, verdict = classification("diagonal network", 1, depth=3, margin=1e5, steps=20_000)
    row = data.targets[0] * data.inputs[0]
    alone = np.diag(1.0 / row)
    chosen = int(np.abs(path.beta).argmax())
    assert verdict("locally_optimal", alone[chosen]) == "right"
    assert verdict("locally_optimal", alone[(chosen + 1) % 4]) == "wrong"
    uneven = 0.9 * alone[0] + 0.1 * alone[1]
    assert programs.kkt_residual("l1", 3, row[None], uneven, networks.OFF) > 0.1
    assert verdict("locally_optimal", uneven) == "wrong"


@pytest.mark.slow
def test_finite_points_of_data_that_no_hyperplane_separates() -> None:
    change = draws.KINDS["logistic, not separable"].change
    data, _, verdict = classification("diagonal network", 6, change=change)

    def loss(beta: np.ndarray) -> float:
        return float(np.logaddexp(0.0, -data.targets * (data.inputs @ beta)).sum())

    least = minimize(loss, np.zeros(4), options={"gtol": 1e-10}).x
    assert verdict("finite_stationary_point", least) == "right"
    assert verdict("finite_stationary_point", 1.01 * least) == "wrong"
    assert verdict("infeasible_program", least) == "right"


def test_a_coordinate_that_stays_zero_is_of_no_use() -> None:
    assert paths.alive("diagonal network", (np.array([1.0, 0.0]), np.array([0.0, 0.0]))).tolist() == [True, False]
    # Two layers of one size keep their sign; of three layers only one may be zero.
    assert not paths.alive("diagonal network", (np.ones(1), -np.ones(1))).any()
    three = (np.ones(2), np.array([1.0, 0.0]), np.zeros(2))
    assert paths.alive("diagonal network", three).tolist() == [True, False]


def test_cvxpy_bounds_the_norm_of_the_dft() -> None:
    rows = np.random.default_rng(6).normal(size=(3, 4))
    bound = programs.lower_bound("spectral", rows, programs.spectral_dual(rows))
    # Any point at margin one is above it, and no other multipliers bound more.
    beta = np.linalg.pinv(rows) @ np.ones(3)
    assert bound <= programs.norm_of("spectral", beta) * (1 + 1e-12)
    for lam in np.random.default_rng(7).dirichlet(np.ones(3), 200):
        assert programs.lower_bound("spectral", rows, lam) <= bound * (1 + 1e-7)


# The library. Kinds whose instances have one shape, loss and depth share a program; the others are in `make referee`.
SHARES = {
    "W": [name for name, kind in attention.KINDS.items() if kind.shape == attention.SMALL],
    "diagonal network": [
        name
        for name, kind in draws.KINDS.items()
        if (kind.shape, kind.loss, kind.depth) in (("small", "squared", 2), ("labels", "logistic", 2))
    ],
}


@pytest.mark.slow
@pytest.mark.parametrize("model", SHARES)
def test_a_share_of_the_kinds_of_instances_has_no_wrong_limit(model: str) -> None:
    rows = [run.row(model, name, 2, lanes=2) for name in SHARES[model]]
    assert {row["kind"]: row["wrong_instances"] for row in rows if row["wrong"]} == {}
    # Of all instances, the kinds of which most are undecided on purpose among them.
    assert sum(row["right"] for row in rows) >= len(rows)


@pytest.mark.slow
@pytest.mark.parametrize(("index", "verdict"), [(248, "unverified"), (0, "wrong"), (2, "wrong")])
def test_a_point_is_refuted_by_a_path_that_cannot_come_back(
    monkeypatch: pytest.MonkeyPatch, index: int, verdict: str
) -> None:
    """Of number 248 one token is not the best of its sequence. An integration in 60 digits goes out to log t = 4e13,
    where the best one takes over, and comes back to this point. Of the others all tokens are the best."""
    monkeypatch.setattr(run, "follow_back", partial(returns.follow_back, steps=100))
    data, theta, kind = run.drawn("diagonal", "(3, 3, 4)", 360)
    point = np.diag([-50.334, 102.237, 13.6585, 15.5826])
    said = attention.Claim("finite_stationary_point", "not_applicable", np.array([2, 0, 1]), point, np.zeros(6))
    [judged] = run.judge("diagonal", kind, data.take([index]), tuple(x[[index]] for x in theta), [said])
    assert judged.verdict == verdict


@pytest.mark.slow
def test_two_tokens_that_are_about_to_take_over() -> None:
    # Two better tokens of scores 1e-12 above the selected ones: which one takes over first decides the other. (Followed
    # at a tolerance of 1e-3 it was the wrong one.)
    data, theta, _ = run.drawn("W", "score gaps of 1e-12", 320)
    data, theta = data.take([192]), tuple(x[[192]] for x in theta)
    # Two lanes: the program of the share above.
    claim = run.claims("W", "logistic", data, theta, lanes=2)[0]
    path = flow.follow("W", data, theta, steps=20_000, step=0.25, lead=300.0)
    assert claim.selected.tolist() == path.selected[0].tolist() == [3, 2, 1, 2]

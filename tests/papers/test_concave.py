"""Figures 9 and 12: the exact target, Lemma 6, one tiny run from the name to the files, and verdicts by hand."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxflow import papers
from jaxflow.data import TokenData
from jaxflow.margin import attention_svm, solve
from jaxflow.papers.claims import Claim
from jaxflow.papers.tarzanagh2023 import concave, concave_ends, fig9, fig12
from jaxflow.papers.verdicts import Verdict
from jaxflow.study import store

# One batch width for both figures: the flow and the programs compile once.
TRIALS = 4
TINY9 = fig9.Size(TRIALS, (0.0, 0.3, 2.5))
TINY12 = fig12.Size(TRIALS, 200, taus=(3, 9))


Run = tuple[Any, list[Claim]]


def reproduce(name: str, folder: Path) -> Run:
    """The typed numbers of the file, and the claims."""
    paths, claims = papers.reproduce("tarzanagh2023", name, out=folder, say=lambda line: None)
    assert all(path.stat().st_size > 0 for path in paths.values())
    dataset = papers.find_figure("tarzanagh2023", name).dataset
    with np.load(paths["data"]) as archive:
        saved: dict[str, dict[str, np.ndarray]] = {part: {} for part in dataset.parts}
        for place, values in archive.items():
            part, field = place.split(".")
            saved[part][field] = values
    return dataset.typed(saved), claims


def found_of(name: str, numbers: Any) -> list[tuple[str, Verdict]]:
    """Sources and verdicts."""
    return [(one.source, one.verdict) for one in papers.find_figure("tarzanagh2023", name).find(numbers)[0]]


@pytest.fixture(scope="module")
def run_of_fig9(tmp_path_factory: pytest.TempPathFactory) -> Run:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(fig9.SIZES, "quick", TINY9)
        return reproduce("fig9", tmp_path_factory.mktemp("fig9"))


@pytest.fixture(scope="module")
def run_of_fig12(tmp_path_factory: pytest.TempPathFactory) -> Run:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(fig12.SIZES, "quick", TINY12)
        return reproduce("fig12", tmp_path_factory.mktemp("fig12"))


class Killed(BaseException):
    """Not an exception that anything handles."""


def test_flows_that_were_killed_go_on_to_the_same_bits(
    run_of_fig9: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(fig9.SIZES, "quick", TINY9)
    write, compute, computed = store.write_file, concave_ends.flows, []

    def killed(target: Path, *rest: Any) -> None:
        # As the second λ is to be kept.
        if "flow.zarr/attention/c/1" in target.as_posix():
            raise Killed
        write(target, *rest)

    def counted(instances: Any) -> Any:
        computed.append(float(instances.lam[0]))
        return compute(instances)

    def collect() -> Any:
        return fig9.FIGURE9.typed(fig9.FIGURE9.collect(tmp_path, scale="quick", seed=0, say=lambda line: None))

    monkeypatch.setattr(concave_ends, "flows", counted)
    with monkeypatch.context() as patch:
        patch.setattr(store, "write_file", killed)
        with pytest.raises(Killed):
            collect()
    numbers, whole = collect(), run_of_fig9[0]
    for part, other in zip(numbers, whole, strict=True):
        assert all(np.array_equal(a, b, equal_nan=True) for a, b in zip(part, other, strict=True))
    first, second, third = TINY9.lambdas
    # One is computed again to compare.
    assert computed == [first, second, first, second, third]


def projection_by_bisection(x: np.ndarray) -> np.ndarray:
    """Proj onto the simplex by its definition: max(x − θ, 0) with the θ that makes the sum one."""
    low, high = x.max() - 1.0, x.max()
    for _ in range(200):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if np.maximum(x - middle, 0.0).sum() > 1.0 else (low, middle)
    return np.maximum(x - high, 0.0)


def test_the_target_is_the_projection_onto_the_simplex() -> None:
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(50, 6)) / np.sqrt(6)
    lam = rng.uniform(0.01, 3.0, 50)
    found = np.asarray(jax.vmap(concave.target)(jnp.asarray(scores), jnp.asarray(lam)))
    expected = np.stack([projection_by_bisection(row / (2 * x)) for row, x in zip(scores, lam, strict=True)])
    # Differences of numbers up to 100 lose two digits.
    np.testing.assert_allclose(found, expected, atol=1e-12)
    sizes, _ = concave.support_sizes(scores, lam)
    np.testing.assert_array_equal(sizes, np.sum(expected > 1e-12, axis=1))
    assert len(np.unique(sizes)) >= 4


def test_without_a_penalty_the_top_token_is_the_target() -> None:
    found = concave.target(jnp.asarray([0.1, 0.7, -0.2]), jnp.asarray(0.0))
    np.testing.assert_array_equal(found, [0.0, 1.0, 0.0])


def test_near_ties_are_decided_in_rational_arithmetic() -> None:
    # D_2 = 1/2 = 2λ: no weight for the second token; a λ larger by one rounding error gives it some.
    scores = np.array([[0.75, 0.25, -1.0]] * 3)
    lam = np.array([0.25, np.nextafter(0.25, 1.0), 0.3])
    sizes, near = concave.support_sizes(scores, lam)
    np.testing.assert_array_equal(sizes, [1, 2, 2])
    np.testing.assert_array_equal(near, [True, True, False])


def test_drawn_heads_satisfy_the_condition() -> None:
    scores, lam, draws = concave.draw_conditions(3, 5, 7, jax.random.split(jax.random.key(1), 300))
    ordered = -np.sort(-np.asarray(scores)[:, :5], axis=1)
    assert np.all(np.asarray(lam) > ordered[:, 0] - ordered[:, 1])
    assert np.all(np.asarray(lam) < 1.5 * (ordered[:, 2] - ordered[:, 3]))
    assert np.all(np.asarray(draws) >= 1) and np.any(np.asarray(draws) > 1)
    np.testing.assert_allclose(np.linalg.norm(scores, axis=1), 1.0, rtol=1e-12)


def test_tokens_are_orthonormal_and_keep_their_scores() -> None:
    scores, lam, _ = concave.draw_conditions(3, 5, 7, jax.random.split(jax.random.key(1), 300))
    instance = concave.draw(5, 7, jax.random.key(2), lam[0], scores[0])
    np.testing.assert_allclose(instance.tokens @ instance.tokens.T, np.eye(5), atol=1e-14)
    np.testing.assert_allclose(concave.scores_of(instance), scores[0, :5], atol=1e-14)


def test_gen_svm_of_orthonormal_tokens_in_closed_form() -> None:
    r"""W = u zᵀ with u = (1 − k/T) Σ selected x − (k/T) Σ masked x, z of norm one."""
    instance = concave.draw(5, 7, jax.random.key(3), 0.5)
    selection = np.array([True, False, True, False, False])
    data = TokenData(instance.tokens[None], instance.query[None], jnp.ones(1))
    found = solve(attention_svm(data, jnp.asarray(selection)[None])).primal
    u = np.where(selection, 3 / 5, -2 / 5) @ np.asarray(instance.tokens)
    np.testing.assert_allclose(found, np.outer(u, instance.query), atol=1e-10)


@pytest.mark.slow
def test_figure_9_from_the_name_to_the_files(run_of_fig9: Run) -> None:
    numbers, claims = run_of_fig9
    size, scores = numbers.targets.size, numbers.targets.scores
    assert numbers.flow.attention.shape == (3, TRIALS, 10)
    assert np.all(numbers.flow.good) and numbers.flow.error.max() <= 1e-8
    np.testing.assert_array_equal(numbers.lambdas, TINY9.lambdas)
    np.testing.assert_array_equal(size[0], 1)
    assert size[1].min() >= 2
    # The same heads for every λ.
    np.testing.assert_array_equal(scores[0], scores[2])
    found = {claim.source: claim.verdict for claim in claims}
    assert found["Figure 9(a)"] == Verdict.holds
    assert found["(9), Figure 9"] == Verdict.holds
    assert found["(6), Figure 9"] == Verdict.holds_at_this_rate


@pytest.mark.slow
def test_figure_12_from_the_name_to_the_files(run_of_fig12: Run) -> None:
    numbers, claims = run_of_fig12
    assert numbers.exact.size.shape == (2, 200)
    assert np.all(numbers.flow.good) and numbers.flow.error.max() <= 1e-8
    found = {claim.source: claim.verdict for claim in claims}
    assert found["Lemma 6"] == Verdict.holds
    assert found["Figure 12(c), flow"] == Verdict.holds


@pytest.mark.slow
def test_a_token_that_comes_late_is_waited_for() -> None:
    """s* gives it 0.0075; at log t = 30 it has 5e-12 and is still losing."""
    key = jax.random.split(jax.random.fold_in(jax.random.key(0), 9), 20)[8]
    batch = concave.draw_batch(10, 10, jnp.stack([key] * TRIALS), jnp.full(TRIALS, 0.1))
    found = concave_ends.flow_batch(batch)
    assert np.all(found.late) and np.all(found.good)
    assert float(found.error_early[0]) > 7e-3
    assert float(jnp.max(found.error)) <= 1e-8
    np.testing.assert_array_equal(np.sum(np.asarray(found.attention) > concave_ends.SELECTED, axis=1), 2)


@pytest.mark.slow
def test_verdicts_of_figure_12_follow_the_numbers(run_of_fig12: Run) -> None:
    numbers, _ = run_of_fig12
    exact = numbers.exact._replace(size=np.where(np.arange(200) == 7, 4, numbers.exact.size))
    flow = numbers.flow._replace(error=np.full_like(numbers.flow.error, 2e-8))
    found = dict(found_of("fig12", numbers._replace(exact=exact, flow=flow)))
    # Four tokens are too many for τ = 3.
    assert found["Lemma 6"] == found["(9), Figure 12"] == Verdict.not_settled
    assert found["Figure 12(c), flow"] == Verdict.holds


@pytest.mark.slow
def test_verdicts_of_figure_9_follow_the_numbers(run_of_fig9: Run) -> None:
    numbers, _ = run_of_fig9
    targets = numbers.targets._replace(size=numbers.targets.size[::-1])
    # Between masked and selected: the filter keeps none.
    descent = numbers.descent._replace(attention=np.full_like(numbers.descent.attention, 1e-5))
    said = found_of("fig9", numbers._replace(targets=targets, descent=descent))
    assert ("Figure 9(a)", Verdict.not_settled) in said
    assert ("Figure 9(a), survivors", Verdict.outside_hypotheses) in said
    assert ("Figure 9(b), survivors", Verdict.outside_hypotheses) in said

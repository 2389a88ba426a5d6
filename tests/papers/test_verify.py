"""`verify`: a tiny run end to end, the counterexamples, and verdicts that follow made-up numbers."""

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner

from jaxflow import papers
from jaxflow._core import Outcome, SelectionStatus
from jaxflow.cli import app
from jaxflow.data import optimal_tokens
from jaxflow.losses import Logistic
from jaxflow.margin import ProgramResult, attention_svm, solve
from jaxflow.models import CombinedAttention, token_scores
from jaxflow.papers import registry
from jaxflow.papers.dataset import Draw
from jaxflow.papers.statement import hold
from jaxflow.papers.table import Table
from jaxflow.papers.tarzanagh2023.verify import (
    cones,
    equal_scores,
    feasibility,
    follow,
    inequalities,
    local_convergence,
    smooth,
)
from jaxflow.papers.tarzanagh2023.verify.follow import misalignment
from jaxflow.papers.tarzanagh2023.verify.instances import (
    equal_scores as draw_equal_scores,
)
from jaxflow.papers.tarzanagh2023.verify.instances import explicit_case, instance, padded, smoothness, stack
from jaxflow.papers.verdicts import Verdict
from jaxflow.risk import EmpiricalRisk
from tests.papers import test_verify_paths
from tests.papers.made_up import tarzanagh2023

runner = CliRunner()


def silent(line: str) -> None:
    pass


@pytest.fixture(scope="module")
def smooth_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Path], list[papers.Finding]]:
    folder = tmp_path_factory.mktemp("verify")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(smooth.TRIALS, "quick", 50)
        return papers.verify("tarzanagh2023", only=["smoothness"], out=folder, say=silent)


def test_from_the_name_to_the_files(smooth_run: Any) -> None:
    paths, rows = smooth_run
    assert all(path.stat().st_size > 0 for path in paths.values())
    saved = json.loads(paths["rows"].read_text(encoding="utf-8"))["rows"]
    assert [row["verdict"] for row in saved] == [row.verdict.value for row in rows]
    table = paths["table"].read_text(encoding="utf-8")
    assert all(row.source in table and row.says.replace("|", "\\|") in table for row in rows)


def test_the_constant_of_W_holds_and_those_of_K_and_Q_want_a_square(smooth_run: Any) -> None:
    rows = [row for row in smooth_run[1] if row.source == "Lemma 4"]
    assert sum("as printed" in row.says for row in rows) == 2 and len(rows) == 5
    for row in rows:
        printed = "as printed" in row.says
        assert row.verdict is (Verdict.counterexample_found if printed else Verdict.holds)
        assert (row.worst > 1.0) == printed


def test_the_explicit_case_by_descent_leaves_the_optimal_token() -> None:
    data, head = explicit_case()
    best = optimal_tokens(token_scores(data, head), data.visible)
    aim = solve(attention_svm(data, best, "frobenius"))
    assert int(aim.result) == ProgramResult.optimal
    # By hand: w_1 >= 1 and −1.5 w_1 + 1.3 w_2 >= 1, both tight.
    assert jnp.allclose(aim.primal, jnp.array([[1.0, 0.0], [2.5 / 1.3, 0.0]]), atol=1e-12)
    risk, W = EmpiricalRisk(data, Logistic()), jnp.zeros((2, 2))
    rate = 1.0 / smoothness(data, head, 0.25, 1.0)

    @jax.jit
    def descend(W: Any) -> Any:
        return jax.lax.fori_loop(
            0, 20_000, lambda _, W: W - rate * jax.grad(lambda W: risk(CombinedAttention(W, head)))(W), W
        )

    W = descend(W)
    attention = CombinedAttention(W, head).attention(data)
    assert attention[0, 1] > 0.95 and attention[1, 1] < 0.01
    assert misalignment(W, aim.primal) > 0.4


def test_lemma_10_fails_along_the_wrong_limit() -> None:
    ratios = inequalities._lemma10()
    # cos of the angle between e_1 and (1, 2.5/1.3), by hand.
    assert float(ratios[-1]) == pytest.approx(float(np.hypot(1.0, 2.5 / 1.3)), abs=1e-6)


def test_drawn_scores_are_equal_to_the_last_bit() -> None:
    data, head = draw_equal_scores(jax.random.key(3), 3, 4, 3)
    scores = np.sort(np.asarray(token_scores(data, head)), axis=1)
    assert np.array_equal(scores[:, 0], scores[:, -2])
    assert np.all(scores[:, -1] > scores[:, -2])


def test_padding_changes_no_gradient() -> None:
    data, head = draw_equal_scores(jax.random.key(4), 2, 3, 2)
    start = jax.random.normal(jax.random.key(5), (2, 2))
    wide = padded(instance(data, head, start), (3, 4, 5))
    one: Any = EmpiricalRisk(data, Logistic(), reduction="sum").scaled_gradient(CombinedAttention(start, head))
    two: Any = EmpiricalRisk(wide.data, Logistic(), reduction="sum").scaled_gradient(
        CombinedAttention(wide.start, wide.head)
    )
    gradients = [np.exp(float(x.log_scale)) * np.asarray(x.gradient.W) for x in (one, two)]
    assert np.allclose(gradients[1][:2, :2], gradients[0], atol=1e-14)
    assert np.all(gradients[1][2:] == 0) and np.all(gradients[1][:, 2:] == 0)


def cell(selected: bool, gap: float, **more: Any) -> Any:
    """What the first cell of one flow says of Theorem 4; of the explicit case these numbers say nothing."""
    cells = test_verify_paths.ends(np.full((6, 1), selected), gap, **more)
    made_up = tarzanagh2023.equal_cells()[0]
    return hold(equal_scores.random_data(0), made_up.replace(cells=cells))


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (cell(True, 1e-12), Verdict.holds),
        (cell(False, 1e-12, target_attention=1e-30), Verdict.not_settled),
        (
            cell(False, 1e-12, target_attention=1e-30, feasible=ProgramResult.infeasible.value),
            Verdict.outside_hypotheses,
        ),
        # Undecided: neither selected to the tolerance nor left.
        (cell(False, 1e-12, target_attention=0.5), Verdict.not_settled),
    ],
)
def test_theorem_4_is_judged_inside_its_hypotheses_only(found: Any, verdict: Verdict) -> None:
    assert found.verdict is verdict
    assert found.evidence.inside + found.outside == 1


def test_a_lost_sequence_counts_where_the_rest_is_certified() -> None:
    assert cell(False, 1e-12, target_attention=1e-30).evidence.contradicted == 1
    assert cell(False, 1.0, target_attention=1e-30).evidence.undecided == 1
    found = cell(False, 1.0, target_attention=1e-30, lost_gap=1e-12)
    assert found.evidence.contradicted == 1


def test_lemma_5_rows_follow_the_depth() -> None:
    local, other = SelectionStatus.local.value, SelectionStatus.not_local.value
    choices = Table(
        status=np.array([local, local, local, other, SelectionStatus.ambiguous.value]),
        empty=np.array([False, True, True, False, False]),
        near=np.zeros(5, bool),
        depth=np.array([0.2, -0.1, -np.inf, -1e-14, 0.3]),
        d=np.full(5, 4),
        trial=np.zeros(5, int),
        choice=np.arange(5),
    )
    found = [hold(statement, Table(choices=choices)) for statement in cones.STATEMENTS]
    whole, empty, four, six, outside, everything = found
    assert (whole.verdict, whole.evidence.inside) == (Verdict.holds, 1)
    assert (empty.verdict, empty.evidence.contradicted) == (Verdict.not_settled, 2)
    assert four.evidence.inside == 2 and six.verdict is Verdict.outside_hypotheses
    assert (outside.verdict, outside.evidence.inside) == (Verdict.holds, 1)
    assert everything.verdict is Verdict.outside_hypotheses
    choices.depth[[0, 3]] = -0.2, 0.2
    found = [hold(statement, Table(choices=choices)) for statement in cones.STATEMENTS]
    assert found[0].verdict is found[-2].verdict is Verdict.not_settled


def programs(result: np.ndarray, d: list[int]) -> Table:
    """Two cells of one instance with n = T = 3."""
    two = np.full(2, 3)
    separated = result != ProgramResult.infeasible.value
    gaps = np.full(result.shape, 1e-15)
    found = {"result": result, "gap": gaps, "separated": separated, "least": gaps + 0.1}
    part = Table(n=two, T=two, d=np.array(d), kind=np.zeros(2, int), **found)
    return Table(programs=part)


def test_feasibility_is_asked_at_the_bound_and_above() -> None:
    result = np.full((2, 1, 5), ProgramResult.optimal.value)
    result[0] = ProgramResult.infeasible.value
    assert hold(feasibility.feasible(True, 0), programs(result, [2, 3])).verdict is Verdict.holds
    found = hold(feasibility.feasible(False, 0), programs(result[::-1], [2, 3]))
    assert found.verdict is Verdict.not_settled
    assert (found.evidence.contradicted, found.evidence.inside, found.outside) == (4, 4, 4)


def test_drawn_programs_have_the_sizes_asked_for() -> None:
    batch = feasibility._draw(3, 4, 2, True, jax.random.split(jax.random.key(0), 2))
    tokens = np.asarray(batch.data.tokens)[0, 0]
    assert np.all(tokens[:, :, 2:] == 0)
    assert np.allclose(np.linalg.norm(tokens, axis=-1), 1.0)
    assert np.array_equal(np.asarray(batch.data.queries)[0, 0], tokens[:, 0])
    seen = np.asarray(batch.data.visible)[0, 0]
    assert list(seen.sum(axis=1)) == [4, 4, 4, 1, 1, 1]
    assert np.all(np.asarray(batch.target)[..., :].sum(axis=-1) == 1)
    assert not np.any(np.asarray(batch.target) & ~np.asarray(batch.data.visible))


def test_theorem_7_counts_every_start_by_flow_and_by_descent() -> None:
    for selected, certified, descends, verdict in (
        (True, True, True, Verdict.holds),
        (False, True, False, Verdict.not_settled),
        (True, False, True, Verdict.not_settled),
        (True, True, False, Verdict.not_settled),
    ):
        numbers = tarzanagh2023.local_convergence_numbers(selected, certified, descends)
        near, far = (hold(local_convergence.converges(column), numbers) for column in range(2))
        assert (near.verdict, near.evidence.inside) == (verdict, 3)
        # Starts beyond the proof's μ are the theorem's to exclude.
        assert (far.verdict, far.evidence.inside, far.outside) == (Verdict.outside_hypotheses, 0, 3)


@pytest.mark.slow
def test_descent_from_near_a_direction_goes_on_towards_it() -> None:
    # Equal scores and one sequence: the optimal token's direction is the only one.
    data, head = draw_equal_scores(jax.random.key(1), 1, 5, 4)
    given = instance(data, head)
    aim = solve(attention_svm(data, given.target, "frobenius")).primal
    given = instance(data, head, 20.0 * aim + jax.random.normal(jax.random.key(2), aim.shape))
    near = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], given)
    after, found = local_convergence.descents(near, 5)
    assert float(found["attention"][0]) > 0.99
    # A thousand times the share of a step squared.
    assert float(found["near_last"][0]) < 0.1 * float(found["near_first"][0])
    # So far out, steps of plain descent are shorter than rounding.
    assert float(found["moved"][0]) < 1e-6 and after.start.shape == (1, *aim.shape)


def test_a_flow_that_runs_out_of_steps_goes_on_from_where_it_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    data, head = draw_equal_scores(jax.random.key(1), 1, 5, 4)
    given = stack([padded(instance(data, head), follow.SHAPE) for _ in range(3)])
    starts = []

    def block(part: Any) -> dict[str, Any]:
        """From zero all but the first run out of steps at W = 1; from there the second one is certified."""
        starts.append(np.asarray(part.start[:3, 0, 0]))
        width = part.head.shape[0]
        first = bool(starts[-1][0] == 0.0)
        gap = [1e-12, 1.0, 1.0] if first else [1e-12, 1.0]
        gap = jnp.asarray([*gap, *[1.0] * (width - len(gap))])
        outcome = jnp.where(gap <= follow.CERTIFIED, Outcome.globally_optimal.value, Outcome.undecided.value)
        names = ("feasible", "selected", "target_attention", "misaligned", "norm", "lost_gap")
        found: dict[str, Any] = {name: jnp.ones(width) for name in names}
        found |= {"outcome": outcome, "flow_gap": gap, "log_time": jnp.full(width, 3.0)}
        return found | {"weights": jnp.ones_like(part.start)}

    monkeypatch.setattr(follow, "_block", block)
    found = follow.follow(given)
    assert [list(one) for one in starts] == [[0.0] * 3, [1.0] * 3]
    assert found.continued.tolist() == [False, True, False]
    assert (found.outcome == Outcome.globally_optimal.value).tolist() == [True, True, False]
    # Times add up.
    assert np.allclose(found.log_time, [3.0, 3.0 + np.log(2.0), 3.0])


def test_a_start_has_the_angle_and_the_norm_asked_for() -> None:
    W, noise = np.asarray(jax.random.normal(jax.random.key(0), (2, 3, 3)))
    start = local_convergence.near(W, noise, 0.1, 7.0)
    assert float(misalignment(jnp.asarray(start), jnp.asarray(W))) == pytest.approx(0.1)
    assert np.linalg.norm(start) == pytest.approx(7.0 * np.linalg.norm(W))


def test_inequalities_hold_or_not_at_a_few_points(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(inequalities.TRIALS, "quick", 20)
    raw = {
        name: part.compute("quick", inequalities.INEQUALITIES.key(name, 0), silent).named
        for name, part in inequalities.INEQUALITIES.parts.items()
        if isinstance(part, papers.Sweep)
    }
    numbers = inequalities.INEQUALITIES.typed(jax.tree.map(np.asarray, raw))
    check = next(check for check in papers.checks_of("tarzanagh2023") if check.name == "inequalities")
    found = [(row.source, row.verdict) for row in check.find(numbers, Draw(inequalities.INEQUALITIES, "quick", 0))[0]]
    broken = [source for source, verdict in found if verdict is Verdict.counterexample_found]
    assert broken == ["Lemma 9", "Lemma 10", "§4.1"]
    assert [source for source, verdict in found if verdict is Verdict.holds] == [
        "Theorem 3", "Lemma 2", "Lemma 2", "Lemma 9", "Lemma 6", "Lemma 7",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tarzanagh2032"], "paper: unknown name 'tarzanagh2032'; did you mean 'tarzanagh2023'?"),
        (["tarzanagh2023", "--scale", "papper"], "scale: unknown name 'papper'; did you mean 'paper'?"),
        (["tarzanagh2023", "--only", "cone"], "only: unknown name 'cone'; did you mean 'cones'?"),
    ],
)
def test_bad_input_is_answered_with_the_nearest_name(arguments: list[str], message: str) -> None:
    found = runner.invoke(app, ["verify", *arguments])
    assert found.exit_code == 2
    assert message in found.output
    assert "Traceback" not in found.output


def test_nothing_is_written_over_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def computed(self: Any, *arguments: Any, **more: Any) -> Any:
        raise AssertionError("something was computed")

    monkeypatch.setattr(papers.Dataset, "collect", computed)
    monkeypatch.setattr(papers.Dataset, "begin_again", lambda self, *arguments, **more: None)
    (tmp_path / "verify.md").write_text("mine")
    found = runner.invoke(app, ["verify", "tarzanagh2023", "--out", str(tmp_path)])
    assert found.exit_code == 2
    assert "verify.md" in found.output and "--overwrite" in found.output
    assert (tmp_path / "verify.md").read_text() == "mine"
    found = runner.invoke(app, ["verify", "tarzanagh2023", "--out", str(tmp_path), "--overwrite"])
    assert isinstance(found.exception, AssertionError)


def test_a_paper_without_checks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_ENTRIES", {})
    with pytest.raises(ValueError, match="nothing of tarzanagh2023 is verified yet"):
        papers.verify("tarzanagh2023", say=silent)


def test_list_names_every_check() -> None:
    found = runner.invoke(app, ["list"], env={"COLUMNS": "400"})
    assert found.exit_code == 0
    for check in papers.checks_of("tarzanagh2023"):
        assert check.name in found.output and check.statements in found.output

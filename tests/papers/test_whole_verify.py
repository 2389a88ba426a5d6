"""Checks of a paper as the command runs them, on few instances of every kind; and one flow of theirs by itself."""

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxflow import papers
from jaxflow.papers.boix2023 import beyond_assumptions, full_heads, small_instances
from jaxflow.papers.tarzanagh2023.verify import cones, descents, follow
from jaxflow.papers.tarzanagh2023.verify.instances import explicit_case, instance, padded, stack
from jaxflow.papers.verdicts import Verdict
from jaxflow.papers.yun2021 import dual_form
from tests.papers.recorded import entry_of, numbers_of

# The checks that no smaller test reaches, with the modules that say how many instances they take where one is enough.
CHECKS: dict[str, dict[str, Any]] = {
    "tarzanagh2023": {"assumptions": None, "cone-lemmas": None, "cones": cones, "descents": None},
    "yun2021": {"dual-form": dual_form, "ensemble": None},
    "boix2023": {
        "outside": beyond_assumptions,
        "heads": full_heads,
        "stages": None,
        "supports": None,
    },
}


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("paper", CHECKS)
def test_checks_leave_their_rows(paper: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in CHECKS[paper].values():
        if module is not None:
            monkeypatch.setitem(module.TRIALS, "quick", 1)
    # Descents that are still on their way go on: ten times as long, not a hundred.
    monkeypatch.setitem(descents.LATER, "quick", 10 * descents.STEPS["quick"])
    # As in a user's process: the checks' own tables are NumPy-like and broadcast.
    with jax.numpy_rank_promotion("allow"):
        paths, rows = papers.verify(paper, only=list(CHECKS[paper]), out=tmp_path, say=lambda line: None)
    assert all(path.stat().st_size > 0 for path in paths.values())
    written = json.loads(paths["rows"].read_text())["rows"]
    assert [row["source"] for row in written] == [row.source for row in rows]
    assert {row["verdict"] for row in written} <= {verdict.value for verdict in Verdict}
    assert any(row.evidence.inside > 0 for row in rows)
    if paper == "boix2023":
        by_source = {row.source: row for row in rows}
        assert by_source["Lemma 4.2"].verdict is Verdict.holds and by_source["Lemma 4.2"].worst <= 1e-8
        sparsity = by_source["Theorem 4.1 (sparsity)"]
        # The instances of every family.
        assert sparsity.evidence.inside + sparsity.outside == 2 * small_instances.TRIALS["quick"]


# Experiments whose parts are programs for one instance.
TRACED = [("yun2021", name) for name in ("connected", "directions", "dual-form", "ensemble", "points", "single")]
TRACED += [("sheen2024", name) for name in ("general", "norms")]


@pytest.mark.slow
@pytest.mark.parametrize(("paper", "name"), TRACED)
def test_parts_give_the_columns_of_the_numbers_that_verdicts_are_tested_on(paper: str, name: str) -> None:
    """Programs are traced, and not compiled: the first and the last cell of each part."""
    numbers = numbers_of(paper, name)
    for kind, part in entry_of(paper, name).dataset.parts.items():
        if not isinstance(part, papers.Part) or part.way not in ("together", "in turn"):
            continue
        first, *others = part.settings("quick").values()
        made = {column: np.ndim(value) - 2 for column, value in getattr(numbers, kind).named.items()}
        for setting in (first, *others[-1:]):
            given = jax.tree.map(lambda x: jnp.asarray(x) if isinstance(x, np.ndarray) else x, setting)
            with jax.numpy_rank_promotion("allow"):
                found = jax.eval_shape(lambda key, one=part.one, given=given: one(key, given), jax.random.key(0))
            assert {column: value.ndim for column, value in found.named.items()} == made


@pytest.mark.slow
def test_the_explicit_case_by_the_flow_certifies_another_direction() -> None:
    # By the program that the checks have compiled.
    end = follow.follow(stack([padded(instance(*explicit_case()))]))
    assert not end.selected[0]
    assert end.target_attention[0] < follow.UNSELECTED
    assert end.flow_gap[0] < follow.CERTIFIED
    assert end.misaligned[0] > 0.5
    # Without the second sequence e_1 e_1ᵀ is the solution, and leaves its optimal token 1.5 behind.
    assert end.lost_gap[0] < follow.CERTIFIED

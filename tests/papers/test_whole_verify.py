"""Checks of a paper as the command runs them, at the smallest scale."""

import json
from pathlib import Path

import jax
import pytest

from jaxflow import papers
from jaxflow.papers.boix2023 import small_instances
from jaxflow.papers.verdicts import Verdict

# The checks of a paper with many that no smaller test of theirs reaches, and that take a minute together.
SHORT = {"tarzanagh2023": ("assumptions", "cone-lemmas", "cones", "descents")}


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("paper", ["tarzanagh2023", "yun2021", "boix2023"])
def test_checks_leave_their_rows(paper: str, tmp_path: Path) -> None:
    only = SHORT.get(paper, ())
    # As in a user's process: the checks' own tables are NumPy-like and broadcast.
    with jax.numpy_rank_promotion("allow"):
        paths, rows = papers.verify(paper, scale="quick", only=only, out=tmp_path, say=lambda line: None)
    assert all(path.stat().st_size > 0 for path in paths.values())
    written = json.loads(paths["rows"].read_text())["rows"]
    assert [row["source"] for row in written] == [row.source for row in rows]
    assert {row["verdict"] for row in written} <= {verdict.value for verdict in Verdict}
    # Every instance is in the denominator, whatever became of it.
    assert all(row.instances == row.evidence.inside for row in rows)
    assert any(row.instances > 0 for row in rows)
    if paper == "boix2023":
        by_source = {row.source: row for row in rows}
        assert by_source["Lemma 4.2"].verdict is Verdict.holds and by_source["Lemma 4.2"].worst <= 1e-8
        sparsity = by_source["Theorem 4.1 (sparsity)"]
        # The instances of every family.
        assert sparsity.instances + sparsity.outside == 2 * small_instances.TRIALS["quick"]

"""The registry of papers, theorems and figures."""

import jax
import jax.numpy as jnp
import pytest

from jaxflow import papers
from jaxflow.data import LinearData, random_tokens
from jaxflow.losses import Exponential, Logistic
from jaxflow.models import AbstractLinearNetwork
from jaxflow.papers import registry
from jaxflow.risk import EmpiricalRisk
from jaxflow.theory import predict

THEOREMS = [(paper, theorem) for paper in papers.known_papers() for theorem in paper.theorems]


@pytest.mark.parametrize(("paper", "theorem"), THEOREMS, ids=lambda entry: entry.name)
def test_every_listed_theorem_is_one_that_predictions_name(paper: papers.Paper, theorem: papers.Theorem) -> None:
    data, head = random_tokens(jax.random.key(0), 2, 3, 2)
    if issubclass(theorem.model, AbstractLinearNetwork):
        points = LinearData(data.tokens[:, 0], data.labels)
        network = theorem.model.init(jax.random.key(1), points)
        assert theorem.name in predict(EmpiricalRisk(points, Exponential()), network).theorem
        return
    model = theorem.model.init(jax.random.key(1), data, head)
    selection = jnp.arange(3)[None] == jnp.zeros((2, 1), int)
    assert theorem.name in predict(EmpiricalRisk(data, Logistic()), model, selection).theorem


def test_the_size_of_an_experiment_counts_instances_of_all_its_parts() -> None:
    # 24 instances of each of 2 pairs (d, m), as studies, and what is given; 500 points in 4 sweeps.
    sizes = {entry.name: entry.size("quick") for entry in papers.entries_of("tarzanagh2023")}
    assert (sizes["factored"], sizes["inequalities"]) == ("48 instances, 1 sweep", "4 sweeps")
    assert papers.find_figure("sheen2024", "norms").size("large") == "12,288 instances"


def test_a_figure_is_registered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = papers.find_figure("tarzanagh2023", "fig7").dataset
    monkeypatch.setattr(registry, "_ENTRIES", {})
    registry.register(dataset, "fig1", title="", statements=[])
    with pytest.raises(ValueError, match="registered twice"):
        registry.register(dataset, "fig1", title="", statements=[])

"""docs/own-model.md: every section runs, is short and prints its outcome."""

import pytest

from tests.docs.pages import DOCS, Page
from tests.docs.reader import read_pages, sections

# What is printed, section by section.
PRINTED = {
    "A linear model": "one minimum among the points",
    "Many classes": "multiclass SVM",
    "Next words": "Thrampoulidis (2024)",
    "Attention over a vocabulary": "Li et al. (2024)",
    "A ReLU network": "KKT point",
    "W = UUᵀ": "KKT point",
    "Attention with weights of your own": "KKT point",
    "A prompt and its head together": "prompt:",
    "A head of your own": "certified by",
    "Squared error: matrix sensing": "Gradient flow interpolates",
    "A loss of your own": "Gradient flow interpolates",
    "What cannot be concluded": "not homogeneous",
    "A theorem of your own": "It solves the predicted program",
}


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_sections_are_short_and_print_their_outcomes(tmp_path_factory: pytest.TempPathFactory) -> None:
    page = Page(DOCS / "own-model.md")
    answer, found = read_pages([page], tmp_path_factory)[page.name], sections(page)
    assert not answer["error"], answer["error"][-4000:]
    assert [name for name in found if name] == list(PRINTED)
    printed = answer["printed"]
    at = 0
    for name, sentence in PRINTED.items():
        at = printed.find(sentence, at)
        assert at >= 0, f"{name}\n{printed}"
        lines = [line for block in found[name] for line in block.text.splitlines() if line.strip()]
        assert len(lines) <= 22, f"{name} is no longer a short script"

"""Made-up numbers by paper and experiment."""

from tests.papers.made_up import boix2023, results, sheen2024, tarzanagh2023, yun2021

PAPERS = {
    "boix2023": boix2023.PROBES,
    "results": results.PROBES,
    "sheen2024": sheen2024.PROBES,
    "tarzanagh2023": tarzanagh2023.PROBES,
    "yun2021": yun2021.PROBES,
}
PROBES = {(paper, name): probe for paper, probes in PAPERS.items() for name, probe in probes.items()}

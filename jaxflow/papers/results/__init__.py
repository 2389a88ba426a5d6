"""What the papers leave open, or what their statements make of each other: counted on instances, and checked again."""

from jaxflow.papers.experiment import Paper, register_paper
from jaxflow.papers.results import adam_order as adam_order
from jaxflow.papers.results import hypotheses as hypotheses
from jaxflow.papers.results import multistart as multistart
from jaxflow.papers.results import rate_law as rate_law

register_paper(Paper("results", "Results beyond the papers", "measured by this library; see the page Results", ()))

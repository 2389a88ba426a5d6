"""Floor 11: one package per paper, one file per figure, and the theorems that the library predicts by."""

from jaxflow.papers import boix2023 as boix2023
from jaxflow.papers import sheen2024 as sheen2024
from jaxflow.papers import tarzanagh2023 as tarzanagh2023
from jaxflow.papers import yun2021 as yun2021
from jaxflow.papers.checks import Row as Row
from jaxflow.papers.checks import checks_of as checks_of
from jaxflow.papers.checks import counted as counted
from jaxflow.papers.checks import plan_verify as plan_verify
from jaxflow.papers.checks import told as told
from jaxflow.papers.checks import verify as verify
from jaxflow.papers.checks import worst as worst
from jaxflow.papers.registry import SCALES as SCALES
from jaxflow.papers.registry import AbstractFigure as AbstractFigure
from jaxflow.papers.registry import Entry as Entry
from jaxflow.papers.registry import Paper as Paper
from jaxflow.papers.registry import Theorem as Theorem
from jaxflow.papers.registry import figures_of as figures_of
from jaxflow.papers.registry import find_figure as find_figure
from jaxflow.papers.registry import known_papers as known_papers
from jaxflow.papers.reproduce import plan as plan
from jaxflow.papers.reproduce import reproduce as reproduce

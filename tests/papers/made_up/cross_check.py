"""Made-up numbers for the programs that two solvers solve."""

import numpy as np

from jaxflow.papers.cross_check import Agreement, ProgramNumbers


def programs(kinds: int) -> list[ProgramNumbers]:
    """Both solvers agree, they do not, or one of them fails."""
    return [ProgramNumbers(Agreement(np.full((kinds, 2), apart))) for apart in (1e-12, 1e-3, np.nan)]

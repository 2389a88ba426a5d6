"""Counts in words, and as bars."""

from typing import Any

import numpy as np

from jaxflow.plots import COLORS
from jaxflow.study import wilson


def of(count: Any, total: Any) -> str:
    """A count of a total with its interval."""
    low, high = (100.0 * float(x) for x in wilson(count, total))
    return f"{count} of {total} (Wilson 95% [{low:.0f}, {high:.0f}]%)"


def share_and_error(count: Any, total: Any) -> tuple[np.ndarray, np.ndarray]:
    """Percentages, and how far their intervals reach below and above."""
    share, (low, high) = count / np.maximum(total, 1), wilson(count, total)
    return 100.0 * share, 100.0 * np.maximum(np.stack([share - low, high - share]), 0.0)


def look_of_errors() -> Any:
    """How intervals are drawn."""
    return {"fmt": "none", "color": COLORS["program"], "capsize": 2, "linewidth": 0.9}

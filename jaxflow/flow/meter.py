"""What a long integration says while it runs."""

import time
from collections.abc import Callable
from typing import Any

# Seconds between two lines.
EVERY = 1.0


class StepMeter:
    """Called from inside a loop with the steps taken so far and the clock's variable s; says so once a second.

    **Arguments:** `say` receives a line; `clock`: the name of the clock that s belongs to.
    """

    def __init__(self, say: Callable[[str], None], clock: str):
        self._say, self._clock = say, clock
        self._last = time.monotonic()

    def __call__(self, steps: Any, s: Any) -> None:
        now = time.monotonic()
        if int(steps) == 0:
            self._say(f"following the flow in {self._clock}")
        elif now - self._last < EVERY:
            return
        else:
            self._say(f"{self._clock}: {int(steps)} steps, s = {float(s):.4g}")
        self._last = now

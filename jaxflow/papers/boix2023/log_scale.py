r"""Lemmas D.1 to D.3: u and v of size, and of sign, that $\log_\alpha(u+v)$ tells, with $u^2-v^2$ of size α²."""

from collections.abc import Callable
from decimal import Decimal, localcontext
from typing import Any

import jax
import numpy as np

from jaxflow.papers.experiment import BELOW_ZERO, Again, Dataset, Draw, Statement, Sweep, Table, register
from jaxflow.study import subkey

DRAWS = {"quick": 200, "paper": 10_000, "large": 1_000_000}
# "For small enough α": α^(c/2) = e^-50 is below all that the start adds.
LOG_ALPHA, C = -1000.0, 0.1
# α⁴ has 1,737 zeros.
DIGITS = 2000


def draw(scale: str, key: Any) -> Table:
    r"""m points of any flow: $\log_\alpha(u+v)$ is the `exponent`, uniform from −1 to 3, and $\log|u^2-v^2|/\alpha^2$
    of a Gaussian start is `conserved`; both `(m,)`."""
    u, v = np.asarray(jax.random.normal(subkey(key, "start"), (2, DRAWS[scale])))
    exponent = jax.random.uniform(subkey(key, "exponent"), (DRAWS[scale],), minval=-1.0, maxval=3.0)
    return Table(exponent=np.asarray(exponent), conserved=np.log(np.abs(u**2 - v**2)))


LOG_SCALE = Dataset("boix2023", "log-scale", {"points": Sweep(draw)})


def _logarithms(points: Table) -> tuple[np.ndarray, np.ndarray]:
    """Of u + v and u − v over log α."""
    return points.exponent, 2.0 + points.conserved / LOG_ALPHA - points.exponent


def _largest(points: Table) -> np.ndarray:
    """log_α of the larger of |u| and |v|, which is u > 0."""
    small, large = np.sort(_logarithms(points), axis=0)
    return small + (np.log1p(np.exp(LOG_ALPHA * (large - small))) - np.log(2.0)) / LOG_ALPHA


def _decimals(points: Table, at: tuple[int, ...]) -> tuple[Decimal, Decimal, Decimal]:
    """log α, u and v in as many decimals as u − v needs beside u + v, whose exponents have no end."""
    log_alpha = Decimal(LOG_ALPHA)
    total = (Decimal(float(points.exponent[at])) * log_alpha).exp()
    other = (2 * log_alpha + Decimal(float(points.conserved[at]))).exp() / total
    return log_alpha, (total + other) / 2, (total - other) / 2


def lemma(
    number: int, says: str, inside: Any, residual: Any, again: Callable[..., Decimal], bound: tuple[float, str]
) -> Statement[Table]:
    """One of the three, with `again` of log α, u, v and the exponent."""

    def by_decimals(numbers: Table, draw: Draw, at: tuple[int, ...]) -> float:
        with localcontext(prec=DIGITS):
            return float(again(*_decimals(numbers.points, at), Decimal(float(numbers.points.exponent[at]))))

    return Statement(
        source=f"Lemma D.{number}",
        says=f"{says}, c = {C:g}, α = e^({LOG_ALPHA:g})",
        inside=lambda n: inside(np.abs(n.points.exponent - 1.0)),
        residual=lambda n: residual(n.points),
        bound=bound,
        again=Again(f"{DIGITS} decimals", by_decimals, 1e-9),
    )


register(
    LOG_SCALE,
    title="Lemmas D.1 to D.3",
    statements=[
        lemma(
            1,
            "where log_α w is between c and 2 − c, |u| and |v| are at most α^(c/2)",
            lambda off: off < 1.0 - C,
            lambda points: 0.5 * C - _largest(points),
            lambda log_alpha, u, v, _: Decimal(0.5 * C) - max(abs(u), abs(v)).ln() / log_alpha,
            (0.0, "c/2 − log_α of the larger"),
        ),
        lemma(
            2,
            "where log_α w is not between −c and 2 + c, |u| > 1",
            lambda off: off > 1.0 + C,
            _largest,
            lambda log_alpha, u, v, _: abs(u).ln() / log_alpha,
            (BELOW_ZERO, "log_α |u|"),
        ),
        lemma(
            3,
            "v < 0 where log_α w > 1 + c, and v > 0 where log_α w < 1 − c",
            lambda off: off > C,
            # Above zero where v has not the sign that its exponent tells.
            lambda points: np.sign(1.0 - points.exponent) * -np.diff(_logarithms(points), axis=0)[0],
            lambda log_alpha, u, v, exponent: (1 if exponent < 1 else -1) * ((u + v) / (u - v)).ln() / log_alpha,
            (BELOW_ZERO, "log_α of (u + v)/(u − v), or of its inverse"),
        ),
    ],
)

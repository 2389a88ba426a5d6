"""`reproduce tarzanagh2023 fig9`: how many tokens a concave head selects, and what (Gen-SVM) says of W."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxflow.papers.registry import AbstractFigure, Data, register_figure
from jaxflow.papers.tarzanagh2023.concave import draw_batch
from jaxflow.papers.tarzanagh2023.concave_claims import claims_of_fig9
from jaxflow.papers.tarzanagh2023.concave_table import table
from jaxflow.plots import draw_token_counts


class Size(NamedTuple):
    """Instances of one scale: the same `trials` heads, tokens and starts for every λ."""

    trials: int
    lambdas: tuple[float, ...]
    T: int = 10
    d: int = 10


# The paper's figure goes past λ = 2; its grid is not given, this one is ours.
GRID = (0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0, 1.2, 1.4, 1.6, 1.8, 2.0, 2.2, 2.5, 3.0)

SIZES = {
    "quick": Size(20, (0.0, 0.1, 0.3, 0.6, 1.0, 1.5, 2.0, 2.5)),
    "paper": Size(100, GRID),
    "large": Size(2000, GRID),
}


@register_figure(
    "tarzanagh2023",
    "fig9",
    title="Several selected tokens under a concave head, against λ",
    run_times={
        "quick": "20 instances for each of 8 values of λ, under a minute",
        "paper": "100 instances for each of 18 values of λ, about a minute",
        "large": "2,000 instances for each of 18 values of λ, about half an hour on two cores",
    },
)
class Figure9(AbstractFigure):
    r"""Figure 9 of Tarzanagh et al. (2023): n = 1, T = d = 10, $h(x)=v^\top x-\lambda\|x\|^2$, $\ell(x)=-x$, Y = 1.

    (a) tokens selected against λ: exactly (the support of $s^\star$), and by the published criterion and protocol;
    (b) 1 − corr of W with $W^{mm}$ of (Gen-SVM) and with $W^{SVMeq}$ against λ, (c) against their number.
    """

    def compute(self, scale: str, seed: int, say: Callable[[str], None]) -> Data:
        return compute(SIZES[scale], seed, say)

    def draw(self, data: Data) -> Any:
        return draw_token_counts(data)

    def claims(self, data: Data) -> tuple[list[Any], list[str]]:
        return claims_of_fig9(data)


def compute(size: Size, seed: int, say: Callable[[str], None]) -> Data:
    """The per-instance tables, arrays `(λ, trial, ...)`."""
    keys = jax.random.split(jax.random.fold_in(jax.random.key(seed), 9), size.trials)
    rows: list[Data] = []
    for lam in size.lambdas:
        say(f"λ = {lam}: flow, published descent and programs of {size.trials} instances")
        rows.append(table(draw_batch(size.T, size.d, keys, jnp.full(size.trials, lam))))
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]} | {"lambdas": np.asarray(size.lambdas)}

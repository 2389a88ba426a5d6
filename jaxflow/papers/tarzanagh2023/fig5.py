"""Figure 5: convergence of W and (K, Q) against d, and how often all tokens are support vectors."""

from collections.abc import Callable
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Key

from jaxflow._core import Code
from jaxflow.data import optimal_tokens
from jaxflow.margin import ProgramResult, attention_svm, solve
from jaxflow.models import token_scores
from jaxflow.papers.registry import AbstractFigure, register_figure
from jaxflow.papers.tarzanagh2023.percent import Data, Size, convergence_bars, interval, run_studies
from jaxflow.papers.tarzanagh2023.percent_claims import (
    assumption_claims,
    assumption_counts,
    convergence_claims,
    notes_of,
)
from jaxflow.plots import draw_percentage_bars
from jaxflow.report import Claim
from jaxflow.study import AbstractExperiment, TokenSelection

# The program whose solution each parametrisation is biased to.
NORMS = {"W": "frobenius", "KQ": "nuclear"}

SIZES = {
    # Two values that share what is compiled.
    "quick": Size(trials=100, d=(5, 8)),
    "paper": Size(trials=500, d=(2, 3, 4, 5, 6, 8, 10, 15, 20)),
    "large": Size(trials=100_000, d=(2, 3, 4, 5, 6, 8, 10, 15, 20)),
}


class SelectionAndSupport(AbstractExperiment):
    r"""`TokenSelection`, and beside it the margins of the program of the optimal tokens (Assumption B.1).

    Assumption B.1 is about $W^{mm}$, the solution of (Att-SVM) for $(\mathrm{opt}_i)$: all of
    $(x_{i\mathrm{opt}_i}-x_{it})^\top W^{mm}z_i$ are 1. It is decided for the optimal tokens, whatever the flow
    selects: Frobenius norm for W, nuclear norm for (K, Q). A second pass over the same keys, so that the
    outcomes are those of `TokenSelection` alone.
    """

    selection: TokenSelection = eqx.field(default_factory=TokenSelection)
    method: Any = None

    def setup(self, key: Key[Array, ""], **factors: Any) -> tuple[Any, Any]:
        return self.selection.setup(key, **factors)

    def summarize(self, limit: Any) -> dict[str, Any]:
        return self.selection.summarize(limit)

    def replay(self, key: Key[Array, ""], **factors: Any) -> Any:
        return self.selection.replay(key, **factors)

    def name(self) -> str:
        return self.selection.name()

    def signature(self) -> Any:
        return self.selection.signature()

    def definitions(self) -> dict[str, str]:
        return {
            **self.selection.definitions(),
            "optimal_program": "how the program of the optimal tokens ended",
            "mean_margin": "margin of a token that is not optimal, in that program's solution: the mean",
            "largest_margin": "the same: the largest",
        }

    def block_function(self, factors: dict[str, Any], trial_width: int) -> Callable[[Any], dict[str, Any]]:
        select = self.selection.block_function(factors, trial_width)
        draw = jax.jit(jax.vmap(partial(self.selection.in_span, factors)))
        norm = NORMS[factors["parametrization"]]
        support: Any = _supports  # Pyright takes what is compiled for a method of a module

        def block(keys: Any) -> dict[str, Any]:
            return {**select(keys), **support(*draw(keys), norm)}

        return block


@eqx.filter_jit
def _supports(risks: Any, models: Any, norm: str) -> dict[str, Any]:
    """Of a block; padded as they are followed, several d share what is compiled."""
    return eqx.filter_vmap(partial(_support, norm))(risks, models)


def _support(norm: str, risk: Any, model: Any) -> dict[str, Any]:
    """The program of the optimal tokens, and the margins of the others in its solution."""
    data = risk.data
    optimal = optimal_tokens(token_scores(data, model.head), data.visible)
    program = attention_svm(data, optimal, norm)
    solution = solve(program)
    margins, others = program.margins(solution.primal), program.active
    return {
        "optimal_program": Code(solution.result.value, ProgramResult),
        "mean_margin": jnp.mean(margins, where=others),
        "largest_margin": jnp.max(margins, where=others, initial=-jnp.inf),
    }


@register_figure(
    "tarzanagh2023",
    "fig5",
    title="Where W and (K, Q) converge as d grows, and Assumption B.1",
    run_times={
        "quick": "100 instances at 2 values of d, under a minute once compiled",
        "paper": "500 instances at 9 values of d, nine minutes on two cores from an empty cache",
        "large": "100,000 instances at 9 values of d, hours",
    },
)
class Figure5(AbstractFigure):
    r"""Figure 5 of Tarzanagh et al. (2023): n = T = 5, everything uniform on the unit sphere, score gap 0.1 (App. F).

    Red: the optimal tokens are selected. Blue on top: other tokens, locally optimal by Definition 2. Teal: the
    complement. Green: Assumption B.1 as it is stated (every margin of the optimal tokens' program within 1e-6 of
    1), and in outline by the rule behind the published bars (average margin below 1.1). (a) W, (b) (K, Q), on
    the same instances. The flow's limit stands in place of 2,000 steps of normalised descent; the text gives
    no values of d, those here cover 2 to 20.
    """

    def compute(self, scale: str, seed: int, say: Callable[[str], None]) -> Data:
        return run_studies(SelectionAndSupport(), SIZES[scale], seed, say)

    def draw(self, data: Data) -> Any:
        exact, published, decided = (counts[0] for counts in assumption_counts(data))
        return draw_percentage_bars(
            {
                **convergence_bars(data),
                "marks": interval(exact, decided)[0],
                "marks_label": "Assumption B.1: all margins 1",
                "outlines": interval(published, decided)[0],
                "outlines_label": "average margin below 1.1",
            }
        )

    def claims(self, data: Data) -> tuple[list[Claim], list[str]]:
        claims = [
            *convergence_claims(
                data,
                "Figure 5",
                "Larger overparameterization (d) relates to a higher percentage of globally-optimal SVM convergence.",
                "The percentage of global convergence (red bars) approaches 100% as d grows.",
            ),
            *assumption_claims(data),
        ]
        return claims, notes_of(data)

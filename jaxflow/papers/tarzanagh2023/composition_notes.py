"""What stands below the claims of figures 8 and 11: every denominator, kinks, and the flow."""

import numpy as np

from jaxflow.papers.tarzanagh2023.composition import Data, Fate, fates_in_words
from jaxflow.papers.tarzanagh2023.composition_flow import MAX_STEPS, FlowEnd
from jaxflow.study import wilson

# "an average correlation exceeding 0.99" (§6).
CORRELATION = 0.99

FITTED = (
    "γ of W^SVMeq is fitted to the descent, and W^SVMeq tends to W^mm as γ grows: the combination of greatest "
    "correlation is never worse than W^mm. What the comparison shows is how much W^fin adds."
)

TOO_FEW = (
    "± is one standard error. A claim that two of them leave open, because too few instances were kept, is not settled."
)


def unconditional(data: Data) -> list[str]:
    """What became of all instances of each d, and the share that the filter keeps."""
    notes = []
    for d, outcome in zip(data["dimensions"], data["outcome"], strict=True):
        count = int(np.sum(outcome == Fate.kept))
        low, high = wilson(count, outcome.size)
        notes.append(
            f"d = {d}: {fates_in_words(outcome)}; kept {count / outcome.size:.1%} (95% interval {float(low):.1%} to "
            f"{float(high):.1%}). The paper shows the kept ones only."
        )
    return notes


def compositions(data: Data) -> list[str]:
    """Where several tokens remain selected, and how far descents got."""
    several = data["tokens_selected"] > 1
    parts = []
    for label, name in ((1.0, "+1"), (-1.0, "−1")):
        of_label = data["labels"] == label
        parts.append(f"{np.sum(several & of_label)} of {np.sum(of_label)} sequences with label {name}")
    off = data["units_off"]
    near = np.median(data["kink_distance"][several & ~off]) if np.any(several & ~off) else np.nan
    far = np.median(data["kink_distance"][~several]) if np.any(~several) else np.nan
    still = data["progress"] < 0.1
    return [
        f"More than one token is selected in {' and '.join(parts)} (all instances).",
        "1ᵀReLU(Vx) is linear between its kinks, where attention would select one token: several tokens remain only "
        f"on a kink or where all units are off. All units are off in {np.sum(several & off)} of the {several.sum()} "
        f"sequences with several tokens; in the others the median distance to the nearest kink is {near:.1e}, against "
        f"{far:.1e} in sequences with one token.",
        f"In {np.sum(data['at_rest'])} of {still.size} instances the gradient ends exactly zero; in {still.sum()} the "
        "second half of the steps covers less than a tenth of its length (steps to and fro about a finite point or a "
        f"kink), {np.sum(still & data['kept'])} of which the paper's filter keeps.",
    ]


def flow(data: Data) -> str:
    """How the gradient flows ended."""
    end = data["flow_end"]
    of = {code: int(np.sum(end == code)) for code in FlowEnd}
    several = np.any(data["tokens_selected"][:, : end.shape[1]] > 1, axis=-1)
    met = data["flow_met"] > 0
    return (
        f"The gradient flow on the first {end.shape[1]} instances of each d, along its kinks (Filippov's solution; "
        f"Tsit5 between them, at most {MAX_STEPS} steps), to the log t of their descents: {of[FlowEnd.reached]} of "
        f"{end.size} get there, {of[FlowEnd.stationary]} end at a stationary point before, {of[FlowEnd.budget_spent]} "
        f"spend the budget, {of[FlowEnd.sliding]} end where too many kinks meet, {of[FlowEnd.failed]} fail; in "
        f"{np.median(data['flow_steps']):.0f} steps (median; at most {np.max(data['flow_steps'])}). {met.sum()} slide "
        f"along kinks on their way, {np.sum(data['flow_sliding'] > 0)} at its end; of the {several.sum()} whose "
        f"descent composes several tokens {np.sum(met & several)}. They cross {np.sum(data['flow_crossed']):,} "
        f"kinks and meet {np.sum(data['flow_met']):,} to slide on."
    )

"""Data: tokens, vectors and samples with their targets. Data do not depend on a model; the head belongs to the
model."""

from jaxflow.data.random import causal_mask as causal_mask
from jaxflow.data.random import draw_tokens as draw_tokens
from jaxflow.data.random import random_sequences as random_sequences
from jaxflow.data.random import random_tokens as random_tokens
from jaxflow.data.random import score_gap_acceptance as score_gap_acceptance
from jaxflow.data.samples import LinearData as LinearData
from jaxflow.data.samples import SampleData as SampleData
from jaxflow.data.scores import optimal_tokens as optimal_tokens
from jaxflow.data.scores import require_untied as require_untied
from jaxflow.data.scores import tied_sequences as tied_sequences
from jaxflow.data.tokens import TokenData as TokenData

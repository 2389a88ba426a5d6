"""Floor 2: models as Equinox modules. A model knows its outputs, nothing of losses."""

from jaxflow.models.attention import AbstractAttention as AbstractAttention
from jaxflow.models.attention import CombinedAttention as CombinedAttention
from jaxflow.models.attention import DiagonalAttention as DiagonalAttention
from jaxflow.models.attention import FactoredAttention as FactoredAttention
from jaxflow.models.base import AbstractModel as AbstractModel
from jaxflow.models.base import Pullback as Pullback
from jaxflow.models.base import default_trainable as default_trainable
from jaxflow.models.base import linearize as linearize
from jaxflow.models.base import linearize_outputs as linearize_outputs
from jaxflow.models.heads import ConcaveHead as ConcaveHead
from jaxflow.models.heads import Head as Head
from jaxflow.models.heads import LinearHead as LinearHead
from jaxflow.models.heads import MLPHead as MLPHead
from jaxflow.models.heads import as_head as as_head
from jaxflow.models.heads import token_scores as token_scores
from jaxflow.models.saturation import log_attention as log_attention
from jaxflow.models.saturation import logit_multipliers as logit_multipliers

"""Floor 2: models as Equinox modules. A model knows its outputs, nothing of losses."""

from jaxflow.models.heads import ConcaveHead as ConcaveHead
from jaxflow.models.heads import Head as Head
from jaxflow.models.heads import LinearHead as LinearHead
from jaxflow.models.heads import MLPHead as MLPHead
from jaxflow.models.heads import as_head as as_head
from jaxflow.models.heads import token_scores as token_scores

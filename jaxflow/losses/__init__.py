"""Losses of outputs and targets, and what they are by margins."""

from jaxflow.losses.margins import LOSSES as LOSSES
from jaxflow.losses.margins import as_loss as as_loss
from jaxflow.losses.margins import log_slope_excess as log_slope_excess
from jaxflow.losses.margins import margins_of as margins_of
from jaxflow.losses.margins import scaled_by_output as scaled_by_output
from jaxflow.losses.margins import self_concordance as self_concordance
from jaxflow.losses.margins import tail_of as tail_of
from jaxflow.losses.margins import tail_rate as tail_rate
from jaxflow.losses.margins import value_of_margins as value_of_margins
from jaxflow.losses.margins import weights_of as weights_of
from jaxflow.losses.pointwise import AbstractLoss as AbstractLoss
from jaxflow.losses.pointwise import Correlation as Correlation
from jaxflow.losses.pointwise import CrossEntropy as CrossEntropy
from jaxflow.losses.pointwise import Exponential as Exponential
from jaxflow.losses.pointwise import Logistic as Logistic
from jaxflow.losses.pointwise import MarginLoss as MarginLoss
from jaxflow.losses.pointwise import Squared as Squared
from jaxflow.losses.pointwise import Tail as Tail
from jaxflow.losses.pointwise import slope_jumps as slope_jumps

"""Floor 7: what theorems predict."""

from jaxflow.theory.prediction import Assumption as Assumption
from jaxflow.theory.prediction import Prediction as Prediction
from jaxflow.theory.prediction import predict as predict
from jaxflow.theory.prediction import register as register

"""Flow and program together, a certified limit."""

from jaxflow.limits.attention_facts import AttentionFacts as AttentionFacts
from jaxflow.limits.attention_facts import HeadState as HeadState
from jaxflow.limits.closed_form import ClosedForm as ClosedForm
from jaxflow.limits.comparison import Comparison as Comparison
from jaxflow.limits.comparison import compare as compare
from jaxflow.limits.find import conclude as conclude
from jaxflow.limits.find import find_limit as find_limit
from jaxflow.limits.kkt_residual import kkt_residual as kkt_residual
from jaxflow.limits.limit import Limit as Limit
from jaxflow.limits.limit import LimitKind as LimitKind
from jaxflow.limits.limit import Rate as Rate
from jaxflow.limits.linear_method import LinearStaged as LinearStaged
from jaxflow.limits.method import AbstractMethod as AbstractMethod
from jaxflow.limits.method import Staged as Staged
from jaxflow.limits.model_direction import ModelStaged as ModelStaged
from jaxflow.limits.model_facts import KKTPoint as KKTPoint
from jaxflow.limits.model_facts import LinearFacts as LinearFacts
from jaxflow.limits.model_facts import ModelFacts as ModelFacts
from jaxflow.limits.model_facts import StationaryFacts as StationaryFacts
from jaxflow.limits.network_facts import ErrorSource as ErrorSource
from jaxflow.limits.network_facts import NetworkFacts as NetworkFacts
from jaxflow.limits.parallel import find_limits as find_limits
from jaxflow.limits.self_certificate import flow_certificate as flow_certificate
from jaxflow.limits.self_certificate import flow_certifier as flow_certifier

# Former classes of two families of models; aliases.
LinearLimit = Limit
ModelLimit = Limit

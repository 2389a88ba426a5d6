"""Floor 8: flow and program together, a certified limit."""

from jaxflow.limits.find import conclude as conclude
from jaxflow.limits.find import find_limit as find_limit
from jaxflow.limits.limit import Limit as Limit
from jaxflow.limits.limit import LimitKind as LimitKind
from jaxflow.limits.limit import Rate as Rate
from jaxflow.limits.method import AbstractMethod as AbstractMethod
from jaxflow.limits.method import Staged as Staged
from jaxflow.limits.self_certificate import flow_certificate as flow_certificate
from jaxflow.limits.self_certificate import flow_certifier as flow_certifier

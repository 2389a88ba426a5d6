"""Floor 6: the continuous gradient flow in any clock and any coordinates."""

from jaxflow.flow.clocks import AbstractClock as AbstractClock
from jaxflow.flow.clocks import ArcLength as ArcLength
from jaxflow.flow.clocks import LogArcLength as LogArcLength
from jaxflow.flow.clocks import LogTime as LogTime
from jaxflow.flow.clocks import LossTime as LossTime
from jaxflow.flow.clocks import PhysicalTime as PhysicalTime
from jaxflow.flow.clocks import as_clock as as_clock
from jaxflow.flow.coordinates import AbstractCoordinates as AbstractCoordinates
from jaxflow.flow.coordinates import Scores as Scores
from jaxflow.flow.coordinates import Weights as Weights
from jaxflow.flow.drive import Drive as Drive
from jaxflow.flow.drive import Lane as Lane
from jaxflow.flow.integrate import integrate as integrate
from jaxflow.flow.queue import run_queue as run_queue
from jaxflow.flow.stopping import AbstractStop as AbstractStop
from jaxflow.flow.stopping import Budget as Budget
from jaxflow.flow.stopping import CertificateGap as CertificateGap
from jaxflow.flow.stopping import LossExcess as LossExcess
from jaxflow.flow.stopping import SelectionSettled as SelectionSettled
from jaxflow.flow.stopping import Situation as Situation
from jaxflow.flow.stopping import StationaryPoint as StationaryPoint

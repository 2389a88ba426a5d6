"""Where does gradient flow go from here, which program does its limit solve, and how sure are we?"""

from jaxflow import data as data
from jaxflow import flow as flow
from jaxflow import limits as limits
from jaxflow import losses as losses
from jaxflow import margin as margin
from jaxflow import models as models
from jaxflow import study as study
from jaxflow import teachers as teachers
from jaxflow import theory as theory
from jaxflow._core import RESULTS as RESULTS
from jaxflow._core import Outcome as Outcome
from jaxflow._core import ScaledGradient as ScaledGradient
from jaxflow._core import SelectionStatus as SelectionStatus
from jaxflow.flow import ArcLength as ArcLength
from jaxflow.flow import Budget as Budget
from jaxflow.flow import CertificateGap as CertificateGap
from jaxflow.flow import Dual as Dual
from jaxflow.flow import Factors as Factors
from jaxflow.flow import LogArcLength as LogArcLength
from jaxflow.flow import LogHadamard as LogHadamard
from jaxflow.flow import LogTime as LogTime
from jaxflow.flow import LossExcess as LossExcess
from jaxflow.flow import LossTime as LossTime
from jaxflow.flow import MultiplierNewton as MultiplierNewton
from jaxflow.flow import PhysicalTime as PhysicalTime
from jaxflow.flow import RescaledTime as RescaledTime
from jaxflow.flow import Scores as Scores
from jaxflow.flow import SelectionSettled as SelectionSettled
from jaxflow.flow import StationaryPoint as StationaryPoint
from jaxflow.flow import Weights as Weights
from jaxflow.flow import integrate as integrate
from jaxflow.gradient_descent import descend as descend
from jaxflow.gradient_descent import published_protocol as published_protocol
from jaxflow.limits import Limit as Limit
from jaxflow.limits import LinearLimit as LinearLimit
from jaxflow.limits import LinearStaged as LinearStaged
from jaxflow.limits import Staged as Staged
from jaxflow.limits import find_limit as find_limit
from jaxflow.risk import EmpiricalRisk as EmpiricalRisk
from jaxflow.trajectory import Trajectory as Trajectory

__version__ = "0.1.0"

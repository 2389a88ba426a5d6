"""Where does gradient flow go from here, which program does its limit solve, and how sure are we?"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
    from jaxflow._core import Code as Code
    from jaxflow._core import Outcome as Outcome
    from jaxflow._core import ScaledGradient as ScaledGradient
    from jaxflow._core import SelectionStatus as SelectionStatus
    from jaxflow._core import compilation_cache as compilation_cache
    from jaxflow.flow import ArcLength as ArcLength
    from jaxflow.flow import Budget as Budget
    from jaxflow.flow import CertificateGap as CertificateGap
    from jaxflow.flow import Dual as Dual
    from jaxflow.flow import Factors as Factors
    from jaxflow.flow import Filippov as Filippov
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
    from jaxflow.flow import diagnose as diagnose
    from jaxflow.flow import integrate as integrate
    from jaxflow.gradient_descent import descend as descend
    from jaxflow.limits import Limit as Limit
    from jaxflow.limits import LinearLimit as LinearLimit
    from jaxflow.limits import LinearStaged as LinearStaged
    from jaxflow.limits import ModelLimit as ModelLimit
    from jaxflow.limits import ModelStaged as ModelStaged
    from jaxflow.limits import Staged as Staged
    from jaxflow.limits import find_limit as find_limit
    from jaxflow.risk import EmpiricalRisk as EmpiricalRisk
    from jaxflow.trajectory import Trajectory as Trajectory

__version__ = "0.1.0"

# What is imported with `jaxflow` is imported at its first use (PEP 562): the command line answers `--help` without JAX.
# The block above says the same to type checkers; a test holds both equal.
_MODULES = ("data", "flow", "limits", "losses", "margin", "models", "study", "teachers", "theory")
_ROOMS = {
    "_core": "RESULTS Code Outcome ScaledGradient SelectionStatus compilation_cache",
    "flow": "ArcLength Budget CertificateGap Dual Factors Filippov LogArcLength LogHadamard LogTime LossExcess "
    "LossTime MultiplierNewton PhysicalTime RescaledTime Scores SelectionSettled StationaryPoint Weights diagnose "
    "integrate",
    "gradient_descent": "descend",
    "limits": "Limit LinearLimit LinearStaged ModelLimit ModelStaged Staged find_limit",
    "risk": "EmpiricalRisk",
    "trajectory": "Trajectory",
}
_NAMES = {name: f"jaxflow.{room}" for room, names in _ROOMS.items() for name in names.split()}

__all__ = (*_MODULES, *_NAMES)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        # Any module of the package, those that are not listed too.
        if name.startswith("__") or find_spec(f"jaxflow.{name}") is None:
            raise AttributeError(f"module 'jaxflow' has no attribute {name!r}")
        return import_module(f"jaxflow.{name}")
    found = getattr(import_module(_NAMES[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""Coordinates: what the state of the integration is. One file each."""

from jaxflow._core import as_named
from jaxflow.flow.coordinates.base import AbstractCoordinates as AbstractCoordinates
from jaxflow.flow.coordinates.dual import Dual as Dual
from jaxflow.flow.coordinates.factors import Factors as Factors
from jaxflow.flow.coordinates.halves import Halves as Halves
from jaxflow.flow.coordinates.log_hadamard import LogHadamard as LogHadamard
from jaxflow.flow.coordinates.mirror import Mirror as Mirror
from jaxflow.flow.coordinates.one_layer import OneLayer as OneLayer
from jaxflow.flow.coordinates.scores import LayerScores as LayerScores
from jaxflow.flow.coordinates.scores import Scores as Scores
from jaxflow.flow.coordinates.spectrum import Spectrum as Spectrum
from jaxflow.flow.coordinates.weights import Weights as Weights

COORDINATES = {
    "weights": Weights,
    "scores": Scores,
    "factors": Factors,
    "halves": Halves,
    "dual": Dual,
    "log_hadamard": LogHadamard,
    "one_layer": OneLayer,
    "spectrum": Spectrum,
}


def as_coordinates(coordinates: AbstractCoordinates | str | None) -> AbstractCoordinates:
    """Coordinates from a value, a name, or None for `Weights`. **Raises:** `ValueError`."""
    given = "weights" if coordinates is None else coordinates
    return as_named("coordinates", given, AbstractCoordinates, COORDINATES)

"""Experiments on instances of several sizes (n, T): curves and panels along which one of both varies."""

from typing import Any

import numpy as np

from jaxflow.plots import CURVES, new_figure


def varied(shapes: np.ndarray, which: int) -> list[int]:
    """The places among pairs (n, T) where n (0) or T (1) varies and the other is that of the first, in rising order."""
    places = np.flatnonzero(shapes[:, 1 - which] == shapes[0, 1 - which])
    return sorted(places.tolist(), key=lambda place: shapes[place, which])


def panels_by_shape(shapes: np.ndarray, order: str) -> tuple[Any, list[tuple[Any, str, list[tuple[int, str, str]]]]]:
    """A figure with a panel for n and one for T that varies, in this order, "nT" or "Tn", where several sizes do.

    **Returns:** the figure; of each panel its axis, its title and its curves: place, color and size in symbols.
    """
    found = {letter: "nT".index(name) for letter, name in zip("ab", order, strict=True)}
    shown = {letter: which for letter, which in found.items() if len(varied(shapes, which)) > 1}
    shown = shown or {"a": found["a"]}
    figure, axes = new_figure(len(shown), width=5.2 * len(shown), height=4.0, shared=True)
    panels = []
    for axis, (letter, which) in zip(axes, shown.items(), strict=True):
        curves = zip(varied(shapes, which), CURVES, strict=False)
        symbols = [(row, color, f"${'nT'[which]}={shapes[row, which]}$") for row, color in curves]
        panels.append((axis, f"({letter}) ${'Tn'[which]}={shapes[0, 1 - which]}$", symbols))
    return figure, panels

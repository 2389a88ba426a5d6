"""What the results of all cells look like, by their shapes, before anything is computed."""

from dataclasses import replace
from typing import Any

import numpy as np

from jaxflow._core import require
from jaxflow.study.blocks import Computer
from jaxflow.study.keys import as_keys
from jaxflow.study.plan import Index, Plan
from jaxflow.study.results import BlockResult, Variable, difference, fill_value, layout_of


def looked_at(plan: Plan) -> dict[Index, str]:
    """The first cell, those in which one factor has another value (by its name), and that of the largest numbers."""
    first = tuple(0 for _ in plan.cells)
    found = {first: ""}
    for axis, (name, values) in enumerate(plan.factors.items()):
        for at in range(1, len(values)):
            found[(*first[:axis], at, *first[axis + 1 :])] = name
    numeric = [values if not isinstance(values[0], str) else values[:1] for values in plan.factors.values()]
    largest = tuple(max(range(len(values)), key=lambda at, values=values: values[at]) for values in numeric)
    return found | ({largest: " and ".join(plan.factors)} if largest not in found else {})


def common_layout(computer: Computer, plan: Plan) -> tuple[Variable, ...] | None:
    """What the results of every cell look like. None where a block function does not tell before it has run.

    Results that the experiment names in `padding` are as large as the largest cell has them.

    **Raises:** `ValueError` naming the factor and the results that it changes; whatever the experiment raises.
    """
    fills, cells = computer.experiment.padding(), looked_at(plan)
    layouts: dict[Index, tuple[Variable, ...]] = {}
    keys = as_keys(np.zeros((plan.block, 2), np.uint32))
    for index in cells:
        factors = plan.values_at(index)
        try:
            function: Any = computer.function(factors, plan.block)
            if not hasattr(function, "eval_shape"):
                return None
            layouts[index] = layout_of(computer.experiment.name(), function.eval_shape(keys))
        except Exception as error:
            error.add_note(f"at {factors}, before anything was computed")
            raise
    whole: dict[str, tuple[int, ...]] = {}
    for name in fills:
        shapes = {v.shape for layout in layouts.values() for v in layout if v.name == name}
        # Of one shape in all cells, it is stored as it is.
        if len(shapes) > 1 and len({len(shape) for shape in shapes}) == 1:
            whole[name] = tuple(map(max, zip(*shapes, strict=True)))
    filled = {
        index: tuple(replace(v, shape=whole[v.name], padding=fills[v.name]) if v.name in whole else v for v in layout)
        for index, layout in layouts.items()
    }
    first = next(iter(filled.values()))
    for index, layout in filled.items():
        how = difference(first, layout)
        require(
            not how,
            "results",
            f"every cell must give the same names, dtypes and shapes, but they depend on {cells[index]}, at "
            f"{plan.values_at(index)}: {how}. Return arrays of one size, or name in `padding` what fills them up",
        )
    return first


def filled_up(result: BlockResult, layout: tuple[Variable, ...] | None) -> BlockResult:
    """Results as large as the study stores them. One that is larger stays what it is, and the store refuses it."""
    arrays, fills = dict(result.arrays), {v.name: v for v in layout or () if v.padding is not None}
    for name, variable in fills.items():
        array: Any = arrays.get(name, np.zeros(0))
        more = [(0, size - own) for size, own in zip(variable.shape, array.shape[1:], strict=False)]
        if array.ndim == 1 + len(variable.shape) and all(after >= 0 for _, after in more):
            arrays[name] = np.pad(array, [(0, 0), *more], constant_values=fill_value(variable))
    found = (
        replace(v, shape=arrays[v.name].shape[1:], padding=fills[v.name].padding) if v.name in fills else v
        for v in result.layout
    )
    return replace(result, arrays=arrays, layout=tuple(found))

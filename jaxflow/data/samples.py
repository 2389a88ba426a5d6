"""Inputs of any shape with targets of any shape: the data of networks that are functions of one input."""

from typing import Any

from jaxtyping import Array, Float, Int

from jaxflow._core import AbstractPrinted, as_arrays, as_signs, is_concrete, require, require_finite


class SampleData(AbstractPrinted):
    r"""n inputs $x_i$ with targets $y_i$, both arrays of any shape (for example sequences): the samples of §2 of
    Boix-Adserà et al. (2023).

    **Arguments:** `inputs` `(n, ...)`; `targets` `(n, ...)`, in the shape of the network's outputs (class numbers: in
    that shape without its last axis). Booleans, two strings, 0 and 1, and class numbers are treated as in `LinearData`.
    """

    inputs: Float[Array, "..."]
    targets: Float[Array, "..."] | Int[Array, "..."]

    def __init__(self, inputs: Any, targets: Any):
        targets = as_signs("targets", targets, numbers=False)
        self.inputs, self.targets = as_arrays(inputs=inputs, targets=targets)

    @classmethod
    def validated(cls, inputs: Any, targets: Any) -> "SampleData":
        """Builds data and checks them. **Raises:** `ValueError`."""
        data = cls(inputs, targets)
        data.check()
        return data

    def check(self) -> None:
        """Checks one instance; values only where they are concrete. **Raises:** `ValueError`."""
        require(self.inputs.ndim >= 1, "inputs", "expected shape (n, ...), got a number")
        n = self.inputs.shape[0]
        expected = f"expected {n} targets, one for each input, got shape {self.targets.shape}"
        require(self.targets.shape[:1] == (n,), "targets", expected)
        for name, value in (("inputs", self.inputs), ("targets", self.targets)):
            require(value.size > 0, name, f"empty axis in shape {value.shape}")
            if is_concrete(value):
                require_finite(name, value)

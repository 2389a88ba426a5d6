"""Inputs with a target each: vectors, and inputs of any shape."""

from typing import Any

from jaxtyping import Array, Float, Int

from jaxflow._core import AbstractPrinted, as_arrays, as_signs, is_concrete, require, require_finite


class LinearData(AbstractPrinted):
    r"""n inputs $x_i\in\mathbb R^d$ with targets $y_i$: labels ±1, class numbers, or real values for regression.

    **Arguments:** `inputs` `(n, d)`; `targets` `(n,)`. Booleans and two strings become labels ±1: True is +1, and so is
    the later string in sorted order. Targets 0 and 1 stay real values here; with a loss of the margin `EmpiricalRisk`
    takes them as labels −1 and +1, and with `CrossEntropy` as numbers of classes (integers in `risk.data`). As in
    `TokenData`, the constructor checks shapes and allows common leading batch axes;
    `LinearData.validated` also checks the values.
    """

    inputs: Float[Array, "*b n d"]
    targets: Float[Array, "*b n"] | Int[Array, "*b n"]

    def __init__(self, inputs: Any, targets: Any):
        targets = as_signs("targets", targets, numbers=False)
        self.inputs, self.targets = as_arrays(inputs=inputs, targets=targets)

    def __check_init__(self) -> None:
        require(self.inputs.ndim >= 2, "inputs", f"expected shape (n, d), got {self.inputs.shape}")
        expected = self.inputs.shape[:-1]
        require(
            self.targets.shape == expected,
            "targets",
            f"expected one target for each input, shape {expected}, got {self.targets.shape}",
        )

    @property
    def named_sizes(self) -> dict[str, int]:
        """The sizes that shapes of other arguments use by name."""
        n, d = self.inputs.shape[-2:]
        return {"n": n, "d": d}

    @classmethod
    def validated(cls, inputs: Any, targets: Any) -> "LinearData":
        """Builds data and checks that the entries are finite. **Raises:** `ValueError`."""
        data = cls(inputs, targets)
        data.check()
        return data

    def check(self) -> None:
        """Checks one concrete instance; does nothing to traced values. **Raises:** `ValueError`."""
        require(
            self.inputs.ndim == 2,
            "inputs",
            f"expected one instance (n, d), got {self.inputs.shape}: map over batch axes with jax.vmap",
        )
        require(min(self.inputs.shape) > 0, "inputs", f"empty axis in shape {self.inputs.shape}")
        if not is_concrete(self):
            return
        for name, value in (("inputs", self.inputs), ("targets", self.targets)):
            require_finite(name, value)


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

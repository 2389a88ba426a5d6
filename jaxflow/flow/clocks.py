r"""Clocks: the choice of the integration variable s.

The flow $\dot\theta=-\nabla L$ traces one path; a clock chooses $dt/ds$. Every clock starts at s = 0 where t = 0, and
has readings in units of its own (`until`, `save_at`): a time, its logarithm, a length, and so on.
"""

import abc
import math
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxflow._core import as_named, check_real, checked, is_concrete, require

Scalar = Float[Array, ""]


class AbstractClock(eqx.Module):
    """A choice of time variable.

    The gradient is given as $e^c G$ with G of order one; a clock returns
    $\\log(e^c\\,dt/ds)$, so that $d\\theta/ds$ is that factor times −G and no underflow can occur.
    """

    # Whether log t is a function of s alone; otherwise it is integrated along.
    tells_time: eqx.AbstractClassVar[bool]

    @abc.abstractmethod
    def log_speed(self, s: Scalar, log_scale: Scalar, log_norm: Scalar, log_sum: Scalar) -> Scalar:
        r"""$\log(e^c\,dt/ds)$, from c, $\log\|G\|$ and $\log\sum_k|P_k|$ (multipliers on G's scale)."""

    def log_time(self, s: Scalar) -> Scalar:
        """log t as a function of s, of a clock that tells it."""
        return self.reading(s) if self.reads_negative else jnp.log(self.reading(s))

    def log_length(self, s: Scalar) -> Scalar | None:
        r"""$\log\rho$, with ρ the scale of lengths that grows like $e^s$; None where lengths do not."""
        return None

    def log_unit(self) -> Scalar | None:
        r"""log u for a clock whose reading is a logarithm and that integrates in $\log(1+\cdot/u)$; None for others."""
        return None

    @property
    def reads_negative(self) -> bool:
        """Whether readings may be negative, as those of a logarithm."""
        return self.log_unit() is not None

    def log_cap(self) -> float | Float[Array, ""]:
        """Log of the length beyond which the dynamics are the limiting ones; infinite for the exact flow."""
        return float("inf")

    def is_exact(self) -> bool:
        """Whether the exact flow is followed at every distance."""
        cap = self.log_cap()
        return isinstance(cap, float) and math.isinf(cap)

    def integrates_time(self) -> bool:
        """Whether t is a state beside the weights; where it is not, and is not a function of s, $\\log t=r$ with
        $r=\\log dt/ds$, to leading order."""
        return not self.tells_time

    def internal(self, reading: Float[Array, "..."] | float) -> Float[Array, "..."]:
        """The integration variable at a reading of the clock."""
        unit = self.log_unit()
        return jnp.asarray(reading) if unit is None else jax.nn.softplus(jnp.asarray(reading) - unit)

    def reading(self, s: Float[Array, "..."]) -> Float[Array, "..."]:
        """The reading of the clock at an integration variable."""
        unit = self.log_unit()
        return s if unit is None else s + jnp.log(-jnp.expm1(-s)) + unit


class PhysicalTime(AbstractClock):
    """s = t. Steps in t underflow: the weights no longer change once the gradient is small.

    **Example:**

    ```python
    jf.integrate(risk, model, clock=jf.PhysicalTime(), until=1.0)
    ```
    """

    tells_time: ClassVar[bool] = True

    def log_speed(self, s: Scalar, log_scale: Scalar, log_norm: Scalar, log_sum: Scalar) -> Scalar:
        return log_scale


class RescaledTime(AbstractClock):
    r"""The reading is $t/\log(1/\alpha)$. In it the times of the stages from a start of size α converge as α → 0
    (Boix-Adserà et al. 2023).

    **Arguments:** `log_alpha`: $\log\alpha<0$; α itself may be far below the smallest floating-point number.

    **Example:**

    ```python
    clock = jf.RescaledTime(log_alpha=-20.0)
    clock.internal(1.5)  # from a reading to the integration variable
    ```
    """

    log_alpha: Float[Array, ""] = eqx.field(converter=lambda x: jnp.asarray(check_real("log_alpha", x), dtype=float))
    tells_time: ClassVar[bool] = True

    def __check_init__(self) -> None:
        negative = not is_concrete(self.log_alpha) or bool(jnp.all(self.log_alpha < 0))
        require(negative, "log_alpha", f"expected a negative number, got {self.log_alpha}")

    def log_speed(self, s: Scalar, log_scale: Scalar, log_norm: Scalar, log_sum: Scalar) -> Scalar:
        return log_scale + jnp.log(-self.log_alpha)

    def log_time(self, s: Scalar) -> Scalar:
        return jnp.log(s) + jnp.log(-self.log_alpha)


@checked(positive=["unit"])
class LogTime(AbstractClock):
    r"""The reading is $\log t$. Integrates in $s=\log(1+t/u)$, which starts at t = 0 and for large t is log t up to a
    constant.

    **Arguments:** `unit`: u, the time below which the clock is linear.

    **Example:**

    ```python
    path = jf.integrate(risk, model, clock=jf.LogTime(), until=2.0)
    assert jnp.allclose(path.log_time, 2.0)
    ```
    """

    unit: float = 1.0
    tells_time: ClassVar[bool] = True

    def log_unit(self) -> Scalar:
        return jnp.log(self.unit)

    def log_speed(self, s: Scalar, log_scale: Scalar, log_norm: Scalar, log_sum: Scalar) -> Scalar:
        return log_scale + s + jnp.log(self.unit)


@checked(nonnegative=["floor"])
class ArcLength(AbstractClock):
    r"""The reading is the length of the path, $ds=\|\nabla L\|\,dt$: bounded speed at any distance.

    A path into a finite stationary point has finite length, and there the unit velocity jumps. `floor` > 0 avoids the
    jump: $ds=(\|\nabla L\|+\text{floor}\cdot\sum_k|p_k|)\,dt$ with the multipliers p. Where the gradient vanishes
    because attention saturates both terms vanish together and the clock stays proportional to a length; where it
    vanishes by cancellation, at a stationary point, the clock becomes a time.

    `timed=False` computes log t to leading order only: its own equation differentiates the field once more, which is
    more than half of the work (also of the compilation).

    Where weights leave a start near zero, nearly all of t passes while the path is shorter than an absolute tolerance
    that was chosen for weights of size one. The error of log t is then unbounded.
    The default controller of `integrate` therefore resolves a small start to its rtol; a controller of your own needs
    an `atol` below the smallest weights, `diffrax.PIDController(rtol=1e-4, atol=1e-4 * alpha)`.

    **Example:**

    ```python
    path = jf.integrate(risk, model, clock=jf.ArcLength(), until=1.0)
    assert jnp.allclose(path.log_arc_length, 0.0, atol=1e-6)
    ```
    """

    floor: float = 0.0
    timed: bool = eqx.field(static=True, default=True)
    tells_time: ClassVar[bool] = False

    def integrates_time(self) -> bool:
        return self.timed

    def log_speed(self, s: Scalar, log_scale: Scalar, log_norm: Scalar, log_sum: Scalar) -> Scalar:
        return -_floored(log_norm, log_sum, self.floor)


@checked(positive=["unit", "cap"], nonnegative=["floor"], infinite=["cap"])
class LogArcLength(AbstractClock):
    r"""The reading is the log of that of `ArcLength`. Integrates in $s=\log(1+\ell/u)$. Stiff; meant for implicit
    methods.

    Beyond the length `cap` the flow passes to its **limiting** dynamics. For a model homogeneous of degree L
    the margins are $\rho^Lq_k(\varphi)$ on the sphere, and multipliers $\propto e^{-\rho^Lq_k}$ turn into
    rounding noise where $\rho^L\varepsilon$ is no longer small. With $\rho^L$ replaced by
    $\min(\rho,\text{cap})^L$ in the exponents (and nowhere else) the direction has the same limit, up to a
    floor of about $1/\text{cap}^L$ in its margins, and can be followed to any log t.

    **Arguments:** `unit`: u, the length below which the clock is linear; `floor` and `timed` as in `ArcLength`;
    `cap`: infinite by default, for the exact flow.

    **Example:**

    ```python
    jf.integrate(risk, model, clock=jf.LogArcLength(), until=0.5)  # an implicit solver by default
    ```
    """

    unit: float | Float[Array, ""] = 1.0
    floor: float = 0.0
    cap: float | Float[Array, ""] = float("inf")
    timed: bool = eqx.field(static=True, default=True)
    tells_time: ClassVar[bool] = False

    def integrates_time(self) -> bool:
        return self.timed

    def log_unit(self) -> Scalar:
        return jnp.log(self.unit)

    def log_speed(self, s: Scalar, log_scale: Scalar, log_norm: Scalar, log_sum: Scalar) -> Scalar:
        return s + jnp.log(self.unit) - _floored(log_norm, log_sum, self.floor)

    def log_length(self, s: Scalar) -> Scalar:
        return s + jnp.log(self.unit)

    def log_cap(self) -> float | Float[Array, ""]:
        return math.log(self.cap) if isinstance(self.cap, float) else jnp.log(self.cap)


class LossTime(AbstractClock):
    r"""$ds=\sum_k|p_k|\,dt$ with the multipliers p of the risk.

    For the exponential loss of a homogeneous model $\sum_k|p_k|=L$, so this is the flow of $\log L$,
    $d\theta/ds=-\nabla\log L$ (Yun et al. 2021 §6 in the form that never underflows). For attention the sum is, up to a
    factor of two, the excess of the loss over that of the selected tokens, as attention saturates.

    **Example:**

    ```python
    jf.integrate(risk, model, clock=jf.LossTime(), until=1.0)
    ```
    """

    tells_time: ClassVar[bool] = False

    def log_speed(self, s: Scalar, log_scale: Scalar, log_norm: Scalar, log_sum: Scalar) -> Scalar:
        return -log_sum


CLOCKS = {
    "physical_time": PhysicalTime,
    "log_time": LogTime,
    "arc_length": ArcLength,
    "log_arc_length": LogArcLength,
    "loss_time": LossTime,
}


def as_clock(clock: AbstractClock | str) -> AbstractClock:
    """A clock from a clock or its name. **Raises:** `ValueError` with the nearest name."""
    return as_named("clock", clock, AbstractClock, CLOCKS)


def _floored(log_norm: Scalar, log_sum: Scalar, floor: float) -> Scalar:
    return log_norm if floor == 0.0 else jnp.logaddexp(log_norm, jnp.log(floor) + log_sum)

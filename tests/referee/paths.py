r"""Plain gradient flows of linear networks in NumPy and SciPy, for a referee that shares no code with the library.

One instance at a time, with Jacobians by the product rule: inwards, to a finite limit, the flow $\dot\theta=-\nabla L$
itself, by LSODA, or by Radau where LSODA has no end (its corrector fails at saddles of small starts); outwards, along a
direction, the same path in its arc length by LSODA, with multipliers over the largest one. Convolutional networks are
followed in their Fourier modes, a rotation of each layer: one that is still as small as the start has its own digits.
"""

import warnings
from collections.abc import Callable
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
from scipy.integrate import LSODA, Radau
from scipy.linalg import LinAlgWarning

# Of directions, which are compared loosely.
RTOL = 1e-7
# A start with margins as large is not followed outwards: differences of margins are rounded by 1e-16 of it.
FOLLOWED = 1e10
# Inward flows: the residual, relative to the targets, and the share of the pushes that cancel, at which they are ended.
FITS, CANCELS = 1e-13, 1e-11
# Pushes that cancel say nothing of a mode that a small start hides: it takes the time start^(2-L), times this.
PATIENCE = 1e6
# A start that is followed outwards in time first.
SMALL = 1e-6
# The kind of a convolutional network that is given by the modes of its filters.
MODES = "modes of a convolutional network"


class Vectors(NamedTuple):
    """Instances: inputs `(..., n, d)` and targets `(..., n)`."""

    inputs: np.ndarray
    targets: np.ndarray

    def take(self, index: Any) -> "Vectors":
        """The instances of an index."""
        return Vectors(self.inputs[index], self.targets[index])


class Path(NamedTuple):
    """Where an outward path was left: coefficients `(d,)`, the smallest margin (zero where the path is shorter than ten
    times its start), and the distance of the unit vectors along the coefficients and their velocity."""

    beta: np.ndarray
    margin: float
    turn: float


def coefficients(kind: str, theta: tuple[np.ndarray, ...]) -> np.ndarray:
    """β of the layers, `(..., d)`."""
    if kind == "diagonal network":
        return reduce(np.multiply, theta)
    if kind == "convolutional network":
        return np.fft.ifft(reduce(np.multiply, map(np.fft.fft, theta))).real
    if kind == MODES:
        d = theta[0].shape[-1]
        product = d ** (0.5 * (len(theta) - 1)) * reduce(np.multiply, map(_halves, theta))
        return np.fft.irfft(product, n=d, norm="ortho")
    product = reduce(np.matmul, _matrices(kind, theta))
    return product.reshape(*product.shape[:-2], -1)


def pulled(kind: str, theta: tuple[np.ndarray, ...], g: np.ndarray) -> tuple[np.ndarray, ...]:
    r"""The gradient of $\langle g,\beta(\theta)\rangle$ in every layer."""
    if kind == "diagonal network":
        return tuple(g * reduce(np.multiply, theta[:k] + theta[k + 1 :]) for k in range(len(theta)))
    if kind == "convolutional network":
        spectra, seen = tuple(map(np.fft.fft, theta)), np.fft.fft(g)
        rest = [reduce(np.multiply, spectra[:k] + spectra[k + 1 :]) for k in range(len(theta))]
        return tuple(np.fft.ifft(seen * np.conj(other)).real for other in rest)
    if kind == MODES:
        spectra, d = tuple(map(_halves, theta)), g.shape[-1]
        seen = d ** (0.5 * (len(theta) - 1)) * np.fft.rfft(g, norm="ortho")
        rest = [reduce(np.multiply, spectra[:k] + spectra[k + 1 :]) for k in range(len(theta))]
        return tuple(_parts(seen * np.conj(other), d) for other in rest)
    layers = _matrices(kind, theta)
    after: list[Any] = [None] * len(layers)
    for k in range(len(layers) - 2, -1, -1):
        after[k] = layers[k + 1] if after[k + 1] is None else layers[k + 1] @ after[k + 1]
    G = g.reshape(*g.shape[:-1], layers[0].shape[-2], layers[-1].shape[-1])
    found = []
    for layer, right in zip(layers, after, strict=True):
        # G is what the layers before this one leave of it; those after it are still to be taken off.
        found.append(G if right is None else G @ np.swapaxes(right, -1, -2))
        G = np.swapaxes(layer, -1, -2) @ G
    if kind == "deep network":
        found[-1] = found[-1][..., 0]
    return tuple(found)


def curvature(
    kind: str, theta: tuple[np.ndarray, ...], inputs: np.ndarray, p: np.ndarray, slope: np.ndarray
) -> np.ndarray:
    r"""The derivative of $\sum_ip_i(f_i)\nabla f_i$, `slope` being $p_i'$: exact, since β is linear in every layer, so
    that a derivative in a layer is the same function with a unit vector in its place."""
    columns = []
    for k, w in enumerate(theta):
        unit_vectors = np.eye(w.size).reshape(w.size, *w.shape)
        moved = (*theta[:k], unit_vectors, *theta[k + 1 :])
        turned = pulled(kind, moved, p @ inputs)
        bent = pulled(kind, theta, (coefficients(kind, moved) @ inputs.T * slope) @ inputs)
        parts = [b if m == k else b + t for m, (b, t) in enumerate(zip(bent, turned, strict=True))]
        columns.append(np.concatenate([part.reshape(w.size, -1) for part in parts], 1))
    return np.concatenate(columns, 0).T


def in_modes(kind: str, theta: tuple[np.ndarray, ...]) -> tuple[str, tuple[np.ndarray, ...]]:
    """Convolutional networks by the modes of their filters, others as they are."""
    if kind != "convolutional network":
        return kind, theta
    return MODES, tuple(_parts(np.fft.rfft(w, norm="ortho"), w.shape[-1]) for w in theta)


def _parts(spectrum: np.ndarray, d: int) -> np.ndarray:
    """Real and imaginary parts of half a spectrum, as long as the whole."""
    sizes = np.full(spectrum.shape[-1], np.sqrt(2.0))
    sizes[[0] if d % 2 else [0, -1]] = 1.0
    both = sizes * spectrum
    return np.concatenate([both.real, both.imag[..., 1 : (d + 1) // 2]], -1)


def _halves(parts: np.ndarray) -> np.ndarray:
    """Half a spectrum from its real and imaginary parts."""
    d = parts.shape[-1]
    found = parts[..., : d // 2 + 1].astype(complex)
    found[..., 1 : (d + 1) // 2] += 1j * parts[..., d // 2 + 1 :]
    found[..., 1 : (d + 1) // 2] /= np.sqrt(2.0)
    return found


def _matrices(kind: str, theta: tuple[np.ndarray, ...]) -> list[np.ndarray]:
    return [*theta[:-1], theta[-1][..., None]] if kind == "deep network" else list(theta)


def joined(layers: Any) -> np.ndarray:
    """All entries of layers, flat."""
    return np.concatenate([np.ravel(w) for w in layers])


def split_as(theta: tuple[np.ndarray, ...]) -> Callable[[np.ndarray], tuple[np.ndarray, ...]]:
    """What makes layers of the shapes of `theta` of their flat entries."""
    cuts = np.cumsum([w.size for w in theta])[:-1]
    return lambda flat: tuple(x.reshape(w.shape) for x, w in zip(np.split(flat, cuts), theta, strict=True))


def alive(kind: str, theta: tuple[np.ndarray, ...]) -> np.ndarray:
    r"""Of one start: which coordinates can take any value. Of two layers $|u_j|\ne|v_j|$ is wanted, which the flow
    conserves (of spectra, for convolutions); of more layers, that no two are zero there. True for the others, unless
    all is zero."""
    if kind in ("deep network", "matrix sensing"):
        return np.array([any(np.any(w) for w in theta)])
    stacked = np.stack(theta)
    sizes = np.abs(np.fft.fft(stacked)) if kind == "convolutional network" else np.abs(stacked)
    if len(theta) == 2:
        return np.abs(sizes[0] - sizes[1]) > 1e-12 * sizes.max()
    return (sizes > 1e-14 * sizes.max()).sum(0) >= len(theta) - 1


def pushes(loss: str, data: Vectors, beta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    r"""$p_i=-\partial L/\partial f_i$ of the sum of losses for one instance, and the derivative of each in $f_i$."""
    f, y = data.inputs @ beta, data.targets
    if loss == "squared":
        return y - f, -np.ones_like(f)
    logs, rates = decays(loss, y * f)
    p = np.exp(logs)
    return y * p, -p * rates


def decays(loss: str, margins: np.ndarray) -> tuple[np.ndarray, Any]:
    r"""$\log|p_i|$ of margins, and the rates $-\partial\log|p_i|$ at which they fall."""
    logs = -margins if loss == "exponential" else -np.logaddexp(0.0, margins)
    return logs, 1.0 if loss == "exponential" else 1.0 - np.exp(logs)


def at_rest(kind: str, theta: tuple[np.ndarray, ...], data: Vectors, loss: str) -> bool:
    """Whether a start is one: no push, or none that any layer feels."""
    p, _ = pushes(loss, data, coefficients(kind, theta))
    return not any(np.any(x) for x in pulled(kind, theta, p @ data.inputs))


def follow_in(
    kind: str, data: Vectors, theta: tuple[np.ndarray, ...], loss: str, *, rtol: float = 1e-10, steps: int = 6_000
) -> np.ndarray | None:
    """The coefficients at which the flow from one start comes to rest, or None where it does not."""
    kind, theta = in_modes(kind, theta)
    # Of order five, Radau takes twice the steps at a hundred times the tolerance.
    methods = ((LSODA, rtol, steps), (Radau, 100.0 * rtol, 2 * steps))
    found = (_rest(method, kind, data, theta, loss, *how) for method, *how in methods)
    return next((beta for beta in found if beta is not None), None)


def _rest(
    method: Any, kind: str, data: Vectors, theta: tuple[np.ndarray, ...], loss: str, rtol: float, steps: int
) -> np.ndarray | None:
    layers, size = split_as(theta), float(np.abs(data.inputs).max())
    start, scaled = float(np.abs(joined(theta)).max()), data.inputs / size
    targets = np.abs(data.targets).max()
    hidden = PATIENCE * max(1.0, start ** (2.0 - len(theta)), 1.0 / size)

    def rests(t: float, flat: np.ndarray) -> bool:
        at = layers(flat)
        beta = coefficients(kind, at)
        p, _ = pushes(loss, data, beta)
        rounding = 1e-15 * (np.abs(data.inputs) @ np.abs(beta)).max()
        fits = loss == "squared" and np.abs(p).max() <= FITS * targets + rounding
        return fits or (t > hidden and _cancelled(kind, at, scaled, p))

    end, rested = _in_time(method, kind, data, theta, loss, rtol, steps, rests)
    return coefficients(kind, layers(end)) if rested else None


def _in_time(
    method: Any,
    kind: str,
    data: Vectors,
    theta: tuple[np.ndarray, ...],
    loss: str,
    rtol: float,
    steps: int,
    ends: Callable[[float, np.ndarray], bool],
) -> tuple[np.ndarray, bool]:
    """The layers, flat, where the flow `ends`, which is asked every ten steps, or where it was left, and which."""
    # Time is multiplied by the largest entry of the inputs, which changes no path.
    layers, size = split_as(theta), float(np.abs(data.inputs).max())
    scaled = data.inputs / size

    def velocity(_: float, flat: np.ndarray) -> np.ndarray:
        at = layers(flat)
        p = pushes(loss, data, coefficients(kind, at))[0]
        return joined(pulled(kind, at, p @ scaled))

    def jacobian(_: float, flat: np.ndarray) -> np.ndarray:
        at = layers(flat)
        p, slope = pushes(loss, data, coefficients(kind, at))
        return curvature(kind, at, scaled, p, size * slope)

    flat = joined(theta)
    if not velocity(0.0, flat).any():
        return flat, True
    passed, least = 0.0, 1e-3 * rtol * min(float(np.abs(flat).max()), 1.0)
    solver: Any = method(velocity, 0.0, flat, 1e100, rtol=rtol, atol=least, jac=jacobian)
    for k in range(steps):
        before = solver.t
        # A step that overflows is tried again, shorter.
        with warnings.catch_warnings(), np.errstate(over="ignore", invalid="ignore"):
            # At rest a step is so long that conserved numbers alone are left of Radau's matrix.
            warnings.simplefilter("error", LinAlgWarning)
            try:
                solver.step()
            except LinAlgWarning:
                break
        if solver.status != "running":
            break
        if k % 10 == 9 and ends(passed + solver.t, solver.y):
            return solver.y, True
        if solver.t - before < 1e-9 * solver.t:
            # The flow does not depend on time, which starts again where steps are lost in its digits.
            passed += solver.t
            solver = method(velocity, 0.0, solver.y, 1e100, rtol=rtol, atol=least, jac=jacobian)
    return solver.y, False


def _cancelled(kind: str, theta: tuple[np.ndarray, ...], inputs: np.ndarray, p: np.ndarray) -> bool:
    each = [pulled(kind, theta, row) for row in p[:, None] * inputs]
    total = sum(joined(one) for one in each)
    return bool(np.linalg.norm(total) <= CANCELS * sum(np.sqrt(sum((x**2).sum() for x in one)) for one in each))


def follow_out(
    kind: str, data: Vectors, theta: tuple[np.ndarray, ...], loss: str, *, margin: float = 300.0, steps: int = 3_000
) -> Path:
    """The path from one start in arc length, to the smallest margin `margin` and ten times the size of the start."""
    kind, theta = in_modes(kind, theta)
    layers, size = split_as(theta), float(np.abs(data.inputs).max())
    scaled = data.inputs / size

    def pull(flat: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        # Pushes over the largest one, and their derivatives: what they are divided by turns no direction.
        at, y = layers(flat), data.targets
        logs, rates = decays(loss, size * y * (scaled @ coefficients(kind, at)))
        p = np.exp(logs - logs.max())
        return joined(pulled(kind, at, (y * p) @ scaled)), y * p, -p * rates

    def direction(_: float, flat: np.ndarray) -> np.ndarray:
        return _unit(pull(flat)[0])

    def jacobian(_: float, flat: np.ndarray) -> np.ndarray:
        g, p, slope = pull(flat)
        top = np.abs(g).max()
        turned = curvature(kind, layers(flat), scaled, p, size * slope) / top
        along = _unit(g)
        return (turned - np.outer(along, along @ turned)) / np.linalg.norm(g / top)

    flat = joined(theta)
    start = float(np.linalg.norm(flat))
    nothing = Path(coefficients(kind, theta), 0.0, np.inf)
    first = size * np.abs(scaled @ nothing.beta).max()
    if not first <= FOLLOWED or not direction(0.0, flat).any():
        return nothing
    least = 1e-3 * RTOL * min(np.abs(flat).max(), 1.0)
    if start < SMALL:
        # At the saddles of a small start a length has no digits for what is small.
        def fits(_: float, flat: np.ndarray) -> bool:
            return (data.targets * (data.inputs @ coefficients(kind, layers(flat)))).min() > 10.0

        flat, _ = _in_time(Radau, kind, data, theta, loss, RTOL, steps, fits)
    solver = LSODA(direction, 0.0, flat, 1e100, rtol=RTOL, atol=least, jac=jacobian)
    for _ in range(steps):
        if solver.step() is not None or solver.status != "running":
            break
        if (size * data.targets * (scaled @ coefficients(kind, layers(solver.y)))).min() >= margin:
            if solver.t >= 10.0 * start:
                break
    beta = coefficients(kind, layers(solver.y))
    ahead = solver.y + 1e-6 * np.linalg.norm(solver.y) * direction(0.0, solver.y)
    velocity = coefficients(kind, layers(ahead)) - beta
    least_margin = float((size * data.targets * (scaled @ beta)).min()) if solver.t >= 10.0 * start else 0.0
    return Path(beta, least_margin, float(np.linalg.norm(_unit(beta) - _unit(velocity))))


def _unit(x: np.ndarray) -> np.ndarray:
    # The largest entry first: squares of a small gradient underflow before it does.
    top = np.abs(x).max()
    return x / top / np.linalg.norm(x / top) if top > 0 else x

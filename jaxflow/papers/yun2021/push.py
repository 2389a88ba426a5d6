"""`reproduce yun2021 push`: does the direction of X^T r converge on random data, as Theorem 2 has to assume?"""

from collections.abc import Callable
from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np

from jaxflow._core import good, linalg
from jaxflow.data import LinearData
from jaxflow.flow import LogArcLength, integrate
from jaxflow.flow.solvers import state_norm
from jaxflow.models import DeepLinearNetwork, DiagonalLinearNetwork, LinearConvolutionalNetwork
from jaxflow.papers.registry import AbstractFigure, Data, register_figure
from jaxflow.papers.yun2021.verify.shared import classification, fit, map_instances, separable
from jaxflow.plots.linear_curves import draw_push
from jaxflow.report import Claim, common_rate, count_evidence
from jaxflow.theory import push_direction

# Data sets of n points in d dimensions.
SIZES = {"quick": (3, 2, 4), "paper": (50, 5, 10), "large": (500, 5, 20)}
NAMES = ("fully connected", "diagonal, L = 2", "diagonal, L = 3", "convolutional")
SAVES = 48
# ‖θ‖^L, beyond which multipliers are rounding noise.
LARGEST = 1e6


@register_figure(
    "yun2021",
    "push",
    title="Convergence of the direction of X^T r, the hypothesis of Theorem 2, on random data",
    run_times={
        "quick": "3 data sets for each of 4 networks, under a minute",
        "paper": "50 data sets for each of 4 networks, some minutes",
        "large": "500 data sets for each of 4 networks, an hour",
    },
)
class Push(AbstractFigure):
    r"""$1-\cos$ between $X^\top r(t)$ and its direction at the end of the exact flow, against $\log\|\beta\|$."""

    def compute(self, scale: str, seed: int, say: Callable[[str], None]) -> Data:
        trials, n, d = SIZES[scale]
        key = jax.random.fold_in(jax.random.key(seed), 1)
        data: Data = {"names": np.asarray(NAMES)}
        for i, name in enumerate(NAMES):
            say(f"{name}: {trials} data sets, n = {n}, d = {d}")
            keys = jax.random.split(jax.random.fold_in(key, i), trials)
            found = map_instances(lambda k, name=name: _path(k, name, n, d), keys)
            data |= {f"{name}.{entry}": value for entry, value in found.items()}
        return data

    def draw(self, data: Data) -> Any:
        return draw_push(data)

    def claims(self, data: Data) -> tuple[list[Any], list[str]]:
        claims = []
        for name in NAMES:
            ok = data[f"{name}.followed"]
            drift, sizes = data[f"{name}.drift"][ok], data[f"{name}.sizes"][ok]
            half = drift[:, drift.shape[1] // 2]
            late = drift[:, (3 * drift.shape[1]) // 4]
            slopes = [
                fit(size[use], np.log(one[use]))[0]
                for one, size in zip(drift, sizes, strict=True)
                if (use := (one > 1e-14) & (size > 2.0) & (one < 0.3) & (size < size[-1] - 2.0)).sum() >= 5
            ]
            closer = np.zeros(ok.shape, bool)
            closer[ok] = late <= half + 1e-12
            rate = common_rate(-np.asarray(slopes), None, law="1 − cos against ‖β‖")
            # A direction that turns away may come back: no counterexample.
            evidence = count_evidence(closer, decided=closer, limit=True, rate=rate)
            shrinks = int(closer.sum())
            fall = f"; 1 − cos falls like ‖β‖^{np.median(slopes):.2f} (median of {len(slopes)})" if slopes else ""
            claims.append(
                Claim(
                    "Remark 1",
                    f"X^T r converges in direction ({name}): assumed, not proved.",
                    f"of {int(ok.sum())} data sets {shrinks} are closer to the end at three quarters of the path than "
                    f"at half of it; 1 − cos at half is {np.max(half, initial=0.0):.1e} or less{fall}",
                    evidence,
                    {"shrinks": shrinks, "followed": int(ok.sum()), "of": int(ok.size)},
                )
            )
        return claims, [
            "Numbers can support a convergence and cannot prove it: the reference is the direction at the end of the "
            "path, and the last part of every curve is close to it by definition.",
            "Data sets whose flow did not get there: "
            + ", ".join(f"{name} {int(np.sum(~data[f'{name}.followed']))}" for name in NAMES)
            + ".",
        ]


def _path(key: Any, name: str, n: int, d: int) -> dict[str, Any]:
    data_key, start_key = jax.random.split(key)
    X, y = separable(data_key, n, d)
    data = LinearData(X, y)
    if name == "fully connected":
        model: Any = DeepLinearNetwork.init(start_key, data, width=2, alpha=0.7)
    elif name == "convolutional":
        model = LinearConvolutionalNetwork.init(start_key, data, alpha=0.5)
    else:
        model = DiagonalLinearNetwork.init(start_key, data, depth=3 if "3" in name else 2, alpha=0.7)
    end = float(np.log(LARGEST)) / model.degree
    path = integrate(
        classification(X, y),
        model,
        clock=LogArcLength(),
        until=end,
        save_at=jnp.linspace(-1.0, end, SAVES),
        # Multipliers see a relative error of the weights times the margins, 1e6: at rtol 1e-5 the curves of fully
        # connected networks rise again from log‖β‖ = 7 on.
        solver=diffrax.Kvaerno5(root_finder=linalg.newton(rtol=1e-8, atol=1e-10, norm=state_norm)),
        controller=diffrax.PIDController(rtol=1e-10, atol=1e-12, pcoeff=0.3, icoeff=0.4, norm=state_norm),
        max_steps=16384,
        throw=False,
    )
    pushes = jax.vmap(lambda p: push_direction(X, p))(path.points.multipliers)
    last = push_direction(X, path.final.multipliers)  # pyright: ignore[reportArgumentType]
    sizes = jax.vmap(lambda m: jnp.log(jnp.linalg.norm(m.linear_coefficients())))(path.points.model)
    return {
        "drift": 0.5 * jnp.sum((pushes - last[None]) ** 2, axis=1),
        "sizes": sizes,
        "followed": good(path.result),
    }

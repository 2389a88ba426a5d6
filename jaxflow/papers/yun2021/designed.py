"""`reproduce yun2021 designed-transform`: a network built for sparsity under a transform T (Remark 3)."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxflow._core import Outcome
from jaxflow.data import LinearData
from jaxflow.limits import find_limit
from jaxflow.models import Decomposition, DiagonalLinearNetwork, LinearTensorNetwork
from jaxflow.papers.registry import AbstractFigure, Data, register_figure
from jaxflow.papers.yun2021.verify.shared import classification
from jaxflow.plots.linear_curves import draw_designed
from jaxflow.report import Claim, count_evidence

# Data, dimension, and how many components of the teacher are not zero under the transform.
SIZES = {"quick": (8, 8, 2), "paper": (24, 16, 3), "large": (48, 32, 4)}
# A component counts as present from this share of the largest.
PRESENT = 1e-2


@register_figure(
    "yun2021",
    "designed-transform",
    title="Remark 3: sparsity under a cosine transform, by a network with S = T and by a diagonal one",
    run_times={
        "quick": "2 limits, d = 8, half a minute",
        "paper": "2 limits, d = 16, about a minute",
        "large": "2 limits, d = 32, some minutes",
    },
)
class Designed(AbstractFigure):
    r"""Labels of a teacher that is sparse after $T^{-\top}$, T the orthonormal cosine transform, two layers each."""

    def compute(self, scale: str, seed: int, say: Callable[[str], None]) -> Data:
        n, d, present = SIZES[scale]
        x_key, where_key, size_key, start_key = jax.random.split(jax.random.fold_in(jax.random.key(seed), 3), 4)
        T = cosine_transform(d)
        where = jax.random.permutation(where_key, d)[:present]
        signs = jax.random.rademacher(size_key, (present,)).astype(float)
        teacher = jnp.zeros(d).at[where].set(signs * (1.0 + jax.random.uniform(size_key, (present,))))
        X = jax.random.normal(x_key, (n, d))
        y = jnp.sign(X @ (T.T @ teacher))
        risk, data = classification(X, y), LinearData(X, y)
        first = 0.5 + jax.random.uniform(start_key, (d,))
        designed = LinearTensorNetwork.from_decomposition(
            Decomposition(T, (jnp.eye(d), jnp.eye(d))), (first, jnp.zeros(d))
        )
        networks = {"designed": designed, "diagonal": DiagonalLinearNetwork((first, jnp.zeros(d)))}
        found: Data = {"teacher": np.asarray(teacher), "accuracy_of": np.asarray([n, d, present])}
        for name, network in networks.items():
            network.check(data)
            say(f"{name} network: n = {n}, d = {d}")
            limit = find_limit(risk, network, throw=False)
            # T is orthonormal: T^{-⊤} = T.
            found[name] = np.asarray(T @ limit.coefficients)
            found[f"{name}.outcome"] = np.asarray(limit.outcome)
            found[f"{name}.flow_gap"] = np.asarray(limit.flow_certificate.duality_gap)
            found[f"{name}.excess"] = np.asarray(limit.excess)
        return found

    def draw(self, data: Data) -> Any:
        return draw_designed(data)

    def claims(self, data: Data) -> tuple[list[Any], list[str]]:
        count = {name: int(np.sum(np.abs(data[name]) > PRESENT * np.abs(data[name]).max())) for name in _NAMES}
        n, d, present = data["accuracy_of"].tolist()
        certified = int(data["designed.outcome"]) == Outcome.globally_optimal
        sparser = count["designed"] < count["diagonal"]
        return [
            Claim(
                "Remark 3",
                "A network with S = T finds a solution with the desired sparsity under T.",
                f"{count['designed']} of {d} components under T (n = {n}; the teacher has {present}), "
                f"against {count['diagonal']} of the diagonal network; the flow's direction is above the optimum by "
                f"{float(data['designed.excess']):.0e}, certified by the flow itself to "
                f"{float(data['designed.flow_gap']):.0e}",
                # A direction that is not certified is no counterexample.
                count_evidence(
                    np.asarray(sparser), decided=np.asarray(certified), checked_by="the flow's own duality gap"
                ),
                {f"{name}_components": value for name, value in count.items()},
            )
        ], [f"Components above {PRESENT:g} of the largest are counted."]


_NAMES = ("designed", "diagonal")


def cosine_transform(d: int) -> Any:
    r"""The orthonormal DCT-II, $T_{jk}=\sqrt{2/d}\cos(\pi(k+\tfrac12)j/d)$, its first row divided by $\sqrt2$."""
    j, k = jnp.arange(d)[:, None], jnp.arange(d)[None, :]
    rows = jnp.sqrt(2.0 / d) * jnp.cos(jnp.pi * (k + 0.5) * j / d)
    return rows.at[0].divide(jnp.sqrt(2.0))

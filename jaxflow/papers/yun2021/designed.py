"""`reproduce yun2021 designed-transform`: networks built for sparsity under a transform T (Remark 3)."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxflow._core import Outcome
from jaxflow.limits import find_limit
from jaxflow.models import Decomposition, DiagonalLinearNetwork, LinearTensorNetwork
from jaxflow.papers.drawing import dress
from jaxflow.papers.experiment import Dataset, Part, Statement, Table, register
from jaxflow.papers.yun2021.flows import classification
from jaxflow.plots import CURVES, new_figure
from jaxflow.study import subkey

# Data, dimension, and how many components of the teacher are not zero under the transform.
SIZES = {"quick": (8, 8, 2), "paper": (24, 16, 3), "large": (48, 32, 4)}
TRIALS = {"quick": 4, "paper": 20, "large": 100}
# A component counts as present from this share of the largest.
PRESENT = 1e-2
NETWORKS = ("designed", "diagonal")


def follow(key: Any, setting: tuple[str, int, int, int]) -> Table:
    r"""Labels of a teacher that is sparse after $T^{-\top}$, T the orthonormal cosine transform, two layers each.

    One of `NETWORKS` on n data in d dimensions, of a teacher with so many components `present`: `components`
    $T^{-\top}\beta$ of the limit direction `(d,)`, those of the `teacher` `(d,)`; `outcome`.
    """
    network, n, d, present = setting
    T = cosine_transform(d)
    where = jax.random.permutation(subkey(key, "where"), d)[:present]
    signs = jax.random.rademacher(subkey(key, "signs"), (present,)).astype(float)
    sizes = 1.0 + jax.random.uniform(subkey(key, "sizes"), (present,))
    teacher = jnp.zeros(d).at[where].set(signs * sizes)
    X = jax.random.normal(subkey(key, "X"), (n, d))
    layers = (0.5 + jax.random.uniform(subkey(key, "start"), (d,)), jnp.zeros(d))
    model: Any = DiagonalLinearNetwork(layers)
    if network == "designed":
        model = LinearTensorNetwork.from_decomposition(Decomposition(T, (jnp.eye(d), jnp.eye(d))), layers)
    limit = find_limit(classification(X, jnp.sign(X @ (T.T @ teacher))), model, throw=False)
    # T is orthonormal: T^{-⊤} = T.
    components = T @ limit.flow_direction
    return Table(components=components, teacher=teacher, outcome=limit.outcome.value)


def cosine_transform(d: int) -> Any:
    r"""The orthonormal DCT-II, $T_{jk}=\sqrt{2/d}\cos(\pi(k+\tfrac12)j/d)$, its first row divided by $\sqrt2$."""
    j, k = jnp.arange(d)[:, None], jnp.arange(d)[None, :]
    rows = jnp.sqrt(2.0 / d) * jnp.cos(jnp.pi * (k + 0.5) * j / d)
    return rows.at[0].divide(jnp.sqrt(2.0))


DESIGNED = Dataset(
    "yun2021",
    "designed-transform",
    {"limits": Part(follow, lambda scale: {name: (name, *SIZES[scale]) for name in NETWORKS}, TRIALS, way="in turn")},
)


def present(components: np.ndarray) -> np.ndarray:
    """How many components are not small, by network and instance."""
    sizes = np.abs(components)
    return np.sum(sizes > PRESENT * sizes.max(axis=-1, keepdims=True), axis=-1)


def _more(numbers: Table) -> np.ndarray:
    """By how many components the designed network has more than the diagonal one; NaN where its direction, of which
    this is said, is not certified."""
    count = present(numbers.limits.components)
    return np.where(numbers.limits.outcome[0] == Outcome.globally_optimal.value, 1.0 * count[0] - count[1], np.nan)


SPARSER = Statement[Table](
    source="Remark 3",
    says="A network with S = T finds a solution with the desired sparsity under T (here: sparser than a diagonal one).",
    residual=_more,
    bound=-1.0,
)


def draw(numbers: Table) -> Any:
    r"""The first instance in the transformed space: teacher, the network designed for T, and the diagonal one."""
    figure, axes = new_figure(3, width=12.0, height=3.5)
    panels = (
        (numbers.limits.teacher[0, 0], r"teacher, $T^{-\top}\beta$"),
        (numbers.limits.components[0, 0], r"network with $S=T$, $T^{-\top}\beta$"),
        (numbers.limits.components[1, 0], r"diagonal network, $T^{-\top}\beta$"),
    )
    for axis, (value, title), color in zip(axes, panels, CURVES, strict=False):
        axis.bar(range(1, value.size + 1), value / np.linalg.norm(value), color=color)
        dress(axis, title, "component")
    axes[0].set_ylabel("direction")
    return figure


register(
    DESIGNED,
    title="Remark 3: sparsity under a cosine transform, by a network with S = T and by a diagonal one",
    statements=[SPARSER],
    notes=lambda n: [f"Components above {PRESENT:g} of the largest are counted."],
    draw=draw,
)

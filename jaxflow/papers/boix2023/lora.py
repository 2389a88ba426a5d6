"""`reproduce boix2023 lora`: does the stable rank of ΔW predict the rank that suffices? Beyond the paper.

The runs of figure 7 again, with updates of bounded rank: by adapters in training, and cut down after it.
"""

from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxflow.papers.boix2023.practical.data import digits
from jaxflow.papers.boix2023.practical.models import ViT
from jaxflow.papers.boix2023.practical.runs import IMAGES, Size, start_models
from jaxflow.papers.boix2023.practical.spectra import Adapted, cut, head_products, stable_rank
from jaxflow.papers.boix2023.practical.train import classification, image_batches, train
from jaxflow.papers.drawing import dress
from jaxflow.papers.experiment import Dataset, Part, Statement, Table, register
from jaxflow.plots import CURVES, new_figure

# An update of bounded rank suffices if the loss over all images is at most this much above that of full training
# from the same start on the same batches. Set before anything was run.
TOLERANCE = 0.1
# Percentage points of accuracy that may be lost instead, for the second criterion.
POINTS = 0.5
WAYS = {"lora": "adapters trained from the start", "cut": "the trained update cut down"}
CRITERIA = (f"loss within {TOLERANCE:.0%}", f"accuracy within {POINTS:g} points")
# Permutations behind a p-value; the smallest that can be found is one in so many.
PERMUTATIONS = 9999
LEVEL = 0.05

# Training as in figure 7, and the largest ranks of the updates of every head.
SIZES = {
    "quick": (IMAGES["quick"]._replace(seeds=2, recipe=IMAGES["quick"].recipe._replace(steps=100)), (0, 1, 4)),
    # ΔW_K W_Qᵀ has a rank of twice the heads' dimension (8) at most.
    "paper": (IMAGES["paper"], (0, 1, 2, 4, 8, 16)),
    "large": (IMAGES["large"], (0, 1, 2, 4, 8, 16, 32)),
}


def compute(key: Any, what: tuple[Size, tuple[int, ...]]) -> Table:
    """Full training, its updates cut down, and adapters of every rank.

    Losses and accuracies over all images by s `scales` and t seeds, of full training, `full_loss` and `full_accuracy`
    `(s, t)`, and with updates of r `ranks` in both `WAYS`, `lora_loss` and so on `(s, t, r)`; stable ranks of what full
    training added to either product, `KQ_rank`, `VO_rank` `(s, t, l, h)`.
    """
    size, ranks = what
    data = digits()
    side, channels = data.images.shape[1], data.images.shape[-1]
    make = partial(ViT.init, shape=size.shape, side=side, channels=channels, classes=data.classes, patch=size.patch)
    models, runs = start_models(size, key, make)
    draw = image_batches(data.images, data.labels)
    images, labels = jnp.asarray(data.images, jnp.float32), jnp.asarray(data.labels, jnp.int32)
    width, steps = max(ranks), [size.recipe.steps]

    def judge(model: Any) -> Any:
        right = jnp.argmax(jax.vmap(model)(images), axis=-1) == labels
        return {"loss": classification(model, (images, labels)), "accuracy": jnp.mean(right)}

    def measure(model: Any, initial: Any) -> Any:
        now, then = head_products(model), head_products(initial)
        found = {f"{part}_rank": stable_rank(now[part] - then[part]) for part in now}
        cuts = jax.lax.map(lambda rank: judge(cut(model, initial, rank, width)), jnp.asarray(ranks))
        return found | {"full": judge(model), "cut": cuts}

    def trained(starts: Any, measure: Any) -> Any:
        found = train(starts, runs, size.recipe, classification, draw, measure, steps, say=lambda line: None)
        return jax.tree.map(lambda x: x[0], found.measured)

    scales = jnp.repeat(jnp.asarray(size.scales, jnp.float32), size.seeds)

    def adapted(key: Any, base: Any, scale: Any, rank: Any) -> Any:
        # Every rank starts from the same directions: those that are switched off are the last ones.
        found = Adapted.init(jax.random.fold_in(key, size.recipe.steps), base, width, rank, scale)
        return jax.tree.map(lambda x: x.astype(jnp.float32) if eqx.is_inexact_array(x) else x, found)

    full = trained(models, measure)
    starts = [eqx.filter_vmap(adapted)(runs, models, scales, jnp.full(len(scales), rank)) for rank in ranks]
    adapters = jax.tree.map(
        lambda *x: jnp.stack(x, -1), *(trained(start, lambda now, _: judge(now)) for start in starts)
    )
    ways = {"full": full["full"], "cut": full["cut"], "lora": adapters}
    flat = {f"{way}_{name}": values for way, found in ways.items() for name, values in found.items()}
    flat |= {f"{part}_rank": full[f"{part}_rank"] for part in ("KQ", "VO")}
    split = {name: np.asarray(x).reshape(len(size.scales), size.seeds, *np.shape(x)[1:]) for name, x in flat.items()}
    return Table(scales=np.asarray(size.scales), ranks=np.asarray(ranks), steps=np.asarray(steps[0]), **split)


LORA = Dataset(
    "boix2023",
    "lora",
    {"runs": Part(compute, lambda scale: {"digits": SIZES[scale]}, dict.fromkeys(SIZES, 1), block=1, way="on host")},
)


def runs_of(numbers: Table) -> Table:
    """Without cells and trials."""
    return numbers.runs.at((0, 0))


def sufficient(runs: Table, way: str, criterion: int) -> np.ndarray:
    """The smallest rank that suffices, `(scale, seed)`; twice the largest where none does.

    Of ranks in increasing order; from it on all of them have to be good: one lucky run does not suffice.
    """
    if criterion == 0:
        good = getattr(runs, f"{way}_loss") <= (1.0 + TOLERANCE) * runs.full_loss[..., None]
    else:
        good = getattr(runs, f"{way}_accuracy") >= runs.full_accuracy[..., None] - POINTS / 100.0
    lasting = np.flip(np.logical_and.accumulate(np.flip(good, -1), axis=-1), -1)
    return np.where(lasting.any(axis=-1), runs.ranks[np.argmax(lasting, axis=-1)], 2 * runs.ranks[-1])


def stable(runs: Table) -> np.ndarray:
    """The mean over products, layers and heads, `(scale, seed)`."""
    return np.mean([ranks.mean(axis=(-1, -2)) for ranks in (runs.KQ_rank, runs.VO_rank)], axis=0)


def correlation(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Spearman's correlation and its two-sided p-value by permutation, which ties do not spoil; NaN where one of them
    is the same everywhere."""
    from scipy.stats import permutation_test, rankdata

    if not (np.ptp(x) > 0 and np.ptp(y) > 0):
        return float("nan"), float("nan")
    left, right = (rankdata(z) - 0.5 * (np.size(z) + 1) for z in (x, y))
    size = float(np.sqrt(np.sum(left**2) * np.sum(right**2)))

    def statistic(z: Any, axis: int = -1) -> Any:
        return np.sum(z * right, axis=axis) / size

    rng = np.random.default_rng(0)
    test = permutation_test(
        (left,), statistic, permutation_type="pairings", n_resamples=PERMUTATIONS, vectorized=True, rng=rng
    )
    return float(statistic(left)), float(test.pvalue)


def predicts(way: str, criterion: int) -> Statement[Table]:
    """One correlation over all runs; without a small p-value it says nothing."""

    def both(runs: Table) -> tuple[float, float]:
        return correlation(stable(runs).ravel(), sufficient(runs, way, criterion).ravel())

    def residual(runs: Table) -> np.ndarray:
        rho, p = both(runs)
        return np.asarray([-np.sign(rho) if p < LEVEL else np.nan])

    return Statement(
        source="Beyond the paper",
        says=f"The stable rank of ΔW predicts the rank that suffices ({WAYS[way]}, {CRITERIA[criterion]}).",
        of=runs_of,
        residual=residual,
        bound=-1.0,
        found=lambda runs, known: "Spearman's ρ = {:.2f}, p = {:.4f} by permutation".format(*both(runs)),
    )


def enough(way: str) -> Statement[Table]:
    """By run."""
    return Statement(
        source="Beyond the paper",
        says=f"A rank of the stable rank, rounded up, suffices ({WAYS[way]}, {CRITERIA[0]}).",
        of=runs_of,
        residual=lambda runs: 1.0 * sufficient(runs, way, 0) - np.ceil(stable(runs)),
    )


def notes(numbers: Table) -> list[str]:
    """What was run."""
    runs = runs_of(numbers)
    return [
        f"{runs.full_loss.size} runs ({len(runs.scales)} scales of {runs.full_loss.shape[1]} seeds, {int(runs.steps)} "
        f"steps of Adam), ranks tried {', '.join(map(str, runs.ranks))}. Adapters: the attention weights stay where "
        "they start, every head's W_K W_Qᵀ and W_V W_Oᵀ get a trained product of so many columns; all other layers are "
        "trained. Loss and accuracy over all 1,797 images, on which the models are trained.",
        f"Tolerances, set before the first run: loss at most {TOLERANCE:.0%} above that of full training of the same "
        f"start and batches; accuracy at most {POINTS:g} points below. A rank suffices if all larger ones do, too.",
    ]


# A colour for each scale, a line and marks for each way.
LINES = {"lora": ("-o", "adapters"), "cut": ("--s", "cut down")}


def draw(numbers: Table) -> Any:
    """Loss by rank relative to that of full training (bars: smallest to largest), and the smallest rank that suffices
    against the stable rank."""
    from matplotlib.ticker import LogFormatter, StrMethodFormatter

    figure, axes = new_figure(3, width=13.0, height=3.9)
    runs = runs_of(numbers)
    for axis, (way, (line, name)) in zip(axes, LINES.items(), strict=False):
        for row, (scale, color) in enumerate(zip(runs.scales, CURVES, strict=False)):
            ratio = getattr(runs, f"{way}_loss")[row] / runs.full_loss[row][:, None]
            middle = np.median(ratio, axis=0)
            spread = np.stack([middle - ratio.min(axis=0), ratio.max(axis=0) - middle])
            x, label = np.arange(len(runs.ranks)) + 0.08 * (row - 1), f"scale {scale:g}"
            axis.errorbar(x, middle, spread, fmt=line, color=color, capsize=2, markersize=4, label=label)
        axis.axhline(1.0 + TOLERANCE, color="#000000", linewidth=0.8, linestyle=":", label="suffices below")
        dress(axis, f"loss / loss of full training ({name})", "rank $r$ of every head's update", log="y")
        axis.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        # Between powers of ten only where few of them are in sight.
        axis.yaxis.set_minor_formatter(LogFormatter(minor_thresholds=(1.0, 0.5)))
        axis.set_xticks(np.arange(len(runs.ranks)), [str(rank) for rank in runs.ranks])
    dress(axes[0], legend=8)
    last = axes[-1]
    for way, (line, name) in LINES.items():
        places = np.searchsorted(runs.ranks, sufficient(runs, way, 0))
        style: Any = {"markersize": 5, "alpha": 0.8, "fillstyle": "full" if way == "lora" else "none"}
        for row, color in zip(range(len(runs.scales)), CURVES, strict=False):
            # Side by side: many runs share a rank.
            y = places[row] + (0.08 if way == "lora" else -0.08)
            last.plot(stable(runs)[row], y, line[-1], color=color, label=None if row else name, **style)
    last.set_yticks(np.arange(len(runs.ranks) + 1), [*(str(rank) for rank in runs.ranks), "none"])
    rank, window = r"stable rank $\|\Delta W\|_F^2/\|\Delta W\|_2^2$, mean", (-0.5, len(runs.ranks) + 0.5)
    dress(last, "smallest rank that suffices", rank, legend=8, ylim=window)
    return figure


register(
    LORA,
    title="The rank of updates that suffices",
    statements=[
        *(predicts(way, criterion) for way in WAYS for criterion in range(len(CRITERIA))),
        *(enough(way) for way in WAYS),
    ],
    notes=notes,
    draw=draw,
)

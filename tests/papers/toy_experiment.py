"""An experiment that costs nothing, with every kind of part; importable by other processes, which may be killed."""

import sys
import time
from contextlib import suppress
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxflow import papers
from jaxflow.papers.dataset import Dataset, Part, Sweep, arrays_of
from jaxflow.papers.registry import register, register_paper
from jaxflow.papers.statement import Statement
from jaxflow.papers.table import Table
from jaxflow.plots import new_figure
from jaxflow.study import subkey

TRIALS = {"quick": 7, "paper": 40, "large": 400}
# Seconds that every slow instance takes, and what has been computed in this process.
PAUSE = [0.0]
COMPUTED: list[str] = []


def draw(key: Any, setting: Table) -> Table:
    """One number, its powers `(2,)`, and whether it was found."""
    COMPUTED.append("traced")
    value = setting.scale * jax.random.normal(subkey(key, "value"))
    return Table(value=value, powers=jnp.stack([value, value**setting.power]), ok=value < 1.5)


def slow(key: Any, setting: Table) -> Table:
    """The number of the same instance again."""
    time.sleep(PAUSE[0])
    COMPUTED.append("slow")
    return Table(again=np.asarray(draw(key, setting).value))


def fold(keys: Any, setting: int) -> Table:
    """A number for each key."""
    return Table(drawn=setting + jax.vmap(jax.random.normal)(keys))


def key_of(seed: int, setting: int) -> Any:
    return jax.random.fold_in(jax.random.key(seed), setting)


def curve(scale: str, key: Any) -> Table:
    """A curve `(5,)` and a number."""
    time.sleep(PAUSE[0])
    COMPUTED.append("curve")
    return Table(x=np.linspace(0.0, 1.0, 5), drawn=np.asarray(jax.random.normal(key)))


# A scale, traced, and a power, static.
CELLS = {name: arrays_of(Table(scale=scale, power=2), "scale") for name, scale in (("one", 1.0), ("half", 0.5))}

TOY = Dataset(
    "toy",
    "toy-numbers",
    {
        "draws": Part(draw, CELLS, TRIALS, block=3),
        "slow": Part(slow, {"one": CELLS["one"]}, TRIALS, block=3, instances="draws", way="on host"),
        "others": Part(draw, CELLS, TRIALS, block=3, own_instances=True),
        "folded": Part(fold, {"first": 1, "second": 2}, TRIALS, block=3, draw_from=key_of, way="as a block"),
        "curve": Sweep(curve),
    },
    where=f"{__name__}:TOY",
)

BELOW = Statement[Table](
    source="Lemma 1",
    says="Numbers are below two.",
    inside=lambda n: np.asarray(n.draws.value > -1.0),
    residual=lambda n: np.where(n.draws.ok, n.draws.value, np.nan),
    bound=(2.0, "the number"),
    found=lambda n, known: f"{int(known.sum())} drawn",
)


def picture(numbers: Table) -> Any:
    figure, axes = new_figure(1)
    axes[0].plot(numbers.curve.x, numbers.curve.x + numbers.curve.drawn)
    return figure


def enter_paper() -> None:
    """Enters the paper, its figure and its check."""
    register_paper(papers.Paper("toy", "A toy", "nobody", ()))
    register(TOY, "curve", title="A curve", statements=[BELOW], notes=lambda n: ["a note"], draw=picture)
    register(TOY, "lemma", title="Lemma 1", statements=[BELOW])


def main(folder: str, pause: str) -> None:
    """Both commands in a process of its own, to be killed."""
    jax.config.update("jax_enable_x64", True)
    PAUSE[0] = float(pause)
    enter_paper()
    print("started", flush=True)
    for run in (partial(papers.reproduce, "toy", "curve"), partial(papers.verify, "toy")):
        # What is finished is not computed again.
        with suppress(FileExistsError):
            run(scale="paper", out=folder)


if __name__ == "__main__":
    # Under its importable name, so that the numbers are found where they say they are.
    from tests.papers.toy_experiment import main as run_main

    run_main(*sys.argv[1:])

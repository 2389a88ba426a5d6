"""Numbers for the checks of tarzanagh2023 that confirm each statement where it can be confirmed, and variants."""

from typing import Any

import numpy as np

from jaxflow._core import SelectionStatus
from jaxflow.papers.table import Table, stacked
from jaxflow.papers.tarzanagh2023.verify import (
    assumptions,
    hypotheses,
    inequalities,
    local_paths,
    smooth,
)
from jaxflow.papers.tarzanagh2023.verify.sequences import CONES
from tests.papers.made_up.records import OPTIMAL, filled, programs

GLOBAL, LOCAL, OTHER = (SelectionStatus[name].value for name in ("global_", "local", "not_local"))
RADII = 2.0 ** np.arange(12)


def path(distance: Any, radii: np.ndarray = RADII, **more: Any) -> Table:
    """Paths from three starts at these distances `(b, m)`, all found."""
    distance = np.stack(distance)
    points = {"found": True, "residual": 1e-12, "above": np.nan, "size": 1.0, "balance": 0.0, "slack": 0.1}
    each = {"radii": radii, "flows": np.ones(2, bool)}
    rows = filled(distance.shape[:1], "inside", each=each, starts=3, elsewhere=0)
    return Table(rows.named | filled(distance.shape, distance=distance, **points).named | more)


def falling(growth: float, levels: int) -> Table:
    """Three paths that tend to their solutions like one over the radius."""
    radii = growth ** np.arange(levels)
    return path([1.0 / radii] * 3, radii)


def on_local_paths(paths: Table, depth: float = 0.2) -> Table:
    """The same paths in every cell; choices outside of their cones have an empty T_i."""
    inside, cell = np.tile(paths.inside, 4), np.repeat(np.arange(4), len(paths.inside))
    choices = filled(cell.shape, cell=cell, depth=np.where(inside, depth, -depth), empty=~inside, first=30.0)
    return Table(frobenius=paths, nuclear=paths, sequence=paths, optimal=paths, choices=choices)


def ends(selected: Any, gap: Any = 1e-12, **more: Any) -> Table:
    """Flows to the target in its direction where it is selected, and far from it elsewhere."""
    chosen = np.asarray(selected)
    found: dict[str, Any] = {"outcome": 0, "log_time": 500.0, "feasible": OPTIMAL, "selected": chosen}
    found |= {"target_attention": 1.0, "misaligned": np.where(chosen, 1e-15, 0.4), "flow_gap": gap, "norm": 1.0}
    return filled(chosen.shape, "continued", **found | {"lost_gap": np.inf} | more)


def near(columns: list[list[bool]], gap: Any = 1e-12) -> Table:
    """Of both sizes the same two instances at every spread."""
    cells = ends(columns, gap)
    return Table(single=cells, several=cells, pairs=ends([True]))


def grown(gradient: Any, norm: Any = (1.0, 2.0, 3.0), later: Any = None, inside: bool = True) -> Table:
    """Three instances alike, under both assumptions; `later`: gradient and norm of the second run."""
    again = later or [[np.nan] * 3] * 2
    each = {"norm": np.stack([norm, again[1]]), "log_gradient": np.log([gradient, again[0]])}
    return filled((2, 3), each=each | {"steps": np.array([1000, 10_000])}, inside=inside)


def descended(growing: Any = None, **first: Any) -> Table:
    """Two instances of each size that satisfy Assumption C, with flows to W^mm, and what grows."""
    found = filled((2, 2), "solved", each={"first": np.ones(3)}, holds=True, ratio=0.5, push=1.0, least=1.0)
    flows = ends(np.ones((2, 3, 2), bool))
    return Table(
        growing=growing or grown([1e-2, 1e-3, 1e-4]),
        first=Table(found.named, lead=np.asarray(10)).replace(**first),
        flows=flows,
    )


def tarzanagh_assumptions() -> list[Table]:
    support = filled((len(assumptions.DIMENSIONS), 2), "result", exact=True, average=1.0, largest=1.0, push=-0.1)
    separating = filled((2, 2), holds=True)
    return [Table(support=support, separating=separating, flows=ends(separating.holds))]


def choices(status: list[int], empty: list[bool], depth: list[float], d: Any) -> Table:
    """Choices of tokens of one instance."""
    count = len(status)
    given = {"status": np.array(status), "empty": np.array(empty), "depth": np.array(depth), "d": d}
    return Table(choices=filled((count,), "near trial", **given, choice=np.arange(count)))


def cones() -> list[Table]:
    depth, d = [0.2] * 4 + [-0.2, np.inf], np.array([4, 4, 6, 6, 4, 4])
    return [choices([LOCAL] * 4 + [OTHER, GLOBAL], [False, True, True, True, False, False], depth, d)]


def equal_scores(selected: bool, attention: float) -> Table:
    """The explicit case by flow and descent, and six cells of random data."""
    more = {"target_attention": attention, "misaligned": 1e-12 if selected else 0.5}
    flow, cells = (ends(np.full(shape, selected), **more) for shape in ((1,), (6, 1)))
    one = {"score_gap": 0.1, "score_spread": 0.0, "optimal_tokens": 1, "program_result": OPTIMAL}
    one |= {"program_gap": 1e-16, "rate": 0.1, "attention": np.full((2, 2), attention), "misaligned": 0.5, "norm": 8.0}
    return Table(explicit=filled((), "steps", **one), flow=flow, cells=cells)


def feasibility() -> list[Table]:
    sizes = filled((2,), n=3, T=3, d=3, kind=np.arange(2))
    found = filled((2, 3, 5), "result", gap=1e-15, separated=True, least=0.1)
    return [Table(programs=Table(sizes.named | found.named), claims=filled((2,), least=0.1, off=1e-15))]


def assumed() -> Table:
    """Numbers that satisfy all assumptions."""
    support = filled((len(hypotheses.DIMENSIONS), 2), "unsure ambiguous", separating=True, meets=True, others=0)
    return Table(
        slopes=filled((3, 4), bend=0.0, excess=0.0, slope=-1.0),
        equal=filled((2,), "result", spread=0.0, gap=1.0),
        support=support,
        top=filled((len(hypotheses.HEADS), 2), excess=-1.0),
    )


def at_points(sign: float, far: float, ratio: np.ndarray) -> Table:
    """Inequalities that hold (1.0) or do not (-1.0)."""
    gradients = {"excess": sign, "limit": 0.0 if sign > 0 else 1.0, "push": -sign, "far_push": far, "origin": 1.0}
    return Table(
        gradients=filled((2,), "result", **gradients),
        concave=filled((2,), nonzero=2 if sign > 0 else 1, tau=3, kkt=0.0),
        centred=filled((2,), over=-sign),
        explicit=Table(ratio=ratio),
    )


def near_starts(selected: bool, certified: bool, descends: bool = True) -> Table:
    """Three starts near and three far, by flow and by descent."""
    reached = np.broadcast_to(np.array([selected, selected and descends])[None, :, None], (2, 2, 3))
    flow = filled(
        (2, 2, 3), reached=reached & certified, left=~reached & certified, stationary=False,
        misaligned=np.where(reached, 1e-12, 0.4), flow_gap=1e-12 if certified else 1.0,
    )  # fmt: skip
    sizes = {"rate": 0.1, "moved": 1e-6, "near_first": 1e-4, "near_last": 1e-5, "attention": 1.0, "mu": 1e-4}
    return Table(runs=Table(flow.named | filled((2, 3), "empty", **sizes).named, steps=np.array([100, 100])))


def cone(**more: Any) -> Table:
    """One instance at the norms of the check, its push within the bounds and its π falling like 1/R."""
    pi = {"ratio": 1.0 + np.array([0.64, 0.16, 0.04, 0.01])}
    each = pi | dict.fromkeys(("push", "slope"), np.ones(4)) | {"lower": np.full(4, 0.5), "upper": np.full(4, 2.0)}
    found = filled((1,), "inside", each=each, empty=False, bound=1.0, mu=1.0)
    return found.replace(**{name: np.broadcast_to(value, (1, 4)) for name, value in more.items()})


def lemmas_of_cones() -> list[Table]:
    optimal = filled(
        (4,),
        "inside",
        each={k: v[0] for k, v in cone(slope=0.1).named.items() if v.ndim > 1},
        empty=False,
        bound=1.0,
        mu=1.0,
    )
    local = stacked([optimal.replace(empty=np.array([False, False, False, True]))] * 2)
    return [Table(optimal=optimal, local=local, ranks=filled((2,), least=1.0, projected=1.0))]


def regularization_paths() -> list[Table]:
    one = falling(4.0, 8)
    solved = filled((2, 3), "result", each={"weights": np.eye(3)}, value=3.0, rank=2)
    sizes = Table(shape=np.array([3, 3, 3]), columns=np.array([3]))
    return [Table(combined=one, factored=one.at(None), programs=Table(solved.named | sizes.named))]


def paths_of_sequences() -> list[Table]:
    sizes = len(CONES)
    rows = {
        "status": [GLOBAL, LOCAL, LOCAL, OTHER], "empty": [False, False, True, False],
        "depth": [np.inf, 0.2, 0.2, -0.1], "optimal": [True, False, False, False], "anywhere": [np.inf, 0.1, -0.1, 0.3],
    }  # fmt: skip
    tiled = {name: np.tile(row, sizes) for name, row in rows.items()}
    size, choice = np.repeat(np.arange(sizes), 4), np.tile(np.arange(4), sizes)
    choices = filled((4 * sizes,), "near trial", **tiled, size=size, choice=choice)
    return [Table(paths=stacked([falling(4.0, 8)] * 6), choices=choices)]


def sequences(**changes: Any) -> Table:
    """Limits of sequences, by W and by (K, Q)."""
    gaps = dict.fromkeys(("flow_gap", "certificate_gap", "misaligned"), 1e-12)
    columns = {"status": GLOBAL} | gaps | changes
    combined, factored = (filled((cells, 2), "outcome log_time", **columns) for cells in (4, 1))
    return Table(combined=combined, factored=factored)


def smoothness() -> list[Table]:
    each = dict.fromkeys(("K", "Q"), np.full(len(smooth.SIZES), 0.5))
    return [Table(pairs=filled((2, 2), each=each | {"descent": np.full(2, -0.5)}, W=0.5))]


PROBES = {
    "programs": lambda: programs(4),
    "assumptions": tarzanagh_assumptions,
    "cone-lemmas": lemmas_of_cones,
    "cones": cones,
    "descents": lambda: [descended()],
    "equal-scores": lambda: [equal_scores(True, 1.0), equal_scores(False, 1e-30)],
    "feasibility": feasibility,
    "hypotheses": lambda: [assumed()],
    "inequalities": lambda: [
        at_points(1.0, -1.0, np.ones(4)),
        at_points(-1.0, -1e-20, np.asarray(inequalities._lemma10())),
    ],
    "local-convergence": lambda: [near_starts(True, True)],
    "local-paths": lambda: [on_local_paths(falling(local_paths.GROWTH, local_paths.LEVELS))],
    "nearly-equal-scores": lambda: [
        Table(single=ends(np.ones((4, 2), bool)), several=ends(np.ones((4, 2), bool)), pairs=ends([True] * 2))
    ],
    "regularization-paths": regularization_paths,
    "sequence-paths": paths_of_sequences,
    "sequences": lambda: [sequences()],
    "smoothness": smoothness,
}

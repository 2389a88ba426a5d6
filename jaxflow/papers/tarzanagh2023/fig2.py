"""Figure 2: where W converges as d grows."""

from jaxflow.papers.experiment import register
from jaxflow.papers.tarzanagh2023.percent import Size, convergence, convergence_bars, dataset_of, notes_of
from jaxflow.plots import draw_percentage_bars

SIZES = {
    "quick": Size(trials=60, d=(2, 4, 10), parametrizations=("W",)),
    "paper": Size(trials=500, d=(2, 3, 4, 5, 6, 8, 10, 15, 20), parametrizations=("W",)),
    "large": Size(trials=100_000, d=(2, 3, 4, 5, 6, 8, 10, 15, 20), parametrizations=("W",)),
}

FIGURE2 = dataset_of("fig2", SIZES)

# The bars of figure 5 (a), on the same instances, without the green ones. n = T = 5, everything uniform on the unit
# sphere, score gap 0.1 (App. F).
register(
    FIGURE2,
    title="Where W converges as d grows",
    statements=lambda numbers: convergence(
        numbers.grid.parametrization,
        "Figure 2",
        "Larger over-parameterization (d) increases the likelihood of global convergence.",
        None,
    ),
    notes=notes_of,
    draw=lambda numbers: draw_percentage_bars(convergence_bars(numbers)),
)

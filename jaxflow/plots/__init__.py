"""Pictures, drawn from saved numbers alone."""

from jaxflow.plots.path import draw_limit as draw_limit
from jaxflow.plots.path import draw_limits as draw_limits
from jaxflow.plots.path import draw_path as draw_path
from jaxflow.plots.study import OUTCOME_COLORS as OUTCOME_COLORS
from jaxflow.plots.study import draw_heat_map as draw_heat_map
from jaxflow.plots.study import draw_percentage_bars as draw_percentage_bars
from jaxflow.plots.study import draw_percentage_curves as draw_percentage_curves
from jaxflow.plots.style import COLORS as COLORS
from jaxflow.plots.style import CURVES as CURVES
from jaxflow.plots.style import SYMBOLS as SYMBOLS
from jaxflow.plots.style import new_figure as new_figure
from jaxflow.plots.style import new_grid as new_grid
from jaxflow.plots.style import save_figure as save_figure

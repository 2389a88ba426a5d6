"""Floor 9: pictures, drawn from saved numbers alone."""

from jaxflow.plots.columns import draw_columns as draw_columns
from jaxflow.plots.composition import draw_composition as draw_composition
from jaxflow.plots.composition import draw_thresholds as draw_thresholds
from jaxflow.plots.convergence import draw_convergence as draw_convergence
from jaxflow.plots.limits import draw_limits as draw_limits
from jaxflow.plots.multi_token import draw_token_counts as draw_token_counts
from jaxflow.plots.multi_token import draw_token_histograms as draw_token_histograms
from jaxflow.plots.plane import PlanePanel as PlanePanel
from jaxflow.plots.plane import draw_plane as draw_plane
from jaxflow.plots.ranks import draw_ranks as draw_ranks
from jaxflow.plots.study import OUTCOME_COLORS as OUTCOME_COLORS
from jaxflow.plots.study import draw_heat_map as draw_heat_map
from jaxflow.plots.study import draw_percentage_bars as draw_percentage_bars
from jaxflow.plots.study import draw_percentage_curves as draw_percentage_curves
from jaxflow.plots.style import COLORS as COLORS
from jaxflow.plots.style import CURVES as CURVES
from jaxflow.plots.style import new_figure as new_figure
from jaxflow.plots.style import new_grid as new_grid
from jaxflow.plots.style import save_figure as save_figure

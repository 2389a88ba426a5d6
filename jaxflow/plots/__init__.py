"""Floor 9: pictures, drawn from saved numbers alone."""

from jaxflow.plots.convergence import draw_convergence as draw_convergence
from jaxflow.plots.limits import draw_limits as draw_limits
from jaxflow.plots.style import COLORS as COLORS
from jaxflow.plots.style import new_figure as new_figure
from jaxflow.plots.style import save_figure as save_figure

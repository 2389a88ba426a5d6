"""Floor 0: enumerations, messages and pytree helpers that every other floor may use."""

from jaxflow._core import linalg as linalg
from jaxflow._core.checks import is_concrete as is_concrete
from jaxflow._core.checks import require as require
from jaxflow._core.checks import unknown_name as unknown_name
from jaxflow._core.codes import Code as Code
from jaxflow._core.codes import Outcome as Outcome
from jaxflow._core.codes import SelectionStatus as SelectionStatus
from jaxflow._core.columns import by_columns as by_columns
from jaxflow._core.compiling import compilation_cache as compilation_cache
from jaxflow._core.compiling import compiled_in_two as compiled_in_two
from jaxflow._core.compiling import compiled_once as compiled_once
from jaxflow._core.compiling import normal as normal
from jaxflow._core.compiling import quick_options as quick_options
from jaxflow._core.lanes import one_lane_at_a_time as one_lane_at_a_time
from jaxflow._core.results import RESULTS as RESULTS
from jaxflow._core.results import good as good
from jaxflow._core.scaled import ScaledGradient as ScaledGradient
from jaxflow._core.scaled import exp_nonpositive as exp_nonpositive
from jaxflow._core.trees import all_finite as all_finite
from jaxflow._core.trees import tree_dot as tree_dot
from jaxflow._core.trees import tree_norm as tree_norm
from jaxflow._core.trees import tree_scale as tree_scale
from jaxflow._core.trees import tree_where as tree_where

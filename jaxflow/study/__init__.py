"""Monte Carlo studies of thousands of instances. Every instance ends in one outcome, and none is lost."""

from jaxflow.study.counting import DECIDED as DECIDED
from jaxflow.study.counting import decode as decode
from jaxflow.study.counting import percentages as percentages
from jaxflow.study.counting import settled_selections as settled_selections
from jaxflow.study.counting import wilson as wilson
from jaxflow.study.experiment import AbstractExperiment as AbstractExperiment
from jaxflow.study.experiment import FunctionExperiment as FunctionExperiment
from jaxflow.study.keys import subkey as subkey
from jaxflow.study.keys import trial_key as trial_key
from jaxflow.study.pairs import paired as paired
from jaxflow.study.pictures import plot as plot
from jaxflow.study.reading import Status as Status
from jaxflow.study.reading import open_results as open_results
from jaxflow.study.reading import status as status
from jaxflow.study.run import Interrupted as Interrupted
from jaxflow.study.spec import read_spec as read_spec
from jaxflow.study.spec import study_of_store as study_of_store
from jaxflow.study.store import OtherStudy as OtherStudy
from jaxflow.study.store import TwoResults as TwoResults
from jaxflow.study.study import Study as Study
from jaxflow.study.tables import Table as Table
from jaxflow.study.tables import quantities as quantities
from jaxflow.study.tables import summary as summary
from jaxflow.study.tables import to_dataframe as to_dataframe
from jaxflow.study.token_selection import TokenSelection as TokenSelection

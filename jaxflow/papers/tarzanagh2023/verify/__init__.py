"""`verify tarzanagh2023`: the paper's statements held to instances, a file for each group of them."""

from jaxflow.papers.tarzanagh2023.verify import assumptions as assumptions
from jaxflow.papers.tarzanagh2023.verify import cone_lemmas as cone_lemmas
from jaxflow.papers.tarzanagh2023.verify import cones as cones
from jaxflow.papers.tarzanagh2023.verify import descents as descents
from jaxflow.papers.tarzanagh2023.verify import equal_scores as equal_scores
from jaxflow.papers.tarzanagh2023.verify import feasibility as feasibility
from jaxflow.papers.tarzanagh2023.verify import hypotheses as hypotheses
from jaxflow.papers.tarzanagh2023.verify import inequalities as inequalities
from jaxflow.papers.tarzanagh2023.verify import local_convergence as local_convergence
from jaxflow.papers.tarzanagh2023.verify import local_paths as local_paths
from jaxflow.papers.tarzanagh2023.verify import paths as paths
from jaxflow.papers.tarzanagh2023.verify import sequences as sequences
from jaxflow.papers.tarzanagh2023.verify import smooth as smooth

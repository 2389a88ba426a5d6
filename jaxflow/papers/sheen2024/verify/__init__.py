"""`verify sheen2024`: the paper's statements held to instances, a file for each group of them."""

from jaxflow.papers.sheen2024.verify import assumptions as assumptions
from jaxflow.papers.sheen2024.verify import diagonal as diagonal
from jaxflow.papers.sheen2024.verify import divergence as divergence
from jaxflow.papers.sheen2024.verify import general as general

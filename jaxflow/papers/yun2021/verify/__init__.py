"""`verify yun2021`: the paper's statements held to instances, a file for each group of them."""

from jaxflow.papers.yun2021.verify import bounds as bounds
from jaxflow.papers.yun2021.verify import connected as connected
from jaxflow.papers.yun2021.verify import directions as directions
from jaxflow.papers.yun2021.verify import points as points
from jaxflow.papers.yun2021.verify import single as single
from jaxflow.papers.yun2021.verify import structure as structure

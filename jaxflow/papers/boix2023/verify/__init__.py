"""`jaxflow verify boix2023`: Theorem 4.1 and Lemma 4.2 held to instances, and what is left of them outside."""

from jaxflow.papers.boix2023.verify import decay as decay
from jaxflow.papers.boix2023.verify import heads as heads
from jaxflow.papers.boix2023.verify import outside as outside
from jaxflow.papers.boix2023.verify import stages as stages
from jaxflow.papers.boix2023.verify import supports as supports

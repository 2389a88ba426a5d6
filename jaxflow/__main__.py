"""`python -m jaxflow`: the command line where its script is not on the path."""

from jaxflow.cli import main

main()

"""The command line."""

from jaxflow.cli.app import app as app
from jaxflow.cli.app import main as main

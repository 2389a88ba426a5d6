"""What the benchmarks against peers share: which peers are there, and a time limit."""

import argparse
import importlib
import site
from typing import Any

from _common import Record, environment, settings, version_of

# Distributions whose versions stand beside the numbers.
PEERS = ("scipy", "osqp", "daqp", "qpax", "highspy", "torch", "torchode", "torchdiffeq")


def begun(doc: str | None, name: str) -> tuple[argparse.Namespace, Record]:
    """The options of a benchmark against peers, and its record: `scale` is the share of the instances and of the time
    to spend, `only` selects cases whose name holds it, `peers` is a folder of packages."""
    asked = settings(doc, name, scale=1.0, peers=None, only="")
    if asked.peers is not None:
        # Last on the path: what this environment has is used, and only what it lacks comes from there.
        site.addsitedir(str(asked.peers))
    record = Record(asked.out, scale=asked.scale)
    record.content["environment"] = environment() | {"peers": {peer: version_of(peer) for peer in PEERS}}
    return asked, record


def missing(*modules: str) -> str | None:
    """Why a peer cannot be run, or None. A library that is there but does not load is missing too."""
    for module in modules:
        try:
            importlib.import_module(module)
        except (ImportError, OSError) as error:
            return f"{module}: {type(error).__name__}: {str(error).splitlines()[0]}"
    return None


def one_thread() -> Any:
    """PyTorch on one thread: the arrays are far too small for more, and it is faster so."""
    import torch

    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    return torch

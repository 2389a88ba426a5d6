"""What tests of stores share: one small store, and runs that do not ask for the commit again and again."""

import functools

import pytest

from jaxflow.study import manifest
from tests.study.cheap import payload, tiny_study


@pytest.fixture
def quick(monkeypatch):
    """A third of the time of a short run is spent on asking for the commit and the versions."""
    for name in ("commit", "package_version"):
        monkeypatch.setattr(manifest, name, functools.cache(getattr(manifest, name)))


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """A complete store of it, as a folder to copy, and as what it holds."""
    path = tmp_path_factory.mktemp("tiny") / "r.zarr"
    with tiny_study().run(path, progress=False) as results:
        return payload(path), results.load()

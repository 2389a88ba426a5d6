"""What tests of stores share: complete stores, and runs that do not ask for the commit again and again."""

import functools

import pytest

from jaxflow.study import manifest
from tests.study.cheap import HostExperiment, cheap, payload, restore, small_study, tiny_study


@pytest.fixture(scope="module", autouse=True)
def quick():
    """A third of the time of a short run is spent on asking for the commit and the versions."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("commit", "package_version"):
            patch.setattr(manifest, name, functools.cache(getattr(manifest, name)))
        yield


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """A complete store of one cell, as a folder to copy, and as what it holds."""
    path = tmp_path_factory.mktemp("tiny") / "r.zarr"
    with tiny_study().run(path, progress=False) as results:
        return payload(path), results.load()


@pytest.fixture
def copy(tmp_path, tiny):
    """Such a folder, to do with as one likes."""
    restore(tmp_path / "r.zarr", tiny[0])
    return tmp_path / "r.zarr"


@pytest.fixture(scope="session")
def host(tmp_path_factory):
    """The files of a complete store of four cells, computed by NumPy."""
    path = tmp_path_factory.mktemp("host") / "r.zarr"
    small_study(HostExperiment()).run(path, progress=False).close()
    return payload(path)


@pytest.fixture(scope="session")
def small(tmp_path_factory):
    """A complete store of four cells that JAX has compiled, to read only, and what it holds."""
    path = tmp_path_factory.mktemp("small") / "r.zarr"
    with small_study(cheap).run(path, progress=False) as results:
        return path, results.load()

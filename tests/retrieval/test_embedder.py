"""The small embedding model: found where it is installed, and no error where it is not."""

import importlib.metadata
from collections.abc import Iterator
from pathlib import Path

import pytest

from univerb import locations
from univerb.retrieval.dense import Dense
from univerb.retrieval.embedder import default_embedder


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Forget what other tests found, and let them forget what these find."""
    default_embedder.cache_clear()
    yield
    default_embedder.cache_clear()


def test_there_is_none_where_the_package_is_not_installed(monkeypatch):
    def missing(name: str) -> importlib.metadata.Distribution:
        assert name == locations.EMBEDDER_PACKAGE
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", missing)
    assert default_embedder() is None


def test_it_is_the_model_in_the_packages_folder(monkeypatch, tmp_path):
    folders: list[Path] = []
    monkeypatch.setattr(
        "univerb.retrieval.embedder.packaged_embedder", lambda: folders.append(tmp_path) or tmp_path
    )
    method = default_embedder()
    assert isinstance(method, Dense) and method == Dense(tmp_path)
    # It is looked for once: every answer asks.
    assert default_embedder() is method and len(folders) == 1

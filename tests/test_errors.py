"""Messages name what works where they are read."""

import importlib.metadata
import json
import pickle
import shlex
import sys
from types import SimpleNamespace

import pytest

from univerb.errors import MissingExtra


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        (None, "pip install 'univerb[files]'"),
        ("no json", "pip install 'univerb[files]'"),
        ({"url": "https://host/univerb.whl", "archive_info": {}}, "pip install 'univerb[files]'"),
        ({"url": "file:///my%20code/u", "dir_info": {"editable": True}}, "-e '/my code/u[files]'"),
        ({"url": "file:///code/u", "dir_info": {}}, "install '/code/u[files]'"),
    ],
    ids=str,
)
def test_an_extra_is_installed_as_univerb_is(origin, command, monkeypatch):
    text = json.dumps(origin) if isinstance(origin, dict) else origin
    installed = SimpleNamespace(read_text=lambda _: text)
    monkeypatch.setattr(importlib.metadata, "distribution", lambda _: installed)
    error = pickle.loads(pickle.dumps(MissingExtra("pypdf", "files")))
    said = str(error)
    assert said.startswith("'pypdf' is not installed. It is in univerb[files]: ")
    assert command in said
    if isinstance(origin, dict) and "dir_info" in origin:
        *_, typed = said.partition("[files]: ")
        assert shlex.split(typed)[:4] == [sys.executable, "-m", "pip", "install"]


def test_sources_that_were_never_installed_name_the_package(monkeypatch):
    def nothing(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", nothing)
    assert str(MissingExtra("ray", "cluster")).endswith("pip install 'univerb[cluster]'")

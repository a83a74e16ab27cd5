"""Flags are the fields of option classes; errors name them as they are typed."""

from pathlib import Path
from typing import Annotated, Literal

import pytest
import typer
from pydantic import Field
from typer.testing import CliRunner

from univerb.cli.flags import Flags, Options, with_flags
from univerb.cli.generate import generate
from univerb.cli.verbs import flags_named
from univerb.config import GenerationConfig


class Everything(Options):
    """One field of each kind."""

    path: Path | None = None
    k: int = Field(default=3, ge=1)
    """Number of things."""
    words: list[str] = []
    choice: Literal["a", "b"] = "a"
    switch: bool = False
    on_by_default: bool = True
    truncate: Literal["left"] | None = None
    as_json: bool = Field(default=False, alias="json")


@pytest.fixture
def typed():
    """Return what a verb receives for what is typed, or its help."""
    received = []

    @with_flags
    def verb(name: str, options: Annotated[Everything, Flags("Panel", defaults={"k": 5})]) -> None:
        received.append((name, options))

    app = typer.Typer()
    app.command()(verb)

    def call(*arguments: str) -> Everything | str:
        received.clear()
        ran = CliRunner().invoke(app, ["x", *arguments])
        if ran.exception and not isinstance(ran.exception, SystemExit):
            raise ran.exception
        return received[0][1] if received else ran.output

    return call


def test_every_kind_of_field_is_a_flag(typed):
    assert dict(typed()) == dict(Everything(k=5))
    assert typed().model_fields_set == {"k"}
    given = "--path p -k 2 --words a --words b --choice b --switch --no-on-by-default --truncate"
    options = typed(*given.split(), "--json")
    assert dict(options) == {
        **{"path": Path("p"), "k": 2, "words": ["a", "b"], "choice": "b", "switch": True},
        **{"on_by_default": False, "truncate": "left", "as_json": True},
    }
    shown = typed("--help")
    assert "Panel" in shown and "Number of things." in shown and "--no-switch" not in shown


def test_a_value_out_of_range_is_an_option_error(typed):
    with pytest.raises(ValueError, match="k is 0; it must be a whole number of at least 1"):
        typed("-k", "0")


def test_generate_has_a_flag_for_every_option_of_decoding():
    flags = set(generate.__annotations__)
    expected = set(GenerationConfig.model_fields) - {"growth", "repeat_from", "dtype"}
    assert flags >= expected | {"kernel_dtype", "docs", "corpus", "model", "json"}


def test_messages_name_flags_where_they_name_options():
    flags = {"max_tokens": "--max-tokens", "truncate": "--truncate", "mode": "--mode"}
    message = "lower max_tokens, or keep its end with truncate='left'; mode is 'x', a mode of old"
    expected = "lower --max-tokens, or keep its end with --truncate; --mode is 'x', a mode of old"
    assert flags_named(message, flags) == flags_named(expected, flags) == expected
    restart = {"restart": "--restart", "gguf": "--gguf"}
    message = "'a' exists. Replace it with restart=True, or name it: gguf='FILE'. Do restart."
    expected = "'a' exists. Replace it with --restart, or name it: --gguf='FILE'. Do restart."
    assert flags_named(message, restart) == expected
    assert flags_named("Or lower max_tokens.", flags) == "Or lower --max-tokens."
    path = "'docs/max_tokens.txt' does not exist. Check max_tokens.txt."
    assert flags_named(path, flags) == path

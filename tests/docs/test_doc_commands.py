"""Every command that the docs show can be given: its verb, options and values exist."""

import re
import shlex
from pathlib import Path

import pytest
import typer

from univerb.cli.app import app

ROOT = Path(__file__).parents[2]
PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    *(f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")),
]


def commands(page):
    """Yield the univerb commands of a page's shell blocks, without what the shell makes of them."""
    text = (ROOT / page).read_text(encoding="utf-8")
    for block in re.findall(r"```sh\n(.*?)```", text, flags=re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            for start in (place for place, word in enumerate(words) if word == "univerb"):
                yield words[start + 1 :]


def parse(command, arguments):
    """Parse the arguments of a verb, and run nothing."""
    while hasattr(command, "commands"):
        command, arguments = command.commands[arguments[0]], arguments[1:]
    assert not command.hidden, f"{command.name} is an old name"
    command.make_context(command.name, list(arguments))


@pytest.mark.parametrize("page", sorted(PAGES))
def test_commands_of_the_docs_exist(page):
    univerb = typer.main.get_command(app)
    for arguments in commands(page):
        parse(univerb, arguments)

"""What README and docs show: commands and Python blocks, each with the output printed below it.

An output is the plain block after a `sh` or `python` block. `…` stands for anything that depends
on the clock or the machine. `python tests/docs/shown.py PAGE...` runs the blocks of a page and
writes their outputs into it (`make docs`); the tests compare.
"""

import os
import re
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
WIDTH = 100
BLOCK = re.compile(r"```(sh|python)\n(.*?)```\n(?:\n```\n(.*?)```\n)?", flags=re.DOTALL)
# Passes depend on what rows cost: shown, and compared, for the same costs everywhere.
os.environ.setdefault("UNIVERB_ROW_COSTS", "1:1,8:1.2,32:4")
SECONDS = re.compile(r"; [\d.]+ s encode.*")
"""The end of the line of statistics."""


class Block(NamedTuple):
    """Something that can be run, and what a page says that it prints."""

    language: str
    code: str
    output: str | None

    @property
    def commands(self) -> list[str]:
        if self.language == "python":
            return [f"{sys.executable} -c '{self.code}'"]
        return [line for line in self.code.replace("\\\n", " ").splitlines() if line.strip()]


def blocks(page: str) -> list[Block]:
    """Return the blocks of a page, without commands of `make`, which would install."""
    matches = BLOCK.findall((ROOT / page).read_text(encoding="utf-8"))
    every = [Block(language, code, output or None) for language, code, output in matches]
    return [block for block in every if not block.code.startswith("make ")]


def workplace() -> tempfile.TemporaryDirectory:
    """Make a folder that looks like a checkout to the commands of a page."""
    folder = tempfile.TemporaryDirectory()
    for name in ("src", "configs"):
        (Path(folder.name) / name).symlink_to(ROOT / name)
    return folder


def run(block: Block, folder: str) -> str:
    """Run a block in a folder and return what it prints; a block that fails is an error."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "COLUMNS": str(WIDTH), "NO_COLOR": "1"}
    printed = []
    for command in block.commands:
        words = [sys.executable, "-c", block.code] if block.language == "python" else command
        done = subprocess.run(
            words, shell=isinstance(words, str), cwd=folder, env=environment,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"{command}\n{done.stderr[-2000:]}")
        printed.append(done.stdout)
    return "".join(printed)


def matches(shown: str, printed: str) -> bool:
    """Compare what is shown with what was printed, whatever the line breaks."""
    parts = [re.escape(" ".join(part.split())) for part in shown.split("…")]
    return bool(re.fullmatch(r"\s*.*?\s*".join(parts), " ".join(printed.split())))


def wrapped(printed: str) -> str:
    """Return an output as pages show it: seconds left out, long lines broken."""
    lines = [line.rstrip() for line in SECONDS.sub("; …", printed).rstrip().splitlines()]
    return "\n".join(
        line if len(line) <= WIDTH or "│" in line else textwrap.fill(line, WIDTH) for line in lines
    )


def regenerate(page: str, folder: str) -> None:
    """Run the blocks of a page, and write what those print that show an output."""

    def updated(match: re.Match[str]) -> str:
        block = Block(match[1], match[2], match[3])
        printed = "" if block.code.startswith("make ") else run(block, folder)
        if block.output is None or matches(block.output, printed):
            return match[0]
        return f"```{block.language}\n{block.code}```\n\n```\n{wrapped(printed)}\n```\n"

    text = (ROOT / page).read_text(encoding="utf-8")
    (ROOT / page).write_text(BLOCK.sub(updated, text), encoding="utf-8")


if __name__ == "__main__":
    with workplace() as place:
        for name in sys.argv[1:]:
            regenerate(name, place)

"""The texts that systems wrote for the same prompts, from JSON lines."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from univerb.errors import OptionError
from univerb.lab.disk_errors import read_text


class ContinuationPair(NamedTuple):
    """What two systems wrote for the same prompt."""

    prompt: str
    ours: str
    theirs: str


class SystemTexts(NamedTuple):
    """A prompt, and the line of each system."""

    prompt: str
    lines: list[dict[str, Any]]
    """With `text`, and whatever else the file has."""


def read_pairs(ours: Path, theirs: Path) -> list[ContinuationPair]:
    """Read the texts of two systems in pairs; see `read_texts`."""
    return [
        ContinuationPair(prompt, *(line["text"] for line in lines))
        for prompt, lines in read_texts([ours, theirs])
    ]


def read_texts(files: Sequence[Path]) -> list[SystemTexts]:
    """Read what systems wrote, one file each: JSON lines with `prompt` (or `prefix`) and `text`.

    Raises OptionError if two files have not the same prompts in the same order.
    """
    texts = [list(_lines(path)) for path in files]
    for path, lines in zip(files[1:], texts[1:], strict=True):
        if len(lines) != len(texts[0]):
            raise OptionError(
                f"{str(files[0])!r} has {len(texts[0])} texts and {str(path)!r} {len(lines)}. "
                "Give all systems the same prompts."
            )
        for (number, expected, _), (other, prompt, _) in zip(texts[0], lines, strict=True):
            if prompt != expected:
                raise OptionError(
                    f"line {number} of {str(files[0])!r} and line {other} of {str(path)!r} have "
                    "different prompts. Give all systems the same prompts in the same order."
                )
    return [
        SystemTexts(lines[0][1], [fields for _, _, fields in lines])
        for lines in zip(*texts, strict=True)
    ]


def _lines(path: Path) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Yield the number of each line, its prompt and all its fields."""
    for number, fields in json_lines(path):
        prompt = fields.get("prompt", fields.get("prefix"))
        if not isinstance(prompt, str) or not isinstance(fields.get("text"), str):
            raise OptionError(
                f"line {number} of {str(path)!r} has no 'prompt' (or 'prefix') and 'text' that "
                "are strings. Give both."
            )
        yield number, prompt, fields


def system_names(files: Sequence[Path]) -> list[str]:
    """Name systems after the files of their texts; with the folders if names repeat."""
    names = [path.stem for path in files]
    return names if len(set(names)) == len(names) else list(map(str, files))


def json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the number of each line, from 1, and its object; empty lines are skipped."""
    # Not splitlines: JSON strings may hold other line ends.
    for number, line in enumerate(read_text(path).split("\n"), 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            raise OptionError(f"line {number} of {str(path)!r} is not a JSON object. Correct it.")
        yield number, value

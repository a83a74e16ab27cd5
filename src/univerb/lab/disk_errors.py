"""Errors of the disk in words that name the file, and what the user can do."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from univerb.errors import OptionError


@contextmanager
def writing(path: Path, advice: str = "Name another file.") -> Iterator[None]:
    """Raise OptionError, with advice, where the block cannot write a file."""
    try:
        yield
    except OSError as error:
        raise OptionError(f"{str(path)!r} cannot be written: {error.strerror}. {advice}") from error


def read_text(path: Path) -> str:
    """Return the text of a file in UTF-8, or raise OptionError."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(
            f"{str(path)!r} cannot be read: {error}. Name a file in UTF-8."
        ) from error

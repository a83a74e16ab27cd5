"""The data sets that the lab reads: where they come from, and whether what is there is whole."""

import gzip
import json
import tempfile
import urllib.request
import zipfile
import zlib
from collections.abc import Iterator
from http.client import HTTPException
from importlib.resources import files
from pathlib import Path, PurePosixPath
from typing import IO, Literal, NamedTuple

import yaml
from pydantic import BaseModel, ConfigDict

from univerb.errors import DocumentError, OptionError, did_you_mean, first_line
from univerb.files import atomic_path
from univerb.lab.protocols.asqa_questions import read_questions

State = Literal["present", "missing", "damaged"]
_MAX_ARCHIVE, _MAX_FILE = 1 << 29, 1 << 30
_TIMEOUT = 60


class DataSet(BaseModel):
    """A file below the data folder."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    file: str
    purpose: str
    source: str
    address: str
    """Of its publishers' page."""
    licence: str
    size: str
    unit: str
    count: int | None = None
    """Units in the publishers' file."""
    form: str = "as published"
    archive: str = ""
    """The zip file that has it."""

    @property
    def name(self) -> str:
        """The folder that it belongs to."""
        return self.file.partition("/")[0]


class DataCheck(NamedTuple):
    """A data set, and what was found of it."""

    data_set: DataSet
    state: State
    found: str
    """What is there, or what is wrong with it."""


def data_sets() -> list[DataSet]:
    """Return all data sets."""
    content = (files("univerb") / "assets" / "data_sets.yaml").read_text("utf-8")
    return [DataSet(**values) for values in yaml.safe_load(content)]


def check_data(folder: Path | None) -> Iterator[DataCheck]:
    """Read each file in the folder with the data, and tell whether it is what it should be."""
    for data_set in data_sets():
        path = folder / data_set.file if folder else None
        if path is None or not path.is_file():
            yield DataCheck(data_set, "missing", "")
            continue
        try:
            count = _count(path, data_set.unit)
        except (
            OSError,
            EOFError,
            zlib.error,
            ValueError,
            LookupError,
            TypeError,
            RecursionError,
            DocumentError,
        ) as error:
            yield DataCheck(data_set, "damaged", first_line(error))
            continue
        found = f"{count:,} {data_set.unit}"
        is_whole = count == data_set.count if data_set.count else count > 0
        wanted = "" if is_whole else f", not {data_set.count or 'one or more'}"
        yield DataCheck(data_set, "present" if is_whole else "damaged", found + wanted)


def _count(path: Path, unit: str) -> int:
    """Count the units of a file, of any size; what is no text or no JSON raises."""
    if unit == "questions":
        return len(read_questions(path, documents=1))
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
        lines = (line.decode("utf-8") for line in stream)
        if unit == "tokens":
            # With an end token for each line.
            return sum(len(line.split()) + line.endswith("\n") for line in lines)
        if unit == "lines":
            return sum(bool(line.strip()) for line in lines)
        return sum(bool(str(json.loads(line)["text"])) for line in lines)


def fetch_data(name: str, folder: Path) -> list[Path]:
    """Download the missing files of a data set that is published as one archive.

    Args:
        name: The folder of the data set, such as wikitext103.
        folder: The folder with the data.

    Returns:
        The files that were written, each in one step.

    Raises:
        OptionError: If there is no such data set, or none that can be fetched.
        DocumentError: If the archive cannot be read, or lacks a file.
    """
    archives = {each.name: each.archive for each in data_sets() if each.archive}
    if name not in archives:
        pages = {each.name: each.address for each in data_sets()}
        advice = f"Its page is {pages[name]}." if name in pages else did_you_mean(name, archives)
        raise OptionError(f"{name!r} cannot be fetched; {', '.join(archives)} can. {advice}")
    wanted = [folder / each.file for each in data_sets() if each.name == name]
    missing = [path for path in wanted if not path.is_file()]
    if not missing:
        return []
    try:
        (folder / name).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder / name) as archive:
            with urllib.request.urlopen(archives[name], timeout=_TIMEOUT) as answer:
                _copy(answer, archive, _MAX_ARCHIVE)
            with zipfile.ZipFile(archive) as content:
                for path in missing:
                    _extract(content, path)
    # A zip file of an unknown kind is a RuntimeError.
    except (OSError, HTTPException, zipfile.BadZipFile, zlib.error, RuntimeError) as error:
        raise DocumentError(
            f"{archives[name]} could not be fetched: {first_line(error)}. Try again, or download "
            f"it by hand and put its files into {str(folder / name)!r}."
        ) from error
    return missing


def _extract(archive: zipfile.ZipFile, path: Path) -> None:
    """Write the file of that name, wherever it lies in the archive."""
    member = next((m for m in archive.namelist() if PurePosixPath(m).name == path.name), None)
    if member is None:
        raise zipfile.BadZipFile(f"it has no {path.name}")
    with archive.open(member) as source, atomic_path(path) as draft, draft.open("wb") as target:
        _copy(source, target, _MAX_FILE)


def _copy(source: IO[bytes], target: IO[bytes], limit: int) -> None:
    while block := source.read(1 << 20):
        if target.tell() + len(block) > limit:
            raise OSError(f"it is larger than {limit >> 20} MiB")
        target.write(block)

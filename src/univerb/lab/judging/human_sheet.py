"""Human evaluation (METHOD C.11): a blinded sheet, its key, and what filled sheets come to.

Annotators get the sheet and never the key. Each row shows a prefix and two continuations, and asks
of every criterion which one is better: 1, 2 or tie.
"""

import csv
import hashlib
import io
import json
import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from univerb.errors import OptionError
from univerb.lab.judging.judge import Pair
from univerb.lab.metrics.agreement import Agreement, Tally, agreement

CRITERIA = ("overall", "fluency", "coherence", "informativeness", "grammar")
"""The paper's: a whole, and four aspects."""
_ITEM = "item"
_SHOWN = (_ITEM, "prefix", "continuation 1", "continuation 2")
_ANSWERS = ("1", "2", "tie")
# What makes a spreadsheet compute a cell, in the wide forms too.
_FORMULA = re.compile(r"\s*[=+\-@＝＋－＠]|[\t\r\n]")


class Key(BaseModel):
    """Who wrote what on a sheet."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: Literal[1] = 1
    ours: str
    """The name of the system that is looked at."""
    theirs: str
    seed: int
    sides: dict[str, Literal[1, 2]] = Field(min_length=1)
    """By item: which of its continuations is ours."""

    def is_of(self, pairs: Sequence[Pair]) -> bool:
        """Tell whether the sheet was made of these pairs."""
        return list(self.sides) == [own.item for own in _blinded(pairs, self.seed)]

    @classmethod
    def read(cls, path: Path) -> "Key":
        """Read a key file.

        Args:
            path: The file.

        Returns:
            The key.

        Raises:
            OptionError: If it is not a key.
        """
        try:
            return cls.model_validate_json(_read(path))
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(map(str, first["loc"])) or "the file"
            raise OptionError(
                f"{str(path)!r} is not the key of a sheet: {where}: {first['msg']}. Give the key "
                "file that was written with the sheet."
            ) from None


def write_sheet(
    pairs: Sequence[Pair],
    sheet: Path,
    key: Path,
    ours: str = "ours",
    theirs: str = "theirs",
    seed: int = 0,
) -> Key:
    """Write a sheet for annotators, and its key.

    Args:
        pairs: What to compare; the paper draws 100 (`sample_pairs`).
        sheet: The CSV file to give to annotators.
        key: The file that tells the systems apart; keep it from them.
        ours: The name of the system that is looked at.
        theirs: The name of the other one.
        seed: Of the sides. Each system is on each side equally often, give or take one.

    Returns:
        The key.

    Raises:
        OptionError: If there is nothing to compare, or a file exists or cannot be written.
    """
    if not pairs:
        raise OptionError("a sheet needs at least one pair of texts. Give some.")
    if taken := [path for path in (sheet, key) if path.exists()]:
        # It may be somebody's work.
        raise OptionError(f"{str(taken[0])!r} exists. Name another file, or move it away.")
    shown = _blinded(pairs, seed)
    made = Key(ours=ours, theirs=theirs, seed=seed, sides={own.item: own.side for own in shown})
    rows = ((own.item, *map(_harmless, own.texts)) for own in shown)
    # With a byte-order mark: spreadsheets take the file for another encoding without it.
    _create(sheet, _csv(rows), "utf-8-sig")
    # Last: where there is a key, there is a whole sheet.
    _create(key, made.model_dump_json(indent=2) + "\n", "utf-8")
    return made


class _Shown(NamedTuple):
    """A pair as annotators see it."""

    item: str
    side: Literal[1, 2]
    """Where ours is."""
    texts: tuple[str, str, str]
    """Prompt, first and second continuation."""


def _blinded(pairs: Sequence[Pair], seed: int) -> list[_Shown]:
    """Put each system on each side equally often, give or take one."""
    sides: list[Literal[1, 2]] = [1 if n % 2 else 2 for n in range(len(pairs))]
    random.Random(seed).shuffle(sides)
    shown = [
        (own.prompt, own.ours, own.theirs) if side == 1 else (own.prompt, own.theirs, own.ours)
        for own, side in zip(pairs, sides, strict=True)
    ]
    # The name of a row has the sheet in it, so that a key cannot be used on another sheet.
    name = hashlib.sha256(json.dumps([seed, shown]).encode()).hexdigest()[:6]
    return [
        _Shown(f"s{name}-{number:03}", side, texts)
        for number, (side, texts) in enumerate(zip(sides, shown, strict=True), 1)
    ]


def _csv(rows: Iterable[Sequence[str]]) -> str:
    text = io.StringIO(newline="")
    writer = csv.writer(text, quoting=csv.QUOTE_ALL)
    writer.writerow((*_SHOWN, *CRITERIA))
    writer.writerows((*row, *([""] * len(CRITERIA))) for row in rows)
    return text.getvalue()


def _harmless(text: str) -> str:
    """Keep a spreadsheet from computing a text: an apostrophe makes it one."""
    return f"'{text}" if _FORMULA.match(text) else text


def _create(path: Path, text: str, encoding: str) -> None:
    try:
        with path.open("x", encoding=encoding, errors="replace", newline="") as file:
            file.write(text)
    except OSError as error:
        raise OptionError(
            f"{str(path)!r} cannot be written: {error.strerror}. Name another file."
        ) from error


def _read(path: Path) -> str:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            return file.read()
    except UnicodeDecodeError:
        raise OptionError(f"{str(path)!r} is not UTF-8. Save it as CSV in UTF-8.") from None
    except OSError as error:
        raise OptionError(
            f"{str(path)!r} cannot be read: {error.strerror}. Check its name."
        ) from error


class Annotation(NamedTuple):
    """A filled sheet, un-blinded."""

    path: Path
    values: dict[str, dict[str, int]]
    """By criterion and item: 1 if ours is better, 0 for no preference, -1 if it is worse."""


def read_sheet(path: Path, key: Key) -> Annotation:
    """Read what an annotator filled in; rows in any order, other columns are passed over.

    Args:
        path: The CSV file, separated by commas, semicolons or tabs.
        key: The key of the sheet.

    Returns:
        The answers, un-blinded; without criteria whose column was left empty.

    Raises:
        OptionError: If something is missing, or not 1, 2 or tie; names the row and the column.
    """
    rows = dict(_rows(path, key))
    answers = {name: [cells[name] for cells, _ in rows.values()] for name in CRITERIA}
    asked = [name for name, cells in answers.items() if any(cells)]
    if not asked:
        raise OptionError(f"{str(path)!r} is not filled in. Put 1, 2 or tie into its columns.")
    values: dict[str, dict[str, int]] = {name: {} for name in asked}
    for item, (cells, row) in rows.items():
        for name in asked:
            if cells[name] not in _ANSWERS:
                raise OptionError(
                    f"{str(path)!r}, row {row}, column {name!r}: {cells[name]!r} is no answer. "
                    "Give 1, 2 or tie; a column that nobody judged is left empty as a whole."
                )
            values[name][item] = _unblinded(cells[name], key.sides[item])
    return Annotation(path, values)


def _unblinded(answer: str, side: int) -> int:
    if answer == "tie":
        return 0
    return 1 if int(answer) == side else -1


def _rows(path: Path, key: Key) -> Iterator[tuple[str, tuple[dict[str, str], int]]]:
    """Yield for each item its answers and its row, and check that all items are there once."""
    seen: dict[str, int] = {}
    for row, record in _records(path):
        item = record.get(_ITEM, "")
        where = f"{str(path)!r}, row {row}, column {_ITEM!r}: {item!r}"
        if item not in key.sides:
            raise OptionError(
                f"{where} is not in the key. Use the key of this very sheet, and leave the column "
                "as it is."
            )
        if item in seen:
            raise OptionError(f"{where} is that of row {seen[item]} too. Drop one of them.")
        seen[item] = row
        yield item, ({name: record[name].lower() for name in CRITERIA}, row)
    if missing := [item for item in key.sides if item not in seen]:
        raise OptionError(
            f"{str(path)!r} has {len(seen)} of {len(key.sides)} items; column {_ITEM!r} lacks "
            f"{missing[0]!r}. Put its row back."
        )


def _records(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    text = _read(path)
    # A cell may hold a whole document.
    csv.field_size_limit(max(csv.field_size_limit(), len(text)))
    # Some spreadsheets separate by what their language has for a comma.
    for delimiter in ",;\t":
        lines = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
        try:
            names = [name.strip().lower() for name in next(lines, [])]
            if _ITEM not in names:
                continue
            if absent := [name for name in CRITERIA if name not in names]:
                raise OptionError(f"{str(path)!r} has no column {absent[0]!r}. Put it back.")
            for row, cells in enumerate(lines, 2):
                if any(cells):
                    full = [*cells, *([""] * len(names))][: len(names)]
                    yield row, dict(zip(names, map(str.strip, full), strict=True))
            return
        except csv.Error as error:
            raise OptionError(
                f"{str(path)!r} cannot be read as CSV: {error}. Save it as CSV in UTF-8."
            ) from None
    raise OptionError(f"{str(path)!r} has no column {_ITEM!r}. Give a sheet in its first form.")


@dataclass(frozen=True, slots=True)
class Judged:
    """What annotators think of ours beside theirs, by one criterion."""

    criterion: str
    annotators: int
    rates: Tally
    """Over all answers of all annotators."""
    majority: Tally
    """Over items: what more than half of the annotators say, or no preference."""
    agreement: Agreement | None
    """None for one annotator."""
    disputed: tuple[str, ...]
    """Items that the annotators do not agree on: the paper's discuss them and decide."""

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as JSON can hold them."""
        return {
            "criterion": self.criterion,
            "annotators": self.annotators,
            "rates": self.rates.to_dict(),
            "majority": self.majority.to_dict(),
            "agreement": self.agreement._asdict() if self.agreement else None,
            "disputed": list(self.disputed),
        }


def human_preference(key: Key, annotations: Sequence[Annotation]) -> list[Judged]:
    """Put filled sheets together.

    Args:
        key: The key of the sheet.
        annotations: What each annotator filled in; one that was agreed on is a single sheet.

    Returns:
        The figures of each criterion that somebody judged.

    Raises:
        OptionError: If there is no sheet.
    """
    if not annotations:
        raise OptionError("no filled sheet is given. Give one for each annotator.")
    found = []
    for name in CRITERIA:
        ratings = [
            [own.values[name][item] for item in key.sides]
            for own in annotations
            if name in own.values
        ]
        if ratings:
            found.append(_judged(name, list(key.sides), ratings))
    return found


def _judged(name: str, items: Sequence[str], ratings: Sequence[Sequence[int]]) -> Judged:
    by_item = [Counter(labels) for labels in zip(*ratings, strict=True)]
    return Judged(
        criterion=name,
        annotators=len(ratings),
        rates=Tally.of(value for own in ratings for value in own),
        majority=Tally.of(_majority(labels) for labels in by_item),
        agreement=agreement(ratings) if len(ratings) > 1 else None,
        disputed=tuple(
            item for item, labels in zip(items, by_item, strict=True) if len(labels) > 1
        ),
    )


def _majority(labels: Counter[int]) -> int:
    [(label, count)] = labels.most_common(1)
    return label if 2 * count > labels.total() else 0

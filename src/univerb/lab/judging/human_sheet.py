"""Human evaluation: a blinded sheet, its key, and filled sheets (docs/method.md, Metrics: judging).

Annotators get the sheet and never the key. Each row shows a prefix and two continuations, and asks
for every criterion which one is better: 1, 2 or tie.
"""

import csv
import hashlib
import io
import json
import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from univerb.errors import MissingExtra, OptionError
from univerb.lab.judging.system_texts import ContinuationPair
from univerb.lab.metrics.agreement import Agreement, Tally, agreement

CRITERIA = ("overall", "fluency", "coherence", "informativeness", "grammar")
"""The paper's: a whole, and four aspects."""
_ITEM = "item"
# What makes a spreadsheet compute a cell, in the wide forms too.
_FORMULA = re.compile(r"\s*[=+\-@＝＋－＠]|[\t\r\n]")


class SheetKey(BaseModel):
    """Which system wrote which text of a sheet."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: Literal[1] = 1
    ours: str
    """The name of the system under evaluation."""
    theirs: str
    seed: int
    sides: dict[str, Literal[1, 2]] = Field(min_length=1)
    """By item: which of its continuations is ours."""

    def is_of(self, pairs: Sequence[ContinuationPair]) -> bool:
        """Tell whether the sheet was made of these pairs."""
        return list(self.sides) == [row.item for row in _blinded(pairs, self.seed)]

    @classmethod
    def read(cls, path: Path) -> "SheetKey":
        """Read a key file; raises OptionError if it is none."""
        try:
            return cls.model_validate_json(_read(path))
        except ValidationError as error:
            reason = error.errors(include_url=False, include_input=False)[0]["msg"]
            raise OptionError(
                f"{str(path)!r} is not the key of a sheet: {reason}. Give the key file that was "
                "written with the sheet."
            ) from None


def write_sheet(
    pairs: Sequence[ContinuationPair],
    sheet: Path,
    key: Path,
    ours: str = "ours",
    theirs: str = "theirs",
    seed: int = 0,
) -> SheetKey:
    """Write a CSV sheet for annotators, and the key that tells the systems apart.

    Each system is on each side equally often, give or take one. A file that exists is refused.
    """
    if not pairs:
        raise OptionError("a sheet needs at least one pair of texts. Give some.")
    for path in (sheet, key):
        if path.exists():  # it may be somebody's work
            raise OptionError(f"{str(path)!r} exists. Name another file, or move it away.")
    rows = _blinded(pairs, seed)
    made = SheetKey(ours=ours, theirs=theirs, seed=seed, sides={row.item: row.side for row in rows})
    text = io.StringIO(newline="")
    writer = csv.writer(text, quoting=csv.QUOTE_ALL)
    writer.writerow((_ITEM, "prefix", "continuation 1", "continuation 2", *CRITERIA))
    writer.writerows((row.item, *map(_escaped, row.texts), *[""] * len(CRITERIA)) for row in rows)
    # With a byte-order mark: spreadsheets take the file for another encoding without it.
    _create(sheet, text.getvalue(), "utf-8-sig")
    # Last: where there is a key, there is a whole sheet.
    _create(key, made.model_dump_json(indent=2) + "\n", "utf-8")
    return made


class _BlindedRow(NamedTuple):
    item: str
    side: Literal[1, 2]
    """Which continuation is ours."""
    texts: tuple[str, str, str]
    """Prompt, first and second continuation."""


def _blinded(pairs: Sequence[ContinuationPair], seed: int) -> list[_BlindedRow]:
    sides: list[Literal[1, 2]] = [1 if n % 2 else 2 for n in range(len(pairs))]
    random.Random(seed).shuffle(sides)
    shown = [
        (pair.prompt, pair.ours, pair.theirs)
        if side == 1
        else (pair.prompt, pair.theirs, pair.ours)
        for pair, side in zip(pairs, sides, strict=True)
    ]
    # Items are named after the sheet's content, so that no key fits another sheet.
    name = hashlib.sha256(json.dumps([seed, shown]).encode()).hexdigest()[:6]
    return [
        _BlindedRow(f"s{name}-{number:03}", side, texts)
        for number, (side, texts) in enumerate(zip(sides, shown, strict=True), 1)
    ]


def _escaped(text: str) -> str:
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
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(
            f"{str(path)!r} cannot be read: {error}. Name a file in UTF-8."
        ) from error


Ratings = dict[str, dict[str, int]]
"""By criterion and item: 1 if ours is better, 0 for no preference, -1 if it is worse."""


def read_sheet(path: Path, key: SheetKey) -> Ratings:
    """Read a filled sheet: un-blinded answers, without criteria whose column was left empty.

    Rows may be in any order, with other columns, separated by commas, semicolons or tabs. Raises
    OptionError if a row is missing, or an answer is not 1, 2 or tie.
    """
    rows = _rows(path)
    items = [row[_ITEM] for row in rows]
    if sorted(items) != sorted(key.sides):
        wrong = Counter(items) - Counter(key.sides) or Counter(key.sides) - Counter(items)
        raise OptionError(
            f"{str(path)!r} has {len(items)} rows for {len(key.sides)} items; {min(wrong)!r} is "
            "missing, repeated or not in the key. Give each row of this key's sheet once."
        )
    judged = [name for name in CRITERIA if any(row[name] for row in rows)]
    if not judged:
        raise OptionError(f"{str(path)!r} is not filled in. Put 1, 2 or tie into its columns.")
    ratings: Ratings = {name: {} for name in judged}
    for row in rows:
        for name in judged:
            if row[name] not in ("1", "2", "tie"):
                raise OptionError(
                    f"{str(path)!r}, item {row[_ITEM]!r}, column {name!r}: {row[name]!r} is no "
                    "answer. Give 1, 2 or tie; a column that nobody judged stays empty."
                )
            is_ours = row[name] == str(key.sides[row[_ITEM]])
            ratings[name][row[_ITEM]] = 0 if row[name] == "tie" else 1 if is_ours else -1
    return ratings


def _rows(path: Path) -> list[dict[str, str]]:
    """Return the item and the answers of each row that is not empty."""
    try:
        import pandas
    except ImportError:
        raise MissingExtra("pandas", "eval") from None
    text = _read(path)
    # Spreadsheets of some languages separate by semicolons.
    delimiter = max(",;\t", key=text.partition("\n")[0].count)
    try:
        table = pandas.read_csv(
            io.StringIO(text), sep=delimiter, dtype=str, keep_default_na=False, index_col=False
        )
    except (ValueError, LookupError) as error:
        raise OptionError(
            f"{str(path)!r} cannot be read as CSV: {error}. Save it as CSV in UTF-8."
        ) from None
    table.columns = table.columns.str.strip().str.lower()
    for name in (_ITEM, *CRITERIA):
        if name not in table.columns:
            raise OptionError(f"{str(path)!r} has no column {name!r}. Put it back.")
    answers = table[[_ITEM, *CRITERIA]].apply(lambda column: column.str.strip().str.lower())
    return [row for row in answers.to_dict("records") if any(row.values())]


@dataclass(frozen=True, slots=True)
class HumanPreference:
    """Annotators' preference between ours and theirs, by one criterion."""

    criterion: str
    annotators: int
    rates: Tally
    """Over all answers of all annotators."""
    majority: Tally
    """Over items: the answer of more than half of the annotators, or no preference."""
    agreement: Agreement | None
    """None for one annotator."""

    def to_dict(self) -> dict[str, Any]:
        """Return the figures for JSON."""
        return {
            "criterion": self.criterion,
            "annotators": self.annotators,
            "rates": self.rates.to_dict(),
            "majority": self.majority.to_dict(),
            "agreement": self.agreement._asdict() if self.agreement else None,
        }


def human_preference(key: SheetKey, sheets: Sequence[Ratings]) -> list[HumanPreference]:
    """Summarise filled sheets, one per annotator, by each criterion that somebody judged."""
    if not sheets:
        raise OptionError("no filled sheet is given. Give one for each annotator.")
    preferences = []
    for name in CRITERIA:
        ratings = [[sheet[name][item] for item in key.sides] for sheet in sheets if name in sheet]
        if ratings:
            preferences.append(
                HumanPreference(
                    criterion=name,
                    annotators=len(ratings),
                    rates=Tally.of(value for values in ratings for value in values),
                    majority=Tally.of(map(_majority, zip(*ratings, strict=True))),
                    agreement=agreement(ratings) if len(ratings) > 1 else None,
                )
            )
    return preferences


def _majority(labels: Sequence[int]) -> int:
    [(label, count)] = Counter(labels).most_common(1)
    return label if 2 * count > len(labels) else 0

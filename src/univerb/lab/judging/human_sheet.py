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
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from univerb.errors import MissingExtra, OptionError
from univerb.lab.disk_errors import read_text, writing
from univerb.lab.judging.system_texts import ContinuationPair
from univerb.lab.metrics.agreement import Agreement, Tally, agreement

if TYPE_CHECKING:
    from pandas import DataFrame

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
        return list(self.sides) == list(_blinded(pairs, self.seed)[0])

    @classmethod
    def read(cls, path: Path) -> "SheetKey":
        """Read a key file; raises OptionError if it is none."""
        try:
            return cls.model_validate_json(read_text(path))
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
    sides, shown = _blinded(pairs, seed)
    made = SheetKey(ours=ours, theirs=theirs, seed=seed, sides=sides)
    text = io.StringIO(newline="")
    writer = csv.writer(text, quoting=csv.QUOTE_ALL)
    writer.writerow((_ITEM, "prefix", "continuation 1", "continuation 2", *CRITERIA))
    for item, texts in zip(sides, shown, strict=True):
        writer.writerow((item, *map(escaped, texts), *[""] * len(CRITERIA)))
    # With a byte-order mark: spreadsheets take the file for another encoding without it.
    _create(sheet, text.getvalue(), "utf-8-sig")
    # Last: where there is a key, there is a whole sheet.
    _create(key, made.model_dump_json(indent=2) + "\n", "utf-8")
    return made


def _blinded(
    pairs: Sequence[ContinuationPair], seed: int
) -> tuple[dict[str, Literal[1, 2]], list[tuple[str, str, str]]]:
    """Return which continuation of each item is ours, and what the sheet shows of it."""
    sides: list[Literal[1, 2]] = [1 if n % 2 else 2 for n in range(len(pairs))]
    random.Random(seed).shuffle(sides)
    shown = [
        (prompt, ours, theirs) if side == 1 else (prompt, theirs, ours)
        for (prompt, ours, theirs), side in zip(pairs, sides, strict=True)
    ]
    # Items are named after the sheet's content, so that no key fits another sheet.
    name = hashlib.sha256(json.dumps([seed, shown]).encode()).hexdigest()[:6]
    return {f"s{name}-{number:03}": side for number, side in enumerate(sides, 1)}, shown


def escaped(text: str) -> str:
    """Keep a spreadsheet from computing a text: an apostrophe makes it one."""
    return f"'{text}" if _FORMULA.match(text) else text


def _create(path: Path, text: str, encoding: str) -> None:
    with (
        writing(path),
        path.open("x", encoding=encoding, errors="replace", newline="") as file,
    ):
        file.write(text)


def read_sheet(path: Path, key: SheetKey) -> "DataFrame":
    """Read a filled sheet: 1 if ours is better, 0 for no preference, -1 if it is worse.

    Rows may be in any order, with other columns, separated by commas, semicolons or tabs. The
    result has a row for each item in the key's order, and a column for each criterion that was
    judged. Raises OptionError if a row is missing, or an answer is not 1, 2 or tie.
    """
    answers = _answers(path)
    items = list(answers.index)
    if sorted(items) != sorted(key.sides):
        wrong = Counter(items) - Counter(key.sides) or Counter(key.sides) - Counter(items)
        raise OptionError(
            f"{str(path)!r} has {len(items)} rows for {len(key.sides)} items; {min(wrong)!r} is "
            "missing, repeated or not in the key. Give each row of this key's sheet once."
        )
    judged = answers.loc[list(key.sides), (answers != "").any()]
    if judged.empty:
        raise OptionError(f"{str(path)!r} is not filled in. Put 1, 2 or tie into its columns.")
    for (item, name), answer in judged.stack().items():
        if answer not in ("1", "2", "tie"):
            raise OptionError(
                f"{str(path)!r}, item {item!r}, column {name!r}: {answer!r} is no answer. Give 1, "
                "2 or tie; a column that nobody judged stays empty."
            )
    is_ours = judged.eq([str(side) for side in key.sides.values()], axis=0)
    return (2 * is_ours - 1).mask(judged == "tie", 0)


def _answers(path: Path) -> "DataFrame":
    """Return the answers by item and criterion, without empty rows."""
    try:
        import pandas
    except ImportError:
        raise MissingExtra("pandas", "eval") from None
    text = read_text(path)
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
    return answers[(answers != "").any(axis=1)].set_index(_ITEM)


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


def human_preference(sheets: "Sequence[DataFrame]") -> list[HumanPreference]:
    """Summarise sheets as `read_sheet` reads them, by each criterion that somebody judged."""
    if not sheets:
        raise OptionError("no filled sheet is given. Give one for each annotator.")
    preferences = []
    for name in CRITERIA:
        ratings = [sheet[name].tolist() for sheet in sheets if name in sheet]
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

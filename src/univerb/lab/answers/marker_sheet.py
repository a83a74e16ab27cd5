"""A blind sheet of markers: does the passage support the sentence? Nobody sees who wrote it.

A sentence that several systems wrote and cited alike is judged once: rows are named after what
they show, so that a sheet needs no key.
"""

import csv
import io
import random
from collections.abc import Iterable, Mapping
from pathlib import Path

from univerb.errors import OptionError
from univerb.lab.answers.systems import Marker
from univerb.lab.disk_errors import read_text, writing
from univerb.lab.judging.human_sheet import escaped
from univerb.lab.protocols.result_cache import short_hash

VERDICTS = ("yes", "partly", "no")
"""The passage says all of the sentence, a part of it, or something else."""
_COLUMNS = ("item", "question", "sentence", "document", "passage", "supports")
_ITEM, _VERDICT = _COLUMNS[0], _COLUMNS[-1]


def marker_id(marker: Marker) -> str:
    """Return the name of a marker's row."""
    return short_hash(list(marker))


def write_marker_sheet(path: Path, markers: Iterable[Marker], seed: int = 0) -> int:
    """Write the markers, each once, in an order that tells nothing; returns how many.

    A sheet of these markers that is there is kept: somebody may have begun to fill it in.
    """
    rows = sorted({marker_id(marker): marker for marker in markers}.items())
    if path.exists():
        if {row.get(_ITEM) for row in _rows(path)} == {name for name, _ in rows}:
            return len(rows)
        raise OptionError(
            f"{str(path)!r} is a sheet of other answers. Move it away, or name another folder."
        )
    random.Random(seed).shuffle(rows)
    text = io.StringIO(newline="")
    writer = csv.writer(text, quoting=csv.QUOTE_ALL)
    writer.writerow(_COLUMNS)
    for name, marker in rows:
        writer.writerow((name, *map(escaped, marker), ""))
    with writing(path):
        path.write_text(text.getvalue(), encoding="utf-8", newline="")
    return len(rows)


def read_marker_sheet(path: Path) -> Mapping[str, str]:
    """Read the verdicts of a filled sheet, by row."""
    verdicts = {}
    for number, row in enumerate(_rows(path), 2):
        name, verdict = row.get(_ITEM), (row.get(_VERDICT) or "").strip().lower()
        if not name or verdict not in VERDICTS:
            raise OptionError(
                f"row {number} of {str(path)!r} has the verdict {verdict!r}. Fill the column "
                f"{_VERDICT!r} of a sheet with {', '.join(VERDICTS)}."
            )
        verdicts[name] = verdict
    return verdicts


def _rows(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(read_text(path))))

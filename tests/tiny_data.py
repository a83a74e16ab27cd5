"""A folder shaped like the shared data, of made-up sentences."""

import gzip
import json
import random
from pathlib import Path

from conftest import TEXT

_SENTENCES = [part.strip() + "." for part in TEXT.split(".") if part.strip()]


def paragraph(number: int, sentences: int = 3) -> str:
    """Return some sentences with a number in them, so that no two paragraphs are alike."""
    draw = random.Random(number)
    return " ".join(f"{draw.choice(_SENTENCES)[:-1]} {number}." for _ in range(sentences))


def tiny_data(folder: Path, count: int = 6) -> Path:
    """Write test sets of `count` texts, and what corpora are built from."""
    for name in ("wikitext103", "law", "wiki", "asqa"):
        (folder / name).mkdir(parents=True)
    spaced = [paragraph(n).replace(".", " .").replace(",", " ,") for n in range(count)]
    lines = [" = A title = ", "", *(f" {text} " for text in spaced), " A <unk> line " * 30]
    (folder / "wikitext103" / "wiki.test.tokens").write_text("\n".join(lines) + "\n")
    law = "\n".join(paragraph(100 + n) for n in range(count))
    (folder / "law" / "lawmt.test.en").write_text(law + "\n")
    (folder / "law" / "jrc-acquis.en").write_text(law.upper() + "\n")
    acts = [{"title": f"act {n}", "text": paragraph(200 + n, 12)} for n in range(120)]
    _write(folder / "law" / "eurlex.jsonl.gz", acts)
    articles = [{"id": str(n), "title": f"{n}", "text": paragraph(300 + n, 12)} for n in range(6)]
    _write(folder / "wiki" / "train-00.jsonl.gz", articles)
    return folder


def _write(path: Path, lines: list[dict[str, str]]) -> None:
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)

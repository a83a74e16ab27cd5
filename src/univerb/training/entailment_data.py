"""Pairs of a premise and a hypothesis with the labels that people gave them.

SNLI        label, premise, hypothesis in a TSV file; three labels
WiCE        claims of Wikipedia and passages of the page that they cite; supported or not
ExpertQA    claims of systems' answers and the evidence that they cite; supported or not
"""

import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

from univerb.errors import DocumentError, OptionError
from univerb.training.entailment_config import EntailmentConfig

Label = Literal["entailment", "neutral", "contradiction", "not_entailment"]
LABELS: tuple[Label, ...] = ("entailment", "neutral", "contradiction")
"""What a classifier tells apart. `not_entailment` is one of the last two, nobody said which."""

_CITATION = re.compile(r"\s*\[\d+\]")
_ADDRESS = re.compile(r"\A\s*(?:\[\d+\])?\s*(?:https?://\S+)?\s*")
# Of ExpertQA's judgements; the others say that nobody could tell.
_SUPPORT: dict[str, Label] = {
    "Complete": "entailment",
    "Partial": "not_entailment",
    "Incomplete": "not_entailment",
}


class Example(NamedTuple):
    """A pair and its label."""

    premise: str
    hypothesis: str
    label: Label
    source: int
    """Pairs with the same number come from one claim or question, and belong to one split."""

    @property
    def is_entailed(self) -> bool:
        """Whether the premise is enough to believe the hypothesis."""
        return self.label == "entailment"


class Split(NamedTuple):
    """What is trained on, and what is kept out."""

    snli: list[Example]
    snli_held_out: list[Example]
    documents: dict[str, list[Example]]
    """By corpus."""
    documents_held_out: dict[str, list[Example]]


def read_split(config: EntailmentConfig) -> Split:
    """Read the data of a run.

    Args:
        config: The run's settings.

    Returns:
        The pairs.

    Raises:
        DocumentError: If a file cannot be read.
        OptionError: If nothing of SNLI is left to train on.
    """
    settings, folder = config.data, Path(config.data.folder).expanduser()
    snli = read_snli(folder / "snli_train.tsv.gz", settings.limit)
    if len(snli) <= settings.validation:
        raise OptionError(
            f"data.validation is {settings.validation} of {len(snli)} pairs. Leave some to train."
        )
    corpora = {
        "WiCE": read_wice(folder / "wice_oracle_chunks_claim_dev.jsonl.gz"),
        "ExpertQA": read_expertqa(folder / "expertqa_rand_val.jsonl.gz"),
    }
    kept: dict[str, list[Example]] = {}
    held_out: dict[str, list[Example]] = {}
    for name, examples in corpora.items():
        kept[name] = [one for one in examples if one.source % settings.held_out]
        held_out[name] = [one for one in examples if one.source % settings.held_out == 0]
    return Split(snli[: -settings.validation], snli[-settings.validation :], kept, held_out)


def read_snli(path: Path, limit: int | None = None) -> list[Example]:
    """Read SNLI.

    Args:
        path: A gzipped TSV file: label, premise, hypothesis.
        limit: At most so many pairs.

    Returns:
        The pairs.

    Raises:
        DocumentError: If it cannot be read, or a line has no such label.
    """
    found: list[Example] = []
    for number, line in enumerate(_lines(path)):
        if number == limit:
            break
        label, _, pair = line.rstrip("\n").partition("\t")
        premise, tab, hypothesis = pair.partition("\t")
        if label not in LABELS or not tab:
            raise DocumentError(
                f"line {number + 1} of {str(path)!r} is {line[:60]!r}. Give lines of label, "
                f"premise and hypothesis with tabs between them; labels: {', '.join(LABELS)}."
            )
        found.append(Example(premise, hypothesis, label, number))
    return found


def read_wice(path: Path) -> list[Example]:
    """Read WiCE: whole pages or oracle chunks; a claim that is supported in part is not entailed.

    Args:
        path: A gzipped JSONL file.

    Returns:
        The pairs.

    Raises:
        DocumentError: If it cannot be read.
    """
    sources: dict[str, int] = {}
    found = []
    for row in _rows(path, "label", "claim", "evidence", "meta"):
        # As citation scores present a passage.
        premise = " ".join(row["evidence"]).replace("(meta data) TITLE:", "Title:")
        label: Label = "entailment" if row["label"] == "supported" else "not_entailment"
        source = sources.setdefault(row["meta"]["id"], len(sources))
        found.append(Example(premise, row["claim"], label, source))
    return found


def read_expertqa(path: Path) -> list[Example]:
    """Read the claims of ExpertQA whose evidence is all there, and was judged.

    Args:
        path: A gzipped JSONL file.

    Returns:
        The pairs; citation marks are taken out of the claims, addresses out of the evidence.

    Raises:
        DocumentError: If it cannot be read.
    """
    return [
        Example("\n".join(evidence), claim_text, _SUPPORT[claim["support"]], source)
        for source, row in enumerate(_rows(path, "answers"))
        for answer in row["answers"].values()
        for claim in answer["claims"]
        if claim["support"] in _SUPPORT
        and (evidence := [_ADDRESS.sub("", text).strip() for text in claim["evidence"]])
        # Some name an address alone: what was judged cannot be read.
        and all(evidence)
        and (claim_text := _CITATION.sub("", claim["claim_string"]).strip())
    ]


def _rows(path: Path, *keys: str) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(_lines(path)):
        try:
            row = json.loads(line)
            missing = [key for key in keys if key not in row]
        except (ValueError, TypeError, RecursionError):
            missing = [*keys]
        if missing:
            raise DocumentError(
                f"line {number + 1} of {str(path)!r} has no {missing[0]!r}. Give the file as it "
                "was published: one JSON object a line."
            )
        yield row


def _lines(path: Path) -> Iterator[str]:
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            yield from file
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise DocumentError(
            f"{str(path)!r} cannot be read: {error}. Set data.folder to the folder that has it."
        ) from error

"""Pairs of a premise and a hypothesis with the labels that annotators gave them.

SNLI        label, premise, hypothesis in a TSV file; three labels
WiCE        claims of Wikipedia and passages of the page that they cite; supported or not
ExpertQA    claims of systems' answers and the evidence that they cite; supported or not
"""

import gzip
import json
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import Field

from univerb.errors import DocumentError, OptionError
from univerb.training.config import Section

Label = Literal["entailment", "neutral", "contradiction", "not_entailment"]
LABELS: tuple[Label, ...] = ("entailment", "neutral", "contradiction")
"""The classifier's labels. `not_entailment` in the data is one of the last two, unknown which."""

_CITATION = re.compile(r"\s*\[\d+\]")
_ADDRESS = re.compile(r"\A\s*(?:\[\d+\])?\s*(?:https?://\S+)?\s*")
# ExpertQA's judgements; the others mean that nobody could tell.
_SUPPORT: dict[str, Label] = {
    "Complete": "entailment",
    "Partial": "not_entailment",
    "Incomplete": "not_entailment",
}


class DataConfig(Section):
    """SNLI for the notion of entailment, WiCE and ExpertQA for premises as long as passages."""

    folder: str
    """Holds snli_train.tsv.gz and the other files."""
    limit: int | None = Field(default=None, ge=1)
    """Read at most this many pairs of SNLI."""
    validation: int = Field(default=1000, ge=1)
    """SNLI's last pairs, held out of training."""
    held_out: int = Field(default=5, ge=2)
    """Every `held_out`-th claim (WiCE) and question (ExpertQA) is held out of training: the
    threshold is chosen there."""
    documents: int = Field(default=500, ge=0)
    """Pairs per epoch of each of these corpora and each answer, so that the answer cannot be
    guessed from the corpus."""
    max_length: int = Field(default=384, ge=32, le=4096)
    """Tokens of a pair: a chunk of WiCE with its claim has about 370."""
    sorted_batches: int = Field(default=32, ge=1)
    """Batches that are sorted by length together, to save padding."""


class Example(NamedTuple):
    """A labelled pair."""

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
    """Training and held-out examples."""

    snli: list[Example]
    snli_held_out: list[Example]
    documents: dict[str, list[Example]]
    """By corpus."""
    documents_held_out: dict[str, list[Example]]


def read_split(config: DataConfig) -> Split:
    """Read the training data, and hold some of it out."""
    folder = Path(config.folder).expanduser()
    snli = read_snli(folder / "snli_train.tsv.gz", config.limit)
    if len(snli) <= config.validation:
        raise OptionError(
            f"data.validation is {config.validation} of {len(snli)} pairs. Leave some to train."
        )
    corpora = {
        "WiCE": read_wice(folder / "wice_oracle_chunks_claim_dev.jsonl.gz"),
        "ExpertQA": read_expertqa(folder / "expertqa_rand_val.jsonl.gz"),
    }
    training: dict[str, list[Example]] = {}
    held_out: dict[str, list[Example]] = {}
    for name, examples in corpora.items():
        training[name] = [example for example in examples if example.source % config.held_out]
        held_out[name] = [example for example in examples if not example.source % config.held_out]
    return Split(snli[: -config.validation], snli[-config.validation :], training, held_out)


def read_snli(path: Path, limit: int | None = None) -> list[Example]:
    """Read at most `limit` pairs of SNLI: a gzipped TSV file of label, premise, hypothesis."""
    examples: list[Example] = []
    for number, line in enumerate(islice(_lines(path), limit)):
        label, _, pair = line.rstrip("\n").partition("\t")
        premise, tab, hypothesis = pair.partition("\t")
        if label not in LABELS or not tab:
            raise DocumentError(
                f"line {number + 1} of {str(path)!r} is {line[:60]!r}. Give lines of label, "
                f"premise and hypothesis with tabs between them; labels: {', '.join(LABELS)}."
            )
        examples.append(Example(premise, hypothesis, label, number))
    return examples


def read_wice(path: Path) -> list[Example]:
    """Read WiCE: whole pages or oracle chunks; a partially supported claim is not entailed."""
    sources: dict[str, int] = {}
    examples = []
    for row in _rows(path, "label", "claim", "evidence", "meta"):
        # As citation scores present a passage.
        premise = "\n".join(row["evidence"]).replace("(meta data) TITLE:", "Title:")
        label: Label = "entailment" if row["label"] == "supported" else "not_entailment"
        source = sources.setdefault(row["meta"]["id"], len(sources))
        examples.append(Example(premise, row["claim"], label, source))
    return examples


def read_expertqa(path: Path) -> list[Example]:
    """Read the claims of ExpertQA that were judged and whose evidence is all there.

    Args:
        path: A gzipped JSONL file.

    Returns:
        The pairs, without citation marks in claims and without addresses in the evidence.
    """
    return [
        Example("\n".join(evidence), claim_text, _SUPPORT[claim["support"]], source)
        for source, row in enumerate(_rows(path, "answers"))
        for answer in row["answers"].values()
        for claim in answer["claims"]
        if claim["support"] in _SUPPORT
        and (evidence := [_ADDRESS.sub("", text).strip() for text in claim["evidence"]])
        # Some evidence is an address alone: what was judged cannot be read.
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

"""Questions about documents, with what a right answer says."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import yaml
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from univerb.errors import OptionError
from univerb.lab.disk_errors import read_text
from univerb.lab.protocols.asqa_answers import numbered_passages
from univerb.lab.protocols.asqa_questions import AsqaQuestion
from univerb.phrase import Document


class AnswerCase(NamedTuple):
    """A question about documents."""

    question: str
    documents: tuple[Document, ...]
    right: tuple[tuple[str, ...], ...]
    """For each thing that is asked, the texts that are right; nothing if documents do not say."""


class _OwnQuestion(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    question: str
    answers: tuple[str, ...] = ()
    """Empty if the documents do not answer it."""


_FILE = TypeAdapter(list[_OwnQuestion])


def asqa_cases(questions: Sequence[AsqaQuestion]) -> list[AnswerCase]:
    """Return ASQA's questions, each with its own documents."""
    return [
        AnswerCase(
            each.question,
            tuple(Document(p.text, p.document) for p in numbered_passages(each.documents)),
            tuple(part.answers for part in each.sub_questions),
        )
        for each in questions
    ]


def own_cases(path: Path, documents: Sequence[Document]) -> list[AnswerCase]:
    """Read questions about documents from a YAML list of question and answers."""
    try:
        questions = _FILE.validate_python(yaml.safe_load(read_text(path)))
    except (yaml.YAMLError, ValidationError) as error:
        reason = str(error).partition("\n")[0]
        raise OptionError(
            f"{str(path)!r} is no list of questions: {reason}. Give a YAML list of objects with "
            "question, and answers: texts of which one makes an answer right."
        ) from None
    if not questions:
        raise OptionError(f"{str(path)!r} has no questions. Give at least one.")
    return [
        AnswerCase(each.question, tuple(documents), (each.answers,) if each.answers else ())
        for each in questions
    ]

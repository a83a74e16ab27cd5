"""ASQA's questions with their documents, in the format of ALCE's files."""

import gzip
import zlib
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from univerb.errors import DocumentError, OptionError
from univerb.lab.protocols.result_cache import short_hash


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, populate_by_name=True)


class AsqaDocument(_Part):
    """A document that the LM is shown."""

    title: str
    text: str


class SubQuestion(_Part):
    """One meaning of a question, and the short answers that are right for it."""

    question: str
    answers: tuple[str, ...] = Field(alias="short_answers")


class LongAnswer(_Part):
    """A reference answer."""

    text: str = Field(alias="long_answer")


class AsqaQuestion(_Part):
    """A question, the documents that may be cited, and what a good answer says."""

    question: str
    documents: tuple[AsqaDocument, ...] = Field(alias="docs")
    """Numbered from 1 in this order."""
    sub_questions: tuple[SubQuestion, ...] = Field(alias="qa_pairs")
    long_answers: tuple[LongAnswer, ...] = Field(alias="annotations")

    @property
    def key(self) -> str:
        """A hash of what an answer depends on."""
        return short_hash([self.question, [(each.title, each.text) for each in self.documents]])


_FILE = TypeAdapter(list[AsqaQuestion])


def read_questions(
    path: Path,
    limit: int | None = None,
    documents: int | None = 3,
    first: int = 0,
    last: int | None = None,
) -> list[AsqaQuestion]:
    """Read questions from a JSON file, plain or gzipped, each with its first documents, or all.

    The file is a list of objects with question, qa_pairs, annotations and docs. At most `limit`
    questions are read, spread evenly over those from number `first` to number `last`. Raises
    OptionError if the limit is less than 1 or there are no such questions, DocumentError if the
    file is missing, has another format, or has too few documents.
    """
    if limit is not None and limit < 1:
        raise OptionError(f"limit is {limit}; ask at least 1 question.")
    questions = _read(path)
    stop = len(questions) if last is None else min(last + 1, len(questions))
    if not 0 <= first < stop:
        raise OptionError(
            f"{str(path)!r} has questions 0 to {len(questions) - 1}, none of them from {first} on"
            + (f" up to {last}" if last is not None else "")
            + ". Give another range."
        )
    total = stop - first
    count = total if limit is None else min(limit, total)
    chosen = [first + index * total // count for index in range(count)]
    for index in chosen:
        count = len(questions[index].documents)
        if documents is not None and count < documents:
            raise DocumentError(
                f"question {index} of {str(path)!r} has {count} documents; {documents} are to be "
                "shown. Give a file with more, or ask for fewer."
            )
    return [
        question.model_copy(update={"documents": question.documents[:documents]})
        for question in map(questions.__getitem__, chosen)
    ]


def _read(path: Path) -> list[AsqaQuestion]:
    problem = "has no questions"
    try:
        content = path.read_bytes()
        plain = gzip.decompress(content) if path.suffix == ".gz" else content
        if questions := _FILE.validate_json(plain):
            return questions
    except FileNotFoundError:
        problem = "does not exist"
    except (OSError, EOFError, zlib.error) as error:
        problem = f"cannot be read: {error}"
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        problem = f"has no ASQA questions with documents: {where}: {first['msg']}"
    raise DocumentError(
        f"{str(path)!r} {problem}. Give a file in the format of ALCE's asqa_eval_gtr_top100.json."
    )

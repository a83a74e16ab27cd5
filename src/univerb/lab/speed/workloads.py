"""The requests that systems are timed on: prompts, and where their phrases come from.

Nothing here imports torch before it is needed: worker processes read this module.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import TYPE_CHECKING

from univerb.documents.chunks import Chunk
from univerb.documents.read import read_documents
from univerb.errors import DocumentError, OptionError, did_you_mean
from univerb.lab.data import DATA
from univerb.lab.protocols.passages import LAWMT, NATURAL, PREFIX, TEST_SETS, read_passages
from univerb.phrase import Document

if TYPE_CHECKING:
    from univerb.corpus import Corpus
    from univerb.lab.protocols.asqa_questions import AsqaQuestion
    from univerb.modeling.dynamic import DynamicLM

PASSAGES = 3
DEMO = "demo"
_ASQA = "asqa/asqa_200_with_docs.json.gz"
_WARM_UP = "It was the first of its kind, and it was soon followed by others in the same country."


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt, and what its phrases are made of: a corpus that is searched, or passages."""

    workload: str
    name: str
    ids: tuple[int, ...]
    query: str = ""
    """What the corpus is searched for."""
    corpus: str = ""
    """The folder of the corpus, if there is one."""
    passages: tuple[Chunk, ...] = ()

    @property
    def key(self) -> str:
        """Identifies the request in kept results: its name and a hash of its content."""
        content = repr((self.ids, self.query, Path(self.corpus).name, self.passages))
        return f"{self.workload} {self.name} {hashlib.sha256(content.encode()).hexdigest()[:16]}"


@dataclass(frozen=True, slots=True)
class Workload:
    """A kind of request."""

    about: str
    file: str = ""
    """Its prompts, below the data folder; none for the demo."""
    test_set: str = ""
    """The test set that its prompts are prefixes of."""

    @property
    def corpus(self) -> str:
        """The corpus that phrases are retrieved from; empty if they are those of the prompt."""
        return TEST_SETS[self.test_set].corpus if self.test_set else ""


WORKLOADS = {
    "wikitext": Workload(
        f"the first {PREFIX} tokens of WikiText-103 test paragraphs, de-tokenised; phrases of a "
        "Wikipedia corpus",
        TEST_SETS[NATURAL].file,
        NATURAL,
    ),
    "law": Workload(
        f"the first {PREFIX} tokens of LawMT test lines; phrases of a corpus of EU law",
        TEST_SETS[LAWMT].file,
        LAWMT,
    ),
    "answers": Workload(
        f"ASQA questions with {PASSAGES} documents in the prompt; phrases are their n-grams", _ASQA
    ),
    DEMO: Workload(
        f"the first {PREFIX} tokens of the demo documents; phrases are the document's own n-grams"
    ),
}


def choose_workloads(names: Sequence[str], data: Path | None) -> list[str]:
    """Return the workloads to run.

    Args:
        names: Those asked for; none means all that the data allows, or else the demo.
        data: The data folder, if there is one.

    Returns:
        Their names.

    Raises:
        OptionError: If one is unknown.
        DocumentError: If one lacks its data.
    """
    for name in names:
        if name not in WORKLOADS:
            raise OptionError(f"there is no workload {name!r}. {did_you_mean(name, WORKLOADS)}")
        if not _has_data(name, data):
            raise DocumentError(
                f"workload {name!r} needs {WORKLOADS[name].file!r} in the folder with the data. "
                f"Name that folder with --data or {DATA} (`univerb lab data` says where to get the "
                f"file), or run `--workload {DEMO}`, which needs none."
            )
    if names:
        return list(dict.fromkeys(names))
    return [name for name in WORKLOADS if name != DEMO and _has_data(name, data)] or [DEMO]


def _has_data(name: str, data: Path | None) -> bool:
    file = WORKLOADS[name].file
    return not file or (data is not None and (data / file).is_file())


def make_requests(
    lm: "DynamicLM",
    name: str,
    data: Path | None,
    corpus: "Corpus | None",
    limit: int = 8,
    max_tokens: int = 128,
) -> list[Request]:
    """Make the requests of a workload.

    Args:
        lm: Its tokenizer makes the prompts.
        name: The workload.
        data: The data folder.
        corpus: Where phrases are retrieved, for a workload that has a corpus.
        limit: Maximum number of requests.
        max_tokens: Tokens that the context must hold beside the prompt.

    Returns:
        The requests.
    """
    if name == DEMO:
        return _demo_requests(lm, limit)
    assert data is not None
    if corpus is None:
        from univerb.lab.protocols.asqa_questions import read_questions

        questions = read_questions(data / WORKLOADS[name].file, limit, PASSAGES)
        return [_answer_request(lm, question, max_tokens) for question in questions]
    folder = str(corpus.folder.resolve())
    passages = read_passages(WORKLOADS[name].test_set, data, lm.tokenizer, limit).passages
    return [
        Request(name, passage.name, passage.prefix, lm.tokenizer.decode(passage.prefix), folder)
        for passage in passages
    ]


def warm_up_requests(lm: "DynamicLM", requests: Sequence[Request]) -> list[Request]:
    """Return one request for each origin of phrases, none of which is measured."""
    ids = tuple(lm.tokenizer.encode_prompt(_WARM_UP))
    passages = (Chunk("warm-up", 0, _WARM_UP),)
    folders = dict.fromkeys(request.corpus for request in requests)
    return [
        Request("warm-up", folder, ids, _WARM_UP, folder, () if folder else passages)
        for folder in folders
    ]


def demo_documents() -> list[Document]:
    """Read the documents that ship with univerb."""
    with as_file(files("univerb") / "assets" / "demo") as folder:
        return [text for text in read_documents(folder) if not text.name.startswith("README")]


def _demo_requests(lm: "DynamicLM", limit: int) -> list[Request]:
    encoded = [(text, lm.tokenizer.encode_prompt(text.text)) for text in demo_documents()]
    long = [(text, tuple(ids[:PREFIX])) for text, ids in encoded if len(ids) >= PREFIX]
    return [
        Request(DEMO, text.name, ids, passages=(Chunk(text.name, 0, text.text),))
        for text, ids in long[:limit]
    ]


def _answer_request(lm: "DynamicLM", question: "AsqaQuestion", max_tokens: int) -> Request:
    """Make the very prompt that `univerb.answer` makes."""
    from univerb.applications.answer import find_passages, has_chat, passages_prompt

    documents = [
        Document(shown.text, f"{number} {shown.title}")
        for number, shown in enumerate(question.documents, 1)
    ]
    chunks = find_passages(question.question, documents, PASSAGES)
    room = lm.context_size - max_tokens
    ids, passages = passages_prompt(lm, question.question, chunks, room, is_chat=has_chat(lm))
    return Request("answers", question.question, tuple(ids), passages=passages)

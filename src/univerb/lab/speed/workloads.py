"""The requests that systems are timed on: prompts, and the passages that phrases come from.

Passages are retrieved here, before anything is timed, and the plain LM writes each text once: a
request ends where that does, since what would come after the end of an answer is no answer. Nothing
here imports torch before it is needed: worker processes read this module.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.resources import as_file, files
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from univerb.documents.chunks import Chunk, chunked
from univerb.documents.read import read_documents
from univerb.documents.sentences import split_sentences
from univerb.errors import DocumentError, OptionError, did_you_mean
from univerb.lab.data import DATA
from univerb.lab.protocols.passages import is_held_out, is_prose
from univerb.lab.speed.timing import Progress
from univerb.phrase import Document

if TYPE_CHECKING:
    from univerb.modeling.dynamic import DynamicLM

ANSWERED = 3
"""Documents in the prompt of a question."""
DEMO = "demo"
_DEMO_PROMPT, _PROMPT = 32, 64
"""Tokens that a text begins with."""
_MIN_TOKENS = 64
"""Of a summary, however short the article's own first paragraph is."""
_ARTICLE_ROOM = 1024
"""Tokens of a prompt that holds an article: longer articles lose their ends."""
_SHORTEST = 32
"""Tokens of a text that is worth timing: others end too early."""
_REPORTED_ARTICLES = 300
_FIRST_QUESTION, _LAST_QUESTION = 40, 199
"""Others are for development."""
_SENTENCES = 40
"""Of a text's middle that are looked at for prose."""
_SEARCHED = 8_000_000
"""Characters of documents that are searched."""
_ASQA = "asqa/asqa_200_with_docs.json.gz"
_ARTICLES, _OTHER_ARTICLES = "wiki/valid.jsonl.gz", "wiki/train-00.jsonl.gz"
_ACTS = "law/eurlex.jsonl.gz"
_SUMMARISE = "Summarise this article in one paragraph.\n\n"
_MAX_CHARACTERS = 64
"""Of a token: more of a long text need not be tokenised for its beginning."""
Find = Callable[[Document, str], tuple[Chunk, ...]]
"""Returns the passages for a text, of which the LM sees only the prompt."""
Item = TypeVar("Item")
_WARM_UP = "It was the first of its kind, and it was soon followed by others in the same country."


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt, what its phrases are made of, and the number of base tokens to write."""

    workload: str
    name: str
    ids: tuple[int, ...]
    passages: tuple[Chunk, ...]
    max_tokens: int

    @property
    def key(self) -> str:
        """Identifies the request in kept results: its name and a hash of its content."""
        content = repr((self.ids, self.passages, self.max_tokens))
        return f"{self.workload} {self.name} {hashlib.sha256(content.encode()).hexdigest()[:16]}"


@dataclass(frozen=True, slots=True)
class RequestMaker:
    """What requests are made with."""

    lm: "DynamicLM"
    """Its tokenizer and its chat template make the prompts."""
    data: Path
    limit: int
    """Requests of a workload."""
    max_tokens: int
    """Base tokens that a request writes at most."""
    passages: int
    """Passages that are retrieved for a text's beginning."""
    no_repeat_ngram_size: int = 0
    """Of all systems, hence of the plain LM's text, too."""
    middle_words: int = 0
    """Texts to continue begin with so many words of prose from their middle; 0: with their first
    tokens."""


def _open_requests(make: RequestMaker) -> Iterator[Request | None]:
    find = _search(read_documents(make.data / _OTHER_ARTICLES), make.passages)
    articles = _spread(_reported_articles(make), make.limit)
    return map(partial(_continue, make, "open", find), articles)


def _law_requests(make: RequestMaker) -> Iterator[Request | None]:
    acts = read_documents(make.data / _ACTS)
    find = _search((act for act in acts if not is_held_out(act.name)), make.passages)
    held_out = _spread([act for act in acts if is_held_out(act.name)], make.limit)
    return map(partial(_continue, make, "law", find), held_out)


def _demo_requests(make: RequestMaker) -> Iterator[Request | None]:
    request = partial(_continue, make, DEMO, lambda text, _: (_whole(text),), size=_DEMO_PROMPT)
    return map(request, demo_documents())


def _continue(
    make: RequestMaker, workload: str, find: Find, text: Document, size: int = _PROMPT
) -> Request | None:
    """Return a request to go on from a part of a text; None if it has no more."""
    tokenizer = make.lm.tokenizer
    if make.middle_words:
        begin = _middle(text.text, make.middle_words)
        prompt = tuple(tokenizer.encode_prompt(begin)) if begin else ()
    else:
        ids = tokenizer.encode_prompt(text.text[: size * _MAX_CHARACTERS])
        prompt = tuple(ids[:size]) if len(ids) > size else ()
    if not prompt:
        return None
    passages = find(text, tokenizer.decode(prompt))
    return Request(workload, text.name, prompt, passages, make.max_tokens)


def _middle(text: str, words: int) -> str:
    """Return the words from the first sentence of prose in the middle on; empty if none is there.

    They end within a sentence, which an LM has to finish.
    """
    half = text[len(text) // 2 :]
    # The first one is cut.
    for start, _ in islice(split_sentences(half), 1, _SENTENCES):
        found = half[start:].split(maxsplit=words)
        begin = " ".join(found[:words])
        if len(found) > words and is_prose(begin) and begin[-1].isalpha():
            return begin
    return ""


def _answer_requests(make: RequestMaker) -> Iterator[Request]:
    from univerb.applications.passages import find_passages
    from univerb.lab.protocols.asqa_questions import read_questions
    from univerb.lab.protocols.numbered_prompt import numbered_prompt_ids

    room = make.lm.context_size - make.max_tokens
    bounds = {"first": _FIRST_QUESTION, "last": _LAST_QUESTION}
    questions = read_questions(make.data / _ASQA, documents=ANSWERED, **bounds)
    for asked in _spread(questions, make.limit):
        documents = [
            Document(shown.text, f"{number} {shown.title}")
            for number, shown in enumerate(asked.documents, 1)
        ]
        chunks = find_passages(asked.question, documents, ANSWERED)
        ids, passages = numbered_prompt_ids(
            make.lm, asked.question, chunks, room, is_chat=make.lm.has_chat_template
        )
        yield Request("answers", asked.question, tuple(ids), passages, make.max_tokens)


def _summary_requests(make: RequestMaker) -> Iterator[Request]:
    return map(partial(_summary_request, make), _spread(_reported_articles(make), make.limit))


def _summary_request(make: RequestMaker, article: Document) -> Request:
    """Ask for a summary that is as long as the article's own first paragraph."""
    from univerb.applications.prompts import fitted, without_special

    lm = make.lm
    special = [str(token) for token in lm.hf_tokenizer.added_tokens_decoder.values()]
    write = lm.chat_prompt if lm.has_chat_template else lm.tokenizer.encode_prompt

    def encode(shown: Sequence[Chunk]) -> list[int]:
        return write(_SUMMARISE + without_special(shown[0].text, special))

    room = min(_ARTICLE_ROOM, lm.context_size - make.max_tokens)
    ids, passages = fitted([_whole(article)], encode, room)
    first_paragraph = lm.tokenizer.encode(article.text.strip().partition("\n")[0]).ids
    length = min(max(len(first_paragraph), _MIN_TOKENS), make.max_tokens)
    return Request("summaries", article.name, tuple(ids), passages, length)


@dataclass(frozen=True, slots=True)
class Workload:
    """A kind of request."""

    about: str
    make: Callable[[RequestMaker], Iterator[Request | None]]
    """Yields requests as long as texts may be; None for a document that is too short."""
    files: tuple[str, ...] = ()
    """What it reads, below the data folder."""


WORKLOADS = {
    "open": Workload(
        f"the first {_PROMPT} tokens of Wikipedia articles (0-{_REPORTED_ARTICLES - 1} of "
        "wiki/valid); phrases are n-grams of passages of other articles, found by BM25",
        _open_requests,
        (_ARTICLES, _OTHER_ARTICLES),
    ),
    "law": Workload(
        f"the first {_PROMPT} tokens of EU acts; phrases are n-grams of passages of other acts, "
        "found by BM25",
        _law_requests,
        (_ACTS,),
    ),
    "answers": Workload(
        f"ASQA questions ({_FIRST_QUESTION}-{_LAST_QUESTION}) with {ANSWERED} documents in the "
        "prompt, in the chat template, of which the plain LM's answer has "
        f"{_SHORTEST} tokens or more; phrases are the documents' n-grams",
        _answer_requests,
        (_ASQA,),
    ),
    "summaries": Workload(
        f"Wikipedia articles (0-{_REPORTED_ARTICLES - 1} of wiki/valid, cut to prompts of "
        f"{_ARTICLE_ROOM} tokens) to be summarised, in the chat template, at most as long as their "
        f"own first paragraph, or {_MIN_TOKENS} tokens; phrases are the article's n-grams",
        _summary_requests,
        (_ARTICLES,),
    ),
    DEMO: Workload(
        f"the first {_DEMO_PROMPT} tokens of the demo documents; phrases are the document's own "
        "n-grams",
        _demo_requests,
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
        if missing := _missing_files(name, data):
            raise DocumentError(
                f"workload {name!r} needs {missing[0]!r} in the folder with the data. "
                f"Name that folder with --data or {DATA} (`univerb lab data` says where to get the "
                f"file), or run `--workload {DEMO}`, which needs none."
            )
    if names:
        return list(dict.fromkeys(names))
    return [n for n in WORKLOADS if n != DEMO and not _missing_files(n, data)] or [DEMO]


def _missing_files(name: str, data: Path | None) -> list[str]:
    wanted = WORKLOADS[name].files
    return [file for file in wanted if data is None or not (data / file).is_file()]


def make_requests(name: str, make: RequestMaker, progress: Progress | None = None) -> list[Request]:
    """Make the requests of a workload.

    Args:
        name: The workload.
        make: What requests are made with.
        progress: Called after each request.

    Returns:
        Requests that are as long as what the plain LM writes until its text ends.

    Raises:
        DocumentError: If its texts are too short.
    """
    requests: list[Request] = []
    for candidate in filter(None, WORKLOADS[name].make(make)):
        if request := _until_its_end(make, candidate):
            requests.append(request)
            if progress:
                progress(f"requests ({name})", len(requests), make.limit)
        if len(requests) == make.limit:
            break
    if progress and requests:
        progress(f"requests ({name})", len(requests), len(requests))
    if not requests:
        raise DocumentError(
            f"workload {name!r} has no prompt of more than {_PROMPT} tokens after which the plain "
            f"LM writes {min(_SHORTEST, make.max_tokens)} tokens."
        )
    return requests


def _until_its_end(make: RequestMaker, request: Request) -> Request | None:
    """Shorten a request to what the plain LM writes; None if that is too short to be timed."""
    from univerb.decoding.loop import generate

    text = generate(
        make.lm,
        request.ids,
        max_tokens=request.max_tokens,
        no_repeat_ngram_size=make.no_repeat_ngram_size,
    )
    if text.stats.base_tokens < min(_SHORTEST, make.max_tokens):
        return None
    return replace(request, max_tokens=text.stats.base_tokens)


def warm_up_request(lm: "DynamicLM") -> Request:
    """Return a request that is not measured."""
    ids = tuple(lm.tokenizer.encode_prompt(_WARM_UP))
    return Request("warm-up", "", ids, (Chunk("warm-up", 0, _WARM_UP),), max_tokens=8)


def demo_documents() -> list[Document]:
    """Read the documents that ship with univerb."""
    with as_file(files("univerb") / "assets" / "demo") as folder:
        return [text for text in read_documents(folder) if not text.name.startswith("README")]


def _reported_articles(make: RequestMaker) -> list[Document]:
    return read_documents(make.data / _ARTICLES)[:_REPORTED_ARTICLES]


def _whole(text: Document) -> Chunk:
    return Chunk(text.name, 0, text.text)


def _spread(items: Sequence[Item], limit: int) -> list[Item]:
    """Return the items, first `limit` that are spread evenly over all of them."""
    step = max(len(items) // limit, 1)
    # Behind the evenly spaced ones, the others: some are too short.
    return [item for begin in range(step) for item in items[begin::step]]


def _search(texts: Iterable[Document], count: int) -> Find:
    """Return what finds the passages of texts that are nearest to a query."""
    from univerb.retrieval.methods import ChunkIndex

    searched, characters = [], 0
    for text in texts:
        if characters >= _SEARCHED:
            break
        searched.append(text)
        characters += len(text.text)
    index = ChunkIndex([chunk for text in searched for chunk in chunked(text)])
    return lambda _, query: tuple(hit.chunk for hit in index.search(query, count))

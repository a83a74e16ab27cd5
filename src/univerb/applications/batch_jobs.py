"""Batch jobs: a file of requests in, a file of answers out, by any number of workers."""

import dataclasses
import hashlib
import json
import logging
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from univerb._version import __version__
from univerb.applications.batch_requests import (
    ChatBody,
    CompletionBody,
    Line,
    answer,
    parse,
    read_lines,
    refusal,
)
from univerb.applications.context import in_context, message_in_context
from univerb.applications.corpus_profile import profile_options, read_profile
from univerb.applications.passages import find_passages
from univerb.config import GenerationConfig
from univerb.documents.read import read_documents
from univerb.errors import CorpusError, OptionError, PromptError, UniverbError, first_line
from univerb.files import JsonLines
from univerb.locations import DEFAULT_MODEL
from univerb.parallel import Workers
from univerb.phrase import Document
from univerb.phrases.collection import PhraseItem

if TYPE_CHECKING:
    from univerb.corpus import Corpus
    from univerb.modeling.phrase_model import PhraseModel
    from univerb.vocabulary import DynamicVocabulary

_log = logging.getLogger(__name__)
_MOST = 1024
_MOST_BYTES = 512 << 20
_PASSAGES = 32
"""How many passages of a corpus a prompt gets its phrases from, as in the paper."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSettings:
    """What all requests of a job have in common. Any process can make the same model of it."""

    model: str = DEFAULT_MODEL
    """A folder, a Hub id, or the default; a request that names a model must name this one."""
    device: str = "cpu"
    dtype: str = "float32"
    docs: tuple[str, ...] = ()
    """Files and folders whose phrases serve every request that has none of its own."""
    corpus: str | None = None
    """A corpus whose nearest passages do so instead."""
    decoding: GenerationConfig = GenerationConfig()
    """What holds for whatever a request leaves open."""
    batch_size: int = 8
    """How many requests are decoded together."""
    threads: int = 1
    """Of each worker. Which requests share a pass, and how many threads share a sum, can turn
    its last bit and with it a choice between equals: so both are settled for the whole job."""

    def __post_init__(self) -> None:
        for name in ("batch_size", "threads"):
            if not 1 <= getattr(self, name) <= _MOST:
                raise OptionError(f"{name} is {getattr(self, name)}; give 1 to {_MOST}.")

    def fingerprint(self) -> str:
        """Return a hash of everything that answers depend on, the documents' texts included."""
        documents = read_documents(*self.docs) if self.docs else []
        known: dict[str, Any] = dataclasses.asdict(self) | {
            "univerb": __version__,
            "decoding": self.decoding.model_dump(mode="json", exclude_unset=True),
            "docs": [(document.name, document.text) for document in documents],
        }
        if self.corpus:
            from univerb.corpus import open_corpus

            opened = open_corpus(self.corpus)
            known["corpus"] = opened.manifest.model_dump_json()
            known["profile"] = str(read_profile(opened))
        return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()


class Summary(NamedTuple):
    """What became of a job."""

    requests: int
    refused: int
    """How many lines are answered with an error."""
    resumed: int
    """How many were there already from an earlier run."""
    failed: int
    """How many of the errors are no fault of the line; the log says more."""


def run_batch(
    source: Path,
    output: Path,
    settings: BatchSettings,
    workers: Workers,
    *,
    restart: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Summary:
    """Answer every line of a batch file, in order; a job that was stopped goes on where it was.

    The answers do not depend on `workers`, which are inside their `with` statement. `restart`
    drops an earlier run and replaces an output that exists. `progress` is called with the number
    of lines that are done, and of all.
    """
    report = progress or (lambda done, total: None)
    if source.resolve() == output.resolve():
        raise OptionError(f"{str(output)!r} is the input too. Write the answers elsewhere.")
    if output.is_dir():
        raise OptionError(f"{str(output)!r} is a folder. Name a file for the answers.")
    data = _read(source)
    lines = read_lines(data, str(source))
    header = {
        "univerb_batch": 1,
        "input": hashlib.sha256(data).hexdigest(),
        "settings": settings.fingerprint(),
    }
    partial = output.with_name(f"{output.name}.partial")
    if output.exists() and not partial.exists() and not restart:
        raise OptionError(
            f"{str(output)!r} exists. Name another output, or replace it with restart=True."
        )
    with _writing(output):
        rows = JsonLines(partial, header, restart=restart)
    with rows:
        resumed = done = _finished(rows, lines, settings.batch_size)
        report(done, len(lines))
        size = settings.batch_size
        starts = range(done, len(lines), size)
        groups = [Group(settings, tuple(lines[at : at + size])) for at in starts]
        for answers in workers.map(answer_group, groups):
            with _writing(output):
                rows.append(*answers)
            done += len(answers)
            report(done, len(lines))
        statuses = Counter(row["response"]["status_code"] for row in rows)
        with _writing(output):
            rows.publish(output)
    return Summary(len(lines), len(lines) - statuses[200], resumed, statuses[500])


def _finished(rows: JsonLines, lines: Sequence[Line], batch_size: int) -> int:
    """Drop what an earlier run left of a group that it did not finish; return what remains."""
    pairs = zip(rows, lines, strict=False)
    count = sum(1 for _ in takewhile(lambda pair: pair[0].get("id") == pair[1].id, pairs))
    if count < len(lines):
        count -= count % batch_size
    rows.truncate(count)
    return count


@contextmanager
def _writing(output: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UniverbError(
            f"{str(output)!r} cannot be written: {error.strerror or error}. Correct that or name "
            "another output, and run it again: what is done stays done."
        ) from error


@dataclass(frozen=True, slots=True)
class Group:
    """Lines that one worker answers at a time."""

    settings: BatchSettings
    lines: tuple[Line, ...]


@dataclass(frozen=True, slots=True)
class _Request:
    """A request that can be answered."""

    line: Line
    body: CompletionBody | ChatBody
    prompt: list[int]
    decoding: GenerationConfig
    phrases: "_Phrases"


class _Phrases(NamedTuple):
    """A vocabulary, what was said when it was made, and the documents that it is from."""

    vocabulary: "DynamicVocabulary | None"
    notes: tuple[str, ...]
    documents: tuple[Document, ...] = ()


def answer_group(group: Group) -> list[dict[str, Any]]:
    """Answer some lines; returns the rows of the output."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(group.settings.threads)
    try:
        return _answer(group)
    finally:
        torch.set_num_threads(threads)


def _answer(group: Group) -> list[dict[str, Any]]:
    """Answer some lines, those with equal options together."""
    settings = group.settings
    # What goes wrong here is no fault of a line: it ends the job.
    lm = _load(settings.model, settings.device, settings.dtype)
    shared = _shared(settings)
    answers: dict[int, dict[str, Any]] = {}
    alike: dict[frozenset[Any], list[_Request]] = {}
    for line in group.lines:
        try:
            request = _prepare(settings, lm, line, shared)
            alike.setdefault(frozenset(request.decoding.options().items()), []).append(request)
        except CorpusError:
            raise  # the corpus is broken, whatever the line
        except Exception as error:
            answers[line.number] = _failure(line, error)
    for requests in alike.values():
        answers |= _decode(settings, lm, requests)
    return [answers[line.number] for line in group.lines]


def _decode(
    settings: BatchSettings, lm: "PhraseModel", requests: Sequence[_Request]
) -> dict[int, dict[str, Any]]:
    """Answer requests with equal options together or, if that fails, one by one."""
    from univerb.decoding.loop import batch

    # What other requests had in common with these must not show, not even in the last bit.
    options = requests[0].decoding.options() | {"prefix_cache": False}
    prompts = [request.prompt for request in requests]
    vocabularies = [request.phrases.vocabulary for request in requests]
    try:
        results = batch(lm, prompts, vocabularies, **options)
        return {
            one.line.number: answer(one.line, one.body, result, settings.model, one.phrases.notes)
            for one, result in zip(requests, results, strict=True)
        }
    except CorpusError:
        raise
    except Exception as error:
        if len(requests) == 1:
            return {requests[0].line.number: _failure(requests[0].line, error)}
    # One of them is to blame, and the others shall not notice.
    return {n: row for one in requests for n, row in _decode(settings, lm, [one]).items()}


def _failure(line: Line, error: Exception) -> dict[str, Any]:
    """Return the row for a line that cannot be answered; what is no fault of it is logged."""
    if not isinstance(error, UniverbError):
        reason = f"{type(error).__name__}: {first_line(error)}"
        # Quoted: a terminal may show the log.
        _log.error("line %d (%r) cannot be answered: %r", line.number, line.custom_id, reason)
        _log.debug("where it failed:", exc_info=error)
    return refusal(line, error)


def _prepare(
    settings: BatchSettings, lm: "PhraseModel", line: Line, shared: "_Phrases | Corpus"
) -> _Request:
    from univerb.decoding.loop import prompt_ids

    body, options = parse(line, settings.model)
    decoding = settings.decoding.replaced(options.options())
    mode = decoding.resolved(lm.profile).mode
    query = _message(body) if isinstance(body, ChatBody) else body.prompt
    # Not all ids can be decoded: they are checked first.
    text = query if isinstance(query, str) else lm.tokenizer.decode(prompt_ids(lm, query, decoding))
    documents: Sequence[Document] | Corpus
    if items := body.items():
        phrases = _collect(settings, items)
        documents = phrases.documents
    elif isinstance(shared, _Phrases):
        phrases = shared
        documents = phrases.documents
    else:
        phrases = _Phrases(shared.vocabulary(lm, text, k=_PASSAGES), ())
        documents = shared
        decoding = decoding.filled(_calibration(settings, mode))
    passages = find_passages(text, documents, body.context) if documents and body.context else ()
    if isinstance(body, ChatBody):
        asked = message_in_context(lm, text, passages, _system(body), decoding.max_tokens)
    else:
        asked = in_context(lm, body.prompt, passages, decoding.max_tokens)
    prompt = prompt_ids(lm, asked.ids, decoding)
    return _Request(line, body, prompt, asked.configured(decoding), phrases)


def _message(body: ChatBody) -> str:
    roles = [message.role for message in body.messages]
    if roles not in (["user"], ["system", "user"]):
        raise PromptError(
            f"body.messages has the roles {roles}. Give one user message, with or without a system "
            "message before it."
        )
    return body.messages[-1].content


def _system(body: ChatBody) -> str | None:
    return body.messages[0].content if len(body.messages) > 1 else None


@lru_cache(maxsize=1)
def _load(model: str, device: str, dtype: str) -> "PhraseModel":
    """Load the model, once in each process."""
    from univerb.loading import load

    return load(model, device=device, dtype=dtype)


@lru_cache(maxsize=1)
def _shared(settings: BatchSettings) -> "_Phrases | Corpus":
    """Return the phrases for requests that have none, once in each process."""
    if settings.corpus:
        from univerb.corpus import open_corpus

        corpus = open_corpus(settings.corpus)
        if corpus.has_vectors:
            _load(settings.model, settings.device, settings.dtype).attach(corpus)
        return corpus
    if not settings.docs:
        return _Phrases(None, ())
    return _collect(settings, tuple(read_documents(*settings.docs)))


@lru_cache(maxsize=8)
def _calibration(settings: BatchSettings, mode: str) -> dict[str, Any]:
    """Return what calibration chose for the corpus, read once in each process."""
    lm, corpus = _load(settings.model, settings.device, settings.dtype), _shared(settings)
    assert not isinstance(corpus, _Phrases)
    return profile_options(corpus, lm.fingerprint(), mode)


@lru_cache(maxsize=8)
def _collect(settings: BatchSettings, items: tuple[PhraseItem, ...]) -> _Phrases:
    """Make a vocabulary; requests often come with the same documents."""
    lm = _load(settings.model, settings.device, settings.dtype)
    with warnings.catch_warnings(record=True) as raised:
        # A user reads the answers, not the errors of some worker.
        warnings.simplefilter("always")
        vocabulary = lm.vocabulary(items)
    documents = tuple(item for item in items if isinstance(item, Document))
    return _Phrases(vocabulary, tuple(str(warning.message) for warning in raised), documents)


def _read(source: Path) -> bytes:
    try:
        if source.stat().st_size > _MOST_BYTES:  # it is held in memory
            raise OptionError(f"{str(source)!r} is larger than 512 MiB. Split it.")
        return source.read_bytes()
    except OSError as error:
        raise OptionError(
            f"{str(source)!r} cannot be read: {error.strerror or error}. Give a JSONL file."
        ) from error

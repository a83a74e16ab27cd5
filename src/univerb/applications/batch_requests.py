"""The lines of a batch file: what each may ask, and how it is answered (OpenAI's batch format).

Every answer is a function of its line and the job's settings alone: ids are made from `custom_id`,
`created` is 0, and what only a clock or a processor decides (seconds, log-probabilities down to
their last digit) is left out. So a job gives the same bytes however often it is stopped.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    TypeAdapter,
    ValidationError,
)

from univerb.applications.context import DEFAULT_CONTEXT
from univerb.config import REQUEST_OPTIONS, GenerationConfig, Texts, check_names, describe
from univerb.decoding.results import Generation
from univerb.errors import DocumentError, OptionError, UniverbError, did_you_mean
from univerb.phrase import Document
from univerb.phrases.collection import PhraseItem

UNSUPPORTED: dict[str, Any] = {
    **dict.fromkeys(("audio", "function_call", "functions", "logit_bias", "parallel_tool_calls")),
    **dict.fromkeys(("prediction", "reasoning_effort", "stream_options", "suffix", "tool_choice")),
    **dict.fromkeys(("tools", "top_logprobs")),
    "best_of": 1,
    "echo": False,
    "frequency_penalty": 0,
    "logprobs": False,
    "modalities": ["text"],
    "n": 1,
    "presence_penalty": 0,
    "response_format": {"type": "text"},
    "stream": False,
}
"""OpenAI's fields that are not supported, each with a value that asks for nothing."""

MAX_TOKENS_IN_CHATS = "max_completion_tokens"
"""OpenAI's name for max_tokens in chats by now."""

Name = Annotated[str, StringConstraints(min_length=1, max_length=512)]
Text = Annotated[str, StringConstraints(max_length=1_000_000)]
PhraseText = Annotated[str, StringConstraints(min_length=1, max_length=512)]

_Model = TypeVar("_Model", bound=BaseModel)


def _few_and_short(texts: tuple[str, ...]) -> tuple[str, ...]:
    if len(texts) > 8 or any(len(text) > 128 for text in texts):
        raise ValueError("give at most 8 texts of at most 128 characters")
    return texts


class RequestOptions(GenerationConfig):
    """What a request says about decoding, within the limits of requests."""

    max_tokens: int = Field(default=128, ge=1, le=32768)
    stop: Annotated[Texts, AfterValidator(_few_and_short)] = ()
    ban: Annotated[Texts, AfterValidator(_few_and_short)] = ()
    prefer: Annotated[Texts, AfterValidator(_few_and_short)] = ()
    require: Annotated[Texts, AfterValidator(_few_and_short)] = ()


class _Wire(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")


class DocumentBody(_Wire):
    """A document that comes with a request."""

    text: Text
    name: Name | None = None


class Message(_Wire):
    """A turn of a chat."""

    role: Literal["system", "user"]
    content: Text


class Body(_Wire):
    """What every request may say besides `REQUEST_OPTIONS`."""

    model: Name | None = None
    phrases: list[PhraseText] = Field(default=[], max_length=4096)
    documents: list[Text | DocumentBody] = Field(default=[], max_length=64)
    context: int = Field(default=DEFAULT_CONTEXT, ge=0, le=64)
    """Passages of the request's documents, or of the job's, to show the LM."""
    user: Name | None = None

    def items(self) -> tuple[PhraseItem, ...]:
        """Return the request's phrases and documents, whose names must differ."""
        documents: dict[str, Document] = {}
        for number, document in enumerate(self.documents, 1):
            body = DocumentBody(text=document) if isinstance(document, str) else document
            name = body.name or f"document-{number}"
            if name in documents:
                raise DocumentError(f"two documents are named {name!r}. Give each its own name.")
            documents[name] = Document(body.text, name)
        return (*self.phrases, *documents.values())


class CompletionBody(Body):
    """A text to continue."""

    prompt: Text | Annotated[list[Annotated[int, Field(ge=0)]], Field(max_length=1_000_000)]


class ChatBody(Body):
    """A user's message, with or without a system message before it."""

    messages: list[Message] = Field(max_length=2)


class RequestLine(_Wire):
    """The outside of a line."""

    custom_id: Name
    method: Literal["POST"]
    url: str
    body: dict[str, Any]


BODIES: dict[str, type[CompletionBody] | type[ChatBody]] = {
    "/v1/completions": CompletionBody,
    "/v1/chat/completions": ChatBody,
}
"""What can be asked for, by url."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the input."""

    number: int
    """Counted from 1, empty lines too."""
    text: str
    custom_id: str | None
    """None if it has none that can be returned."""
    problem: str | None = None
    """Why it need not be looked at any further."""

    @property
    def id(self) -> str:
        """The answer's id."""
        return f"batch_req_{self.digest}"

    @property
    def digest(self) -> str:
        """What all ids are made of: `custom_id`, or the line's number where that is not enough."""
        is_unique = self.custom_id is not None and not self.problem
        key = f"custom_id {self.custom_id}" if is_unique else f"line {self.number}"
        return hashlib.sha256(key.encode()).hexdigest()[:24]


def read_lines(data: bytes, name: str) -> list[Line]:
    """Return the lines of the batch file `name`, without empty ones; some must be JSON objects."""
    raw = data.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    lines = list(_numbered((n, line) for n, line in enumerate(raw, 1) if line.strip()))
    if not any(line.text for line in lines):
        raise OptionError(
            f"{name!r} is not a batch file: no line of it is a JSON object. Put one request on "
            'each line: {"custom_id": "1", "method": "POST", "url": "/v1/completions", "body": …}'
        )
    return lines


def _numbered(raw: Iterable[tuple[int, bytes]]) -> Iterator[Line]:
    seen: dict[str, int] = {}
    for number, line in raw:
        try:
            value = json.loads(line.decode("utf-8"))
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            yield Line(number, "", None, f"line {number} is not a JSON object in UTF-8. Correct it")
            continue
        custom_id = _echo(value.get("custom_id"))
        first = seen.setdefault(custom_id, number) if custom_id else number
        problem = f"custom_id {custom_id!r} is that of line {first} too. Give each its own"
        yield Line(number, line.decode("utf-8"), custom_id, problem if first < number else None)


def _echo(custom_id: object) -> str | None:
    try:
        return TypeAdapter(Name).validate_python(custom_id, strict=True)
    except ValidationError:
        return None


def parse(line: Line, model: str) -> tuple[CompletionBody | ChatBody, RequestOptions]:
    """Read what a line asks of the job's model; OptionError if anything in it is wrong."""
    if line.problem:
        raise OptionError(f"{line.problem}.")
    value = json.loads(line.text)
    check_names(value, RequestLine.model_fields, "the line has the unknown field {!r}.")
    outside = _validated(RequestLine, value, "")
    if outside.url not in BODIES:
        raise OptionError(f"url is {outside.url[:80]!r}. {did_you_mean(outside.url[:80], BODIES)}")
    kind = BODIES[outside.url]
    asked = {name: field for name, field in outside.body.items() if not _asks_nothing(name, field)}
    chat_names = (MAX_TOKENS_IN_CHATS,) if kind is ChatBody else ()
    allowed = dict.fromkeys((*kind.model_fields, *REQUEST_OPTIONS, *chat_names))
    check_names(asked, allowed, "body has the unknown field {!r}.")
    # null is as good as not there.
    fields = {name: field for name, field in asked.items() if field is not None}
    if MAX_TOKENS_IN_CHATS in fields:
        fields.setdefault("max_tokens", fields.pop(MAX_TOKENS_IN_CHATS))
    options = _options({name: fields.pop(name) for name in REQUEST_OPTIONS if name in fields})
    body = _validated(kind, fields, "body.")
    if body.model not in (None, model):
        raise OptionError(
            f"body.model is {body.model!r}; this job runs {model!r}. Leave it out, or run a job "
            "for each model."
        )
    return body, options


def _options(fields: dict[str, Any]) -> RequestOptions:
    if isinstance(fields.get("stop"), str):
        fields["stop"] = [fields["stop"]]
    try:
        return RequestOptions(**fields)
    except OptionError as error:
        raise OptionError(f"body.{error}") from None


def answer(
    line: Line, body: Body, result: Generation, model: str, notes: Sequence[str]
) -> dict[str, Any]:
    """Return the row of the output for a generation; `notes` are about the request's phrases."""
    is_chat = isinstance(body, ChatBody)
    message = {"message": {"role": "assistant", "content": result.text}}
    choice = {
        "index": 0,
        **(message if is_chat else {"text": result.text}),
        "logprobs": None,
        "finish_reason": "length" if result.finish_reason == "length" else "stop",
    }
    stats = result.stats.to_dict()
    del stats["seconds"]
    pieces = [piece.to_dict() for piece in result.pieces]
    for piece in pieces:
        del piece["logprob"]
    read, wrote = result.stats.prompt_tokens, result.stats.base_tokens
    content = {
        "id": f"{'chatcmpl' if is_chat else 'cmpl'}-{line.digest}",
        "object": "chat.completion" if is_chat else "text_completion",
        "created": 0,
        "model": model,
        "choices": [choice],
        "usage": {
            "prompt_tokens": read,
            "completion_tokens": wrote,
            "total_tokens": read + wrote,
        },
        "univerb": {
            "pieces": pieces,
            "stats": stats,
            "notes": list(notes),
            "missing_terms": list(result.missing_terms),
        },
    }
    return _row(line, 200, content)


def refusal(line: Line, error: Exception) -> dict[str, Any]:
    """Return the row of the output for a line that cannot be answered."""
    status, kind, message = 400, "invalid_request_error", str(error)
    if not isinstance(error, UniverbError):
        # What went wrong inside is not for whoever asked.
        status, kind = 500, "server_error"
        message = "this request could not be answered. The log of the job says why."
    details = {"message": message, "type": kind, "param": None, "code": None}
    return _row(line, status, {"error": details})


def _row(line: Line, status: int, body: dict[str, Any]) -> dict[str, Any]:
    response = {"status_code": status, "request_id": f"req_{line.digest}", "body": body}
    return {"id": line.id, "custom_id": line.custom_id, "response": response, "error": None}


def _asks_nothing(name: str, value: object) -> bool:
    """Tell whether an OpenAI field that is not supported has the value that changes nothing."""
    if name not in UNSUPPORTED or value is None or value == UNSUPPORTED[name]:
        return name in UNSUPPORTED
    raise OptionError(
        f"body.{name} is an OpenAI field that univerb does not support. Leave it out."
    )


def _validated(kind: type[_Model], value: object, prefix: str) -> _Model:
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        raise OptionError(f"{describe(error, kind, prefix)} Correct it.") from None

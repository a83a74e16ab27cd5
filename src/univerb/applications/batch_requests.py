"""The lines of a batch file: what each may ask, and how it is answered (OpenAI's batch format).

Every answer is a function of its line and the job's settings alone: ids are made from `custom_id`,
`created` is 0, and what only a clock or a processor decides (seconds, log-probabilities down to
their last digit) is left out. So a job gives the same bytes however often it is stopped.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import (
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    TypeAdapter,
    ValidationError,
)

from univerb.config import Mode
from univerb.decoding.results import Generation
from univerb.errors import DocumentError, OptionError, UniverbError, did_you_mean
from univerb.phrase import Document
from univerb.phrases.collection import PhraseItem

UNSUPPORTED: dict[str, Any] = {
    "audio": None,
    "best_of": 1,
    "echo": False,
    "frequency_penalty": 0,
    "function_call": None,
    "functions": None,
    "logit_bias": None,
    "logprobs": False,
    "modalities": ["text"],
    "n": 1,
    "parallel_tool_calls": None,
    "prediction": None,
    "presence_penalty": 0,
    "reasoning_effort": None,
    "response_format": {"type": "text"},
    "stream": False,
    "stream_options": None,
    "suffix": None,
    "tool_choice": None,
    "tools": None,
    "top_logprobs": None,
}
"""OpenAI's fields that are not supported, each with a value that asks for nothing."""

Name = Annotated[str, StringConstraints(min_length=1, max_length=512)]
Text = Annotated[str, StringConstraints(max_length=1_000_000)]
Stop = Annotated[str, StringConstraints(min_length=1, max_length=128)]
PhraseText = Annotated[str, StringConstraints(min_length=1, max_length=512)]


_Model = TypeVar("_Model", bound=BaseModel)


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
    """What every request may say; what it leaves open is as the job's options are."""

    other_names: ClassVar[tuple[str, ...]] = ()
    model: Name | None = None
    max_tokens: int | None = Field(default=None, ge=1, le=32768)
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    stop: Stop | Annotated[list[Stop], Field(max_length=8)] | None = None
    ban: Annotated[list[Stop], Field(max_length=8)] | None = None
    mode: Mode | None = None
    tolerance: float | None = None
    phrase_bias: float | None = None
    no_repeat_ngram_size: int | None = None
    ignore_eos: bool | None = None
    truncate: Literal["left"] | None = None
    phrases: list[PhraseText] = Field(default=[], max_length=4096)
    documents: list[Text | DocumentBody] = Field(default=[], max_length=64)
    user: Name | None = None

    def options(self) -> dict[str, Any]:
        """Return what is said about decoding, as `GenerationConfig` names it."""
        other = {"model", "phrases", "documents", "user", "prompt", "messages"}
        given = self.model_dump(exclude=other, exclude_none=True)
        if "stop" in given:
            given["stop"] = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        if "ban" in given:
            given["ban"] = tuple(self.ban or ())
        if self.mode == "verify":
            # The job's tolerance is not meant for it.
            given.setdefault("tolerance", None)
        return given

    def items(self) -> tuple[PhraseItem, ...]:
        """Return what the request's own phrases are made from.

        Returns:
            Its phrases and documents.

        Raises:
            DocumentError: If two documents have the same name.
        """
        documents: list[Document] = []
        for number, given in enumerate(self.documents, 1):
            text, name = (given, None) if isinstance(given, str) else (given.text, given.name)
            documents.append(Document(text, name or f"document-{number}"))
        names = [document.name for document in documents]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise DocumentError(f"two documents are named {twice!r}. Give each its own name.")
        return (*self.phrases, *documents)


class CompletionBody(Body):
    """A text to continue."""

    prompt: Text | Annotated[list[Annotated[int, Field(ge=0)]], Field(max_length=1_000_000)]


class ChatBody(Body):
    """A user's message, with or without a system message before it."""

    # OpenAI's name for it in chats by now.
    other_names: ClassVar[tuple[str, ...]] = ("max_completion_tokens",)
    max_tokens: int | None = Field(
        default=None,
        ge=1,
        le=32768,
        validation_alias=AliasChoices("max_tokens", "max_completion_tokens"),
    )
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
    """If it has one that can be given back."""
    problem: str | None = None
    """Why it need not be looked at any further."""

    @property
    def id(self) -> str:
        """The answer's id."""
        return f"batch_req_{self.digest}"

    @property
    def digest(self) -> str:
        """What all ids are made of: `custom_id`, or the line's number where that is not enough."""
        own = None if self.problem else self.custom_id
        key = f"line {self.number}" if own is None else f"custom_id {own}"
        return hashlib.sha256(key.encode()).hexdigest()[:24]


def read_lines(data: bytes, name: str) -> list[Line]:
    """Split a batch file into its lines, noting those that cannot be requests.

    Args:
        data: The file.
        name: How errors call it.

    Returns:
        The lines that are not empty.

    Raises:
        OptionError: If none of them is a JSON object.
    """
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


def parse(line: Line, model: str) -> CompletionBody | ChatBody:
    """Read what a line asks for.

    Args:
        line: The line.
        model: The name of the job's model.

    Returns:
        Its body, checked.

    Raises:
        OptionError: If the line, or anything in it, is not as it should be.
    """
    if line.problem:
        raise OptionError(f"{line.problem}.")
    value = json.loads(line.text)
    _check_names(value, RequestLine.model_fields, "the line")
    outside = _validated(RequestLine, value, "")
    if outside.url not in BODIES:
        raise OptionError(f"url is {outside.url[:80]!r}. {did_you_mean(outside.url[:80], BODIES)}")
    kind = BODIES[outside.url]
    asked = {name: given for name, given in outside.body.items() if not _asks_nothing(name, given)}
    _check_names(asked, [*kind.model_fields, *kind.other_names], "body")
    # null is as good as not there.
    said = {name: given for name, given in asked.items() if given is not None}
    body = _validated(kind, said, "body.")
    if body.model not in (None, model):
        raise OptionError(
            f"body.model is {body.model!r}; this job runs {model!r}. Leave it out, or run a job "
            "for each model."
        )
    return body


def answer(line: Line, body: Body, result: Generation, model: str, notes: Sequence[str]) -> str:
    """Write the answer to a request.

    Args:
        line: The request's line.
        body: What it asked for.
        result: What was generated.
        model: The name of the job's model.
        notes: What the user should know about the request's phrases.

    Returns:
        A line of the output, without its end.
    """
    is_chat = isinstance(body, ChatBody)
    written = {"message": {"role": "assistant", "content": result.text}}
    choice = {
        "index": 0,
        **(written if is_chat else {"text": result.text}),
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
        "univerb": {"pieces": pieces, "stats": stats, "notes": list(notes)},
    }
    return _written(line, 200, content)


def refusal(line: Line, error: UniverbError) -> str:
    """Write the answer to a line that cannot be answered; without its end."""
    details = {"message": str(error), "type": "invalid_request_error", "param": None, "code": None}
    return _written(line, 400, {"error": details})


def _written(line: Line, status: int, body: dict[str, Any]) -> str:
    response = {"status_code": status, "request_id": f"req_{line.digest}", "body": body}
    whole = {
        "id": line.id,
        "custom_id": line.custom_id,
        "response": response,
        "error": None,
    }
    return json.dumps(whole, ensure_ascii=False)


def _asks_nothing(name: str, value: object) -> bool:
    """Tell whether an OpenAI field that is not supported has the value that changes nothing."""
    if name not in UNSUPPORTED or value is None or value == UNSUPPORTED[name]:
        return name in UNSUPPORTED
    raise OptionError(
        f"body.{name} is an OpenAI field that univerb does not support. Leave it out."
    )


def _check_names(given: Iterable[str], allowed: Iterable[str], where: str) -> None:
    names = list(allowed)
    for name in given:
        if name not in names:
            hint = did_you_mean(name[:80], names)
            raise OptionError(f"{where} has the unknown field {name[:80]!r}. {hint}")


def _validated(kind: type[_Model], value: object, where: str) -> _Model:
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        # A field with several types has an error for each.
        every = error.errors(include_url=False, include_input=False)
        field = every[0]["loc"][0]
        reasons = dict.fromkeys(one["msg"] for one in every if one["loc"][0] == field)
        raise OptionError(f"{where}{field}: {', or '.join(reasons)}. Correct it.") from None

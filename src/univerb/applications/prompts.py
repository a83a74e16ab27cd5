"""What is shown to an LM: passages, and a question or a text to continue."""

import bisect
import re
from collections.abc import Callable, Iterable, Sequence

from univerb.documents.chunks import Chunk
from univerb.errors import PromptError
from univerb.modeling.phrase_model import PhraseModel

_FILE_ENDING = re.compile(r"\.[A-Za-z][A-Za-z0-9]{0,5}(?=#|\Z)")


def question_prompt(question: str, passages: Sequence[Chunk]) -> str:
    """Write passages and a question as a prompt that an answer continues."""
    text = " ".join(one_line(passage.text) for passage in passages)
    return f"Text: {text}\n\nQuestion: {one_line(question)}\nAnswer:"


def write_prompt(lm: PhraseModel, text: str, is_chat: bool | None = None) -> list[int]:
    """Return a prompt's ids in the LM's own format: its chat template, if it has one.

    What looks like a special token in the text is plain text.
    """
    plain = without_special(text, lm.tokenizer.added_texts)
    is_chat = lm.has_chat_template if is_chat is None else is_chat
    return lm.chat_prompt(plain) if is_chat else lm.tokenizer.encode_prompt(plain)


def title_of(document: str) -> str:
    """Return a document's name as the LM reads it: on one line, without a file's ending."""
    return one_line(_FILE_ENDING.sub("", document).replace("#", " "))


def one_line(text: str) -> str:
    """Return a text with single spaces for all white space."""
    return " ".join(text.split())


def without_special(text: str, special: Iterable[str]) -> str:
    """Spell special tokens with a space, so that no document can end a turn or begin one."""
    for token in sorted(special, key=len, reverse=True):
        text = text.replace(token, f"{token[:1]} {token[1:]}" if len(token) > 1 else " ")
    return text


def fitted(
    passages: Sequence[Chunk], encode: Callable[[Sequence[Chunk]], list[int]], room: int
) -> tuple[list[int], tuple[Chunk, ...]]:
    """Shorten passages from their ends, the longest first, until their prompt fits in `room`.

    `encode` makes the prompt's ids of passages. Returns the ids, and the passages as shortened.
    """
    ids = encode(passages)
    if len(ids) <= room:
        return ids, tuple(passages)
    # Each takes as much as the longest may have: that shortens the longest first.
    lengths = range(1, max((len(passage.text) for passage in passages), default=0) + 1)
    fitting = bisect.bisect_right(
        lengths, room, key=lambda length: len(encode(_shortened(passages, length)))
    )
    if not fitting:
        raise PromptError(
            f"the question and its instruction do not fit: the context leaves {room} tokens beside "
            "max_tokens. Ask a shorter question, or lower max_tokens."
        )
    short = _shortened(passages, fitting)
    return encode(short), short


def _shortened(passages: Sequence[Chunk], length: int) -> tuple[Chunk, ...]:
    return tuple(
        Chunk(passage.document, passage.start, _beginning(passage.text, length))
        for passage in passages
    )


def _beginning(text: str, length: int) -> str:
    """Return at most `length` characters, up to the end of a word if one ends there."""
    if len(text) <= length:
        return text
    part = text[:length]
    if not text[length].isspace():
        part = part.rsplit(maxsplit=1)[0] if len(part.split()) > 1 else part
    return part.rstrip()

"""The prompt of a question over numbered passages, in ALCE's shape and our words."""

import bisect
from collections.abc import Callable, Iterable, Sequence

from univerb.documents.chunks import Chunk
from univerb.errors import PromptError

_INSTRUCTION = (
    "Answer the question briefly and correctly, and take what you say from the documents below "
    "and from nothing else. End each sentence with the numbers of the documents that support it, "
    "such as [1] or [1][2]. Give at least one number and at most three, and only those needed."
)
_DEMONSTRATION = (
    "Why does bread rise?",
    (
        Chunk("Yeast", 0, "Yeast feeds on the sugars in flour and gives off carbon dioxide."),
        Chunk("Kneading", 0, "Kneading turns the proteins of flour into gluten, an elastic net."),
        Chunk("Millstones", 0, "Before roller mills, grain was ground between two round stones."),
    ),
    "Yeast feeds on the sugars in flour and gives off carbon dioxide [1]. The gas is held by "
    "gluten, an elastic net that kneading makes out of the proteins of flour [2].",
)


def question_prompt(question: str, passages: Sequence[Chunk], shots: int = 0) -> str:
    """Write a question and its passages, numbered from 1, as a prompt that an answer continues.

    Each passage is one line; a shot is a solved example before the question.
    """
    asked, shown, solved = _DEMONSTRATION
    example = f"{_block(asked, shown)} {solved}\n\n\n" if shots else ""
    return example + _block(question, passages)


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


def _block(question: str, passages: Sequence[Chunk]) -> str:
    lines = [
        f"Document [{number}](Title: {_line(passage.document)}): {_line(passage.text)}"
        for number, passage in enumerate(passages, 1)
    ]
    return "\n".join([f"{_INSTRUCTION}\n\nQuestion: {_line(question)}\n", *lines, "Answer:"])


def _line(text: str) -> str:
    return " ".join(text.split())


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

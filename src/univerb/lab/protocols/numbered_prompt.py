"""The prompt of the paper's citation experiment: a question over numbered documents.

It has ALCE's shape in our words, and asks the LM to type the documents' numbers.
"""

from collections.abc import Sequence

from univerb.applications.prompts import fitted, one_line, write_prompt
from univerb.documents.chunks import Chunk
from univerb.modeling.phrase_model import PhraseModel

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


def numbered_prompt(question: str, passages: Sequence[Chunk], shots: int = 0) -> str:
    """Write a question and its passages, numbered from 1, as a prompt that an answer continues.

    Each passage is one line; a shot is a solved example before the question.
    """
    asked, shown, solved = _DEMONSTRATION
    example = f"{_block(asked, shown)} {solved}\n\n\n" if shots else ""
    return example + _block(question, passages)


def numbered_prompt_ids(
    lm: PhraseModel,
    question: str,
    passages: tuple[Chunk, ...],
    room: int,
    *,
    shots: int = 0,
    is_chat: bool,
) -> tuple[list[int], tuple[Chunk, ...]]:
    """Return the ids of a prompt of at most `room` tokens, and the passages, shortened to fit."""

    def encode(shown: Sequence[Chunk]) -> list[int]:
        return write_prompt(lm, numbered_prompt(question, shown, shots), is_chat)

    return fitted(passages, encode, min(room, lm.context_size - 1))


def _block(question: str, passages: Sequence[Chunk]) -> str:
    lines = [
        f"Document [{number}](Title: {one_line(passage.document)}): {one_line(passage.text)}"
        for number, passage in enumerate(passages, 1)
    ]
    return "\n".join([f"{_INSTRUCTION}\n\nQuestion: {one_line(question)}\n", *lines, "Answer:"])

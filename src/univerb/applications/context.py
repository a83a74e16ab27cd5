"""What an LM is shown before it continues a text: the passages that the text is about."""

from collections.abc import Callable, Sequence
from itertools import takewhile
from operator import eq
from typing import NamedTuple

from univerb.applications.prompts import fitted, one_line, without_special
from univerb.config import GenerationConfig
from univerb.documents.chunks import Chunk
from univerb.errors import PromptError
from univerb.modeling.phrase_model import PhraseModel
from univerb.tokenizer import check_text

DEFAULT_CONTEXT = 2
"""Passages that are shown where there are documents."""
_MOST_TOKENS = 1024
"""What passages may take of a prompt."""
_FEWEST_CHARACTERS = 120
"""Some twenty words; a passage of which less could be shown is left out."""


class PromptInContext(NamedTuple):
    """A prompt behind passages."""

    ids: list[int]
    passages: tuple[Chunk, ...] = ()
    """Those that are shown, shortened to fit."""
    shown: int = 0
    """How many of the ids come before the prompt's own: the passages, and a turn's beginning."""

    def configured(self, config: GenerationConfig) -> GenerationConfig:
        """Let repetition control leave the passages out: they are there to be copied."""
        if not self.shown or not config.controls_repetition:
            return config
        return config.replaced({"repeat_from": self.shown + config.repeat_from})


def in_context(
    lm: PhraseModel, prompt: str | Sequence[int], passages: Sequence[Chunk], max_tokens: int = 0
) -> PromptInContext:
    """Put passages before a text to continue, the best one last: it is next to the text.

    They stand there as plain text, also for LMs with a chat template: these continue a text better
    where it is the only thing they see (docs/decisions/0040-context.md).

    Args:
        lm: The LM.
        prompt: A text, or token ids.
        passages: The best one first.
        max_tokens: Leave room for a continuation of this length.

    Returns:
        The ids of all.
    """
    if isinstance(prompt, str):
        check_text(prompt, "prompt")
        # It begins a paragraph: no space is put before its first word.
        alone, own = lm.tokenizer.encode_prompt(prompt), lm.tokenizer.encode_marked(prompt)
    else:
        alone = own = list(prompt)

    def encode(shown: Sequence[Chunk]) -> list[int]:
        return lm.tokenizer.encode_prompt(shown_text(lm, shown) + "\n\n")

    # An empty prompt stays one, to be refused.
    shown = passages if prompt else ()
    ids, short = _fitted(shown, encode, _room(lm, len(own), max_tokens))
    return PromptInContext([*ids, *own], short, len(ids)) if short else PromptInContext(alone)


def message_in_context(
    lm: PhraseModel,
    message: str,
    passages: Sequence[Chunk],
    system: str | None = None,
    max_tokens: int = 0,
) -> PromptInContext:
    """Put passages before a user's message, in the LM's chat template."""
    alone = lm.chat_prompt(message, system)

    def encode(shown: Sequence[Chunk]) -> list[int]:
        return lm.chat_prompt(f"{shown_text(lm, shown)}\n\n{message}", system)

    room = len(alone) + _room(lm, len(alone), max_tokens)
    ids, short = _fitted(passages, encode, room)
    if not short:
        return PromptInContext(alone)
    # The message and what the template puts behind it end both.
    own = sum(1 for _ in takewhile(bool, map(eq, reversed(ids), reversed(alone))))
    return PromptInContext(ids, short, len(ids) - own)


def _room(lm: PhraseModel, own: int, max_tokens: int) -> int:
    """Return how many tokens passages may take beside a prompt of `own` tokens."""
    return min(_MOST_TOKENS, lm.context_size - 1 - own - max_tokens)


def _fitted(
    passages: Sequence[Chunk], encode: Callable[[Sequence[Chunk]], list[int]], room: int
) -> tuple[list[int], tuple[Chunk, ...]]:
    """Return ids and passages, shortened to fit, without those that there is no room for.

    There may be none: the text was asked for, and the passages are an extra.
    """
    left = list(passages)
    while left:
        try:
            ids, short = fitted(left, encode, room)
        except PromptError:
            del left[-1]
            continue
        shreds = [
            number
            for number, (whole, part) in enumerate(zip(left, short, strict=True))
            if len(part.text) < min(len(whole.text), _FEWEST_CHARACTERS)
        ]
        if not shreds:
            return ids, short
        # The others have its room.
        del left[shreds[-1]]
    return [], ()


def shown_text(lm: PhraseModel, passages: Sequence[Chunk]) -> str:
    """Write passages as paragraphs, the best one last."""
    paragraphs = [one_line(passage.text) for passage in reversed(passages)]
    return without_special("\n\n".join(paragraphs), lm.tokenizer.added_texts)

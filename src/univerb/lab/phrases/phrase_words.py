"""What kind of phrases fire or are written: their words, and how many of them carry content."""

from collections.abc import Iterable
from typing import NamedTuple

from univerb.phrases.content import content_words


class PhraseWords(NamedTuple):
    """Counts over phrases."""

    phrases: int
    words: int
    two_content: int
    """Phrases with two content words or more."""
    glue: int
    """Phrases without a content word."""

    def shares(self) -> dict[str, float]:
        """Return words per phrase, and the shares of both kinds of phrases."""
        return {
            "words_per_phrase": share(self.words, self.phrases),
            "two_content_share": share(self.two_content, self.phrases),
            "glue_share": share(self.glue, self.phrases),
        }


def count_words(texts: Iterable[str]) -> PhraseWords:
    """Count the words of phrases; content words are those that are not on the English stop list."""
    phrases = list(texts)
    content = [len(content_words(text)) for text in phrases]
    return PhraseWords(
        len(phrases),
        sum(len(text.split()) for text in phrases),
        sum(count >= 2 for count in content),
        content.count(0),
    )


def share(part: float, whole: float) -> float:
    """Return a part as a share of a whole; 0 of nothing."""
    return part / whole if whole else 0.0

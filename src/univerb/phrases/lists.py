"""A user's phrases: from a file or a list of texts to phrases of the LM."""

import math
import warnings
from collections.abc import Iterable
from pathlib import Path

from univerb.errors import PhraseError
from univerb.files import read_regular
from univerb.phrase import Phrase
from univerb.phrases.guards import Guards
from univerb.tokenizer import Tokenizer

_MAX_BYTES = 64 * 2**20

ListedText = str | tuple[str, float]
"""A phrase's text, alone or with the weight that is added to its logit."""


class LeftOutWarning(UserWarning):
    """Some phrases of a user's list cannot be used, or those of documents are too many."""


def listed_phrases(
    texts: Iterable[ListedText], tokenizer: Tokenizer, guards: Guards | None = None
) -> list[Phrase]:
    """Turn texts into phrases, in order, each with the space that precedes it inside a text.

    Texts that the guards do not allow are left out with one warning.
    """
    rules = guards or Guards()
    phrases: list[Phrase] = []
    left_out: list[str] = []
    for number, item in enumerate(texts):
        text, weight = (item, 0.0) if isinstance(item, str) else item
        if not text.strip():
            raise PhraseError(f"phrase {number} of the list is empty: {text!r}. Drop it.")
        try:
            ids = tuple(tokenizer.encode_inside(text).ids)
        except TypeError:
            raise PhraseError(
                f"phrase {number} of the list is not valid UTF-8. Correct it."
            ) from None
        phrase = Phrase(ids, tokenizer.decode(ids), weight=weight)
        reason = rules.objection(ids, phrase.text, tokenizer.special_ids)
        if reason is None:
            phrases.append(phrase)
        else:
            left_out.append(f"{text!r} ({reason})")
    if left_out:
        shown = ", ".join(left_out[:3])
        warnings.warn(
            f"{len(left_out)} of {len(left_out) + len(phrases)} phrases were left out: {shown}"
            f"{', …' if len(left_out) > 3 else ''}. The LM writes them as tokens.",
            LeftOutWarning,
            stacklevel=2,
        )
    return phrases


def read_phrase_list(path: Path) -> list[ListedText]:
    """Read a file with one phrase per line, each optionally followed by a tab and a weight."""
    try:
        lines = read_regular(path, _MAX_BYTES).decode("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise PhraseError(
            f"the phrase list {str(path)!r} cannot be read: {error}. "
            "Give a UTF-8 file with one phrase per line."
        ) from error
    phrases = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not phrases:
        raise PhraseError(f"the phrase list {str(path)!r} is empty. Put one phrase on each line.")
    return [_weighted(line, number, path) for number, line in phrases]


def _weighted(line: str, number: int, path: Path) -> ListedText:
    text, tab, weight = line.partition("\t")
    if not tab:
        return text
    try:
        value = float(weight)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise PhraseError(
            f"{path}:{number}: the weight {weight!r} is no number. "
            "Write the phrase, a tab, and a number such as 1.5."
        )
    return text, value

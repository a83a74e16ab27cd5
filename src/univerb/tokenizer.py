"""The LM's tokenizer as a plain function pair: text to ids with offsets, ids to text.

It is a private copy of the Rust tokenizer, so that padding or truncation set elsewhere on the
user's object cannot reach it, and it needs no torch.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, Self

import tokenizers

# How SentencePiece vocabularies spell a byte of a character that has no token of its own.
_BYTE = re.compile(r"<0x[0-9A-F]{2}>")


class Encoded(NamedTuple):
    """Token ids and, for each, its character range in the text that was given."""

    ids: list[int]
    offsets: list[tuple[int, int]]


class Tokenizer:
    """Text <-> ids of one LM, reading and writing as if in the middle of a text."""

    def __init__(self, rust: tokenizers.Tokenizer, special_ids: Iterable[int] = ()) -> None:
        self._rust = tokenizers.Tokenizer.from_str(rust.to_str())
        self._rust.no_padding()
        self._rust.no_truncation()
        self.special_ids = frozenset(special_ids)
        # SentencePiece-style tokenizers put a space before the text by themselves and drop it
        # again when decoding; byte-level ones do neither.
        self.adds_space = self._rust.encode("a", add_special_tokens=False).tokens[0].startswith("▁")
        # A word, because a neighbouring byte token (a line break, in Llama's vocabulary) would be
        # read together with the bytes of a character that is not complete yet.
        self._anchor = self.encode("a").ids
        self._anchor_text = self._decode(self._anchor)
        vocabulary = self._rust.get_vocab(with_added_tokens=True)
        self._byte_ids = frozenset(i for token, i in vocabulary.items() if _BYTE.fullmatch(token))

    @classmethod
    def from_file(cls, path: Path) -> Self:
        """Read a tokenizer.json; its own flags say which tokens are special."""
        rust = tokenizers.Tokenizer.from_file(str(path))
        added = rust.get_added_tokens_decoder()
        return cls(rust, [token_id for token_id, token in added.items() if token.special])

    def encode(self, text: str) -> Encoded:
        """Tokenize a text as it stands, without special tokens."""
        encoding = self._rust.encode(text, add_special_tokens=False)
        return Encoded(encoding.ids, encoding.offsets)

    def encode_prompt(self, text: str) -> list[int]:
        """Tokenize a text as the beginning of a sequence, with the special tokens of a prompt."""
        return list(self._rust.encode(text, add_special_tokens=True).ids)

    def encode_inside(self, text: str) -> Encoded:
        """Tokenize a text as if a word stood before it: its first word carries its space too.

        Args:
            text: The text, without the space.

        Returns:
            Ids and offsets; the offsets are those of the given text.
        """
        if self.adds_space and text.startswith(" "):
            ids, offsets = self.encode(text[1:])
            return Encoded(ids, [(start + 1, end + 1) for start, end in offsets])
        if self.adds_space or text[:1].isspace():
            return self.encode(text)
        ids, offsets = self.encode(" " + text)
        return Encoded(ids, [(max(start - 1, 0), end - 1) for start, end in offsets])

    def decode(self, ids: Sequence[int]) -> str:
        """Return what the ids spell in the middle of a text, a leading space included."""
        # Decoded behind a fixed anchor: SentencePiece drops the space of a first token.
        text = self._decode([*self._anchor, *ids])
        return text.removeprefix(self._anchor_text)

    def stream(self) -> "TextStream":
        """Start turning ids into text piece by piece."""
        return TextStream(self.decode, self._byte_ids)

    def fingerprint(self) -> str:
        """Return a hash of the vocabulary, the same for equal tokenizers wherever they lie."""
        vocabulary = sorted(self._rust.get_vocab(with_added_tokens=True).items())
        return hashlib.sha256(json.dumps(vocabulary).encode()).hexdigest()[:16]

    def to_json(self) -> str:
        """Return the tokenizer as the JSON that the tokenizers library reads."""
        return str(self._rust.to_str())

    def _decode(self, ids: Sequence[int]) -> str:
        return str(self._rust.decode(ids, skip_special_tokens=False))


class TextStream:
    """Ids in, text out, never half a character: what is incomplete waits for the next ids."""

    def __init__(self, decode: Callable[[Sequence[int]], str], byte_ids: frozenset[int]) -> None:
        self._decode = decode
        self._byte_ids = byte_ids
        self._held: list[int] = []

    def push(self, ids: Sequence[int]) -> str:
        """Add ids and return the text that has become certain."""
        return "".join(map(self._push, ids))

    def _push(self, token: int) -> str:
        self._held.append(token)
        # Byte tokens are read as a whole run; what follows it can no longer change.
        if token in self._byte_ids:
            return ""
        text = self._decode(self._held)
        if text.endswith("\N{REPLACEMENT CHARACTER}"):
            return ""
        self._held = []
        return text

    def flush(self) -> str:
        """Return what is still held back at the end of the text."""
        held, self._held = self._held, []
        return self._decode(held) if held else ""

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
from tokenizers.decoders import ByteLevel

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
        # Byte-level without a normalizer: what ids spell is the text they were made of.
        decoder = self._rust.decoder
        self.is_exact = self._rust.normalizer is None and isinstance(decoder, ByteLevel)
        self._spaced: dict[int, bool] = {}
        self._fingerprint: str | None = None
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
        return self.encode_all_inside([text])[0]

    def encode_all_inside(self, texts: Sequence[str]) -> list[Encoded]:
        """Tokenize many texts, each as `encode_inside` does."""
        shifts = [self._shift(text) for text in texts]
        given = [
            " " * -shift + text[max(shift, 0) :] for text, shift in zip(texts, shifts, strict=True)
        ]
        encodings = self._rust.encode_batch(given, add_special_tokens=False)
        return [
            Encoded(one.ids, [(max(start + shift, 0), end + shift) for start, end in one.offsets])
            if shift
            else Encoded(one.ids, one.offsets)
            for one, shift in zip(encodings, shifts, strict=True)
        ]

    def _shift(self, text: str) -> int:
        """Return by how much offsets move because a space was added (-1) or taken off (1)."""
        if self.adds_space:
            return int(text.startswith(" "))
        return 0 if text[:1].isspace() else -1

    def decode(self, ids: Sequence[int]) -> str:
        """Return what the ids spell in the middle of a text, a leading space included."""
        # Decoded behind a fixed anchor: SentencePiece drops the space of a first token.
        text = self._decode([*self._anchor, *ids])
        return text.removeprefix(self._anchor_text)

    def decode_all(self, many: Sequence[Sequence[int]]) -> list[str]:
        """Return what each of many runs of ids spells, as `decode` does."""
        behind = [[*self._anchor, *ids] for ids in many]
        texts = self._rust.decode_batch(behind, skip_special_tokens=False)
        return [text.removeprefix(self._anchor_text) for text in texts]

    def has_space(self, token: int) -> bool:
        """Tell whether a token's text begins with a space."""
        if token not in self._spaced:
            self._spaced[token] = self.decode([token]).startswith(" ")
        return self._spaced[token]

    def stream(self) -> "TextStream":
        """Start turning ids into text piece by piece."""
        return TextStream(self.decode, self._byte_ids)

    def fingerprint(self) -> str:
        """Return a hash of vocabulary and merges, the same wherever equal tokenizers lie."""
        if self._fingerprint is None:
            vocabulary = sorted(self._rust.get_vocab(with_added_tokens=True).items())
            merges = json.loads(self._rust.to_str())["model"].get("merges")
            content = json.dumps([vocabulary, merges]).encode()
            self._fingerprint = hashlib.sha256(content).hexdigest()[:16]
        return self._fingerprint

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

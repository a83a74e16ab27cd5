"""The LM's tokenizer: text to ids with offsets, ids to text.

A user's Rust tokenizer is copied, so that padding or truncation set on it later do not matter. It
needs no torch.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, Self

import tokenizers
from tokenizers.decoders import ByteLevel

from univerb.errors import PromptError, shown

# A byte token of SentencePiece vocabularies, for characters that have no token.
_BYTE = "<0x{:02X}>"
_HALF = "\N{REPLACEMENT CHARACTER}"


class Encoded(NamedTuple):
    """Token ids and, for each, its character range in the text."""

    ids: list[int]
    offsets: list[tuple[int, int]]


class Tokenizer:
    """Text <-> ids of an LM, as if in the middle of a text."""

    def __init__(
        self,
        rust: tokenizers.Tokenizer,
        special_ids: Iterable[int] = (),
        *,
        is_private: bool = False,
    ) -> None:
        # A copy takes a tenth of a second, which nobody needs if nobody else has the object.
        self._rust = rust if is_private else tokenizers.Tokenizer.from_str(rust.to_str())
        self._rust.no_padding()
        self._rust.no_truncation()
        self.special_ids = frozenset(special_ids)
        # SentencePiece-style tokenizers add a space before the text and drop it when decoding;
        # byte-level ones do neither.
        self.adds_space = self._rust.encode("a", add_special_tokens=False).tokens[0].startswith("▁")
        # A word, because a neighbouring byte token (a line break, in Llama's vocabulary) would be
        # read together with the bytes of a character that is not complete yet.
        self._anchor = self.encode("a").ids
        self._anchor_text = self._decode(self._anchor)
        # Byte-level without a normalizer: decoding gives back the text that was encoded.
        decoder = self._rust.decoder
        self.is_exact = self._rust.normalizer is None and isinstance(decoder, ByteLevel)
        self._spaced: dict[int, bool] = {}
        self._fingerprint: str | None = None
        candidates = (self._rust.token_to_id(_BYTE.format(byte)) for byte in range(256))
        self._byte_ids = frozenset(token for token in candidates if token is not None)

    @classmethod
    def from_file(cls, path: Path) -> Self:
        """Read a tokenizer.json, whose flags say which tokens are special."""
        rust = tokenizers.Tokenizer.from_file(str(path))
        added = rust.get_added_tokens_decoder()
        special = [token_id for token_id, token in added.items() if token.special]
        return cls(rust, special, is_private=True)

    def encode(self, text: str) -> Encoded:
        """Tokenize a text as it stands, without special tokens."""
        encoding = self._rust.encode(text, add_special_tokens=False)
        return Encoded(encoding.ids, encoding.offsets)

    def encode_prompt(self, text: str) -> list[int]:
        """Tokenize a text as the beginning of a sequence, with the special tokens of a prompt."""
        return list(self._rust.encode(text, add_special_tokens=True).ids)

    def encode_marked(self, text: str) -> list[int]:
        """Tokenize a text whose special tokens are such, without adding any."""
        return self.encode(text).ids

    @property
    def added_texts(self) -> list[str]:
        """The texts of tokens that are no part of plain text."""
        return [token.content for token in self._rust.get_added_tokens_decoder().values()]

    @property
    def begin_ids(self) -> list[int]:
        """The special tokens that every prompt begins with; most LMs want none."""
        prompt, size = self.encode_prompt("a"), len(self._anchor)
        places = (i for i in range(len(prompt)) if prompt[i : i + size] == self._anchor)
        return prompt[: next(places, 0)]

    def encode_inside(self, text: str) -> Encoded:
        """Tokenize a text as if a word preceded it, so that its first word has a space, too."""
        return self.encode_all_inside([text])[0]

    def encode_all_inside(self, texts: Sequence[str]) -> list[Encoded]:
        """Tokenize many texts, each as `encode_inside` does."""
        shifts = [self._shift(text) for text in texts]
        shifted = [
            " " * -shift + text[max(shift, 0) :] for text, shift in zip(texts, shifts, strict=True)
        ]
        encodings = self._rust.encode_batch(shifted, add_special_tokens=False)
        return [
            Encoded(e.ids, [(max(start + shift, 0), end + shift) for start, end in e.offsets])
            if shift
            else Encoded(e.ids, e.offsets)
            for e, shift in zip(encodings, shifts, strict=True)
        ]

    def _shift(self, text: str) -> int:
        """Return the shift of offsets because a space was added (-1) or removed (1)."""
        if self.adds_space:
            return int(text.startswith(" "))
        return 0 if text[:1].isspace() else -1

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids in the middle of a text, a leading space included."""
        # Decoded behind a fixed anchor: SentencePiece drops the space of a first token.
        text = self._decode([*self._anchor, *ids])
        return text.removeprefix(self._anchor_text)

    def decode_all(self, many: Sequence[Sequence[int]]) -> list[str]:
        """Decode many sequences of ids, each as `decode` does."""
        anchored = [[*self._anchor, *ids] for ids in many]
        texts = self._rust.decode_batch(anchored, skip_special_tokens=False)
        return [text.removeprefix(self._anchor_text) for text in texts]

    def has_space(self, token: int) -> bool:
        """Tell whether a token's text begins with a space."""
        if token not in self._spaced:
            self._spaced[token] = self.decode([token]).startswith(" ")
        return self._spaced[token]

    @cached_property
    def word_continuations(self) -> frozenset[int]:
        """The tokens that would make another word of the one before: they begin with a letter."""
        texts = self.decode_all([[token] for token in range(self._rust.get_vocab_size())])
        is_begun = [text[:1].isalnum() or text[:1] in ("_", _HALF) for text in texts]
        return frozenset(token for token, begins in enumerate(is_begun) if begins)

    def stream(self) -> "TextStream":
        """Start decoding ids piece by piece."""
        return TextStream(self.decode, self._byte_ids)

    def fingerprint(self) -> str:
        """Return a hash of vocabulary and merges."""
        if self._fingerprint is None:
            # The JSON of both as a list; only one of them is in memory at a time.
            vocabulary = json.dumps(sorted(self._rust.get_vocab(with_added_tokens=True).items()))
            digest = hashlib.sha256(f"[{vocabulary}, ".encode())
            del vocabulary
            merges = json.loads(self._rust.to_str())["model"].get("merges")
            digest.update(f"{json.dumps(merges)}]".encode())
            self._fingerprint = digest.hexdigest()[:16]
        return self._fingerprint

    def to_json(self) -> str:
        """Return the tokenizer as the JSON that the tokenizers library reads."""
        return str(self._rust.to_str())

    def _decode(self, ids: Sequence[int]) -> str:
        return str(self._rust.decode(ids, skip_special_tokens=False))


def check_text(text: object, what: str) -> None:
    """Refuse what cannot be tokenized; `what` is its name in the PromptError."""
    if not isinstance(text, str) or text.encode(errors="replace").decode() != text:
        raise PromptError(f"the {what} {shown(text)} is not valid text (UTF-8). Correct it.")


class TextStream:
    """Incremental decoding that never yields half a character."""

    def __init__(self, decode: Callable[[Sequence[int]], str], byte_ids: frozenset[int]) -> None:
        self._decode = decode
        self._byte_ids = byte_ids
        self._pending: list[int] = []

    def push(self, ids: Sequence[int]) -> str:
        """Add ids and return the text that has become certain."""
        return "".join(map(self._push, ids))

    def _push(self, token: int) -> str:
        self._pending.append(token)
        # Consecutive byte tokens are decoded together.
        if token in self._byte_ids:
            return ""
        text = self._decode(self._pending)
        if text.endswith(_HALF):
            return ""
        self._pending = []
        return text

    def flush(self) -> str:
        """Return the rest at the end of the text."""
        pending, self._pending = self._pending, []
        return self._decode(pending) if pending else ""

"""Tokenizers for GGUF files, trained in code: byte-level BPE, SentencePiece, characters."""

import json
from functools import cache
from typing import Any, NamedTuple

import tokenizers
from gguf import GGUFWriter
from tokenizers import models, normalizers, pre_tokenizers, trainers

from conftest import TEXT

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6
MIXED = (
    TEXT
    + """
In 2013 and 2014, 1,500 or 12345678 people paid $3.50; 50 % of them didn't, they'll say: "No!"
def total(values):
    return sum(value for value in values)  # comment ...


\tif isEmpty: HTTPServer.runAll(); camelCaseWord == AnotherCase_1
L'été à Zürich, naïve façade. Привет, мир! Ёлка. 日本語のテキスト、です。漢字漢字。한국어 텍스트.
हिन्दी में लिखा है। نص عربي ١٢٣. Ελληνικά. 🎉🎉 👩‍👩‍👧 ½ ² Ⅷ
"""
)
"""Scripts, numbers, code and space of all kinds."""


class TinyVocabulary(NamedTuple):
    """What a GGUF file says of a tokenizer."""

    kind: str
    words: list[str]
    types: list[int]
    scores: list[float] | None = None
    merges: list[str] | None = None
    settings: dict[str, Any] = {}
    """Further settings, without their `tokenizer.ggml.`."""

    def write(self, writer: GGUFWriter) -> None:
        """Add it to a file."""
        writer.add_tokenizer_model(self.kind)
        writer.add_token_list(self.words)
        writer.add_token_types(self.types)
        if self.scores is not None:
            writer.add_token_scores(self.scores)
        if self.merges is not None:
            writer.add_token_merges(self.merges)
        for name, value in self.settings.items():
            key = f"tokenizer.ggml.{name}"
            if isinstance(value, bool):
                writer.add_bool(key, value)
            elif isinstance(value, int):
                writer.add_uint32(key, value)
            else:
                writer.add_string(key, value)

    def having(self, **settings: Any) -> "TinyVocabulary":
        """Return it with other settings; None removes one."""
        merged = {**self.settings, **settings}
        return self._replace(settings={n: v for n, v in merged.items() if v is not None})


@cache
def _trained(byte_level: bool) -> tokenizers.Tokenizer:
    """Train on the whole text as one piece, so that merges cross every border."""
    rust = tokenizers.Tokenizer(models.BPE())
    if byte_level:
        rust.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    else:
        rust.normalizer = normalizers.Replace(" ", "▁")
    alphabet = pre_tokenizers.ByteLevel.alphabet() if byte_level else []
    trainer = trainers.BpeTrainer(
        vocab_size=800, initial_alphabet=alphabet, show_progress=False, max_token_length=8
    )
    rust.train_from_iterator([MIXED, *MIXED.split("\n"), MIXED[:300]], trainer)
    return rust


def byte_level_bpe(pre: str = "gpt-2", **settings: Any) -> TinyVocabulary:
    """Make a byte-level BPE: its special tokens first, an unusual user-defined one last."""
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    content = json.loads(_trained(True).to_str())["model"]
    learned = sorted(content["vocab"], key=content["vocab"].get)
    words = [*special, *learned, "[[user]]"]
    types = [CONTROL] * 3 + [NORMAL] * len(learned) + [USER_DEFINED]
    merges = [" ".join(pair) for pair in content["merges"]]
    roles = {"pre": pre, "bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0}
    return TinyVocabulary("gpt2", words, types, None, merges, {**roles, **settings})


def sentence_piece(**settings: Any) -> TinyVocabulary:
    """Make a SentencePiece BPE, whose scores fall with each merge, and bytes for the rest."""
    content = json.loads(_trained(False).to_str())["model"]
    learned = sorted(content["vocab"], key=content["vocab"].get)
    pieces = dict.fromkeys("".join(pair) for pair in content["merges"])
    # One character has no token, so that its bytes are used.
    merged = [piece for piece in pieces if "🎉" not in piece]
    characters = [word for word in learned if len(word) == 1 and word != "🎉"]
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    words = ["<unk>", "<s>", "</s>", *bytes_, *merged, *characters, "<end_of_turn>", "[[user]]"]
    types = [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256
    types += [NORMAL] * (len(merged) + len(characters)) + [CONTROL, USER_DEFINED]
    scores = [0.0] * 259 + [-float(rank) for rank in range(len(words) - 261)] + [-1e6, -1e6]
    return TinyVocabulary("llama", words, types, scores, None, settings)


def character_bpe(**settings: Any) -> TinyVocabulary:
    """Make a BPE with merges over characters, as Gemma 4 has it."""
    base = sentence_piece()
    content = json.loads(_trained(False).to_str())["model"]
    known = set(base.words)
    pairs = [pair for pair in content["merges"] if {*pair, "".join(pair)} <= known]
    roles = {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0}
    merges = [" ".join(pair) for pair in pairs]
    return base._replace(kind="gemma4", merges=merges, settings={**roles, **settings})

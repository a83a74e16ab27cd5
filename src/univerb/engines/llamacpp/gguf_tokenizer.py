"""The tokenizer that a GGUF file describes, as one of the tokenizers library.

Texts of documents are only texts: what looks like a special token in them is none. In prompts it
is, as in llama.cpp.
"""

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy
import tokenizers
from numpy.typing import NDArray
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

from univerb.engines.llamacpp.gguf_file import GgufFile
from univerb.engines.llamacpp.pre_tokenizers import pre_tokenizing
from univerb.errors import ModelError, did_you_mean, first_line
from univerb.files import atomic_path
from univerb.locations import cache_directory
from univerb.tokenizer import Tokenizer

Numbers = NDArray[Any]
UNKNOWN, CONTROL, USER_DEFINED, BYTE = 2, 3, 4, 6
"""GGUF's types of tokens that are not plain text."""
_PREFIX = "tokenizer.ggml."
_ROLES = ("bos", "eos", "eot", "eom", "unknown", "padding", "mask")
_ENDS = ("eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep")
"""Roles of tokens that end a text."""
_END_TEXTS = frozenset(
    {
        *("<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>"),
        *("<|flush|>", "<|calls|>", "<end_of_turn>", "<|endoftext|>", "</s>"),
        *("<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]"),
        *("<|end_of_text|>", "<end_of_utterance>", "<eos>", "<turn|>", "<|tool_response>"),
        *("<｜end▁of▁sentence｜>", "[e~[", "<|fim_pad|>", "<fim-pad>", "<fim_pad>"),
        *("<PAD>", "[PAD]", "<|fim_repo|>", "<|repo_name|>", "<fim-repo>"),
        *("<REPO>", "<reponame>", "<|file_sep|>"),
    }
)
"""Texts of tokens that end a text in any model that has them, as in llama.cpp."""
_LLAMA_ROLES = {"unknown": 0, "bos": 1, "eos": 2}
"""Of SentencePiece vocabularies whose files do not say."""
_MAX_TOKENS = 1 << 22
_MANY = 1 << 16
"""Tokens whose merges take more than a moment to find."""


class GgufTokenizer(Tokenizer):
    """Text <-> ids of the LM in a GGUF file."""

    def __init__(self, gguf: GgufFile) -> None:
        self.words = words = _read_words(gguf)
        """The texts of all tokens, as the file spells them."""
        types = _checked(gguf, "token_type", len(words))
        kind = gguf.text(f"{_PREFIX}model")
        if kind not in _BUILDERS:
            raise ModelError(
                f"{str(gguf.path)!r} has the tokenizer {kind[:80]!r}, which univerb cannot use. "
                f"{did_you_mean(kind[:80], _BUILDERS)} Use another model."
            )
        try:
            rust, adds_bos = _BUILDERS[kind](gguf, words, types)
            texts = [words[index] for index in numpy.flatnonzero(types == USER_DEFINED).tolist()]
            rust.add_tokens([AddedToken(text, normalized=False, special=False) for text in texts])
        except ModelError:
            raise
        except Exception as error:  # the Rust library raises plain exceptions
            raise _damaged(gguf, first_line(error)) from error
        roles = {role: _role(gguf, role, len(words)) for role in (*_ROLES, *_ENDS)}
        special = numpy.flatnonzero((types == CONTROL) | (types == UNKNOWN)).tolist()
        self._texts = {words[index]: index for index in special}
        named = (roles[role] for role in _ROLES)
        super().__init__(rust, {*special, *(i for i in named if i is not None)}, is_private=True)
        bos, eos = roles["bos"], roles["eos"]
        self._begin = (
            [bos] if bos is not None and gguf.flag(f"{_PREFIX}add_bos_token", adds_bos) else []
        )
        self.end_ids = _end_ids(words, {roles[role] for role in _ENDS})
        self.template_texts = {
            "bos_token": "" if bos is None else words[bos],
            "eos_token": "" if eos is None else words[eos],
        }
        """What a chat template calls its special tokens."""

    def encode_prompt(self, text: str) -> list[int]:
        """Tokenize a text as the beginning of a sequence, with the special tokens of a prompt."""
        return [*self._begin, *self.encode_marked(text)]

    @property
    def begin_ids(self) -> list[int]:
        """The special tokens that every prompt begins with; most LMs want none."""
        return list(self._begin)

    def encode_marked(self, text: str) -> list[int]:
        """Tokenize a text whose special tokens are such, without adding any."""
        ends = [
            0,
            *(edge for match in self._special.finditer(text) for edge in match.span()),
            len(text),
        ]
        ids: list[int] = []
        for at, (begin, end) in enumerate(pairwise(ends)):
            part = text[begin:end]
            if part:
                ids += [self._texts[part]] if at % 2 else self.encode(part).ids
        return ids

    @property
    def added_texts(self) -> list[str]:
        """The texts of tokens that are no part of plain text."""
        return [*self._texts, *super().added_texts]

    @cached_property
    def _special(self) -> re.Pattern[str]:
        longest_first = sorted(self._texts, key=len, reverse=True)
        # Without any: what never matches.
        return re.compile("|".join(map(re.escape, longest_first)) or "(?!)")


def _read_words(gguf: GgufFile) -> list[str]:
    """Return the texts of all tokens, in order; a ModelError if they cannot be a vocabulary."""
    stored = gguf.strings(f"{_PREFIX}tokens")
    if not stored:
        raise ModelError(
            f"{str(gguf.path)!r} has no tokenizer: its list of tokens is missing or empty. Get a "
            "file of the whole LM."
        )
    if len(stored) > _MAX_TOKENS:
        raise _damaged(gguf, f"{len(stored)} tokens; at most {_MAX_TOKENS} are allowed")
    try:
        words = [word.decode() or f"[EMPTY_{at}]" for at, word in enumerate(stored)]
    except UnicodeDecodeError as error:
        raise _damaged(gguf, "a token is not UTF-8") from error
    return words


def _byte_level(
    gguf: GgufFile, words: Sequence[str], types: Numbers
) -> tuple[tokenizers.Tokenizer, bool]:
    """Build a byte-level BPE, and say whether it begins a prompt with BOS."""
    kind = pre_tokenizing(gguf.text(f"{_PREFIX}pre"), gguf.path.name)
    rust = tokenizers.Tokenizer(
        models.BPE(_ids(words), _merges(gguf), ignore_merges=kind.ignores_merges)
    )
    rust.pre_tokenizer = kind.make()
    rust.decoder = decoders.ByteLevel()
    return rust, kind.adds_bos


def _sentence_piece(
    gguf: GgufFile, words: Sequence[str], types: Numbers
) -> tuple[tokenizers.Tokenizer, bool]:
    """Build the BPE of SentencePiece: of two neighbours, those whose token scores best merge."""
    scores = _checked(gguf, "scores", len(words))
    merges = [
        (words[left], words[right]) for left, right in _stored_merges(gguf, words, types, scores)
    ]
    return _spaced(gguf, models.BPE(_ids(words), merges, byte_fallback=True)), True


def _raw_bpe(
    gguf: GgufFile, words: Sequence[str], types: Numbers
) -> tuple[tokenizers.Tokenizer, bool]:
    """Build a BPE with merges over characters instead of bytes, as Gemma 4 has it."""
    rust = _spaced(gguf, models.BPE(_ids(words), _merges(gguf), byte_fallback=True), prefix=False)
    rust.pre_tokenizer = pre_tokenizers.Split(tokenizers.Regex(r"[^\n]+|\n+"), "isolated")
    return rust, True


_BUILDERS: dict[
    str,
    Callable[[GgufFile, Sequence[str], Numbers], tuple[tokenizers.Tokenizer, bool]],
] = {"gpt2": _byte_level, "llama": _sentence_piece, "gemma4": _raw_bpe}


def _spaced(gguf: GgufFile, model: models.Model, prefix: bool = True) -> tokenizers.Tokenizer:
    """Wrap a model whose tokens spell a space as ▁; most want one before a text, too."""
    has_prefix = gguf.flag(f"{_PREFIX}add_space_prefix", prefix)
    rust = tokenizers.Tokenizer(model)
    replace = normalizers.Replace(" ", "▁")
    rust.normalizer = (
        normalizers.Sequence([normalizers.Prepend("▁"), replace]) if has_prefix else replace
    )
    strip = [decoders.Strip(" ", 1, 0)] if has_prefix else []
    rust.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    return rust


def _ids(words: Sequence[str]) -> dict[str, int]:
    return {word: index for index, word in enumerate(words)}


def _merges(gguf: GgufFile) -> list[tuple[str, str]]:
    """Read the merges of a BPE: two tokens with a space between."""
    lines = [line.decode() for line in gguf.strings(f"{_PREFIX}merges")]
    cuts = [line.find(" ", 1) for line in lines]
    return [(line[:cut], line[cut + 1 :]) for line, cut in zip(lines, cuts, strict=True)]


def _stored_merges(
    gguf: GgufFile, words: Sequence[str], types: Numbers, scores: Numbers
) -> list[tuple[int, int]]:
    """Return the merges of a vocabulary, from the user's cache if there are many."""
    if len(words) < _MANY:
        return _scored_merges(words, types, scores)
    path = cache_directory() / "merges" / f"{gguf.cache_key()}.npy"
    try:
        pairs = numpy.load(path, allow_pickle=False)
        is_whole = pairs.dtype == numpy.int32 and pairs.shape[1:] == (2,) and pairs.size
        if is_whole and pairs.min() >= 0 and pairs.max() < len(words):
            return list(map(tuple, pairs.tolist()))
    except (OSError, ValueError, EOFError):
        pass  # not there, or damaged
    merges = _scored_merges(words, types, scores)
    with suppress(OSError):  # a cache that cannot be written is no error
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_path(path) as draft, draft.open("wb") as file:
            numpy.save(file, numpy.array(merges, numpy.int32))
    return merges


def _scored_merges(words: Sequence[str], types: Numbers, scores: Numbers) -> list[tuple[int, int]]:
    """Return all pairs of tokens that make a token, those of the best token first."""
    ids = _ids(words)
    # A merge never makes a special token of text.
    is_special = numpy.isin(types, (CONTROL, UNKNOWN, BYTE))
    merges = []
    for index in numpy.argsort(-scores, kind="stable").tolist():
        word = words[index]
        if len(word) > 1 and not is_special[index]:
            cuts = ((ids.get(word[:at]), ids.get(word[at:])) for at in range(1, len(word)))
            merges += sorted(
                (left, right) for left, right in cuts if left is not None and right is not None
            )
    return merges


def _checked(gguf: GgufFile, name: str, count: int) -> Numbers:
    """Return a list of one number for each token: zeros if there is none."""
    numbers = gguf.numbers(f"{_PREFIX}{name}")
    if not numbers.size:
        return numpy.zeros(count)
    if len(numbers) < count or not numpy.isfinite(numbers).all():
        raise _damaged(gguf, f"{name} has {len(numbers)} numbers for {count} tokens")
    return numbers[:count]


def _role(gguf: GgufFile, role: str, count: int) -> int | None:
    """Return the id of a token by its role."""
    number = gguf.number(f"{_PREFIX}{role}_token_id")
    if number is None and gguf.text(f"{_PREFIX}model") == "llama":
        number = _LLAMA_ROLES.get(role)
    return number if number is not None and 0 <= number < count else None


def _end_ids(words: Sequence[str], by_role: set[int | None]) -> frozenset[int]:
    """Return the tokens that end a text, by role and by text."""
    texts = {word: index for index, word in enumerate(words) if word in _END_TEXTS}
    # Where a model has tokens for returning and calling, this one only ends a part of a turn.
    if "<|end|>" in texts and (
        {"<|return|>", "<|call|>"} <= texts.keys() or {"<|calls|>", "<|flush|>"} <= texts.keys()
    ):
        del texts["<|end|>"]
    if "<|tool_response>" in texts:
        texts.pop("</s>", None)
    return frozenset({*texts.values(), *(index for index in by_role if index is not None)})


def _damaged(gguf: GgufFile, reason: str) -> ModelError:
    return ModelError(
        f"the tokenizer of {str(gguf.path)!r} cannot be used: {reason}. Get a fresh copy of the "
        "file, or one that a newer converter made."
    )

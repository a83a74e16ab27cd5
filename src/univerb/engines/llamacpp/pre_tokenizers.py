"""How byte-level tokenizers cut a text before BPE, by the name that a GGUF file gives it.

GGUF files name the pre-tokenizer (`tokenizer.ggml.pre`) and leave its expressions to the reader.
Each expression cuts the pieces that the ones before it have left; what none matches stays a piece.
Tests compare every name with llama.cpp's own tokenizer.
"""

from typing import NamedTuple

from tokenizers import Regex
from tokenizers.pre_tokenizers import ByteLevel, PreTokenizer, Sequence, Split

from univerb.errors import ModelError, did_you_mean


class PreTokenizing(NamedTuple):
    """What a name stands for."""

    patterns: tuple[str, ...]
    ignores_merges: bool = False
    """Whether a piece that is a token is that token, whatever the merges say."""
    adds_bos: bool = False
    """Whether a prompt begins with BOS, unless the file says otherwise."""

    def make(self) -> PreTokenizer:
        """Make the pre-tokenizer of the tokenizers library."""
        cuts = [Split(Regex(pattern), "isolated") for pattern in self.patterns]
        return Sequence([*cuts, ByteLevel(add_prefix_space=False, use_regex=False)])


_GPT2 = r"'(?:s|t|re|ve|m|ll|d)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_SUFFIX = r"'(?:[sStTmMdD]|[rR][eE]|[vV][eE]|[lL][lL])"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_CJK = r"[\x{4e00}-\x{9fa5}\x{3040}-\x{309f}\x{30a0}-\x{30ff}]+"
_ASCII_MARKS = r"[!-/:-@\[-`{-~]"


def _words(digits: str, letter: str = r"\p{L}") -> str:
    """Words with the one sign before them, and numbers of `digits`."""
    others = r"[^\s\p{L}\p{N}]" if letter == r"\p{L}" else r"[^\s\p{L}\p{M}\p{N}]"
    return rf"{_SUFFIX}|[^\r\n\p{{L}}\p{{N}}]?{letter}+|{digits}| ?{others}+[\r\n]*|{_SPACES}"


def _cased_words(suffix: str, digits: str) -> str:
    """Words that begin anew at a capital letter behind a small one."""
    # As llama.cpp has it: only the letters of ASCII count as capital or small.
    capital, small = r"(?:(?=\p{L})[^a-z])", r"(?:(?=\p{L})[^A-Z])"
    before = r"[^\r\n\p{L}\p{N}]?"
    cased = f"{before}{capital}*{small}+{suffix}|{before}{capital}+{small}*{suffix}"
    return rf"{cased}|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"


_DEEPSEEK_3 = (
    r"\p{N}{1,3}",
    _CJK,
    rf"{_ASCII_MARKS}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}",
)
_DEEPSEEK_CJK = r"[\x{4e00}-\x{9fa5}\x{0800}-\x{4e00}\x{ac00}-\x{d7ff}]+"
# Letters that have a case, but for those that Unicode gave one later, and mathematical ones.
_CASED = r"[[\p{Lu}\p{Ll}\p{Lt}]&&[^\x{10d0}-\x{10ff}\x{1d400}-\x{1d7ff}]]"
_DEEPSEEK_LLM = (
    r"[\r\n]",
    rf"\s?{_CASED}+",
    r"\s?[!-/:-~\x{ff01}-\x{ff0f}\x{ff1a}-\x{ff5e}\x{2018}-\x{201f}\x{3000}-\x{3002}]+",
    r"\s+$",
    _DEEPSEEK_CJK,
    r"\p{N}+",
)
_DEEPSEEK_CODER = (
    r"[\r\n]",
    r"\s?\p{L}+",
    r"\s?\p{P}+",
    _DEEPSEEK_CJK,
    r"\p{N}",
)

_FAMILIES: dict[PreTokenizing, str] = {
    PreTokenizing((r"[\p{P}$+<=>^~|]+", _GPT2, r"\p{N}+", "[0-9]{3}")): "default",
    PreTokenizing((_GPT2,)): (
        "gpt-2 phi-2 mpt olmo jais trillion granite-docling gigachat a.x-4.0 mellum exaone4"
    ),
    PreTokenizing((r"\p{N}", _GPT2)): (
        "smollm starcoder refact command-r codeshell exaone minerva-7b mellum2"
    ),
    PreTokenizing((_words(r"\p{N}{1,3}"),), ignores_merges=True, adds_bos=True): (
        "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2"
    ),
    PreTokenizing((_words(r"\p{N}{1,3}"),)): "dbrx smaug-bpe glm4 chatglm-bpe",
    PreTokenizing((_words(r"\p{N}"),)): (
        "qwen2 deepseek-r1-qwen stablelm2 hunyuan solar-open megrez grok-2 kormo"
    ),
    PreTokenizing((_words(r"\p{N}", r"[\p{L}\p{M}]"),)): "qwen35",
    PreTokenizing((r"\p{N}{1,3}", _words(r"\p{N}+")), ignores_merges=True): "minicpm5",
    PreTokenizing((r"[\p{P}$+<=>^~|`]+", _GPT2, "[0-9]{3}")): "falcon",
    PreTokenizing((_cased_words("", r"\p{N}"),), ignores_merges=True, adds_bos=True): "tekken",
    PreTokenizing((_cased_words(f"(?:{_SUFFIX})?", r"\p{N}{1,3}"),)): (
        "gpt-4o llama4 kanana2 minimax-m2"
    ),
    PreTokenizing(_DEEPSEEK_3): "deepseek-v3 hunyuan-dense joyai-llm",
    PreTokenizing(_DEEPSEEK_LLM): "deepseek-llm",
    PreTokenizing(_DEEPSEEK_CODER): "deepseek-coder",
    PreTokenizing((r" ?[^(\s|.,!?…。，、।۔،)]+",)): "bloom poro-chat gpt3-finnish",
    PreTokenizing((r" ?[^(\s|.,!?…。，、।۔،)]+", r"\p{N}")): "viking",
}
PRE_TOKENIZERS = {name: kind for kind, names in _FAMILIES.items() for name in names.split()}
"""Every name that is known."""


def pre_tokenizing(name: str, file: str) -> PreTokenizing:
    """Return what a name stands for; the file is for the error. None given is "default"."""
    kind = PRE_TOKENIZERS.get(name or "default")
    if kind is None:
        raise ModelError(
            f"{file!r} cuts texts with the pre-tokenizer {name[:80]!r}, which univerb does not "
            f"know. {did_you_mean(name[:80], PRE_TOKENIZERS)} Use another model, or load this one "
            "as a folder with a tokenizer.json."
        )
    return kind

"""A GGUF file's own tokenizer: token for token what llama.cpp makes of the same file."""

import ctypes
import json
from functools import cache

import pytest

pytest.importorskip("gguf")

from hypothesis import given, settings
from hypothesis import strategies as st

from tiny_gguf import needs_llamacpp, write_random
from tiny_vocabularies import MIXED, byte_level_bpe, character_bpe, sentence_piece
from univerb.engines.llamacpp import gguf_tokenizer
from univerb.engines.llamacpp.binding import library
from univerb.engines.llamacpp.gguf_file import GgufFile
from univerb.engines.llamacpp.gguf_tokenizer import GgufTokenizer
from univerb.engines.llamacpp.native import NativeModel
from univerb.engines.llamacpp.pre_tokenizers import PRE_TOKENIZERS
from univerb.locations import converted_default, default_gguf
from univerb.tokenizer import Tokenizer

pytestmark = needs_llamacpp

TEXTS = [
    *MIXED.split("\n"),
    MIXED,
    "  lots   of    space  \n\n\n x \t\t y   ",
    "\n\n5 \n 7\t9  2",
    "x\r\ny\r\n\r\nz",
    "a'll WE'VE I'm can't 's O'Neil's",
    "<|im_start|>user\nhello<|im_end|> <s> </s> <unk> <end_of_turn>",
    "one [[user]] two [[user]]three",
    "!!! ... ;;== --> (a) [b] {c} #1 @x /path/to *bold* `code` ~~",
    "é é ﬁ ß 中文，标点。 ''' \"",
    "",
    " ",
    "\n",
]
SPELLINGS = "abzABZ 019.,;!?'\"()-_/\n\r\t$+=<>|^~`éÉßñжЖ中日本語の한ह١½🎉▁"
varied = st.one_of(
    st.text(st.sampled_from(SPELLINGS), max_size=40),
    st.lists(st.sampled_from(MIXED.split(" ")), max_size=12).map("".join),
    st.lists(st.sampled_from([" ", "  ", "\n", "tenant", "2013", "'s", "A", "é"])).map("".join),
)


class Reference:
    """llama.cpp's own tokenizer of a file."""

    def __init__(self, path):
        self._native, self._model = library(), NativeModel(path, 1)
        self._vocabulary = self._native.llama_model_get_vocab(self._model.weights.pointer)
        # The vocabulary is a pointer; the wheel's functions are declared where they are used.
        self._tokenize = self._native.llama_tokenize
        self._ends = self._native.llama_vocab_is_eog
        if isinstance(self._native, ctypes.CDLL):
            number, text, flag = ctypes.c_int32, ctypes.c_char_p, ctypes.c_bool
            pointer = ctypes.c_void_p
            array = ctypes.POINTER(number)
            self._tokenize.argtypes = [pointer, text, number, array, number, flag, flag]
            self._ends.argtypes, self._ends.restype = [pointer, number], flag

    def ids(self, text, is_prompt=False):
        content = text.encode()
        room = len(content) + 8
        ids = (ctypes.c_int32 * room)()
        count = self._tokenize(
            self._vocabulary, content, len(content), ids, room, is_prompt, is_prompt
        )
        assert count >= 0
        return list(ids[:count])

    def end_ids(self):
        return {i for i in range(self._model.static_size) if self._ends(self._vocabulary, i)}


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """Makes the tokenizer of a vocabulary twice: ours, and llama.cpp's."""
    folder = tmp_path_factory.mktemp("tokenizers")

    @cache
    def make(key):
        kind, options = json.loads(key)
        maker = {"bpe": byte_level_bpe, "spm": sentence_piece, "raw": character_bpe}
        vocabulary = maker[kind](**options)
        path = folder / f"{abs(hash(key))}.gguf"
        write_random(path, "llama", vocabulary, is_tied=True)
        return GgufTokenizer(GgufFile(path)), Reference(path)

    return lambda kind, **options: make(json.dumps([kind, options]))


def check(pair, text):
    ours, reference = pair
    assert ours.encode(text).ids == reference.ids(text), text
    assert ours.encode_prompt(text) == reference.ids(text, is_prompt=True), text


@pytest.mark.parametrize("pre", sorted(PRE_TOKENIZERS))
def test_every_pre_tokenizer_cuts_as_llama_cpp_does(both, pre):
    pair = both("bpe", pre=pre)
    for text in TEXTS:
        check(pair, text)
    assert pair[0].end_ids == pair[1].end_ids()
    assert pair[0].is_exact


FAMILIES = sorted({kind: name for name, kind in PRE_TOKENIZERS.items()}.values())


@pytest.mark.parametrize("pre", FAMILIES)
@settings(max_examples=40)
@given(data=st.data())
def test_any_text_is_tokenized_as_llama_cpp_does(both, pre, data):
    check(both("bpe", pre=pre), data.draw(varied))


SPACED = [
    ("spm", {}),
    ("spm", {"add_space_prefix": False}),
    ("spm", {"add_bos_token": False, "bos_token_id": 1, "eos_token_id": 2}),
    ("raw", {}),
]


@pytest.mark.parametrize(("kind", "options"), SPACED)
def test_sentence_piece_is_tokenized_as_llama_cpp_does(both, kind, options):
    pair = both(kind, **options)
    for text in TEXTS:
        check(pair, text)
    assert pair[0].end_ids == pair[1].end_ids()


@pytest.mark.parametrize(("kind", "options"), SPACED)
@settings(max_examples=60)
@given(data=st.data())
def test_any_text_is_cut_into_pieces_as_llama_cpp_does(both, kind, options, data):
    check(both(kind, **options), data.draw(varied))


def test_the_text_of_special_tokens_is_no_special_token_in_a_document(both):
    tokenizer, _ = both("bpe", pre="qwen2")
    text = "a<|im_end|>b"
    assert not tokenizer.special_ids & set(tokenizer.encode(text).ids)
    assert not tokenizer.special_ids & set(tokenizer.encode_inside(text).ids)
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
    assert 2 in tokenizer.encode_prompt(text)
    assert tokenizer.decode(tokenizer.encode_prompt(text)) == text
    assert "<|im_end|>" in tokenizer.added_texts
    assert "[[user]]" in tokenizer.added_texts


@pytest.mark.parametrize(("kind", "options"), [("bpe", {}), *SPACED])
@settings(max_examples=40)
@given(data=st.data())
def test_offsets_and_decoding_give_the_text_back(both, kind, options, data):
    tokenizer, _ = both(kind, **options)
    text = data.draw(varied.filter(lambda text: "▁" not in text))
    ids, offsets = tokenizer.encode_inside(text)
    assert tokenizer.decode(ids).removeprefix(" ") == text.removeprefix(" ")
    assert all(0 <= start <= end <= len(text) for start, end in offsets)
    stream = tokenizer.stream()
    streamed = stream.push(ids) + stream.flush()
    assert streamed.removeprefix(" ") == text.removeprefix(" ")


def test_bos_is_added_where_the_file_or_its_kind_says_so(both):
    assert both("bpe", pre="llama-bpe")[0].begin_ids == [1]
    assert both("bpe", pre="llama-bpe", add_bos_token=False)[0].begin_ids == []
    assert both("bpe", pre="qwen2")[0].begin_ids == []
    assert both("bpe", pre="qwen2", add_bos_token=True)[0].begin_ids == [1]
    assert both("spm")[0].begin_ids == [1]


def test_ends_are_those_that_llama_cpp_knows(both):
    roles = {"eot_token_id": 5, "eom_token_id": 6, "eos_token_id": 7}
    for ours, reference in (both("bpe", **roles), both("spm", eot_token_id=300)):
        assert ours.end_ids == reference.end_ids()


def test_the_merges_of_a_large_vocabulary_are_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("UNIVERB_CACHE", str(tmp_path / "cache"))
    path = write_random(tmp_path / "spm.gguf", "llama", sentence_piece(), is_tied=True)
    first = GgufTokenizer(GgufFile(path))
    monkeypatch.setattr(gguf_tokenizer, "_MANY", 1)
    assert GgufTokenizer(GgufFile(path)).to_json() == first.to_json()
    (kept,) = (tmp_path / "cache" / "merges").iterdir()
    with monkeypatch.context() as patch:
        patch.setattr(gguf_tokenizer, "_scored_merges", None)
        assert GgufTokenizer(GgufFile(path)).to_json() == first.to_json()
    for damage in (b"", b"damaged", kept.read_bytes()[:-3]):
        kept.write_bytes(damage)
        assert GgufTokenizer(GgufFile(path)).to_json() == first.to_json()


@pytest.mark.default_model
def test_the_default_models_file_has_the_tokenizer_of_its_folder():
    path = default_gguf()
    ours, reference = GgufTokenizer(GgufFile(path)), Reference(path)
    folder = Tokenizer.from_file(converted_default() / "tokenizer.json")
    assert ours.fingerprint() == folder.fingerprint()
    assert ours.special_ids == folder.special_ids
    assert ours.end_ids == reference.end_ids() == {0, 2, 4}
    for text in TEXTS:
        check((ours, reference), text)
        # The folder's does not cut numbers into digits before anything else.
        if not any(character.isnumeric() for character in text) and "<|" not in text:
            assert ours.encode(text) == folder.encode(text)

"""The tokenizer as text <-> ids: nothing lost, nothing added, whatever the kind."""

import functools
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import tokenizers
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors

from conftest import EOS, TEXT, make_tokenizer
from univerb.tokenizer import TextStream, Tokenizer

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
WORDS = sorted(set(TEXT.split()) | {"a"})

# SentencePiece writes a space as this character, so that a text cannot contain it.
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="▁"))
NUMBERS = st.lists(st.integers(1, 256) | st.integers(0, 999), max_size=12)
PROSE = st.lists(st.sampled_from([*WORDS, "😀", "é", "東京", "\n", "  ", "e\u0301"])).map(" ".join)


def metaspace(prepend: str) -> tokenizers.Tokenizer:
    """Return a Unigram model with byte fallback, as T5 and Gemma have."""
    characters = sorted(set(TEXT) - {" "})
    pieces = [("<unk>", 0.0), *((byte, -20.0) for byte in BYTES), ("▁", -3.0)]
    pieces += [(f"▁{word}", -5.0) for word in WORDS] + [(one, -8.0) for one in characters]
    rust = tokenizers.Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=True))
    rust.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prepend)
    rust.decoder = decoders.Sequence(
        [decoders.ByteFallback(), decoders.Metaspace(prepend_scheme=prepend)]
    )
    return rust


def prepended(words: Sequence[str] = WORDS) -> tokenizers.Tokenizer:
    """Return a BPE whose normalizer puts the space before the text, as Llama-2 has."""
    tokens = ["<unk>", *BYTES, "▁", *sorted(set("".join(words)))]
    merges: dict[tuple[str, str], None] = {}
    for word in words:
        piece = "▁"
        for character in word:
            merges[piece, character] = None
            piece += character
            tokens.append(piece)
    ids = {token: number for number, token in enumerate(dict.fromkeys(tokens))}
    rust = tokenizers.Tokenizer(
        models.BPE(ids, list(merges), unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    rust.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    rust.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return rust


def byte_level() -> tokenizers.Tokenizer:
    return make_tokenizer().backend_tokenizer


MAKERS: dict[str, Callable[[], tokenizers.Tokenizer]] = {
    "byte-level": byte_level,
    "metaspace-always": lambda: metaspace("always"),
    "metaspace-first": lambda: metaspace("first"),
    "prepended": prepended,
}
SPACE_ADDING = ["metaspace-always", "metaspace-first", "prepended"]


@functools.cache
def make(kind: str) -> Tokenizer:
    return Tokenizer(MAKERS[kind]())


@functools.cache
def raw(kind: str) -> tokenizers.Tokenizer:
    return MAKERS[kind]()


every_kind = pytest.mark.parametrize("kind", MAKERS)
space_adding = pytest.mark.parametrize("kind", SPACE_ADDING)


def streamed(stream: TextStream, groups: Sequence[Sequence[int]]) -> tuple[str, str]:
    """Return what came before the flush, and with it."""
    certain = "".join([stream.push(group) for group in groups])
    return certain, certain + stream.flush()


def grouped(ids: Sequence[int], cuts: Sequence[int]) -> list[list[int]]:
    places = [0, *sorted(cut % (len(ids) + 1) for cut in cuts), len(ids)]
    return [list(ids[a:b]) for a, b in zip(places, places[1:], strict=False)]


class TestRoundTrip:
    @given(text=TEXTS | PROSE)
    @example(text="")
    @example(text="  leading, trailing  \n\n")
    @example(text=f"a{EOS}b")
    def test_byte_level_text_comes_back_as_it_was(self, text: str) -> None:
        tokenizer = make("byte-level")
        assert tokenizer.decode(tokenizer.encode(text).ids) == text

    @space_adding
    @given(text=TEXTS | PROSE)
    @settings(max_examples=60)
    @example(text="The tenant")
    @example(text="\nThe tenant")
    @example(text="😀é")
    def test_the_space_that_was_added_is_the_only_change(self, kind: str, text: str) -> None:
        assume(text)
        tokenizer = make(kind)
        added = "" if text.startswith(" ") and kind != "prepended" else " "
        assert tokenizer.decode(tokenizer.encode(text).ids) == added + text

    @every_kind
    @given(text=PROSE, cut=st.integers(0))
    def test_text_decoded_in_two_parts_is_the_whole(self, kind: str, text: str, cut: int) -> None:
        tokenizer = make(kind)
        ids = tokenizer.encode(text).ids
        cut %= len(ids) + 1
        left, right = tokenizer.decode(ids[:cut]), tokenizer.decode(ids[cut:])
        assume(REPLACEMENT not in left + right)
        assert left + right == tokenizer.decode(ids)

    @every_kind
    def test_a_leading_space_is_part_of_what_ids_spell(self, kind: str) -> None:
        tokenizer = make(kind)
        ids = tokenizer.encode("The tenant shall").ids
        assert tokenizer.decode(ids[-1:])[-1] == "l"
        words = [tokenizer.decode([one]) for one in tokenizer.encode_inside("tenant shall").ids]
        assert words == [" tenant", " shall"]

    def test_a_leading_space_survives_where_a_line_break_has_no_token(self) -> None:
        pieces = [("<unk>", 0.0), ("▁", -3.0), ("▁The", -4.0), ("▁tenant", -4.0), ("▁a", -4.0)]
        rust = tokenizers.Tokenizer(models.Unigram(pieces, unk_id=0))
        rust.normalizer = normalizers.Sequence(
            [
                normalizers.Replace(Regex(r"\s"), " "),
                normalizers.Strip(left=False, right=True),
                normalizers.Replace(Regex(" {2,}"), "▁"),
            ]
        )
        rust.pre_tokenizer = pre_tokenizers.Metaspace()
        rust.decoder = decoders.Metaspace()
        tokenizer = Tokenizer(rust)
        assert tokenizer.decode(tokenizer.encode("The tenant").ids) == " The tenant"

    @every_kind
    def test_nothing_decodes_to_nothing(self, kind: str) -> None:
        assert make(kind).decode([]) == ""

    def test_a_tokenizer_that_frames_texts_does_not_frame_ours(self) -> None:
        rust = byte_level()
        rust.post_processor = processors.TemplateProcessing(
            single=f"{EOS} $A {EOS}", special_tokens=[(EOS, 0)]
        )
        assert rust.encode("the rent").ids[0] == 0
        assert 0 not in Tokenizer(rust).encode("the rent").ids


class TestInside:
    @given(text=TEXTS | PROSE)
    @example(text="😀 tenant")
    @example(text="é")
    def test_offsets_index_the_given_text(self, text: str) -> None:
        assume(text and not text[0].isspace() and REPLACEMENT not in text)
        tokenizer = make("byte-level")
        ids, offsets = tokenizer.encode_inside(text)
        assert tokenizer.decode(ids) == f" {text}"
        assert len(ids) == len(offsets)
        for number, (one, (start, end)) in enumerate(zip(ids, offsets, strict=True)):
            assert 0 <= start <= end <= len(text)
            spelled = tokenizer.decode([one])
            if REPLACEMENT not in spelled:
                assert text[start:end] == (spelled if number else spelled.removeprefix(" "))
        assert offsets[-1][1] == len(text)

    @space_adding
    @given(words=st.lists(st.sampled_from(WORDS), min_size=1))
    def test_offsets_of_every_kind_index_the_given_text(self, kind: str, words: list[str]) -> None:
        text = " ".join(words)
        tokenizer = make(kind)
        ids, offsets = tokenizer.encode_inside(text)
        for one, (start, end) in zip(ids, offsets, strict=True):
            assert text[start:end].strip() == tokenizer.decode([one]).strip()

    @every_kind
    @given(words=st.lists(st.sampled_from(WORDS), min_size=1))
    def test_a_text_inside_is_what_stands_behind_a_word(self, kind: str, words: list[str]) -> None:
        tokenizer = make(kind)
        alone = tokenizer.encode_inside(" ".join(words)).ids
        behind = tokenizer.encode_inside(" ".join(["rent", *words])).ids
        assert behind[-len(alone) :] == alone
        assert tokenizer.decode(alone) == " " + " ".join(words)

    @every_kind
    def test_a_space_that_is_given_is_not_doubled(self, kind: str) -> None:
        tokenizer = make(kind)
        assert tokenizer.decode(tokenizer.encode_inside(" The tenant").ids) == " The tenant"

    def test_the_added_space_is_noticed_whatever_words_the_vocabulary_has(self) -> None:
        tokenizer = Tokenizer(prepended(["The", "tenant"]))
        assert tokenizer.decode(tokenizer.encode_inside("The tenant").ids) == " The tenant"


class TestStream:
    @every_kind
    @given(text=TEXTS | PROSE)
    @settings(max_examples=60)
    @example(text="The tenant 😀 shall é 東京")
    @example(text=f"a{REPLACEMENT}b{REPLACEMENT}")
    def test_ids_one_at_a_time_give_the_text_of_the_whole(self, kind: str, text: str) -> None:
        tokenizer = make(kind)
        ids = tokenizer.encode(text).ids
        certain, whole = streamed(tokenizer.stream(), [[one] for one in ids])
        assert whole == tokenizer.decode(ids)
        assert certain.count(REPLACEMENT) <= text.count(REPLACEMENT)
        assert whole.startswith(certain)

    @every_kind
    @given(text=TEXTS | PROSE, cuts=st.lists(st.integers(0), max_size=8))
    @settings(max_examples=60)
    def test_ids_in_groups_give_the_text_of_the_whole(
        self, kind: str, text: str, cuts: list[int]
    ) -> None:
        tokenizer = make(kind)
        ids = tokenizer.encode(text).ids
        certain, whole = streamed(tokenizer.stream(), grouped(ids, cuts))
        assert whole == tokenizer.decode(ids)
        assert certain.count(REPLACEMENT) <= text.count(REPLACEMENT)

    @every_kind
    def test_text_is_not_held_back_without_need(self, kind: str) -> None:
        tokenizer = make(kind)
        stream = tokenizer.stream()
        pieces = [stream.push([one]) for one in tokenizer.encode_inside("tenant shall").ids]
        assert pieces == [" tenant", " shall"]
        assert stream.flush() == ""

    @every_kind
    @given(numbers=NUMBERS, cuts=st.lists(st.integers(0), max_size=12))
    def test_ids_that_spell_no_text_never_raise(
        self, kind: str, numbers: list[int], cuts: list[int]
    ) -> None:
        ids = [number % raw(kind).get_vocab_size() for number in numbers]
        streamed(make(kind).stream(), grouped(ids, cuts))

    @every_kind
    @given(numbers=NUMBERS, cuts=st.lists(st.integers(0), max_size=12))
    def test_ids_that_spell_no_text_stream_as_they_decode(
        self, kind: str, numbers: list[int], cuts: list[int]
    ) -> None:
        ids = [number % raw(kind).get_vocab_size() for number in numbers]
        _, whole = streamed(make(kind).stream(), grouped(ids, cuts))
        assert whole == make(kind).decode(ids)

    @every_kind
    def test_half_a_character_is_one_replacement_character(self, kind: str) -> None:
        half = "Ã" if kind == "byte-level" else "<0xC3>"
        assert make(kind).decode([raw(kind).token_to_id(half)]) == REPLACEMENT

    def test_two_streams_do_not_mix(self) -> None:
        tokenizer = make("byte-level")
        texts = ["The tenant 😀 shall", "é 東京 rent"]
        streams = [tokenizer.stream() for _ in texts]
        whole = ["", ""]
        ids = [tokenizer.encode(text).ids for text in texts]
        for step in range(max(map(len, ids))):
            for number, stream in enumerate(streams):
                whole[number] += stream.push(ids[number][step : step + 1])
        assert [text + s.flush() for text, s in zip(whole, streams, strict=True)] == texts


class TestOwnCopy:
    def test_padding_and_truncation_of_the_users_object_do_not_reach_ours(self) -> None:
        hf = make_tokenizer()
        expected = Tokenizer(hf.backend_tokenizer).encode(TEXT)
        hf.backend_tokenizer.enable_padding(length=500, pad_id=0, pad_token=EOS)
        hf.backend_tokenizer.enable_truncation(max_length=3)
        assert Tokenizer(hf.backend_tokenizer).encode(TEXT) == expected

    def test_padding_and_truncation_set_later_do_not_reach_ours(self) -> None:
        hf = make_tokenizer()
        ours = Tokenizer(hf.backend_tokenizer)
        expected = ours.encode(TEXT)
        hf(TEXT, padding="max_length", truncation=True, max_length=5)
        assert len(hf.backend_tokenizer.encode(TEXT).ids) == 5
        assert ours.encode(TEXT) == expected

    def test_the_users_object_stays_as_it_was(self) -> None:
        hf = make_tokenizer()
        hf.backend_tokenizer.enable_truncation(max_length=3)
        before = hf.backend_tokenizer.to_str()
        Tokenizer(hf.backend_tokenizer).encode(TEXT)
        assert hf.backend_tokenizer.to_str() == before

    def test_tokens_added_to_the_users_object_later_do_not_reach_ours(self) -> None:
        hf = make_tokenizer()
        ours = Tokenizer(hf.backend_tokenizer)
        expected = ours.encode(TEXT)
        hf.add_tokens(["tenant"])
        assert ours.encode(TEXT) == expected


class TestFingerprint:
    def test_equal_vocabularies_have_one_fingerprint(self) -> None:
        other = byte_level()
        other.enable_truncation(max_length=3)
        assert Tokenizer(byte_level()).fingerprint() == Tokenizer(other, [0]).fingerprint()

    @every_kind
    def test_writing_and_reading_keeps_the_fingerprint(self, kind: str, tmp_path: Path) -> None:
        path = tmp_path / "tokenizer.json"
        path.write_text(make(kind).to_json(), encoding="utf-8")
        assert Tokenizer.from_file(path).fingerprint() == make(kind).fingerprint()

    def test_another_vocabulary_has_another_fingerprint(self) -> None:
        prints = {make(kind).fingerprint() for kind in MAKERS if kind != "metaspace-first"}
        assert len(prints) == 3

    def test_one_more_token_changes_the_fingerprint(self) -> None:
        grown = byte_level()
        grown.add_tokens(["landlord-tenant"])
        assert Tokenizer(grown).fingerprint() != make("byte-level").fingerprint()

    def test_the_same_tokens_under_other_ids_change_the_fingerprint(self) -> None:
        content = json.loads(byte_level().to_str())
        vocabulary = content["model"]["vocab"]
        vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
        swapped = tokenizers.Tokenizer.from_str(json.dumps(content))
        assert Tokenizer(swapped).fingerprint() != make("byte-level").fingerprint()


class TestFile:
    def test_special_ids_are_those_that_the_file_flags(self, tmp_path: Path) -> None:
        rust = byte_level()
        rust.add_special_tokens(["<|user|>"])
        rust.add_tokens(["landlord-tenant"])
        rust.save(str(tmp_path / "tokenizer.json"))
        tokenizer = Tokenizer.from_file(tmp_path / "tokenizer.json")
        assert tokenizer.special_ids == {0, rust.token_to_id("<|user|>")}

    @every_kind
    def test_a_file_tokenizes_as_the_object_does(self, kind: str, tmp_path: Path) -> None:
        raw(kind).save(str(tmp_path / "tokenizer.json"))
        read = Tokenizer.from_file(tmp_path / "tokenizer.json")
        assert read.encode(TEXT) == make(kind).encode(TEXT)

"""Passages as units, against direct readings of docs/method.md, Training samples."""

import gzip
import itertools
import json
import sys

import numpy
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from nltk.tokenize import NLTKWordTokenizer
from tiny_world import make_beginning_tokenizer

from conftest import EOS, TEXT, data_directory, make_tokenizer
from univerb.errors import MissingExtra
from univerb.locations import DEFAULT_MODEL, locate
from univerb.phrase import Document
from univerb.phrases.fmm import FMMTable
from univerb.phrases.guards import PAPER_GUARDS
from univerb.phrases.tokenized import TokenArrays, TokenizedText, tokenize_text
from univerb.tokenizer import Tokenizer
from univerb.training.config import SampleConfig
from univerb.training.samples import Sample, fmm, make_builder, n_ids, n_words
from univerb.training.training_passages import Passages

HF = make_tokenizer()
TOKENIZER = Tokenizer(HF.backend_tokenizer, HF.all_special_ids)
PIECES = [
    *TEXT.split(),
    EOS,
    "\n",
    "\n\n",
    '"',
    "``",
    "(",
    ").",
    "cannot",
    "1984",
    "3.5",
    "é",
    "😀",
]
TEXTS = st.lists(
    st.tuples(st.sampled_from(PIECES), st.sampled_from([" ", " ", " ", "", "  "])), min_size=1
).map(lambda parts: "".join(itertools.chain.from_iterable(parts)))
GAPS = st.tuples(st.integers(0, 6), st.integers(0, 6)).map(lambda gap: (gap[0], sum(gap)))
SIZES = st.tuples(st.integers(2, 4), st.integers(0, 3)).map(lambda size: (size[0], sum(size)))


def read(text: str) -> TokenizedText:
    return tokenize_text(text, TOKENIZER, PAPER_GUARDS)


def phrases_of(sample: Sample) -> list[tuple[int, int]]:
    return [(begin, end) for begin, end in sample.units if end - begin > 1]


def may_be_phrase(text: TokenizedText, begin: int, end: int) -> bool:
    spelled = text.text[int(text.visible[begin]) : int(text.end[end - 1])]
    is_number = any(map(str.isdigit, spelled)) and not any(map(str.isalpha, spelled))
    return end - begin >= 2 and not text.is_masked[begin:end].any() and not is_number


def check_tiling(text: TokenizedText, sample: Sample, gap: tuple[int, int]) -> None:
    assert sample.ids == text.ids.tolist()
    edges = [0, *(end for _, end in sample.units)]
    assert [begin for begin, _ in sample.units] == edges[:-1]
    assert edges[-1] == len(sample.ids)
    assert all(begin < end for begin, end in sample.units)
    done = 0
    for begin, end in phrases_of(sample):
        assert begin - done >= gap[0]
        assert may_be_phrase(text, begin, end)
        done = end


@given(TEXTS, GAPS, SIZES, st.integers(0, 99))
@example("of the\npremises of the premises", (0, 0), (2, 2), 0)
@example(f"the tenant{EOS} shall pay", (0, 0), (2, 5), 0)
@example("a", (0, 0), (2, 5), 0)
def test_phrases_of_words_are_runs_of_nltk_words(text, gap, sizes, seed):
    tokens = read(text) if text.strip() else read("a")
    sample = n_words(sizes, gap)(tokens, numpy.random.default_rng(seed))
    check_tiling(tokens, sample, gap)
    words = list(NLTKWordTokenizer().span_tokenize(tokens.text))
    first = {start: place for place, (start, _) in enumerate(words)}
    last = {end: place for place, (_, end) in enumerate(words)}
    for begin, end in phrases_of(sample):
        start, stop = int(tokens.visible[begin]), int(tokens.end[end - 1])
        assert sizes[0] <= last[stop] - first[start] + 1 <= sizes[1]
        # The space before a phrase is its own.
        if start and tokens.text[start - 1] == " ":
            assert TOKENIZER.decode(sample.ids[begin:end]).startswith(" ")


@given(TEXTS, st.integers(0, 99))
def test_dense_phrases_of_words_leave_no_place_where_one_could_begin(text, seed):
    tokens = read(text) if text.strip() else read("a")
    sample = n_words((2, 3), (0, 0))(tokens, numpy.random.default_rng(seed))
    words = list(NLTKWordTokenizer().span_tokenize(tokens.text))
    spans = [(words[i][0], words[i + n][1]) for n in (1, 2) for i in range(len(words) - n)]
    possible = {
        first for first, last in tokens.aligned(spans) if may_be_phrase(tokens, first, last + 1)
    }
    assert not possible & {begin for begin, end in sample.units if end - begin == 1}


@given(TEXTS, GAPS, SIZES, st.integers(0, 99))
def test_phrases_of_ids_come_at_the_first_place_after_the_gap(text, gap, sizes, seed):
    tokens = read(text) if text.strip() else read("a")
    sample = n_ids(sizes, gap)(tokens, numpy.random.default_rng(seed))
    check_tiling(tokens, sample, gap)
    done = 0
    for begin, end in (*phrases_of(sample), (len(sample.ids), len(sample.ids))):
        assert end == begin or sizes[0] <= end - begin <= sizes[1]
        late = range(done + gap[1], begin)
        assert not any(
            may_be_phrase(tokens, place, place + size)
            for place in late
            for size in range(sizes[0], sizes[1] + 1)
            if place + size <= len(sample.ids)
        )
        done = end


def test_gaps_and_sizes_are_drawn_evenly():
    tokens = read("the tenant shall pay the rent of the premises " * 400)
    sample = n_ids((2, 5), (5, 8))(tokens, numpy.random.default_rng(0))
    phrases = phrases_of(sample)
    gaps = numpy.bincount([b[0] - a[1] for a, b in itertools.pairwise(phrases)])
    sizes = numpy.bincount([end - begin for begin, end in phrases[:-1]])
    for counts, low, high in ((gaps, 5, 8), (sizes, 2, 5)):
        assert counts[:low].sum() == 0 and len(counts) == high + 1
        assert counts[low:].min() > 0.7 * counts[low:].max()


@pytest.mark.parametrize("make", [n_words, n_ids])
def test_a_sample_is_a_function_of_text_and_generator(make):
    tokens = read(TEXT * 3)
    build = make()
    one, same, other = (build(tokens, numpy.random.default_rng(seed)) for seed in (7, 7, 8))
    assert one == same != other


@given(TEXTS, GAPS, st.integers(0, 99))
def test_fmm_takes_the_tables_longest_matches_that_the_gap_allows(text, gap, seed):
    tokens = read(f"{text} the tenant shall pay the rent")
    table = FMMTable.mine(read(TEXT).arrays(), (2, 4), 2)
    matches = table.match(tokens.arrays())
    found = list(zip(matches.first.tolist(), (matches.last + 1).tolist(), strict=True))
    dense = fmm(table, (0, 0))(tokens, numpy.random.default_rng(seed))
    assert phrases_of(dense) == [span for span in found if may_be_phrase(tokens, *span)]
    assert phrases_of(dense)
    fixed = (gap[0], gap[0])
    sample = fmm(table, fixed)(tokens, numpy.random.default_rng(seed))
    check_tiling(tokens, sample, fixed)
    taken, done = [], 0
    for begin, end in phrases_of(dense):
        if begin >= done + gap[0]:
            taken.append((begin, end))
            done = end
    assert phrases_of(sample) == taken


def test_a_config_names_its_builder():
    tokens = read(f"{TEXT} {TEXT}")
    documents = [Document(TEXT)] * 3
    for kind, expected in (("n-words", n_words((2, 3))), ("n-ids", n_ids((2, 3)))):
        build = make_builder(SampleConfig(kind=kind, sizes=(2, 3)), documents, TOKENIZER)
        samples = [one(tokens, numpy.random.default_rng(3)) for one in (build, expected)]
        assert samples[0] == samples[1]
    settings = SampleConfig(kind="fmm", sizes=(2, 16), gap=(0, 0), min_count=3)
    sample = make_builder(settings, documents, TOKENIZER)(tokens, numpy.random.default_rng(0))
    keys = [TOKENIZER.decode(sample.ids[begin:end]) for begin, end in phrases_of(sample)]
    # As long as possible, and never across punctuation.
    assert " The landlord shall give the tenant at least thirty days written notice" in keys
    rare = make_builder(SampleConfig(kind="fmm", min_count=100), documents, TOKENIZER)
    assert not phrases_of(rare(tokens, numpy.random.default_rng(0)))


def test_glue_and_parts_of_numbers_are_phrases_of_samples_as_in_the_paper():
    text = "of the rent. of the day, 1,500. 1,500 of the"
    settings = SampleConfig(kind="fmm", sizes=(2, 16), gap=(0, 0), min_count=2)
    build = make_builder(settings, [Document(text)], TOKENIZER)
    sample = build(read(f"Pay {text}"), numpy.random.default_rng(0))
    keys = [TOKENIZER.decode(sample.ids[begin:end]) for begin, end in phrases_of(sample)]
    assert keys == [" of the"] * 3


def test_phrases_are_counted_document_by_document_as_in_one_text():
    # A word right behind a line break has no space, and begins no phrase.
    texts = [f". {TEXT}", f". {TEXT} The tenant shall go.", ". The landlord shall pay." * 3]
    one, many = (
        FMMTable.mine(TokenArrays.concatenate(read(text).arrays() for text in parts), min_count=2)
        for parts in (["\n".join(texts)], texts)
    )
    assert len(one) > 50
    for column in ("tokens", "token_ends", "words", "word_ends", "counts"):
        assert numpy.array_equal(getattr(one, column), getattr(many, column))


@pytest.mark.parametrize("kind", ["n-words", "n-ids", "fmm"])
def test_the_token_before_a_text_is_in_no_phrase(kind):
    hf = make_beginning_tokenizer()
    tokenizer = Tokenizer(hf.backend_tokenizer, hf.all_special_ids)
    documents = [Document(TEXT)] * 3
    passage = Passages(documents, tokenizer, 256).tokens(0, 0)
    settings = SampleConfig(kind=kind, gap=(0, 0), min_count=3)
    sample = make_builder(settings, documents, tokenizer)(passage, numpy.random.default_rng(0))
    check_tiling(passage, sample, (0, 0))
    # The first phrase begins right behind it.
    assert sample.units[0] == (0, 1) and sample.units[1][0] == 1 < sample.units[1][1] - 1


@pytest.mark.parametrize(("kind", "longest"), [("n-words", 5), ("n-ids", 5), ("fmm", 16)])
def test_phrases_are_as_long_as_in_the_paper_unless_sizes_say_otherwise(kind, longest):
    assert SampleConfig(kind=kind).sizes == (2, longest)
    assert SampleConfig(kind=kind, sizes=(3, 4)).sizes == (3, 4)


def test_words_need_nltk(monkeypatch):
    monkeypatch.setitem(sys.modules, "nltk.tokenize", None)
    with pytest.raises(MissingExtra, match=r"univerb\[nltk\]"):
        n_words()


def test_words_of_real_text_are_phrases_that_tokenize_to_themselves():
    own = Tokenizer.from_file(locate(DEFAULT_MODEL) / "tokenizer.json")
    with gzip.open(data_directory() / "wiki" / "valid.jsonl.gz", "rt", encoding="utf-8") as lines:
        documents = [Document(json.loads(line)["text"]) for line in itertools.islice(lines, 30)]
    texts = Passages(documents, own, 256)
    build = n_words()
    keys, tokens = [], 0
    for index in range(len(texts)):
        passage = texts.tokens(0, index)
        sample = build(passage, numpy.random.default_rng(index))
        check_tiling(passage, sample, (5, 12))
        keys += [sample.ids[begin:end] for begin, end in phrases_of(sample)]
        tokens += len(sample.ids)
    same = sum(own.encode(own.decode(key)).ids == key for key in keys) / len(keys)
    mean = sum(map(len, keys)) / len(keys)
    assert same >= 0.99
    assert 3.0 < mean < 6.0
    assert 1 / 16 < len(keys) / tokens < 1 / 10


@settings(max_examples=20)
@given(st.text(max_size=300), GAPS)
def test_any_text_is_tiled(text, gap):
    tokens = read(f"a{text}")
    for make in (n_words, n_ids):
        sample = make((2, 5), gap)(tokens, numpy.random.default_rng(0))
        check_tiling(tokens, sample, gap)


def test_two_words_that_are_one_token_are_no_phrase_and_make_no_gap():
    """NLTK reads cannot as can and not."""
    hf = make_tokenizer()
    hf.add_tokens([" cannot", "of"])
    text = tokenize_text("of cannot the premises", Tokenizer(hf.backend_tokenizer))
    sample = n_words((2, 2), (1, 1))(text, numpy.random.default_rng(0))
    assert [unit for unit in sample.units if unit[1] - unit[0] > 1] == [(2, len(text.ids))]

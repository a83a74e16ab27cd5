"""The training text as passages: stretches of the documents, cut between words."""

import tracemalloc
from pathlib import Path

import numpy
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tiny_world import make_beginning_tokenizer

from conftest import TEXT, make_tokenizer
from univerb.documents import formats, read
from univerb.errors import DocumentError
from univerb.phrase import Document
from univerb.phrases.guards import PAPER_GUARDS
from univerb.tokenizer import Tokenizer
from univerb.training.training_documents import TrainingDocuments
from univerb.training.training_passages import Passages

HF = make_tokenizer()
TOKENIZER = Tokenizer(HF.backend_tokenizer, HF.all_special_ids)
BEGINNING = Tokenizer(make_beginning_tokenizer().backend_tokenizer, HF.all_special_ids)
WORDS = st.sampled_from(
    ["tenant", "the", "a", "東京都", "x" * 300, " ", "  ", "\r\n", "\n\n", "é."]
)


def epoch(text: str, block: int) -> list[str]:
    """Return the passages of a text in the order of the text."""
    passages = Passages([Document(text, "one")], TOKENIZER, block)
    texts = [passages.tokens(0, index).text for index in range(len(passages))]
    order = numpy.random.default_rng((0, 0)).permutation(len(passages))
    return [texts[i] for i in numpy.argsort(order)]


@settings(max_examples=60)
@given(st.lists(WORDS, max_size=60).map(" ".join).map("the".__add__))
@example("東" * 3000)
@example(" " * 3000 + "a")
@example("a" * 3000 + " b")
def test_passages_are_stretches_of_the_text_in_its_order(text):
    """Each is the beginning of its own stretch, of which it may lack the end (the block)."""
    place = 0
    for part in epoch(text, 8):
        place = text.index(part, place) + len(part)


@pytest.mark.parametrize("text", ["漢字仮名交じり文" * 500, "x" * 4000])
def test_a_text_without_spaces_has_passages_too(text):
    # What is left at the end may belong to the passage before.
    assert min(map(len, epoch(text, 64)[:-1])) > 0


def test_a_passage_of_a_huge_text_without_spaces_reads_a_small_part_of_it():
    passages = Passages([Document("文" * 4_000_000, "one")], TOKENIZER, 64)
    assert all(len(passages.tokens(0, index).ids) == 64 for index in range(20))


def test_words_are_not_cut_where_there_are_spaces():
    words = TEXT.split()
    for part in epoch(TEXT * 9, 16)[1:]:
        assert part.split()[0] in words or TEXT.split()[-1] + words[0] in part


# Models that want a token before a text


@pytest.mark.parametrize("block", [16, 64])
def test_a_passage_begins_as_a_prompt_does(block):
    documents = [Document(TEXT, "one")]
    passages, plain = (Passages(documents, t, block) for t in (BEGINNING, TOKENIZER))
    for index in range(len(passages)):
        passage = passages.tokens(0, index)
        prompt = BEGINNING.encode_prompt(passage.text)
        assert passage.ids.tolist() == prompt
        assert 0 < len(prompt) <= block
        # Its first token is read, but is part of no phrase.
        assert passage.is_masked[0] and not passage.may_start[0] and not passage.may_end[0]
        assert plain.tokens(0, index).text.startswith(passage.text)
    assert passages.fingerprint() != plain.fingerprint()
    as_paper = Passages(documents, TOKENIZER, block, PAPER_GUARDS)
    assert as_paper.fingerprint() != plain.fingerprint()
    assert as_paper.tokens(0, 0).is_content.all() and not plain.tokens(0, 0).is_content.all()


def test_without_such_a_token_a_passage_is_its_text():
    assert (TOKENIZER.begin_ids, BEGINNING.begin_ids) == ([], [HF.eos_token_id])
    passage = Passages([Document(TEXT, "one")], TOKENIZER, 64).tokens(0, 0)
    assert passage.ids.tolist() == TOKENIZER.encode_prompt(passage.text)


# Files of many articles


def write_wikitext(path: Path, articles: int, sentences: int = 9) -> Path:
    """Write a made-up WikiText file, in which every article has words of its own."""
    with path.open("w", encoding="utf-8") as file:
        for number in range(articles):
            text = f"tenant{number} pays the <unk> well @-@ kept rent{number} . " * sentences
            file.write(f" \n = Article {number} = \n \n {text}\n \n = = Rent = = \n \n {text}\n")
    return path


def test_no_passage_crosses_articles(tmp_path):
    path = write_wikitext(tmp_path / "wiki.train.tokens", 5)
    documents = TrainingDocuments([str(path)], "cog")
    assert [d.name for d in documents] == [f"wiki.train.tokens#Article {n}" for n in range(5)]
    passages = Passages(documents, TOKENIZER, 64)
    for index in range(len(passages)):
        text = passages.tokens(0, index).text
        assert len({n for n in range(5) if f"tenant{n}" in text or f"rent{n}" in text}) <= 1
        assert " = " not in text and "@-@" not in text


@pytest.mark.parametrize(
    ("form", "word"), [("raw", "well @-@ kept"), ("cog", "<|endoftext|> well-kept")]
)
def test_the_form_of_wikitext_is_a_choice(tmp_path, form, word):
    path = write_wikitext(tmp_path / "a.tokens", 2)
    documents = TrainingDocuments([str(path)], form)
    assert word in documents[-1].text
    # All of its paragraphs lack words.
    with pytest.raises(DocumentError, match="natural"):
        TrainingDocuments([str(path)], "natural")


def test_files_of_all_kinds_and_a_limit(tmp_path):
    path = write_wikitext(tmp_path / "a.tokens", 3)
    (tmp_path / "b.txt").write_text(TEXT)
    names = (str(path), str(tmp_path / "b.txt"))
    documents = TrainingDocuments(names)
    assert [d.name for d in documents[2:]] == ["a.tokens#Article 2", "b.txt"]
    assert len(TrainingDocuments(names, limit=2)) == 2
    with pytest.raises(DocumentError, match="does not exist"):
        TrainingDocuments([str(tmp_path / "c.tokens")])
    path.write_bytes(b"\xff\xfe\xff\n")
    with pytest.raises(DocumentError, match="UTF-8"):
        TrainingDocuments([str(path)])


def test_a_file_of_articles_may_be_larger_than_a_document(tmp_path, monkeypatch):
    """WikiText-103's training file has 539 MB."""
    path = write_wikitext(tmp_path / "wiki.train.tokens", 20)
    for module in (read, formats):
        monkeypatch.setattr(module, "MAX_BYTES", 1000, raising=False)
    assert path.stat().st_size > 10_000
    assert len(TrainingDocuments([str(path)])) == 20


def test_memory_does_not_grow_with_the_file(tmp_path):
    peaks = []
    for articles in (100, 1000):
        path = write_wikitext(tmp_path / "wiki.train.tokens", articles, 20)
        tracemalloc.start()
        documents = TrainingDocuments([str(path)])
        passages = Passages(documents, TOKENIZER, 256)
        for index in range(8):
            passages.tokens(0, index)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] - peaks[0] < 0.2 * path.stat().st_size

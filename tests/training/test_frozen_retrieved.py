"""Passages with what retrieval brings, their stretches, and the cache of the LM's states."""

from pathlib import Path

import numpy
import pytest
import torch
from frozen_world import (
    DOCUMENTS,
    LONG,
    make_cache,
    make_config,
    make_lm,
    make_passages,
    make_settings,
    states_of,
)
from hypothesis import given
from hypothesis import strategies as st
from tiny_world import make_beginning_tokenizer

from univerb.corpus import open_corpus
from univerb.corpus.build import build_corpus
from univerb.documents.chunks import Chunk
from univerb.errors import CheckpointError
from univerb.modeling.dynamic import DynamicLM
from univerb.phrase import Document
from univerb.retrieval.base import Hit
from univerb.training.frozen import states
from univerb.training.frozen.states import GROUP, PassageStates, read_states
from univerb.training.frozen.stretches import spans, stretches
from univerb.training.frozen.windows import windows


@pytest.fixture(scope="module")
def lm() -> DynamicLM:
    return make_lm()


class Shelf:
    """A retriever that finds all of its chunks, and notes what it was asked for."""

    def __init__(self, *names: str) -> None:
        self.chunks = [Chunk(name, 0, f"The premises of {name} are void.") for name in names]
        self.asked: list[tuple[str, int]] = []

    def search(self, query: str, k: int) -> list[Hit]:
        self.asked.append((query, k))
        return [Hit(chunk, 1.0) for chunk in self.chunks[:k]]


def in_order(names: list[str]) -> list[str]:
    return [f"The premises of {name} are void." for name in names]


def pool_text(lm: DynamicLM, pool) -> str:
    return lm.tokenizer.decode([token for token in pool.ids.tolist() if token >= 0])


# Retrieval


def test_a_passages_own_document_is_never_among_its_chunks(lm):
    shelf = Shelf("d0", "d50", "other", "another")
    passages = make_passages(lm, make_config(chunks=2), retriever=shelf)
    own = [passages._passages.text(0, index).document.name for index in range(30)]
    assert {"d0", "d50", "d100"} <= set(own)
    for index in range(30):
        names = [c.document for c in shelf.chunks if c.document != own[index]][:2]
        found = pool_text(lm, passages.text(index).pool)
        assert found.replace(" ", "") == "".join(in_order(names)).replace(" ", "")
    assert {k for _, k in shelf.asked} == {4}


def test_not_even_where_a_corpus_has_it_by_another_name(lm, tmp_path):
    renamed = [Document(document.text, f"folder/{document.name}") for document in DOCUMENTS]
    build_corpus(tmp_path / "corpus", renamed, lm)
    corpus = open_corpus(tmp_path / "corpus")
    passages = make_passages(lm, make_config(chunks=20), retriever=corpus)
    for index in range(8):
        own = passages._passages.text(0, index)
        # All documents say nearly the same: their chunks are found.
        found = passages._retrieved(own)
        assert found and not any(chunk.text in own.document.text for chunk in found)
        others = corpus.search(own.text[:60], 40)
        assert any(hit.chunk.document == f"folder/{own.document.name}" for hit in others)


def test_retrieval_is_asked_with_the_first_tokens_of_a_passage(lm):
    shelf = Shelf("other")
    passages = make_passages(lm, make_config(first=20), retriever=shelf)
    for index in range(5):
        passages.text(index)
        text = passages._passages.text(0, index).text
        assert text.startswith(shelf.asked[-1][0])
        assert len(lm.tokenizer.encode(shelf.asked[-1][0]).ids) == 20


def test_a_corpus_retrieves_and_may_be_asked_for_nothing(lm, tmp_path):
    build_corpus(tmp_path / "corpus", DOCUMENTS, lm)
    corpus = open_corpus(tmp_path / "corpus")
    found = make_passages(lm, make_config(chunks=2), retriever=corpus).text(0)
    assert len(found.pool.ids) > 20
    none = make_passages(lm, make_config(chunks=0), retriever=corpus).text(0)
    assert len(none.pool.ids) == 0 and none.begin == 0
    assert none.ids.tolist() == make_passages(lm, make_config())._passages.tokens(0, 0).ids.tolist()


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_a_share_of_the_passages_has_chunks_before_it(lm, share):
    config = make_config(context_share=share, context_chunks=2)
    passages, shelf = make_passages(lm, config), Shelf("one", "two", "three")
    passages._retriever = shelf
    before = "".join(f"{text}\n\n" for text in in_order(["one", "two"]))
    counts = 0
    for index in range(40):
        found = passages.text(index)
        whole = lm.tokenizer.decode(found.ids.tolist())
        own = passages._passages.text(0, index).text
        if found.begin:
            counts += 1
            assert lm.tokenizer.decode(found.ids[: found.begin].tolist()) == before
            assert own.startswith(lm.tokenizer.decode(found.ids[found.begin :].tolist()))
            assert len(found.ids) == config.data.block
        else:
            assert own.startswith(whole)
        # The same, with a break for line ends and at the end.
        assert len(found.text.ids) == len(found.ids) + 1 and found.text.ids[-1] == -1
        kept = found.text.ids[:-1] >= 0
        assert (found.text.ids[:-1][kept] == found.ids[kept]).all()
    assert counts == {0.0: 0, 0.5: counts, 1.0: 40}[share]
    assert share != 0.5 or 10 < counts < 30


def test_a_passage_is_a_function_of_seed_and_index(lm):
    def texts(seed: int, order) -> list[list[int]]:
        passages = make_passages(lm, make_config(run={"seed": seed}))
        found = {index: passages.text(index) for index in order}
        return [[*found[i].ids.tolist(), found[i].begin] for i in range(12)]

    forwards = texts(0, range(12))
    assert forwards == texts(0, reversed(range(12)))
    assert forwards != texts(1, range(12))


def test_an_lm_that_wants_a_token_before_a_text_reads_it_first():
    plain = make_lm()
    lm = DynamicLM.wrap(plain.model, make_beginning_tokenizer(), plain.encoder)
    for index in range(8):
        found = make_passages(lm, make_config(context_share=0.5)).text(index)
        assert found.ids[0] == lm.tokenizer.begin_ids[0] and found.text.ids[0] == -1
        assert lm.tokenizer.begin_ids[0] not in found.ids[1:]
        assert windows(found.text, (2, 8)).start.min() > 0


# Stretches


@given(st.integers(0, 40), st.integers(0, 300), st.integers(8, 64))
def test_stretches_are_as_long_as_what_comes_before_and_cover_the_rest(begin, size, first):
    nothing = torch.empty(0)
    ids = torch.zeros(begin + size, dtype=torch.int32)
    passage = PassageStates(ids, None, begin, None, nothing, nothing, nothing, nothing)
    found = spans(passage, first)
    for start, end in found:
        assert end - start >= 16
        assert end - start == start - begin or end == len(ids)
        assert end - start <= start - begin
    covered = [at for start, end in found for at in range(start, end)]
    assert covered == sorted(set(covered))
    left_out = set(range(begin + first, len(ids))) - set(covered)
    # Only what is too short for a stretch: the first one of a small `first`, and the last.
    assert len(left_out) < 16 + (first if first < 16 else 0)


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_candidates_are_those_of_chunks_and_of_the_text_before(lm, share):
    passage = states_of(lm, 3, context_share=share)
    settings = make_settings(context_share=share, max_options=None)
    parts = stretches(passage, settings, numpy.random.default_rng(0))
    assert [(p.stretch.begin, p.stretch.end) for p in parts] == spans(passage, settings.first)
    for pool, made, votes in parts:
        found = {tuple(row[:n]) for row, n in zip(pool.ids.tolist(), pool.length, strict=True)}
        allowed = keys_in(windows(passage.pool, settings.sizes))
        allowed |= keys_in(windows(passage.text, settings.sizes, passage.begin, made.begin))
        text = passage.text.ids.tolist()
        near = set(text[made.begin - 4 : made.end])
        assert found == {key for key in allowed if key[0] in near}
        assert len(made.option)
        assert set(votes.tokens.tolist()) == {key[0] for key in allowed}
    # What stands before the passage is not the user's text: it is among the chunks anyway.
    assert bool(passage.begin) == bool(share)


def keys_in(found) -> set[tuple[int, ...]]:
    return {
        tuple(found.ids[row, : column + 1].tolist())
        for row, column in zip(*numpy.nonzero(found.is_phrase), strict=True)
    }


# States


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_states_are_those_of_the_lm(name):
    lm = make_lm(name)
    found = states_of(lm)
    with torch.no_grad():
        ids = found.ids.long()[None]
        hidden = lm.model.base_model(input_ids=ids).last_hidden_state[0]
        logits = lm.model(input_ids=ids).logits[0]
    torch.testing.assert_close(found.hidden, hidden.half())
    torch.testing.assert_close(found.logsumexp, logits.logsumexp(-1))
    assert torch.equal(found.best.long(), logits.argmax(-1))
    own = logits[:-1].log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
    torch.testing.assert_close(found.next_logprob[:-1], own)
    assert found.next_logprob[-1] == 0


def assert_same(left: PassageStates, right: PassageStates) -> None:
    ours, theirs = left.to_tensors(), right.to_tensors()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*.safetensors"))


def test_states_are_read_again_from_the_disk(lm, tmp_path, monkeypatch):
    config = make_config()
    first = make_cache(tmp_path, lm, config).passage(3)
    assert files(tmp_path) == ["000000.safetensors"]

    def not_again(*_):
        raise AssertionError

    monkeypatch.setattr(states, "read_states", not_again)
    again = make_cache(tmp_path, lm, config).passage(3)
    assert_same(first, again)
    assert (again.begin, type(again.text)) == (first.begin, type(first.text))
    with pytest.raises(AssertionError):
        make_cache(tmp_path, make_lm("gpt2"), config).passage(3)


@pytest.mark.parametrize("damage", [lambda raw: raw[: len(raw) // 2], lambda _: b""])
def test_damaged_states_are_computed_again(lm, tmp_path, damage):
    config = make_config()
    first = make_cache(tmp_path, lm, config).passage(0)
    (path,) = tmp_path.rglob("*.safetensors")
    good = path.read_bytes()
    path.write_bytes(damage(good))
    assert_same(make_cache(tmp_path, lm, config).passage(0), first)
    assert path.read_bytes() == good


def test_states_that_are_no_longer_in_use_are_deleted(lm, tmp_path):
    config = make_config()
    cache = make_cache(tmp_path, lm, config, keep=2)
    for index in range(5):
        cache.passage(index * GROUP)
        newest = range(max(index - 2, 0), index + 1)
        assert files(tmp_path) == [f"{number:06d}.safetensors" for number in newest]
    # A run that resumes looks at its first passages again.
    again = make_cache(tmp_path, lm, config, keep=2)
    again.passage(0)
    assert_same(again.passage(4 * GROUP), cache.passage(4 * GROUP))
    again.passage(5 * GROUP)
    assert files(tmp_path) == [f"{number:06d}.safetensors" for number in (3, 4, 5)]


def test_a_passage_without_text_has_no_states(lm, tmp_path):
    """Of what is left at a document's end nothing may be a word's beginning."""
    words = (LONG * 2)[: 2 * 4 * 96 - 1] + "xx"
    documents = [Document(words, "cut"), Document(LONG, "long")]
    config = make_config(context_share=0.0)
    cache = make_cache(tmp_path, lm, config, documents)
    made = [cache.passage(index) for index in range(GROUP)]
    sizes = [len(each.ids) for each in made]
    assert 0 in sizes and max(sizes) > 90
    again = make_cache(tmp_path, lm, config, documents)
    for index, each in enumerate(made):
        assert_same(again.passage(index), each)
        parts = stretches(each, config.frozen, numpy.random.default_rng(0))
        assert bool(parts) == (len(each.ids) > 32)


def test_a_single_document_has_the_candidates_of_its_own_text(lm):
    config = make_config(context_share=1.0)
    found = make_passages(lm, config, [Document(LONG, "alone")]).text(0)
    assert len(found.pool.ids) == 0 and found.begin == 0
    parts = stretches(read_states(lm, found), config.frozen, numpy.random.default_rng(0))
    assert parts and all(len(part.pool.keys) for part in parts)


def test_states_of_half_precision_are_nearly_the_same(lm, tmp_path):
    half = DynamicLM.wrap(make_lm().model.bfloat16(), lm.hf_tokenizer, lm.encoder)
    config = make_config()
    exact, rough = (make_cache(tmp_path, each, config).passage(0) for each in (lm, half))
    assert len(list(tmp_path.iterdir())) == 2
    assert torch.equal(exact.ids, rough.ids)
    assert rough.hidden.dtype == torch.float16 and rough.next_logprob.dtype == torch.float32
    assert 0 < (exact.hidden.float() - rough.hidden.float()).abs().mean() < 0.05
    assert 0 < (exact.next_logprob - rough.next_logprob).abs().mean() < 0.2


def test_a_folder_that_cannot_be_written_is_named(lm, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"cannot write.*frozen\.cache"):
        make_cache(tmp_path / "file", lm, make_config()).passage(0)

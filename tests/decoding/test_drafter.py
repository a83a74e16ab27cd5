"""Drafts are what the documents say next; what they hold is found again as phrases."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import stir
from univerb.decoding.drafter import DocumentLookup, PromptLookup
from univerb.decoding.loop import batch, generate
from univerb.phrase import Document, Phrase
from univerb.vocabulary import DynamicVocabulary

PROMPT = "The tenant shall have"


def ngrams(ids, longest=5, size=1000):
    """All n-grams of a text, as a source of phrases gives them."""
    keys = {
        tuple(ids[at : at + count])
        for count in range(2, longest + 1)
        for at in range(len(ids) - count + 1)
    }
    return DynamicVocabulary(size, [Phrase(key, "x") for key in sorted(keys)])


def test_a_draft_goes_on_as_the_text_does_beyond_any_phrase():
    text = list(range(10, 40))
    drafts = DocumentLookup(ngrams(text))
    assert drafts.find([1, 2, 12, 13, 14], 20) == list(range(15, 35))
    assert drafts.find([12, 13, 14], 3) == [15, 16, 17]
    assert drafts.find(text, 9) == [], "the text ends there"
    assert drafts.find([13, 14], 9) == [], "two tokens alone are no context"
    assert drafts.find([], 9) == drafts.find([12, 13, 14], 0) == []


def test_phrases_that_come_later_are_followed():
    vocabulary = DynamicVocabulary(100)
    drafts = DocumentLookup(vocabulary)
    assert drafts.find([1, 2, 3], 5) == []
    vocabulary.add([Phrase((1, 2, 3, 4), "x"), Phrase((2, 3, 4, 5), "y")])
    assert drafts.find([9, 1, 2, 3], 5) == [4, 5]


@given(st.lists(st.integers(0, 5), max_size=30), st.lists(st.integers(0, 5), max_size=30))
def test_units_are_the_whole_text_in_longest_phrases(document, text):
    vocabulary = ngrams(document)
    drafts = DocumentLookup(vocabulary)
    drafts.find([], 0)
    at = 0
    for begin, end, unit in drafts.units(text):
        assert begin == at < end
        at = end
        if unit is None:
            assert end == begin + 1
            assert all(vocabulary.find(tuple(text[begin:stop])) is None
                       for stop in range(begin + 2, min(begin + 6, len(text)) + 1))  # fmt: skip
        else:
            assert vocabulary.phrase(unit).ids == tuple(text[begin:end])
    assert at == len(text)


def test_inactive_phrases_are_not_named():
    vocabulary = DynamicVocabulary(100, [Phrase((1, 2, 3), "x")])
    drafts = DocumentLookup(vocabulary)
    drafts.find([], 0)
    assert list(drafts.units([1, 2, 3])) == [(0, 3, 100)]
    vocabulary.remove([100])
    assert [unit for _, _, unit in drafts.units([1, 2, 3])] == [None] * 3


def test_verify_reads_several_tokens_of_its_own_text_in_one_pass(tiny):
    lm = stir(tiny)
    prompt = [3, 5, 7]
    plain = generate(lm, prompt, max_tokens=60, ignore_eos=True)
    ids = [token for piece in plain.pieces for token in piece.ids]
    vocabulary = ngrams(ids, 8, lm.static_size)
    checked = generate(lm, prompt, vocabulary, mode="verify", draft_bias=99.0, max_tokens=60,
                       ignore_eos=True)  # fmt: skip
    assert [t for piece in checked.pieces for t in piece.ids] == ids
    assert checked.stats.steps < 40
    assert sum(len(piece.ids) for piece in checked.pieces if piece.is_phrase) > 30


def test_the_sources_of_what_a_draft_brought_are_its_documents(tiny):
    lm = stir(tiny)
    text = generate(lm, "the tenant", max_tokens=40, ignore_eos=True).text
    document = Document("the tenant" + text, "own.txt")
    found = generate(lm, "the tenant", lm.vocabulary([document]), mode="verify", draft_bias=99.0,
                     max_tokens=40, ignore_eos=True)  # fmt: skip
    assert found.text == text
    for phrase in found.phrases:
        span = phrase.sources[0]
        assert document.text[span.start : span.end] == phrase.text.strip()


def test_a_text_goes_on_as_it_did_before_and_round_where_it_ends():
    assert PromptLookup(8).find([1, 2, 3, 4, 5, 9, 1, 2], 3, 2) == ([4, 5], 3)
    twice = [1, 2, 3, 4, 5, 9, 1, 2, 3, 8, 1, 2]
    assert PromptLookup(8).find(twice, 3, 1) == ([8], 3), "the last time counts"
    longer = [7, 1, 2, 4, 9, 1, 2, 8, 7, 1]
    assert PromptLookup(8).find(longer, 2, 1) == ([4], 3), "but first the longer context"
    assert PromptLookup(8).find([7, 5, 6, 7, 5], 6, 7) == ([7, 5, 6, 7, 5, 6, 7], 3)
    assert PromptLookup(8).find([1, 2], 3, 5) == PromptLookup(8).find([], 3, 5) == ([], 0)


@given(st.lists(st.integers(0, 2), min_size=1, max_size=40), st.integers(1, 9))
def test_what_a_history_says_stood_in_the_text(ids, most):
    """It is the continuation of an earlier place, found also when the text grew bit by bit."""
    grown = PromptLookup(8)
    for end in range(len(ids) - 1):
        grown.find(ids[:end], ids[end], 1)
    found, context = grown.find(ids[:-1], ids[-1], most)
    assert (found, context) == PromptLookup(8).find(ids[:-1], ids[-1], most)
    assert bool(found) == (ids[-1] in ids[:-1])
    if found:
        places = range(context, len(ids))
        before = [at for at in places if ids[at - context : at] == ids[-context:]]
        whole = [*ids, *found]
        assert whole[before[-1] : before[-1] + most] == found


def test_a_history_that_was_wrong_is_believed_less():
    history = PromptLookup(8)
    for stood, rows in ((8, 16), (16, 32), (32, 32), (5, 10), (1, 6), (2, 6), (4, 8)):
        history.update(accepted=stood)
        assert history.rows == rows


def flat(generation):
    return [token for piece in generation.pieces for token in piece.ids]


@pytest.mark.parametrize("mode", ["verify", "unfold"])
def test_a_guess_never_goes_beyond_the_budget(tiny, mode):
    lm = stir(tiny)
    given = {"mode": mode, "ignore_eos": True, "overshoot": "allow", "phrase_bias": -50.0}
    own = flat(generate(lm, "the tenant", max_tokens=60, ignore_eos=True))
    vocabulary = ngrams(own, 8, lm.static_size)
    for most in range(1, 24):
        found = generate(lm, "the tenant", vocabulary, draft_bias=99.0, max_tokens=most, **given)
        assert flat(found) == own[:most]


def test_without_phrases_nothing_is_guessed(circling):
    given = {"max_tokens": 40, "ignore_eos": True}
    plain = generate(circling, PROMPT, **given)
    empty = generate(
        circling, PROMPT, circling.vocabulary(), draft_bias=6.0, mode="unfold", **given
    )
    assert (empty.stats.steps, empty.stats.rows) == (plain.stats.steps, plain.stats.rows)
    assert [p.logprob for p in empty.pieces] == [p.logprob for p in plain.pieces]


def test_a_batch_shares_the_rows_that_guesses_may_take(circling):
    vocabulary = circling.vocabulary([Phrase((5, 6, 7), "x")])
    given = {"mode": "verify", "draft_bias": 6.0, "max_tokens": 60, "ignore_eos": True}
    alone = generate(circling, PROMPT, vocabulary, **given)
    together = batch(circling, [PROMPT] * 16, vocabulary, **given)
    assert all(flat(text) == flat(alone) for text in together)
    assert alone.stats.steps < 30
    assert together[0].stats.rows == together[0].stats.steps, "one row each"


def test_what_a_text_recalls_where_a_phrase_is_likely_is_named_in_whole_phrases(circling):
    own = flat(generate(circling, PROMPT, max_tokens=80, ignore_eos=True))
    vocabulary = ngrams(own, 8, circling.static_size)
    found = generate(circling, PROMPT, vocabulary, mode="verify", draft_bias=99.0, max_tokens=80,
                     ignore_eos=True)  # fmt: skip
    assert flat(found) == own
    assert max(len(piece.ids) for piece in found.pieces) == 8
    assert found.stats.steps < 20, "what stands again and again is read in longer passes"

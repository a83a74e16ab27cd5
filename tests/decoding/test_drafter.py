"""Drafts are what the documents say next; what they hold is found again as phrases."""

import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import stir
from univerb.config import GenerationConfig
from univerb.decoding.drafter import Documents, Draft, Drafter
from univerb.decoding.first_token_head import FirstTokenHead
from univerb.decoding.loop import batch, generate
from univerb.decoding.naming import longest_phrases
from univerb.decoding.suffixes import Match
from univerb.engines.row_costs import RowCosts
from univerb.phrase import Document, Phrase, Span
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


def test_documents_are_their_texts_or_else_the_phrases():
    text = list(range(10, 40))
    phrases = [Phrase((12, 13, 14), "x"), Phrase((1, 2), "y")]
    from_texts = Documents(DynamicVocabulary(1000, phrases, [text]))
    assert from_texts.find([1, 12, 13], 9) == Match(list(range(14, 23)), 2)
    assert from_texts.find([1], 9).ids == []
    from_phrases = Documents(DynamicVocabulary(1000, phrases))
    assert from_phrases.find([1, 12, 13], 9) == Match([14], 2)
    assert from_phrases.find([1], 9).ids == [2]


def test_nothing_is_drafted_that_repetition_control_would_mask():
    ids, costs = [1, 2, 3, 4, 5, 6, 9, 1, 2, 3], RowCosts({1: 1.0, 32: 1.0})
    documents = Documents(DynamicVocabulary(1000, [], [[2, 3, 4, 7, 8]]))
    free = Drafter(documents, costs).draft(ids, [4], 9, 1)
    assert free is not None and free.ids[:2] == [5, 6]
    # 2 3 4 5 stood before, so only the documents may go on.
    controlled = Drafter(documents, costs, no_repeat_ngram_size=4).draft(ids[:-1], [3], 9, 1)
    assert controlled is None
    longer = Drafter(documents, costs, no_repeat_ngram_size=5).draft(ids, [4], 9, 1)
    assert longer is not None and longer.ids[:2] == [7, 8]
    assert Drafter(documents, costs, no_repeat_ngram_size=4).draft(ids, [4, 5], 9, 1) is None


def test_what_repetition_control_leaves_out_may_be_drafted():
    ids, costs = [1, 2, 3, 4, 5, 6, 9, 1, 2], RowCosts({1: 1.0, 32: 1.0})
    documents = Documents(DynamicVocabulary(1000, [], [[2, 3, 4, 7, 8]]))
    assert Drafter(documents, costs, no_repeat_ngram_size=4).draft(ids, [3], 9, 1) is None
    drafter = Drafter(documents, costs, no_repeat_ngram_size=4, repeat_from=7)
    copied = drafter.draft(ids, [3], 9, 1)
    assert copied is not None and copied.ids[:2] == [4, 5]
    # What was written behind it counts.
    written = [*ids, 3, 4, 5, 6, 1, 2]
    assert drafter.draft(written, [3], 9, 1) is None


def test_a_document_without_new_phrases_is_looked_up_and_only_once():
    vocabulary = DynamicVocabulary(1000, [Phrase((200, 201), "x")])
    documents = Documents(vocabulary)
    assert documents.find([200, 201], 5).ids == []
    other = DynamicVocabulary(1000, list(vocabulary), [[200, 201, 202, 203]])
    vocabulary.add(other)
    assert documents.find([200, 201], 5).ids == [202, 203]
    vocabulary.add(other)
    assert len(vocabulary.texts) == vocabulary.text_count == 2


def test_n_grams_go_on_beyond_any_of_them():
    text = list(range(10, 40))
    assert Documents(ngrams(text)).find([1, 2, 12, 13, 14], 20).ids == list(range(15, 35))


def test_phrases_and_documents_that_come_later_are_looked_up_beside_the_first(tiny):
    vocabulary = tiny.vocabulary([Document("the quiet enjoyment of the premises", "a")])
    documents, size = Documents(vocabulary), vocabulary.size
    vocabulary.add([Phrase((1, 2, 3, 4), "x")])
    assert documents.find([1, 2, 3], 5).ids == [4]
    other = tiny.vocabulary([Document("rent is payable in advance", "b")])
    vocabulary.add(other)
    [ids] = other.texts
    assert documents.find(ids[:2], 9).ids == list(ids[2:11])
    assert len(vocabulary.texts) == 3 and vocabulary.size > size + 1


def test_every_document_is_looked_up_whatever_their_names(tiny):
    texts = ["the quiet enjoyment of the premises", "rent is payable in advance"]
    vocabulary = tiny.vocabulary([Document(text) for text in texts])
    assert len(vocabulary.texts) == 2


def test_lines_that_an_editor_wrapped_are_looked_up_as_phrases_have_them(tiny):
    line = "the tenant shall have the quiet enjoyment of the premises and"
    vocabulary = tiny.vocabulary([Document(f"{line}\nshall pay the rent", "wrapped")])
    [ids] = vocabulary.texts
    assert tiny.tokenizer.decode(ids).strip() == f"{line} shall pay the rent"


def test_sequences_of_a_vocabulary_share_what_is_sorted_and_nothing_is_kept(tiny):
    vocabulary = tiny.vocabulary([Document("the quiet enjoyment of the premises", "a")])
    one, two = Documents(vocabulary), Documents(vocabulary)
    assert one._suffixes() is two._suffixes()
    gone = weakref.ref(vocabulary)
    del one, two, vocabulary
    assert gone() is None


def test_without_an_encoder_a_listed_phrase_is_proposed_by_its_first_token():
    vocabulary = DynamicVocabulary(100, [Phrase((1, 2), "x"), Phrase((1, 2, 3), "y")])
    vocabulary.add([Phrase((5, 6), "z", (Span("a document", 0, 1),))])
    head = FirstTokenHead(vocabulary, Documents(vocabulary), GenerationConfig(), frozenset())
    head.update()
    assert head.proposal([9], 1, 8) == 101, "the longest"
    assert head.proposal([9], 1, 2) == 100, "that there is room for"
    vocabulary.remove([101])
    assert head.proposal([9], 1, 8) == 100
    assert head.proposal([9], 5, 8) is None, "one token is no match in a document"
    assert head.proposal([9], 4, 8) is None


def test_phrases_that_come_later_are_followed():
    vocabulary = DynamicVocabulary(100)
    documents = Documents(vocabulary)
    assert documents.find([1, 2, 3], 5).ids == []
    vocabulary.add([Phrase((1, 2, 3, 4), "x"), Phrase((7, 1, 2, 3, 4, 5), "y")])
    assert documents.find([9, 1, 2, 3], 5).ids == [4, 5]


@given(st.lists(st.integers(0, 5), max_size=30), st.lists(st.integers(0, 5), max_size=30))
def test_a_whole_text_is_cut_into_longest_phrases(document, text):
    vocabulary = ngrams(document)
    at = 0
    for begin, end, unit in longest_phrases(vocabulary, text):
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
    assert list(longest_phrases(vocabulary, [1, 2, 3])) == [(0, 3, 100)]
    vocabulary.remove([100])
    assert [unit for _, _, unit in longest_phrases(vocabulary, [1, 2, 3])] == [None] * 3


def test_the_longer_match_is_drafted_and_what_was_wrong_no_more():
    documents = Documents(DynamicVocabulary(100, [], [[1, 2, 3, 4, 5, 6, 7, 8]]))
    drafter = Drafter(documents, RowCosts({1: 1.0, 4: 1.2, 8: 5.0}))
    first = drafter.draft([9, 2, 3], (4,), 20, 1)
    assert first == Draft([5, 6, 7], "documents", 3)
    text = [9, 2, 3, 50, 51, 52, 53, 9, 2]
    another = Drafter(documents, RowCosts({1: 1.0, 4: 1.2, 8: 5.0}))
    assert another.draft(text, (3,), 20, 1) == Draft([50, 51, 52], "text", 3)
    for _ in range(30):
        drafter.update(first, 0)
    assert drafter.draft([9, 2, 3, 4, 3], (4,), 20, 1).source == "text"


def test_a_phrase_that_the_text_has_written_before_goes_on_as_it_did():
    costs = RowCosts({1: 1.0, 32: 1.2})
    text = [1, 2, 3, 4, 5, 6, 7, 8, 9, 1]
    drafter = Drafter(Documents(DynamicVocabulary(100)), costs)
    draft = drafter.draft(text, (2, 3, 4), 8, 1)
    assert draft == Draft([5, 6, 7, 8, 9], "text", 4)
    # It was cut after its first token, and something else came.
    draft = drafter.draft([*text, 2, 50, 1], (2, 50), 8, 1)
    assert draft == Draft([1, 2, 50, 1, 2, 50], "text", 3)
    another = Drafter(Documents(DynamicVocabulary(100)), costs)
    assert another.draft(text, (2, 9), 8, 1) is None, "the text went on otherwise"


def test_there_is_no_draft_without_room():
    documents = Documents(DynamicVocabulary(100, [], [[1, 2, 3, 4, 5, 6, 7, 8]]))
    drafter = Drafter(documents, RowCosts({1: 1.0, 32: 1.0}))
    assert drafter.draft([1, 2], (3,), 1, 1) is None
    assert drafter.draft([1, 2], (3,), 3, 1).ids == [4, 5]
    assert drafter.draft([1, 2], (3, 4), 3, 1).ids == [5]
    assert drafter.draft([1, 2], (3,), 9, 32) is None, "32 sequences have a row each"


def test_verify_reads_several_tokens_of_its_own_text_in_one_pass(tiny):
    lm = stir(tiny)
    prompt = [3, 5, 7]
    plain = generate(lm, prompt, max_tokens=60, ignore_eos=True)
    ids = [token for piece in plain.pieces for token in piece.ids]
    vocabulary = ngrams(ids, 8, lm.static_size)
    checked = generate(lm, prompt, vocabulary, mode="verify", max_tokens=60,
                       ignore_eos=True)  # fmt: skip
    assert [t for piece in checked.pieces for t in piece.ids] == ids
    assert checked.stats.steps < 40
    assert sum(len(piece.ids) for piece in checked.pieces if piece.is_phrase) > 30


def test_the_sources_of_what_a_draft_brought_are_its_documents(tiny):
    lm = stir(tiny)
    text = generate(lm, "the tenant", max_tokens=40, ignore_eos=True).text
    document = Document("the tenant" + text, "own.txt")
    vocabulary = lm.vocabulary([document])
    found = generate(lm, "the tenant", vocabulary, mode="verify", max_tokens=40, ignore_eos=True)
    assert found.text == text
    for phrase in found.phrases:
        span = phrase.sources[0]
        assert document.text[span.start : span.end] == phrase.text.strip()


def flat(generation):
    return [token for piece in generation.pieces for token in piece.ids]


@pytest.mark.parametrize("mode", ["verify", "unfold"])
def test_a_guess_never_goes_beyond_the_budget(tiny, mode):
    lm = stir(tiny)
    given = {"mode": mode, "ignore_eos": True, "overshoot": "allow", "phrase_bias": -50.0}
    own = flat(generate(lm, "the tenant", max_tokens=60, ignore_eos=True))
    vocabulary = ngrams(own, 8, lm.static_size)
    for most in range(1, 24):
        found = generate(lm, "the tenant", vocabulary, max_tokens=most, **given)
        assert flat(found) == own[:most]


def test_without_phrases_nothing_is_guessed(circling):
    given = {"max_tokens": 40, "ignore_eos": True}
    plain = generate(circling, PROMPT, **given)
    empty = generate(circling, PROMPT, circling.vocabulary(), mode="unfold", **given)
    assert (empty.stats.steps, empty.stats.rows) == (plain.stats.steps, plain.stats.rows)
    assert [p.logprob for p in empty.pieces] == [p.logprob for p in plain.pieces]


def test_a_batch_shares_the_rows_that_guesses_may_take(circling):
    vocabulary = circling.vocabulary([Phrase((5, 6, 7), "x")])
    given = {"mode": "verify", "max_tokens": 60, "ignore_eos": True}
    alone = generate(circling, PROMPT, vocabulary, **given)
    together = batch(circling, [PROMPT] * 16, vocabulary, **given)
    assert all(flat(text) == flat(alone) for text in together)
    assert alone.stats.steps < 30
    assert max(together[0].stats.pass_rows) <= 2 < max(alone.stats.pass_rows), "32 rows for all"


def test_what_a_text_recalls_where_a_phrase_is_likely_is_named_in_whole_phrases(circling):
    own = flat(generate(circling, PROMPT, max_tokens=80, ignore_eos=True))
    vocabulary = ngrams(own, 8, circling.static_size)
    found = generate(circling, PROMPT, vocabulary, mode="verify", max_tokens=80,
                     ignore_eos=True)  # fmt: skip
    assert flat(found) == own
    assert max(len(piece.ids) for piece in found.pieces) == 8
    assert found.stats.steps < 20, "what stands again and again is read in longer passes"

"""The longest end of a text that stands somewhere, against a search at every place."""

from hypothesis import given
from hypothesis import strategies as st

from univerb.decoding.suffixes import DocumentSuffixes, Match, TextSuffixes

NO_MATCH = Match([], 0)

tokens = st.lists(st.integers(0, 3), max_size=24)


def agreeing(text, place, ids):
    """How many tokens before a place are the last ones of a text."""
    size = 0
    while size < min(place, len(ids), 16) and text[place - 1 - size] == ids[-1 - size]:
        size += 1
    return size


@given(st.lists(tokens, max_size=4), tokens)
def test_documents_go_on_where_most_tokens_agree_as_most_places_do(texts, ids):
    places = [(agreeing(t, at, ids), t[at]) for t in texts for at in range(1, len(t))]
    longest = max((size for size, _ in places), default=0)
    following = [token for size, token in places if size == longest > 0]
    match = DocumentSuffixes(texts).find(ids, 1)
    assert match.length == longest and bool(match.ids) == bool(following)
    if following:
        counts = [following.count(token) for token in range(4)]
        assert counts[match.ids[0]] == max(counts)


def test_a_single_place_is_followed_to_its_end_and_beyond():
    text = list(range(10, 40))
    documents = DocumentSuffixes([text, [48, 47, 46, 2, 3, 4, 5, 6], [3, 4, 5, 6, 7, 8]])
    assert documents.find([1, 12, 13, 14], 20) == Match(list(range(15, 35)), 3)
    assert documents.find([12], 2) == Match([13, 14], 1)
    assert documents.find([46, 2], 9).ids == [3, 4, 5, 6, 7, 8], "the second text ends at 6"
    assert documents.find(text, 9) == documents.find([], 9) == documents.find([99], 9) == NO_MATCH
    assert documents.find([12], 0) == DocumentSuffixes([]).find([1], 5) == NO_MATCH


def test_more_than_sixteen_tokens_are_not_compared():
    text = list(range(100))
    assert DocumentSuffixes([text]).find(text[:50], 1) == Match([50], 16)


@given(st.lists(st.integers(0, 2), max_size=40), st.integers(1, 9), st.data())
def test_a_text_goes_on_as_it_did_the_last_time_and_round_where_it_ends(ids, count, data):
    cut = data.draw(st.integers(0, len(ids)))
    grown = TextSuffixes()
    grown.extend(ids[:cut])
    grown.extend(ids[cut:])
    assert len(grown) == len(ids)
    sizes = [
        (size, end)
        for end in range(1, len(ids))
        if (size := next((n for n in range(end, 0, -1) if ids[end - n : end] == ids[-n:]), 0))
    ]
    if not sizes:
        assert grown.find(count) == NO_MATCH
        return
    longest, end = max(sizes)
    whole = list(ids)
    for at in range(end, end + count):
        whole.append(whole[at])
    assert grown.find(count) == Match(whole[len(ids) :], longest)

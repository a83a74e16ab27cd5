"""Stop strings never show, wherever they fall; text is released as soon as it is certain."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import TEXT, make_tokenizer
from univerb.decoding.writer import Writer
from univerb.phrase import Phrase, Span
from univerb.tokenizer import Tokenizer

TOKENIZER = Tokenizer(make_tokenizer().backend_tokenizer)
letters = st.text("ab \n🎉", max_size=40)
stops = st.lists(st.text("ab \n🎉", min_size=1, max_size=4), max_size=4)


def cuts(ids, breaks):
    """Cut ids into units at the given places."""
    places = sorted({0, len(ids), *(b % (len(ids) + 1) for b in breaks)})
    return [ids[a:b] for a, b in zip(places, places[1:], strict=False) if a < b]


def first_stop(text, stop):
    return min((text.find(s) for s in stop if s in text), default=len(text))


breaks = st.lists(st.integers(0, 100), max_size=8)


def check_stop(text, stop, breaks):
    writer = Writer(TOKENIZER, stop)
    pieces = []
    written = []
    for unit in cuts(TOKENIZER.encode(text).ids, breaks):
        phrase = Phrase(tuple(unit), TOKENIZER.decode(unit)) if len(unit) > 1 else None
        written += unit
        pieces += writer.write(unit, -1.0, phrase)
        shown = "".join(piece.text for piece in pieces)
        assert text.startswith(shown), "what is released must be final"
        assert not any(s in shown for s in stop)
        if writer.is_stopped:
            break
    pieces += writer.close()
    # Units end where the loop would have stopped, so the oracle sees only what was written.
    seen = TOKENIZER.decode(written) if written else ""
    expected = seen[: first_stop(seen, stop)]
    assert "".join(piece.text for piece in pieces) == expected
    assert writer.is_stopped == any(s in seen for s in stop)


@settings(max_examples=1500)
@given(letters, stops, breaks)
def test_the_text_ends_before_the_first_stop_string(text, stop, breaks):
    check_stop(text, stop, breaks)


@pytest.mark.stress
@settings(max_examples=10_000)
@given(letters, stops, breaks)
def test_ten_thousand_texts_end_before_their_stop_strings(text, stop, breaks):
    check_stop(text, stop, breaks)


@given(letters, breaks)
def test_without_stop_strings_whole_characters_are_released_at_once(text, breaks):
    writer = Writer(TOKENIZER, ())
    ids = TOKENIZER.encode(text).ids
    shown = ""
    for done, token in enumerate(ids, 1):
        shown += "".join(piece.text for piece in writer.write([token], 0.0))
        so_far = TOKENIZER.decode(ids[:done])
        assert shown == (so_far if "\N{REPLACEMENT CHARACTER}" not in so_far else shown)
    shown += "".join(piece.text for piece in writer.close())
    assert shown == text


def test_a_stop_inside_a_phrase_cuts_text_ids_and_sources():
    ids = tuple(TOKENIZER.encode(" quiet enjoyment of the premises").ids)
    start = TEXT.index("quiet")
    span = Span("lease", start, start + len("quiet enjoyment of the premises"))
    writer = Writer(TOKENIZER, ["ment of"])
    pieces = writer.write(ids, -2.0, Phrase(ids, TOKENIZER.decode(ids), (span,)))
    assert [piece.text for piece in pieces] == [" quiet enjoy"]
    (source,) = pieces[0].sources
    assert TEXT[source.start : source.end] == "quiet enjoy"
    assert TOKENIZER.decode(pieces[0].ids).startswith(" quiet enjoy")
    assert len(pieces[0].ids) < len(ids)


@given(st.integers(2, 12), st.none() | st.integers(0, 60))
def test_a_phrase_that_is_written_in_part_is_sourced_in_part(kept, at):
    """A budget or the LM keeps the first tokens, and a stop string may cut these."""
    document = "Rent is due. The landlord shall give quiet enjoyment of the premises."
    start = document.index(". The")
    text = document[start:]
    ids = tuple(TOKENIZER.encode(text).ids)
    phrase = Phrase(ids, text, (Span("lease", start, start + len(text)),))
    writer = Writer(TOKENIZER, [] if at is None else text[at : at + 3].split())
    for piece in writer.write(ids[:kept], -1.0, phrase) + writer.close():
        assert piece.phrase is None or (piece.phrase.ids, piece.phrase.text) == (
            piece.ids,
            piece.text,
        )
        for span in piece.sources:
            assert document[span.start : span.end] == piece.text.strip()


def test_a_phrase_cut_to_one_token_has_no_source():
    ids = tuple(TOKENIZER.encode(" the premises").ids)
    phrase = Phrase(ids, " the premises", (Span("lease", 0, 12),))
    writer = Writer(TOKENIZER, [" premises"])
    (piece,) = writer.write(ids, 0.0, phrase)
    assert (piece.text, piece.is_phrase, piece.sources) == (" the", False, ())


def test_a_possible_stop_is_held_until_it_is_decided():
    writer = Writer(TOKENIZER, ["the premises"])
    assert writer.write(TOKENIZER.encode(" the").ids, 0.0) == []
    released = writer.write(TOKENIZER.encode(" day").ids, 0.0)
    assert "".join(piece.text for piece in released) == " the day"


def test_what_is_left_incomplete_shows_as_a_replacement_character():
    writer = Writer(TOKENIZER, ())
    half = TOKENIZER.encode("🎉").ids[:2]
    assert writer.write(half, 0.0) == []
    (piece,) = writer.close()
    assert set(piece.text) == {"\N{REPLACEMENT CHARACTER}"}


def test_a_stop_in_a_phrase_behind_half_a_character_keeps_the_source_right():
    ids = tuple(TOKENIZER.encode(" quiet enjoyment of the premises").ids)
    start = TEXT.index("quiet")
    span = Span("lease", start, start + len("quiet enjoyment of the premises"))
    writer = Writer(TOKENIZER, ["ment of"])
    writer.write(TOKENIZER.encode("🎉").ids[:2], 0.0)
    pieces = writer.write(ids, -2.0, Phrase(ids, TOKENIZER.decode(ids), (span,)))
    (source,) = pieces[-1].sources
    assert TEXT[source.start : source.end] == "quiet enjoy"

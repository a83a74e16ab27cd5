"""Whatever the text, pieces tile it and sources point at what was written."""

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import make_gpt2, make_tokenizer, stir
from univerb.decoding.loop import generate, stream
from univerb.errors import DocumentError
from univerb.modeling.dynamic import DynamicLM
from univerb.phrase import Document
from univerb.phrases.guards import Guards
from univerb.phrases.ngrams import ngrams

pytestmark = pytest.mark.filterwarnings("ignore::univerb.phrases.ngrams.UnspacedTextWarning")
LM = stir(DynamicLM.wrap(make_gpt2(seed=3), make_tokenizer()))
anything = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=60)
loose = Guards(word_boundaries=False, whole_characters=False, no_newline=False, no_digits=False)


def check(document, vocabulary, mode, prompt):
    options = {"mode": mode, "phrase_bias": 4.0, "max_tokens": 24, "tolerance": None}
    result = generate(LM, prompt, vocabulary, **options)
    ids = [token for piece in result.pieces for token in piece.ids]
    assert "".join(piece.text for piece in result.pieces) == result.text
    assert result.text == LM.tokenizer.decode(ids)
    assert "".join(map(str, stream(LM, prompt, vocabulary, **options))) == result.text
    assert result.stats.base_tokens == len(ids) <= 24
    for piece in result.pieces:
        assert piece.is_phrase == (len(piece.ids) > 1)
    return result


@settings(max_examples=60)
@given(anything, anything, st.sampled_from(["atomic", "unfold", "verify"]))
def test_pieces_tile_any_text(text, prompt, mode):
    try:
        document = Document(text * 3, "any")
    except DocumentError:
        return
    vocabulary = LM.vocabulary([document], source=ngrams((2, 6), loose))
    check(document, vocabulary, mode, prompt)


def test_the_source_of_a_piece_is_what_the_piece_shows():
    """Also where the LM, the budget or a stop string cuts a phrase."""
    draw, is_cut = random.Random(0), Counter()
    for number in range(240):
        words = ("".join(draw.choices("abXY01é🎉!", k=draw.randint(1, 8))) for _ in range(12))
        document = Document(" ".join(words), "any")
        vocabulary = LM.vocabulary([document])
        options = {"mode": ("unfold", "atomic")[number % 4 == 0], "max_tokens": draw.randint(4, 24)}
        stop = draw.sample(document.text.replace(" ", ""), number % 2)
        result = generate(LM, "The tenant", vocabulary, phrase_bias=6.0, stop=stop, **options)
        whole = {phrase.ids for phrase in vocabulary}
        for piece in result.pieces:
            is_cut[piece.ids in whole] += piece.is_phrase
            for span in piece.sources:
                source = document.text[span.start : span.end]
                assert source in piece.text
                # Half a character shows in the piece behind it, or not at all.
                assert source == piece.text.strip() or not piece.text.isascii()
    assert min(is_cut[True], is_cut[False]) > 5

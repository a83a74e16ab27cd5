"""Whatever the text, pieces tile it and sources point at what was written."""

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


words = st.lists(
    st.text(st.characters(categories=["Lu", "Ll", "Nd", "Po", "So"]), min_size=1, max_size=8),
    min_size=4,
    max_size=20,
)


@settings(max_examples=60)
@given(words, st.sampled_from(["atomic", "unfold"]))
def test_sources_of_written_phrases_are_what_was_written(parts, mode):
    document = Document(" ".join(parts), "any")
    result = check(document, LM.vocabulary([document]), mode, "The tenant")
    for piece in result.pieces:
        for span in piece.sources:
            assert document.text[span.start : span.end] == piece.phrase.text.strip()
            assert span.end <= len(document.text)

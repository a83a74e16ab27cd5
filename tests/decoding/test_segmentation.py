"""A prompt that is read as units: phrases found in it are fed as single vectors."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from conftest import TEXT, stir
from univerb.decoding.loop import batch, generate
from univerb.decoding.segmentation import segmented
from univerb.errors import OptionError
from univerb.phrase import Document, Phrase
from univerb.vocabulary import DynamicVocabulary

TOKENS = st.lists(st.integers(0, 3), min_size=1, max_size=40)
KEYS = st.lists(st.lists(st.integers(0, 3), min_size=2, max_size=4).map(tuple), max_size=8)


@given(TOKENS, KEYS, st.integers(0, 6))
def test_units_spell_the_prompt_with_gaps_between_phrases(ids, keys, gap):
    vocabulary = DynamicVocabulary(10, [Phrase(key, "x") for key in dict.fromkeys(keys)])
    units = segmented(ids, vocabulary, gap)
    spelled, since = [], gap
    for unit in units:
        if unit < 10:
            spelled.append(unit)
            since += 1
        else:
            assert since >= gap
            assert spelled, "the first token stays a token"
            spelled.extend(vocabulary.phrase(unit).ids)
            since = 0
    assert spelled == ids


def test_the_longest_active_phrase_wins():
    vocabulary = DynamicVocabulary(10, [Phrase((1, 2), "a"), Phrase((1, 2, 3), "b")])
    assert segmented([0, 1, 2, 3, 1, 2], vocabulary, gap=0) == [0, 11, 10]
    vocabulary.remove([11])
    assert segmented([0, 1, 2, 3, 1, 2], vocabulary, gap=0) == [0, 10, 3, 10]


def test_a_segmented_prompt_is_read_as_the_units_themselves(tiny):
    lm = stir(tiny)
    vocabulary = lm.vocabulary([Document(TEXT)])
    prompt = lm.tokenizer.encode(TEXT[:150]).ids
    units = segmented(prompt, vocabulary)
    assert max(units) >= lm.static_size
    with torch.no_grad():
        first = int(lm.forward(torch.tensor([units]), vocabulary)[0, -1].argmax())
    options = {"mode": "atomic", "positions": "unit", "max_tokens": 9, "overshoot": "allow"}
    result = generate(lm, prompt, vocabulary, segment=True, **options)
    piece = result.pieces[0]
    assert piece.ids == (vocabulary.phrase(first).ids if first >= lm.static_size else (first,))
    assert result.stats.prompt_tokens == len(prompt)


def test_nothing_changes_where_no_phrase_fits(tiny):
    lm = stir(tiny)
    vocabulary = lm.vocabulary(["zebra crossing ahead"])
    plain = generate(lm, TEXT[:80], vocabulary, mode="atomic", max_tokens=12)
    assert generate(lm, TEXT[:80], vocabulary, mode="atomic", segment=True, max_tokens=12).text == (
        plain.text
    )


def test_rows_of_a_batch_equal_each_alone(tiny):
    lm = stir(tiny)
    vocabulary = lm.vocabulary([Document(TEXT)])
    prompts = [TEXT[:140], TEXT[20:60], "The"]
    options = {"mode": "atomic", "segment": True, "max_tokens": 10}
    alone = [generate(lm, prompt, vocabulary, **options).text for prompt in prompts[:2]]
    together = [one.text for one in batch(lm, prompts[:2], vocabulary, **options)]
    assert together == alone
    assert len(batch(lm, prompts, vocabulary, **options)) == 3


def test_segments_need_atomic(tiny):
    with pytest.raises(OptionError, match="mode 'atomic'"):
        generate(tiny, "The", mode="unfold", segment=True)

"""What each mode draws from under sampling: by enumeration of all texts, and by many draws."""

import math
from collections import Counter

import pytest
import slow_reference
from scipy.stats import chisquare

from conftest import make_llama, make_tokenizer, stir
from univerb.decoding.loop import batch
from univerb.modeling.dynamic import DynamicLM
from univerb.phrase import Phrase

BUDGET = 3
DRAWS = 600
NUCLEUS = {"temperature": 0.6, "top_p": 0.7}
TOP_K = {"temperature": 0.8, "top_k": 5}
CASES = {
    "atomic": {"mode": "atomic"} | NUCLEUS,
    "unfold, 0.9": {"mode": "unfold", "tolerance": 0.9} | NUCLEUS,
    "unfold, 0.4, top-k": {"mode": "unfold", "tolerance": 0.4} | TOP_K,
    "unfold, 1": {"mode": "unfold", "tolerance": 1.0} | NUCLEUS,
    "verify": {"mode": "verify"} | NUCLEUS,
}


@pytest.fixture(scope="module")
def world():
    """A sure LM, its prompt, and phrases that it would go on with more or less readily."""
    lm = stir(DynamicLM.wrap(make_llama(seed=4), make_tokenizer()), scale=0.02)
    prompt = lm.tokenizer.encode("The tenant shall").ids
    phrases = []
    for rank in range(4):
        ids = list(prompt)
        for step in range(3):
            likely = slow_reference.bare_logits(lm, ids).topk(4).indices
            ids.append(int(likely[rank if step == 0 else step]))
        phrases += [Phrase(tuple(ids[len(prompt) :][:size]), f"{rank}") for size in (2, 3)]
    return lm, prompt, phrases


@pytest.mark.parametrize("case", CASES)
def test_texts_are_drawn_as_enumeration_says(world, case):
    lm, prompt, phrases = world
    options = CASES[case] | {"phrase_bias": 3.0}
    vocabulary = lm.vocabulary(phrases)
    expected = slow_reference.Enumeration(lm, prompt, vocabulary, BUDGET, **options).texts()
    assert math.isclose(sum(expected.values()), 1.0, rel_tol=1e-4)
    texts, used = Counter(), 0
    for start in range(0, DRAWS, 100):
        seeds = range(start, start + 100)
        drawn = batch(lm, [prompt] * 100, vocabulary, max_tokens=BUDGET, ignore_eos=True,
                      seeds=seeds, **options)  # fmt: skip
        texts.update(tuple(i for piece in text.pieces for i in piece.ids) for text in drawn)
        used += sum(len(text.phrases) for text in drawn)
    assert used > DRAWS / 10 or case == "verify", "phrases should matter"
    assert not texts.keys() - expected.keys(), "a text that cannot be drawn"
    common = [text for text, p in expected.items() if p * DRAWS >= 8]
    rest = 1 - sum(expected[text] for text in common)
    observed = [texts[text] for text in common] + [DRAWS - sum(texts[text] for text in common)]
    wanted = [expected[text] for text in common] + [rest]
    if rest * DRAWS < 8:
        observed, wanted = observed[:-1], wanted[:-1]
    scale = sum(observed) / sum(wanted)
    assert chisquare(observed, [p * scale for p in wanted]).pvalue > 1e-3


def test_unfold_at_tolerance_one_draws_whole_phrases_of_the_nucleus_over_v_and_p(world):
    """A phrase outside the nucleus is never drawn, however well its first token does."""
    lm, prompt, phrases = world
    for bias, some in ((-20.0, False), (5.0, True)):
        drawn = batch(lm, [prompt] * 100, lm.vocabulary(phrases), seeds=range(100), max_tokens=3,
                      mode="unfold", tolerance=1.0, phrase_bias=bias, temperature=1.0, top_p=0.5,
                      drafts=False)  # fmt: skip
        assert any(text.phrases for text in drawn) == some

"""How likely a text is behind prompts: the same as token by token, on both engines."""

import numpy
import pytest
import torch

from conftest import MAKERS, TEXT, make_tokenizer
from tiny_gguf import load_tiny, needs_llamacpp
from univerb.config import GenerationConfig
from univerb.decoding import continuations
from univerb.decoding.continuations import continuation_logprobs
from univerb.decoding.loop import generate, resolved_for
from univerb.engines.factory import engine_of
from univerb.engines.torch.session import TorchSession
from univerb.modeling.dynamic import DynamicLM

# More than are read at once, of any length.
PROMPTS = ["a", "The tenant shall pay", TEXT, "rent", "on the first day", TEXT[:60], *"bcdefg"]
CONTINUATIONS = [" the rent on time", " a"]


def by_steps(lm, prompt, text):
    """Read everything token by token, and look at one token's share after the other."""
    session = engine_of(lm).session(resolved_for(lm, GenerationConfig()), has_phrases=False)
    [output] = session.prefill([prompt])
    total = 0.0
    for token in text:
        logits = output.logits[-1].astype(numpy.float64)
        total += logits[token] - numpy.log(numpy.exp(logits - logits.max()).sum()) - logits.max()
        [output] = session.step([[token]])
    return total / len(text)


@pytest.mark.parametrize("text", CONTINUATIONS)
@pytest.mark.parametrize("backbone", list(MAKERS))
def test_it_is_what_the_model_says_token_by_token(backbone, text):
    lm = DynamicLM.wrap(MAKERS[backbone](), make_tokenizer())
    prompts = [lm.tokenizer.encode_prompt(prompt) for prompt in PROMPTS]
    ids = lm.tokenizer.encode(text).ids
    scores = continuation_logprobs(lm, prompts, ids)
    for prompt, score in zip(prompts, scores, strict=True):
        with torch.no_grad():
            logits = lm.model(torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1]
        shares = logits.log_softmax(-1)[torch.arange(len(ids)), torch.tensor(ids)]
        assert score == pytest.approx(shares.mean().item(), abs=1e-4)
        assert score == pytest.approx(by_steps(lm, prompt, ids), abs=1e-4)


def test_a_long_text_is_read_in_slices(tiny, monkeypatch):
    widths = []
    step = TorchSession.step

    def recorded(session, rows):
        widths.append(max(map(len, rows)))
        return step(session, rows)

    monkeypatch.setattr(TorchSession, "step", recorded)
    prompts = [tiny.tokenizer.encode_prompt(prompt) for prompt in PROMPTS]
    text = [*range(5, 45)]
    scores = continuation_logprobs(tiny, prompts[:2], text)
    assert sum(widths) == len(text) - 1 and max(widths) == continuations._ROWS
    for rows in (1, 13, 39):
        monkeypatch.setattr(continuations, "_ROWS", rows)
        again = continuation_logprobs(tiny, prompts[:2], text)
        numpy.testing.assert_allclose(again, scores, atol=1e-5)


@needs_llamacpp
def test_llamacpp_says_the_same_as_token_by_token(tmp_path):
    lm = load_tiny(tmp_path)
    prompts = [lm.tokenizer.encode_prompt(prompt) for prompt in PROMPTS]
    for text in CONTINUATIONS:
        ids = lm.tokenizer.encode(text).ids
        scores = continuation_logprobs(lm, prompts, ids)
        expected = [by_steps(lm, prompt, ids) for prompt in prompts]
        numpy.testing.assert_allclose(scores, expected, atol=1e-3)


def test_a_text_is_likeliest_where_it_is_what_the_lm_writes(circling):
    prompts = [circling.tokenizer.encode_prompt(text) for text in (" the tenant", " rent", "a")]
    written = generate(circling, prompts[0], max_tokens=4, ignore_eos=True)
    ids = [token for piece in written.pieces for token in piece.ids]
    scores = continuation_logprobs(circling, prompts, ids)
    assert scores.argmax() == 0


def test_no_prompts_have_no_scores(tiny):
    assert continuation_logprobs(tiny, [], [1, 2]).shape == (0,)


def test_what_is_written_later_does_not_depend_on_it(tiny):
    before = generate(tiny, "The tenant", max_tokens=12).text
    continuation_logprobs(tiny, [tiny.tokenizer.encode_prompt("The tenant")], [5, 6, 7])
    assert generate(tiny, "The tenant", max_tokens=12).text == before

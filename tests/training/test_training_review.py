"""What a second reader tried to break: texts without spaces, nothing to measure, odd passages."""

import time

import numpy
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from conftest import TEXT, make_gpt2, make_tokenizer
from univerb.config import EncoderConfig
from univerb.modeling.dynamic import DynamicLM
from univerb.modeling.heads import SplitHeads
from univerb.phrase import Document
from univerb.phrases.tokenized import tokenize_text
from univerb.tokenizer import Tokenizer
from univerb.training.config import LossConfig, NegativeConfig
from univerb.training.losses import Expanded, kl_loss, phrase_loss, token_loss
from univerb.training.mixed_batch import collate
from univerb.training.negatives import PreBatch, prefixes, self_retrieval
from univerb.training.passages import Passages
from univerb.training.pool_encoding import encode_pool, pool_bias
from univerb.training.processes import Processes
from univerb.training.samples import Sample, n_words

HF = make_tokenizer()
TOKENIZER = Tokenizer(HF.backend_tokenizer, HF.all_special_ids)
WORDS = st.sampled_from(
    ["tenant", "the", "a", "東京都", "x" * 300, " ", "  ", "\r\n", "\n\n", "é."]
)


def epoch(text: str, block: int) -> list[str]:
    """Return the passages of a text in the order of the text."""
    texts = Passages([Document(text, "one")], TOKENIZER, block)
    found = [texts.tokens(0, index).text for index in range(len(texts))]
    order = numpy.random.default_rng((0, 0)).permutation(len(texts))
    return [found[i] for i in numpy.argsort(order)]


@settings(max_examples=60)
@given(st.lists(WORDS, max_size=60).map(" ".join).map("the".__add__))
@example("東" * 3000)
@example(" " * 3000 + "a")
@example("a" * 3000 + " b")
def test_passages_are_stretches_of_the_text_in_its_order(text):
    """Each is the beginning of its own stretch, of which it may lack the end (the block)."""
    place = 0
    for part in epoch(text, 8):
        place = text.index(part, place) + len(part)


@pytest.mark.parametrize("text", ["漢字仮名交じり文" * 500, "x" * 4000])
def test_a_text_without_spaces_has_passages_too(text):
    # What is left at the end may belong to the passage before.
    assert min(map(len, epoch(text, 64)[:-1])) > 0


def test_a_passage_of_a_huge_text_without_spaces_takes_no_time():
    texts = Passages([Document("文" * 4_000_000, "one")], TOKENIZER, 64)
    start = time.perf_counter()
    for index in range(20):
        assert len(texts.tokens(0, index).ids) == 64
    assert time.perf_counter() - start < 2.0


def test_words_are_not_cut_where_there_are_spaces():
    words = TEXT.split()
    for part in epoch(TEXT * 9, 16)[1:]:
        assert part.split()[0] in words or TEXT.split()[-1] + words[0] in part


@pytest.mark.parametrize("hidden", [torch.empty(0, 8), torch.zeros(5, 8)])
def test_heads_that_see_nothing_stay_as_they_are(hidden):
    """The first batch of a run may have no phrase."""
    heads = SplitHeads(8, 4, -3.0)
    heads.fit(hidden, torch.randn(9, 4), torch.zeros(3, 4))
    assert heads.fed == 1
    assert torch.equal(heads.read, torch.eye(8)) and heads.scored.isfinite().all()


def test_a_batch_without_phrases_has_all_its_losses():
    lm = DynamicLM.wrap(make_gpt2(), HF, EncoderConfig(count_correction=True))
    sample = Sample([5, 6, 7], [(0, 1), (1, 2), (2, 3)])
    kinds = ("in-batch", "prefixes", "self-retrieval", "pre-batch")
    batch = collate([sample], [numpy.zeros(3, bool)], NegativeConfig(kinds=kinds), 320)
    vectors = encode_pool(lm, batch.pool, Processes.single("cpu"))
    bias = pool_bias(lm, batch.pool.keys)
    assert vectors.outputs.shape == (0, 32) and bias.shape == (0,)
    keys, older = PreBatch(1).entries(batch.pool.keys)
    assert not keys and not len(older)
    hidden = lm.model.base_model(input_ids=batch.token_ids).last_hidden_state
    expanded = Expanded(lm.embeddings.output, vectors.outputs, bias)
    for chunk in (1, 2, 99):
        found = phrase_loss(hidden, batch.unit_ids, batch.unit_mask, expanded, chunk)
        plain = token_loss(hidden, batch.token_ids, batch.token_mask, expanded.output, chunk)
        chosen = LossConfig(chunk=chunk, support="V+P")
        states = hidden, hidden, batch.sigma, batch.unit_mask
        kl = kl_loss(*states, expanded, expanded, chosen)
        assert found.total.item() == pytest.approx(plain.total.item(), rel=1e-5)
        assert abs(kl.total.item()) < 1e-5 and (found.count, kl.count, found.fired) == (2, 3, 0)


def test_extensions_of_a_text_that_repeats_itself_take_no_square_of_time():
    def seconds(size: int) -> float:
        units = [(place, place + 4) for place in range(0, size, 4)]
        start = time.perf_counter()
        for _ in self_retrieval([Sample([7] * size, units)], [numpy.zeros(size, bool)], 2):
            pass
        return time.perf_counter() - start

    seconds(1000)
    assert seconds(40_000) < 40 * max(seconds(4000), 0.005)


@pytest.mark.parametrize("chunk", [1, 3, 100])
def test_distributions_that_lie_far_apart_have_a_finite_kl(chunk):
    output = torch.nn.Linear(4, 6, bias=False)
    with torch.no_grad():
        output.weight.copy_(torch.randn(6, 4, generator=torch.Generator().manual_seed(0)) * 1e4)
    expanded = Expanded(output, torch.randn(2, 4) * 1e4, torch.zeros(2))
    mixed = torch.randn(1, 4, 4, requires_grad=True)
    sigma, mask = torch.tensor([[0, 1, 2, 5]]), torch.ones(1, 4, dtype=torch.bool)
    chosen = LossConfig(chunk=chunk, support="V+P")
    found = kl_loss(mixed, torch.randn(1, 6, 4), sigma, mask, expanded, expanded, chosen)
    found.total.backward()
    assert found.total.isfinite() and mixed.grad is not None and mixed.grad.isfinite().all()


def test_two_words_that_are_one_token_are_no_phrase_and_make_no_gap():
    """NLTK reads cannot as can and not."""
    hf = make_tokenizer()
    hf.add_tokens([" cannot", "of"])
    text = tokenize_text("of cannot the premises", Tokenizer(hf.backend_tokenizer))
    sample = n_words((2, 2), (1, 1))(text, numpy.random.default_rng(0))
    assert [unit for unit in sample.units if unit[1] - unit[0] > 1] == [(2, len(text.ids))]


def test_prefixes_are_shorter_than_their_phrase():
    assert list(prefixes([(1, 2, 3, 4), (5, 6)])) == [(1, 2), (1, 2, 3)]

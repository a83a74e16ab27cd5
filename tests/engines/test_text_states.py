"""States and next-token figures of a text that llama.cpp reads: those of transformers."""

from importlib.resources import files

import numpy
import pytest
import torch
from gguf import GGMLQuantizationType as Kind

from conftest import make_llama
from tiny_gguf import needs_llamacpp, write_gguf
from univerb.engines.llamacpp import text_states
from univerb.engines.llamacpp.conversion import as_q8_0
from univerb.engines.llamacpp.native import NativeModel
from univerb.engines.llamacpp.text_states import TextStates, read_text
from univerb.errors import ModelError, OptionError
from univerb.locations import default_gguf
from univerb.threads import processors

pytestmark = needs_llamacpp


def expected(model, ids):
    """What transformers makes of a text."""
    with torch.inference_mode():
        hidden = model.base_model(torch.tensor([ids])).last_hidden_state[0]
        logits = model.lm_head(hidden)
    best = logits.max(dim=-1)
    following = torch.tensor(ids[1:])[:, None]
    logprobs = logits.log_softmax(dim=-1)[:-1].gather(1, following)[:, 0]
    figures = (hidden, logits.logsumexp(dim=-1), best.values, best.indices, logprobs)
    return TextStates(*(figure.numpy() for figure in figures))


def random_text(length, seed=0):
    return numpy.random.default_rng(seed).integers(0, 320, length).tolist()


@pytest.fixture(scope="module")
def model():
    return make_llama()


@pytest.fixture(scope="module")
def native(tmp_path_factory, model):
    return NativeModel(write_gguf(tmp_path_factory.mktemp("tiny") / "tiny.gguf", model), 1)


# One row, one block, one pass, and some with a rest; the last is the whole context.
@pytest.mark.parametrize("length", [1, 2, 32, 33, 256, 257, 300, 512])
def test_it_gives_what_transformers_gives(native, model, length):
    ids = random_text(length)
    ours, theirs = read_text(native, ids), expected(model, ids)
    for name, figure, wanted in zip(TextStates._fields, ours, theirs, strict=True):
        assert figure.shape == wanted.shape
        if name != "top_token":
            assert figure.dtype == numpy.float32
            # llama.cpp keeps its KV cache in half precision.
            assert numpy.allclose(figure, wanted, atol=0.05)
    sure = ours.top_token == theirs.top_token
    assert sure.mean() >= 0.98
    assert ours.top_token.dtype == numpy.int32


def test_figures_of_one_position_belong_together(native):
    ids = random_text(300)
    result = read_text(native, ids)
    ours = result.hidden @ make_llama().lm_head.weight.detach().numpy().T
    assert numpy.allclose(ours.max(axis=1), result.top_logit, atol=1e-3)
    assert numpy.array_equal(ours.argmax(axis=1), result.top_token)
    logprobs = ours[range(299), ids[1:]] - result.log_sum[:-1]
    assert numpy.allclose(logprobs, result.next_logprob, atol=1e-3)


def test_texts_do_not_see_each_other_nor_what_follows(native):
    first, second = random_text(300), random_text(40, seed=1)
    before = read_text(native, first)
    read_text(native, second)
    for figure, again in zip(before, read_text(native, first), strict=True):
        assert numpy.array_equal(figure, again)
    other_end = read_text(native, first[:-1] + second[:1])
    assert numpy.allclose(other_end.hidden[:-1], before.hidden[:-1], atol=1e-5)


def test_an_interrupted_text_leaves_no_trace(native, monkeypatch):
    ids = random_text(300)
    before = read_text(native, ids)
    with monkeypatch.context() as patch:
        patch.setattr(text_states, "_reduced", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            read_text(native, ids)
    assert numpy.array_equal(read_text(native, ids).hidden, before.hidden)


@pytest.mark.skipif(len(processors()) < 2, reason="needs two processors")
def test_two_threads_give_the_same(native, tmp_path, model):
    ids = random_text(300)
    two = NativeModel(write_gguf(tmp_path / "tiny.gguf", model), 2)
    for ours, theirs in zip(read_text(two, ids), read_text(native, ids), strict=True):
        assert numpy.allclose(ours, theirs, atol=1e-4)


def test_a_slow_file_and_its_conversion_read_alike(tmp_path, monkeypatch):
    monkeypatch.setenv("UNIVERB_CACHE", str(tmp_path / "cache"))
    slow = write_gguf(tmp_path / "slow.gguf", make_llama(), Kind.F16, Kind.Q4_1)
    ids = random_text(300)
    texts = [read_text(NativeModel(path, 1), ids) for path in (slow, as_q8_0(slow).path)]
    assert not numpy.array_equal(texts[0].hidden, texts[1].hidden)
    assert mean_cosine(texts[0].hidden, texts[1].hidden) > 0.99


@pytest.mark.parametrize("ids", [[], [3, 320], [-1, 3], [1] * 513])
def test_what_is_no_text_of_the_model_is_refused(native, ids):
    with pytest.raises(OptionError, match=r"512|319"):
        read_text(native, ids)


def test_a_failed_pass_is_told(native, monkeypatch):
    monkeypatch.setattr("univerb.engines.llamacpp.native.Context.read", lambda *_: 2)
    with pytest.raises(ModelError, match=r"code 2"):
        read_text(native, [1, 2])


def mean_cosine(ours, theirs):
    norms = numpy.linalg.norm(ours, axis=1) * numpy.linalg.norm(theirs, axis=1)
    return float(((ours * theirs).sum(axis=1) / norms).mean())


@pytest.mark.slow
@pytest.mark.default_model
def test_the_default_model_reads_a_text_alike_in_both_files_and_in_torch(default_lm):
    text = (files("univerb") / "assets" / "demo" / "ship.md").read_text(encoding="utf-8")
    ids = list(default_lm.tokenizer.encode(text).ids[:600])
    theirs = expected(default_lm.model, ids)
    original, converted = (
        read_text(NativeModel(path, 1), ids)
        for path in (default_gguf(), as_q8_0(default_gguf()).path)
    )
    assert as_q8_0(default_gguf()).path != default_gguf()
    assert abs(original.next_logprob.mean() - converted.next_logprob.mean()) < 0.02
    for ours in (original, converted):
        assert mean_cosine(ours.hidden, theirs.hidden) > 0.99
        assert abs(ours.next_logprob.mean() - theirs.next_logprob.mean()) < 0.02
        assert numpy.abs(ours.next_logprob - theirs.next_logprob).mean() < 0.15
        assert (ours.top_token == theirs.top_token).mean() > 0.9

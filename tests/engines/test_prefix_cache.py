"""What prompts have in common is read once, with phrases only, and never from another model."""

import numpy
import pytest
import torch

from conftest import stir
from univerb.decoding.loop import generate
from univerb.engines import prefixes
from univerb.engines.torch import session as torch_engine
from univerb.engines.torch.session import TorchSession


@pytest.fixture
def lm(tiny, monkeypatch):
    monkeypatch.setattr(prefixes, "MIN_TOKENS", 8)
    return stir(tiny)


def read(lm, prompt, **options):
    """Return the last row, and how many rows were computed for it."""
    session, counts = TorchSession(lm, has_phrases=True, **options), []
    forward = session._forward
    session._forward = lambda vectors, *a, **k: (
        counts.append(vectors.shape[1]) or forward(vectors, *a, **k)
    )
    (output,) = session.prefill([prompt])
    return output, sum(counts), session


BASE = list(range(3, 23))


def test_a_shared_beginning_is_not_read_again(lm):
    _, first, _ = read(lm, [*BASE, 30, 31], prefix_cache=True)
    output, rows, session = read(lm, [*BASE, 40, 41, 42], prefix_cache=True)
    assert (first, rows) == (22, 3)
    fresh, whole, _ = read(lm, [*BASE, 40, 41, 42], prefix_cache=False)
    assert whole == 23
    numpy.testing.assert_allclose(output.logits, fresh.logits, atol=1e-4)
    session.step([[7, 8]])
    session.rewind([1])
    (after,) = session.step([[9]])
    other = TorchSession(lm, has_phrases=True)
    other.prefill([[*BASE, 40, 41, 42, 7]])
    (expected,) = other.step([[9]])
    numpy.testing.assert_allclose(after.logits, expected.logits, atol=1e-4)


def test_the_same_prompt_again_reads_one_row(lm):
    read(lm, BASE, prefix_cache=True)
    output, rows, _ = read(lm, BASE, prefix_cache=True)
    assert rows == 1
    numpy.testing.assert_allclose(output.logits, read(lm, BASE)[0].logits, atol=1e-4)


def test_what_a_sequence_wrote_does_not_show_in_the_next(lm):
    _, _, session = read(lm, BASE, prefix_cache=True)
    session.step([[7, 8, 9]])
    output, rows, _ = read(lm, [*BASE, 5], prefix_cache=True)
    assert rows == 1
    numpy.testing.assert_allclose(output.logits, read(lm, [*BASE, 5])[0].logits, atol=1e-4)


def test_short_beginnings_and_changed_weights_are_read_anew(lm):
    read(lm, BASE, prefix_cache=True)
    assert read(lm, [*BASE[:6], 50, 51], prefix_cache=True)[1] == 8
    with torch.no_grad():
        next(lm.model.base_model.parameters()).mul_(1.5)
    output, rows, _ = read(lm, BASE, prefix_cache=True)
    assert rows == 20
    numpy.testing.assert_allclose(output.logits, read(lm, BASE)[0].logits, atol=1e-4)


def test_memory_is_bounded(lm, monkeypatch):
    read(lm, [49, *BASE], prefix_cache=True)
    (memory,) = torch_engine._prefix_caches[lm]["float32"]._stores.values()
    monkeypatch.setattr(prefixes, "MAX_BYTES", 2 * memory._entries[0].nbytes)
    for start in range(5):
        read(lm, [50 + start, *BASE], prefix_cache=True)
    assert [entry.ids[0] for entry in memory._entries] == [53, 54]


def test_without_phrases_nothing_is_kept(lm):
    generate(lm, BASE, max_tokens=3, ignore_eos=True)
    assert lm not in torch_engine._prefix_caches
    vocabulary = lm.vocabulary(["quiet enjoyment of the premises"])
    generate(lm, BASE, vocabulary, max_tokens=3, ignore_eos=True, prefix_cache=False)
    assert lm not in torch_engine._prefix_caches
    generate(lm, BASE, vocabulary, max_tokens=3, ignore_eos=True)
    assert lm in torch_engine._prefix_caches


def test_texts_are_the_same_with_and_without(lm):
    vocabulary = lm.vocabulary(["quiet enjoyment of the premises", "the tenant shall keep"])
    for end in ([5], [5, 6], [7]):
        texts = [
            generate(
                lm, [*BASE, *end], vocabulary, max_tokens=20, phrase_bias=6.0, prefix_cache=reuse
            ).text
            for reuse in (False, True, True)
        ]
        assert len(set(texts)) == 1


def test_what_was_read_in_half_precision_is_not_for_single(lm):
    read(lm, BASE, prefix_cache=True, dtype="float16")
    _, rows, _ = read(lm, BASE, prefix_cache=True, dtype="float32")
    assert rows == len(BASE)
    assert read(lm, BASE, prefix_cache=True, dtype="float16")[1] == 1


def test_a_prompt_that_is_too_large_is_not_kept(lm, monkeypatch):
    monkeypatch.setattr(prefixes, "MAX_BYTES", 1)
    read(lm, BASE, prefix_cache=True)
    assert read(lm, BASE, prefix_cache=True)[1] == len(BASE)

"""On llama.cpp too, what prompts have in common is read once: with phrases only."""

from concurrent.futures import ThreadPoolExecutor

import numpy
import pytest

from tiny_gguf import load_tiny, needs_llamacpp
from univerb.decoding.loop import generate
from univerb.engines import prefixes
from univerb.engines.llamacpp import native as llama_native
from univerb.engines.llamacpp import session as llamacpp
from univerb.engines.llamacpp.session import LlamaCppSession

pytestmark = needs_llamacpp

BASE = list(range(3, 23))


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    return load_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def lm(loaded, monkeypatch):
    for module in (prefixes, llamacpp):
        monkeypatch.setattr(module, "MIN_TOKENS", 8)
    monkeypatch.setattr(loaded.native, "prefixes", prefixes.PrefixStore())
    return loaded


@pytest.fixture
def rows_read(monkeypatch):
    """The number of rows of each pass."""
    counts, read = [], llama_native.Context.read
    monkeypatch.setattr(
        llama_native.Context,
        "read",
        lambda self, rows, *rest: (counts.append(len(rows)), read(self, rows, *rest))[1],
    )
    return counts


def begin(lm, *prompts, prefix_cache=True):
    session = LlamaCppSession(lm, needs_states=True, prefix_cache=prefix_cache)
    return session, session.prefill(prompts)


def check(lm, outputs, *prompts):
    """Compare with sessions that read everything."""
    for output, prompt in zip(outputs, prompts, strict=True):
        _, (fresh,) = begin(lm, prompt, prefix_cache=False)
        numpy.testing.assert_allclose(output.logits[-1], fresh.logits[-1], atol=1e-2)
        numpy.testing.assert_allclose(output.hidden[-1], fresh.hidden[-1], atol=1e-2)


def test_a_shared_beginning_is_not_read_again(lm, rows_read):
    begin(lm, [*BASE, 30, 31])
    assert sum(rows_read) == 22
    rows_read.clear()
    session, outputs = begin(lm, [*BASE, 40, 41, 42])
    assert sum(rows_read) == 3
    check(lm, outputs, [*BASE, 40, 41, 42])
    session.step([[7, 8]])
    session.rewind([1])
    check(lm, session.step([[9]]), [*BASE, 40, 41, 42, 7, 9])


def test_the_same_prompt_again_reads_one_row_and_is_kept_once(lm, rows_read):
    for expected in (20, 1, 1):
        rows_read.clear()
        session, outputs = begin(lm, BASE)
        assert sum(rows_read) == expected
        session.step([[7, 8, 9]])
        check(lm, outputs, BASE)
    assert len(lm.native.prefixes._entries) == 1


def test_a_prompt_that_is_the_beginning_of_a_longer_one_is_found_there(lm, rows_read):
    begin(lm, [*BASE, *BASE])
    rows_read.clear()
    _, outputs = begin(lm, BASE)
    assert sum(rows_read) == 1
    check(lm, outputs, BASE)


def test_each_sequence_of_a_batch_has_its_own_beginning(lm, rows_read):
    begin(lm, BASE)
    begin(lm, BASE[::-1])
    rows_read.clear()
    prompts = [[*BASE[::-1], 5], [9, 8, 7], [*BASE, 4, 6]]
    session, outputs = begin(lm, *prompts)
    assert sum(rows_read) == 1 + 3 + 2
    check(lm, outputs, *prompts)
    session.select([2, 0, 2])
    texts = [[*prompts[2], 11], [*prompts[0], 12], [*prompts[2], 13]]
    check(lm, session.step([[11], [12], [13]]), *texts)


def test_an_entry_that_is_longer_than_the_context_moves_to_a_larger_one(lm, monkeypatch):
    begin(lm, [*BASE, *BASE, *BASE])
    monkeypatch.setattr(llama_native, "_MIN_CELLS", 8)
    monkeypatch.setattr(llamacpp, "_SPARE_CELLS", 1)
    monkeypatch.setattr(lm.native, "_idle", [])
    _, outputs = begin(lm, [*BASE, 4])
    check(lm, outputs, [*BASE, 4])


def test_an_interrupted_prompt_is_not_kept_and_the_next_is_right(lm, monkeypatch):
    begin(lm, BASE)
    session = LlamaCppSession(lm, needs_states=True, prefix_cache=True)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        stopping = lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)  # noqa: E731
        patch.setattr(llama_native.Context, "read", stopping)
        session.prefill([[*BASE, 40, 41]])
    assert [entry.ids for entry in lm.native.prefixes._entries] == [tuple(BASE)]
    check(lm, session.prefill([[*BASE, 50, 51]]), [*BASE, 50, 51])


def test_many_threads_share_what_is_kept(lm):
    prompts = [[*BASE, *range(60, 60 + count)] for count in range(1, 9)]
    with ThreadPoolExecutor(4) as pool:
        both = list(pool.map(lambda prompt: begin(lm, prompt)[1], prompts * 2))
    for outputs, prompt in zip(both, prompts * 2, strict=True):
        check(lm, outputs, prompt)


def test_memory_is_bounded(lm, monkeypatch):
    begin(lm, [49, *BASE])
    (entry,) = lm.native.prefixes._entries
    monkeypatch.setattr(prefixes, "MAX_BYTES", 2 * entry.nbytes)
    for start in range(5):
        begin(lm, [50 + start, *BASE])
    assert [entry.ids[0] for entry in lm.native.prefixes._entries] == [53, 54]


def test_only_with_phrases_and_only_if_asked(lm):
    generate(lm, BASE, max_tokens=3, ignore_eos=True)
    vocabulary = lm.vocabulary(["quiet enjoyment of the premises"])
    generate(lm, BASE, vocabulary, max_tokens=3, ignore_eos=True, prefix_cache=False)
    assert not lm.native.prefixes._entries
    generate(lm, BASE, vocabulary, max_tokens=3, ignore_eos=True)
    assert len(lm.native.prefixes._entries) == 1


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

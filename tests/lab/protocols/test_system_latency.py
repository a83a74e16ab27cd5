"""How long systems take: turns, warm-ups, what is inside, and what a cache saves."""

import pytest
import torch

from conftest import TEXT, make_llama, make_tokenizer, stir
from univerb.corpus.build import build_corpus
from univerb.corpus.manifest import CorpusSettings
from univerb.decoding.growth import RealTime
from univerb.decoding.loop import generate
from univerb.lab.protocols import generation_runner, system_latency
from univerb.lab.protocols.generation_runner import (
    GenerationJob,
    GenerationRunner,
    GenerationTask,
    TextSystem,
)
from univerb.lab.protocols.passages import Passage
from univerb.lab.protocols.result_cache import ResultCache
from univerb.lab.protocols.system_latency import WARM_UPS, LatencyTimer, uncached_seconds
from univerb.modeling.dynamic import DynamicLM
from univerb.phrase import Document

JOBS = [
    GenerationJob(TextSystem("plain", has_phrases=False), "greedy"),
    GenerationJob(TextSystem("ours"), "greedy"),
]
TASK = GenerationTask(k=2, max_tokens=10)


@pytest.fixture(scope="module")
def lm():
    return stir(DynamicLM.wrap(make_llama(), make_tokenizer()))


@pytest.fixture(scope="module")
def corpus(lm, tmp_path_factory):
    place = tmp_path_factory.mktemp("corpus") / "c.uv"
    return build_corpus(place, [Document(TEXT, "lease.txt")], lm, CorpusSettings(min_count=1))


@pytest.fixture
def passages(lm):
    ids = tuple(lm.tokenizer.encode_prompt(TEXT))
    return [Passage(f"{n}", ids[n : n + 6], ids[n + 6 :]) for n in range(4)]


def timer(lm, corpus, folder=None):
    cache = ResultCache(folder, "key")
    return LatencyTimer(lm, GenerationRunner(lm, corpus, TASK, cache), TASK, cache)


def test_systems_take_turns_after_a_warm_up(lm, corpus, passages, monkeypatch):
    seen = []

    def noticed(lm, prefix, names, **options):
        seen.append((prefix, names is not None))
        return generate(lm, prefix, names, **options)

    monkeypatch.setattr(system_latency, "generate", noticed)
    plain, ours = timer(lm, corpus).time(passages, JOBS)
    turns = [([*own.prefix], has) for own in passages for has in (False, True)]
    assert seen[2 * WARM_UPS :] == turns
    assert len(plain) == len(ours) == len(passages)
    for own in (*plain, *ours):
        assert own.tokens == 10
        assert own.decode > 0.0
        assert own.decode_uncached is None
    assert all(own.steps == 10 for own in plain)


def test_some_are_timed_without_a_cache(lm, corpus, passages):
    plain, ours = timer(lm, corpus).time(passages, JOBS, uncached=1)
    assert [own.decode_uncached is not None for own in plain] == [True, False, False, False]
    assert ours[0].decode_uncached > 0.0


def test_timings_are_kept(lm, corpus, passages, tmp_path, monkeypatch):
    first = timer(lm, corpus, tmp_path).time(passages, JOBS, uncached=1)
    monkeypatch.setattr(system_latency, "generate", None)
    assert timer(lm, corpus, tmp_path).time(passages, JOBS, uncached=1) == first


class Clock:
    """A clock that moves only when it is told to."""

    def __init__(self):
        self.now = 0.0

    def perf_counter(self):
        return self.now


def test_retrieval_is_preparation_and_growth_is_decoding(lm, corpus, passages, monkeypatch):
    clock = Clock()

    class Slow(RealTime):
        def __call__(self, vocabulary, produced):
            super().__call__(vocabulary, produced)
            clock.now += 1.0 if produced else 100.0

    def select(*arguments, **options):
        clock.now += 1000.0
        return search(*arguments, **options)

    search = corpus.select
    monkeypatch.setattr(corpus, "select", select)
    monkeypatch.setattr(generation_runner, "RealTime", Slow)
    monkeypatch.setattr(system_latency.time, "perf_counter", clock.perf_counter)
    grows = GenerationJob(TextSystem("grows", start=0.5, grows=True), "greedy")
    [[own]] = timer(lm, corpus).time(passages[:1], [grows])
    assert own.prepare + own.decode > 1100.0
    assert own.prepare >= 1100.0
    assert 0.0 < own.decode < 1000.0


def test_timings_of_other_threads_are_not_taken(lm, corpus, passages, tmp_path, monkeypatch):
    timer(lm, corpus, tmp_path).time(passages, JOBS)
    monkeypatch.setattr(system_latency.torch, "get_num_threads", lambda: 99)
    monkeypatch.setattr(system_latency, "generate", None)
    with pytest.raises(TypeError):
        timer(lm, corpus, tmp_path).time(passages, JOBS)


@pytest.mark.parametrize("mode", ["atomic", "unfold"])
def test_without_a_cache_there_is_a_pass_for_each_unit(lm, monkeypatch, mode):
    names = lm.vocabulary([Document(TEXT, "lease.txt")])
    whole = {"tolerance": 1.0} if mode == "unfold" else {}
    made = generate(lm, "The tenant", names, max_tokens=12, mode=mode, phrase_bias=9.0, **whole)
    assert any(piece.is_phrase for piece in made.pieces)
    rows = []
    own = lm.model.base_model.forward

    def noticed(*arguments, **options):
        rows.append(options["inputs_embeds"].shape[1])
        return own(*arguments, **options)

    monkeypatch.setattr(lm.model.base_model, "forward", noticed)
    prefix = lm.tokenizer.encode_prompt("The tenant")
    # A tensor that names no device would be of this one, which computes nothing.
    with torch.device("meta"):
        assert uncached_seconds(lm, prefix, made, names, mode == "atomic") > 0.0
    sizes = [1 if mode == "atomic" else len(piece.ids) for piece in made.pieces]
    assert rows == [len(prefix) + sum(sizes[:n]) for n in range(len(sizes))]

"""How long systems take: turns, warm-ups, what is inside, and what a cache saves."""

import time

import pytest

from conftest import TEXT, make_llama, make_tokenizer, stir
from univerb.corpus.build import build_corpus
from univerb.corpus.manifest import CorpusSettings
from univerb.decoding.growth import RealTime
from univerb.decoding.loop import generate
from univerb.lab.protocols import continuations, pace
from univerb.lab.protocols.cache import ResultCache
from univerb.lab.protocols.continuations import Desk, Job, Share, Task, Writer
from univerb.lab.protocols.pace import WARM_UPS, Pacer, uncached_seconds
from univerb.lab.protocols.passages import Passage
from univerb.modeling.dynamic import DynamicLM
from univerb.phrase import Document

JOBS = [Job(Writer("plain", has_phrases=False), "greedy"), Job(Writer("ours"), "greedy")]
TASK = Task(k=2, max_tokens=10)


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


def pacer(lm, corpus, folder=None):
    cache = ResultCache(folder, "key")
    return Pacer(lm, Desk(lm, corpus, TASK, cache), TASK, cache)


def test_systems_take_turns_after_a_warm_up(lm, corpus, passages, monkeypatch):
    seen = []

    def noticed(lm, prefix, names, **options):
        seen.append((prefix, names is not None))
        return generate(lm, prefix, names, **options)

    monkeypatch.setattr(pace, "generate", noticed)
    plain, ours = pacer(lm, corpus).time(passages, JOBS)
    turns = [([*own.prefix], has) for own in passages for has in (False, True)]
    assert seen[2 * WARM_UPS :] == turns
    assert len(plain) == len(ours) == len(passages)
    for own in (*plain, *ours):
        assert own.tokens == 10
        assert own.decode > 0.0
        assert own.decode_uncached is None
    # Without phrases nothing is prepared.
    assert max(own.prepare for own in plain) < min(own.prepare for own in ours)
    assert all(own.steps == 10 for own in plain)


def test_some_are_timed_without_a_cache(lm, corpus, passages):
    plain, ours = pacer(lm, corpus).time(passages, JOBS, uncached=1)
    assert [own.decode_uncached is not None for own in plain] == [True, False, False, False]
    assert ours[0].decode_uncached > 0.0


def test_timings_are_kept(lm, corpus, passages, tmp_path, monkeypatch):
    first = pacer(lm, corpus, tmp_path).time(passages, JOBS, uncached=1)
    monkeypatch.setattr(pace, "generate", None)
    assert pacer(lm, corpus, tmp_path).time(passages, JOBS, uncached=1) == first


def test_growth_is_part_of_writing(lm, corpus, passages, monkeypatch):
    slow = 0.02

    class Sleepy(RealTime):
        def __call__(self, vocabulary, produced):
            super().__call__(vocabulary, produced)
            time.sleep(slow)

    monkeypatch.setattr(continuations, "RealTime", Sleepy)
    grows = Job(Writer("grows", share=Share(0.5, grows=True)), "greedy")
    [[own]] = pacer(lm, corpus).time(passages[:1], [grows])
    # The last step chooses nothing any more, and a phrase may be the first unit.
    assert own.decode > slow * own.steps / 2
    assert own.prepare < slow * own.steps / 2


def test_timings_of_other_threads_are_not_taken(lm, corpus, passages, tmp_path, monkeypatch):
    pacer(lm, corpus, tmp_path).time(passages, JOBS)
    monkeypatch.setattr(pace.torch, "get_num_threads", lambda: 99)
    monkeypatch.setattr(pace, "generate", None)
    with pytest.raises(TypeError):
        pacer(lm, corpus, tmp_path).time(passages, JOBS)


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
    assert uncached_seconds(lm, prefix, made, names, mode == "atomic") > 0.0
    sizes = [1 if mode == "atomic" else len(piece.ids) for piece in made.pieces]
    assert rows == [len(prefix) + sum(sizes[:n]) for n in range(len(sizes))]

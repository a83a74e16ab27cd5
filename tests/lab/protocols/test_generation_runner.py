"""What systems write: the plain LM's own text, phrases, growth, and runs that are killed."""

import json
from dataclasses import replace

import pytest
from tokenizers.processors import TemplateProcessing

from conftest import TEXT, make_llama, make_tokenizer, stir
from tiny_data import paragraph
from univerb.corpus.build import build_corpus
from univerb.corpus.manifest import CorpusSettings
from univerb.decoding.loop import batch, generate
from univerb.errors import OptionError
from univerb.lab.protocols import generation_runner
from univerb.lab.protocols.generation_runner import (
    GenerationJob,
    GenerationRunner,
    GenerationTask,
    TextSystem,
)
from univerb.lab.protocols.passages import Passage
from univerb.lab.protocols.result_cache import ResultCache
from univerb.modeling.dynamic import DynamicLM
from univerb.phrase import Document
from univerb.phrases.guards import PAPER_GUARDS
from univerb.phrases.ngrams import ngrams

PLAIN, OURS = TextSystem("plain", has_phrases=False), TextSystem("ours", {"phrase_bias": 4.0})
JOBS = [
    GenerationJob(PLAIN, "greedy"),
    GenerationJob(OURS, "greedy"),
    GenerationJob(OURS, "nucleus"),
]
TASK = GenerationTask(k=3, max_tokens=12)


@pytest.fixture(scope="module")
def lm():
    return stir(DynamicLM.wrap(make_llama(), make_tokenizer()))


@pytest.fixture(scope="module")
def corpus(lm, tmp_path_factory):
    documents = [Document(TEXT, "lease.txt"), Document(paragraph(7, 9), "other.txt")]
    place = tmp_path_factory.mktemp("corpus") / "c.uv"
    return build_corpus(place, documents, lm, CorpusSettings(min_count=1))


@pytest.fixture(scope="module")
def passages(lm):
    texts = [paragraph(number) for number in range(5)]
    ids = [lm.tokenizer.encode_prompt(text) for text in texts]
    return [Passage(f"{n}", tuple(own[:8]), tuple(own[8:])) for n, own in enumerate(ids)]


@pytest.fixture(autouse=True)
def small_groups(monkeypatch):
    monkeypatch.setattr(generation_runner, "GROUP_SIZE", 2)


@pytest.fixture
def whole(lm, corpus, passages, small_groups):
    """The texts of a run that was never killed."""
    return runner(lm, corpus).generate(passages, JOBS)


def runner(lm, corpus, folder=None, task=TASK):
    return GenerationRunner(lm, corpus, task, ResultCache(folder, "key"))


def test_without_phrases_it_is_the_lm_itself(lm, corpus, passages):
    [texts] = runner(lm, corpus).generate(passages, JOBS[:1])
    for own, text in zip(passages, texts, strict=True):
        alone = generate(lm, own.prefix, max_tokens=12, ignore_eos=True)
        assert text.text == alone.text
        assert (text.passage, text.units, text.phrase_lengths) == (own.name, 12, [])


def test_with_phrases_units_tile_the_text(whole):
    _, texts, _ = whole
    assert any(text.phrase_lengths for text in texts)
    for text in texts:
        size = len(text.ids)
        words = text.units - len(text.phrase_lengths)
        assert words + sum(text.phrase_lengths) == size
        own = text.as_units()
        assert (own.units, own.tokens, own.size) == (text.units, size, len(text.text.encode()))


def test_a_last_phrase_may_run_over_the_budget_as_in_the_paper(lm, corpus, passages):
    atomic = TextSystem("atomic", {"mode": "atomic", "phrase_bias": 900.0})
    texts = {}
    for overshoot in ("allow", "forbid"):
        task = replace(TASK, overshoot=overshoot)
        [texts[overshoot]] = runner(lm, corpus, task=task).generate(
            passages, [GenerationJob(atomic, "greedy")]
        )
    assert TASK.overshoot == "allow"
    lengths = [len(text.ids) for text in texts["allow"]]
    assert 12 < max(lengths) < 12 + 8 and min(lengths) >= 12
    # Nothing but the last unit runs over.
    assert all(len(t.ids) - t.phrase_lengths[-1] < 12 for t in texts["allow"] if len(t.ids) > 12)
    assert {len(text.ids) for text in texts["forbid"]} == {12}


def test_all_n_grams_of_the_chunks_or_those_of_the_corpus(lm, passages, tmp_path):
    documents = [Document(TEXT, "lease.txt"), Document(paragraph(7, 9), "other.txt")]
    few = build_corpus(tmp_path / "few.uv", documents, lm, CorpusSettings(max_phrases=5))
    system, offered = TextSystem("ours"), {}
    for kind in ("all", "stored"):
        task = replace(TASK, offered=kind, k=9)
        offered[kind] = {p.ids for p in runner(lm, few, task=task).phrases(passages[0], system)}
    chunks = [hit.chunk for hit in few.search(lm.tokenizer.decode(passages[0].prefix), 9)]
    source = ngrams((2, 8), PAPER_GUARDS)
    every = {
        phrase.ids
        for chunk in chunks
        for phrase in source(Document(chunk.text, "chunk"), lm.tokenizer)
    }
    assert offered["all"] == every
    assert offered["stored"] < every and 0 < len(offered["stored"]) <= 5
    # What the corpus has no vector for is encoded, and offered.
    [[text]] = runner(lm, few, task=replace(TASK, k=9)).generate(passages[:1], JOBS[1:2])
    assert text.phrases == len(every)


def test_many_phrases_are_not_kept_for_many_passages(lm, corpus, passages, monkeypatch):
    sizes = []

    def noticed(lm, prompts, *arguments, **options):
        sizes.append(len(prompts))
        return batch(lm, prompts, *arguments, **options)

    monkeypatch.setattr(generation_runner, "batch", noticed)
    runner(lm, corpus, task=replace(TASK, k=512)).generate(passages[:2], JOBS[1:2])
    runner(lm, corpus, task=replace(TASK, k=512, offered="stored")).generate(
        passages[:2], JOBS[1:2]
    )
    assert sizes == [1, 1, 2]


def test_a_system_may_be_another_lm(lm, corpus, passages):
    other = DynamicLM.wrap(make_llama(seed=5), make_tokenizer())
    theirs = GenerationJob(TextSystem("theirs", has_phrases=False, lm="hash"), "greedy")
    both = GenerationRunner(lm, corpus, TASK, ResultCache(None, "key"), {"hash": other})
    ours, texts = both.generate(passages, [JOBS[0], theirs])
    expected = [generate(other, p.prefix, max_tokens=12, ignore_eos=True).text for p in passages]
    assert [text.text for text in texts] == expected != [text.text for text in ours]
    assert theirs.key != JOBS[0].key


def test_passages_draw_apart_and_always_the_same(lm, corpus, passages):
    same = [Passage(f"{n}", passages[0].prefix, passages[0].reference) for n in range(4)]
    [texts] = runner(lm, corpus).generate(same, [GenerationJob(PLAIN, "nucleus")])
    assert len({text.text for text in texts}) > 1
    [again] = runner(lm, corpus).generate(same, [GenerationJob(PLAIN, "nucleus")])
    assert texts == again
    [other] = runner(lm, corpus, task=GenerationTask(k=3, max_tokens=12, seed=1)).generate(
        same, [GenerationJob(PLAIN, "nucleus")]
    )
    assert texts != other


def test_a_share_of_the_phrases_and_growth(lm, corpus, passages):
    shares = ({}, {"start": 0.5}, {"start": 0.5, "grows": True})
    jobs = [GenerationJob(TextSystem("some", **share), "greedy") for share in shares]
    whole, part, grown = runner(lm, corpus).generate(passages, jobs)
    for full, half, more in zip(whole, part, grown, strict=True):
        assert half.phrases == round(full.phrases / 2)
        # 5 % of all for the ten tokens that were written.
        assert more.phrases == round(0.55 * full.phrases)


def test_fewer_phrases_are_the_ones_that_save_the_most(lm, corpus, passages):
    found = runner(lm, corpus).phrases(passages[0], TextSystem("few"))
    [[text]] = runner(lm, corpus).generate(
        passages[:1], [GenerationJob(TextSystem("few", max_phrases=3), "greedy")]
    )
    assert text.phrases == 3
    [vocabulary], growth = runner(lm, corpus).vocabularies(
        [found], TextSystem("few", max_phrases=3)
    )
    assert [own.ids for own in vocabulary.snapshot().phrases] == [own.ids for own in found[:3]]
    assert growth is None


def test_chunks_of_a_writer(lm, corpus, passages):
    one, all_ = (len(runner(lm, corpus).phrases(passages[0], TextSystem("", k=k))) for k in (1, 9))
    assert one < all_


def test_without_a_corpus_there_are_no_phrases(lm, passages):
    plain, ours = runner(lm, None).generate(passages, JOBS[:2])
    assert [own.text for own in plain] == [own.text for own in ours]


@pytest.mark.parametrize("finished", [0, 1, 4, 8])
def test_a_run_that_is_killed_ends_with_the_same_texts(
    lm, corpus, passages, whole, tmp_path, monkeypatch, finished
):
    """Batches: three groups of passages for each of three jobs."""
    left = iter(range(finished))

    def until(*arguments, **options):
        if next(left, None) is None:
            raise KeyboardInterrupt
        return batch(*arguments, **options)

    monkeypatch.setattr(generation_runner, "batch", until)
    with pytest.raises(KeyboardInterrupt):
        runner(lm, corpus, tmp_path).generate(passages, JOBS)
    if finished:
        # A line that was being written when the power went.
        [kept] = tmp_path.glob("*.jsonl")
        kept.write_text(kept.read_text()[:-9])
    monkeypatch.setattr(generation_runner, "batch", batch)
    assert runner(lm, corpus, tmp_path).generate(passages, JOBS) == whole


def test_what_is_written_does_not_depend_on_vectors_encoded_before(
    lm, tmp_path, passages, monkeypatch
):
    documents = [Document(TEXT, "lease.txt")]
    settings = CorpusSettings(min_count=1, vectors=False)
    corpus = build_corpus(tmp_path / "bare.uv", documents, lm, settings)
    forgot = []
    monkeypatch.setattr(lm, "forget", lambda: forgot.append(len(forgot)))
    runner(lm, corpus).generate(passages[:2], JOBS)
    assert len(forgot) == len(JOBS)


def test_a_token_that_begins_prompts_is_read_but_is_no_text(passages):
    tokenizer = make_tokenizer()
    begin = tokenizer.convert_ids_to_tokens(0)
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{begin} $A", special_tokens=[(begin, 0)]
    )
    lm = DynamicLM.wrap(make_llama(), tokenizer)
    assert runner(lm, None).prompt(passages[0]) == [0, *passages[0].prefix]
    [[text]] = runner(lm, None).generate(passages[:1], JOBS[:1])
    expected = generate(lm, [0, *passages[0].prefix], max_tokens=12, ignore_eos=True)
    assert text.text == expected.text


def test_what_is_known_is_not_written_again(lm, corpus, passages, tmp_path, monkeypatch):
    first = runner(lm, corpus, tmp_path).generate(passages[:4], JOBS)
    seen = []

    def noticed(lm, prompts, *arguments, **options):
        seen.append(prompts)
        return batch(lm, prompts, *arguments, **options)

    monkeypatch.setattr(generation_runner, "batch", noticed)
    more = runner(lm, corpus, tmp_path).generate(passages, JOBS)
    assert [own[:4] for own in more] == first
    assert seen == [[[*passages[4].prefix]]] * len(JOBS)


def test_the_name_of_a_system_does_not_matter_but_all_else_does(lm):
    key = GenerationJob(OURS, "greedy").key
    assert GenerationJob(TextSystem("another name", {"phrase_bias": 4.0}), "greedy").key == key
    others = [
        GenerationJob(OURS, "nucleus"),
        GenerationJob(TextSystem("ours"), "greedy"),
        GenerationJob(TextSystem("ours", {"phrase_bias": 4.0}, k=9), "greedy"),
        GenerationJob(TextSystem("ours", {"phrase_bias": 4.0}, max_phrases=9), "greedy"),
        GenerationJob(TextSystem("ours", {"phrase_bias": 4.0}, start=0.5), "greedy"),
        GenerationJob(PLAIN, "greedy"),
    ]
    assert len({key, *(job.key for job in others)}) == len(others) + 1
    assert json.loads(key)["decoding"] == {}


def test_seeds_of_a_batch_are_those_of_texts_alone(lm):
    prompts, options = ["The tenant", "The landlord"], {"temperature": 1.0, "max_tokens": 9}
    both = batch(lm, prompts, seeds=[3, 4], **options)
    alone = [generate(lm, p, seed=s, **options) for p, s in zip(prompts, (3, 4), strict=True)]
    assert [own.text for own in both] == [own.text for own in alone]
    with pytest.raises(OptionError, match="2 prompts but seeds is"):
        batch(lm, prompts, seeds=[3], **options)

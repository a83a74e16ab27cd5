"""Pairs of texts that are to be judged: both systems have the same, but for the phrases."""

import gzip
import json
from pathlib import Path

import pytest

from conftest import TEXT, make_llama, make_tokenizer, stir
from univerb.config import GenerationConfig
from univerb.decoding.loop import generate
from univerb.lab.judging import continuations
from univerb.lab.judging.continuations import PairsReport, write_pairs
from univerb.lab.judging.system_texts import read_pairs
from univerb.lab.speed.workloads import RequestMaker
from univerb.modeling.dynamic import DynamicLM

CONFIG = GenerationConfig(max_tokens=12, phrase_bias=20.0, tolerance=1.0, no_repeat_ngram_size=3)


@pytest.fixture(scope="module")
def lm() -> DynamicLM:
    model = make_llama()
    model.config.max_position_embeddings = 4096
    return stir(DynamicLM.wrap(model, make_tokenizer()))


@pytest.fixture
def data(tmp_path) -> Path:
    rows = {
        "wiki/valid.jsonl.gz": [{"id": f"v{n}", "text": f"{n}. {TEXT} {TEXT}"} for n in range(4)],
        "wiki/train-00.jsonl.gz": [{"id": f"t{n}", "text": f"{n}. {TEXT}"} for n in range(3)],
    }
    for name, lines in rows.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        with gzip.open(tmp_path / name, "wt") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
    return tmp_path


@pytest.fixture
def report(lm, data) -> PairsReport:
    make = RequestMaker(lm, data, 2, 12, passages=2, middle_words=6)
    told = []
    pairs = list(write_pairs(make, ["open"], 1, CONFIG, data, lambda *at: told.append(at)))
    assert told == [(1, 2), (2, 2)]
    kept = [path.read_bytes() for path in data.glob("*.jsonl")]
    assert list(write_pairs(make, ["open"], 1, CONFIG, data)) == pairs
    assert [path.read_bytes() for path in data.glob("*.jsonl")] == kept != []
    return PairsReport({"model": "tiny"}, pairs)


def test_both_are_shown_the_same_and_have_the_same_repetition_control(lm, data, monkeypatch):
    seen = []

    def watched(lm, ids, vocabulary, **options):
        seen.append((tuple(ids), options))
        return generate(lm, ids, vocabulary, **options)

    monkeypatch.setattr(continuations, "generate", watched)
    make = RequestMaker(lm, data, 2, 12, passages=2, middle_words=6)
    for pair in write_pairs(make, ["open"], 1, CONFIG):
        with_phrases, plain = pair.texts
        assert any(piece.is_phrase for piece in with_phrases.pieces)
        assert not any(piece.is_phrase for piece in plain.pieces)
        for text in pair.texts:
            ids = [token for piece in text.pieces for token in piece.ids]
            triples = list(zip(ids, ids[1:], ids[2:], strict=False))
            assert len(set(triples)) == len(triples)
    for first, second in (seen[:2], seen[2:]):
        assert first == second and first[1]["repeat_from"] > 0


def test_without_context_the_plain_text_is_that_of_generate(lm, data):
    make = RequestMaker(lm, data, 1, 12, passages=2, middle_words=6)
    [pair] = write_pairs(make, ["open"], 0, CONFIG)
    ids = lm.tokenizer.encode_prompt(pair.prompt)
    assert pair.texts[1].text == generate(lm, ids, **CONFIG.options()).text


def test_the_texts_can_be_judged_and_the_figures_are_theirs(report, tmp_path):
    report.write_texts(tmp_path)
    pairs = read_pairs(tmp_path / "phrases.jsonl", tmp_path / "plain.jsonl")
    assert [(pair.ours, pair.theirs) for pair in pairs] == [
        tuple(text.text for text in pair.texts) for pair in report.pairs
    ]
    figures = report.to_dict()["figures"]["all"]
    pieces = [piece for pair in report.pairs for piece in pair.texts[0].pieces]
    written = [piece.text for piece in pieces if piece.is_phrase]
    assert figures["phrases"] == len(written) and figures["N"] == 2
    long = sum(len(text.split()) >= 3 for text in written)
    assert figures["of 3 words or more"] == pytest.approx(long / len(written))
    page = report.markdown("univerb lab pairs")
    assert page.count("    * phrases: ") == page.count("    * plain: ") == 2

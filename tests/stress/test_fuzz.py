"""Whatever is typed, called or requested: a typed error or an answer, never a traceback."""

import gc
import json
import random
from pathlib import Path
from typing import Any

import pytest

import univerb
from conftest import TEXT, make_llama, make_tokenizer, saved_encoder
from fuzzing import CommandLines, fuzzed_request, made_files, tried, unlikely_objects
from univerb.applications.batch_jobs import BatchSettings, Group, answer_group
from univerb.applications.batch_requests import BODIES, UNSUPPORTED, read_lines
from univerb.config import REQUEST_OPTIONS, GenerationConfig
from univerb.corpus import open_corpus
from univerb.corpus.build import build_corpus
from univerb.corpus.manifest import CorpusSettings
from univerb.errors import UniverbError
from univerb.modeling.dynamic import DynamicLM
from univerb.phrase import Document

CASES = 100
"""Of each test; the first of each kind runs with all others, the rest with `-m stress`."""


def rounds(count: int) -> Any:
    kept = [pytest.param(0), *(pytest.param(n, marks=pytest.mark.stress) for n in range(1, count))]
    return pytest.mark.parametrize("number", kept)


pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    backbone = make_llama()
    backbone.config.max_position_embeddings = 2048
    return saved_encoder(tmp_path_factory.mktemp("fuzz"), backbone)


@pytest.fixture(scope="module")
def lm() -> DynamicLM:
    return DynamicLM.wrap(make_llama(), make_tokenizer())


@pytest.fixture
def folder(tmp_path: Path, encoder: Path, monkeypatch) -> list[str]:
    """Work among files of every kind; returns their paths."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("UNIVERB_OFFLINE", "1")
    monkeypatch.delenv("UNIVERB_DATA", raising=False)
    loaded = DynamicLM.from_pretrained(str(encoder))
    settings = CorpusSettings(sizes=(2, 4))
    build_corpus(tmp_path / "corpus.uv", [Document(TEXT, "lease.txt")], loaded, settings)
    return made_files(tmp_path, encoder, encoder.parent / "tiny")


@rounds(20)
def test_command_lines(run, folder, encoder, number):
    made = CommandLines(number, folder, encoder)
    for _ in range(CASES):
        typed = made.next()
        try:
            ran = run(*typed)
        except Exception as error:
            raise AssertionError(f"{typed!r}: {type(error).__name__}") from error
        assert ran.code in (0, 1, 2), typed
        assert "Traceback" not in ran.out + ran.err, typed
        gc.unfreeze()


@rounds(25)
def test_request_bodies(tmp_path, encoder, number):
    choose = random.Random(number)
    fields = [n for kind in BODIES.values() for n in kind.model_fields]
    names = sorted({*fields, *REQUEST_OPTIONS, *UNSUPPORTED})
    made = [fuzzed_request(choose, index, names) for index in range(CASES)]
    lines = [json.dumps(request, default=str) for request in made]
    settings = BatchSettings(model=str(encoder), batch_size=10)
    read = read_lines("\n".join(lines).encode(), "in.jsonl")
    for start in range(0, CASES, 10):
        group = tuple(read[start : start + 10])
        for line, answer in zip(group, answer_group(Group(settings, group)), strict=True):
            assert answer["response"]["status_code"] in (200, 400), line.text


def calls(lm: DynamicLM, choose: random.Random, paths: list[str]) -> Any:
    """Return a call of the Python API with one or more values that are probably wrong."""
    values = unlikely_objects()
    options = {
        name: choose.choice(values)
        for name in choose.sample(sorted(GenerationConfig.model_fields), choose.randint(0, 3))
        if name != "growth"
    }
    one, other = choose.choice(values), choose.choice(values)
    few = {"max_tokens": 2} | options
    lease = Document(TEXT, "lease.txt")
    phrases = lm.vocabulary(["quiet enjoyment", "good repair"])
    return choose.choice(
        [
            lambda: univerb.generate(lm, "The tenant", phrases, **few),
            lambda: univerb.generate(lm, one, choose.choice([None, phrases]), **few),
            lambda: univerb.generate(lm, "x", one, **few),
            lambda: list(univerb.stream(lm, one, phrases, **few)),
            lambda: univerb.batch(lm, one, other, **few),
            lambda: univerb.batch(lm, ["a", one], [None, phrases], seeds=other, **few),
            lambda: univerb.answer(lm, "Who pays?", [lease], **few),
            lambda: univerb.answer(lm, one, [lease], k=other, max_tokens=2),
            lambda: univerb.answer(lm, "Who pays?", one, max_tokens=2),
            lambda: univerb.answer(
                lm, "Who?", [lease], style=one, cite=other, phrases=one, max_tokens=2
            ),
            lambda: univerb.answer(lm, "Who?", [lease], shots=one, chat=other, max_tokens=2),
            lambda: univerb.read_documents(choose.choice([choose.choice(paths), one])),
            lambda: univerb.load(choose.choice([choose.choice(paths), one]), offline=True),
            lambda: univerb.load(paths[-1], engine=one),
            lambda: univerb.load(paths[-1], device=one, dtype=other),
            lambda: univerb.load(paths[-1], threads=one, backbone=other),
            lambda: univerb.load(paths[-1], gguf=one, engine="llamacpp"),
            lambda: univerb.Document(one, other),
            lambda: univerb.Phrase(one, "x", (), other),
            lambda: lm.vocabulary(one),
            lambda: lm.vocabulary([one, other]),
            lambda: lm.vocabulary([lease], max_phrases=one),
            lambda: lm.vocabulary(["good repair"]).add(one),
            lambda: lm.vocabulary(["good repair"]).remove(one),
            lambda: lm.chat_prompt(one, other),
            lambda: open_corpus(choose.choice([choose.choice(paths), one])),
            lambda: GenerationConfig(**options),
        ]
    )


@rounds(25)
def test_calls(lm, folder, number):
    choose = random.Random(number)
    for _ in range(CASES):
        error = tried(calls(lm, choose, folder), UniverbError)
        if error is not None:
            raise AssertionError(f"{type(error).__name__}: {error}") from error

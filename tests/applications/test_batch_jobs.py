"""Batch jobs: every line gets its answer, and the bytes do not depend on how they came about."""

import dataclasses
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conftest import TEXT, make_llama, make_tokenizer, saved, stir
from univerb.applications import batch_jobs, corpus_profile
from univerb.applications.batch_jobs import BatchSettings, Group, run_batch
from univerb.applications.batch_requests import BODIES, UNSUPPORTED, read_lines
from univerb.applications.context import in_context, message_in_context
from univerb.applications.corpus_profile import CorpusProfile, write_profile
from univerb.config import REQUEST_OPTIONS, GenerationConfig
from univerb.corpus import open_corpus
from univerb.corpus.build import build_corpus
from univerb.corpus.manifest import CorpusSettings
from univerb.decoding import loop
from univerb.decoding.loop import generate
from univerb.documents.chunks import Chunk
from univerb.engines.torch.prefix_cache import PrefixCache
from univerb.errors import (
    CorruptCorpusError,
    DocumentError,
    ModelMissing,
    OptionError,
    UniverbError,
)
from univerb.modeling.backbones import load_backbone
from univerb.modeling.dynamic import DynamicLM
from univerb.parallel import local_workers
from univerb.phrase import Document

PROMPTS = ["The tenant", "The landlord shall", "rent", "on the first day", "quiet", "a b c"]
# Phrases win every choice, and the text is made of nothing else.
ONLY_PHRASES = {"mode": "atomic", "phrase_bias": 900.0}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    lm = DynamicLM.wrap(make_llama(), tokenizer)
    backbone = saved(tmp_path_factory.mktemp("jobs") / "tiny", lm)
    lm = DynamicLM.wrap(*load_backbone(str(backbone)))
    lm.save_pretrained(backbone.parent / "encoder")
    # One that is fresh finds phrases equally likely: rounding would choose between them.
    stir(lm).save_pretrained(backbone.parent / "stirred")
    return backbone.parent / "encoder"


@pytest.fixture(scope="module")
def stirred(model: Path) -> Path:
    """An encoder that does not find all phrases equally likely."""
    return model.parent / "stirred"


@pytest.fixture(scope="module")
def lm(model: Path) -> DynamicLM:
    return DynamicLM.from_pretrained(str(model))


class Recording:
    """One worker that remembers what it was given, and may die before a group."""

    count = 1

    def __init__(self, dies_before: int = 1 << 30) -> None:
        self.seen: list[str | None] = []
        self._left = dies_before

    def map(self, function: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[Any]:
        for item in items:
            if self._left == 0:
                raise KeyboardInterrupt
            self._left -= 1
            assert isinstance(item, Group)
            self.seen += [line.custom_id for line in item.lines]
            yield function(item)

    def __enter__(self) -> "Recording":
        return self

    def __exit__(self, *_: object) -> None:
        pass


def request(custom_id: str, **body: Any) -> dict[str, Any]:
    url = "/v1/chat/completions" if "messages" in body else "/v1/completions"
    if "messages" not in body:
        body = {"prompt": "The tenant", **body}
    body = {"max_tokens": 6, **body}
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body}


def write(path: Path, requests: Sequence[Any]) -> Path:
    lines = [one if isinstance(one, str) else json.dumps(one) for one in requests]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def answers(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]


@pytest.fixture
def run(tmp_path: Path, model: Path) -> Callable[..., list[dict[str, Any]]]:
    """Run a job over some requests in this process."""

    def call(*requests: Any, **common: Any) -> list[dict[str, Any]]:
        source, output = write(tmp_path / "in.jsonl", requests), tmp_path / "out.jsonl"
        settings = BatchSettings(model=str(model), batch_size=4, **common)
        run_batch(source, output, settings, local_workers(), restart=True)
        return answers(output)

    return call


def body(answer: dict[str, Any]) -> dict[str, Any]:
    assert answer["response"]["status_code"] == 200, answer
    assert answer["error"] is None
    return answer["response"]["body"]


def text(answer: dict[str, Any]) -> str:
    choice = body(answer)["choices"][0]
    return choice["message"]["content"] if "message" in choice else choice["text"]


def refused(answer: dict[str, Any], *words: str) -> None:
    assert answer["response"]["status_code"] == 400
    error = answer["response"]["body"]["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    for word in words:
        assert word in error["message"], error["message"]


def mixed(count: int = 14) -> list[Any]:
    """Requests of every kind, bad ones between them."""
    kinds: list[dict[str, Any]] = [
        {},
        {"documents": [TEXT], **ONLY_PHRASES},
        {"temperature": 1.0, "seed": 3},
        {"phrases": ["quiet enjoyment", "the premises"], "phrase_bias": 9.0},
        {"temperature": -1.0},
        {"messages": [{"role": "user", "content": "Hello"}]},
        {"mode": "verify", "documents": [{"text": TEXT, "name": "lease"}]},
    ]
    made: list[Any] = []
    for number in range(count):
        kind = dict(kinds[number % len(kinds)])
        if "messages" not in kind:
            kind["prompt"] = PROMPTS[number % len(PROMPTS)]
        made.append(request(f"r{number}", **kind))
    return [*made, "no json", request("r0")]


def test_an_answer_is_what_generate_writes(run, lm):
    requests = [request(str(n), prompt=prompt, max_tokens=9) for n, prompt in enumerate(PROMPTS)]
    found = run(*requests)
    assert [one["custom_id"] for one in found] == [str(n) for n in range(len(PROMPTS))]
    for prompt, answer in zip(PROMPTS, found, strict=True):
        alone = generate(lm, prompt, max_tokens=9)
        assert text(answer) == alone.text
        whole = body(answer)
        assert whole["object"] == "text_completion" and whole["created"] == 0
        read, wrote = alone.stats.prompt_tokens, alone.stats.base_tokens
        assert whole["usage"] == {
            "prompt_tokens": read,
            "completion_tokens": wrote,
            "total_tokens": read + wrote,
        }
        assert "".join(piece["text"] for piece in whole["univerb"]["pieces"]) == alone.text
        assert "seconds" not in whole["univerb"]["stats"]


def test_phrases_of_a_request_and_of_the_job(run, lm, tmp_path):
    lease = tmp_path / "lease.txt"
    lease.write_text(TEXT)
    found = run(
        request("job", context=0),
        request("own", phrases=["thirty days written notice"]),
        request("documents", documents=[TEXT, {"text": TEXT, "name": "mine"}]),
        docs=(str(lease),),
        decoding=GenerationConfig(**ONLY_PHRASES),
    )
    shared = lm.vocabulary([Document(TEXT, "lease.txt")])
    assert text(found[0]) == generate(lm, "The tenant", shared, max_tokens=6, **ONLY_PHRASES).text
    sources = [
        {span["document"] for piece in body(one)["univerb"]["pieces"] for span in piece["sources"]}
        for one in found
    ]
    assert sources == [{"lease.txt"}, set(), {"document-1", "mine"}]
    assert body(found[1])["univerb"]["stats"]["phrases"] == 1
    for answer in found[::2]:
        for piece in body(answer)["univerb"]["pieces"]:
            for span in piece["sources"]:
                assert TEXT[span["start"] : span["end"]] == piece["text"].strip()


def test_phrases_that_cannot_be_used_are_noted_in_the_answer(run):
    answer, other = run(request("a", phrases=["7", "quiet enjoyment"]), request("b"))
    assert "1 of 2 phrases were left out" in body(answer)["univerb"]["notes"][0]
    assert body(other)["univerb"]["notes"] == []


def test_a_chat_has_a_user_and_may_have_a_system(run, lm):
    user = {"role": "user", "content": "Hello"}
    system = {"role": "system", "content": "Be brief"}
    plain, told, *bad = run(
        request("a", messages=[user]),
        request("b", messages=[system, user], max_completion_tokens=3, max_tokens=None),
        request("c", messages=[user, user]),
        request("d", messages=[system]),
        request("e", messages=[]),
        request("f", messages=[user, {"role": "assistant", "content": "Hi"}, user]),
        request("g", messages=[{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]),
    )
    assert text(plain) == generate(lm, lm.chat_prompt("Hello"), max_tokens=6).text
    assert body(plain)["object"] == "chat.completion"
    assert body(plain)["choices"][0]["message"]["role"] == "assistant"
    assert body(told)["usage"]["completion_tokens"] == 3
    prompt = lm.chat_prompt("Hello", "Be brief")
    assert text(told) == generate(lm, prompt, max_tokens=3).text
    for answer in bad:
        refused(answer, "messages")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"max_token": 3}, ["'max_token'", "Did you mean 'max_tokens'?"]),
        ({"n": 2}, ["body.n", "does not support"]),
        ({"logprobs": 3}, ["body.logprobs", "does not support"]),
        ({"stream": True}, ["body.stream", "does not support"]),
        ({"max_tokens": 32769}, ["body.max_tokens is 32769", "between 1 and 32,768"]),
        ({"max_tokens": 0}, ["body.max_tokens"]),
        ({"max_tokens": "6"}, ["body.max_tokens is '6'", "whole number"]),
        ({"max_tokens": True}, ["body.max_tokens"]),
        ({"temperature": -0.1}, ["body.temperature is -0.1"]),
        ({"temperature": float("nan")}, ["temperature"]),
        ({"temperature": True}, ["body.temperature is True"]),
        ({"temperature": 10**400}, ["body.temperature is 1000"]),
        ({"seed": int("9" * 400)}, ["body.seed is 9999", "whole number between 0 and"]),
        ({"top_p": 1e999}, ["top_p"]),
        ({"seed": -1}, ["body.seed is -1"]),
        ({"mode": "unfolded"}, ["body.mode", "'unfold'"]),
        ({"mode": "verify", "tolerance": 0.5}, ["verify"]),
        ({"tolerance": 2}, ["body.tolerance is 2"]),
        ({"phrases": ["x"] * 4097}, ["body.phrases", "4096"]),
        ({"phrases": ["x" * 513]}, ["body.phrases", "512"]),
        ({"phrases": ["  "]}, ["empty"]),
        ({"phrases": "quiet enjoyment"}, ["body.phrases", "list"]),
        ({"stop": ["x"] * 9}, ["body.stop", "8"]),
        ({"stop": ["x" * 129]}, ["body.stop", "128"]),
        ({"documents": [TEXT] * 65}, ["body.documents", "64"]),
        ({"documents": [" "]}, ["'document-1' is empty"]),
        ({"documents": [{"text": "a b", "name": "x"}] * 2}, ["two documents", "'x'"]),
        ({"documents": [{"txt": "a b"}]}, ["body.documents"]),
        ({"prompt": ""}, ["empty"]),
        ({"prompt": "word " * 600}, ["tokens", "512", "truncate"]),
        ({"prompt": ["a", "b"]}, ["body.prompt"]),
        ({"prompt": [1, 99999]}, ["ids from 1 to 99999"]),
        ({"prompt": [1, 1 << 70], "documents": [TEXT]}, ["ids from 1 to 11805916"]),
        ({"prompt": "", "documents": [TEXT]}, ["empty"]),
        ({"prompt": [], "documents": [TEXT]}, ["empty"]),
        ({"context": -1}, ["body.context"]),
        ({"context": 65}, ["body.context"]),
        ({"context": True}, ["body.context"]),
        ({"prompt": "\ud800"}, ["body.prompt"]),
        ({"model": "gpt-4"}, ["'gpt-4'", "this job runs"]),
    ],
    ids=str,
)
def test_a_bad_body_gets_an_error_that_says_what(run, given, words):
    good, bad = run(request("good"), request("bad", **given))
    body(good)
    assert bad["custom_id"] == "bad"
    refused(bad, *words)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{broken", ["line 2 is not a JSON object"]),
        ("[1, 2]", ["line 2 is not a JSON object"]),
        ("[" * 100_000, ["line 2 is not a JSON object"]),
        ({"method": "POST", "url": "/v1/completions", "body": {}}, ["custom_id"]),
        (request("") | {"custom_id": 7}, ["custom_id"]),
        (request("\ud800"), ["custom_id"]),
        (request("x") | {"method": "GET"}, ["method", "POST"]),
        (request("x") | {"url": "/v1/embeddings"}, ["'/v1/embeddings'", "/v1/completions"]),
        (request("x") | {"body": []}, ["body"]),
        (request("x") | {"boddy": {}}, ["'boddy'", "Did you mean 'body'?"]),
        (request("first"), ["'first'", "line 1"]),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_bad_line_gets_an_error_and_stops_nothing(run, line, words):
    first, bad, last = run(request("first"), line, request("last"))
    assert body(first) and body(last)
    refused(bad, *words)
    assert len({one["id"] for one in (first, bad, last)}) == 3


def test_fields_that_ask_for_nothing_are_let_through(run, model):
    harmless = UNSUPPORTED | {"user": "me", "seed": None}
    plain, other = run(request("a"), request("b", model=str(model), **harmless))
    assert text(plain) == text(other)


def test_a_request_overrides_the_jobs_options(run):
    found = run(
        request("a", max_tokens=None),
        request("b", max_tokens=2),
        request("c", mode="verify"),
        request("d", stop="e"),
        request("e", prompt="word " * 600, truncate="left"),
        decoding=GenerationConfig(max_tokens=5, tolerance=0.5),
    )
    assert [body(one)["usage"]["completion_tokens"] for one in found[:3]] == [5, 2, 6]
    assert "e" not in text(found[3])
    assert body(found[4])["usage"]["prompt_tokens"] == 511


def test_a_default_that_is_asked_for_is_not_the_profiles(run, lm):
    same: dict[str, Any] = {"tolerance": 1.0, "max_tokens": 30}
    asked = [same, same | {"phrase_bias": GenerationConfig().phrase_bias}]
    lines = [request(str(n), documents=[TEXT], context=0, **o) for n, o in enumerate(asked)]
    found = run(*lines)
    phrases = lm.vocabulary([Document(TEXT)])
    alone = [generate(lm, "The tenant", phrases, **each).text for each in asked]
    assert [text(one) for one in found] == alone and alone[0] != alone[1]


def test_a_request_is_shown_passages_of_its_own_documents_or_of_the_jobs(run, lm, tmp_path):
    lease, own = tmp_path / "lease.txt", "The captain shall steer the ship."
    lease.write_text(TEXT)
    user = {"role": "user", "content": "Who pays?"}
    found = run(
        request("job"),
        request("own", documents=[own]),
        request("none", documents=[own], context=0),
        request("phrases", phrases=["quiet enjoyment"]),
        request("ids", prompt=lm.tokenizer.encode_prompt("The tenant"), documents=[own]),
        request("chat", messages=[user], documents=[own]),
        request("no room", documents=[own], max_tokens=5000, stop="."),
        docs=(str(lease),),
        decoding=GenerationConfig(mode="verify"),
    )
    shown = [Chunk("lease.txt", 0, TEXT)], [Chunk("document-1", 0, own)]
    ids = lm.tokenizer.encode_prompt("The tenant")
    prompts = [
        in_context(lm, "The tenant", shown[0]).ids,
        in_context(lm, "The tenant", shown[1]).ids,
        ids,
        ids,
        in_context(lm, ids, shown[1]).ids,
        message_in_context(lm, "Who pays?", shown[1]).ids,
    ]
    for prompt, answer in zip(prompts, found, strict=False):
        assert body(answer)["usage"]["prompt_tokens"] == len(prompt)
        assert text(answer) == generate(lm, prompt, max_tokens=6).text
    assert body(found[-1])["usage"]["prompt_tokens"] == len(ids)


def test_passages_are_left_out_of_repetition_control(run, lm):
    options = {"no_repeat_ngram_size": 2, "repetition_penalty": 1.3, "max_tokens": 20}
    lines = [request(str(n), documents=[TEXT], **options, **ONLY_PHRASES) for n in range(2)]
    asked = in_context(lm, "The tenant", [Chunk("document-1", 0, TEXT)])
    phrases = lm.vocabulary([Document(TEXT)])
    given = {**options, **ONLY_PHRASES, "repeat_from": asked.shown}
    alone = generate(lm, asked.ids, phrases, **given)
    assert [text(one) for one in run(*lines)] == [alone.text] * 2
    assert alone.stats.phrase_share > 0.5


def test_a_corpus_shows_its_passages_too(tmp_path, model, lm):
    corpus = tmp_path / "c.uv"
    build_corpus(corpus, [Document(TEXT, "lease.txt")], lm, CorpusSettings(sizes=(2, 8)))
    lines = [request("shown"), request("hidden", context=0), request("ids", prompt=[5, 6, 7])]
    source, output = write(tmp_path / "in.jsonl", lines), tmp_path / "out.jsonl"
    settings = BatchSettings(model=str(model), corpus=str(corpus))
    run_batch(source, output, settings, local_workers())
    read = [body(answer)["usage"]["prompt_tokens"] for answer in answers(output)]
    assert read[0] > 10 * read[1] and read[1] == len(lm.tokenizer.encode_prompt("The tenant"))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=6,
)
names = sorted(
    {n for kind in BODIES.values() for n in kind.model_fields} | {*REQUEST_OPTIONS, *UNSUPPORTED}
)


@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "custom_id": st.text(max_size=4) | json_values,
                "method": st.just("POST"),
                "url": st.sampled_from([*BODIES, "/v1/other"]),
                "body": st.dictionaries(st.sampled_from(names) | st.text(max_size=5), json_values),
            }
        )
        # A text would be written as it is, and might be no line, or several.
        | json_values.map(json.dumps),
        max_size=5,
    )
)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_the_lines_are_each_gets_one_answer(run, lines):
    found = run(request("first", max_tokens=1), *lines, decoding=GenerationConfig(max_tokens=1))
    assert len(found) == len(lines) + 1
    assert {one["response"]["status_code"] for one in found} <= {200, 400}
    assert len({one["id"] for one in found}) == len(found)


@pytest.mark.parametrize("tiny", [1e-45, 1e-38, 5e-324, 1e-4])
@pytest.mark.parametrize("mode", ["unfold", "atomic", "verify"])
def test_a_temperature_near_0_is_greedy(run, tiny, mode):
    same = {"documents": [TEXT], "mode": mode, "max_tokens": 12}
    greedy, other = run(request("a", **same), request("b", temperature=tiny, **same))
    assert text(greedy) == text(other)


SECRET = "the disk of tenant 7 has sector 0x7f damaged"


@pytest.fixture
def fails(monkeypatch) -> None:
    """Let decoding fail wherever the prompt `guilty` takes part."""
    decode = loop.batch

    def failing(lm: DynamicLM, prompts: list[list[int]], *rest: Any, **options: Any) -> Any:
        if any(lm.tokenizer.decode(ids) == "guilty" for ids in prompts):
            raise RuntimeError(SECRET)
        return decode(lm, prompts, *rest, **options)

    monkeypatch.setattr(loop, "batch", failing)


def failed(answer: dict[str, Any]) -> None:
    assert answer["response"]["status_code"] == 500
    error = answer["response"]["body"]["error"]
    assert error["type"] == "server_error" and SECRET not in json.dumps(answer)


@pytest.mark.usefixtures("fails")
def test_a_request_that_fails_within_its_group_hurts_no_other(tmp_path, model, lm, caplog):
    prompts = [*PROMPTS, "guilty", *PROMPTS]
    lines = [request(str(n), prompt=prompt, max_tokens=9) for n, prompt in enumerate(prompts)]
    source, output = write(tmp_path / "in.jsonl", lines), tmp_path / "out.jsonl"
    common = BatchSettings(model=str(model), batch_size=4)
    assert run_batch(source, output, common, local_workers()) == (13, 1, 0, 1)
    found = answers(output)
    failed(found.pop(6))
    read = [lm.tokenizer.encode_prompt(prompt) for prompt in PROMPTS]
    alone = [generate(lm, ids, max_tokens=9).text for ids in read]
    assert [text(one) for one in found] == alone * 2
    assert "'6'" in caplog.text and SECRET in caplog.text
    again = tmp_path / "again.jsonl"
    with pytest.raises(KeyboardInterrupt):
        run_batch(source, again, common, Recording(2))
    assert run_batch(source, again, common, local_workers()).resumed == 8
    assert again.read_bytes() == output.read_bytes()


@pytest.mark.parametrize("error", [RuntimeError, OverflowError, MemoryError, RecursionError])
def test_whatever_fails_while_a_request_is_prepared_is_its_own_error(run, monkeypatch, error):
    read = batch_jobs.parse

    def parse(line: Any, name: str) -> Any:
        if line.custom_id == "guilty":
            raise error(SECRET)
        return read(line, name)

    monkeypatch.setattr(batch_jobs, "parse", parse)
    first, guilty, last = run(request("first"), request("guilty"), request("last"))
    assert text(first) == text(last)
    failed(guilty)


@pytest.mark.parametrize("error", [KeyboardInterrupt, CorruptCorpusError])
def test_what_is_no_fault_of_a_request_ends_the_job(run, monkeypatch, error):
    def ends(*_: Any, **__: Any) -> None:
        raise error("not the request's")

    monkeypatch.setattr(loop, "batch", ends)
    with pytest.raises(error):
        run(request("a"), request("b"))


def test_the_profile_of_a_corpus_is_read_once(tmp_path, model, lm, monkeypatch):
    corpus = tmp_path / "c.uv"
    build_corpus(corpus, [Document(TEXT, "lease.txt")], lm, CorpusSettings(sizes=(2, 8)))
    chosen = CorpusProfile(encoder=lm.fingerprint(), phrase_bias=900.0 / 9, tolerance=1.0)
    write_profile(open_corpus(corpus), chosen)
    reads, read = [], corpus_profile.read_profile
    monkeypatch.setattr(corpus_profile, "read_profile", lambda c: reads.append(c) or read(c))
    source = write(tmp_path / "in.jsonl", [request(str(n), max_tokens=9) for n in range(6)])
    settings = BatchSettings(model=str(model), batch_size=2, corpus=str(corpus))
    run_batch(source, tmp_path / "out.jsonl", settings, local_workers())
    assert len(reads) == 1
    shares = [body(a)["univerb"]["stats"]["phrase_share"] for a in answers(tmp_path / "out.jsonl")]
    assert shares == [1.0] * 6, "it was not used"


def test_answers_are_on_the_disk_before_they_are_reported(tmp_path, model, monkeypatch):
    source, output = write(tmp_path / "in.jsonl", mixed()), tmp_path / "out.jsonl"
    partial, synced, sync = tmp_path / "out.jsonl.partial", [0], os.fsync

    def record(descriptor: int) -> None:
        sync(descriptor)
        if partial.exists() and os.path.sameopenfile(descriptor, opened.fileno()):
            synced.append(os.fstat(descriptor).st_size)

    def report(done: int, total: int) -> None:
        reported.append((done, partial.stat().st_size, synced[-1]))

    reported: list[tuple[int, int, int]] = []
    with pytest.raises(KeyboardInterrupt):
        run_batch(source, output, BatchSettings(model=str(model), batch_size=4), Recording(1))
    monkeypatch.setattr(os, "fsync", record)
    with partial.open("rb") as opened:
        common = BatchSettings(model=str(model), batch_size=4)
        run_batch(source, output, common, local_workers(), progress=report)
    assert [done for done, _, _ in reported] == [4, 8, 12, 16]
    assert all(size == on_disk for _, size, on_disk in reported[1:])


def test_no_answer_depends_on_what_was_read_for_another(run, monkeypatch):
    def look(*_: Any) -> None:
        raise AssertionError("a request took from another's cache")

    monkeypatch.setattr(PrefixCache, "find", look)
    # With options of their own each is decoded alone, where a cache would serve.
    lines = [request(str(n), prompt=TEXT, documents=[TEXT], max_tokens=n) for n in (1, 2, 3)]
    for answer in run(*lines):
        body(answer)


def test_lines_are_counted_as_they_are_in_the_file():
    data = "\ufeff".encode() + b'{"custom_id": "a"}\r\n\n\xff\xfe\n{"custom_id": "\xe2\x80\xa8"}'
    lines = read_lines(data, "in.jsonl")
    assert [(line.number, line.custom_id) for line in lines] == [(1, "a"), (3, None), (4, "\u2028")]


@pytest.mark.parametrize(
    "data",
    [b"", b"\n \n", b"hello\nworld\n", b"\x00\xff\x00", b'[\n{"a":\n1}\n]', b"[{}]"],
)
def test_a_file_that_is_no_batch_is_refused_before_a_model_is_loaded(tmp_path, data):
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_bytes(data)
    with pytest.raises(OptionError, match="not a batch file"):
        run_batch(source, output, BatchSettings(model="/no/such/model"), local_workers())
    assert list(tmp_path.iterdir()) == [source]
    with pytest.raises(OptionError, match="cannot be read"):
        run_batch(tmp_path / "none", output, BatchSettings(), local_workers())
    for name in ("batch_size", "threads"):
        with pytest.raises(OptionError, match=f"{name} is 0"):
            BatchSettings(**{name: 0})


def test_what_is_wrong_with_the_job_ends_it(run, tmp_path):
    with pytest.raises(DocumentError, match="does not exist"):
        run(request("a"), docs=(str(tmp_path / "none.txt"),))
    source = write(tmp_path / "in.jsonl", [request("a")])
    with pytest.raises(ModelMissing):
        run_batch(source, tmp_path / "o.jsonl", BatchSettings(model="/no/such"), local_workers())
    with pytest.raises(UniverbError, match="cannot be written"):
        run_batch(source, source / "o.jsonl", BatchSettings(), local_workers())


def test_the_texts_do_not_depend_on_the_batch_size(tmp_path, stirred):
    source = write(tmp_path / "in.jsonl", mixed())
    made = []
    for size in (1, 3, 16):
        output = tmp_path / f"{size}.jsonl"
        common = BatchSettings(model=str(stirred), batch_size=size)
        assert run_batch(source, output, common, local_workers()) == (16, 4, 0, 0)
        found = answers(output)
        made.append([text(one) for one in found if one["response"]["status_code"] == 200])
    assert made[0] == made[1] == made[2]


def test_the_threads_of_the_caller_are_as_they_were(run):
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        run(request("a"), threads=1)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("torn", [b"", b'{"id": "batch_req_', b'{"id": 1}\n', None])
@pytest.mark.parametrize("died_before", [0, 1, 3])
def test_an_interrupted_job_goes_on_where_it_was(tmp_path, stirred, died_before, torn):
    source = write(tmp_path / "in.jsonl", mixed())
    common = BatchSettings(model=str(stirred), batch_size=4)
    run_batch(source, tmp_path / "whole.jsonl", common, local_workers())
    output, partial = tmp_path / "out.jsonl", tmp_path / "out.jsonl.partial"
    with pytest.raises(KeyboardInterrupt):
        run_batch(source, output, common, Recording(died_before))
    assert not output.exists()
    whole = (tmp_path / "whole.jsonl").read_bytes()
    with open(partial, "ab") as file:
        # None is a line of the next group that is there, but without the others of its group.
        file.write(whole.splitlines(keepends=True)[4 * died_before] if torn is None else torn)
    again = Recording()
    reports: list[tuple[int, int]] = []
    summary = run_batch(source, output, common, again, progress=lambda *at: reports.append(at))
    assert output.read_bytes() == whole
    assert summary.resumed == 4 * died_before and len(again.seen) == 16 - 4 * died_before
    assert reports[0] == (4 * died_before, 16) and reports[-1] == (16, 16)
    assert {path.name for path in tmp_path.iterdir()} == {"in.jsonl", "out.jsonl", "whole.jsonl"}


def test_a_partial_output_of_something_else_is_refused(tmp_path, model):
    source, other = (write(tmp_path / f"{n}.jsonl", mixed(n)) for n in (5, 6))
    output, partial = tmp_path / "out.jsonl", tmp_path / "out.jsonl.partial"
    common = BatchSettings(model=str(model), batch_size=2)
    with pytest.raises(KeyboardInterrupt):
        run_batch(source, output, common, Recording(1))
    kept = partial.read_bytes()
    lease = tmp_path / "lease.txt"
    lease.write_text(TEXT)
    for input_file, changed in (
        (other, common),
        (source, dataclasses.replace(common, decoding=GenerationConfig(seed=1))),
        (source, dataclasses.replace(common, docs=(str(lease),))),
        (source, dataclasses.replace(common, batch_size=3)),
    ):
        with pytest.raises(OptionError, match="another input.*Move it away"):
            run_batch(input_file, output, changed, Recording(0))
    assert partial.read_bytes() == kept
    assert run_batch(other, output, common, local_workers(), restart=True).resumed == 0
    assert len(answers(output)) == 8
    with pytest.raises(OptionError, match="exists.*restart=True"):
        run_batch(other, output, common, Recording(0))
    run_batch(source, output, common, local_workers(), restart=True)
    assert len(answers(output)) == 7


def test_two_runs_do_not_write_the_same_output(tmp_path, model):
    source, output = write(tmp_path / "in.jsonl", mixed(4)), tmp_path / "out.jsonl"
    common = BatchSettings(model=str(model))

    class Meddling(Recording):
        def map(self, function: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[Any]:
            with pytest.raises(OptionError, match="in use"):
                run_batch(
                    source, output, BatchSettings(model=str(model)), Recording(), restart=True
                )
            return super().map(function, items)

    run_batch(source, output, common, Meddling())
    assert len(answers(output)) == 6


@pytest.mark.slow
@pytest.mark.usefixtures("one_ray")
def test_ray_writes_the_same_bytes(tmp_path, stirred):
    source = write(tmp_path / "in.jsonl", mixed(24))
    run_batch(source, tmp_path / "local.jsonl", BatchSettings(model=str(stirred)), local_workers())
    script = """
        import sys
        from pathlib import Path
        from univerb.applications.batch_jobs import BatchSettings, run_batch
        from univerb.parallel import make_workers
        source, output, model = sys.argv[1:]
        import ray
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
        with make_workers(ray_address="auto") as workers:
            print(run_batch(Path(source), Path(output), BatchSettings(model=model), workers))
    """
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), source, tmp_path / "ray.jsonl", stirred],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        timeout=900,
    )
    assert ran.returncode == 0, ran.stderr.decode()
    assert (tmp_path / "ray.jsonl").read_bytes() == (tmp_path / "local.jsonl").read_bytes()

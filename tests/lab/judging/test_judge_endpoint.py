"""A judge over HTTP, against a real server on the loopback: asked once, its key never shown."""

import json
import random
import re
import socket
import time
from collections.abc import Iterator

import pytest

from judge_server import KEY, LOOPBACK, Answer, Server, completion, serving
from univerb.errors import OptionError, WorkerError
from univerb.lab.judging.judge import judge_prompts, preference, read_replies
from univerb.lab.judging.judge_endpoint import Endpoint, ask_all, key_from_environment
from univerb.lab.judging.system_texts import ContinuationPair
from univerb.lab.metrics.agreement import Tally

PAIRS = [ContinuationPair(f"prefix {n}", f" ours {n}", f" theirs {n}") for n in range(6)]
SOON = {"retry-after-ms": "1"}


def slow(_: str) -> Answer:
    time.sleep(0.02)
    return completion("tie")


@pytest.fixture
def server(monkeypatch) -> Iterator[Server]:
    # A proxy could not reach the loopback: nothing may go to one.
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with serving() as running:
        yield running


def run(server: Server, path, pairs=PAIRS, **options) -> dict[str, str]:
    return ask_all(server.endpoint(), judge_prompts(pairs), path, **options)


@LOOPBACK
@pytest.mark.parametrize("end", ["", "/", "/chat/completions/"])
def test_the_request_is_a_chat_completion(server, end, monkeypatch):
    # Secrets of another service are not for this host.
    for name in ("OPENAI_API_KEY", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID"):
        monkeypatch.setenv(name, "sk-of-another")
    server.url += end
    assert server.endpoint(options={"temperature": 0, "max_tokens": 9}).ask("Which?") == "[[1]]"
    [(path, headers, body)] = server.requests
    assert path == "/v1/chat/completions"
    assert headers["Authorization"] == f"Bearer {KEY}"
    assert body == {
        "model": "judge-1",
        "messages": [{"role": "user", "content": "Which?"}],
        "temperature": 0,
        "max_tokens": 9,
    }
    server.endpoint(key=None).ask("Which?")
    assert "Authorization" not in server.requests[1][1]
    assert "sk-of-another" not in str(server.requests)
    server.answer = lambda _: completion(None)
    assert server.endpoint().ask("Which?") == ""


@LOOPBACK
def test_a_run_gives_a_preference_and_is_not_asked_again(server, tmp_path):
    seen = []
    replies = run(server, tmp_path / "log", on_reply=lambda *counts: seen.append(counts))
    assert preference(PAIRS, replies).position_bias == 1.0
    assert sorted(server.prompts) == sorted(prompt.prompt for prompt in judge_prompts(PAIRS))
    assert seen == [(n, 12) for n in range(1, 13)]
    assert run(server, tmp_path / "log") == replies == read_replies(tmp_path / "log")
    assert len(server.prompts) == 12
    assert KEY not in (tmp_path / "log").read_text()


@LOOPBACK
def test_an_interrupted_run_resumes(server, tmp_path):
    def stop(done: int, _: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    pairs = [ContinuationPair(f"prefix {n}", "a", "b") for n in range(20)]
    server.answer = slow
    with pytest.raises(KeyboardInterrupt):
        run(server, tmp_path / "log", pairs, workers=2, on_reply=stop)
    asked = len(server.prompts)
    assert 3 <= asked < 40
    # All that was answered is kept, what came after the interruption too.
    assert len(read_replies(tmp_path / "log")) == asked
    replies = run(server, tmp_path / "log", pairs, workers=3)
    assert server.most_at_once == 3
    assert len(server.prompts) == 40 == len(set(server.prompts))
    assert preference(pairs, replies).item_avg == Tally(0, 20, 0)


@LOOPBACK
def test_a_line_that_a_crash_tore_is_asked_again(server, tmp_path):
    replies = run(server, tmp_path / "log")
    whole = (tmp_path / "log").read_bytes()
    begin = whole.index(b"\n") + 1
    for cut in random.Random(0).sample(range(begin, len(whole)), 3):
        (tmp_path / "log").write_bytes(whole[:cut])
        server.requests.clear()
        assert run(server, tmp_path / "log") == replies
        assert len(server.requests) == 13 - whole[:cut].count(b"\n")
        assert len((tmp_path / "log").read_bytes().splitlines()) == 13


@LOOPBACK
def test_a_log_that_cannot_be_used_is_noticed_at_once(server, tmp_path):
    with pytest.raises(OptionError, match="cannot be written"):
        run(server, tmp_path)
    assert not server.requests
    run(server, tmp_path / "log", PAIRS[:1])
    other = server.endpoint(options={"temperature": 1})
    with pytest.raises(OptionError, match="other options"):
        ask_all(other, judge_prompts(PAIRS), tmp_path / "log")
    for workers in (0, 65):
        with pytest.raises(OptionError, match=f"workers is {workers}"):
            run(server, tmp_path / "log", workers=workers)


@LOOPBACK
def test_trouble_that_passes_is_waited_for(server):
    answers = iter([(429, SOON, b"{}"), (503, SOON, b"busy"), None, completion("[[2]]")])
    server.answer = lambda _: next(answers)
    assert server.endpoint().ask("Which?") == "[[2]]"
    assert len(server.requests) == 4


@LOOPBACK
def test_trouble_that_stays_ends_the_run(server, tmp_path):
    server.answer = lambda prompt: (
        completion("tie")
        if re.search("prefix [0-2]", prompt)
        else (500, SOON, f'{{"error": {{"message": "oh {KEY}"}}}}'.encode())
    )
    with pytest.raises(WorkerError, match=r"6 attempts: 500 .*oh \*\*\*") as caught:
        run(server, tmp_path / "log", workers=1)
    assert KEY not in str(caught.value)
    assert len(read_replies(tmp_path / "log")) == 6
    server.answer = lambda _: completion("tie")
    assert preference(PAIRS, run(server, tmp_path / "log")).item_avg.no_preference == 6


@LOOPBACK
def test_a_refusal_is_final_and_does_not_show_the_key(server):
    error = {"error": {"message": f"wrong key {KEY}\x1b[2J"}}
    server.answer = lambda _: (401, {}, json.dumps(error).encode())
    with pytest.raises(OptionError, match=r"401: .*wrong key \*\*\*") as caught:
        server.endpoint().ask("Which?")
    assert len(server.requests) == 1
    assert KEY not in str(caught.value) and "\x1b" not in str(caught.value)
    assert caught.value.__cause__ is None


@LOOPBACK
@pytest.mark.parametrize("status", [301, 307])
def test_a_redirect_is_not_followed(server, status):
    with serving() as other:
        server.answer = lambda _: (status, {"Location": other.url + "/chat/completions"}, b"")
        with pytest.raises(OptionError, match="redirects"):
            server.endpoint().ask("Which?")
        assert (len(server.requests), len(other.requests)) == (1, 0)


@LOOPBACK
@pytest.mark.parametrize("data", [b"", KEY.encode(), b"[]", b'{"choices": []}', b'{"choices": 1}'])
@pytest.mark.parametrize("kind", ["application/json", "text/html"])
def test_what_is_no_completion_is_an_error(server, data, kind):
    server.answer = lambda _: (200, {"Content-Type": kind}, data)
    with pytest.raises(OptionError, match="no chat completion") as caught:
        server.endpoint().ask("Which?")
    assert KEY not in str(caught.value)


@LOOPBACK
def test_nobody_at_the_address():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(WorkerError, match="1 attempts.*refused"):
        Endpoint(f"http://127.0.0.1:{port}/v1", "m", max_retries=0).ask("Which?")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"url": "ftp://h/v1"}, "ftp://h/v1"),
        ({"url": "h:8000/v1"}, "address"),
        ({"url": "http://h:x/v1"}, "address"),
        ({"url": "http:///v1"}, "address"),
        ({"url": "http://h/v 1"}, "address"),
        ({"url": f"https://me:{KEY}@h/v1"}, "a user"),
        ({"url": f"https://h/v1?key={KEY}"}, "a query"),
        ({"url": "http://example.org/v1", "key": KEY}, "unencrypted"),
        ({"key": KEY + "\n"}, "not shown"),
        ({"key": KEY + "ä"}, "not shown"),
        ({"model": ""}, "no model"),
    ],
)
def test_wrong_endpoints_are_refused_without_showing_a_secret(fields, message):
    with pytest.raises(OptionError, match=message) as caught:
        Endpoint(**({"url": "https://h/v1", "model": "m"} | fields))
    assert KEY not in str(caught.value)


def test_the_key_comes_from_the_environment_and_is_not_shown(monkeypatch):
    monkeypatch.setenv("UNIVERB_JUDGE_KEY", f"{KEY}\n")
    assert key_from_environment() == KEY
    monkeypatch.setenv("UNIVERB_JUDGE_KEY", " ")
    assert key_from_environment() is None
    assert KEY not in repr(Endpoint("https://h/v1", "m", KEY))

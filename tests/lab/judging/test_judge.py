"""The judge: averages that treat both systems alike, and an endpoint that is asked only once."""

import json
import random
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from judge_server import KEY, LOOPBACK, Answer, Server, completion
from univerb.errors import OptionError, WorkerError
from univerb.lab.judging.judge import (
    TEMPLATE,
    Pair,
    parse_verdict,
    preference,
    questions,
    read_pairs,
    read_replies,
    read_texts,
    sample_pairs,
    system_names,
    write_prompts,
)
from univerb.lab.judging.judge_endpoint import Endpoint, ReplyLog, ask_all, key_from_environment
from univerb.lab.metrics.agreement import Rates, Tally

PAIRS = [Pair(f"prefix {n}", f" ours {n}", f" theirs {n}") for n in range(6)]

replies_st = st.sampled_from(["so [[1]]", "so [[2]]", "so [[tie]]", "I cannot say"])


def replied(pairs: list[Pair], verdicts: list[tuple[str, str]]) -> dict[str, str]:
    """Give each pair its two verdicts: ours first, then theirs first."""
    return {
        one.id: verdict
        for pair, both in zip(pairs, verdicts, strict=True)
        for one, verdict in zip(pair.questions(), both, strict=True)
    }


def judged(judge: Callable[[str], str]) -> dict[str, str]:
    return {one.id: judge(one.prompt) for one in questions(PAIRS)}


# What is asked


def test_both_orders_are_asked():
    one, two = PAIRS[0].questions()
    for question, first, second in ((one, "ours", "theirs"), (two, "theirs", "ours")):
        shown = question.prompt
        assert shown.index("prefix 0") < shown.index(f" {first} 0") < shown.index(f" {second} 0")
    assert "fluency, coherence, informativeness and grammar" in TEMPLATE
    assert len(questions(PAIRS)) == 12
    assert len(questions([Pair("a", "same", "same")])) == 1


def test_a_text_cannot_fill_a_slot():
    pair = Pair("{Generation_1}", "{Generation_2} {prefix} {0}", "b")
    prompt = pair.questions("{prefix}|{Generation_1}|{Generation_2}")[0].prompt
    assert prompt == "{Generation_1}|{Generation_2} {prefix} {0}|b"


def test_a_template_without_a_slot_is_refused():
    with pytest.raises(OptionError, match=r"\{Generation_2\}"):
        questions(PAIRS, "{prefix} {Generation_1}")


@pytest.mark.parametrize(
    ("reply", "verdict"),
    [
        ("[[1]]", "1"),
        ("Generation 2 is [[1]]-like at first.\n\n[[2]]\n", "2"),
        ("Both are poor: [[ Tie ]]", "tie"),
        (" **2**.", "2"),
        ("TIE", "tie"),
        ("Answer with [[1]], [[2]] or [[tie]]", None),
        ("Generation 1 is better than 2", None),
        ("[[3]]", None),
        ("12", None),
        ("", None),
    ],
)
def test_verdicts_are_read(reply, verdict):
    assert parse_verdict(reply) == verdict


# What the replies come to


def test_averages_by_hand():
    verdicts = [("1", "2"), ("1", "tie"), ("1", "1"), ("2", "1"), ("tie", "tie"), ("2", "?")]
    found = preference(PAIRS, replied(PAIRS, verdicts))
    # Ours: ++, +0, +-, --, 00; the last pair has no verdict in its second order.
    assert found.rate_avg == Tally(better=4, no_preference=3, worse=3)
    assert found.rate_avg.rates == Rates(0.4, 0.3, 0.3)
    assert found.orders == (Tally(3, 1, 1), Tally(1, 2, 2))
    assert found.item_avg == Tally(better=2, no_preference=2, worse=1)
    assert found.position_bias == 1 / 5
    assert found.places == (5, 2)
    assert found.unclear == 1
    assert json.loads(json.dumps(found.to_dict()))["rate_avg"]["rates"]["better"] == 0.4


def test_a_judge_that_always_takes_the_first_place_prefers_nobody():
    found = preference(PAIRS, judged(lambda _: "[[1]]"))
    assert found.rate_avg.rates == Rates(0.5, 0.0, 0.5)
    assert found.item_avg.rates == Rates(0.0, 1.0, 0.0)
    assert found.position_bias == 1.0


def test_a_judge_that_reads_has_no_position_bias():
    found = preference(
        PAIRS, judged(lambda prompt: "12"[prompt.index(" ours") > prompt.index(" theirs")])
    )
    assert found.rate_avg.rates == found.item_avg.rates == Rates(1.0, 0.0, 0.0)
    assert found.position_bias == 0.0


@given(st.lists(st.tuples(replies_st, replies_st), min_size=1, max_size=6))
def test_exchanging_the_systems_exchanges_better_and_worse(verdicts):
    pairs = PAIRS[: len(verdicts)]
    replies = replied(pairs, verdicts)
    exchanged = [Pair(pair.prompt, pair.theirs, pair.ours) for pair in pairs]
    if all("I cannot say" in both for both in verdicts):
        with pytest.raises(OptionError, match="none of the"):
            preference(pairs, replies)
        return
    found, other = preference(pairs, replies), preference(exchanged, replies)
    assert found.rate_avg == other.rate_avg[::-1]
    assert found.item_avg == other.item_avg[::-1]
    assert (found.position_bias, found.unclear) == (other.position_bias, other.unclear)
    assert found.rate_avg.total == 2 * found.item_avg.total
    assert found.item_avg.total + found.unclear == len(pairs)


def test_a_prompt_without_reply_is_an_error():
    replies = judged(lambda _: "tie")
    lost = PAIRS[2].questions()[1].id
    del replies[lost]
    with pytest.raises(OptionError, match=f"1 of 12 .*{lost}"):
        preference(PAIRS, replies)
    # Replies belong to their texts.
    with pytest.raises(OptionError, match="2 of 2"):
        preference([PAIRS[0]._replace(ours="another")], replies)


@given(st.integers(1, 60), st.integers(1, 60), st.integers(0, 9))
def test_a_sample_is_drawn_without_replacement(size, count, seed):
    pairs = [Pair(str(n), "", "") for n in range(size)]
    drawn = sample_pairs(pairs, count, seed)
    assert len(drawn) == min(size, count) == len(set(drawn))
    assert drawn == sorted(drawn, key=pairs.index) == sample_pairs(pairs, count, seed)


def test_samples_depend_on_the_seed():
    pairs = [Pair(str(n), "", "") for n in range(50)]
    assert sample_pairs(pairs, 10, 0) != sample_pairs(pairs, 10, 1)
    with pytest.raises(OptionError):
        sample_pairs([], 10)


# Files


def lines(path, *values):
    path.write_text("".join(json.dumps(value) + "\n" for value in values), encoding="utf-8")
    return path


def test_texts_are_read_in_pairs(tmp_path):
    ours = lines(
        tmp_path / "a", {"prompt": "p", "text": " a", "other": 1}, {"prompt": "q", "text": ""}
    )
    theirs = lines(tmp_path / "b", {"prompt": "p", "text": " b"}, {"prompt": "q", "text": "\u2028"})
    assert read_pairs(ours, theirs) == [Pair("p", " a", " b"), Pair("q", "", "\u2028")]


def test_texts_of_several_systems_keep_their_other_fields(tmp_path):
    files = [
        lines(tmp_path / "a.jsonl", {"prefix": "p", "text": "a", "pieces": []}),
        lines(tmp_path / "b.jsonl", {"prompt": "p", "text": "b", "prefix": "not asked for"}),
        lines(tmp_path / "c.jsonl", {"prompt": "p", "text": "c"}),
    ]
    [(prompt, written)] = read_texts(files)
    assert prompt == "p" and [own["text"] for own in written] == ["a", "b", "c"]
    assert written[0]["pieces"] == []
    assert system_names(files) == ["a", "b", "c"]


def test_files_of_the_same_name_are_told_apart(tmp_path):
    files = [tmp_path / "x" / "texts.jsonl", tmp_path / "y" / "texts.jsonl"]
    assert system_names(files) == list(map(str, files))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"prompt": "p", "text": "b"}\n', "has 2 texts"),
        ('{"prompt": "p", "text": "b"}\n{"prompt": "r", "text": "b"}\n', "line 2 .*different"),
        ('{"prompt": "p", "text": "b"}\n\n[1]\n', "line 3 .*JSON object"),
        ('{"prompt": "p", "text": "b"}\n{"prompt": "q"}\n', "line 2 .*'text'"),
        ("\xff", "cannot be read"),
    ],
)
def test_wrong_texts_are_named(tmp_path, text, message):
    ours = lines(tmp_path / "a", {"prompt": "p", "text": "a"}, {"prompt": "q", "text": "a"})
    theirs = tmp_path / "b"
    theirs.write_bytes(text.encode("latin-1"))
    with pytest.raises(OptionError, match=message):
        read_pairs(ours, theirs)


@settings(max_examples=30)
@given(st.lists(st.tuples(*[st.text(st.characters(), max_size=9)] * 3), min_size=1, max_size=4))
def test_prompts_go_to_a_file_and_replies_come_from_one(tmp_path_factory, texts):
    folder = tmp_path_factory.mktemp("offline")
    pairs = [Pair(*own) for own in texts]
    write_prompts(folder / "prompts.jsonl", questions(pairs))
    asked = [json.loads(line) for line in (folder / "prompts.jsonl").read_bytes().splitlines()]
    assert [(own["id"], own["prompt"]) for own in asked] == questions(pairs)
    answers = [{"id": own["id"], "reply": 1} for own in asked]
    replies = read_replies(lines(folder / "replies.jsonl", *answers))
    assert preference(pairs, replies).position_bias == 1.0


def test_wrong_replies_are_named(tmp_path):
    with pytest.raises(OptionError, match="line 2 .*'reply'"):
        read_replies(lines(tmp_path / "r", {"id": "a", "reply": "1"}, {"id": "b", "reply": None}))
    with pytest.raises(OptionError, match="cannot be read"):
        read_replies(tmp_path / "nowhere")


# The endpoint


def slow(_: str) -> Answer:
    time.sleep(0.02)
    return completion("tie")


@pytest.fixture
def servers(monkeypatch) -> Iterator[Callable[[], Server]]:
    # A proxy could not reach the loopback: nothing may go to one.
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    running: list[tuple[Server, threading.Thread]] = []

    def start() -> Server:
        server = Server()
        thread = threading.Thread(target=server.http.serve_forever, args=(0.01,))
        thread.start()
        running.append((server, thread))
        return server

    yield start
    for server, thread in running:
        server.http.shutdown()
        server.http.server_close()
        thread.join()


@pytest.fixture
def server(servers) -> Server:
    return servers()


def run(server: Server, path, pairs=PAIRS, **options: Any) -> dict[str, str]:
    endpoint = server.endpoint()
    return ask_all(endpoint, questions(pairs), ReplyLog(path, endpoint.judge), **options)


@LOOPBACK
def test_the_request_is_a_chat_completion(server):
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


@LOOPBACK
@pytest.mark.parametrize("end", ["/", "/chat/completions", "/chat/completions/"])
def test_an_address_may_have_its_end(server, end):
    server.url += end
    server.endpoint().ask("Which?")
    assert server.requests[0][0] == "/v1/chat/completions"


@LOOPBACK
def test_a_run_gives_a_preference_and_is_not_asked_again(server, tmp_path):
    seen = []
    replies = run(server, tmp_path / "log", on_reply=lambda *own: seen.append(own))
    assert preference(PAIRS, replies).position_bias == 1.0
    assert sorted(server.prompts) == sorted(one.prompt for one in questions(PAIRS))
    assert seen == [(n, 12) for n in range(1, 13)]
    assert run(server, tmp_path / "log") == replies == read_replies(tmp_path / "log")
    assert len(server.prompts) == 12
    assert KEY not in (tmp_path / "log").read_text()


@LOOPBACK
def test_an_interrupted_run_goes_on_where_it_was(server, tmp_path):
    def stop(done: int, _: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    pairs = [Pair(f"prefix {n}", "a", "b") for n in range(20)]
    server.answer = slow
    with pytest.raises(KeyboardInterrupt):
        run(server, tmp_path / "log", pairs, workers=2, on_reply=stop)
    asked = len(server.prompts)
    assert 3 <= asked < 40
    # All that was answered is kept, what came after the interruption too.
    assert len(read_replies(tmp_path / "log")) == asked
    replies = run(server, tmp_path / "log", pairs)
    assert len(server.prompts) == 40 == len(set(server.prompts))
    assert preference(pairs, replies).item_avg == Tally(0, 20, 0)


@LOOPBACK
def test_a_line_that_a_crash_tore_is_asked_again(server, tmp_path):
    replies = run(server, tmp_path / "log")
    whole = (tmp_path / "log").read_bytes()
    rng = random.Random(0)
    for cut in rng.sample(range(len(whole)), 5):
        (tmp_path / "log").write_bytes(whole[:cut])
        server.requests.clear()
        assert run(server, tmp_path / "log") == replies
        assert len(server.requests) == 12 - whole[:cut].count(b"\n")
        assert len((tmp_path / "log").read_bytes().splitlines()) == 12


@pytest.mark.parametrize("place", [".", "nowhere/log"])
def test_a_log_that_cannot_be_written_is_noticed_at_once(tmp_path, place):
    with pytest.raises(OptionError, match="cannot be used"):
        ReplyLog(tmp_path / place, {})


@LOOPBACK
def test_replies_of_another_judge_are_refused(server, tmp_path):
    run(server, tmp_path / "log", PAIRS[:1])
    other = server.endpoint(options={"temperature": 1})
    with pytest.raises(OptionError, match="line 1 .*another file"):
        ReplyLog(tmp_path / "log", other.judge)


@LOOPBACK
def test_trouble_that_passes_is_waited_for(server):
    answers = iter(
        [(429, {"Retry-After": "0.05"}, b"{}"), (503, {}, b"busy"), None, completion("[[2]]")]
    )
    server.answer = lambda _: next(answers)
    began = time.monotonic()
    assert server.endpoint().ask("Which?") == "[[2]]"
    assert len(server.requests) == 4
    assert time.monotonic() - began >= 0.05


@LOOPBACK
def test_trouble_that_stays_ends_the_run(server, tmp_path):
    server.answer = lambda prompt: (
        completion("tie") if re.search("prefix [0-2]", prompt) else (500, {}, f"oh {KEY}".encode())
    )
    with pytest.raises(WorkerError, match="6 attempts: 500 'oh .*'") as caught:
        run(server, tmp_path / "log", workers=1)
    assert KEY not in str(caught.value)
    assert len(read_replies(tmp_path / "log")) == 6
    server.answer = lambda _: completion("tie")
    assert preference(PAIRS, run(server, tmp_path / "log")).item_avg.no_preference == 6


@LOOPBACK
def test_a_refusal_is_final_and_does_not_show_the_key(server):
    error = {"error": {"message": f"wrong key {KEY}\x1b[2J"}}
    server.answer = lambda _: (401, {}, json.dumps(error).encode())
    with pytest.raises(OptionError, match=r"401: 'wrong key \*\*\*\\x1b") as caught:
        server.endpoint().ask("Which?")
    assert len(server.requests) == 1
    assert KEY not in str(caught.value) and caught.value.__cause__ is None


@LOOPBACK
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed(servers, status):
    server, other = servers(), servers()
    server.answer = lambda _: (status, {"Location": other.url + "/chat/completions"}, b"")
    with pytest.raises(OptionError, match="redirects"):
        server.endpoint().ask("Which?")
    assert (len(server.requests), len(other.requests)) == (1, 0)


@LOOPBACK
@pytest.mark.parametrize("data", [b"", KEY.encode(), b"[]", b'{"choices": []}', b'{"choices": 1}'])
def test_what_is_no_completion_is_an_error(server, data):
    server.answer = lambda _: (200, {}, data)
    with pytest.raises(OptionError, match="no chat completion") as caught:
        server.endpoint().ask("Which?")
    assert KEY not in str(caught.value)


@LOOPBACK
def test_answers_are_bounded_and_may_be_empty(server):
    server.answer = lambda _: completion(None)
    assert server.endpoint().ask("Which?") == ""
    server.answer = lambda _: completion("x" * (4 << 20))
    with pytest.raises(OptionError, match="more than 4 MB"):
        server.endpoint().ask("Which?")


@LOOPBACK
def test_no_more_questions_are_under_way_than_allowed(server, tmp_path):
    server.answer = slow
    run(server, tmp_path / "log", workers=3)
    assert server.most_at_once == 3
    for workers in (0, 65):
        with pytest.raises(OptionError, match=f"workers is {workers}"):
            run(server, tmp_path / "log", workers=workers)


@LOOPBACK
def test_nobody_at_the_address():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(WorkerError, match="2 attempts.*refused"):
        Endpoint(f"http://127.0.0.1:{port}/v1", "m", attempts=2, pause=0.0).ask("Which?")


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
        ({"options": {"stream": True}}, "stream"),
        ({"attempts": 0}, "attempts"),
    ],
)
def test_wrong_endpoints_are_refused_without_showing_a_secret(fields, message):
    with pytest.raises(OptionError, match=message) as caught:
        Endpoint(**({"url": "https://h/v1", "model": "m"} | fields))
    assert KEY not in str(caught.value)


def test_the_key_comes_from_the_environment_and_is_not_shown(monkeypatch):
    monkeypatch.setenv("UNIVERB_JUDGE_KEY", f"{KEY}\n")
    monkeypatch.setenv("OTHER_KEY", " ")
    assert key_from_environment() == KEY
    assert key_from_environment("OTHER_KEY") is None
    assert KEY not in repr(Endpoint("https://h/v1", "m", KEY))

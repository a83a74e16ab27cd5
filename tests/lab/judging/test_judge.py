"""The judge: prompts in both orders, and averages that treat both systems alike."""

import json
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from univerb.errors import OptionError
from univerb.lab.judging import judge
from univerb.lab.judging.judge import (
    TEMPLATE,
    both_orders,
    judge_prompts,
    parse_verdict,
    preference,
    read_replies,
    sample_pairs,
    write_prompts,
)
from univerb.lab.judging.system_texts import (
    ContinuationPair,
    read_pairs,
    read_texts,
    system_names,
)
from univerb.lab.metrics.agreement import Rates, Tally

PAIRS = [ContinuationPair(f"prefix {n}", f" ours {n}", f" theirs {n}") for n in range(6)]

replies_st = st.sampled_from(["so [[1]]", "so [[2]]", "so [[tie]]", "I cannot say"])


def replied(pairs: list[ContinuationPair], verdicts: list[tuple[str, str]]) -> dict[str, str]:
    """Give each pair its two verdicts: ours first, then theirs first."""
    return {
        one.id: verdict
        for pair, both in zip(pairs, verdicts, strict=True)
        for one, verdict in zip(both_orders(pair), both, strict=True)
    }


def judged(reply: Callable[[str], str]) -> dict[str, str]:
    return {one.id: reply(one.prompt) for one in judge_prompts(PAIRS)}


# What is asked


def test_both_orders_are_asked():
    one, two = both_orders(PAIRS[0])
    for question, first, second in ((one, "ours", "theirs"), (two, "theirs", "ours")):
        shown = question.prompt
        assert shown.index("prefix 0") < shown.index(f" {first} 0") < shown.index(f" {second} 0")
    assert "fluency, coherence, informativeness and grammar" in TEMPLATE
    assert len(judge_prompts(PAIRS)) == 12
    assert len(judge_prompts([ContinuationPair("a", "same", "same")])) == 1


def test_a_text_cannot_fill_a_slot(monkeypatch):
    monkeypatch.setattr(judge, "TEMPLATE", "{prefix}|{Generation_1}|{Generation_2}")
    pair = ContinuationPair("{Generation_1}", "{Generation_2} {prefix} {0}", "b")
    assert both_orders(pair)[0].prompt == "{Generation_1}|{Generation_2} {prefix} {0}|b"


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
    exchanged = [ContinuationPair(pair.prompt, pair.theirs, pair.ours) for pair in pairs]
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
    lost = both_orders(PAIRS[2])[1].id
    del replies[lost]
    with pytest.raises(OptionError, match=f"1 of 12 .*{lost}"):
        preference(PAIRS, replies)
    # Replies belong to their texts.
    with pytest.raises(OptionError, match="2 of 2"):
        preference([PAIRS[0]._replace(ours="another")], replies)


@given(st.integers(1, 60), st.integers(1, 60), st.integers(0, 9))
def test_a_sample_is_drawn_without_replacement(size, count, seed):
    pairs = [ContinuationPair(str(n), "", "") for n in range(size)]
    drawn = sample_pairs(pairs, count, seed)
    assert len(drawn) == min(size, count) == len(set(drawn))
    assert drawn == sorted(drawn, key=pairs.index) == sample_pairs(pairs, count, seed)


def test_samples_depend_on_the_seed():
    pairs = [ContinuationPair(str(n), "", "") for n in range(50)]
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
    assert read_pairs(ours, theirs) == [
        ContinuationPair("p", " a", " b"),
        ContinuationPair("q", "", "\u2028"),
    ]


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
    pairs = [ContinuationPair(*own) for own in texts]
    write_prompts(folder / "prompts.jsonl", judge_prompts(pairs))
    asked = [json.loads(line) for line in (folder / "prompts.jsonl").read_bytes().splitlines()]
    assert [(own["id"], own["prompt"]) for own in asked] == judge_prompts(pairs)
    answers = [{"id": own["id"], "reply": 1} for own in asked]
    replies = read_replies(lines(folder / "replies.jsonl", *answers))
    assert preference(pairs, replies).position_bias == 1.0


def test_wrong_replies_are_named(tmp_path):
    with pytest.raises(OptionError, match="line 2 .*'reply'"):
        read_replies(lines(tmp_path / "r", {"id": "a", "reply": "1"}, {"id": "b", "reply": None}))
    with pytest.raises(OptionError, match="cannot be read"):
        read_replies(tmp_path / "nowhere")


def test_the_margin_is_what_was_won_beyond_what_was_lost():
    pairs = [ContinuationPair(f"p{n}", f"ours {n}", f"theirs {n}") for n in range(10)]
    replies = {}
    for n, pair in enumerate(pairs):
        first, second = both_orders(pair)
        won = "[[1]] [[2]]" if n < 6 else "[[2]] [[1]]"
        verdicts = won.split() if n < 9 else ["[[tie]]"] * 2
        replies |= {first.id: verdicts[0], second.id: verdicts[1]}
    margin = preference(pairs, replies).margin
    assert margin.value == pytest.approx(0.3) and margin.low < 0.3 < margin.high
    assert preference(pairs, replies).to_dict()["margin"]["value"] == margin.value

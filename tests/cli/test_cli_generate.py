"""`univerb generate` and `univerb demo`, as a user types them."""

import io
import itertools
import json
import re
import shutil
import sys
from pathlib import Path

import pytest
import torch

from commands import ONLY_PHRASES, checked, refused
from conftest import TEXT
from univerb.cli import demo as cli_demo
from univerb.cli import generate as cli_generate
from univerb.corpus.build import build_corpus
from univerb.corpus.manifest import CorpusSettings
from univerb.modeling.dynamic import DynamicLM
from univerb.phrase import Document

DEMO = Path(cli_generate.__file__).parents[1] / "assets" / "demo"
TENANT = ("generate", "The tenant")
STATS = re.compile(r"^\d+ tokens? in \d+ pass(?:es)? .* s decode$", re.MULTILINE)


@pytest.mark.parametrize("how", ["file", "folder", "stdin"])
def test_phrases_come_from_a_file_a_folder_or_standard_input(run, how, tiny_encoder, lease_file):
    docs = {"file": lease_file, "folder": lease_file.parent, "stdin": "-"}[how]
    ran = run(
        *("generate", "The tenant", "--model", tiny_encoder, "--docs", docs, "--json"),
        *("--max-tokens", 12, *ONLY_PHRASES),
        stdin=TEXT if how == "stdin" else "",
    )
    data = checked(ran.json, TEXT)
    names = {s["document"] for p in data["pieces"] for s in p["sources"]}
    assert names == {"stdin" if how == "stdin" else "lease.txt"}


def test_several_documents_are_told_apart(run, tiny_encoder, lease_file, tmp_path):
    other = tmp_path / "other.md"
    other.write_text("The captain shall steer the ship, and the crew shall sing.")
    ran = run(
        *("generate", "The tenant", "--model", tiny_encoder, "--docs", lease_file, "--docs", other),
        *("--max-tokens", 200, "--json", "--temperature", 5, *ONLY_PHRASES),
    )
    data = checked(ran.json, TEXT, other.read_text())
    names = {s["document"] for p in data["pieces"] for s in p["sources"]}
    assert names == {"lease.txt", "other.md"}


def test_what_is_asked_for_is_written_or_named(run, tiny_encoder):
    asked = ("--require", "good repair", "--prefer", "no such words at all", "--max-tokens", 30)
    ran = run("generate", "The tenant", "--model", tiny_encoder, *asked)
    assert "good repair" in ran.out
    assert "asked for, but not written: 'no such words at all'" in ran.err
    data = run("generate", "The tenant", "--model", tiny_encoder, *asked, "--json").json
    assert data["missing_terms"] == ["no such words at all"]


def test_without_phrases_the_plain_model_writes(run, tiny_encoder):
    data = checked(run("generate", "The tenant", "--model", tiny_encoder, "--json").json)
    assert data["stats"]["phrase_share"] == 0.0
    lm = DynamicLM.from_pretrained(str(tiny_encoder))
    ids = lm.hf_tokenizer("The tenant", return_tensors="pt")
    plain = lm.model.generate(**ids, max_new_tokens=128, do_sample=False, pad_token_id=0)
    written = [token for piece in data["pieces"] for token in piece["ids"]]
    assert written == plain[0, ids["input_ids"].shape[1] :].tolist()[: len(written)]


def test_a_phrase_list_has_weights_that_decide(run, tiny_encoder, tmp_path):
    listed = tmp_path / "phrases.txt"
    listed.write_text("quiet enjoyment\t90\nthe landlord\t-90\n\nwritten notice\n")
    ran = run(
        *("generate", "The tenant", "--model", tiny_encoder, "--phrases", listed, "--json"),
        *("--max-tokens", 20, *ONLY_PHRASES),
    )
    data = checked(ran.json)
    assert {piece["text"] for piece in data["pieces"]} == {" quiet enjoyment"}
    assert all(piece["is_phrase"] and not piece["sources"] for piece in data["pieces"])


def test_single_phrases_can_be_given(run, tiny_encoder):
    ran = run(
        *("generate", "The tenant", "--model", tiny_encoder, "--json", "--max-tokens", 40),
        *("--phrase", "quiet enjoyment", "--phrase", "good repair", "--temperature", 9),
        *ONLY_PHRASES,
    )
    texts = {piece["text"] for piece in checked(ran.json)["pieces"]}
    assert texts == {" quiet enjoyment", " good repair"}


@pytest.mark.filterwarnings("default")
def test_phrases_that_cannot_be_used_are_named_in_a_note(run, tiny_encoder):
    ran = run("generate", "x", "--model", tiny_encoder, "--phrase", "tenant", "--json")
    assert ran.code == 0 and checked(ran.json)["stats"]["phrases"] == 0
    (note,) = [line for line in ran.err.splitlines() if "left out" in line]
    assert note.startswith("note: ") and "'tenant'" in note and "Warning" not in note


UNFOLD = ["--mode", "unfold", "--tolerance", "1", "--phrase-bias", "50"]


@pytest.mark.parametrize("more", [ONLY_PHRASES, UNFOLD])
def test_a_stream_shows_the_text_that_comes_at_once_otherwise(run, more, tiny_encoder, lease_file):
    base = ("generate", "The tenant shall", "--model", tiny_encoder, "--docs", lease_file, *more)
    base += ("--max-tokens", 24)
    whole, streamed, data = run(*base), run(*base, "--stream"), run(*base, "--json").json
    assert data["stats"]["phrase_share"] > 0
    text = data["text"].rstrip("\n\ufffd")
    assert STATS.sub("", whole.out).rstrip("\n") == "The tenant shall" + text
    assert STATS.sub("", streamed.out).rstrip("\n") == text
    assert len(STATS.findall(whole.out)) == len(STATS.findall(streamed.out)) == 1


@pytest.mark.parametrize("stream", [[], ["--stream"]])
@pytest.mark.parametrize("phrase", ["quiet\tenjoyment", "quiet [bold]enjoyment[/]", "x" * 200])
def test_text_is_printed_as_it_is(run, tiny_encoder, phrase, stream):
    ran = run(
        *("generate", "The [red]tenant", "--model", tiny_encoder, "--phrase", phrase, *stream),
        *("--max-tokens", 1, *ONLY_PHRASES),
    )
    assert f" {phrase}\n" in ran.out
    assert stream or ran.out.startswith("The [red]tenant ")


def test_half_a_character_at_the_end_is_not_shown(run, tiny_encoder):
    base = ("generate", "x", "--model", tiny_encoder, "--temperature", 1, "--max-tokens", 3)
    texts = ((seed, run(*base, "--seed", seed, "--json").json["text"]) for seed in range(99))
    # JSON has what the tokenizer makes of it.
    seed, text = next(p for p in texts if p[1].isprintable() and p[1].find("\ufffd") == 2)
    for more, before in (([], "x"), (["--stream"], "")):
        shown = run(*base, "--seed", seed, *more).out
        assert shown.startswith(f"{before}{text[:-1]}\n")


def test_a_comparison_shows_both_texts_and_what_both_cost(run, tiny_encoder, lease_file):
    base = (*TENANT, "--model", tiny_encoder, "--docs", lease_file, "--max-tokens", 8)
    ran = run(*base, "--compare", *ONLY_PHRASES)
    assert ran.code == 0
    assert "with phrases" in ran.out and "plain LM" in ran.out
    assert ran.out.count("s decode") == 2


def test_a_comparison_as_json_has_the_plain_models_text_too(run, tiny_encoder, lease_file):
    base = ("generate", "The tenant", "--model", tiny_encoder, "--max-tokens", 8, "--json")
    data = run(*base, "--docs", lease_file, "--context", 0, "--compare", *ONLY_PHRASES).json
    assert checked(data, TEXT)["stats"]["phrase_share"] == 1.0
    assert checked(data["plain"])["text"] == run(*base).json["text"] != data["text"]


def test_a_comparison_shows_both_the_same_passages(run, tiny_encoder, lease_file):
    base = ("generate", "The tenant", "--model", tiny_encoder, "--max-tokens", 20, "--json")
    given = (*base, "--docs", lease_file)
    data = run(*given, "--compare", *ONLY_PHRASES).json
    # What `verify` writes is what the plain LM writes behind the same prompt.
    assert data["plain"]["text"] == run(*given, "--mode", "verify").json["text"]
    assert data["plain"]["text"] != run(*base).json["text"]
    read = {data["stats"]["prompt_tokens"], data["plain"]["stats"]["prompt_tokens"]}
    assert len(read) == 1 and min(read) > run(*base).json["stats"]["prompt_tokens"]


@pytest.mark.parametrize("source", ["file", "corpus"])
def test_passages_of_the_documents_stand_before_the_prompt(
    run, tiny_encoder, lease_file, tmp_path, source
):
    base = ("generate", "The tenant shall pay", "--model", tiny_encoder, "--json")
    docs = ("--docs", lease_file)
    if source == "corpus":
        lm = DynamicLM.from_pretrained(str(tiny_encoder))
        build_corpus(tmp_path / "c.uv", [Document(TEXT, "lease.txt")], lm, CorpusSettings())
        docs = ("--corpus", tmp_path / "c.uv")
    few = ("--max-tokens", 4)
    read = [
        run(*base, *docs, *few, *more).json["stats"]["prompt_tokens"]
        for more in ([], ["--context", 1], ["--context", 0])
    ]
    alone = run(*base, *few).json["stats"]["prompt_tokens"]
    assert read[0] == read[1] > 10 * alone and read[2] == alone
    plain = run(*base, *docs, "--mode", "verify", "--context", 0).json
    assert plain["text"] == run(*base).json["text"]
    text = run(*base[:-1], *docs, *few).out
    assert text.startswith("The tenant shall pay"), "passages are not shown to the user"


def test_passages_do_not_keep_a_prompt_from_its_own_context(run, tiny_encoder, lease_file):
    base = ("generate", "--model", tiny_encoder, "--docs", lease_file, "--json")
    long = "The tenant shall pay. " * 200
    refused(run(*base, long), "tokens", "with --truncate.")
    assert run(*base, long, "--truncate").json["stats"]["prompt_tokens"] == 511
    # A budget that is larger than the context leaves no room for passages.
    data = run(*base, "The tenant", "--max-tokens", 600).json
    assert data["finish_reason"] in {"length", "eos"} and data["stats"]["prompt_tokens"] < 10


def test_passages_may_be_copied_where_nothing_may_be_repeated(run, tiny_encoder, lease_file):
    base = ("generate", "The tenant", "--model", tiny_encoder, "--docs", lease_file, "--json")
    base += ("--no-repeat-ngram-size", 2, "--max-tokens", 24, *ONLY_PHRASES)
    data = checked(run(*base).json, TEXT)
    assert data["stats"]["phrase_share"] > 0.5, "every phrase of the passage was masked"
    ids = [token for piece in data["pieces"] for token in piece["ids"]]
    pairs = list(itertools.pairwise(ids))
    assert len(set(pairs)) == len(pairs)


def test_sources_are_listed_with_their_places(run, tiny_encoder, lease_file):
    base = (*TENANT, "--model", tiny_encoder, "--docs", lease_file, "--max-tokens", 8)
    data = run(*base, "--json", *ONLY_PHRASES).json
    shown = run(*base, "--sources", *ONLY_PHRASES).out
    for piece in data["pieces"]:
        span = piece["sources"][0]
        assert f"{span['document']}:{span['start']}-{span['end']}" in shown
    listed = run(*base[:4], "--phrase", "quiet enjoyment", "--sources", *ONLY_PHRASES).out
    assert "your list" in listed


def test_the_candidates_of_each_step_are_explained(run, tiny_encoder, lease_file):
    base = (*TENANT, "--model", tiny_encoder, "--docs", lease_file, "--max-tokens", 8)
    data = checked(run(*base, "--explain", "--json", *ONLY_PHRASES).json, TEXT)
    for piece in data["pieces"]:
        shares = [candidate["probability"] for candidate in piece["candidates"]]
        assert 1 <= len(shares) <= 5 and shares == sorted(shares, reverse=True)
        assert 0.0 < sum(shares) <= 1.0 + 1e-4
        assert piece["text"] in {candidate["text"] for candidate in piece["candidates"]}
    shown = run(*base, "--explain", *ONLY_PHRASES).out
    assert shown.count(" <- ") == len(data["pieces"])
    plain = run(*base, "--json", *ONLY_PHRASES).json
    assert all("candidates" not in piece for piece in plain["pieces"])


@pytest.mark.parametrize("mode", ["atomic", "unfold", "verify"])
def test_each_mode_keeps_the_budget(run, mode, tiny_encoder, lease_file):
    for budget in (1, 2, 7):
        ran = run(
            *("generate", "The tenant", "--model", tiny_encoder, "--docs", lease_file, "--json"),
            *("--mode", mode, "--phrase-bias", 50, "--max-tokens", budget),
        )
        data = checked(ran.json, TEXT)
        assert data["stats"]["base_tokens"] == budget
        assert data["finish_reason"] == "length"


def test_verify_writes_the_plain_models_text(run, tiny_encoder, lease_file):
    base = ("generate", "The tenant", "--model", tiny_encoder, "--json", "--max-tokens", 40)
    plain = run(*base).json
    given = ("--docs", lease_file, "--context", 0)
    verified = run(*base, *given, "--mode", "verify", "--phrase-bias", 50).json
    assert verified["text"] == plain["text"]


def test_phrases_can_arrive_while_the_text_is_written(run, tiny_encoder, lease_file):
    base = ("generate", "The tenant", "--model", tiny_encoder, "--docs", lease_file, "--json")
    every = run(*base, "--max-tokens", 4).json["stats"]["phrases"]
    shares = []
    for budget in (1, 25, 120):
        data = run(*base, "--real-time", "--max-tokens", budget).json
        shares.append(checked(data, TEXT)["stats"]["phrases"] / every)
    assert shares[0] == pytest.approx(0.7, abs=0.03)
    assert shares[1] == pytest.approx(0.8, abs=0.06)
    assert shares[2] == 1.0


def test_a_stop_text_ends_the_text_before_it(run, tiny_encoder, lease_file):
    base = ("generate", "The tenant", "--model", tiny_encoder, "--docs", lease_file, "--json")
    base += ("--max-tokens", 30, *ONLY_PHRASES)
    whole = run(*base).json["text"]
    stop = whole[9:14]
    data = checked(run(*base, "--stop", stop, "--stop", "never").json, TEXT)
    assert data["text"] == whole[: whole.index(stop)]
    assert data["finish_reason"] == "stop"


def test_banned_phrases_are_never_written(run, tiny_encoder, lease_file):
    base = ("generate", "The tenant", "--model", tiny_encoder, "--docs", lease_file, "--json")
    base += ("--max-tokens", 30, *ONLY_PHRASES)
    before = run(*base).json["text"]
    word = before.split()[0]
    data = checked(run(*base, "--ban", word).json, TEXT)
    assert data["stats"]["phrase_share"] > 0
    assert all(word not in piece["text"] for piece in data["pieces"] if piece["is_phrase"])


def test_a_seed_decides_what_is_sampled(run, tiny_encoder, lease_file):
    base = ("generate", "The tenant", "--model", tiny_encoder, "--docs", lease_file, "--json")
    texts = [run(*base, "--temperature", 2, "--seed", seed).json["text"] for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


def test_the_number_and_the_length_of_phrases_can_be_limited(run, tiny_encoder, lease_file):
    base = ("generate", "The tenant", "--model", tiny_encoder, "--docs", lease_file, "--json")
    assert run(*base, "--max-phrases", 5).json["stats"]["phrases"] == 5
    data = run(*base, "--sizes", "3-4", "--max-tokens", 40, *ONLY_PHRASES).json
    assert {len(piece["ids"]) for piece in data["pieces"]} <= {3, 4}
    listed = run(
        "phrases",
        lease_file,
        "--model",
        tiny_encoder,
        "--json",
        "--source",
        "words",
        "--sizes",
        "2",
    ).json
    words = run(*base, "--source", "words", "--sizes", "2").json["stats"]["phrases"]
    assert words == listed["total"] != run(*base, "--sizes", "2").json["stats"]["phrases"]


def test_a_long_prompt_is_refused_unless_it_may_be_cut(run, tiny_encoder):
    long = "The tenant shall pay. " * 200
    refused(run("generate", long, "--model", tiny_encoder), "tokens", "with --truncate.")
    data = run("generate", long, "--model", tiny_encoder, "--truncate", "--json").json
    assert checked(data)["stats"]["prompt_tokens"] < 512


def test_half_precision_and_threads_can_be_chosen(run, tiny_encoder):
    few = ("--max-tokens", 2, "--json")
    ran = run("generate", "x", "--model", tiny_encoder, "--dtype", "bfloat16", "--threads", 2, *few)
    checked(ran.json)
    assert torch.get_num_threads() == 2


def test_a_saved_encoder_is_loaded_with_its_backbone(run, tiny_encoder, lease_file):
    ran = run("generate", "The tenant", "--model", tiny_encoder, "--docs", lease_file, "--json")
    checked(ran.json, TEXT)


def test_the_prompt_can_come_from_standard_input(run, tiny_encoder, lease_file):
    base = ("--model", tiny_encoder, "--docs", lease_file, "--max-tokens", 8)
    typed = run("generate", "The tenant", *base, "--json").json
    piped = run("generate", "-", *base, "--json", stdin="The tenant").json
    assert piped["pieces"] == typed["pieces"]


def test_a_prompt_from_standard_input_is_shown_before_the_text(run, tiny_encoder, lease_file):
    base = ("--model", tiny_encoder, "--docs", lease_file, "--max-tokens", 8, *ONLY_PHRASES)
    ran = run("generate", "-", *base, stdin="The tenant")
    assert ran.out.startswith("The tenant ")


def test_the_line_break_that_ends_a_piped_prompt_is_no_part_of_it(run, tiny_encoder):
    base = ("--model", tiny_encoder, "--max-tokens", 8, "--json")
    typed = run("generate", "The tenant", *base).json
    assert run("generate", "-", *base, stdin="The tenant\n").json["text"] == typed["text"]


def test_standard_input_cannot_be_prompt_and_document(run, tiny_encoder):
    refused(
        run("generate", "-", "--docs", "-", "--model", tiny_encoder, stdin=TEXT), "standard input"
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--docs", "nothing.txt"], ["nothing.txt", "does not exist"]),
        (["--docs", "binary.dat"], ["binary.dat", "binary"]),
        (["--docs", "empty.txt"], ["empty.txt"]),
        (["--phrases", "nothing.txt"], ["nothing.txt"]),
        (["--phrases", "empty.txt"], ["empty.txt", "one phrase"]),
        (["--phrases", "binary.dat"], ["binary.dat"]),
        (["--phrases", "weights.txt"], ["weights.txt:2", "heavy"]),
        (["--phrase", ""], ["empty"]),
        (["--max-tokens", "-1"], ["--max-tokens is -1"]),
        (["--max-tokens", "0"], ["--max-tokens is 0"]),
        (["--tolerance", "2"], ["--tolerance", "0 and 1"]),
        (["--temperature", "nan"], ["--temperature is nan"]),
        (["--top-p", "7"], ["--top-p"]),
        (["--seed", "-1"], ["--seed is -1"]),
        (["--stop", ""], ["--stop"]),
        (["--mode", "verify", "--tolerance", "0.5"], ["verify", "unfold"]),
        (["--sizes", "few"], ["--sizes", "few", "2-8"]),
        (["--sizes", "8-2"], ["sizes"]),
        (["--content", "english"], ["english", "da, de, en", "zh"]),
        (["--sizes", "0-2"], ["sizes"]),
        (["--context", "-1"], ["--context is -1"]),
        (["--docs", "lease.txt", "--max-phrases", "-1"], ["--max-phrases is -1"]),
        (["--threads", "0"], ["--threads is 0", "at least 1"]),
        (["--dtype", "int3"], ["int3", "float32"]),
        (["--device", "gpu"], ["gpu", "cuda"]),
        (["--chat"], ["chat template"]),
        (["--model", "/no/such/model"], ["/no/such/model", "folder"]),
        (["--model", "nobody/nothing", "--offline"], ["nobody/nothing", "univerb setup"]),
        (["--model", "~no-such-user-here/model"], ["no folder"]),
        (["--model", "damaged"], ["encoder.safetensors", "fresh copy"]),
        (["--model", "half"], ["config.json"]),
    ],
    ids=lambda value: " ".join(value),
)
def test_a_mistake_ends_with_one_clear_line(
    run, arguments, words, tiny_folder, tiny_encoder, lease_file, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    Path("binary.dat").write_bytes(bytes(range(256)) * 4)
    Path("empty.txt").write_text(" \n")
    Path("weights.txt").write_text("good repair\t1\nbad repair\theavy\n")
    Path("half").mkdir()
    shutil.copytree(tiny_encoder, "damaged")
    Path("damaged/encoder.safetensors").write_bytes(b"damaged")
    refused(run("generate", "The tenant", "--model", tiny_encoder, *arguments), *words)


def test_an_empty_prompt_is_refused(run, tiny_encoder):
    refused(run("generate", "", "--model", tiny_encoder), "prompt is empty")
    refused(run("generate", "-", "--model", tiny_encoder), "prompt is empty")


@pytest.mark.parametrize(
    "arguments",
    [["--mode", "fast"], ["--threads", "x"], ["--overshoot", "maybe"], ["--no-such"], ["--stop"]],
    ids=" ".join,
)
def test_an_option_that_does_not_exist_is_named(run, arguments):
    ran = run("generate", "x", *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert "Error" in ran.err and arguments[0] in ran.err and "Traceback" not in ran.err


@pytest.mark.parametrize(
    "arguments",
    [
        ["x", "--max-tokens", "-1"],
        ["x", "--tolerance", "2"],
        ["x", "--stop", ""],
        ["x", "--phrase", ""],
        ["x", "--max-phrases", "-1"],
        [""],
    ],
    ids=str,
)
def test_a_mistake_does_not_cost_the_wait_for_the_model(run, arguments, monkeypatch):
    def wait(*_: object, **__: object) -> None:
        raise AssertionError("the model was loaded first")

    monkeypatch.setattr(cli_generate, "load_to_write", wait)
    refused(run("generate", *arguments))


@pytest.mark.parametrize("how", ["prompt", "standard input", "phrase"])
def test_bytes_that_are_no_text_are_refused(run, tiny_encoder, how):
    wrong = b"The \xff tenant"
    typed = wrong.decode(errors="surrogateescape")
    arguments = {"prompt": [typed], "standard input": ["-"], "phrase": ["x", "--phrase", typed]}
    refused(run("generate", *arguments[how], "--model", tiny_encoder, stdin=wrong), "UTF-8")


def test_json_can_be_written_where_the_output_is_not_utf8(run, tiny_encoder, monkeypatch):
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii", write_through=True))
    base = ("generate", "x", "--model", tiny_encoder, "--phrase", "café crème", "--max-tokens", 1)
    assert run(*base, "--json", *ONLY_PHRASES).code == 0
    assert json.loads(raw.getvalue())["text"] == " café crème"


@pytest.fixture
def loaded(default_lm, monkeypatch) -> None:
    """Let the verbs take the default model that tests share."""
    for verb in (cli_demo, cli_generate):
        monkeypatch.setattr(verb, "load_to_write", lambda *_, **__: default_lm)


@pytest.mark.default_model
@pytest.mark.usefixtures("loaded")
def test_the_demo_writes_with_phrases_of_each_document(run):
    ran = run("demo", "--max-tokens", 16)
    assert ran.code == 0
    for name in ("lease.txt", "leaflet.txt", "regulation.txt"):
        assert name in ran.out
    shares = [int(share) for share in re.findall(r"(\d+)% in phrases", ran.out)]
    assert len(shares) == 3 and max(shares) > 0
    assert re.search(r"(lease|leaflet|regulation)\.txt:\d+-\d+", ran.out)


@pytest.mark.default_model
@pytest.mark.usefixtures("loaded")
def test_a_chat_answers_with_phrases_and_is_not_mixed_up_with_its_prompt(run):
    question = "Must the tenant pay the rent on the first day of each month?"
    base = ("generate", question, "--chat", "--max-tokens", 24, "--docs", DEMO / "lease.txt")
    data = checked(run(*base, "--json").json, (DEMO / "lease.txt").read_text())
    assert data["stats"]["phrase_share"] > 0 and "<|im" not in data["text"]
    shown = " ".join(run(*base).out.split())
    assert shown.startswith(f"{question} {' '.join(data['text'].split())}")

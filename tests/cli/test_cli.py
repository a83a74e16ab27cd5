"""The command line, as a user types it: what it prints, where, and how it ends."""

import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from conftest import TEXT, Ran, make_llama, make_tokenizer, saved
from univerb import __version__
from univerb.cli import generate as cli_generate
from univerb.cli import loading
from univerb.cli import setup as cli_setup
from univerb.locations import DEFAULT_MODEL, converted_default
from univerb.modeling.dynamic import DynamicLM

DEMO = Path(cli_generate.__file__).parents[1] / "assets" / "demo"
COMMAND = [str(Path(sys.executable).with_name("univerb"))]
# Phrases win every choice, and the text is made of nothing else.
ONLY_PHRASES = ["--mode", "atomic", "--phrase-bias", "900", "--overshoot", "allow"]
STATS = re.compile(r"^\d+ tokens in \d+ passes .* s decode$", re.MULTILINE)


def start(*arguments: object, **environment: str) -> subprocess.Popen[bytes]:
    """Start the real command in a process of its own."""
    return subprocess.Popen(
        [*COMMAND, *(a if isinstance(a, bytes) else str(a) for a in arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
    )


def spawn(*arguments: object, stdin: bytes = b"", **environment: str) -> Ran:
    process = start(*arguments, **environment)
    out, err = process.communicate(stdin, timeout=120)
    return Ran(process.returncode, out.decode(), err.decode())


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cli") / "tiny"
    return saved(folder, DynamicLM.wrap(make_llama(), make_tokenizer()))


@pytest.fixture(scope="module")
def encoder(model: Path) -> Path:
    DynamicLM.from_pretrained(str(model)).save_pretrained(model.parent / "encoder")
    return model.parent / "encoder"


@pytest.fixture
def lease_file(tmp_path: Path) -> Path:
    path = tmp_path / "lease.txt"
    path.write_text(TEXT)
    return path


def refused(ran: Ran, *words: str) -> None:
    """Check that a command ended with one clear line and nothing else."""
    assert ran.code not in (0, None)
    assert ran.out == ""
    assert "Traceback" not in ran.err
    *notes, last = ran.err.strip().splitlines()
    assert last.startswith("error: ") and all(line.startswith("note: ") for line in notes)
    for word in words:
        assert word in last


def checked(data: dict[str, Any], *texts: str) -> dict[str, Any]:
    """Check a generation against its schema, and its spans against the documents' texts."""
    assert data["schema_version"] == 1
    assert data["finish_reason"] in {"length", "eos", "stop"}
    assert "".join(piece["text"] for piece in data["pieces"]) == data["text"]
    for piece in data["pieces"]:
        assert piece.keys() >= {"text", "ids", "is_phrase", "sources", "logprob"}
        assert piece["ids"] and all(isinstance(token, int) for token in piece["ids"])
        assert piece["logprob"] <= 1e-4
        assert isinstance(piece["is_phrase"], bool)
        for span in piece["sources"]:
            assert span.keys() == {"document", "start", "end"}
            places = [text[span["start"] : span["end"]].split() for text in texts]
            # A broken character that a token left behind shows with the next piece.
            assert piece["text"].lstrip("\ufffd").split() in places
        assert piece["is_phrase"] or not piece["sources"]
    stats = data["stats"]
    assert stats.keys() >= {"steps", "base_tokens", "phrase_share", "seconds"}
    assert stats["seconds"].keys() == {"encode", "prefill", "decode"}
    assert all(value >= 0 for value in stats["seconds"].values())
    assert stats["base_tokens"] == sum(len(piece["ids"]) for piece in data["pieces"])
    in_phrases = sum(len(piece["ids"]) for piece in data["pieces"] if piece["is_phrase"])
    assert stats["phrase_share"] == pytest.approx(in_phrases / max(stats["base_tokens"], 1))
    return data


def test_the_real_command_prints_one_json_object_and_nothing_else(model, lease_file):
    ran = spawn(
        *("generate", "The tenant", "--model", model, "--docs", lease_file, "--json"),
        *("--stream", "--sources", "--explain", "--max-tokens", 16, *ONLY_PHRASES),
    )
    assert ran.code == 0
    data = checked(ran.json, TEXT)
    assert data["stats"]["phrase_share"] == 1.0
    assert {s["document"] for p in data["pieces"] for s in p["sources"]} == {"lease.txt"}
    assert "Traceback" not in ran.err and "Warning" not in ran.err


def test_the_version_is_quick_and_needs_no_model():
    began = time.perf_counter()
    ran = spawn("--version", UNIVERB_CACHE="/nowhere")
    assert (ran.code, ran.out, ran.err) == (0, f"univerb {__version__}\n", "")
    assert time.perf_counter() - began < 2.0


def test_the_package_runs_as_a_module():
    command = [sys.executable, "-m", "univerb", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, f"univerb {__version__}\n")


def test_help_names_users_verbs_first_and_every_verb_has_its_own(run):
    shown = run("--help").out
    verbs = re.findall(r"^│ (\w+) ", shown, re.MULTILINE)
    assert verbs[:5] == ["generate", "answer", "index", "adapt", "batch"] and verbs[-1] == "lab"
    assert "generate" in run().out + run().err
    tools = re.findall(r"^│ (\w+) ", run("lab", "--help").out, re.MULTILINE)
    assert set(tools) == {"reproduce", "speed", "phrases", "judge", "compare", "harness"}
    for words in [[verb] for verb in verbs] + [["lab", tool] for tool in tools]:
        assert f"univerb {' '.join(words)} " in run(*words, "-h").out


@pytest.mark.parametrize(
    ("old", "new"),
    [("bench --limit 2", "speed"), ("eval phrases -h", "phrases"), ("judge", "judge")],
)
def test_verbs_of_earlier_versions_name_the_present_ones(run, old, new):
    ran = run(*old.split())
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert f"`univerb lab {new}`" in ran.err


def test_help_imports_neither_torch_nor_the_lab():
    script = (
        "import sys; from univerb.cli.app import app; app(['--help'], standalone_mode=False);"
        "print({'torch', 'pydantic', 'univerb.lab', 'univerb.cli.generate'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.endswith("set()\n")


def test_a_missing_document_or_model_is_noticed_before_torch_is_loaded(lease_file):
    for arguments in (["--docs", "nothing.txt"], ["--model", "/no/such/model"]):
        began = time.perf_counter()
        ran = spawn("generate", "x", *arguments)
        assert time.perf_counter() - began < 2.0
        refused(ran, arguments[1])


@pytest.mark.parametrize("how", ["file", "folder", "stdin"])
def test_phrases_come_from_a_file_a_folder_or_standard_input(run, how, model, lease_file):
    docs = {"file": lease_file, "folder": lease_file.parent, "stdin": "-"}[how]
    ran = run(
        *("generate", "The tenant", "--model", model, "--docs", docs, "--json"),
        *("--max-tokens", 12, *ONLY_PHRASES),
        stdin=TEXT if how == "stdin" else "",
    )
    data = checked(ran.json, TEXT)
    names = {s["document"] for p in data["pieces"] for s in p["sources"]}
    assert names == {"stdin" if how == "stdin" else "lease.txt"}


def test_several_documents_are_told_apart(run, model, lease_file, tmp_path):
    other = tmp_path / "other.md"
    other.write_text("The captain shall steer the ship, and the crew shall sing.")
    ran = run(
        *("generate", "The tenant", "--model", model, "--docs", lease_file, "--docs", other),
        *("--max-tokens", 200, "--json", "--temperature", 5, *ONLY_PHRASES),
    )
    data = checked(ran.json, TEXT, other.read_text())
    names = {s["document"] for p in data["pieces"] for s in p["sources"]}
    assert names == {"lease.txt", "other.md"}


def test_without_phrases_the_plain_model_writes(run, model):
    data = checked(run("generate", "The tenant", "--model", model, "--json").json)
    assert data["stats"]["phrase_share"] == 0.0
    lm = DynamicLM.from_pretrained(str(model))
    ids = lm.hf_tokenizer("The tenant", return_tensors="pt")
    plain = lm.model.generate(**ids, max_new_tokens=128, do_sample=False, pad_token_id=0)
    written = [token for piece in data["pieces"] for token in piece["ids"]]
    assert written == plain[0, ids["input_ids"].shape[1] :].tolist()[: len(written)]


def test_a_phrase_list_has_weights_that_decide(run, model, tmp_path):
    listed = tmp_path / "phrases.txt"
    listed.write_text("quiet enjoyment\t90\nthe landlord\t-90\n\nwritten notice\n")
    ran = run(
        *("generate", "The tenant", "--model", model, "--phrases", listed, "--json"),
        *("--max-tokens", 20, *ONLY_PHRASES),
    )
    data = checked(ran.json)
    assert {piece["text"] for piece in data["pieces"]} == {" quiet enjoyment"}
    assert all(piece["is_phrase"] and not piece["sources"] for piece in data["pieces"])


def test_single_phrases_can_be_given(run, model):
    ran = run(
        *("generate", "The tenant", "--model", model, "--json", "--max-tokens", 40),
        *("--phrase", "quiet enjoyment", "--phrase", "good repair", "--temperature", 9),
        *ONLY_PHRASES,
    )
    texts = {piece["text"] for piece in checked(ran.json)["pieces"]}
    assert texts == {" quiet enjoyment", " good repair"}


@pytest.mark.filterwarnings("default")
def test_phrases_that_cannot_be_used_are_named_in_a_note(run, model):
    ran = run("generate", "x", "--model", model, "--phrase", "tenant", "--json")
    assert ran.code == 0 and checked(ran.json)["stats"]["phrases"] == 0
    (note,) = [line for line in ran.err.splitlines() if "left out" in line]
    assert note.startswith("note: ") and "'tenant'" in note and "Warning" not in note


@pytest.mark.parametrize("more", [ONLY_PHRASES, ["--mode", "unfold", "--tolerance", "1"]])
def test_a_stream_shows_the_text_that_comes_at_once_otherwise(run, more, lease_file):
    base = ("generate", "The tenant shall", "--docs", lease_file, "--max-tokens", 24, *more)
    whole, streamed, data = run(*base), run(*base, "--stream"), run(*base, "--json").json
    assert data["stats"]["phrase_share"] > 0
    assert STATS.sub("", whole.out).rstrip("\n") == "The tenant shall" + data["text"].rstrip("\n")
    assert STATS.sub("", streamed.out).rstrip("\n") == data["text"].rstrip("\n")
    assert len(STATS.findall(whole.out)) == len(STATS.findall(streamed.out)) == 1


@pytest.mark.parametrize("stream", [[], ["--stream"]])
@pytest.mark.parametrize("phrase", ["quiet\tenjoyment", "quiet [bold]enjoyment[/]", "x" * 200])
def test_text_is_printed_as_it_is(run, model, phrase, stream):
    ran = run(
        *("generate", "The [red]tenant", "--model", model, "--phrase", phrase, *stream),
        *("--max-tokens", 1, *ONLY_PHRASES),
    )
    assert f" {phrase}\n" in ran.out
    assert stream or ran.out.startswith("The [red]tenant ")


def test_a_comparison_shows_both_texts_and_what_both_cost(run, model, lease_file):
    base = ("generate", "The tenant", "--model", model, "--docs", lease_file, "--max-tokens", 8)
    ran = run(*base, "--compare", *ONLY_PHRASES)
    assert ran.code == 0
    assert "with phrases" in ran.out and "plain LM" in ran.out
    assert ran.out.count("s decode") == 2


def test_a_comparison_as_json_has_the_plain_models_text_too(run, model, lease_file):
    base = ("generate", "The tenant", "--model", model, "--max-tokens", 8, "--json")
    data = run(*base, "--docs", lease_file, "--compare", *ONLY_PHRASES).json
    assert checked(data, TEXT)["stats"]["phrase_share"] == 1.0
    assert checked(data["plain"])["text"] == run(*base).json["text"] != data["text"]


def test_sources_are_listed_with_their_places(run, model, lease_file):
    base = ("generate", "The tenant", "--model", model, "--docs", lease_file, "--max-tokens", 8)
    data = run(*base, "--json", *ONLY_PHRASES).json
    shown = run(*base, "--sources", *ONLY_PHRASES).out
    for piece in data["pieces"]:
        span = piece["sources"][0]
        assert f"{span['document']}:{span['start']}-{span['end']}" in shown
    listed = run(*base[:4], "--phrase", "quiet enjoyment", "--sources", *ONLY_PHRASES).out
    assert "your list" in listed


def test_the_candidates_of_each_step_are_explained(run, model, lease_file):
    base = ("generate", "The tenant", "--model", model, "--docs", lease_file, "--max-tokens", 8)
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
def test_each_mode_keeps_the_budget(run, mode, model, lease_file):
    for budget in (1, 2, 7):
        ran = run(
            *("generate", "The tenant", "--model", model, "--docs", lease_file, "--json"),
            *("--mode", mode, "--phrase-bias", 50, "--max-tokens", budget),
        )
        data = checked(ran.json, TEXT)
        assert data["stats"]["base_tokens"] == budget
        assert data["finish_reason"] == "length"


def test_verify_writes_the_plain_models_text(run, model, lease_file):
    base = ("generate", "The tenant", "--model", model, "--json", "--max-tokens", 40)
    plain = run(*base).json
    verified = run(*base, "--docs", lease_file, "--mode", "verify", "--phrase-bias", 50).json
    assert verified["text"] == plain["text"]


def test_phrases_can_arrive_while_the_text_is_written(run, model, lease_file):
    base = ("generate", "The tenant", "--model", model, "--docs", lease_file, "--json")
    every = run(*base, "--max-tokens", 4).json["stats"]["phrases"]
    shares = []
    for budget in (1, 25, 120):
        data = run(*base, "--real-time", "--max-tokens", budget).json
        shares.append(checked(data, TEXT)["stats"]["phrases"] / every)
    assert shares[0] == pytest.approx(0.7, abs=0.03)
    assert shares[1] == pytest.approx(0.8, abs=0.06)
    assert shares[2] == 1.0


def test_a_stop_text_ends_the_text_before_it(run, model, lease_file):
    base = ("generate", "The tenant", "--model", model, "--docs", lease_file, "--json")
    base += ("--max-tokens", 30, *ONLY_PHRASES)
    whole = run(*base).json["text"]
    stop = whole[9:14]
    data = checked(run(*base, "--stop", stop, "--stop", "never").json, TEXT)
    assert data["text"] == whole[: whole.index(stop)]
    assert data["finish_reason"] == "stop"


def test_banned_phrases_are_never_written(run, model, lease_file):
    base = ("generate", "The tenant", "--model", model, "--docs", lease_file, "--json")
    base += ("--max-tokens", 30, *ONLY_PHRASES)
    before = run(*base).json["text"]
    word = before.split()[0]
    data = checked(run(*base, "--ban", word).json, TEXT)
    assert data["stats"]["phrase_share"] > 0
    assert all(word not in piece["text"] for piece in data["pieces"] if piece["is_phrase"])


def test_a_seed_decides_what_is_sampled(run, model, lease_file):
    base = ("generate", "The tenant", "--model", model, "--docs", lease_file, "--json")
    texts = [run(*base, "--temperature", 2, "--seed", seed).json["text"] for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


def test_the_number_and_the_length_of_phrases_can_be_limited(run, model, lease_file):
    base = ("generate", "The tenant", "--model", model, "--docs", lease_file, "--json")
    assert run(*base, "--max-phrases", 5).json["stats"]["phrases"] == 5
    data = run(*base, "--sizes", "3-4", "--max-tokens", 40, *ONLY_PHRASES).json
    assert {len(piece["ids"]) for piece in data["pieces"]} <= {3, 4}
    listed = run(
        "phrases", lease_file, "--model", model, "--json", "--source", "words", "--sizes", "2"
    ).json
    words = run(*base, "--source", "words", "--sizes", "2").json["stats"]["phrases"]
    assert words == listed["total"] != run(*base, "--sizes", "2").json["stats"]["phrases"]


def test_a_long_prompt_is_refused_unless_it_may_be_cut(run, model):
    long = "The tenant shall pay. " * 200
    refused(run("generate", long, "--model", model), "tokens")
    data = run("generate", long, "--model", model, "--truncate", "--json").json
    assert checked(data)["stats"]["prompt_tokens"] < 512


def test_half_precision_and_threads_can_be_chosen(run, model):
    few = ("--max-tokens", 2, "--json")
    ran = run("generate", "x", "--model", model, "--dtype", "bfloat16", "--threads", 2, *few)
    checked(ran.json)
    assert torch.get_num_threads() == 2


def test_a_saved_encoder_is_loaded_with_its_backbone(run, encoder, lease_file):
    ran = run("generate", "The tenant", "--model", encoder, "--docs", lease_file, "--json")
    checked(ran.json, TEXT)


def test_the_prompt_can_come_from_standard_input(run, model, lease_file):
    base = ("--model", model, "--docs", lease_file, "--max-tokens", 8)
    typed = run("generate", "The tenant", *base, "--json").json
    piped = run("generate", "-", *base, "--json", stdin="The tenant").json
    assert piped["pieces"] == typed["pieces"]


def test_a_prompt_from_standard_input_is_shown_before_the_text(run, model, lease_file):
    base = ("--model", model, "--docs", lease_file, "--max-tokens", 8, *ONLY_PHRASES)
    ran = run("generate", "-", *base, stdin="The tenant")
    assert ran.out.startswith("The tenant ")


def test_the_line_break_that_ends_a_piped_prompt_is_no_part_of_it(run, model):
    base = ("--model", model, "--max-tokens", 8, "--json")
    typed = run("generate", "The tenant", *base).json
    assert run("generate", "-", *base, stdin="The tenant\n").json["text"] == typed["text"]


def test_standard_input_cannot_be_prompt_and_document(run, model):
    refused(run("generate", "-", "--docs", "-", "--model", model, stdin=TEXT), "standard input")


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
        (["--sizes", "0-2"], ["sizes"]),
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
    run, arguments, words, model, encoder, lease_file, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    Path("binary.dat").write_bytes(bytes(range(256)) * 4)
    Path("empty.txt").write_text(" \n")
    Path("weights.txt").write_text("good repair\t1\nbad repair\theavy\n")
    Path("half").mkdir()
    shutil.copytree(encoder, "damaged")
    Path("damaged/encoder.safetensors").write_bytes(b"damaged")
    refused(run("generate", "The tenant", "--model", model, *arguments), *words)


def test_an_empty_prompt_is_refused(run, model):
    refused(run("generate", "", "--model", model), "prompt is empty")
    refused(run("generate", "-", "--model", model), "prompt is empty")


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

    monkeypatch.setattr(cli_generate, "load_model", wait)
    refused(run("generate", *arguments))


@pytest.mark.parametrize("how", ["prompt", "standard input", "phrase"])
def test_bytes_that_are_no_text_are_refused(run, model, how):
    wrong = b"The \xff tenant"
    typed = wrong.decode(errors="surrogateescape")
    arguments = {"prompt": [typed], "standard input": ["-"], "phrase": ["x", "--phrase", typed]}
    refused(run("generate", *arguments[how], "--model", model, stdin=wrong), "UTF-8")


def test_json_can_be_written_where_the_output_is_not_utf8(run, model, monkeypatch):
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii", write_through=True))
    base = ("generate", "x", "--model", model, "--phrase", "café crème", "--max-tokens", 1)
    assert run(*base, "--json", *ONLY_PHRASES).code == 0
    assert json.loads(raw.getvalue())["text"] == " café crème"


def test_an_interrupt_ends_quietly(tmp_path):
    os.mkfifo(tmp_path / "endless.txt")
    process = start("generate", "x", "--docs", tmp_path / "endless.txt", "--json")
    with (tmp_path / "endless.txt").open("wb"):
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert out == b"" and b"Traceback" not in err


def test_a_reader_that_goes_away_is_no_error(model, tmp_path):
    (tmp_path / "long.txt").write_text((DEMO / "lease.txt").read_text() * 4)
    process = start("phrases", tmp_path / "long.txt", "--model", model, "--limit", 0, "--json")
    assert process.stdout.readline() == b"{\n"
    process.stdout.close()
    process.stdout = None
    _, err = process.communicate(timeout=60)
    assert b"Traceback" not in err and b"BrokenPipe" not in err


def test_phrases_are_listed_as_a_table(run, model, lease_file):
    ran = run("phrases", lease_file, "--model", model, "--limit", 3)
    assert ran.code == 0
    rows = [line for line in ran.out.splitlines() if "lease.txt:" in line]
    assert len(rows) == 3
    total = run("phrases", lease_file, "--model", model, "--json", "--limit", 0).json["total"]
    assert f"{total} phrases in 1 documents" in ran.out


@pytest.mark.parametrize("how", ["file", "stdin"])
def test_phrases_are_listed_as_json_with_their_places(run, model, lease_file, how):
    ran = run(
        *("phrases", "-" if how == "stdin" else lease_file, "--model", model, "--json"),
        *("--limit", 0),
        stdin=TEXT,
    )
    data = ran.json
    assert data["schema_version"] == 1 and data["total"] == len(data["phrases"]) > 50
    for phrase in data["phrases"]:
        assert 2 <= len(phrase["ids"]) <= 8 and phrase["sources"]
        for span in phrase["sources"]:
            assert span["document"] == ("stdin" if how == "stdin" else "lease.txt")
            assert TEXT[span["start"] : span["end"]] == phrase["text"].strip()
    saved_tokens = [len(p["sources"]) * (len(p["ids"]) - 1) for p in data["phrases"]]
    assert saved_tokens == sorted(saved_tokens, reverse=True)


def test_the_listed_phrases_are_those_that_generate_would_use(run, model, lease_file):
    listed = run("phrases", lease_file, "--model", model, "--json").json
    used = run("generate", "x", "--docs", lease_file, "--model", model, "--json").json
    assert listed["total"] == used["stats"]["phrases"]
    assert len(listed["phrases"]) == 20


def test_phrases_can_be_limited_and_counted_in_words(run, model, lease_file):
    base = ("phrases", lease_file, "--model", model, "--json", "--limit", 0)
    assert run(*base, "--max-phrases", 7).json["total"] == 7
    words = run(*base, "--source", "words", "--sizes", "3-3").json
    counts = [len(phrase["text"].split()) for phrase in words["phrases"]]
    assert len(counts) > 5 and max(counts) == 3


def test_phrases_knows_the_backbone_of_a_saved_encoder(run, encoder, model, lease_file):
    base = ("phrases", lease_file, "--json", "--limit", 0)
    assert run(*base, "--model", encoder).json == run(*base, "--model", model).json


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nothing.txt"], ["nothing.txt"]),
        (["lease.txt", "--sizes", "9-1"], ["sizes"]),
        (["lease.txt", "--max-phrases", "-1"], ["--max-phrases"]),
        (["lease.txt", "--limit", "-1"], ["limit"]),
        (["lease.txt", "--model", "/no/such/model"], ["/no/such/model"]),
        (["lease.txt", "--model", "."], ["tokenizer.json"]),
    ],
    ids=lambda value: " ".join(value),
)
def test_a_mistake_of_phrases_ends_with_one_clear_line(
    run, arguments, words, lease_file, tmp_path, model, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    tiny = [] if "--model" in arguments else ["--model", str(model)]
    refused(run("phrases", *arguments, *tiny), *words)


def test_a_damaged_tokenizer_is_a_mistake_of_the_model(run, model, lease_file, tmp_path):
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "tokenizer.json").write_text("{}")
    refused(run("phrases", lease_file, "--model", tmp_path / "m"), "tokenizer.json")


def test_info_names_versions_model_cache_and_threads(run, monkeypatch, tmp_path):
    data = run("info", "--json").json
    assert data["schema_version"] == 1
    assert (data["univerb"], data["torch"]) == (__version__, torch.__version__)
    assert (data["model"], data["model state"]) == (DEFAULT_MODEL, "ready")
    assert data["torch threads"] == torch.get_num_threads()
    shown = run("info").out
    for key, value in data.items():
        assert key == "schema_version" or (key in shown and str(value) in shown)
    monkeypatch.setenv("UNIVERB_CACHE", str(tmp_path / "empty"))
    monkeypatch.setenv("UNIVERB_OFFLINE", "1")
    other = run("info", "--json").json
    assert other["cache"] == str(tmp_path / "empty") and other["cache MB"] == 0
    assert "univerb setup" in other["model state"] and other["offline"] is True


@pytest.mark.default_model
def test_setup_is_quick_when_all_is_there():
    began = time.perf_counter()
    ran = spawn("setup")
    assert time.perf_counter() - began < 3.0
    assert ran.code == 0 and "ready" in ran.out and DEFAULT_MODEL in ran.out


@pytest.fixture
def other_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with a folder for the default model, but nothing in it."""
    monkeypatch.setenv("UNIVERB_CACHE", str(tmp_path / "cache"))
    converted_default().mkdir(parents=True)
    return tmp_path / "cache"


@pytest.mark.default_model
def test_setup_repairs_a_conversion_that_is_damaged(run, other_cache, monkeypatch):
    called = []
    monkeypatch.setattr(cli_setup, "prepare_default", lambda: called.append(1))
    assert run("setup").code != 0 or called


@pytest.mark.default_model
def test_setup_by_force_keeps_what_works_until_it_has_better(run, other_cache, monkeypatch):
    (converted_default() / "config.json").write_text("{}")
    failed = subprocess.CompletedProcess([], 1, "", "ERROR: no network\n")
    monkeypatch.setattr(cli_setup.subprocess, "run", lambda *_, **__: failed)
    ran = run("setup", "--force")
    assert ran.code == 1 and "no network" in ran.err and "Traceback" not in ran.err
    assert (converted_default() / "config.json").is_file()


def test_progress_never_mixes_with_results(capfd, monkeypatch, tmp_path):
    def convert(progress: Any) -> Path:
        progress("reading the tokenizer")
        return tmp_path

    monkeypatch.setattr("univerb.modeling.default_model.ensure_default", convert)
    assert loading.prepare_default() == tmp_path
    out, err = capfd.readouterr()
    assert (out, "reading the tokenizer" in err) == ("", True)


@pytest.mark.default_model
def test_the_demo_writes_with_phrases_of_each_document():
    ran = spawn("demo", "--max-tokens", 24)
    assert ran.code == 0
    for name in ("lease.txt", "leaflet.txt", "regulation.txt"):
        assert name in ran.out
    shares = [int(share) for share in re.findall(r"(\d+)% in phrases", ran.out)]
    assert len(shares) == 3 and max(shares) > 0
    assert re.search(r"(lease|leaflet|regulation)\.txt:\d+-\d+", ran.out)
    assert "Traceback" not in ran.err


@pytest.mark.default_model
def test_the_default_model_answers_with_phrases_of_a_document(run):
    ran = run(
        *("generate", "What must the tenant do?", "--chat", "--json", "--max-tokens", 40),
        *("--docs", DEMO / "lease.txt", "--sources"),
    )
    assert ran.code == 0
    data = checked(ran.json, (DEMO / "lease.txt").read_text())
    assert data["stats"]["phrase_share"] > 0
    assert "<|im" not in data["text"]


@pytest.mark.default_model
def test_a_chat_prompt_is_not_mixed_up_with_its_answer(run):
    ran = run("generate", "What is a lease?", "--chat", "--max-tokens", 6)
    answer = run("generate", "What is a lease?", "--chat", "--max-tokens", 6, "--json").json["text"]
    assert re.search(rf"What is a lease\?\s+{re.escape(answer.strip())}", ran.out)

"""`univerb train` with the real tasks: the paper's strategies, foreign encoders, bad files."""

import os
import re
import sys
from pathlib import Path

import pytest
import yaml
from tiny_world import generates, make_world, write_config
from toy_task import read_log

from conftest import TEXT, with_fresh_encoder
from univerb.documents.chunks import chunked
from univerb.modeling.dynamic import DynamicLM
from univerb.phrase import Document
from univerb.retrieval.methods import ChunkIndex
from univerb.training import task_factory
from univerb.training.config import read_config
from univerb.training.processes import Processes

PAPER = {
    "in-batch": ("n-words", ["in-batch"]),
    "pre-batch": ("n-ids", ["in-batch", "pre-batch", "prefixes"]),
    "generation": ("n-words", ["in-batch", "prefixes", "generation"]),
    "self-retrieval": ("n-words", ["in-batch", "prefixes", "self-retrieval"]),
    "corpus-retrieval": ("fmm", ["in-batch", "prefixes", "corpus-retrieval"]),
}


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> Path:
    folder = make_world(tmp_path_factory.mktemp("world"))
    with_fresh_encoder(folder / "llama").save_pretrained(folder / "encoder")
    article = f" \n = Lease = \n \n {TEXT} \n"
    (folder / "wiki.tokens").write_text(article * 3)
    return folder


@pytest.fixture(autouse=True)
def inside(world, monkeypatch):
    monkeypatch.chdir(world)


@pytest.mark.parametrize("name", PAPER)
def test_the_strategies_of_the_paper_run(run, world, name):
    kind, kinds = PAPER[name]
    samples = {"kind": kind, "min_count": 2}
    sections = {"samples": samples, "negatives": {"kinds": kinds}}
    shape = {"run": {"steps": 2, "accumulate": 1}, "data": {"passages": 2}}
    path = write_config(world, name, model="gpt2", regime="full", **sections, **shape)
    ran = run("train", path, "--out", f"paper-{name}")
    assert ran.code == 0, ran.err
    losses = [line["phrase"] for line in read_log(world / f"paper-{name}")]
    assert len(losses) == 3 and all(loss > 0 for loss in losses)


@pytest.mark.parametrize("regime", ["full", "lora"])
def test_another_model_with_its_own_tokenizer_becomes_the_encoder(run, world, regime):
    name = f"foreign-{regime}"
    path = write_config(world, name, regime=regime, encoder_from="foreign", run={"steps": 1})
    ran = run("train", path, "--out", f"run {name}")
    assert ran.code == 0, ran.err
    assert f"--model 'run {name}/encoder'\n" in ran.out
    lm = DynamicLM.from_pretrained(str(world / f"run {name}" / "encoder"))
    assert lm.encoder.tokenizer is not None
    assert lm.encoder.body.config.hidden_size == 16
    assert generates(run, world, world / f"run {name}" / "encoder")


@pytest.mark.parametrize("regime", ["frozen", "full"])
def test_a_dry_run_leaves_nothing(run, world, tmp_path, regime):
    out = tmp_path / "out"
    path = write_config(world, regime, regime=regime)
    ran = run("train", path, "--out", out, "--dry-run")
    assert ran.code == 0, ran.err
    for part in ("rows/s", "for 4 steps", "of memory in each process"):
        assert part in ran.out
    assert not out.exists()
    # No bars of other libraries: they would run through ours.
    assert "it/s" not in ran.err


CONFIGS = Path(__file__).parents[2] / "configs"


@pytest.mark.parametrize("path", sorted(CONFIGS.rglob("*.yaml")), ids=lambda p: p.parent.name)
def test_a_dry_run_of_every_config_that_ships(run, world, path):
    """With tiny models and texts in the place of its own; everything else is the file's."""
    settings = yaml.safe_load(path.read_text(encoding="utf-8"))
    is_wikitext = settings["data"]["documents"][0].endswith(".tokens")
    data = {"documents": ["wiki.tokens" if is_wikitext else "texts"], "validation": ["held"]}
    settings["data"] |= data | {"block": 48}
    settings["model"] = "gpt2" if settings.get("model") == "gpt2" else "llama"
    if saved := settings.get("encoder_from"):
        settings["encoder_from"] = "encoder" if "/" in saved else "foreign"
    settings.setdefault("frozen", {}).update({"cache": "states", "corpus": None, "first": 8})
    # Documents are few here.
    settings["data"].pop("validation_skip", None)
    (world / "shipped.yaml").write_text(yaml.safe_dump(settings))
    ran = run("train", "shipped.yaml", "--out", "nowhere", "--dry-run")
    assert ran.code == 0, ran.err
    assert "rows/s" in ran.out and not (world / "nowhere").exists()


BAD = {
    "unknown key": ({"run": {"step": 3}}, r"run\.step.*given: 3"),
    "gap": ({"samples": {"gap": [3, 1]}}, r"bad\.yaml': samples\.gap is \(3, 1\); give"),
    "missing file": ({"data": {"documents": ["nowhere.txt"]}}, r"nowhere\.txt"),
    "empty folder": ({"data": {"documents": ["empty"]}}, "empty"),
    "short text": ({"data": {"documents": ["short.txt"]}}, "Give more text"),
    "no fmm": ({"regime": "full", "negatives": {"kinds": ["corpus-retrieval"]}}, "needs samples"),
    "flat": ({"encoder": {"form": "flat"}}, "trains the conditional form.*encoder.form: conditio"),
    "tied": ({"encoder": {"heads": "tied"}}, "encoder: form is 'conditional', which needs heads"),
    "L_p": ({"regime": "full", "encoder": {"form": "conditional"}}, r"Give losses\.phrase: 0"),
    "nothing held out": (
        {"data": {"validation": ["held"], "validation_skip": 99}},
        "skip is 99; th",
    ),
    "no corpus": ({"frozen": {"corpus": "no.uv"}}, r"no\.uv.*univerb index"),
    "no encoder": ({"encoder_from": "./nothing"}, "nothing"),
    "foreign": ({"encoder_from": "foreign"}, "its own tokenizer, which the frozen regime"),
    "long block": ({"regime": "full", "data": {"block": 4096}}, "at most 512"),
    "long block, frozen": ({"data": {"block": 4096}}, "at most 512"),
    "cache": ({"frozen": {"cache": os.devnull + "/states"}}, r"cannot write.*frozen\.cache"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_one_clear_line(run, world, tmp_path, name):
    sections, message = BAD[name]
    assert_refused(run, write_config(world, "bad", **sections), tmp_path / "out", message)


def assert_refused(run, path: str, out: Path, message: str) -> None:
    ran = run("train", path, "--out", out)
    assert (ran.code, ran.out) == (1, ""), ran.err
    lines = ran.err.strip().splitlines()
    assert lines[-1].startswith("error: ")
    assert not any("Traceback" in line for line in lines)
    assert re.search(message, lines[-1]), lines[-1]


def test_states_are_read_again_once_other_texts_are_searched(world):
    """A corpus may change in its place: passages that are cached hold what it had before."""
    config = read_config(world / write_config(world, "searched", frozen={"cache": "searched"}))
    counts = []
    for text in ("The rent is due.", "The rent is due.", "Another text is here."):
        searched = ChunkIndex(chunked(Document(text, "other")))
        task_factory.make_task(config, Processes.single("cpu"), searched).validate()
        counts.append(len(list((world / "searched").iterdir())))
    # The training text and the validation text each have a folder.
    assert counts == [2, 2, 4]


def test_a_folder_that_cannot_be_written_and_missing_nltk(run, world, tmp_path, monkeypatch):
    path = write_config(world, "full", regime="full", negatives={"kinds": ["in-batch"]})
    assert_refused(run, path, Path(os.devnull) / "run", "cannot write")
    monkeypatch.setitem(sys.modules, "nltk.tokenize", None)
    assert_refused(run, path, tmp_path / "out", r"nltk.*univerb\[nltk\]")

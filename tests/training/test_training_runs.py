"""The real tasks through `univerb train`: processes, interruptions, what users load, bad files."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tokenizers
import torch
import train_commands
import yaml
from safetensors.torch import load_file
from tokenizers import models, pre_tokenizers, trainers
from toy_task import read_log
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from conftest import MAKERS, TEXT, make_tokenizer, saved
from univerb.errors import CheckpointError
from univerb.modeling.card import read_card
from univerb.modeling.dynamic import DynamicLM
from univerb.training.snapshots import read_snapshot, snapshot_paths

# Generous: a start of torch and transformers takes long where other tests run beside it.
pytestmark = pytest.mark.timeout(900)

RUN = {"steps": 4, "batch": 4, "accumulate": 2, "save_every": 1, "validate_every": 2}
KINDS = ["in-batch", "pre-batch", "prefixes", "self-retrieval", "generation"]
# Dropout draws other masks for another number of processes.
SHARED = {
    # A bias so high that phrases fire: what is counted then is compared, too.
    "frozen": {"negatives": {"kinds": KINDS[:4]}, "encoder": {"bias": 12.0}},
    "full": {"regime": "full", "negatives": {"kinds": KINDS}},
    "lora": {
        "regime": "lora",
        "negatives": {"kinds": KINDS},
        "lora": {"dropout": 0.0},
        "encoder": {"heads": "tied", "dropout": 0.0},
    },
}
# A tied head and GPT-2 have dropout: what it draws must come again.
CUT = {
    "cut-frozen": {
        "model": "gpt2",
        "negatives": {"kinds": KINDS[:4]},
        "encoder": {"heads": "tied"},
    },
    "cut-lora": {"model": "gpt2", "regime": "lora", "negatives": {"kinds": KINDS}},
}


def config(folder: Path, name: str, **sections) -> str:
    """Write a small run's settings."""
    given = {
        "model": "llama",
        "data": {"documents": ["texts"], "validation": ["held"], "block": 48, "passages": 8},
        "samples": {"gap": [2, 5]},
        "frozen": {"groups": 2, "cache": "states", "own": 0.3},
        # Where a gradient is all rounding, AdamW still takes a whole step: it must be a small one.
        "optimiser": {"rate": 0.0001},
        "run": RUN,
    }
    for key, values in sections.items():
        given[key] = {**given.get(key, {}), **values} if isinstance(values, dict) else values
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(given))
    return f"{name}.yaml"


def save_foreign(folder: Path) -> None:
    """Save a smaller model that has a tokenizer of its own."""
    rust = tokenizers.Tokenizer(models.BPE())
    rust.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=270, special_tokens=["<e>"], initial_alphabet=alphabet, show_progress=False
    )
    rust.train_from_iterator(["landlord premises enjoyment"], trainer)
    torch.manual_seed(5)
    sizes = GPT2Config(vocab_size=270, n_positions=128, n_embd=16, n_layer=2, n_head=2)
    GPT2LMHeadModel(sizes).save_pretrained(folder)
    PreTrainedTokenizerFast(tokenizer_object=rust, eos_token="<e>").save_pretrained(folder)


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> Path:
    """A folder with models, texts and settings, in which univerb is started."""
    folder = tmp_path_factory.mktemp("world")
    tokenizer = make_tokenizer()
    for name, make in MAKERS.items():
        saved(folder / name, DynamicLM.wrap(make(), tokenizer))
    save_foreign(folder / "foreign")
    for name in ("texts", "held", "empty"):
        (folder / name).mkdir()
    (folder / "texts" / "a.txt").write_text(TEXT * 3)
    again = "The landlord shall pay the rent of the premises on the first day. " * 6
    (folder / "texts" / "b.txt").write_text(again)
    (folder / "held" / "c.txt").write_text("Each month the tenant shall have good repair. " + TEXT)
    (folder / "short.txt").write_text("Rent.")
    for name, sections in (SHARED | CUT).items():
        config(folder, name, **sections)
    return folder


def start(world: Path, *jobs, processes: int = 1) -> str:
    """Run jobs in processes of their own, and return what they print."""
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    done = subprocess.run(
        [
            sys.executable,
            *(launch if processes > 1 else []),
            *(["-m", "univerb", *jobs] if isinstance(jobs[0], str) else []),
            *([] if isinstance(jobs[0], str) else [train_commands.__file__, json.dumps(jobs)]),
        ],
        capture_output=True,
        cwd=world,
        env={**os.environ, "OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(world / "cache")},
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def job(name: str, out: str, **more) -> dict:
    return {"command": ["train", f"{name}.yaml", "--out", out], **more}


@pytest.fixture(scope="module")
def one(world) -> Path:
    """Runs by one process: whole ones, and some that were interrupted twice."""
    jobs = [job(name, f"one-{name}") for name in (*SHARED, *CUT)]
    for name in CUT:
        jobs += [job(name, name, signal="SIGTERM", at=2), job(name, name, signal="SIGKILL", at=5)]
        jobs.append(job(name, name))
    codes = json.loads(start(world, *jobs).splitlines()[-1])
    assert codes == [0, 0, 0, 0, 0, *[130, -9, 0] * 2]
    return world


@pytest.fixture(scope="module")
def two(world) -> Path:
    """The same runs by two processes."""
    start(world, *(job(name, f"two-{name}") for name in SHARED), processes=2)
    return world


def exported(run: Path) -> dict[str, torch.Tensor]:
    """Return all weights that users load."""
    files = sorted((run / "encoder").rglob("*.safetensors"))
    return {f"{f.name}.{name}": t for f in files for name, t in load_file(f).items()}


@pytest.mark.slow
@pytest.mark.parametrize("regime", SHARED)
def test_two_processes_train_what_one_trains(one, two, regime):
    ours, theirs = exported(two / f"two-{regime}"), exported(one / f"one-{regime}")
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        torch.testing.assert_close(ours[name], tensor, atol=1e-5, rtol=0, msg=name)
    logs = [read_log(folder) for folder in (two / f"two-{regime}", one / f"one-{regime}")]
    for line, other in zip(*logs, strict=True):
        assert line["kind"] == other["kind"]
        for name in line.keys() - {"kind", "seconds", "rows_per_second"}:
            assert line[name] == pytest.approx(other[name], abs=1e-5, rel=1e-5), name
    if regime == "frozen":
        assert any(line.get("over_firing", 0) > 0 for line in logs[0])


@pytest.mark.parametrize("name", CUT)
def test_an_interrupted_run_ends_with_the_same_bits(one, name):
    killed, whole = (
        read_snapshot(snapshot_paths(one / folder)[0]) for folder in (name, f"one-{name}")
    )
    assert killed.progress == whole.progress
    assert killed.tensors.keys() == whole.tensors.keys()
    for key, tensor in whole.tensors.items():
        assert torch.equal(killed.tensors[key], tensor), key
    ours, theirs = exported(one / name), exported(one / f"one-{name}")
    assert all(torch.equal(ours[key], tensor) for key, tensor in theirs.items())
    assert [line["step"] for line in read_log(one / name) if line["kind"] == "step"] == [1, 2, 3, 4]


@pytest.mark.slow
def test_a_sharded_run_exports_what_users_load(run, world):
    config(world, "fsdp", model="gpt2", regime="full", run={"steps": 2, "parallel": "fsdp"})
    start(world, "train", "fsdp.yaml", "--out", "fsdp", processes=2)
    assert [line["step"] for line in read_log(world / "fsdp") if line["kind"] == "step"] == [1, 2]
    lm = DynamicLM.from_pretrained(str(world / "fsdp" / "encoder"))
    # Tied weights were shown to the writer as two tensors.
    assert lm.model.get_output_embeddings().weight is lm.model.get_input_embeddings().weight
    assert generates(run, world, world / "fsdp" / "encoder")


def generates(run, world: Path, model: Path, *more: str) -> bool:
    ran = run(
        *("generate", "The tenant shall", "--docs", world / "texts", "--model", model),
        *("--max-tokens", "8", "--json", *more),
    )
    assert ran.code == 0, ran.err
    return bool(ran.json["text"])


def test_a_trained_lm_is_found_where_its_folder_is(run, one, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    moved = shutil.copytree(one / "one-full" / "encoder", tmp_path / "elsewhere")
    assert read_card(moved).backbone.name == "backbone"
    lm = DynamicLM.from_pretrained("elsewhere")
    assert (lm.is_trained, lm.profile.mode) == (True, "atomic")
    before = DynamicLM.from_pretrained(str(one / "llama")).model.state_dict()
    after = lm.model.state_dict()
    assert not torch.equal(after["lm_head.weight"], before["lm_head.weight"])
    for name, tensor in load_file(moved / "backbone" / "model.safetensors").items():
        assert torch.equal(after[name], tensor)
    assert generates(run, one, moved)


def test_an_adapter_is_added_when_asked_for(run, one, tmp_path, monkeypatch):
    # The backbone was named by a relative path; the encoder is used from another folder.
    monkeypatch.chdir(tmp_path)
    folder = str(one / "one-lora" / "encoder")
    bare, adapted = (DynamicLM.from_pretrained(folder, adapter=has) for has in (False, True))
    assert adapted.profile.mode == "atomic"
    plain = DynamicLM.from_pretrained(str(one / "llama")).model.state_dict()
    assert all(torch.equal(bare.model.state_dict()[name], t) for name, t in plain.items())
    changed = [n for n, t in plain.items() if not torch.equal(adapted.model.state_dict()[n], t)]
    assert changed and not any("embed" in name or "lm_head" in name for name in changed)
    assert generates(run, one, Path(folder), "--adapter")
    for _ in range(2):  # the second time over what the first one saved
        adapted.save_pretrained(tmp_path / "again")
    again = DynamicLM.from_pretrained(str(tmp_path / "again"), adapter=True)
    again.save_pretrained(tmp_path / "again")
    assert again.profile == adapted.profile
    for name, tensor in adapted.model.state_dict().items():
        assert torch.equal(again.model.state_dict()[name], tensor)
    assert DynamicLM.from_pretrained(str(tmp_path / "again")).profile == bare.profile
    with pytest.raises(CheckpointError, match="no adapter/ beside the encoder.*regime: lora"):
        DynamicLM.from_pretrained(str(one / "one-frozen" / "encoder"), adapter=True)


def test_a_trained_encoder_is_not_decoded_as_an_untrained_one(one):
    lm = DynamicLM.from_pretrained(str(one / "one-frozen" / "encoder"))
    assert lm.is_trained
    assert (lm.profile.mode, lm.profile.phrase_bias) == ("unfold", 0.0)


def test_a_run_that_goes_on_from_an_encoder_counts_its_steps(run, one, monkeypatch):
    monkeypatch.chdir(one)
    start_from = {"encoder_from": "one-frozen/encoder", "regime": "lora", "run": {"steps": 1}}
    name = config(one, "on", samples={"positions": "token"}, **start_from)
    assert run("train", name, "--out", "on").code == 0
    card = read_card(one / "on" / "encoder")
    assert card.encoder.trained_steps == 5
    assert (card.profile.mode, card.profile.positions) == ("unfold", "token")


PAPER = {
    "in-batch": ("n-words", ["in-batch"]),
    "pre-batch": ("n-ids", ["in-batch", "pre-batch", "prefixes"]),
    "generation": ("n-words", ["in-batch", "prefixes", "generation"]),
    "self-retrieval": ("n-words", ["in-batch", "prefixes", "self-retrieval"]),
    "corpus-retrieval": ("fmm", ["in-batch", "prefixes", "corpus-retrieval"]),
}


@pytest.mark.parametrize("name", PAPER)
def test_the_strategies_of_the_paper_run(run, world, monkeypatch, name):
    monkeypatch.chdir(world)
    kind, kinds = PAPER[name]
    samples = {"kind": kind, "min_count": 2}
    sections = {"samples": samples, "negatives": {"kinds": kinds}, "run": {"steps": 2}}
    path = config(world, name, model="gpt2", regime="full", **sections)
    ran = run("train", path, "--out", f"paper-{name}")
    assert ran.code == 0, ran.err
    losses = [line["phrase"] for line in read_log(world / f"paper-{name}")]
    assert len(losses) == 3 and all(loss > 0 for loss in losses)


@pytest.mark.parametrize("regime", ["full", "lora"])
def test_another_model_with_its_own_tokenizer_becomes_the_encoder(run, world, monkeypatch, regime):
    monkeypatch.chdir(world)
    name = f"foreign-{regime}"
    path = config(world, name, regime=regime, encoder_from="foreign", run={"steps": 2})
    ran = run("train", path, "--out", f"run-{name}")
    assert ran.code == 0, ran.err
    lm = DynamicLM.from_pretrained(str(world / f"run-{name}" / "encoder"))
    assert lm.encoder.tokenizer is not None
    assert lm.encoder.body.config.hidden_size == 16
    assert generates(run, world, world / f"run-{name}" / "encoder")


@pytest.mark.parametrize("regime", ["frozen", "full"])
def test_a_dry_run_leaves_nothing(run, world, tmp_path, monkeypatch, regime):
    monkeypatch.chdir(world)
    out = tmp_path / "out"
    ran = run("train", f"{regime}.yaml", "--out", out, "--dry-run")
    assert ran.code == 0, ran.err
    for part in ("rows/s", "for 4 steps", "of memory in each process"):
        assert part in ran.out
    assert not out.exists()
    # No bars of other libraries: they would run through the panel.
    assert "it/s" not in ran.err


def test_a_step_of_which_hardly_a_row_owns_a_phrase(run, world, monkeypatch):
    monkeypatch.chdir(world)
    ran = run("train", config(world, "few", frozen={"own": 1e-9}), "--dry-run")
    assert ran.code == 0, ran.err


BAD = {
    "unknown key": ({"run": {"step": 3}}, r"run\.step.*given: 3"),
    "missing file": ({"data": {"documents": ["nowhere.txt"]}}, r"nowhere\.txt"),
    "empty folder": ({"data": {"documents": ["empty"]}}, "empty"),
    "short text": ({"data": {"documents": ["short.txt"]}}, "Give more text"),
    "no fmm": ({"regime": "full", "negatives": {"kinds": ["corpus-retrieval"]}}, "needs samples"),
    "frozen": ({"negatives": {"kinds": ["generation"]}}, "generation, which the frozen regime"),
    "no encoder": ({"encoder_from": "./nothing"}, "nothing"),
    "foreign": ({"encoder_from": "foreign"}, "its own tokenizer, which the frozen regime"),
    "long block": ({"regime": "full", "data": {"block": 4096}}, "at most 512"),
    "long block, frozen": ({"data": {"block": 4096}}, "at most 512"),
    "cache": ({"frozen": {"cache": os.devnull + "/states"}}, r"cannot write.*frozen\.cache"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_one_clear_line(run, world, tmp_path, monkeypatch, name):
    monkeypatch.chdir(world)
    sections, message = BAD[name]
    assert_refused(run, config(world, "bad", **sections), tmp_path / "out", message)


def assert_refused(run, path: str, out: Path, message: str) -> None:
    ran = run("train", path, "--out", out)
    assert (ran.code, ran.out) == (1, ""), ran.err
    lines = ran.err.strip().splitlines()
    assert lines[-1].startswith("error: ")
    assert not any("Traceback" in line for line in lines)
    assert re.search(message, lines[-1]), lines[-1]


def test_missing_nltk_names_the_extra(run, world, tmp_path, monkeypatch):
    monkeypatch.chdir(world)
    monkeypatch.setitem(sys.modules, "nltk.tokenize", None)
    assert_refused(run, "full.yaml", tmp_path / "out", r"nltk.*univerb\[nltk\]")


def test_a_folder_that_cannot_be_used_is_one_clear_line(run, one, tmp_path, monkeypatch):
    monkeypatch.chdir(one)
    assert_refused(run, "frozen.yaml", Path(os.devnull) / "run", "cannot write")
    folder = shutil.copytree(one / "one-frozen", tmp_path / "other")
    path = config(one, "other", **{**SHARED["frozen"], "optimiser": {"rate": 0.1}})
    assert_refused(run, path, folder, r"optimiser\.rate = 0\.0001, not 0\.1.*--fresh")
    newest, *older = snapshot_paths(folder)
    newest.write_bytes(newest.read_bytes()[:-7])
    ran = run("train", "frozen.yaml", "--out", folder)
    assert ran.code == 0
    assert f"{newest.name}' is damaged" in ran.err
    for snapshot in snapshot_paths(folder):
        snapshot.write_bytes(b"no checkpoint")
    assert_refused(run, "frozen.yaml", folder, "all 2 checkpoints in.*are damaged.*--fresh")
    assert older

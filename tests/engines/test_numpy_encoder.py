"""Where llama.cpp computes, numpy encodes phrases as torch would, without importing it."""

import subprocess
import sys
from dataclasses import replace
from functools import partial

import numpy
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import univerb
from conftest import make_conditional, make_llama, make_tokenizer, saved_encoder, stir
from tiny_gguf import needs_llamacpp, write_gguf
from univerb.config import EncoderConfig
from univerb.engines.llamacpp.gguf_file import GgufFile
from univerb.engines.llamacpp.lm import LlamaCppLM
from univerb.engines.llamacpp.numpy_encoder import NumpyEncoder
from univerb.engines.llamacpp.stored_encoder import StoredEncoder
from univerb.errors import PhraseError
from univerb.modeling.dynamic import DynamicLM
from univerb.phrase import Phrase

pytestmark = needs_llamacpp

KEYS = st.lists(st.lists(st.integers(1, 200), min_size=1, max_size=9), min_size=1, max_size=30)


def wrapped(kind):
    if kind == "conditional":
        return make_conditional(make_llama())
    config = EncoderConfig(heads="tied" if kind == "tied" else "split", layers=2)
    return DynamicLM.wrap(make_llama(), make_tokenizer(), config)


def pair(folder, kind):
    """One encoder on torch and on llama.cpp."""
    lm = wrapped(kind)
    if kind != "tied":
        stir(lm)
    encoder = saved_encoder(folder, lm=lm)
    file = write_gguf(folder / "tiny.gguf", lm.model)
    return lm, LlamaCppLM.from_pretrained(str(encoder), gguf=file, threads=1)


@pytest.fixture(scope="module", params=["flat", "conditional"])
def engines(request, tmp_path_factory):
    return pair(tmp_path_factory.mktemp("encoder"), request.param)


@given(KEYS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_vectors_are_those_of_torch(engines, keys):
    lm, llama = engines
    phrases = [Phrase(tuple(key), "x") for key in keys]
    assert llama._numpy_encoder is not None
    for ours, theirs in zip(llama.run_encoder(phrases), lm.run_encoder(phrases), strict=True):
        assert ours.dtype == numpy.float32 and ours.shape == theirs.shape
        assert numpy.allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    assert llama._torch_side is None


def test_other_encoders_are_left_to_torch(tmp_path):
    lm, llama = pair(tmp_path, "tied")
    phrases = [Phrase((5, 6, 7), "x"), Phrase((5, 6), "y")]
    assert llama._numpy_encoder is None
    for ours, theirs in zip(llama.run_encoder(phrases), lm.run_encoder(phrases), strict=True):
        assert numpy.allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    assert llama._torch_side is not None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("llama.rope.scaling.type", "linear"),
        ("llama.rope.scale_linear", 2.0),
        ("llama.attention.head_count", None),
        ("llama.attention.head_count_kv", None),
        ("llama.attention.head_count_kv", 4),
        ("llama.attention.layer_norm_rms_epsilon", None),
        ("llama.rope.freq_base", 10000),
    ],
)
def test_other_settings_are_left_to_torch(tmp_path, name, value):
    encoder = StoredEncoder(saved_encoder(tmp_path))
    file = GgufFile(write_gguf(tmp_path / "tiny.gguf", make_llama()))
    assert NumpyEncoder.of(encoder, file) is not None
    file.settings[name] = value
    assert NumpyEncoder.of(encoder, file) is None


def test_other_weights_are_left_to_torch(tmp_path, monkeypatch):
    encoder = StoredEncoder(saved_encoder(tmp_path))
    file = GgufFile(write_gguf(tmp_path / "tiny.gguf", make_llama()))
    tensors = dict(encoder.tensors())
    extra = {**tensors, "body.layers.0.self_attn.q_proj.bias": numpy.ones(4, numpy.float32)}
    less = {name: tensor for name, tensor in tensors.items() if name != "heads.fed"}
    for changed in (extra, less):
        monkeypatch.setattr(StoredEncoder, "tensors", lambda _, changed=changed: changed.items())
        assert NumpyEncoder.of(encoder, file) is None
    monkeypatch.undo()
    # What llama.cpp's converter writes for Llama 3.1 and later.
    file.tensors.append(file.tensors[0]._replace(name="rope_freqs.weight"))
    assert NumpyEncoder.of(encoder, file) is None
    file.tensors.pop()
    encoder.card = encoder.card.model_copy(update={"body": {"model_type": "gpt2"}})
    assert NumpyEncoder.of(encoder, file) is None


@pytest.mark.parametrize(
    "options",
    [
        {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
        {"rms_norm_eps": 0.3},
        {"head_dim": 16},
        {"num_key_value_heads": 4},
        {"num_key_value_heads": 1},
    ],
    ids=str,
)
def test_shapes_of_llamas(tmp_path, options):
    model = make_llama(**options)
    lm = stir(DynamicLM.wrap(model, make_tokenizer()))
    encoder = StoredEncoder(saved_encoder(tmp_path, lm=lm))
    file = GgufFile(write_gguf(tmp_path / "tiny.gguf", model))
    numpy_encoder = NumpyEncoder.of(encoder, file)
    assert numpy_encoder is not None
    rows = partial(file.rows, "token_embd.weight"), partial(file.rows, "output.weight")
    phrases = [Phrase(tuple(range(5, 5 + size)), "x") for size in (1, 7, 60)]
    ours, theirs = numpy_encoder.encode(phrases, *rows), lm.run_encoder(phrases)
    for side, expected in zip(ours, theirs, strict=True):
        assert numpy.allclose(side, expected, rtol=1e-3, atol=1e-4)


def test_a_phrase_of_thousands_of_tokens_is_refused(engines):
    with pytest.raises(PhraseError, match="at most 2048. Cut it"):
        engines[1].run_encoder([Phrase((1,) * 2049, "x")])


ALONE = """
import sys, univerb
lm = univerb.load(engine="llamacpp", threads=1)
vocabulary = lm.vocabulary([univerb.Document("The tenant shall pay the rent in advance.", "lease")])
text = univerb.generate(lm, "The tenant shall", vocabulary, max_tokens=8)
assert text.stats.encode_seconds > 0 and lm.fingerprint()
assert not {"torch", "transformers"} & {*sys.modules}
"""


@pytest.mark.default_model
def test_the_default_model_writes_with_phrases_without_torch():
    ran = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.default_model
def test_the_default_encoder_gives_the_vectors_of_torch(default_lm):
    llama = univerb.load(engine="llamacpp", threads=1)
    phrases = [replace(p, sources=()) for p in llama.vocabulary(["pay the rent", "in advance"])]
    for ours, theirs in zip(
        llama.run_encoder(phrases), default_lm.run_encoder(phrases), strict=True
    ):
        assert numpy.allclose(ours, theirs, rtol=1e-3, atol=1e-4)

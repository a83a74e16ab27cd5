"""Where llama.cpp computes, numpy encodes phrases as torch would, without importing it."""

import subprocess
import sys
from dataclasses import replace

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
from univerb.engines.llamacpp.numpy_encoder import LlamaShape, NumpyEncoder
from univerb.engines.llamacpp.stored_encoder import StoredEncoder
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


def test_what_is_no_plain_llama_is_not_taken_for_one(tmp_path):
    encoder = StoredEncoder(saved_encoder(tmp_path))
    file = GgufFile(write_gguf(tmp_path / "tiny.gguf", make_llama()))
    assert NumpyEncoder.of(encoder, file) is not None
    shape = LlamaShape.of(file, 2)
    assert shape is not None and (shape.heads, shape.key_heads) == (4, 2)
    for name, value in (
        ("llama.rope.scaling.type", "linear"),
        ("llama.attention.head_count", None),
        ("llama.attention.layer_norm_rms_epsilon", None),
    ):
        before = file.settings.get(name)
        file.settings[name] = value
        assert NumpyEncoder.of(encoder, file) is None, name
        del file.settings[name]
        if before is not None:
            file.settings[name] = before
    encoder.card = encoder.card.model_copy(update={"body": {"model_type": "gpt2"}})
    assert NumpyEncoder.of(encoder, file) is None


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

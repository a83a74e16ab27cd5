"""LlamaCppLM: what DynamicLM is for the same files, without torch, and typed errors for others."""

import json
import shutil
import struct
from pathlib import Path

import gguf
import numpy
import pytest
from gguf import GGMLQuantizationType as Kind
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import TEXT, make_llama, saved_encoder, stir
from tiny_gguf import load_tiny, needs_llamacpp, write_gguf
from univerb.config import EncoderConfig
from univerb.engines.llamacpp import gguf_file
from univerb.engines.llamacpp.gguf_file import GgufFile
from univerb.engines.llamacpp.lm import LlamaCppLM
from univerb.engines.llamacpp.stored_encoder import StoredEncoder
from univerb.errors import CheckpointError, ModelError, ModelMissing, OptionError, UniverbError
from univerb.locations import DEFAULT_MODEL, packaged_encoder
from univerb.modeling.dynamic import DynamicLM
from univerb.phrase import Document

pytestmark = needs_llamacpp


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """The same tiny model and encoder under llama.cpp and under torch."""
    lm = load_tiny(tmp_path_factory.mktemp("tiny"))
    return lm, DynamicLM.from_pretrained(lm.name)


@pytest.fixture(autouse=True)
def _own_cache(request, tmp_path, monkeypatch):
    if "default_model" not in request.keywords:
        monkeypatch.setenv("UNIVERB_CACHE", str(tmp_path / "cache"))


def check_same(lm, reference):
    assert lm.static_size == reference.static_size
    assert lm.context_size == reference.context_size
    assert lm.eos_ids == reference.eos_ids
    assert lm.width == reference.width
    assert lm.encoder_config == reference.encoder_config
    assert lm.head_bias() == reference.head_bias()
    assert lm.tokenizer.fingerprint() == reference.tokenizer.fingerprint()
    assert lm.tokenizer.special_ids == reference.tokenizer.special_ids
    assert lm.fingerprint() == reference.fingerprint()


def test_it_is_what_the_torch_model_is(pair):
    lm, reference = pair
    check_same(lm, reference)
    assert lm.engine == "llamacpp"
    assert lm.name == reference.name
    assert lm.profile.positions == "unit"


def test_a_tied_head_and_half_precision_are_the_same_too(tmp_path):
    model = make_llama()
    folder = saved_encoder(tmp_path, model)
    reference = DynamicLM.from_pretrained(str(folder))
    tied = DynamicLM.wrap(reference.model, reference.hf_tokenizer, EncoderConfig(heads="tied"))
    for lm, half in ((tied, False), (stir(reference), True)):
        place = tmp_path / f"half-{half}"
        lm.save_pretrained(place, half=half)
        file = write_gguf(tmp_path / f"{half}.gguf", model)
        loaded = LlamaCppLM.from_pretrained(str(place), gguf=file, threads=1)
        check_same(loaded, DynamicLM.from_pretrained(str(place)))


def test_a_fingerprint_is_kept_until_the_file_changes(tmp_path, monkeypatch):
    lm = load_tiny(tmp_path)
    first = lm.fingerprint()
    monkeypatch.setattr(LlamaCppLM, "_computed_fingerprint", lambda *_: "0" * 32)
    again = LlamaCppLM.from_pretrained(lm.name, gguf=lm.gguf.path, threads=1)
    assert again.fingerprint() == first
    for kept in (tmp_path / "cache" / "fingerprints").iterdir():
        kept.write_text("damaged")
    once_more = LlamaCppLM.from_pretrained(lm.name, gguf=lm.gguf.path, threads=1)
    assert once_more.fingerprint() == "0" * 32


def test_phrases_that_nobody_has_are_encoded_as_torch_does(pair):
    lm, reference = pair
    vocabulary = lm.vocabulary([Document(TEXT, "lease.txt")], max_phrases=50)
    phrases = [entry for entry in vocabulary.snapshot().phrases]
    ours, theirs = lm.run_encoder(phrases), reference.run_encoder(phrases)
    assert numpy.allclose(ours.inputs, theirs.inputs, atol=1e-5)
    assert numpy.allclose(ours.outputs, theirs.outputs, atol=1e-5)
    assert ours.outputs.dtype == numpy.float32
    view = lm.encode(vocabulary)
    assert view.outputs.shape == (50, lm.width)


def test_a_missing_file_is_named(pair):
    with pytest.raises(ModelMissing, match="there is no file"):
        LlamaCppLM.from_pretrained(pair[0].name, gguf="nowhere.gguf")


def test_another_models_file_must_be_given(pair):
    with pytest.raises(OptionError, match="Give it as gguf="):
        LlamaCppLM.from_pretrained(pair[0].name)


def test_a_backbone_without_an_encoder_is_refused(pair):
    with pytest.raises(CheckpointError, match="is no encoder"):
        LlamaCppLM.from_pretrained("gpt2", gguf=pair[0].gguf.path)


def test_the_default_model_without_its_parts_says_setup(monkeypatch, tmp_path):
    monkeypatch.setenv("UNIVERB_CACHE", str(tmp_path / "empty"))
    with pytest.raises(ModelMissing, match="univerb setup"):
        LlamaCppLM.from_pretrained(DEFAULT_MODEL)


def test_a_file_of_another_size_or_with_other_words_is_refused(pair, tmp_path):
    lm, _ = pair
    other = write_gguf(tmp_path / "other.gguf", make_llama(vocab_size=320))
    content = other.read_bytes()
    strange = content.replace(" tenant".replace(" ", "Ġ").encode(), "Ġtinant".encode())
    assert strange != content
    other.write_bytes(strange)
    LlamaCppLM.from_pretrained(lm.name, gguf=other, threads=1)  # one strange word is none
    card = json.loads((Path(lm.name) / "univerb.json").read_text())
    for field, value in (("hidden_size", 64), ("static_size", 999), ("tokenizer", "f" * 16)):
        changed = tmp_path / field
        shutil.copytree(lm.name, changed)
        backbone = {**card["backbone"], field: value}
        (changed / "univerb.json").write_text(json.dumps({**card, "backbone": backbone}))
        with pytest.raises(CheckpointError, match=field):
            LlamaCppLM.from_pretrained(str(changed), gguf=other)


def test_damaged_encoder_weights_are_refused(pair, tmp_path):
    lm, _ = pair
    folder = tmp_path / "damaged"
    shutil.copytree(lm.name, folder)
    weights = folder / "encoder.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    loaded = LlamaCppLM.from_pretrained(str(folder), gguf=lm.gguf.path, threads=1)
    with pytest.raises(CheckpointError, match="damaged"):
        loaded.head_bias()


def test_chat_templates_are_those_of_the_folder(tmp_path):
    template = (
        "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}{{ eos_token }}"
    )
    model = make_llama()
    encoder = saved_encoder(tmp_path, model)
    file = write_gguf(tmp_path / "tiny.gguf", model)
    config = tmp_path / "tiny" / "tokenizer_config.json"
    whole = json.loads(config.read_text())
    listed = [{"name": "tools", "template": "no"}, {"name": "default", "template": template}]
    for stored in (template, listed):
        config.write_text(json.dumps({**whole, "chat_template": stored}))
        lm = LlamaCppLM.from_pretrained(str(encoder), gguf=file, threads=1)
        reference = DynamicLM.from_pretrained(str(encoder))
        ids = lm.chat_prompt("the rent", "the tenant")
        assert ids == reference.chat_prompt("the rent", "the tenant")
        assert ids[-1] == 0
    (tmp_path / "tiny" / "chat_template.jinja").write_text("{{ messages[0].content }}")
    lm = LlamaCppLM.from_pretrained(str(encoder), gguf=file, threads=1)
    assert lm.chat_prompt("the rent") == lm.tokenizer.encode("the rent").ids


@pytest.mark.parametrize("kind", [Kind.F32, Kind.F16, Kind.Q8_0, Kind.Q4_1])
def test_rows_are_what_the_gguf_package_reads(tmp_path, kind):
    path = write_gguf(tmp_path / "tiny.gguf", make_llama(), kind)
    ours, theirs = GgufFile(path), gguf.GGUFReader(path)
    for tensor in theirs.tensors:
        if len(tensor.shape) == 2:
            plain = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
            assert numpy.array_equal(ours.rows(tensor.name, slice(None)), plain)
            assert numpy.array_equal(ours.rows(tensor.name, (3, 0)), plain[[3, 0]])
    assert ours.settings["general.architecture"] == "llama"
    assert ours.number("llama.block_count") == 3
    assert ours.number("general.architecture") is None
    assert ours.strings("nothing") == []


def test_sizes_of_blocks_are_those_of_the_gguf_package():
    theirs = gguf.constants.GGML_QUANT_SIZES
    assert {int(kind): sizes for kind, sizes in theirs.items()} == gguf_file._BLOCKS


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return write_gguf(tmp_path_factory.mktemp("whole") / "tiny.gguf", make_llama()).read_bytes()


@settings(max_examples=60)
@given(st.data())
def test_a_damaged_file_gives_a_typed_error_or_reads(whole, tmp_path_factory, data):
    """Cut anywhere, or with other bytes in its header: never another error, never a hang."""
    content = bytearray(whole)
    if data.draw(st.booleans()):
        content = content[: data.draw(st.integers(0, len(content) - 1))]
    else:
        at = data.draw(st.integers(0, 8000))
        content[at : at + 8] = data.draw(st.binary(min_size=8, max_size=8))
    path = tmp_path_factory.getbasetemp() / "damaged.gguf"
    path.write_bytes(content)
    try:
        found = GgufFile(path)
        for name, matrix in found.matrices.items():
            assert found.rows(name, [matrix.rows - 1]).shape == (1, matrix.width)
    except UniverbError:
        pass


@pytest.mark.parametrize("count", [1 << 40, 1 << 63])
def test_claims_larger_than_the_file_are_refused(whole, tmp_path, count):
    path = tmp_path / "claims.gguf"
    for at in (8, 16):
        path.write_bytes(whole[:at] + struct.pack("<Q", count) + whole[at + 8 :])
        with pytest.raises(ModelError, match="claims"):
            GgufFile(path)
    first = whole.index(b"general.architecture")
    path.write_bytes(whole[: first - 8] + struct.pack("<Q", count) + whole[first:])
    with pytest.raises(ModelError, match="behind the end of the file"):
        GgufFile(path)


def test_a_file_that_is_none_is_refused(tmp_path):
    for content in (b"", b"not a model at all, but long enough to be read as one"):
        path = tmp_path / "none.gguf"
        path.write_bytes(content)
        with pytest.raises(ModelError, match="no complete GGUF file"):
            GgufFile(path)


def test_what_llama_cpp_says_is_in_the_error(pair, tmp_path):
    lm, _ = pair
    content = lm.gguf.path.read_bytes()
    path = tmp_path / "tiny.gguf"
    path.write_bytes(content.replace(b"blk.1.ffn_up.weight", b"blk.1.ffn_xx.weight"))
    with pytest.raises(ModelError, match=r"cannot load.*ffn_up"):
        LlamaCppLM.from_pretrained(lm.name, gguf=path, threads=1)


@pytest.mark.slow
@pytest.mark.default_model
def test_the_default_model_is_the_torch_one(default_lm):
    lm = LlamaCppLM.from_pretrained(threads=1)
    check_same(lm, default_lm)
    encoder = StoredEncoder(packaged_encoder(DEFAULT_MODEL))
    assert lm._computed_fingerprint(encoder) == default_lm.fingerprint()
    assert lm.chat_prompt("Hello", "Be brief.") == default_lm.chat_prompt("Hello", "Be brief.")
    weight = default_lm.embeddings.input.weight.detach().numpy()
    assert numpy.array_equal(lm.input_rows([0, 5, 49151]), weight[[0, 5, 49151]])


@pytest.mark.parametrize(
    ("tensor", "value", "problem"),
    [
        ("model.embed_tokens.weight", numpy.nan, "invalid data"),
        ("model.layers.1.mlp.up_proj.weight", numpy.inf, "invalid data"),
        # A number, but not its product with others.
        ("model.norm.weight", 3e38, "not finite"),
    ],
)
def test_a_file_whose_numbers_are_not_finite_is_refused(pair, tmp_path, tensor, value, problem):
    model = make_llama()
    model.state_dict()[tensor].view(-1)[5:] = value
    file = write_gguf(tmp_path / "damaged.gguf", model)
    with pytest.raises(ModelError, match=rf"damaged\.gguf.*{problem}"):
        LlamaCppLM.from_pretrained(pair[0].name, gguf=file, threads=1)


def test_an_encoder_with_numbers_that_are_not_finite_is_refused(pair, tmp_path, monkeypatch):
    lm = LlamaCppLM.from_pretrained(pair[0].name, gguf=pair[0].gguf.path, threads=1)
    tensors = {"heads.bias": numpy.array(numpy.nan, numpy.float32)}
    monkeypatch.setattr("safetensors.numpy.load_file", lambda _: tensors)
    with pytest.raises(CheckpointError, match=r"encoder\.safetensors.*not finite.*heads\.bias"):
        lm.head_bias()

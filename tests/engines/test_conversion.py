"""A GGUF file made fast to read: once, whole or not at all, and with the same embeddings."""

import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import Mock

import gguf
import numpy
import pytest
from gguf import GGMLQuantizationType as Kind

from conftest import make_llama, saved_encoder
from tiny_gguf import needs_llamacpp, write_gguf
from univerb.engines.llamacpp import conversion
from univerb.engines.llamacpp import lm as llamacpp_lm
from univerb.engines.llamacpp.conversion import as_q8_0
from univerb.engines.llamacpp.gguf_file import GgufFile
from univerb.engines.llamacpp.lm import LlamaCppLM
from univerb.errors import ModelError
from univerb.files import exclusive_lock

EMBEDDINGS = {"token_embd.weight", "output.weight"}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """An empty cache; returns where conversions go."""
    monkeypatch.setenv("UNIVERB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "gguf"


@pytest.fixture
def slow(tmp_path):
    """A file whose layers llama.cpp multiplies row by row."""
    return write_gguf(tmp_path / "slow.gguf", make_llama(), Kind.F16, Kind.Q4_1)


@pytest.fixture
def converting(monkeypatch):
    """The drafts that were converted into."""
    drafts = []
    convert = conversion._convert

    def counted(original, draft):
        drafts.append(draft)
        convert(original, draft)

    monkeypatch.setattr(conversion, "_convert", counted)
    return drafts


@pytest.mark.parametrize("rows", [Kind.F32, Kind.F16, Kind.Q8_0, Kind.Q4_1, Kind.Q5_0])
def test_layers_become_q8_0_and_embeddings_stay_as_they_are(tmp_path, rows):
    source = write_gguf(tmp_path / "slow.gguf", make_llama(), rows, Kind.Q4_1)
    before, after = gguf.GGUFReader(source).tensors, gguf.GGUFReader(as_q8_0(source).path).tensors
    assert {tensor.name for tensor in before} == {tensor.name for tensor in after}
    originals = {tensor.name: tensor for tensor in before}
    for tensor in after:
        original = originals[tensor.name]
        if len(tensor.shape) == 1 or tensor.name in EMBEDDINGS:
            assert tensor.tensor_type == original.tensor_type
            assert tensor.data.tobytes() == original.data.tobytes()
        else:
            plain = gguf.quants.dequantize(original.data, original.tensor_type)
            assert tensor.tensor_type == Kind.Q8_0
            assert numpy.array_equal(tensor.data, gguf.quants.quantize(plain, Kind.Q8_0))


def test_a_tied_matrix_stays_as_it_is(tmp_path):
    model = make_llama()
    del model.lm_head
    source = write_gguf(tmp_path / "tied.gguf", model, Kind.Q4_1, Kind.Q4_1)
    converted = as_q8_0(source)
    assert converted.matrices.keys() & EMBEDDINGS == {"token_embd.weight"}
    assert converted.matrices["token_embd.weight"].kind == Kind.Q4_1
    assert converted.matrices["blk.0.ffn_up.weight"].kind == Kind.Q8_0


def settings_of(path):
    """The settings and the tokenizer of a file."""
    fields = gguf.GGUFReader(path).fields
    return {
        name: field.contents() for name, field in fields.items() if not name.startswith("GGUF.")
    }


def test_settings_and_tokens_stay_as_they_are(slow):
    before = settings_of(slow)
    assert before.keys() >= {"tokenizer.ggml.tokens", "tokenizer.ggml.merges", "llama.block_count"}
    assert settings_of(as_q8_0(slow).path) == before


def test_a_file_that_is_fast_already_is_used_as_it_is(tmp_path, cache):
    for layers in (Kind.F32, Kind.F16, Kind.Q8_0):
        source = write_gguf(tmp_path / "fast.gguf", make_llama(), Kind.Q4_1, layers)
        assert as_q8_0(source).path == source
    assert not cache.exists()


def test_a_file_without_embeddings_is_left_for_others_to_refuse(slow):
    slow.write_bytes(slow.read_bytes().replace(b"token_embd.weight", b"token_xxxx.weight"))
    assert as_q8_0(slow).path == slow


def test_it_is_converted_once_until_the_file_changes(slow, converting):
    first = as_q8_0(slow)
    assert as_q8_0(slow).path == first.path != slow
    assert len(converting) == 1
    write_gguf(slow, make_llama(seed=1), Kind.F16, Kind.Q4_1)
    assert as_q8_0(slow).path != first.path
    assert len(converting) == 2


def test_many_at_once_convert_it_once(slow, converting):
    with ThreadPoolExecutor(4) as pool:
        paths = {gguf_file.path for gguf_file in pool.map(as_q8_0, [slow] * 4)}
    assert len(paths) == len(converting) == 1
    assert paths != {slow}


KILLED = """
import os, signal, sys
from pathlib import Path
from univerb import files
from univerb.engines.llamacpp.conversion import as_q8_0
files.sync = lambda path: os.kill(os.getpid(), signal.SIGKILL)
as_q8_0(Path(sys.argv[1]))
"""


def test_a_killed_conversion_leaves_nothing_that_is_used_or_stays(slow, cache):
    killed = subprocess.run([sys.executable, "-c", KILLED, str(slow)], check=False)
    assert killed.returncode == -signal.SIGKILL
    (draft,) = cache.glob(".*.draft")
    assert draft.stat().st_size > 0
    assert not list(cache.glob("*.gguf"))
    converted = as_q8_0(slow)
    assert list(cache.glob("*.gguf")) == [converted.path]
    assert not draft.exists()


def test_a_damaged_conversion_is_made_again(slow):
    path = as_q8_0(slow).path
    whole = path.read_bytes()
    path.write_bytes(whole[:-5000])
    assert as_q8_0(slow).path == path
    assert path.read_bytes() == whole


def test_while_another_process_converts_the_original_is_used(slow, cache, monkeypatch):
    monkeypatch.setattr(conversion, "PATIENCE", 0)
    cache.mkdir(parents=True)
    with exclusive_lock(cache / ".lock", ModelError("busy")):
        assert as_q8_0(slow).path == slow
    assert as_q8_0(slow).path != slow


def test_a_cache_that_cannot_be_written_is_no_error(slow, cache):
    cache.parent.write_text("a file where the folder would be")
    assert as_q8_0(slow).path == slow


def test_a_conversion_that_fails_is_no_error(slow, cache, monkeypatch):
    monkeypatch.setattr(GgufFile, "rows", Mock(side_effect=OSError("no space left")))
    assert as_q8_0(slow).path == slow
    assert [path.name for path in cache.iterdir()] == [".lock"]


@needs_llamacpp
def test_only_a_file_that_is_found_by_itself_is_converted(tmp_path, slow, monkeypatch):
    encoder = str(saved_encoder(tmp_path))
    given = LlamaCppLM.from_pretrained(encoder, gguf=slow, threads=1)
    assert given.gguf.path == slow
    monkeypatch.setattr(llamacpp_lm, "default_file", lambda *_: slow)
    by_itself = LlamaCppLM.from_pretrained(encoder, threads=1)
    assert by_itself.gguf.path == as_q8_0(slow).path != slow
    # So corpora and encoders that were made with the one are valid with the other.
    assert by_itself.fingerprint() == given.fingerprint()
    assert numpy.array_equal(by_itself.input_rows([3, 5]), given.input_rows([3, 5]))

"""Settings and types at which llama.cpp would end the process are refused before it sees them."""

import pytest
from gguf import GGMLQuantizationType as Kind

from conftest import make_llama
from tiny_gguf import write_gguf
from univerb.engines.llamacpp.gguf_checks import check_language_model
from univerb.engines.llamacpp.gguf_file import GgufFile
from univerb.errors import ModelError


@pytest.fixture
def tiny(tmp_path):
    return GgufFile(write_gguf(tmp_path / "tiny.gguf", make_llama()))


@pytest.mark.parametrize(
    "settings",
    [
        {"block_count": 0},
        {"block_count": 513},
        {"expert_count": 4},
        {"expert_used_count": 2},
        {"expert_count": 5000, "expert_used_count": 2},
        {"expert_count": 4, "expert_used_count": 2, "expert_group_count": 4},
        {"expert_count": 8, "expert_used_count": 2, "expert_group_count": 4},
        {"nextn_predict_layers": 4},
        {"embedding_length_out": 64},
        {"attention.layer_norm_rms_epsilon": -1.0},
        {"attention.layer_norm_rms_epsilon": float("nan")},
        {"rope.scaling.type": "su"},
        {"rope.scaling.type": 3},
    ],
)
def test_settings_that_would_end_the_process_are_refused(tiny, settings):
    check_language_model(tiny)
    tiny.settings |= {f"llama.{name}": value for name, value in settings.items()}
    with pytest.raises(ModelError, match=r"tiny\.gguf.*Get a fresh copy"):
        check_language_model(tiny)


def test_settings_of_other_models_are_allowed(tiny):
    tiny.settings |= {
        "llama.expert_count": 8,
        "llama.expert_used_count": 2,
        "llama.expert_group_count": 4,
        "llama.expert_group_used_count": 2,
        "llama.nextn_predict_layers": 1,
        "llama.embedding_length_out": 32,
        "llama.rope.scaling.type": "yarn",
    }
    check_language_model(tiny)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("output_norm.weight", Kind.F16),
        ("output_norm.weight", Kind.I32),
        ("blk.1.attn_q.weight", Kind.I8),
        ("output.weight", Kind.F64),
        ("token_embd.weight", Kind.Q8_K),
    ],
)
def test_types_that_cannot_be_computed_with_are_refused(tiny, name, kind):
    tiny.tensors = [
        tensor._replace(kind=kind) if tensor.name == name else tensor for tensor in tiny.tensors
    ]
    with pytest.raises(ModelError, match=rf"{name} in a type.*number {int(kind)} of GGML"):
        check_language_model(tiny)


@pytest.mark.parametrize("alignment", [1, 8, 16, 48])
def test_tensors_that_lie_askew_are_refused(tiny, alignment, monkeypatch):
    path = tiny.path
    monkeypatch.setattr(GgufFile, "number", lambda *_: alignment)
    with pytest.raises(ModelError, match=f"its alignment is {alignment}"):
        GgufFile(path)

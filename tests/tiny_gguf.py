"""A tiny Llama as a GGUF file, with the encoder that belongs to it."""

import json
from pathlib import Path

import gguf
import numpy
import pytest
from gguf import GGMLQuantizationType as Kind
from gguf import GGUFWriter
from transformers import PreTrainedModel

from conftest import make_llama, make_tokenizer, saved_encoder
from univerb.engines.llamacpp.binding import is_installed
from univerb.engines.llamacpp.lm import LlamaCppLM

needs_llamacpp = pytest.mark.skipif(not is_installed(), reason="no llama.cpp on this platform")

NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name: str) -> str:
    """Translate a name of transformers into GGUF's."""
    whole = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    stem = name.removesuffix(".weight")
    if stem in whole:
        return f"{whole[stem]}.weight"
    _, _, layer, part = stem.split(".", 3)
    return f"blk.{layer}.{NAMES[part]}.weight"


def rotated(weight: numpy.ndarray, heads: int) -> numpy.ndarray:
    """Lay rows of q or k out as llama.cpp turns them: pairs side by side."""
    pairs = weight.reshape(heads, 2, -1, weight.shape[1])
    return pairs.swapaxes(1, 2).reshape(weight.shape)


def packed_rows(weight: numpy.ndarray, kind: Kind) -> numpy.ndarray:
    """Quantise rows; where the gguf package cannot, as random ones of the same size."""
    if kind == Kind.F32:
        return weight
    try:
        return gguf.quants.quantize(weight, kind)
    except NotImplementedError:
        block, size = gguf.GGML_QUANT_SIZES[kind]
        drawn = numpy.random.default_rng(1)
        blocks = drawn.integers(0, 256, (weight.size // block, size), numpy.uint8)
        # The scales, in half precision: the last field of Q6_K, the first two of the others.
        scales = slice(-2, None) if kind == Kind.Q6_K else slice(0, 4)
        count = len(range(size)[scales]) // 2
        own = drawn.uniform(0.0005, 0.002, (len(blocks), count)).astype(numpy.float16)
        blocks[:, scales] = own.view(numpy.uint8)
        return blocks.reshape(len(weight), -1)


def write_gguf(
    path: Path, model: PreTrainedModel, rows: Kind = Kind.F32, layers: Kind = Kind.F32
) -> Path:
    """Write a Llama as a GGUF file: types of its two embedding matrices, and of its layers'."""
    config, rust = model.config, make_tokenizer().backend_tokenizer
    writer = GGUFWriter(path, "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    words = sorted(rust.get_vocab().items(), key=lambda item: item[1])
    merges = json.loads(rust.to_str())["model"]["merges"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([word for word, _ in words])
    writer.add_token_types([3 if index == 0 else 1 for _, index in words])
    writer.add_token_merges([" ".join(pair) for pair in merges])
    writer.add_eos_token_id(0)
    writer.add_bos_token_id(0)
    for name, tensor in model.state_dict().items():
        weight = tensor.float().numpy()
        for part, heads in (("q_proj", "num_attention_heads"), ("k_proj", "num_key_value_heads")):
            if part in name:
                weight = rotated(weight, getattr(config, heads))
        of_layer = layers if weight.ndim == 2 else Kind.F32
        kind = rows if weight.shape[0] == config.vocab_size else of_layer
        packed = packed_rows(weight, kind)
        writer.add_tensor(gguf_name(name), numpy.ascontiguousarray(packed), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def load_tiny(
    folder: Path, model: PreTrainedModel | None = None, rows: Kind = Kind.F32
) -> LlamaCppLM:
    """Save a tiny Llama both ways, with an encoder, and load it with llama.cpp."""
    model = model or make_llama()
    encoder = saved_encoder(folder, model)
    file = write_gguf(folder / "tiny.gguf", model, rows)
    return LlamaCppLM.from_pretrained(str(encoder), gguf=file, threads=1)

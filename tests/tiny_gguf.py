"""Tiny GGUF files: a Llama with the encoder that belongs to it, and random LMs of other kinds."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy
import pytest
from gguf import GGMLQuantizationType as Kind
from gguf import GGUFWriter
from transformers import PreTrainedModel

from conftest import make_llama, make_tokenizer, saved_encoder
from tiny_vocabularies import TinyVocabulary, byte_level_bpe
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
    return written(writer, path)


def written(writer: GGUFWriter, path: Path) -> Path:
    """Write what was added, and return the path."""
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


WIDTH, HIDDEN, HEADS, LAYERS, CONTEXT = 32, 64, 4, 2, 512


def write_random(
    path: Path,
    architecture: str = "llama",
    vocabulary: TinyVocabulary | None = None,
    *,
    is_tied: bool = False,
    template: str | None = None,
    rows: int | None = None,
    change: Callable[[GGUFWriter], object] | None = None,
) -> Path:
    """Write an LM with random weights.

    `rows` is the number of embeddings, if it is not that of the tokens. `change` may add settings
    to the file.
    """
    vocabulary = vocabulary or byte_level_bpe()
    writer = GGUFWriter(path, architecture)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS // 2)
    writer.add_layer_norm_rms_eps(1e-5)
    if architecture == "gemma2":
        writer.add_key_length(WIDTH // HEADS)
        writer.add_value_length(WIDTH // HEADS)
        writer.add_sliding_window(16)
        writer.add_attn_logit_softcapping(50.0)
        writer.add_final_logit_softcapping(5.0)
    else:
        writer.add_rope_dimension_count(WIDTH // HEADS)
    vocabulary.write(writer)
    if template is not None:
        writer.add_chat_template(template)
    if change:
        change(writer)
    shapes = _shapes(architecture, rows or len(vocabulary.words), is_tied)
    generator = numpy.random.default_rng(0)
    for name, shape in shapes.items():
        scale = 1.0 if name == "token_embd.weight" else 0.3
        drawn = generator.standard_normal(shape) * scale
        weight = numpy.ones(shape) if "norm" in name else drawn
        writer.add_tensor(name, weight.astype(numpy.float32))
    return written(writer, path)


def _shapes(architecture: str, rows: int, is_tied: bool) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (rows, WIDTH)}
    for layer in range(LAYERS):
        parts: dict[str, tuple[int, ...]] = {
            "attn_norm": (WIDTH,),
            "attn_q": (WIDTH, WIDTH),
            "attn_k": (WIDTH // 2, WIDTH),
            "attn_v": (WIDTH // 2, WIDTH),
            "attn_output": (WIDTH, WIDTH),
            "ffn_norm": (WIDTH,),
            "ffn_gate": (HIDDEN, WIDTH),
            "ffn_up": (HIDDEN, WIDTH),
            "ffn_down": (WIDTH, HIDDEN),
        }
        if architecture == "gemma2":
            parts |= {"post_attention_norm": (WIDTH,), "post_ffw_norm": (WIDTH,)}
        shapes |= {f"blk.{layer}.{part}.weight": shape for part, shape in parts.items()}
        if architecture == "qwen2":
            biases = {"attn_q": WIDTH, "attn_k": WIDTH // 2, "attn_v": WIDTH // 2}
            shapes |= {f"blk.{layer}.{part}.bias": (size,) for part, size in biases.items()}
    shapes["output_norm.weight"] = (WIDTH,)
    if not is_tied:
        shapes["output.weight"] = (rows, WIDTH)
    return shapes


def load_random(path: Path, *arguments: Any, **options: Any) -> LlamaCppLM:
    """Write an LM with random weights, and load it as it is."""
    return LlamaCppLM.from_pretrained(str(write_random(path, *arguments, **options)), threads=1)

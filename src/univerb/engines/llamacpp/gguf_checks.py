"""Whether a GGUF file is a causal LM that llama.cpp can load: where it would end the process."""

import math
from collections.abc import Iterator

from univerb.engines.llamacpp.gguf_file import GgufFile
from univerb.errors import ModelError

INPUT, OUTPUT = "token_embd.weight", "output.weight"
"""The two embedding matrices; where they are tied, the file has only the first."""
_OTHER_KINDS = ("clip", "mmproj", "imatrix")
"""Architectures of files that are no LM."""
_RANGES = {
    "block_count": (1, 512),
    "embedding_length": (1, 1 << 20),
    "context_length": (1, 1 << 28),
    "feed_forward_length": (0, 1 << 24),
    "attention.head_count": (0, 1 << 12),
    "attention.head_count_kv": (0, 1 << 12),
    "attention.key_length": (1, 1 << 16),
    "attention.value_length": (1, 1 << 16),
    "attention.layer_norm_rms_epsilon": (0, 1),
    "attention.layer_norm_epsilon": (0, 1),
    "expert_count": (0, 1024),
}
"""Numbers that llama.cpp takes as they are, and what it can bear."""
_F32 = 0
_NO_WEIGHTS = {9, 15, *range(24, 29)}
"""GGML's types of intermediate results, of whole numbers, and double precision."""
_SCALINGS = ("none", "linear", "yarn", "longrope")
"""Types of RoPE scaling."""


def check_language_model(gguf: GgufFile) -> None:
    """Refuse what is no whole causal LM, before llama.cpp opens it."""
    path, kind = str(gguf.path), gguf.text("general.type") or "model"
    architecture = gguf.text("general.architecture")
    if (count := gguf.number("split.count") or 1) > 1:
        raise ModelError(
            f"{path!r} is one of {count} parts. Merge them into one file, with llama.cpp's "
            "llama-gguf-split --merge, and give that."
        )
    if kind != "model" or architecture in _OTHER_KINDS:
        raise ModelError(
            f"{path!r} is of the type {kind[:80]!r}, architecture {architecture[:80]!r}: no "
            "language model. Give the file of the LM itself."
        )
    if INPUT not in gguf.matrices:
        raise ModelError(
            f"{path!r} has no token embeddings. Give the whole model in one GGUF file."
        )
    is_causal = gguf.flag(f"{architecture}.attention.causal", True)
    if not is_causal or gguf.number(f"{architecture}.pooling_type"):
        raise ModelError(
            f"{path!r} is a model for embeddings: it makes a vector of a text and writes none. "
            "Give a causal LM."
        )
    words = gguf.strings("tokenizer.ggml.tokens")
    if twice := len(words) - len(set(words)):
        raise ModelError(f"{path!r} has {twice} of its tokens twice. Get a fresh copy.")
    _check_types(gguf)
    for name, problem in _problems(gguf, f"{architecture}."):
        raise ModelError(f"{path!r} has {name[:80]} {problem}. Get a fresh copy.")


def _check_types(gguf: GgufFile) -> None:
    """Refuse weights in types that llama.cpp cannot multiply or add."""
    for tensor in gguf.tensors:
        is_vector = len(tensor.shape) < 2  # added and multiplied in single precision
        is_table = "tid2eid" in tensor.name  # of some mixtures of experts: whole numbers
        if (is_vector and tensor.kind != _F32) or (tensor.kind in _NO_WEIGHTS and not is_table):
            raise ModelError(
                f"{str(gguf.path)!r} has {tensor.name[:80]} in a type that cannot be computed "
                f"with, number {tensor.kind} of GGML. Get a fresh copy."
            )


def _problems(gguf: GgufFile, prefix: str) -> Iterator[tuple[str, str]]:
    """Yield the numbers of an architecture that cannot be, and what is wrong with them."""
    for name, value in gguf.settings.items():
        if name.startswith(prefix) and isinstance(value, float) and not math.isfinite(value):
            yield name, f"= {value}, which is no number"
    for name, (low, high) in _RANGES.items():
        for value in _numbers(gguf, prefix + name):
            if not low <= value <= high:
                yield name, f"= {str(value)[:20]}; {low} to {high} is allowed"
    yield from _contradictions(gguf, prefix)
    size = _head_size(gguf, prefix)
    for value in _numbers(gguf, f"{prefix}rope.dimension_count"):
        if value % 2 or not 2 <= value <= size:
            yield "rope.dimension_count", f"= {value}; an even number of 2 to {size} is allowed"


def _contradictions(gguf: GgufFile, prefix: str) -> Iterator[tuple[str, str]]:
    """Yield the numbers that do not fit others."""
    experts, groups, layers, width = (
        gguf.number(prefix + name) or 0
        for name in ("expert_count", "expert_group_count", "block_count", "embedding_length")
    )
    used = [*_numbers(gguf, f"{prefix}expert_used_count"), 0]
    if not min(experts, 1) <= max(used) <= experts or min(used) < 0:
        yield "expert_used_count", f"= {max(used)} of {experts} experts"
    chosen = gguf.number(f"{prefix}expert_group_used_count") or 0
    if groups and not (groups < experts and experts % groups == 0 and 0 < chosen < groups):
        yield "expert_group_count", f"= {groups}, {chosen} used, of {experts} experts"
    if not 0 <= (extra := gguf.number(f"{prefix}nextn_predict_layers") or 0) < max(layers, 1):
        yield "nextn_predict_layers", f"= {extra} of {layers} layers"
    # States of another width than the vectors that are fed would be read beyond their end.
    if (gguf.number(f"{prefix}embedding_length_out") or width) != width:
        yield "embedding_length_out", f"other than embedding_length, {width}"
    scaling = gguf.settings.get(f"{prefix}rope.scaling.type")
    if scaling is not None and scaling not in _SCALINGS:
        yield "rope.scaling.type", f"= {str(scaling)[:20]!r}; {', '.join(_SCALINGS)} are known"


def _head_size(gguf: GgufFile, prefix: str) -> int:
    """Return the size of an attention head, of the largest if layers differ."""
    if sizes := _numbers(gguf, f"{prefix}attention.key_length"):
        return int(max(sizes))
    heads = [count for count in _numbers(gguf, f"{prefix}attention.head_count") if count > 0]
    return int((gguf.number(f"{prefix}embedding_length") or 0) // min(heads, default=1))


def _numbers(gguf: GgufFile, name: str) -> list[float]:
    """Return a number of the settings, or one for each layer, as a list."""
    value = gguf.settings.get(name)
    if isinstance(value, int | float):
        return [value]
    numbers: list[float] = gguf.numbers(name).tolist()
    return numbers

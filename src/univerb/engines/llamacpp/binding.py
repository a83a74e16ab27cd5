"""llama.cpp's C interface: the build of llama-cpp-python, or the prebuilt one of xllamacpp.

The first was compiled for this very processor, and declares its structures itself. The second is
a wheel: a Python module whose file also exports llama.cpp's functions. They are called without
importing it, with the declarations below. No version of llama.cpp promises a layout, so it is
checked before anything is computed.
"""

import ctypes
import functools
import importlib.util
import sys
from collections import deque
from contextlib import suppress
from ctypes import POINTER, c_bool, c_float, c_int, c_int8, c_int32, c_size_t, c_uint32, c_void_p
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from univerb.errors import MissingExtra, ModelError
from univerb.threads import brief_spinning

_ERROR = 4
"""llama.cpp's log level of errors."""
_log: deque[str] = deque(maxlen=4)
"""The last errors; nothing is printed."""
_callbacks: list[object] = []
"""llama.cpp calls them as long as the process lives."""
_FITTING = "xllamacpp 2026.10.11549"
"""The version whose layout is declared here; pyproject.toml pins it."""
_PROCESSOR = {"avx2", "fma", "f16c", "bmi2"}
"""What the wheel was compiled for on x86: a processor without it would end the process."""
_SPINS = 1000
"""As fast as the default on an idle machine, up to thirty times as fast on a busy one (0034)."""
_numbers = POINTER(c_int32)


class _ModelSettings(ctypes.Structure):
    """llama_model_params."""

    _fields_ = (
        ("devices", c_void_p),
        ("tensor_buft_overrides", c_void_p),
        ("n_gpu_layers", c_int32),
        ("split_mode", c_int),
        ("load_mode", c_int),
        ("lazy_mode", c_int),
        ("main_gpu", c_int32),
        ("tensor_split", c_void_p),
        ("progress_callback", c_void_p),
        ("progress_callback_user_data", c_void_p),
        ("kv_overrides", c_void_p),
        ("vocab_only", c_bool),
        ("check_tensors", c_bool),
        ("use_extra_bufts", c_bool),
        ("no_host", c_bool),
        ("no_alloc", c_bool),
        ("load_mtp", c_bool),
        # Room for a version that has more fields, until the check refuses it.
        ("spare", c_size_t * 16),
    )


class _ContextSettings(ctypes.Structure):
    """llama_context_params."""

    _fields_ = (
        ("n_ctx", c_uint32),
        ("n_batch", c_uint32),
        ("n_ubatch", c_uint32),
        ("n_seq_max", c_uint32),
        ("n_rs_seq", c_uint32),
        ("n_outputs_max", c_uint32),
        ("n_outputs_max_per_seq", c_uint32),
        ("n_threads", c_int32),
        ("n_threads_batch", c_int32),
        ("ctx_type", c_int),
        ("rope_scaling_type", c_int),
        ("pooling_type", c_int),
        ("attention_type", c_int),
        ("flash_attn_type", c_int),
        ("rope_freq_base", c_float),
        ("rope_freq_scale", c_float),
        ("yarn", c_float * 4),
        ("yarn_orig_ctx", c_uint32),
        ("defrag_thold", c_float),
        ("cb_eval", c_void_p),
        ("cb_eval_user_data", c_void_p),
        ("type_k", c_int),
        ("type_v", c_int),
        ("callbacks", c_void_p * 3),
        ("embeddings", c_bool),
        ("offload_kqv", c_bool),
        ("no_perf", c_bool),
        ("op_offload", c_bool),
        ("swa_full", c_bool),
        ("kv_unified", c_bool),
        ("samplers", c_void_p),
        ("n_samplers", c_size_t),
        ("ctx_other", c_void_p),
        ("spare", c_size_t * 16),
    )


class _Batch(ctypes.Structure):
    """llama_batch."""

    _fields_ = (
        ("n_tokens", c_int32),
        ("token", _numbers),
        ("embd", POINTER(c_float)),
        ("pos", _numbers),
        ("n_seq_id", _numbers),
        ("seq_id", POINTER(_numbers)),
        ("logits", POINTER(c_int8)),
    )


_MODEL_DEFAULTS = {
    "n_gpu_layers": -1,
    "split_mode": 1,
    "load_mode": -1,
    "lazy_mode": 1,
    "main_gpu": 0,
    "kv_overrides": None,
    "vocab_only": False,
    "check_tensors": False,
    "use_extra_bufts": True,
    "no_host": False,
    "no_alloc": False,
}
_CONTEXT_DEFAULTS = {
    "n_ctx": 512,
    "n_batch": 2048,
    "n_ubatch": 512,
    "n_seq_max": 1,
    "n_threads": 4,
    "n_threads_batch": 4,
    "ctx_type": 0,
    "rope_scaling_type": -1,
    "pooling_type": -1,
    "attention_type": -1,
    "flash_attn_type": -1,
    "rope_freq_scale": 0.0,
    "defrag_thold": -1.0,
    "cb_eval": None,
    "type_k": 1,
    "type_v": 1,
    "embeddings": False,
    "offload_kqv": True,
    "no_perf": True,
    "op_offload": True,
    "swa_full": True,
    "kv_unified": False,
    "samplers": None,
    "n_samplers": 0,
    "ctx_other": None,
}
_LogCallback = ctypes.CFUNCTYPE(None, c_int, ctypes.c_char_p, c_void_p)
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    # The result, then the arguments.
    "llama_backend_init": (None,),
    "llama_log_set": (None, _LogCallback, c_void_p),
    "llama_model_default_params": (_ModelSettings,),
    "llama_model_load_from_file": (c_void_p, ctypes.c_char_p, _ModelSettings),
    "llama_model_free": (None, c_void_p),
    "llama_model_n_embd": (c_int32, c_void_p),
    "llama_model_n_ctx_train": (c_int32, c_void_p),
    "llama_model_has_encoder": (c_bool, c_void_p),
    "llama_model_is_recurrent": (c_bool, c_void_p),
    "llama_model_is_hybrid": (c_bool, c_void_p),
    "llama_model_get_vocab": (c_void_p, c_void_p),
    "llama_vocab_n_tokens": (c_int32, c_void_p),
    "llama_context_default_params": (_ContextSettings,),
    "llama_init_from_model": (c_void_p, c_void_p, _ContextSettings),
    "llama_free": (None, c_void_p),
    "llama_set_embeddings": (None, c_void_p, c_bool),
    "llama_batch_init": (_Batch, c_int32, c_int32, c_int32),
    "llama_batch_free": (None, _Batch),
    "llama_decode": (c_int32, c_void_p, _Batch),
    "llama_get_embeddings_ith": (c_void_p, c_void_p, c_int32),
    "llama_get_logits_ith": (c_void_p, c_void_p, c_int32),
    "llama_get_memory": (c_void_p, c_void_p),
    "llama_memory_clear": (None, c_void_p, c_bool),
    "llama_memory_seq_rm": (c_bool, c_void_p, c_int32, c_int32, c_int32),
    "llama_memory_seq_cp": (None, c_void_p, c_int32, c_int32, c_int32, c_int32),
    "llama_state_seq_get_size": (c_size_t, c_void_p, c_int32),
    "llama_state_seq_get_data": (c_size_t, c_void_p, c_void_p, c_size_t, c_int32),
    "llama_state_seq_set_data": (c_size_t, c_void_p, c_void_p, c_size_t, c_int32),
}


def is_installed() -> bool:
    """Whether a package that has llama.cpp is there; neither is imported."""
    return any(map(importlib.util.find_spec, ("llama_cpp", "xllamacpp")))


def installed_version() -> str:
    """Return what computes, by package and version."""
    for package in ("llama-cpp-python", "xllamacpp"):
        with suppress(PackageNotFoundError):
            return f"{package} {version(package)}"
    return ""


@functools.cache
def library() -> Any:  # noqa: ANN401
    """Load llama.cpp, its log silenced.

    Returns:
        Its functions and structures as attributes, as llama-cpp-python names them.

    Raises:
        MissingExtra: If no package has it.
        ModelError: If it cannot be used on this machine.
    """
    with brief_spinning(_SPINS):
        try:
            from llama_cpp import llama_cpp as native
        except ImportError:
            native = _prebuilt()
    callback = native.llama_log_callback(_log_error)
    _callbacks.append(callback)
    native.llama_log_set(callback, None)
    native.llama_backend_init()
    return native


def _log_error(level: int, line: bytes, _: object) -> None:
    if level == _ERROR:
        _log.append(line.decode(errors="replace").strip())


def last_error() -> str:
    """Return llama.cpp's last errors, for our own message, and forget them."""
    reason = "; ".join(_log)[:300] or "it gave no reason"
    _log.clear()
    return reason


def _prebuilt() -> Any:  # noqa: ANN401
    """Load the library of xllamacpp, and give it the names that llama-cpp-python has."""
    package = importlib.util.find_spec("xllamacpp")
    folders = (package and package.submodule_search_locations) or []
    files = [file for folder in folders for file in Path(folder).glob("xllamacpp*.so")]
    if not files:
        if sys.platform == "linux":
            raise MissingExtra("xllamacpp", "llamacpp")
        raise MissingExtra("llama-cpp-python", "llamacpp-native")
    _check_processor()
    try:
        native: Any = ctypes.CDLL(str(files[0]))
    except OSError as error:
        raise ModelError(
            f"llama.cpp cannot be loaded: {error}. Install the system library that it names "
            "(libgomp: apt install libgomp1), or use the torch engine."
        ) from error
    try:
        for name, (result, *arguments) in _SIGNATURES.items():
            function = getattr(native, name)
            function.restype, function.argtypes = result, arguments
    except AttributeError as error:
        raise _unfit(f"it has no {name}") from error
    _check_layout(native)
    native.llama_batch, native.llama_log_callback = _Batch, _LogCallback
    return native


def _check_processor() -> None:
    """Refuse an x86 processor without the instructions that the wheel uses."""
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as lines:
            words = next((set(line.split()) for line in lines if line.startswith("flags")), None)
    except OSError:
        return
    if words and (missing := _PROCESSOR - words):
        raise ModelError(
            f"this processor has no {', '.join(sorted(missing))}, which the prebuilt llama.cpp "
            "needs. Compile it: pip install 'univerb[llamacpp-native]'; or use the torch engine."
        )


def _check_layout(native: Any) -> None:  # noqa: ANN401
    """Compare what the library says of itself with the declarations above."""
    for settings, defaults in (
        (native.llama_model_default_params(), _MODEL_DEFAULTS),
        (native.llama_context_default_params(), _CONTEXT_DEFAULTS),
    ):
        for name, value in defaults.items():
            if getattr(settings, name) != value:
                raise _unfit(f"{name} is {getattr(settings, name)!r}, not {value!r}")
    for width in (0, 4):
        batch = native.llama_batch_init(3, width, 1)
        filled = [name for name, kind in _Batch._fields_[1:] if getattr(batch, name)]
        wanted = ["embd" if width else "token", "pos", "n_seq_id", "seq_id", "logits"]
        if batch.n_tokens or filled != wanted:
            raise _unfit("its batches differ")
        native.llama_batch_free(batch)


def _unfit(reason: str) -> ModelError:
    return ModelError(
        f"the llama.cpp of the installed xllamacpp is laid out otherwise: {reason}. Install "
        f"{_FITTING} (pip install 'univerb[llamacpp]'), or llama-cpp-python."
    )

"""llama.cpp is used only where its functions and structures are what is declared."""

import ctypes
import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

from conftest import make_llama
from tiny_gguf import needs_llamacpp, write_gguf
from univerb.engines.llamacpp import binding
from univerb.engines.llamacpp.binding import library
from univerb.errors import MissingExtra, ModelError
from univerb.threads import brief_spinning

needs_wheel = pytest.mark.skipif(not find_spec("xllamacpp"), reason="no wheel on this platform")


@needs_llamacpp
def test_settings_arrive_where_they_are_meant(tmp_path):
    native = library()
    path = write_gguf(tmp_path / "tiny.gguf", make_llama())
    settings = native.llama_model_default_params()
    settings.n_gpu_layers, settings.check_tensors = 0, True
    model = native.llama_model_load_from_file(str(path).encode(), settings)
    settings = native.llama_context_default_params()
    settings.n_ctx, settings.n_seq_max = 512, 3
    settings.n_batch, settings.n_ubatch = 96, 64
    settings.n_threads, settings.n_threads_batch = 2, 1
    settings.pooling_type, settings.kv_unified = 0, True
    context = native.llama_init_from_model(model, settings)
    file = ctypes.CDLL(native._name) if isinstance(native, ctypes.CDLL) else native
    facts = ("n_ctx", "n_seq_max", "n_batch", "n_ubatch", "n_threads", "n_threads_batch")
    functions = [getattr(file, f"llama_{name}") for name in facts]
    for function in functions:
        function.argtypes = [ctypes.c_void_p]
    assert [function(context) for function in functions] == [512, 3, 96, 64, 2, 1]
    native.llama_free(context)
    native.llama_model_free(model)


@needs_wheel
@pytest.mark.parametrize(
    ("defaults", "field"), [("_MODEL_DEFAULTS", "use_extra_bufts"), ("_CONTEXT_DEFAULTS", "type_k")]
)
def test_another_layout_is_refused(monkeypatch, defaults, field):
    monkeypatch.setitem(getattr(binding, defaults), field, 7)
    with pytest.raises(ModelError, match=rf"{field} is .*, not 7\. Install xllamacpp 20"):
        binding._prebuilt()


@needs_wheel
def test_other_batches_are_refused(monkeypatch):
    class Turned(ctypes.Structure):
        first, second, third, *others = binding._Batch._fields_
        _fields_ = (first, third, second, *others)

    monkeypatch.setitem(binding._SIGNATURES, "llama_batch_init", (Turned, *[ctypes.c_int32] * 3))
    with pytest.raises(ModelError, match="its batches differ"):
        binding._prebuilt()


@needs_wheel
def test_a_library_without_a_function_is_refused(monkeypatch):
    monkeypatch.setitem(binding._SIGNATURES, "llama_that_never_was", (None,))
    with pytest.raises(ModelError, match="it has no llama_that_never_was"):
        binding._prebuilt()


@needs_wheel
def test_an_old_processor_is_told_to_compile(monkeypatch):
    monkeypatch.setattr(binding, "_PROCESSOR", {"avx2", "avx9000"})
    if not binding.Path("/proc/cpuinfo").read_text().count("\nflags"):
        pytest.skip("not an x86 Linux")
    with pytest.raises(ModelError, match=r"has no avx9000.*llamacpp-native"):
        binding._prebuilt()


@needs_wheel
def test_a_missing_system_library_is_named(monkeypatch, tmp_path):
    (tmp_path / "xllamacpp").mkdir()
    (tmp_path / "xllamacpp" / "__init__.py").touch()
    (tmp_path / "xllamacpp" / "xllamacpp.abi3.so").write_bytes(b"no library")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModelError, match=r"cannot be loaded.*libgomp1"):
        binding._prebuilt()


@pytest.mark.parametrize(
    ("platform", "extra"), [("linux", "llamacpp"), ("darwin", "llamacpp-native")]
)
def test_without_a_package_the_right_one_is_named(monkeypatch, platform, extra):
    monkeypatch.setattr(binding.importlib.util, "find_spec", lambda _: None)
    monkeypatch.setattr(sys, "platform", platform)
    assert not binding.is_installed()
    with pytest.raises(MissingExtra) as caught:
        binding._prebuilt()
    assert caught.value.extra == extra


def test_threads_spin_briefly_unless_the_user_says_otherwise(monkeypatch):
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.delenv(name, raising=False)
    with brief_spinning(1000):
        assert os.environ["GOMP_SPINCOUNT"] == "1000"
    assert "GOMP_SPINCOUNT" not in os.environ
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    with brief_spinning(1000):
        assert "GOMP_SPINCOUNT" not in os.environ


@needs_wheel
def test_the_wheels_own_module_is_not_imported():
    code = "import sys; from univerb.engines.llamacpp.binding import _prebuilt; _prebuilt(); "
    code += "assert 'xllamacpp' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=900)

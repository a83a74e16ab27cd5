"""The llama.cpp session: what transformers computes, however rows are read, kept and forgotten."""

import gc
import subprocess
import sys
import threading
import weakref

import numpy
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig, LlamaForCausalLM

from conftest import TEXT, data_directory, make_llama, make_tokenizer
from tiny_gguf import load_tiny, needs_llamacpp
from univerb.config import GenerationConfig
from univerb.decoding.loop import generate, stream
from univerb.engines.base import PhraseRow
from univerb.engines.llamacpp import native as llama_native
from univerb.engines.llamacpp import session as llamacpp
from univerb.engines.llamacpp.binding import library
from univerb.engines.llamacpp.lm import LlamaCppLM
from univerb.engines.llamacpp.session import Aborted, LlamaCppEngine, LlamaCppSession
from univerb.errors import ModelError, OptionError
from univerb.locations import default_gguf, is_converted
from univerb.modeling.dynamic import DynamicLM
from univerb.phrase import Document, Phrase

pytestmark = needs_llamacpp


@pytest.fixture(scope="module", autouse=True)
def _exact_caches():
    """Let KV caches be single precision, so that results can be compared to four digits."""
    native = library()
    plain = native.llama_context_default_params

    def exact():
        settings = plain()
        settings.type_k = settings.type_v = settings.flash_attn_type = 0
        return settings

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "llama_context_default_params", exact)
        yield


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return load_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def model():
    return make_llama()


def expected(model, ids):
    """What transformers makes of ids: the last state and its logits."""
    with torch.inference_mode():
        hidden = model.base_model(torch.tensor([ids])).last_hidden_state[0, -1]
        return hidden.numpy(), model.lm_head(hidden).numpy()


def check(model, output, ids):
    hidden, logits = expected(model, ids)
    assert numpy.allclose(output.hidden[-1], hidden, atol=1e-4)
    assert numpy.allclose(output.logits[-1], logits, atol=1e-4)


def test_a_prompt_and_steps_give_what_transformers_gives(tiny, model):
    session = LlamaCppSession(tiny, needs_states=True)
    (output,) = session.prefill([[5, 9, 17]])
    assert output.hidden.shape == (1, 32)
    assert output.logits.shape == (1, 320)
    check(model, output, [5, 9, 17])
    (output,) = session.step([[1, 2]])
    check(model, output, [5, 9, 17, 1, 2])
    hidden, logits = expected(model, [5, 9, 17, 1])
    assert numpy.allclose(output.hidden[0], hidden, atol=1e-4)
    assert numpy.allclose(output.logits[0], logits, atol=1e-4)


tokens = st.integers(1, 319)
prompts = st.lists(st.lists(tokens, min_size=1, max_size=9), min_size=1, max_size=4)


@settings(max_examples=30)
@given(prompts, st.data())
def test_a_batch_is_its_sequences_alone(tiny, model, prompts, data):
    """Prompts and steps of different lengths, rows taken back, sequences dropped and forked."""
    session = LlamaCppSession(tiny, needs_states=True)
    texts = [list(prompt) for prompt in prompts]
    for output, text in zip(session.prefill(prompts), texts, strict=True):
        check(model, output, text)
    for _ in range(2):
        few = st.lists(tokens, min_size=1, max_size=4)
        rows = data.draw(st.lists(few, min_size=len(texts), max_size=len(texts)))
        outputs = session.step(rows)
        for output, text, own in zip(outputs, texts, rows, strict=True):
            assert len(output.logits) == len(output.hidden) == len(own)
            check(model, output, text + own)
        back = [data.draw(st.integers(0, len(own))) for own in rows]
        session.rewind(back)
        texts = [
            text + own[: len(own) - count]
            for text, own, count in zip(texts, rows, back, strict=True)
        ]
        chosen = data.draw(st.lists(st.integers(0, len(texts) - 1), min_size=1, max_size=5))
        session.select(chosen)
        texts = [list(texts[index]) for index in chosen]


def test_forks_go_their_own_ways(tiny, model):
    session = LlamaCppSession(tiny, needs_states=True)
    session.prefill([[5, 9], [7, 8, 4]])
    session.select([1, 0, 1])
    outputs = session.step([[11], [12], [13]])
    for output, ids in zip(outputs, ([7, 8, 4, 11], [5, 9, 12], [7, 8, 4, 13]), strict=True):
        check(model, output, ids)


def test_a_cache_that_is_full_grows_and_keeps_what_it_has(tiny, model, monkeypatch):
    monkeypatch.setattr(llama_native, "_MIN_CELLS", 8)
    monkeypatch.setattr(llamacpp, "_SPARE_CELLS", 1)
    monkeypatch.setattr(tiny.native, "_idle", [])
    session = LlamaCppSession(tiny, needs_states=True)
    texts = [[5, 9, 17], [4, 4, 8, 2]]
    session.prefill(texts)
    first = session._context
    for token in range(20, 300, 14):
        outputs = session.step([[token, token + 1], [token + 2]])
        texts = [texts[0] + [token, token + 1], texts[1] + [token + 2]]
        for output, text in zip(outputs, texts, strict=True):
            check(model, output, text)
    assert session._context is not first
    assert session._context.cells >= sum(map(len, texts))


def test_more_rows_than_a_pass_takes_are_read_in_several(tiny, model):
    session = LlamaCppSession(tiny, needs_states=True)
    session.prefill([[5]])
    ids = [i % 300 + 1 for i in range(300)]
    (output,) = session.step([ids])
    assert len(output.logits) == 300
    check(model, output, [5, *ids])


@pytest.mark.parametrize("rows", [Kind.F32, Kind.F16, Kind.Q8_0])
def test_a_phrase_row_with_a_tokens_vector_is_that_token_to_the_last_bit(tmp_path, rows):
    lm = load_tiny(tmp_path, rows=rows)
    by_token, by_vector = (LlamaCppSession(lm, needs_states=True) for _ in range(2))
    for session in (by_token, by_vector):
        session.prefill([[5, 9, 17], [3, 4]])
    vectors = [PhraseRow(vector, 1) for vector in lm.input_rows([21, 30])]
    plain = by_token.step([[21, 8], [30]])
    mixed = by_vector.step([[vectors[0], 8], [vectors[1]]])
    for one, other in zip(plain, mixed, strict=True):
        assert numpy.array_equal(one.hidden, other.hidden)
        assert numpy.array_equal(one.logits, other.logits)


def wide(vocab_size=320):
    """A Llama as wide as a block of the K types."""
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=256,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=4,
        max_position_embeddings=128,
        bos_token_id=0,
        eos_token_id=0,
        tie_word_embeddings=False,
        initializer_range=0.3,
    )
    return LlamaForCausalLM(config).eval()


@pytest.mark.parametrize(
    "rows", [Kind.F32, Kind.F16, Kind.BF16, Kind.Q8_0, Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1,
             Kind.Q4_K, Kind.Q6_K]
)  # fmt: skip
def test_phrase_logits_are_on_the_scale_of_token_logits(tmp_path, rows):
    lm = load_tiny(tmp_path, wide(), rows)
    session = LlamaCppSession(lm, needs_states=True)
    (output,) = session.prefill([[5, 9, 17, 30, 2, 8]])
    own = output.hidden @ lm.gguf.rows(lm.output_name, slice(None)).T
    assert numpy.abs(own - output.logits).max() < 2e-3 * numpy.abs(output.logits).max()


def test_without_phrases_nobody_computes_states(tiny, model):
    session = LlamaCppSession(tiny, needs_states=False)
    (output,) = session.prefill([[5, 9, 17]])
    assert output.hidden.shape == (1, 0)
    (output,) = session.step([[4]])
    assert output.hidden.shape == (1, 0)
    assert numpy.allclose(output.logits[-1], expected(model, [5, 9, 17, 4])[1], atol=1e-4)


def test_outputs_stay_when_the_session_goes_on(tiny):
    session = LlamaCppSession(tiny, needs_states=True)
    (first,) = session.prefill([[5, 9, 17]])
    before = first.logits.copy()
    session.step([[4]])
    assert numpy.array_equal(first.logits, before)


def test_an_aborted_session_raises_and_the_model_stays_usable(tiny, model):
    session = LlamaCppSession(tiny, needs_states=True)
    session.prefill([[5, 9]])
    thread = threading.Thread(target=session.abort)
    thread.start()
    thread.join()
    with pytest.raises(Aborted, match="aborted"):
        session.step([[4]])
    (output,) = LlamaCppSession(tiny, needs_states=True).prefill([[5, 9, 17]])
    check(model, output, [5, 9, 17])


@pytest.mark.parametrize("stop", [KeyboardInterrupt, "abort"])
def test_a_long_prompt_can_be_stopped_between_its_pieces(tiny, model, monkeypatch, stop):
    session = LlamaCppSession(tiny, needs_states=True)
    read, calls = llama_native.Context.read, []

    def stopping(self, *rows):
        calls.append(rows)
        if len(calls) == 3:
            if stop == "abort":
                session.abort()
            else:
                raise stop
        return read(self, *rows)

    with monkeypatch.context() as patch:
        patch.setattr(llama_native.Context, "read", stopping)
        with pytest.raises(Aborted if stop == "abort" else stop):
            session.prefill([[i % 300 + 1 for i in range(400)]])
    assert len(calls) == 3
    if stop != "abort":
        (output,) = session.prefill([[5, 9, 17]])
        check(model, output, [5, 9, 17])


def test_a_failed_step_leaves_the_session_as_it_was(tiny, model, monkeypatch):
    session = LlamaCppSession(tiny, needs_states=True)
    session.prefill([[5, 9], [3]])
    with monkeypatch.context() as patch:
        patch.setattr(llama_native.Context, "read", lambda *_: 1)
        with pytest.raises(ModelError, match=r"failed at 3 rows.*code 1"):
            session.step([[1, 2], [4]])
    outputs = session.step([[17], [8, 6]])
    for output, ids in zip(outputs, ([5, 9, 17], [3, 8, 6]), strict=True):
        check(model, output, ids)


def test_contexts_are_used_again_and_freed_with_the_model(tmp_path, monkeypatch):
    lm = load_tiny(tmp_path)
    freed = []
    native = library()
    for name in ("llama_free", "llama_model_free"):
        own = getattr(native, name)
        monkeypatch.setattr(
            native, name, lambda handle, own=own, name=name: (freed.append(name), own(handle))
        )
    session = LlamaCppSession(lm, needs_states=True)
    session.prefill([[5, 9]])
    context = weakref.ref(session._context)
    del session
    again = LlamaCppSession(lm, needs_states=False)
    again.prefill([[5]])
    assert again._context is context()
    alive = weakref.ref(lm)
    del again, lm
    gc.collect()
    assert alive() is None
    assert context() is None
    assert "llama_free" in freed


@pytest.mark.parametrize("mode", ["verify", "unfold", "atomic"])
def test_text_is_what_torch_writes(tiny, mode):
    """Both engines, the same phrases: the same choices, since only the last digits differ."""
    reference = DynamicLM.from_pretrained(tiny.name)
    texts = []
    for lm in (tiny, reference):
        vocabulary = lm.vocabulary([Document(TEXT, "lease.txt")])
        made = generate(lm, "The tenant", vocabulary, max_tokens=24, mode=mode, positions="unit")
        texts.append((made.text, made.stats.steps))
    assert texts[0] == texts[1]


def test_phrases_may_come_while_a_text_is_written(tiny):
    vocabulary = tiny.vocabulary()
    pieces = []
    for piece in stream(tiny, "The tenant", vocabulary, max_tokens=16, ignore_eos=True,
                        phrase_bias=50.0):  # fmt: skip
        pieces.append(piece)
        if len(pieces) == 2:
            vocabulary.add(tiny.vocabulary([Document(TEXT, "lease.txt")]))
    assert not any(piece.is_phrase for piece in pieces[:2])
    assert any(piece.is_phrase for piece in pieces[2:])


def test_phrases_that_were_written_count_for_penalties_when_none_is_left(tiny):
    vocabulary = tiny.vocabulary(
        [Phrase((5, 6, 7, 8, 9, 10), "x"), Phrase((15, 16, 17, 18, 19, 20), "y")]
    )
    text = generate(tiny, "The tenant", vocabulary, max_tokens=8, phrase_bias=80.0,
                    mode="atomic", repetition_penalty=1.2, ignore_eos=True)  # fmt: skip
    assert text.stats.phrase_tokens == 6
    assert sum(len(piece.ids) for piece in text.pieces) == 8


def test_positions_by_base_token_are_refused(tiny):
    with pytest.raises(OptionError, match="Use 'unit'"):
        how = GenerationConfig(positions="token").resolved(tiny.profile)
        LlamaCppEngine(tiny).session(how, has_phrases=True)


def test_too_many_sequences_are_refused(tiny):
    with pytest.raises(ModelError, match="sequences at once"):
        LlamaCppSession(tiny, needs_states=False).prefill([[1]] * 300)


WITHOUT_TORCH = """
import sys
import numpy
from univerb.decoding.loop import generate
from univerb.engines.llamacpp.binding import library
from univerb.engines.llamacpp.lm import LlamaCppLM
from univerb.phrase import Document

name, file, stored, text = sys.argv[1:]
lm = LlamaCppLM.from_pretrained(name, gguf=file, threads=1)
vocabulary = lm.vocabulary([Document(text, "lease.txt")])
keys = [phrase.ids for phrase in vocabulary.snapshot().phrases]


class Stored:
    fingerprint = lm.fingerprint()

    def check_encoder(self, fingerprint):
        assert fingerprint == self.fingerprint

    def vectors(self, wanted):
        rows = [keys.index(key) for key in wanted]
        sides = numpy.load(stored)
        return numpy.arange(len(rows)), sides["inputs"][rows], sides["outputs"][rows]


lm.attach(Stored())
for mode in ("atomic", "unfold"):
    made = generate(lm, "The tenant", vocabulary, max_tokens=9, mode=mode, phrase_bias=9.0)
    assert made.stats.phrases > 0, made
generate(lm, "The tenant", max_tokens=4, temperature=0.7, top_p=0.9)
assert not {"torch", "transformers"} & {*sys.modules}
"""


def test_with_vectors_from_a_store_torch_is_never_imported(tiny, tmp_path):
    phrases = tiny.vocabulary([Document(TEXT, "lease.txt")]).snapshot().phrases
    numpy.savez(tmp_path / "stored.npz", **tiny.run_encoder(phrases)._asdict())
    given = [tiny.name, str(tiny.gguf.path), str(tmp_path / "stored.npz"), TEXT]
    subprocess.run([sys.executable, "-c", WITHOUT_TORCH, *given], check=True, timeout=900)


@pytest.mark.slow
@pytest.mark.default_model
def test_the_default_model_agrees_with_torch_on_real_prompts(default_lm):
    """Most first choices are torch's; all weights are the same, and only rounding differs."""
    if default_gguf() is None or not is_converted():
        pytest.skip("needs the default model")
    lm = LlamaCppLM.from_pretrained(threads=1)
    figures = agreement(lm, default_lm, real_prompts(lm, 20))
    assert figures["agreement"] >= 0.9
    assert figures["best_logit_difference"] < 0.5
    assert figures["scale_difference"] < 0.02


def real_prompts(lm, count):
    """The first 32 tokens of some paragraphs of WikiText-103 test."""
    file = data_directory() / "wikitext103" / "wiki.test.tokens"
    lines = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
    texts = (lm.tokenizer.encode(line).ids[:32] for line in lines if line and line[0] != "=")
    found = [ids for ids in texts if len(ids) == 32]
    return found[:: max(1, len(found) // count)][:count]


def agreement(lm, torch_lm, prompts):
    """Compare token logits after each prompt with torch's, and with our own products."""
    found, best, scale = [], [], []
    rows = lm.gguf.rows(lm.output_name, slice(None))
    for prompt in prompts:
        with torch.inference_mode():
            wanted = torch_lm.model(torch.tensor([prompt])).logits[0, -1].numpy()
        (output,) = LlamaCppSession(lm, needs_states=True).prefill([prompt])
        logits = output.logits[-1]
        top = int(wanted.argmax())
        found.append(int(logits.argmax()) == top)
        best.append(abs(float(logits[top] - wanted[top])))
        scale.append(float(numpy.abs(rows @ output.hidden[-1] - logits).max()))
    return {
        "agreement": sum(found) / len(found),
        "best_logit_difference": sum(best) / len(best),
        "scale_difference": max(scale),
    }


def test_the_tiny_tokenizer_is_the_files(tiny):
    words = sorted(make_tokenizer().get_vocab().items(), key=lambda item: item[1])
    assert tiny.gguf.strings("tokenizer.ggml.tokens") == [word.encode() for word, _ in words]


def test_a_finalizer_in_the_middle_of_anything_waits_for_no_lock(tiny):
    native = tiny.native
    context = native.acquire(64, 1)
    with native._lock:  # the garbage collector runs in the thread that has it
        native.release(context)
    again = native.acquire(64, 1)
    assert again is context
    native.release(again)


def test_what_was_loaded_offline_stays_offline(tmp_path, monkeypatch):
    load_tiny(tmp_path)
    lm = LlamaCppLM.from_pretrained(
        str(tmp_path / "encoder"), gguf=tmp_path / "tiny.gguf", threads=1, offline=True
    )
    asked = []
    from_pretrained = DynamicLM.from_pretrained

    def watched(name, **options):
        asked.append(options["offline"])
        return from_pretrained(name, **options)

    monkeypatch.setattr(DynamicLM, "from_pretrained", watched)
    lm._numpy_encoder = None  # one that only torch computes
    lm.run_encoder([Phrase((5, 6), "x")])
    assert asked == [True]

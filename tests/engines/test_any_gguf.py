"""Any GGUF file as an LM, without an encoder and without torch; damaged ones give typed errors."""

import math
import struct
import subprocess
import sys

import numpy
import pytest

import univerb
from conftest import TEXT, make_llama, saved_encoder
from tiny_gguf import load_random, needs_llamacpp, write_gguf, write_random
from tiny_vocabularies import byte_level_bpe, character_bpe, sentence_piece
from univerb.corpus import open_corpus
from univerb.corpus.build import build_corpus
from univerb.decoding.loop import batch, generate, stream
from univerb.engines.llamacpp.lm import LlamaCppLM
from univerb.errors import CheckpointError, CorpusError, ModelError, OptionError, PromptError
from univerb.locations import default_gguf
from univerb.phrase import Document

pytestmark = needs_llamacpp

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
    "{% endfor %}{{ '<|im_start|>assistant\n' }}"
)
KINDS = {
    "llama-bpe": ("llama", byte_level_bpe(pre="llama-bpe"), False),
    "llama-tied": ("llama", byte_level_bpe(pre="smollm"), True),
    "llama-spm": ("llama", sentence_piece(), False),
    "qwen2": ("qwen2", byte_level_bpe(pre="qwen2"), True),
    "gemma2": ("gemma2", sentence_piece(add_space_prefix=False), True),
    "gemma-characters": ("gemma2", character_bpe(), True),
}


@pytest.fixture(scope="module", params=KINDS)
def lm(request, tmp_path_factory):
    architecture, vocabulary, is_tied = KINDS[request.param]
    path = tmp_path_factory.mktemp("any") / "any.gguf"
    return load_random(path, architecture, vocabulary, is_tied=is_tied, template=TEMPLATE)


def test_all_that_it_needs_is_in_the_file(lm):
    tokenizer = lm.tokenizer
    assert lm.engine == "llamacpp"
    assert not lm.has_encoder
    assert not lm.is_trained
    assert lm.static_size == len(tokenizer.words)
    assert lm.context_size == 512
    assert lm.eos_ids == {i for i in tokenizer.end_ids}
    assert 2 in lm.eos_ids
    assert lm.head_bias() == 0.0
    assert not lm.scoring.is_conditional
    assert (lm.profile.mode, lm.profile.tolerance, lm.profile.phrase_bias) == ("unfold", 0.9, 0.0)
    assert lm.encoder_config.trained_steps == 0


def test_the_same_file_has_the_same_fingerprint_and_another_one_another(lm, tmp_path):
    again = LlamaCppLM.from_pretrained(lm.name, threads=1)
    assert again.fingerprint() == lm.fingerprint()
    other = load_random(tmp_path / "other.gguf", "llama", byte_level_bpe(pre="mpt"))
    assert other.fingerprint() != lm.fingerprint()


def test_plain_text_is_the_best_token_at_each_step(lm):
    ids = lm.tokenizer.encode_prompt("The tenant shall")
    result = generate(lm, "The tenant shall", max_tokens=12, ignore_eos=True)
    written = [token for piece in result.pieces for token in piece.ids]
    assert len(written) == 12
    for at, token in enumerate(written[:4]):
        context = lm.native.acquire(512, 1)
        rows = [*ids, *written[:at]]
        assert context.read(rows, range(len(rows)), [0] * len(rows), True) == 0
        assert int(context.logits([len(rows) - 1])[0].argmax()) == token
        lm.native.release(context)
    streamed = "".join(
        p.text for p in stream(lm, "The tenant shall", max_tokens=12, ignore_eos=True)
    )
    assert streamed == result.text
    both = batch(lm, ["The tenant shall", "No"], max_tokens=12, ignore_eos=True)
    assert both[0].text == result.text


def test_a_prompt_begins_as_the_file_says(lm):
    begin = lm.tokenizer.begin_ids
    assert lm.tokenizer.encode_prompt("The") == [*begin, *lm.tokenizer.encode("The").ids]


def test_messages_are_written_in_the_files_own_template(lm):
    assert lm.has_chat_template
    ids = lm.chat_prompt("Hello", "Be brief.")
    text = lm.tokenizer.decode(ids)
    assert "Be brief." in text
    assert text.endswith("assistant\n")
    if "<|im_start|>" in lm.tokenizer.words:
        assert ids.count(lm.tokenizer.words.index("<|im_end|>")) == 2
    assert generate(lm, ids, max_tokens=2).stats.steps >= 1


def test_phrases_of_documents_need_no_vectors(lm):
    vocabulary = lm.vocabulary([Document(TEXT, "lease.txt")], max_phrases=40)
    assert len(vocabulary) == 40
    for phrase in vocabulary.snapshot().phrases:
        for span in phrase.sources:
            assert TEXT[span.start : span.end] == phrase.text.removeprefix(" ")
    with pytest.raises(CheckpointError, match=r"has no phrase encoder.*unfold.*univerb train"):
        lm.run_encoder(vocabulary.snapshot().phrases)


def test_verify_writes_the_plain_text(lm):
    vocabulary = lm.vocabulary([Document(TEXT, "lease.txt")])
    for prompt in ("The tenant shall", "The landlord", "rent on the first day of each", "2013"):
        options = {"max_tokens": 24, "ignore_eos": True}
        plain = generate(lm, prompt, **options)
        checked = generate(lm, prompt, vocabulary, mode="verify", **options)
        assert checked.text == plain.text
        assert generate(lm, prompt, vocabulary, tolerance=0.0, **options).text == plain.text
        assert generate(lm, prompt, vocabulary, **options).text


def test_atomic_says_that_it_needs_an_encoder(lm):
    with pytest.raises(OptionError, match=r"'atomic'.*none\. Use 'unfold' or 'verify'"):
        generate(lm, "The tenant", mode="atomic")


def test_a_file_without_a_template_says_so(tmp_path):
    lm = load_random(tmp_path / "plain.gguf")
    assert not lm.has_chat_template
    with pytest.raises(PromptError, match="has no chat template"):
        lm.chat_prompt("Hello")


def test_a_corpus_is_used_without_its_vectors(tmp_path):
    """Its phrases are, as long as its tokenizer is the LM's."""
    reference = univerb.load(str(saved_encoder(tmp_path)), engine="torch")
    build_corpus(tmp_path / "lease.uv", [Document(TEXT, "lease.txt")], reference)
    lm = univerb.load(str(write_gguf(tmp_path / "tiny.gguf", make_llama())), threads=1)
    corpus = open_corpus(tmp_path / "lease.uv")
    assert corpus.has_vectors
    lm.attach(corpus)
    expected = len(corpus.vocabulary(reference, "the tenant and the rent"))
    assert len(corpus.vocabulary(lm, "the tenant and the rent")) == expected > 0
    other = load_random(tmp_path / "other.gguf")
    with pytest.raises(CorpusError, match="another tokenizer"):
        corpus.vocabulary(other, "the tenant and the rent")
    corpus.close()


def test_load_chooses_the_engine_by_the_file(tmp_path):
    path = write_random(tmp_path / "model.gguf")
    nameless = write_random(tmp_path / "model.bin")
    for name in (str(path), path, str(nameless)):
        lm = univerb.load(name, threads=1)
        assert isinstance(lm, LlamaCppLM)
    assert univerb.load(str(path), engine="llamacpp", threads=1).fingerprint()
    with pytest.raises(OptionError, match=r"model\.gguf' is a GGUF file, which only the llamacpp"):
        univerb.load(str(path), engine="torch")
    with pytest.raises(OptionError, match="Leave out gguf"):
        univerb.load(str(path), gguf=str(path))
    with pytest.raises(OptionError, match="are for the torch engine"):
        univerb.load(str(path), dtype="float16")
    with pytest.raises(ModelError, match="there is no file"):
        univerb.load(str(tmp_path / "nowhere.gguf"))


def test_the_command_line_takes_a_file_as_the_model(run, tmp_path, lease_file):
    path = write_random(tmp_path / "model.gguf", template=TEMPLATE)
    ran = run("generate", "The tenant", "--model", path, "--max-tokens", 3, "--json", "--chat")
    assert ran.code == 0, ran.err
    assert 1 <= len(ran.json["pieces"]) <= 3
    assert "untrained" not in ran.err
    ran = run("phrases", lease_file, "--model", path, "--json")
    assert ran.code == 0, ran.err
    assert ran.json["total"] > 10
    ran = run("generate", "The tenant", "--model", path, "--engine", "torch")
    assert ran.code == 1
    assert "is a GGUF file" in ran.err
    ran = run("generate", "The tenant", "--model", path, "--docs", lease_file, "--mode", "atomic")
    assert ran.code == 1
    assert "atomic" in ran.err


ALONE = """
import sys, univerb
from univerb.documents.read import read_documents
lm = univerb.load(sys.argv[1], threads=1)
vocabulary = lm.vocabulary(read_documents(sys.argv[2]))
print(len(vocabulary), lm.chat_prompt("Hello")[:1])
from univerb.decoding.loop import generate
print(generate(lm, "The tenant", max_tokens=3).text)
heavy = {"torch", "transformers"} & sys.modules.keys()
assert not heavy, heavy
"""


def test_neither_torch_nor_transformers_is_imported(tmp_path, lease_file):
    path = write_random(tmp_path / "model.gguf", template=TEMPLATE)
    code = [sys.executable, "-c", ALONE, str(path), str(lease_file)]
    ran = subprocess.run(code, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr


def damaged(content: bytes, old: bytes, new: bytes) -> bytes:
    assert content.count(old) >= 1 and len(old) == len(new)
    return content.replace(old, new)


def number(key: str, value: int) -> bytes:
    """Spell a setting as the file does."""
    raw = key.encode()
    return struct.pack(f"<Q{len(raw)}sII", len(raw), raw, 4, value)


@pytest.mark.parametrize(
    ("key", "value", "wrong"),
    [
        ("llama.block_count", 2, 0),
        ("llama.block_count", 2, 3),
        ("llama.block_count", 2, 0xFFFFFFFF),
        ("llama.embedding_length", 32, 0),
        ("llama.embedding_length", 32, 0x7FFFFFFF),
        ("llama.embedding_length", 32, 33),
        ("llama.attention.head_count", 4, 0),
        ("llama.attention.head_count", 4, 5),
        ("llama.attention.head_count", 4, 0xFFFFFFFF),
        ("llama.attention.head_count_kv", 2, 0),
        ("llama.attention.head_count_kv", 2, 3),
        ("llama.attention.head_count_kv", 2, 0xFFFFFFFF),
        ("llama.feed_forward_length", 64, 0xFFFFFFFF),
        ("llama.context_length", 512, 0),
        ("llama.context_length", 512, 0xFFFFFFFF),
        ("llama.rope.dimension_count", 8, 0xFFFFFFFF),
        ("llama.rope.dimension_count", 8, 9),
        ("llama.rope.dimension_count", 8, 7),
        ("llama.rope.dimension_count", 8, 0),
    ],
)
def test_wrong_numbers_are_typed_errors(tmp_path, key, value, wrong):
    content = write_random(tmp_path / "model.gguf").read_bytes()
    path = tmp_path / "wrong.gguf"
    path.write_bytes(damaged(content, number(key, value), number(key, wrong)))
    with pytest.raises(ModelError, match=r"wrong\.gguf"):
        univerb.load(str(path), threads=1)


def with_text(key, value):
    return lambda writer: writer.add_string(key, value)


BAD_FILES = {
    "pre-tokenizer 'martian'.*Allowed: a.x-4.0": {"vocabulary": byte_level_bpe(pre="martian")},
    "tokenizer 'bert'.*Allowed: gemma4, gpt2": {
        "vocabulary": byte_level_bpe()._replace(kind="bert")
    },
    "tokenizer 'no_vocab'": {"vocabulary": byte_level_bpe()._replace(kind="no_vocab")},
    "tokenizer 't5'": {"vocabulary": sentence_piece()._replace(kind="t5")},
    "has no tokenizer": {"vocabulary": byte_level_bpe()._replace(words=[]), "rows": 900},
    "has 1 of its tokens twice": {
        "vocabulary": byte_level_bpe()._replace(words=[*byte_level_bpe().words[:-1], "a"])
    },
    "token_type has 3 numbers": {"vocabulary": byte_level_bpe()._replace(types=[1, 1, 1])},
    "cannot be used": {"vocabulary": byte_level_bpe()._replace(merges=["never seen"])},
    "scores has 2 numbers": {"vocabulary": sentence_piece()._replace(scores=[0.0, 1.0])},
    "tokens, but embeddings of 400": {"rows": 400},
    "cannot load": {"rows": 2000},
    "unknown model architecture|unknown arch": {"architecture": "martian"},
    "is one of 3 parts": {"change": lambda writer: writer.add_uint16("split.count", 3)},
    "type 'mmproj', architecture 'llama': no language model": {
        "change": with_text("general.type", "mmproj")
    },
    "is a model for embeddings": {
        "change": lambda writer: writer.add_uint32("llama.pooling_type", 1)
    },
    "it makes a vector of a text": {
        "change": lambda writer: writer.add_bool("llama.attention.causal", False)
    },
    "type 'adapter'": {"change": with_text("general.type", "adapter")},
    "rope.freq_base = nan": {"change": lambda writer: writer.add_rope_freq_base(math.nan)},
}


@pytest.mark.parametrize("problem", BAD_FILES)
def test_a_file_that_is_no_usable_lm_is_a_typed_error(tmp_path, problem):
    path = write_random(tmp_path / "bad.gguf", **{"architecture": "llama", **BAD_FILES[problem]})
    with pytest.raises(ModelError, match=f"(?s){problem}"):
        univerb.load(str(path), threads=1)


def test_a_file_that_is_cut_anywhere_is_a_typed_error(tmp_path):
    content = write_random(tmp_path / "model.gguf").read_bytes()
    path = tmp_path / "cut.gguf"
    for share in (0, 3, 4, 30, 1000, len(content) // 3, len(content) - 100):
        path.write_bytes(content[:share])
        with pytest.raises(ModelError, match=r"cut\.gguf' is no complete GGUF file"):
            univerb.load(str(path), threads=1)


def test_a_folder_is_no_file(tmp_path):
    folder = tmp_path / "folder.gguf"
    folder.mkdir()
    with pytest.raises(CheckpointError, match="is no encoder.*the GGUF file itself"):
        univerb.load(str(folder), engine="llamacpp")
    with pytest.raises(ModelError, match="folder"):
        univerb.load(str(folder))
    with pytest.raises(ModelError, match="is a folder. Give the GGUF file in it"):
        univerb.load(engine="llamacpp", gguf=str(folder))


def test_numbers_that_are_not_finite_are_refused(tmp_path):
    path = write_random(tmp_path / "model.gguf")
    content = bytearray(path.read_bytes())
    content[-64:] = numpy.full(16, numpy.nan, numpy.float32).tobytes()
    path.write_bytes(content)
    with pytest.raises(ModelError, match=r"model\.gguf"):
        univerb.load(str(path), threads=1)


@pytest.mark.default_model
def test_the_default_models_file_alone_writes_what_torch_writes(default_lm):
    lm = univerb.load(str(default_gguf()), threads=1)
    prompt = lm.chat_prompt("Name three colours of the rainbow.")
    assert prompt == default_lm.chat_prompt("Name three colours of the rainbow.")
    ours, theirs = (generate(each, prompt, max_tokens=8).text for each in (lm, default_lm))
    assert ours == theirs


def test_a_corpus_with_vectors_needs_an_encoder_and_says_so_first(lm, tmp_path, run):
    documents = [Document(TEXT, "lease.txt")]
    with pytest.raises(OptionError, match=r"a phrase encoder, on torch; .*--no-vectors"):
        build_corpus(tmp_path / "corpus.uv", documents, lm)
    (tmp_path / "lease.txt").write_text(TEXT)
    given = [tmp_path / "lease.txt", "--model", lm.name, "-o", tmp_path / "corpus.uv"]
    ran = run("index", *given)
    assert ran.code == 1 and "--no-vectors" in ran.err
    ran = run("index", *given, "--no-vectors")
    assert ran.code == 0, ran.err
    ran = run("calibrate", tmp_path / "corpus.uv", tmp_path / "lease.txt", "--model", lm.name)
    assert ran.code == 1 and "has no phrase encoder" in ran.err


def test_a_file_that_is_given_is_used_whether_or_not_there_is_an_encoder(tmp_path):
    gone = str(tmp_path / "gone.gguf")
    with pytest.raises(ModelError, match="gone.gguf"):
        univerb.load(engine="llamacpp", encoder=False, gguf=gone)

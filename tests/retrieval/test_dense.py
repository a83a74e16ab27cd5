"""Vectors of tiny real encoders: pooling, order, disk, threads, and wrong folders."""

import json
import math
import re
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy
import pytest
import torch
from model2vec import StaticModel
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertModel,
    DPRConfig,
    DPRContextEncoder,
    DPRQuestionEncoder,
    PreTrainedTokenizerFast,
)

from univerb.errors import MissingExtra, ModelError
from univerb.retrieval.base import Method
from univerb.retrieval.dense import Dense, Static, VectorIndex

WORDS = ["tenant", "landlord", "rent", "notice", "premises", "shall", "pay", "give", "month"]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
TEXTS = [
    "tenant shall pay rent",
    "landlord shall give notice",
    "premises",
    "rent rent rent month",
    "",
    "tenant shall pay rent",
]
SIZES = {
    "vocab_size": len(SPECIAL) + len(WORDS),
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 16,
}


def rust_tokenizer() -> Tokenizer:
    vocabulary = {token: i for i, token in enumerate([*SPECIAL, *WORDS])}
    rust = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    rust.pre_tokenizer = pre_tokenizers.Whitespace()
    return rust


def saved(folder: Path, model: torch.nn.Module) -> Path:
    rust = rust_tokenizer()
    rust.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    model.save_pretrained(folder)
    PreTrainedTokenizerFast(
        tokenizer_object=rust, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]"
    ).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    model = BertModel(BertConfig(**SIZES, initializer_range=0.5))
    return saved(tmp_path_factory.mktemp("models") / "tiny bert", model)


@pytest.fixture(scope="module")
def static(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "static"
    vectors = numpy.random.default_rng(0).normal(size=(SIZES["vocab_size"], 16))
    model = StaticModel(vectors.astype(numpy.float32), rust_tokenizer(), {})
    model.save_pretrained(folder)
    return folder


@pytest.fixture(params=["bert", "static"])
def method(request: pytest.FixtureRequest) -> Method:
    folder = request.getfixturevalue(request.param)
    return Dense(folder) if request.param == "bert" else Static(folder)


def test_vectors_have_length_one(method: Method):
    vectors = method.features(TEXTS)["vectors"]
    assert vectors.dtype == numpy.float32
    lengths = numpy.linalg.norm(vectors, axis=1)
    # The static vectors know no word of an empty text; it is zero instead of undefined.
    assert all(math.isclose(one, 1, rel_tol=1e-5) or one == 0 for one in lengths.tolist())
    assert lengths[0] > 0


def test_rank_orders_by_inner_product_with_ties_by_number(method: Method):
    vectors = method.features(TEXTS)["vectors"]
    query = method.features([TEXTS[3]])["vectors"][0]
    ranked = method.index([{"vectors": vectors}]).rank(TEXTS[3], 99)
    expected = vectors[[i for i, _ in ranked]] @ query
    numpy.testing.assert_allclose([s for _, s in ranked], expected, atol=1e-6)
    assert [score for _, score in ranked] == sorted((s for _, s in ranked), reverse=True)
    assert sorted(number for number, _ in ranked) == list(range(len(TEXTS)))
    assert ranked[0][0] == 3


def test_sharding_changes_no_ranking(method: Method):
    whole = method.index([method.features(TEXTS)])
    parts = method.index([method.features(part) for part in (TEXTS[:1], [], TEXTS[1:])])
    for query in TEXTS[:4]:
        left, right = whole.rank(query, 4), parts.rank(query, 4)
        assert [number for number, _ in left] == [number for number, _ in right]
        numpy.testing.assert_allclose([s for _, s in left], [s for _, s in right], atol=1e-6)


def test_saved_index_ranks_the_same(method: Method, tmp_path: Path):
    index = method.index([method.features(TEXTS)])
    index.save(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["vectors.npy"]
    assert method.load(tmp_path, len(TEXTS)).rank("pay rent", 3) == index.rank("pay rent", 3)


def test_no_texts_no_query_no_k(method: Method, tmp_path: Path):
    empty = method.index([method.features([])])
    empty.save(tmp_path)
    assert empty.rank("rent", 3) == method.load(tmp_path, 0).rank("rent", 3) == []
    assert method.index([]).rank("rent", 3) == []
    index = method.index([method.features(TEXTS)])
    assert index.rank(" \n", 3) == index.rank("rent", 0) == []


@pytest.mark.parametrize("width", [2, 384])
def test_ties_at_the_border_go_to_lower_numbers(width: int):
    rows = numpy.random.default_rng(0).random((2, width), dtype=numpy.float32)
    vectors = numpy.tile(rows[:1], (3001, 1))
    vectors[7] = 2 * rows[0]
    index = VectorIndex(vectors, lambda _: rows[1:])
    for k in (1, 2, 5, 500, 3001):
        expected = [7, *(i for i in range(3001) if i != 7)][:k]
        assert [number for number, _ in index.rank("any", k)] == expected


def test_threads_share_an_index(method: Method, tmp_path: Path):
    method.index([method.features(TEXTS * 20)]).save(tmp_path)
    queries = [f"{a} {b}" for a in WORDS for b in WORDS]
    expected = [method.load(tmp_path, 20 * len(TEXTS)).rank(query, 5) for query in queries]
    index = method.load(tmp_path, 20 * len(TEXTS))
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda query: index.rank(query, 5), queries)) == expected


def test_mean_and_first_token_are_what_the_model_says(bert: Path, tmp_path: Path):
    model = BertModel.from_pretrained(bert).eval()
    with torch.no_grad():
        states = model(torch.tensor([[2, 4, 9, 10, 6, 3]])).last_hidden_state[0]
    # As sentence-transformers write it.
    folder = shutil.copytree(bert, tmp_path / "st")
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_cls_token": True}))
    for encoder, vector in ((bert, states.mean(0)), (folder, states[0])):
        # Padded by a longer text beside it, which must not matter.
        found = Dense(encoder).features([TEXTS[0], " ".join(WORDS)])["vectors"][0]
        numpy.testing.assert_allclose(found, (vector / vector.norm()).numpy(), atol=1e-5)


@pytest.mark.parametrize("kind", [DPRContextEncoder, DPRQuestionEncoder])
def test_dpr_folders_use_their_own_weights_and_pooler(kind, tmp_path: Path):
    torch.manual_seed(1)
    model = kind(DPRConfig(**SIZES, projection_dim=8, initializer_range=0.5)).eval()
    folder = saved(tmp_path / "dpr", model)
    with torch.no_grad():
        vector = model(torch.tensor([[2, 8, 3]])).pooler_output[0]
    found = Dense(folder).features(["premises"])["vectors"]
    assert found.shape == (1, 8)
    numpy.testing.assert_allclose(found[0], (vector / vector.norm()).numpy(), atol=1e-5)


def test_long_texts_are_cut_at_the_models_context(bert: Path):
    found = Dense(bert).features(["rent " * 500, "rent " * 14])["vectors"]
    numpy.testing.assert_allclose(found[0], found[1], atol=1e-6)


def test_names_have_the_folder(bert: Path, static: Path):
    assert Dense(bert).name == f"dense:{bert.resolve()}"
    assert Static(f"{static}/../{static.name}").name == f"static:{static.resolve()}"


@pytest.mark.parametrize("make", [Dense, Static])
def test_wrong_folders(make, tmp_path: Path):
    with pytest.raises(ModelError, match="is no folder"):
        make(tmp_path / "none").features(["a"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError, match="cannot be read|no readable config"):
        make(tmp_path / "empty").features(["a"])


def test_weights_that_are_not_there_are_no_random_vectors(bert: Path, tmp_path: Path):
    from safetensors.torch import load_file, save_file

    folder = shutil.copytree(bert, tmp_path / "broken")
    tensors = load_file(folder / "model.safetensors")
    tensors.pop("encoder.layer.1.output.dense.weight")
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match="no weights for 'encoder.layer.1"):
        Dense(folder).features(["a"])


def test_an_index_of_another_model(bert: Path, static: Path, tmp_path: Path):
    method = Static(static)
    method.index([method.features(TEXTS)]).save(tmp_path)
    with pytest.raises(ModelError, match="Build the index again"):
        Dense(bert).load(tmp_path, len(TEXTS)).rank("rent", 1)


def test_missing_package_names_its_extra(static: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "model2vec", None)
    with pytest.raises(MissingExtra, match=re.escape("univerb[dense]")):
        Static(static.parent).features(["rent"])

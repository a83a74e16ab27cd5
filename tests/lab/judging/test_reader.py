"""The reader against the enumeration of every span, window by window, with plain passes."""

import itertools
import math

import pytest
import tokenizers
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers, processors, trainers
from transformers import (
    BertForQuestionAnswering,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaForQuestionAnswering,
)

from conftest import TEXT, make_tokenizer
from tiny_nli import FILLERS, make_bert_config, make_classifier, make_pair_tokenizer
from univerb.errors import ModelError, ModelMissing, OptionError
from univerb.lab.judging.reader import MAX_ANSWER, Reader, best_span, load_reader

LENGTH = 64
LEASE = TEXT.replace(".", "").replace(",", "")
SPECIAL = ["<s>", "<pad>", "</s>"]


def make_bert():
    torch.manual_seed(0)
    return BertForQuestionAnswering(make_bert_config(0.4)).eval(), make_pair_tokenizer()


def make_roberta():
    """Byte-level BPE, so that a word is several tokens, and two separators between the parts."""
    rust = tokenizers.Tokenizer(models.BPE())
    rust.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    rust.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=290,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    rust.train_from_iterator([TEXT], trainer)
    rust.post_processor = processors.RobertaProcessing(
        ("</s>", 2), ("<s>", 0), trim_offsets=True, add_prefix_space=False
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=rust,
        cls_token="<s>",
        bos_token="<s>",
        pad_token="<pad>",
        sep_token="</s>",
        eos_token="</s>",
        model_max_length=LENGTH,
        model_input_names=["input_ids", "attention_mask"],
    )
    torch.manual_seed(0)
    config = RobertaConfig(
        vocab_size=290,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        # Two rows are before the first position.
        max_position_embeddings=LENGTH + 2,
        type_vocab_size=1,
        pad_token_id=1,
        initializer_range=0.4,
    )
    return RobertaForQuestionAnswering(config).eval(), tokenizer


READERS = {"bert": make_bert(), "roberta": make_roberta()}


def slow_span(start, end, is_text):
    """Every pair of places, with the softmax written out; returns place, score and null score."""
    allowed = [0, *(i for i, own in enumerate(is_text) if own)]
    begins, ends = ({i: math.exp(side[i]) for i in allowed} for side in (start, end))
    whole = sum(begins.values()) * sum(ends.values())
    best = (0, 0, 0.0)
    for i, j in itertools.product(allowed[1:], repeat=2):
        if i <= j < i + MAX_ANSWER and begins[i] * ends[j] / whole > best[2]:
            best = (i, j, begins[i] * ends[j] / whole)
    return *best, begins[0] * ends[0] / whole


def slow_answer(model, tokenizer, question, text):
    """One question alone, its windows cut by hand; texts of words and single spaces only."""
    part = LENGTH // 3
    asked = tokenizer(question, add_special_tokens=False)["input_ids"][:part]
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    ids, offsets = encoded["input_ids"], encoded["offset_mapping"]
    cls, sep = tokenizer.cls_token_id, tokenizer.sep_token_id
    between = [sep, sep] if isinstance(model, RobertaForQuestionAnswering) else [sep]
    room = LENGTH - len(asked) - len(between) - 2
    best, none, begin = (0.0, ""), 1.0, 0
    while True:
        own = ids[begin : begin + room]
        before = [cls, *asked, *between]
        row = torch.tensor([[*before, *own, sep]])
        more = {}
        if isinstance(model, BertForQuestionAnswering):
            kinds = [0] * len(before) + [1] * (len(own) + 1)
            more["token_type_ids"] = torch.tensor([kinds])
        with torch.no_grad():
            output = model(input_ids=row, **more)
        is_text = [False] * len(before) + [True] * len(own) + [False]
        start, end = output.start_logits[0].tolist(), output.end_logits[0].tolist()
        first, last, score, null = slow_span(start, end, is_text)
        none = min(none, null)
        if score > best[0]:
            places = [begin + place - len(before) for place in (first, last)]
            seen = offsets[begin : begin + room]
            best = (score, words_around(text, seen, *(offsets[place] for place in places)))
        if begin + room >= len(ids):
            return best[1] if best[0] >= none else ""
        begin += room - part


def words_around(text, seen, first, last):
    """The words of two tokens and all between, as far as the window shows them."""

    def word_of(offset):
        return text[: offset[1]].count(" ")

    begin = min(own[0] for own in seen if word_of(own) == word_of(first))
    end = max(own[1] for own in seen if word_of(own) == word_of(last))
    return text[begin:end]


# The search for spans

LOGITS = st.lists(
    st.tuples(st.floats(-6, 6, width=32), st.floats(-6, 6, width=32), st.booleans()),
    min_size=1,
    max_size=40,
)


@settings(max_examples=100)
@given(LOGITS)
def test_the_best_span_is_what_trying_all_finds(rows):
    rows[0] = (*rows[0][:2], False)
    start, end, is_text = (list(column) for column in zip(*rows, strict=True))
    found = best_span(torch.tensor(start), torch.tensor(end), torch.tensor(is_text))
    first, last, score, none = slow_span(start, end, is_text)
    assert found.none == pytest.approx(none, rel=1e-4)
    assert found.score == pytest.approx(score, rel=1e-4)
    # Another one only if it is as likely.
    there = math.exp(start[found.start] + end[found.end])
    assert there == pytest.approx(math.exp(start[first] + end[last]), rel=1e-4)
    assert found.start <= found.end < found.start + MAX_ANSWER
    assert is_text[found.start] and is_text[found.end] or found[:3] == (0, 0, 0.0)


def test_an_answer_is_15_tokens_long_at_most():
    start, end = torch.zeros(40), torch.zeros(40)
    start[5] = end[20] = 9.0
    is_text = torch.arange(40) > 2
    assert best_span(start, end, is_text).end != 20
    end[19] = 8.0
    found = best_span(start, end, is_text)
    assert (found.start, found.end) == (5, 19)


# Answers


def texts_of(words):
    """Texts of one window and of several, and none at all."""
    sizes = [0, 1, 3, 8, 20, 30, 45, 60, 100, 150]
    return [
        " ".join(words[(seed * 7 + i * (seed + 1)) % len(words)] for i in range(size))
        for seed, size in enumerate(sizes)
    ]


@pytest.mark.parametrize("kind", READERS)
def test_answers_are_those_of_one_question_at_a_time(kind):
    model, tokenizer = READERS[kind]
    words = FILLERS if kind == "bert" else LEASE.split()
    questions = [
        (question, text)
        for text in texts_of(words)
        for question in (words[2], " ".join(words[5:12]), " ".join(words * 2))
    ]
    expected = [slow_answer(model, tokenizer, *own) for own in questions]
    reader = Reader(model, tokenizer, "tiny")
    assert reader.answers(questions) == expected
    assert "" in expected, "no question without an answer"
    assert len(set(expected)) > 8
    shuffled = questions[::-1]
    assert reader.answers(shuffled) == expected[::-1]
    assert reader.answers([]) == []


def test_answers_are_whole_words():
    model, tokenizer = READERS["roberta"]
    texts = [" ".join(LEASE.split()[begin : begin + 6]) for begin in range(30)]
    found = Reader(model, tokenizer, "tiny").answers([("who", text) for text in texts])
    assert any(found)
    for answer, text in zip(found, texts, strict=True):
        assert f" {answer} " in f" {text} " or answer == ""
    assert len(tokenizer(texts[0])["input_ids"]) > 2 * len(texts[0].split())


@pytest.mark.parametrize("kind", READERS)
@pytest.mark.parametrize("text", ["", " ", "\n\n"])
def test_a_text_without_words_has_no_answer(kind, text):
    assert [own.strip() for own in Reader(*READERS[kind], "tiny").answers([("w1", text)])] == [""]


# Who reads


@pytest.mark.parametrize("kind", READERS)
def test_a_folder_is_read_as_the_model_in_it(tmp_path, kind):
    model, tokenizer = READERS[kind]
    model.save_pretrained(tmp_path / "reader")
    tokenizer.save_pretrained(tmp_path / "reader")
    reader = load_reader(str(tmp_path / "reader"))
    assert reader.name == "reader"
    questions = [("w1 tenant", text) for text in texts_of(["w3", "w4", "the", "rent"])]
    assert reader.answers(questions) == Reader(model, tokenizer, "x").answers(questions)


def test_a_reader_that_is_not_here_is_refused():
    with pytest.raises(ModelMissing, match="not in the Hub's cache, and offline is set"):
        load_reader(offline=True)


def test_other_models_are_refused(tmp_path):
    model, tokenizer = READERS["bert"]
    make_classifier().save_pretrained(tmp_path / "classifier")
    tokenizer.save_pretrained(tmp_path / "classifier")
    with pytest.raises(ModelError, match=r"lack qa_outputs.*extractive question-answering model"):
        load_reader(str(tmp_path / "classifier"))
    with pytest.raises(ModelError, match="puts no .CLS. token first"):
        Reader(model, make_tokenizer(), "tiny")
    with pytest.raises(ModelMissing, match="there is no folder"):
        load_reader(str(tmp_path / "nowhere"))
    with pytest.raises(OptionError, match="dtype is 'int4'"):
        load_reader(str(tmp_path / "classifier"), dtype="int4")

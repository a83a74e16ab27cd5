"""A world of pairs in which a word of the hypothesis tells the label, and tiny models for it."""

import gzip
import json
import random
from pathlib import Path

import tokenizers
import torch
from tokenizers import models, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
)

LABELS = ("entailment", "neutral", "contradiction")
WORDS = {"entailment": "yes", "neutral": "maybe", "contradiction": "no"}
FILLERS = [f"w{n}" for n in range(40)]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
POSITIONS = 64


def make_pair_tokenizer() -> PreTrainedTokenizerFast:
    """Words as tokens; [CLS] premise [SEP] hypothesis [SEP]."""
    names = [*SPECIAL, *WORDS.values(), *FILLERS]
    rust = tokenizers.Tokenizer(
        models.WordLevel({name: i for i, name in enumerate(names)}, unk_token="[UNK]")
    )
    rust.pre_tokenizer = pre_tokenizers.Whitespace()
    rust.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=rust,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        model_max_length=POSITIONS,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )


def make_bert_config(initializer_range: float = 0.2, **more: object) -> BertConfig:
    return BertConfig(
        vocab_size=len(SPECIAL) + len(WORDS) + len(FILLERS),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=POSITIONS,
        initializer_range=initializer_range,
        **more,
    )


def make_classifier(labels: tuple[str, ...] = LABELS, seed: int = 0):
    torch.manual_seed(seed)
    names = dict(enumerate(labels))
    config = make_bert_config(id2label=names, label2id={v: k for k, v in names.items()})
    return BertForSequenceClassification(config).eval()


def save_base(folder: Path) -> Path:
    """Save a model without a classifier, as all-MiniLM-L6-v2 is."""
    torch.manual_seed(0)
    BertModel(make_bert_config(0.1)).save_pretrained(folder)
    make_pair_tokenizer().save_pretrained(folder)
    return folder


def make_t5(marks_words: bool) -> tuple[T5ForConditionalGeneration, PreTrainedTokenizerFast]:
    """A text-to-text model over characters; `marks_words`: each word begins with a mark."""
    letters = ["<pad>", "</s>", "<unk>", "▁", *"0123456789abcdefghijklmnopqrstuvwxyz:"]
    rust = tokenizers.Tokenizer(
        models.BPE({letter: i for i, letter in enumerate(letters)}, [], unk_token="<unk>")
    )
    rust.pre_tokenizer = pre_tokenizers.Metaspace(
        prepend_scheme="always" if marks_words else "never"
    )
    rust.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 1)]
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=rust, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    )
    torch.manual_seed(0)
    config = T5Config(
        vocab_size=len(letters),
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=2,
        num_heads=4,
        decoder_start_token_id=0,
        initializer_factor=3.0,
    )
    return T5ForConditionalGeneration(config).eval(), tokenizer


def write_nli(folder: Path, snli: int = 96, documents: int = 20) -> Path:
    """Write the files of the data folder, all of them."""
    draw = random.Random(0)

    def text(count: int) -> str:
        return " ".join(draw.choices(FILLERS, k=count))

    folder.mkdir(parents=True, exist_ok=True)
    for name in ("train", "test"):
        with gzip.open(folder / f"snli_{name}.tsv.gz", "wt") as file:
            for _ in range(snli):
                label = draw.choice(LABELS)
                premise = text(draw.randint(2, 12))
                file.write(f"{label}\t{premise}\t{WORDS[label]} {text(draw.randint(1, 4))}\n")
    for name in ("oracle_chunks_claim_dev", "oracle_chunks_claim_test", "claim_test"):
        rows = []
        for number in range(documents):
            # Three chunks of each claim, as in the published file.
            label = ("supported", "partially_supported", "not_supported", "supported")[number % 4]
            word = "yes" if label == "supported" else draw.choice(["maybe", "no"])
            claim = f"{word} {text(3)}"
            evidence = ["(meta data) TITLE: w1", text(90 if name == "claim_test" else 20)]
            row = {"label": label, "claim": claim, "evidence": evidence, "meta": {"id": number}}
            rows += [row] * 3
        _write_rows(folder / f"wice_{name}.jsonl.gz", rows)
    for name in ("val", "test"):
        rows = []
        for number in range(documents):
            is_entailed = number % 3 != 0
            claim = {
                "claim_string": f"{'yes' if is_entailed else 'no'} {text(3)} [1] [2].",
                "evidence": [f"[{n}] https://example.org/{n}\n\n{text(8)}" for n in (1, 2)],
                "support": "Complete" if is_entailed else ("Partial", "Incomplete")[number % 2],
            }
            rows.append({"answers": {"gpt4": {"claims": [claim]}}})
        _write_rows(folder / f"expertqa_rand_{name}.jsonl.gz", rows)
    return folder


def _write_rows(path: Path, rows: list[dict[str, object]]) -> None:
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)

"""Texts, pieces and sources as version 0.1 wrote them (`escape=0`), on tiny models.

`golden.json` was recorded with 0.1 before its code was taken apart. Since then texts and ends have
stayed; of a phrase that is cut only whole words are named, and drafts are others, so passes are
fewer. To record a change that is meant: `python tests/invariants/test_golden.py` rewrites it with
the code as it is.
"""

import json
import sys
import tempfile
from pathlib import Path

import pytest

RECORD = Path(__file__).with_name("golden.json")
sys.path.append(str(Path(__file__).parents[1]))

from conftest import MAKERS, TEXT, make_tokenizer, stir  # noqa: E402
from tiny_gguf import load_tiny, needs_llamacpp  # noqa: E402
from univerb.config import EncoderConfig  # noqa: E402
from univerb.decoding.growth import RealTime  # noqa: E402
from univerb.decoding.loop import batch, generate  # noqa: E402
from univerb.modeling.dynamic import DynamicLM  # noqa: E402
from univerb.phrase import Document  # noqa: E402
from univerb.phrases.collection import collect_phrases  # noqa: E402
from univerb.phrases.guards import PAPER_GUARDS  # noqa: E402
from univerb.phrases.ngrams import ngrams  # noqa: E402

PROMPTS = ("The tenant shall", "the landlord", "Rent on the first day", "notice")
OPTIONS = (
    {"mode": "atomic"},
    {"mode": "unfold"},
    {"mode": "verify"},
    {"mode": "atomic", "temperature": 0.8, "top_p": 0.9, "seed": 7, "phrase_bias": 3.0},
    {"mode": "unfold", "temperature": 0.7, "top_k": 40, "seed": 3, "repetition_penalty": 1.2},
    {"mode": "unfold", "tolerance": 1.0, "phrase_bias": 4.0, "ban": ["rent"]},
    {"mode": "verify", "temperature": 1.0, "top_p": 0.95, "seed": 11},
    {"mode": "atomic", "phrase_bias": 6.0, "overshoot": "allow", "segment": True},
    {"mode": "unfold", "phrase_bias": 8.0, "drafts": False, "stop": ["x", "."]},
)
TORCH_ONLY = ({"mode": "atomic", "phrase_bias": 6.0, "positions": "token"},)


def record(generation):
    pieces = [
        [piece.text, list(piece.ids), [[s.document, s.start, s.end] for s in piece.sources]]
        for piece in generation.pieces
    ]
    return {"finish": generation.finish_reason, "steps": generation.stats.steps, "pieces": pieces}


def records(lm, options):
    """Every prompt with every option, a batch with four vocabularies, and one that grows."""
    # As version 0.1 found them, glue included.
    source, document = ngrams(guards=PAPER_GUARDS), Document(TEXT, "lease.txt")
    lease = collect_phrases([document], lm.tokenizer, source)
    for given in options:
        for prompt in PROMPTS:
            key = f"{prompt} {json.dumps(given, sort_keys=True)}"
            yield key, record(generate(lm, prompt, lm.vocabulary(lease), max_tokens=24, **given))
    vocabularies = [lm.vocabulary(lease), None, lm.vocabulary(["good repair"]), lm.vocabulary()]
    given = {"max_tokens": 16, "temperature": 0.6, "phrase_bias": 6.0}
    together = batch(lm, PROMPTS, vocabularies, seeds=[1, 2, 3, 4], **given)
    yield from ((f"batch {n}", record(one)) for n, one in enumerate(together))
    growth = RealTime(list(vocabularies[0]), seed=0)
    grown = generate(lm, PROMPTS[0], lm.vocabulary(), max_tokens=40, growth=growth, phrase_bias=6.0)
    yield "growth", record(grown)


def torch_model(name):
    backbone, heads = name.split("-")
    lm = DynamicLM.wrap(MAKERS[backbone](), make_tokenizer(), EncoderConfig(heads=heads))
    return stir(lm, scale=0.3)


@pytest.mark.parametrize("name", ["gpt2-split", "gpt2-tied", "llama-split", "llama-tied"])
def test_torch_writes_what_it_wrote(name):
    expected = json.loads(RECORD.read_text())[name]
    assert dict(records(torch_model(name), OPTIONS + TORCH_ONLY)) == expected


@needs_llamacpp
def test_llamacpp_writes_what_it_wrote(tmp_path):
    expected = json.loads(RECORD.read_text())["llamacpp"]
    assert dict(records(load_tiny(tmp_path), OPTIONS)) == expected


if __name__ == "__main__":
    names = ("gpt2-split", "gpt2-tied", "llama-split", "llama-tied")
    made = {name: dict(records(torch_model(name), OPTIONS + TORCH_ONLY)) for name in names}
    with tempfile.TemporaryDirectory() as folder:
        made["llamacpp"] = dict(records(load_tiny(Path(folder)), OPTIONS))
    RECORD.write_text(json.dumps(made, indent=0, sort_keys=True, ensure_ascii=False) + "\n")

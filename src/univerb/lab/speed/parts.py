"""Parts of univerb timed by themselves: a step by vocabulary size, encoding, and a corpus."""

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch

from univerb.corpus import Corpus, open_corpus
from univerb.decoding.loop import batch
from univerb.documents.read import read_documents
from univerb.errors import DocumentError
from univerb.lab.speed.corpus import time_corpus
from univerb.lab.speed.systems import SINGLE
from univerb.lab.speed.timing import (
    Figure,
    Progress,
    SpeedReport,
    SpeedTable,
    environment,
    interleaved,
    ratio,
)
from univerb.lab.speed.workloads import demo_documents
from univerb.modeling.dynamic import DynamicLM
from univerb.modeling.phrase_model import PhraseModel
from univerb.phrase import Phrase
from univerb.vocabulary import DynamicVocabulary

SIZES = (1_000, 10_000, 65_000, 1_000_000)
TOKENS = 48
PROMPT = 32
BATCH = 8
ENCODED = 10_000
NEVER_CHOSEN: dict[str, Any] = {"phrase_bias": -1000.0, "drafts": False}
"""Phrases are scored, and neither chosen nor drafted: every step writes one token."""
TIMED = {
    "head": "prefill and decoding; retrieval and encoding are outside",
    "encoding": "the encoder's passes alone",
    "corpus": "building: all of it, encoding included; requests: retrieval, and vectors",
}
NOTE = "Systems take turns; ratios are taken within a round: median (quartiles)."


def time_part(
    lm: PhraseModel,
    part: str,
    paths: Sequence[str],
    corpus: Path | None,
    rounds: int,
    progress: Progress | None = None,
) -> SpeedReport:
    """Time one part of univerb.

    Args:
        lm: The model, with either engine.
        part: `head`, `encoding` or `corpus`.
        paths: Files or folders with text; none for the demo's.
        corpus: `head` takes its phrases and their vectors from here; `corpus` builds none.
        rounds: Rounds that count, or queries.
        progress: Called as the work goes on.

    Returns:
        The report.
    """
    documents = list(read_documents(*paths)) if paths else demo_documents()
    texts = [lm.tokenizer.encode(document.text).ids for document in documents]
    prompts = [
        list(ids[at : at + PROMPT]) for ids in texts for at in range(0, len(ids) - PROMPT, PROMPT)
    ]
    if len(prompts) < BATCH:
        raise DocumentError(f"the text has {len(prompts)} prompts of {PROMPT} tokens; give more.")
    if part == "head":
        phrases = _stored(lm, open_corpus(corpus)) if corpus else list(lm.vocabulary(documents))
        tables = time_head(lm, phrases, prompts, rounds, progress)
    elif part == "encoding":
        phrases = list(lm.vocabulary(documents))[:ENCODED]
        tables = time_encoding(lm, phrases, rounds, progress)
    else:
        # From all over the text.
        some = prompts[:: max(len(prompts) // (rounds + 1), 1)][: rounds + 1]
        queries = [lm.tokenizer.decode(ids) for ids in some]
        tables = time_corpus(lm, documents, queries, corpus, progress)
    about = {
        "model": Path(lm.name).name,
        "engine": lm.engine,
        "data": f"{len(documents)} documents, {sum(map(len, texts)):,} tokens",
        "precision": SINGLE if isinstance(lm, DynamicLM) else "that of the GGUF file",
        "seed": "none: greedy decoding",
        "timed": TIMED[part],
        **environment(torch.get_num_threads()),
    }
    return SpeedReport(about, tables, [NOTE])


def _stored(lm: PhraseModel, corpus: Corpus) -> list[Phrase]:
    """Return at most a million phrases of a corpus, whose vectors it has."""
    lm.attach(corpus)
    numbers = corpus.phrases.numbers
    some = numbers[:: max(len(numbers) // SIZES[-1], 1)]
    return [Phrase(ids, " x") for ids in corpus.phrases.ids(some)]


def time_head(
    lm: PhraseModel,
    phrases: Sequence[Phrase],
    prompts: Sequence[list[int]],
    rounds: int,
    progress: Progress | None = None,
) -> list[SpeedTable]:
    """Time a step by vocabulary size, and see what the short-list of `atomic` changes.

    Args:
        lm: The model, with either engine.
        phrases: Vocabularies of each size up to their number are made of them.
        prompts: The first is timed, the first eight as a batch, all are used for the choices.
        rounds: Rounds that count.
        progress: Called after each round.

    Returns:
        Times per step, and the number of greedy choices that differ.
    """
    sizes = sorted({min(size, len(phrases)) for size in SIZES})
    vocabularies = {
        size: DynamicVocabulary(lm.static_size, phrases[:: len(phrases) // size][:size])
        for size in sizes
    }
    for vocabulary in vocabularies.values():
        lm.encode(vocabulary)
    precision: dict[str, Any] = {"dtype": SINGLE} if isinstance(lm, DynamicLM) else {}

    def ours(count: int, size: int, **options: Any) -> Callable[[], object]:  # noqa: ANN401
        options |= NEVER_CHOSEN | precision | {"max_tokens": TOKENS, "ignore_eos": True}
        return lambda: batch(lm, prompts[:count], vocabularies.get(size), **options)

    systems: dict[str, Callable[[], object]] = {"univerb, P = 0": ours(1, 0)}
    for size in sizes:
        for name, is_exact in {"all phrases": True, "short-list": False}.items():
            row = f"atomic, P = {size:,}, {name}"
            systems[row] = ours(1, size, mode="atomic", exact=is_exact)
        systems[f"unfold, P = {size:,}"] = ours(1, size, mode="unfold")
    systems[f"unfold, P = {sizes[0]:,}, batch of {BATCH}"] = ours(BATCH, sizes[0], mode="unfold")
    if isinstance(lm, DynamicLM):
        systems["HF generate"] = _hf_generate(lm, prompts[:1])
        systems[f"HF generate, batch of {BATCH}"] = _hf_generate(lm, prompts[:BATCH])
    seconds = interleaved(systems, rounds, progress)
    reference = seconds["univerb, P = 0"]
    rows: list[tuple[Figure, ...]] = [
        (name, round(1000 * median(times) / TOKENS, 2), ratio(times, reference))
        for name, times in seconds.items()
    ]
    about = f"{TOKENS} tokens after {PROMPT}, {rounds} rounds; phrases are scored and never chosen"
    return [
        SpeedTable("head", about, ("system", "ms / step", "x P = 0"), rows),
        _choices(lm, vocabularies[sizes[-1]], prompts, precision),
    ]


def _hf_generate(lm: DynamicLM, prompts: Sequence[list[int]]) -> Callable[[], object]:
    ids = torch.tensor(prompts)
    length = {"max_new_tokens": TOKENS, "min_new_tokens": TOKENS}
    mask = torch.ones_like(ids)
    return lambda: lm.model.generate(ids, attention_mask=mask, do_sample=False, **length)


def _choices(
    lm: PhraseModel,
    vocabulary: DynamicVocabulary,
    prompts: Sequence[list[int]],
    precision: dict[str, Any],
) -> SpeedTable:
    """Compare the first unit after each prompt, with the short-list and without."""
    options: dict[str, Any] = precision | {"mode": "atomic", "max_tokens": 1}
    options |= {"overshoot": "allow", "ignore_eos": True}
    exact, listed = (
        [made.pieces[0] for made in batch(lm, prompts, vocabulary, exact=is_exact, **options)]
        for is_exact in (True, False)
    )
    differ = sum(one.ids != other.ids for one, other in zip(exact, listed, strict=True))
    return SpeedTable(
        "short-list",
        f"greedy choices of `atomic` after prompts, P = {len(vocabulary):,}",
        ("choices", "phrases among them", "different with the short-list"),
        [(str(len(exact)), sum(unit.is_phrase for unit in exact), differ)],
    )


def time_encoding(
    lm: PhraseModel, phrases: Sequence[Phrase], rounds: int, progress: Progress | None = None
) -> list[SpeedTable]:
    """Time encoding all phrases together, where prefixes share a pass, and length by length."""
    lengths = sorted({len(phrase) for phrase in phrases})
    groups = [[phrase for phrase in phrases if len(phrase) == length] for length in lengths]

    def by_length() -> None:
        # No phrase is a prefix of another of its length, and none needs padding.
        for group in groups:
            lm.run_encoder(group)

    systems = {"shared prefixes": lambda: lm.run_encoder(phrases), "by length": by_length}
    seconds = interleaved(systems, rounds, progress)
    rows: list[tuple[Figure, ...]] = [
        (name, round(len(phrases) / median(times)), ratio(times, seconds["shared prefixes"]))
        for name, times in seconds.items()
    ]
    header = ("method", "phrases / s", "x shared")
    return [SpeedTable("encoding", f"{len(phrases):,} phrases, {rounds} rounds", header, rows)]

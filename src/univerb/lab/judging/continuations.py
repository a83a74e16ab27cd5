"""Pairs of texts to be judged: the LM with phrases, and the plain LM, both shown the same."""

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from univerb.applications.context import in_context
from univerb.config import GenerationConfig
from univerb.decoding.loop import generate
from univerb.decoding.results import Generation
from univerb.lab import markdown
from univerb.lab.disk_errors import writing
from univerb.lab.phrases.phrase_words import count_words, share
from univerb.lab.speed.workloads import WORKLOADS, Request, RequestMaker
from univerb.modeling.phrase_model import PhraseModel
from univerb.phrase import Document
from univerb.phrases.ngrams import ngrams

SYSTEMS = ("phrases", "plain")
_LONG = 3
"""Words of a phrase that says more than a name."""
Progress = Callable[[int, int], object]


class PairedTexts(NamedTuple):
    """What both systems wrote for a prompt."""

    workload: str
    prompt: str
    texts: tuple[Generation, Generation]
    """In the order of `SYSTEMS`."""


def write_pairs(
    make: RequestMaker,
    workloads: Sequence[str],
    context: int,
    config: GenerationConfig,
    progress: Progress | None = None,
) -> Iterator[PairedTexts]:
    """Continue the prompts of workloads with phrases and without.

    Args:
        make: What requests are made with.
        workloads: Their names.
        context: Passages that both are shown.
        config: Of both: repetition control, too.
        progress: Called after each prompt.

    Yields:
        The texts of each prompt.
    """
    total, done = len(workloads) * make.limit, 0
    for name in workloads:
        for request in islice(filter(None, WORKLOADS[name].make(make)), make.limit):
            yield _write(make.lm, request, context, config)
            done += 1
            if progress:
                progress(done, total)


def _write(
    lm: PhraseModel, request: Request, context: int, config: GenerationConfig
) -> PairedTexts:
    shown = in_context(lm, request.ids, request.passages[:context], config.max_tokens)
    options = shown.configured(config).options()
    source = ngrams()
    found = (
        phrase
        for number, passage in enumerate(request.passages)
        for phrase in source(Document(passage.text, f"{number} {passage.document}"), lm.tokenizer)
    )
    with_phrases = generate(lm, shown.ids, lm.vocabulary(found), **options)
    plain = generate(lm, shown.ids, None, **options)
    return PairedTexts(request.workload, lm.tokenizer.decode(request.ids), (with_phrases, plain))


class PairsReport(NamedTuple):
    """The texts of all prompts, and what phrases they have."""

    about: dict[str, Any]
    pairs: list[PairedTexts]

    def to_dict(self) -> dict[str, Any]:
        """Return what was written as JSON can hold it."""
        return {
            "about": self.about,
            "figures": {name: self._figures(name) for name in self._workloads()},
            "pairs": [
                {
                    "workload": pair.workload,
                    "prompt": pair.prompt,
                    **{
                        name: text.to_dict() for name, text in zip(SYSTEMS, pair.texts, strict=True)
                    },
                }
                for pair in self.pairs
            ],
        }

    def markdown(self, command: str = "") -> str:
        """Return the report as a page of Markdown."""
        lines = markdown.heading("Texts with phrases and without", command, self.about)
        rows = [
            (name, *(markdown.plain(value) for value in self._figures(name).values()))
            for name in self._workloads()
        ]
        header = ("prompts", *self._figures("all"))
        lines += [*markdown.table(header, rows), ""]
        for pair in self.pairs:
            lines.append(f"* {pair.workload}: {markdown.code('… ' + pair.prompt[-300:])}")
            for name, text in zip(SYSTEMS, pair.texts, strict=True):
                lines.append(f"    * {name}: {markdown.code(_marked(text))}")
        return "\n".join(lines) + "\n"

    def write_texts(self, folder: Path) -> None:
        """Write the texts of each system for `univerb lab judge`."""
        for index, name in enumerate(SYSTEMS):
            lines = [
                json.dumps({"prompt": pair.prompt, "text": pair.texts[index].text}) + "\n"
                for pair in self.pairs
            ]
            with writing(folder):
                (folder / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")

    def _workloads(self) -> list[str]:
        return [*dict.fromkeys(pair.workload for pair in self.pairs), "all"]

    def _figures(self, workload: str) -> dict[str, float]:
        pairs = [pair for pair in self.pairs if workload in (pair.workload, "all")]
        written = [phrase.text for pair in pairs for phrase in pair.texts[0].phrases]
        words, texts = count_words(written), [pair.texts[0] for pair in pairs]
        tokens = sum(text.stats.base_tokens for text in texts)
        return {
            "N": len(pairs),
            "in phrases": share(sum(text.stats.phrase_tokens for text in texts), tokens),
            "phrases": words.phrases,
            f"of {_LONG} words or more": share(
                sum(len(text.split()) >= _LONG for text in written), len(written)
            ),
            **words.shares(),
            "same as plain": sum(pair.texts[0].text == pair.texts[1].text for pair in pairs),
        }


def _marked(text: Generation) -> str:
    return "".join(f"[{piece.text}]" if piece.is_phrase else piece.text for piece in text.pieces)

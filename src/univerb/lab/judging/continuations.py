"""Pairs of texts to be judged: the LM with phrases, and the plain LM, both shown the same."""

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from univerb.applications.context import in_context
from univerb.config import GenerationConfig
from univerb.decoding.loop import generate
from univerb.lab import markdown
from univerb.lab.disk_errors import writing
from univerb.lab.judging.case_study import SystemOutput
from univerb.lab.phrases.phrase_words import count_words, share
from univerb.lab.protocols.result_cache import ResultCache, results_key
from univerb.lab.speed.workloads import WORKLOADS, Request, RequestMaker
from univerb.modeling.dynamic import DynamicLM
from univerb.phrase import Document
from univerb.phrases.ngrams import ngrams

SYSTEMS = ("phrases", "plain")
_PAIR = "pair"
_LONG = 3
"""Words of a phrase that says more than a name."""
Progress = Callable[[int, int], object]


class PairedTexts(NamedTuple):
    """What both systems wrote for a prompt."""

    workload: str
    prompt: str
    texts: tuple[SystemOutput, SystemOutput]
    """In the order of `SYSTEMS`."""


def write_pairs(
    make: RequestMaker,
    workloads: Sequence[str],
    context: int,
    config: GenerationConfig,
    folder: Path | None = None,
    progress: Progress | None = None,
) -> Iterator[PairedTexts]:
    """Continue the prompts of workloads with phrases and without.

    Args:
        make: What requests are made with.
        workloads: Their names.
        context: Passages that both are shown.
        config: Of both: repetition control, too.
        folder: Texts are kept here as they come.
        progress: Called after each prompt.

    Yields:
        The texts of each prompt.
    """
    cache = ResultCache(folder, results_key(make.lm, None, {"pairs": config.options()}))
    total, done = len(workloads) * make.limit, 0
    for name in workloads:
        for request in islice(filter(None, WORKLOADS[name].make(make)), make.limit):
            key = f"{request.key} {context}"
            if cache.get(key, _PAIR) is None:
                cache.put(key, _PAIR, _written(make.lm, request, context, config))
            outputs = (SystemOutput.from_dict(n, cache.get(key, _PAIR)[n]) for n in SYSTEMS)
            prompt = make.lm.tokenizer.decode(request.ids)
            yield PairedTexts(request.workload, prompt, (next(outputs), next(outputs)))
            done += 1
            if progress:
                progress(done, total)


def _written(
    lm: DynamicLM, request: Request, context: int, config: GenerationConfig
) -> dict[str, Any]:
    """Let both systems write, as JSON by system."""
    shown = in_context(lm, request.ids, request.passages[:context], config.max_tokens)
    options = shown.configured(config).options()
    source = ngrams()
    found = (
        phrase
        for number, passage in enumerate(request.passages)
        for phrase in source(Document(passage.text, f"{number} {passage.document}"), lm.tokenizer)
    )
    texts = {}
    for name, vocabulary in zip(SYSTEMS, (lm.vocabulary(found), None), strict=True):
        # A text must not depend on which ones were kept before.
        lm.forget()
        texts[name] = generate(lm, shown.ids, vocabulary, **options).to_dict()
    return texts


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
                        name: {"text": output.text, "phrases": _phrases(output)}
                        for name, output in zip(SYSTEMS, pair.texts, strict=True)
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
        pieces = [piece for pair in pairs for piece in pair.texts[0].pieces]
        written = [text for pair in pairs for text in _phrases(pair.texts[0])]
        in_phrases = sum(len(piece.ids) for piece in pieces if piece.is_phrase)
        return {
            "N": len(pairs),
            "in phrases": share(in_phrases, sum(len(piece.ids) for piece in pieces)),
            "phrases": len(written),
            f"of {_LONG} words or more": share(
                sum(len(text.split()) >= _LONG for text in written), len(written)
            ),
            **count_words(written).shares(),
            "same as plain": sum(pair.texts[0].text == pair.texts[1].text for pair in pairs),
        }


def _phrases(output: SystemOutput) -> list[str]:
    return [piece.text for piece in output.pieces if piece.is_phrase]


def _marked(text: SystemOutput) -> str:
    return "".join(f"[{piece.text}]" if piece.is_phrase else piece.text for piece in text.pieces)

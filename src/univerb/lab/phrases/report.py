"""The figures of `univerb lab phrases`, as JSON, rows and Markdown."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from univerb.lab import markdown
from univerb.lab.phrases.firing import Firing
from univerb.lab.phrases.input_side import POSITIONS, Divergence, mean_and_p95
from univerb.lab.phrases.true_text import TrueText
from univerb.lab.phrases.writing import BARE, VariantFigures, WrittenText

Row = tuple[str, str, str]
"""A measure, its value, and the figures to compare it with."""


@dataclass(frozen=True, slots=True)
class PhrasesReport:
    """What was measured, and with what."""

    about: dict[str, Any]
    bias: float
    """The profile's `phrase_bias`."""
    true_text: TrueText | None
    firing: Firing | None
    input_side: list[Divergence]
    writing: list[VariantFigures]
    texts: dict[str, WrittenText]
    """By document, what the profile writes for the first of them."""

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as JSON can hold them."""
        return {
            "about": self.about,
            "true_text": self._true_text(self.true_text) if self.true_text else None,
            "firing": asdict(self.firing) | self.firing.shares() if self.firing else None,
            "input_side": [divergence.summary() for divergence in self.input_side],
            "writing": [asdict(variant) for variant in self.writing],
            "texts": {name: asdict(text) for name, text in self.texts.items()},
        }

    def _true_text(self, text: TrueText) -> dict[str, Any]:
        return {
            "tokens": text.tokens,
            "bytes": text.bytes,
            "bare_bits_per_byte": text.bare_bits,
            "exact_bits_per_byte": text.exact_bits(self.bias),
            "strict_bits_per_byte": text.strict_bits(self.bias),
            "curve": [
                {"bias": bias, "exact": text.exact_bits(bias), "strict": text.strict_bits(bias)}
                for bias in text.biases
            ],
        }

    def rows(self) -> Iterator[Row]:
        """Yield the figures along the true text."""
        if self.true_text:
            yield from _true_text_rows(self.true_text, self.bias)
        if self.firing:
            yield from _firing_rows(self.firing)
        if self.input_side:
            yield from _input_rows(self.input_side)

    def markdown(self, command: str = "") -> str:
        """Return the report as a page of Markdown."""
        lines = markdown.heading("Phrases on held-out text", command, self.about)
        if rows := list(self.rows()):
            lines += [*markdown.table(("measure", "value", "beside it"), rows), ""]
        if self.writing:
            cells = [self._writing_cells(variant) for variant in self.writing]
            table = markdown.table(list(cells[0]), [list(row.values()) for row in cells])
            splitter = self.writing[0].splitter
            lines += ["## Writing", "", *table, ""]
            lines += [f"Rep-n and Diversity over the continuation alone, words by {splitter}."]
        if self.texts:
            about = (
                "What the profile writes for the first documents, as it is; phrases in brackets."
            )
            lines += ["", "## Texts", "", about, "", *map(_shown, self.texts.values())]
        return "\n".join(lines) + "\n"

    def _writing_cells(self, variant: VariantFigures) -> dict[str, str]:
        bare = next((other.ppl for other in self.writing if other.name == BARE), None)
        return {
            "variant": variant.name,
            "N": str(variant.documents),
            "steps / token": f"{variant.steps_per_token:.3f}",
            "steps / new token": f"{variant.steps_per_new_token:.3f}",
            "new": f"{variant.new_share:.1%}",
            "in phrases": f"{variant.phrase_share:.1%}",
            "words / phrase": f"{variant.words_per_phrase:.2f}",
            "two content": f"{variant.two_content_share:.1%}",
            "glue": f"{variant.glue_share:.1%}",
            **{f"Rep-{n}": f"{value:.2f}" for n, value in variant.rep.items()},
            "Diversity": f"{100 * variant.diversity:.2f}",
            "PPL": f"{variant.ppl:.2f}",
            "x bare": f"{variant.ppl / bare:.2f}" if bare else "",
            "run (words, mean)": f"{variant.run_words:.1f}",
            "run (words, most)": str(variant.run_words_most),
        }


def _shown(text: WrittenText) -> str:
    return f"1. {markdown.code(f'… {text.context}')} → {markdown.code(text.marked)}"


def _true_text_rows(text: TrueText, bias: float) -> Iterator[Row]:
    best = min(text.biases, key=text.exact_bits)
    beside = (
        f"bare LM {text.bare_bits:.4f}; lowest {text.exact_bits(best):.4f} at bias {best:g}; "
        f"longest match {text.strict_bits(bias):.4f}"
    )
    yield ("exact bits per byte of the true text", f"{text.exact_bits(bias):.4f}", beside)


def _firing_rows(firing: Firing) -> Iterator[Row]:
    shares = firing.shares()
    yield (
        "word starts at which a phrase fires",
        f"{shares['rate']:.1%}",
        f"a candidate fits at {shares['fitting_share']:.1%}",
    )
    yield (
        "words of a fired phrase",
        f"{shares['words_per_phrase']:.2f}",
        f"two content words or more {shares['two_content_share']:.1%}, "
        f"none {shares['glue_share']:.1%}",
    )
    yield (
        "whole phrases that are right",
        f"{shares['precision']:.1%}",
        f"the LM's own greedy tokens there {shares['lm_precision']:.1%} ({firing.fired} positions)",
    )
    yield (
        "accepted parts that are right",
        f"{shares['accepted_precision']:.1%}",
        f"the LM's own greedy tokens there {shares['lm_accepted_precision']:.1%} "
        f"({firing.accepted} of {firing.sampled})",
    )


def _input_rows(divergences: Sequence[Divergence]) -> Iterator[Row]:
    by_kind = {(kind.vector, kind.position): kind for kind in divergences}
    for position in POSITIONS:
        encoder = by_kind["encoder", position]
        ours = mean_and_p95(encoder.vector_tokens)
        last = mean_and_p95(by_kind["last token", position].vector_tokens)
        other = mean_and_p95(encoder.tokens_vector)
        yield (
            f"KL(vector || tokens), by {position}",
            f"{ours['mean']:.3f}",
            f"95th percentile {ours['p95']:.3f}; last token's row {last['mean']:.3f} "
            f"({last['p95']:.3f}); KL(tokens || vector) {other['mean']:.3f}",
        )

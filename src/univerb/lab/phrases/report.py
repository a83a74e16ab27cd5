"""The figures of `univerb lab phrases` beside their targets, as rows and as Markdown."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from univerb.lab.phrases.firing import Firing
from univerb.lab.phrases.input_side import POSITIONS, InputSide, mean_and_p95
from univerb.lab.phrases.run import PhrasesReport
from univerb.lab.phrases.true_text import TrueText
from univerb.lab.phrases.writing import BARE, PROFILE, Writing

MOST_STEPS = 0.80
LEAST_RATE = 0.08
LEAST_PRECISION = 0.9
MORE_DIVERSITY = 0.10
MOST_PPL = 2.2
MOST_KL = 0.6
MOST_KL_LORA = 0.4


class Row(NamedTuple):
    """One figure."""

    measure: str
    value: str
    beside: str = ""
    """What it is to be read against."""
    target: str = ""
    is_met: bool | None = None
    """None if there is no target."""


def report_rows(report: PhrasesReport) -> list[Row]:
    """Return the figures of a report, those with a target first in each group."""
    rows: list[Row] = []
    if report.true_text:
        rows += _true_text_rows(report.true_text, report.bias)
    if report.firing:
        rows += _firing_rows(report.firing)
    rows += _writing_rows(report.writing)
    if report.input_side:
        most = MOST_KL_LORA if report.about.get("adapter") else MOST_KL
        rows += _input_rows(report.input_side, most)
    return rows


def _true_text_rows(found: TrueText, bias: float) -> Iterator[Row]:
    exact, bare = found.exact_bits(bias), found.bare_bits
    least = min(found.biases, key=found.exact_bits)
    yield Row(
        "true text: exact bits per byte",
        f"{exact:.4f}",
        f"bare LM {bare:.4f}; least {found.exact_bits(least):.4f} at bias {least:g}",
        "at most the bare LM's",
        exact <= bare,
    )
    yield Row("true text: strict bits per byte", f"{found.strict_bits(bias):.4f}")


def _firing_rows(found: Firing) -> Iterator[Row]:
    own, least = found.profile, LEAST_PRECISION
    yield Row(
        "firing: share of word starts",
        f"{found.rate:.1%}",
        f"a candidate fits at {found.fitting_share:.1%}",
        f"at least {LEAST_RATE:.0%}",
        found.rate >= LEAST_RATE,
    )
    yield Row(
        "firing: whole phrases right",
        f"{own.precision:.1%}",
        f"LM's own greedy tokens {own.lm_precision:.1%} ({own.fired} places)",
        f"at least {least:g} x the LM's",
        own.fired > 0 and own.precision >= least * own.lm_precision,
    )
    yield Row(
        "firing: kept parts right",
        f"{found.kept_precision:.1%}",
        f"LM's own greedy tokens {found.lm_kept_precision:.1%} ({found.kept} of {found.sampled})",
        f"at least {least:g} x the LM's",
        found.kept > 0 and found.kept_precision >= least * found.lm_kept_precision,
    )


def _writing_rows(found: Sequence[Writing]) -> Iterator[Row]:
    by_name = {own.name: own for own in found}
    bare, profile = by_name.get(BARE), by_name.get(PROFILE)
    if profile:
        yield Row(
            "writing: steps per base token",
            f"{profile.steps_per_token:.3f}",
            f"{profile.phrase_share:.0%} of the tokens in phrases",
            f"at most {MOST_STEPS:.2f}",
            profile.steps_per_token <= MOST_STEPS,
        )
        yield Row(
            "writing: longest verbatim run",
            f"{profile.run_words:.1f} words",
            f"at most {profile.run_words_most} words, {profile.run_tokens_most} tokens",
        )
    if profile and bare:
        ratio = profile.ppl / bare.ppl
        yield Row(
            "writing: Diversity",
            f"{100 * profile.diversity:.1f}",
            f"bare LM {100 * bare.diversity:.1f}",
            f"at least {100 * MORE_DIVERSITY:.0f} above the bare LM's",
            profile.diversity >= bare.diversity + MORE_DIVERSITY,
        )
        yield Row(
            "writing: PPL under the bare LM",
            f"{ratio:.2f} x",
            f"{profile.ppl:.2f}, bare LM's own {bare.ppl:.2f}",
            f"at most {MOST_PPL:g} x",
            ratio <= MOST_PPL,
        )


def _input_rows(found: InputSide, most: float) -> Iterator[Row]:
    for position in POSITIONS:
        own = mean_and_p95(found.find("encoder", position).vector_tokens)
        last = mean_and_p95(found.find("last token", position).vector_tokens)
        other = mean_and_p95(found.find("encoder", position).tokens_vector)
        ratio = own["mean"] / last["mean"] if last["mean"] else 1.0
        yield Row(
            f"KL(vector || tokens), by {position}",
            f"{own['mean']:.3f}",
            f"95th percentile {own['p95']:.3f}; last token's row {last['mean']:.3f} "
            f"({last['p95']:.3f}), ratio {ratio:.2f}; KL(tokens || vector) {other['mean']:.3f}",
            f"at most {most:g} x the last token's row",
            ratio <= most,
        )


def markdown(report: PhrasesReport, command: str = "") -> str:
    """Write a report as Markdown.

    Args:
        report: The report.
        command: How it was made.

    Returns:
        The page.
    """
    lines = ["# Phrases on held-out text", ""]
    if command:
        lines += ["```", command, "```", ""]
    lines += [f"* {name}: {_plain(value)}" for name, value in report.about.items()]
    lines += ["", *_table(["measure", "value", "beside it", "target", "met"])]
    for row in report_rows(report):
        met = {None: "", True: "yes", False: "no"}[row.is_met]
        lines.append("| " + " | ".join(_cell(c) for c in [*row[:4], met]) + " |")
    if report.writing:
        lines += ["", "## Writing", "", *_writing_table(report.writing)]
    return "\n".join(lines) + "\n"


def _writing_table(found: Sequence[Writing]) -> Iterator[str]:
    bare = next((own.ppl for own in found if own.name == BARE), None)
    yield from _table(
        ["way", "N", "steps / token", "units / token", "in phrases", "Rep-2", "Rep-3", "Rep-4"]
        + [
            "Diversity",
            "PPL",
            "PPL ratio",
            "run (words, mean)",
            "run (words, most)",
            "run (tokens)",
        ]
    )
    for own in found:
        cells = [own.name, str(own.documents), f"{own.steps_per_token:.3f}"]
        cells += [f"{own.units_per_token:.3f}", f"{own.phrase_share:.1%}"]
        cells += [f"{value:.2f}" for value in own.rep.values()]
        cells += [f"{100 * own.diversity:.2f}", f"{own.ppl:.2f}"]
        cells += [f"{own.ppl / bare:.2f}" if bare else "", f"{own.run_words:.1f}"]
        cells += [str(own.run_words_most), str(own.run_tokens_most)]
        yield "| " + " | ".join(cells) + " |"
    splitter = found[0].splitter
    yield f"\nRep-n and Diversity over the continuation alone, words by {splitter}."


def _table(names: Sequence[str]) -> list[str]:
    return ["| " + " | ".join(names) + " |", "|" + " --- |" * len(names)]


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _plain(value: Any) -> str:  # noqa: ANN401  (whatever a report says about itself)
    if isinstance(value, dict):
        return ", ".join(f"{name} {_plain(own)}" for name, own in value.items())
    if isinstance(value, (list, tuple)):
        return " ".join(map(_plain, value))
    return f"{value:g}" if isinstance(value, float) else str(value)

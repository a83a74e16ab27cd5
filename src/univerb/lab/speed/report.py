"""The figures of `univerb lab speed`: medians over prompts, ratios within a round, as Markdown."""

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from univerb.lab.speed.run import Round, Run
from univerb.lab.speed.systems import HF, LLAMA, SYSTEMS, Measured
from univerb.lab.speed.workloads import WORKLOADS

SCHEMA_VERSION = 1
PER = 128
"""Base tokens that times are given for."""
REFERENCES = (HF, LLAMA)


class Spread(NamedTuple):
    """The middle of some figures, and where its quarters begin and end."""

    median: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Figures:
    """What a system needed for a workload; times are medians over prompts, in seconds."""

    system: str
    prompts: int
    first: float
    """To the first token, preparation included."""
    prepare: float
    """This and the next three: for 128 base tokens."""
    prefill: float
    decode: float
    total: float
    ratios: dict[str, Spread]
    """The total, in relation to `hf` and to `llama.cpp` where they were measured."""
    decode_ratio: Spread | None
    """Decoding alone, in relation to the plain system of the same engine."""
    break_even: float | None
    """Base tokens from which on the total is less than the plain system's; None: never."""
    steps: float
    tokens_per_step: float
    phrases: float
    phrase_share: float
    peak_mb: float
    equal: dict[str, int]
    """How many texts are those of `hf`, and of `llama.cpp`."""

    @property
    def has_phrases(self) -> bool:
        """Whether the system writes with phrases, and so may have a break-even."""
        return SYSTEMS[self.system].mode is not None


def break_even(extra: float, saved: float) -> float | None:
    """Return the length from which on a system is faster than another.

    Args:
        extra: Seconds that it needs more before the first token.
        saved: Seconds that it needs less for each token.

    Returns:
        Base tokens; 0 if it is faster at once, None if it never is, or does not stay so.
    """
    if saved <= 0:
        return None if saved < 0 or extra >= 0 else 0.0
    return max(extra / saved, 0.0)


def spread(values: Sequence[float]) -> Spread:
    """Return the median and the quartiles of some figures."""
    if len(values) == 1:
        return Spread(values[0], values[0], values[0])
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return Spread(median, low, high)


def figures(rounds: Sequence[Round], system: str) -> Figures:
    """Put the rounds of a workload together.

    Args:
        rounds: They have the same systems.
        system: Whose figures.

    Returns:
        The figures.
    """
    own = [one.measured[system] for one in rounds]
    there = rounds[0].measured
    plain = SYSTEMS[system].plain
    tokens = sum(len(one.ids) for one in own)

    def middle(value: Callable[[Measured], float]) -> float:
        return statistics.median(value(one) for one in own)

    def ratio(other: str, value: Callable[[Measured], float]) -> Spread:
        return spread([value(r.measured[system]) / value(r.measured[other]) for r in rounds])

    has_other = plain in there and plain != system
    return Figures(
        system=system,
        prompts=len(own),
        first=middle(lambda one: one.first),
        prepare=middle(lambda one: _per(one, one.prepare)),
        prefill=middle(lambda one: _per(one, one.prefill)),
        decode=middle(lambda one: _per(one, one.decode)),
        total=middle(lambda one: _per(one, one.total)),
        ratios={other: ratio(other, _whole) for other in REFERENCES if other in there},
        decode_ratio=ratio(plain, lambda one: _per(one, one.decode)) if has_other else None,
        break_even=_break_even(rounds, system, plain) if has_other else None,
        steps=statistics.mean(one.steps for one in own),
        tokens_per_step=tokens / sum(one.steps + 1 for one in own),
        phrases=middle(lambda one: one.phrases),
        phrase_share=sum(one.phrase_tokens for one in own) / tokens,
        peak_mb=max(one.peak_mb for one in own),
        equal={
            other: sum(one.measured[system].ids == one.measured[other].ids for one in rounds)
            for other in REFERENCES
            if other in there and other != system
        },
    )


def _per(one: Measured, seconds: float) -> float:
    return seconds * PER / len(one.ids)


def _whole(one: Measured) -> float:
    return _per(one, one.total)


def _break_even(rounds: Sequence[Round], system: str, plain: str) -> float | None:
    """Take the differences within a round: both sides had the same prompt and the same machine."""
    pairs = [(one.measured[system], one.measured[plain]) for one in rounds]
    extra = [own.prepare + own.prefill - (other.prepare + other.prefill) for own, other in pairs]
    saved = [other.decode / len(other.ids) - own.decode / len(own.ids) for own, other in pairs]
    return break_even(statistics.median(extra), statistics.median(saved))


def summary(run: Run) -> dict[str, list[Figures]]:
    """Return the figures of all systems, by workload."""
    by_workload: dict[str, list[Round]] = {}
    for one in run.rounds:
        by_workload.setdefault(one.workload, []).append(one)
    return {
        name: [figures(rounds, system) for system in rounds[0].measured]
        for name, rounds in by_workload.items()
    }


def to_dict(run: Run) -> dict[str, Any]:
    """Return a run as JSON can hold it: the figures, and every row that they are made of."""
    found = summary(run)
    return {
        "schema_version": SCHEMA_VERSION,
        "about": run.about,
        "not_measured": run.not_measured,
        "workloads": {
            name: {"about": WORKLOADS[name].about, "systems": [_figures_dict(f) for f in own]}
            for name, own in found.items()
        },
        "rounds": [asdict(one) for one in run.rounds],
    }


def _figures_dict(found: Figures) -> dict[str, Any]:
    ratios = {other: own._asdict() for other, own in found.ratios.items()}
    decode = found.decode_ratio._asdict() if found.decode_ratio else None
    return asdict(found) | {"ratios": ratios, "decode_ratio": decode}


COLUMNS = (
    "system",
    "first token s",
    "prepare",
    "prefill",
    "decode",
    "total s",
    "x hf",
    "x llama.cpp",
    "decode x plain",
    "steps",
    "tokens / step",
    "in phrases",
    "peak MB",
    "break-even",
    "same text",
)
WORK_COLUMNS = 8
"""Where the columns about time end, and those about work begin."""


def cells(found: Figures) -> list[str]:
    """Return a row of the table, in the order of `COLUMNS`."""
    return [
        found.system,
        f"{found.first:.2f}",
        *(f"{own:.2f}" for own in (found.prepare, found.prefill, found.decode, found.total)),
        *(_spread_text(found.ratios.get(other)) for other in REFERENCES),
        _spread_text(found.decode_ratio),
        f"{found.steps:.0f}",
        f"{found.tokens_per_step:.2f}",
        f"{found.phrase_share:.0%}" if found.has_phrases else "",
        f"{found.peak_mb:.0f}",
        break_even_text(found),
        ", ".join(f"{name} {count}/{found.prompts}" for name, count in found.equal.items()),
    ]


def _spread_text(own: Spread | None) -> str:
    return f"{own.median:.2f} ({own.low:.2f}-{own.high:.2f})" if own else ""


def break_even_text(found: Figures) -> str:
    """Say from which length on phrases pay; empty for a system that has none."""
    if not found.has_phrases or found.decode_ratio is None:
        return ""
    if found.break_even is None:
        return "never"
    return f"{found.break_even:.0f} tokens" if found.break_even >= 1 else "at once"


def notes(run: Run) -> list[str]:
    """Return what a reader must know about the figures."""
    return [
        "Systems take turns: a round is one prompt written by each, in a process of its own, and "
        "only one computes at a time. Ratios are taken within a round: median (quartiles).",
        f"Times are seconds for {PER} base tokens, medians over prompts, so parts need not add up. "
        "Prepare is retrieval, choice of phrases and their vectors; it is part of the first "
        "token's time and of the total.",
        "All write greedily, so many tokens exactly; the end token counts as any other.",
        "Each system is as a user finds it: llama.cpp and univerb may keep what prompts have in "
        "common from one request to the next, HF does not.",
        "Weights are the same; univerb may keep them in half precision where its profile says so "
        "(`weights`), in `unfold` and `atomic` on torch.",
        "Break-even: base tokens from which on the total is below that of plain HF (torch) or "
        "plain llama.cpp (llamacpp). Same text: token by token, as `hf` and as `llama.cpp` write.",
        "Peak MB: of the system's process since it began, the loading of the model included.",
        *(f"Not measured: {name}: {why}" for name, why in run.not_measured.items()),
    ]


def markdown(run: Run, command: str = "") -> str:
    """Write a run as Markdown.

    Args:
        run: What was measured.
        command: How it was made.

    Returns:
        The page.
    """
    lines = ["# Speed", ""]
    lines += ["```", command, "```", ""] if command else []
    lines += [f"* {name}: {_plain(value)}" for name, value in run.about.items()]
    lines += ["", *(f"- {note}" for note in notes(run)), ""]
    for name, found in summary(run).items():
        lines += [f"## {name}", "", f"{found[0].prompts} prompts: {WORKLOADS[name].about}.", ""]
        lines += [*_table(found), ""]
    lines += ["![time and break-even](bench.png)"]
    return "\n".join(lines) + "\n"


def _table(found: Sequence[Figures]) -> Iterator[str]:
    yield "| " + " | ".join(COLUMNS) + " |"
    yield "| --- |" + " ---: |" * (len(COLUMNS) - 1)
    for own in found:
        yield "| " + " | ".join(cells(own)) + " |"


def _plain(value: Any) -> str:  # noqa: ANN401  (whatever a run says about itself)
    if isinstance(value, dict):
        return ", ".join(f"{name} {_plain(own)}" for name, own in value.items())
    return f"{value:g}" if isinstance(value, float) else str(value)

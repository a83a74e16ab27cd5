"""The figures of a run over systems: medians over prompts, and ratios within a round."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from univerb.lab.speed.run import SpeedRound, SystemsRun
from univerb.lab.speed.systems import HF, LLAMA, SYSTEMS, Measurement
from univerb.lab.speed.timing import Figure, SpeedReport, SpeedTable, Spread, spread
from univerb.lab.speed.workloads import WORKLOADS

PER = 128
"""Base tokens that times are given for."""
REFERENCES = (HF, LLAMA)
NOTES = (
    "Systems take turns: a round is one prompt written by each, in a process of its own, and only "
    "one computes at a time. Ratios are taken within a round: median (quartiles).",
    f"Times are seconds for {PER} base tokens, medians over prompts, so parts need not add up. "
    "Prepare is retrieval, choice of phrases and their vectors: part of the first token's time and "
    "of the total.",
    "Each system is as a user gets it: llama.cpp and univerb may keep what prompts have in common "
    "from one request to the next, HF does not.",
    "Precision is that of the weights. univerb in float16 reads half-precision weights and adds in "
    "float32; HF in float16 or bfloat16 computes in it.",
    "Decode x plain: decoding alone, to HF `generate` in the same precision (torch) or to plain "
    "llama.cpp (llamacpp). Break-even: base tokens from which on the total is below that system's.",
    "Same text: token by token, as `hf` and as `llama.cpp` write. Peak MB: of the system's process "
    "since it began, the loading of the model included.",
)


@dataclass(frozen=True, slots=True)
class SystemFigures:
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
    """The total, to `hf` and to `llama.cpp` where they were measured."""
    decode_ratio: Spread | None
    """Decoding alone, to the plain system in the same precision."""
    break_even: float | None
    """Base tokens from which on the total is less than the plain system's; None: never."""
    steps: float
    tokens_per_step: float
    phrase_share: float
    peak_mb: float
    equal: dict[str, int]
    """Number of texts that are those of `hf`, and of `llama.cpp`."""

    @property
    def break_even_text(self) -> str:
        """The length from which on phrases pay; empty for a system without phrases."""
        if SYSTEMS[self.system].mode is None or self.decode_ratio is None:
            return ""
        if self.break_even is None:
            return "never"
        return f"{self.break_even:.0f} tokens" if self.break_even >= 1 else "at once"


def break_even(extra: float, saved: float) -> float | None:
    """Return the length from which on a system is faster than another.

    Args:
        extra: Additional seconds before the first token.
        saved: Seconds saved for each token.

    Returns:
        Base tokens; 0 if it is faster at once, None if it never is, or does not stay so.
    """
    if saved <= 0:
        return None if saved < 0 or extra >= 0 else 0.0
    return max(extra / saved, 0.0)


def figures(rounds: Sequence[SpeedRound], system: str) -> SystemFigures:
    """Compute the figures of one system from the rounds of a workload."""
    each = [one.measured[system] for one in rounds]
    present = rounds[0].measured
    plain = SYSTEMS[system].plain
    tokens = sum(len(one.ids) for one in each)

    def median(value: Callable[[Measurement], float]) -> float:
        return statistics.median(value(one) * PER / len(one.ids) for one in each)

    def ratio(other: str, value: Callable[[Measurement], float]) -> Spread:
        pairs = [(one.measured[system], one.measured[other]) for one in rounds]
        return spread([value(a) / len(a.ids) / (value(b) / len(b.ids)) for a, b in pairs])

    has_plain = plain in present and plain != system
    return SystemFigures(
        system=system,
        prompts=len(each),
        first=statistics.median(one.first for one in each),
        prepare=median(lambda one: one.prepare),
        prefill=median(lambda one: one.prefill),
        decode=median(lambda one: one.decode),
        total=median(lambda one: one.total),
        ratios={
            other: ratio(other, lambda one: one.total) for other in REFERENCES if other in present
        },
        decode_ratio=ratio(plain, lambda one: one.decode) if has_plain else None,
        break_even=_break_even(rounds, system, plain) if has_plain else None,
        steps=statistics.mean(one.steps for one in each),
        tokens_per_step=tokens / sum(one.steps + 1 for one in each),
        phrase_share=sum(one.phrase_tokens for one in each) / tokens,
        peak_mb=max(one.peak_mb for one in each),
        equal={
            other: sum(one.measured[system].ids == one.measured[other].ids for one in rounds)
            for other in REFERENCES
            if other in present and other != system
        },
    )


def _break_even(rounds: Sequence[SpeedRound], system: str, plain: str) -> float | None:
    """Take the differences within a round: both sides had the same prompt and the same machine."""
    pairs = [(one.measured[system], one.measured[plain]) for one in rounds]
    extra = [a.prepare + a.prefill - (b.prepare + b.prefill) for a, b in pairs]
    saved = [b.decode / len(b.ids) - a.decode / len(a.ids) for a, b in pairs]
    return break_even(statistics.median(extra), statistics.median(saved))


def summary(run: SystemsRun) -> dict[str, list[SystemFigures]]:
    """Return the figures of all systems, by workload."""
    by_workload: dict[str, list[SpeedRound]] = {}
    for one in run.rounds:
        by_workload.setdefault(one.workload, []).append(one)
    return {
        name: [figures(rounds, system) for system in rounds[0].measured]
        for name, rounds in by_workload.items()
    }


def report_systems(run: SystemsRun) -> SpeedReport:
    """Return the tables of a run, two for each workload: time, and work."""
    tables = []
    for name, systems in summary(run).items():
        about = f"{systems[0].prompts} prompts: {WORKLOADS[name].about}"
        times = [_times(own, run.precision[own.system]) for own in systems]
        tables.append(_table(name, about, times))
        tables.append(_table(f"{name}: work", "the same requests", [_work(own) for own in systems]))
    failed = [f"Not measured: {name}: {reason}" for name, reason in run.not_measured.items()]
    details = {
        "not_measured": run.not_measured,
        "rounds": [asdict(one) for one in run.rounds],
    }
    return SpeedReport(run.about, tables, [*NOTES, *failed], details)


def _table(name: str, about: str, rows: Sequence[dict[str, Figure]]) -> SpeedTable:
    return SpeedTable(name, about, tuple(rows[0]), [tuple(row.values()) for row in rows])


def _times(own: SystemFigures, precision: str) -> dict[str, Figure]:
    return {
        "system": own.system,
        "precision": precision,
        "first token s": own.first,
        "prepare": own.prepare,
        "prefill": own.prefill,
        "decode": own.decode,
        "total s": own.total,
        **{f"x {name}": own.ratios.get(name) for name in REFERENCES},
    }


def _work(own: SystemFigures) -> dict[str, Figure]:
    return {
        "system": own.system,
        "decode x plain": own.decode_ratio,
        "steps": own.steps,
        "tokens / step": own.tokens_per_step,
        "in phrases": own.phrase_share,
        "peak MB": round(own.peak_mb),
        "break-even": own.break_even_text,
        "same text": ", ".join(f"{name} {n}/{own.prompts}" for name, n in own.equal.items()),
    }

"""The figures of a run over systems: medians over prompts, and ratios within a round."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict

from univerb.lab.speed.run import SpeedRound, SystemsRun
from univerb.lab.speed.systems import HF, LLAMA, SYSTEMS, Measurement
from univerb.lab.speed.timing import Figure, SpeedReport, SpeedTable, Spread, spread
from univerb.lab.speed.workloads import WORKLOADS

PER = 128
"""Base tokens that times are given for."""
REFERENCES = (HF, LLAMA)
WORK_COLUMNS = 9
"""Where the columns about time end, and those about work begin."""
NOTES = (
    "Systems take turns: a round is one prompt written by each, in a process of its own, and only "
    "one computes at a time. Ratios are taken within a round: median (quartiles).",
    f"Times are seconds for {PER} base tokens, medians over prompts, so parts need not add up. "
    "Prepare is retrieval, choice of phrases and their vectors: part of the first token's time and "
    "of the total.",
    "Each system is as a user gets it: llama.cpp and univerb may keep what prompts have in common "
    "from one request to the next, HF does not.",
    "Precision is that of the weights; univerb in float16 adds in float32, HF in bfloat16.",
    "Decode x plain: decoding alone, to the plain system in the same precision: HF `generate`, "
    "univerb-torch-plain-float16 (the same kernels, phrases never chosen), or plain llama.cpp. "
    "Break-even: base tokens from which on the total is below that system's.",
    "Same text: token by token, as `hf` and as `llama.cpp` write. Peak MB: of the system's process "
    "since it began, the loading of the model included.",
)


def break_even(extra: float, saved: float) -> float | None:
    """Return the base tokens from which on a system is faster than another, and stays so.

    It needs `extra` seconds more before the first token, and `saved` less for each; None: never.
    """
    if saved <= 0:
        return None if saved < 0 or extra >= 0 else 0.0
    return max(extra / saved, 0.0)


def figures(rounds: Sequence[SpeedRound], system: str, precision: str = "") -> dict[str, Figure]:
    """Return the figures of one system over the rounds of a workload, by column."""
    measurements = [round_.measured[system] for round_ in rounds]
    present = rounds[0].measured
    plain = SYSTEMS[system].plain
    tokens = sum(len(cost.ids) for cost in measurements)

    def median(value: Callable[[Measurement], float]) -> float:
        return statistics.median(value(cost) * PER / len(cost.ids) for cost in measurements)

    def ratio(other: str, value: Callable[[Measurement], float]) -> Spread | None:
        if other not in present:
            return None
        pairs = [(round_.measured[system], round_.measured[other]) for round_ in rounds]
        return spread([value(a) / len(a.ids) / (value(b) / len(b.ids)) for a, b in pairs])

    def same(other: str) -> str:
        count = sum(round_.measured[system].ids == round_.measured[other].ids for round_ in rounds)
        return f"{other} {count}/{len(rounds)}"

    return {
        "system": system,
        "precision": precision,
        "first token s": statistics.median(cost.first for cost in measurements),
        "prepare": median(lambda cost: cost.prepare),
        "prefill": median(lambda cost: cost.prefill),
        "decode": median(lambda cost: cost.decode),
        "total s": median(lambda cost: cost.total),
        **{f"x {other}": ratio(other, lambda cost: cost.total) for other in REFERENCES},
        "decode x plain": ratio(plain, lambda cost: cost.decode) if plain != system else None,
        "steps": statistics.mean(cost.steps for cost in measurements),
        "tokens / step": tokens / sum(cost.steps + 1 for cost in measurements),
        "in phrases": sum(cost.phrase_tokens for cost in measurements) / tokens,
        "peak MB": round(max(cost.peak_mb for cost in measurements)),
        "break-even": _break_even(rounds, system, plain),
        "same text": ", ".join(
            same(other) for other in REFERENCES if other in present and other != system
        ),
    }


def _break_even(rounds: Sequence[SpeedRound], system: str, plain: str) -> str:
    """Say from which length on phrases pay; empty for a system without phrases."""
    if SYSTEMS[system].mode is None or plain not in rounds[0].measured:
        return ""
    # Differences within a round: both sides had the same prompt and the same machine.
    pairs = [(round_.measured[system], round_.measured[plain]) for round_ in rounds]
    extra = [a.prepare + a.prefill - (b.prepare + b.prefill) for a, b in pairs]
    saved = [b.decode / len(b.ids) - a.decode / len(a.ids) for a, b in pairs]
    length = break_even(statistics.median(extra), statistics.median(saved))
    if length is None:
        return "never"
    return f"{length:.0f} tokens" if length >= 1 else "at once"


def report_systems(run: SystemsRun) -> SpeedReport:
    """Return the tables of a run, two for each workload: time, and work."""
    by_workload: dict[str, list[SpeedRound]] = {}
    for round_ in run.rounds:
        by_workload.setdefault(round_.workload, []).append(round_)
    tables = []
    for name, rounds in by_workload.items():
        rows = [figures(rounds, system, run.precision[system]) for system in rounds[0].measured]
        about = f"{len(rounds)} prompts: {WORKLOADS[name].about}"
        columns = list(rows[0])
        for title, header in (
            (name, columns[:WORK_COLUMNS]),
            (f"{name}: work", [columns[0], *columns[WORK_COLUMNS:]]),
        ):
            cells = [tuple(row[column] for column in header) for row in rows]
            tables.append(SpeedTable(title, about, tuple(header), cells))
    failed = [f"Not measured: {name}: {reason}" for name, reason in run.not_measured.items()]
    details = {
        "not_measured": run.not_measured,
        "rounds": [asdict(round_) for round_ in run.rounds],
    }
    return SpeedReport(run.about, tables, [*NOTES, *failed], details)

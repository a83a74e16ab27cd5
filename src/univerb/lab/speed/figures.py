"""The figures of a run over systems: medians over prompts, and ratios within a round."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict

from univerb.lab.speed.run import SpeedRound, SystemsRun
from univerb.lab.speed.simulation import free_rows, speed_up
from univerb.lab.speed.systems import (
    REFERENCES,
    SIMULATION,
    SINGLE,
    SYSTEMS,
    WIDTHS,
    Measurement,
)
from univerb.lab.speed.timing import Figure, RatioInterval, SpeedReport, SpeedTable, paired_interval
from univerb.lab.speed.workloads import WORKLOADS

NOTES = (
    "Systems take turns: a round is one prompt written by each, beginning with another one each "
    "time, and only one computes at a time. Those on the same model share its process and weights.",
    "Inside the timed part: encoding of phrases, prefill, decoding, and all that a request needs "
    "besides. Outside: loading, retrieval, and the finding of phrases. Nothing is kept from one "
    "request to the next: prefix caches are off and phrase vectors forgotten, for all alike.",
    "All decode greedily, under the same repetition control, and write as many tokens as the plain "
    "LM (torch) writes until its text ends; they ignore the end token, so that all write as many.",
    "Seconds are medians over prompts, so parts need not add up. Ratios are taken within a round: "
    "the median over prompts, and the 90 % interval of that median by a paired bootstrap (2,000 "
    "draws of prompts, seed 0); range: the lowest and the highest prompt.",
    "x plain, x lookup, x verify: time of the whole request to that of the group's plain decoding, "
    "its prompt lookup with the same kernels, and its `verify`. Groups are float32, float16 and "
    "llama.cpp.",
    "Plain is greedy decoding over univerb's own sessions without phrases: single rows through the "
    "same packed weights, or the same GGUF file. `lookup` is prompt lookup as HF and "
    "llama-cpp-python have it by default (two tokens, ten drafted): HF's own loop, and "
    "`torch-lookup`, `llamacpp-lookup` restated over univerb's sessions, which spares HF's "
    "overhead.",
    "HF's prompt lookup drafts with the prompt already: the prompt's own pass, which is not "
    "counted, may give it several tokens. All others have one from it.",
    "float16: matrices packed in half precision, sums in float32, for all of the group; prompts of "
    "more than 64 tokens are read in float32 by all.",
    "llamacpp-plain-as-shipped is what the file alone gives: the GGUF file as it is installed, to "
    "the one that univerb computes with.",
)
_SIMULATED = (
    "A simulation, not a measurement: texts, passes and rows are real, the time of a pass is "
    "assumed. N rows free: passes of up to N rows cost as much as one row, longer ones in "
    "proportion. Figures are how many times faster than plain decoding a text is written, prompt "
    "and encoding left out: median over prompts and its 90 % interval. wide-N drafted as it would "
    "on such a machine; the others as they did on this one"
)


def report_systems(run: SystemsRun) -> SpeedReport:
    """Return the tables of a run: for each workload time, work, and a simulation."""
    by_workload: dict[str, list[SpeedRound]] = {}
    for round_ in run.rounds:
        by_workload.setdefault(round_.workload, []).append(round_)
    tables: list[SpeedTable] = []
    for name, rounds in by_workload.items():
        about = f"{len(rounds)} prompts: {WORKLOADS[name].about}"
        timed = [system for system in rounds[0].measured if SYSTEMS[system].is_timed]
        times = [time_figures(rounds, system, run.weights[system]) for system in timed]
        work = [work_figures(rounds, system) for system in rounds[0].measured]
        tables += [_table(name, about, times), _table(f"{name}: work", about, work)]
        tables += [_table(f"{name}: simulation", _SIMULATED, simulated_figures(rounds))]
    failed = [f"Not measured: {name}: {reason}" for name, reason in run.not_measured.items()]
    details = {
        "not_measured": run.not_measured,
        "rounds": [asdict(round_) for round_ in run.rounds],
    }
    tables = [table for table in tables if table.rows]
    return SpeedReport(run.about, tables, [*NOTES, *failed], details)


def _table(name: str, about: str, rows: Sequence[dict[str, Figure]]) -> SpeedTable:
    header = tuple(rows[0]) if rows else ()
    return SpeedTable(name, about, header, [tuple(row.values()) for row in rows])


def compared(
    rounds: Sequence[SpeedRound], system: str, other: str, value: Callable[[Measurement], float]
) -> RatioInterval | None:
    """Return the ratio of a system to another one; None if that is itself or was not measured."""
    if other == system or other not in rounds[0].measured:
        return None
    ours, theirs = ([value(round_.measured[n]) for round_ in rounds] for n in (system, other))
    return paired_interval(ours, theirs)


def time_figures(rounds: Sequence[SpeedRound], system: str, weights: str = "") -> dict[str, Figure]:
    """Return the times of one system over the rounds of a workload, by column."""
    measurements = [round_.measured[system] for round_ in rounds]
    spec = SYSTEMS[system]
    references = REFERENCES[spec.group]
    total = {
        f"x {kind}": compared(rounds, system, name, lambda cost: cost.total)
        for kind, name in references._asdict().items()
    }
    plain = total["x plain"]
    return {
        "system": system,
        "weights": weights,
        "kernels": spec.kernels,
        "encode s": statistics.median(cost.encode for cost in measurements),
        "prefill s": statistics.median(cost.prefill for cost in measurements),
        "decode s": statistics.median(cost.decode for cost in measurements),
        "total s": statistics.median(cost.total for cost in measurements),
        **total,
        "range": f"{plain.least:.2f}-{plain.most:.2f}" if plain else "",
        "decode x plain": compared(rounds, system, references.plain, lambda cost: cost.decode),
    }


def work_figures(rounds: Sequence[SpeedRound], system: str) -> dict[str, Figure]:
    """Return what one system computed over the rounds of a workload, by column."""
    measurements = [round_.measured[system] for round_ in rounds]
    references = REFERENCES[SYSTEMS[system].group]
    tokens = sum(len(cost.ids) for cost in measurements)
    same = ""
    if references.plain in rounds[0].measured and system != references.plain:
        pairs = [(round_.measured[system], round_.measured[references.plain]) for round_ in rounds]
        same = f"{sum(a.ids == b.ids for a, b in pairs)} of {len(rounds)}"
    return {
        "system": system,
        "tokens": tokens / len(rounds),
        "passes": statistics.mean(cost.passes for cost in measurements),
        "rows": statistics.mean(sum(cost.pass_rows) for cost in measurements),
        # The prompt's own pass gives the first token.
        "tokens / pass": (tokens - len(rounds)) / sum(cost.passes for cost in measurements),
        "passes x lookup": compared(rounds, system, references.lookup, lambda cost: cost.passes),
        "in phrases": sum(cost.phrase_tokens for cost in measurements) / tokens,
        "phrases": round(statistics.mean(cost.phrases for cost in measurements)),
        "plain's text": same,
    }


def simulated_figures(rounds: Sequence[SpeedRound]) -> list[dict[str, Figure]]:
    """Return what drafts would be worth on wider machines, for each system that drafts."""
    rows: list[dict[str, Figure]] = []
    for system in rounds[0].measured:
        spec = SYSTEMS[system]
        if spec.group not in (SINGLE, SIMULATION) or not (spec.lookup or spec.mode):
            continue
        measurements = [round_.measured[system] for round_ in rounds]
        pass_rows = [count for cost in measurements for count in cost.pass_rows]
        row: dict[str, Figure] = {
            "system": system,
            "rows / pass": statistics.mean(pass_rows),
            "most rows": max(pass_rows),
        }
        for width in WIDTHS:
            is_meant = spec.width in (0, width)
            row[f"{width} rows free"] = _speed_up(measurements, width) if is_meant else None
        rows.append(row)
    return rows


def _speed_up(measurements: Sequence[Measurement], width: int) -> RatioInterval:
    costs = free_rows(width)
    ratios = [speed_up(len(cost.ids), cost.pass_rows, costs) for cost in measurements]
    return paired_interval(ratios, [1.0] * len(ratios))

"""How systems stand to the same LM without phrases, beside what we set out to reach."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from univerb.lab.metrics.mauve import mauve
from univerb.lab.protocols.continuations import GREEDY
from univerb.lab.protocols.experiment import Figures
from univerb.lab.protocols.passages import NATURAL
from univerb.lab.tables.measured import Goal

Place = tuple[str, str]
"""The name of a row, and its decoding."""
_TABLES = ("main", "main-full")


def has_goals(table: str, test_set: str) -> bool:
    """Tell whether goals were set: on natural text, beside what the paper has for WikiText-103."""
    return table in _TABLES and test_set == NATURAL


def goals_of(name: str, system: Figures, baseline: Figures) -> Iterator[Goal]:
    """Compare a system with the LM without phrases, both greedy on the same passages.

    Args:
        name: Of the system.
        system: Its figures.
        baseline: Those of the LM.

    Yields:
        What stands beside a goal, as far as it was measured.
    """
    own, other = system.quality, baseline.quality
    if own.matched and other.matched:
        value = mauve(own.matched).mean / mauve(other.matched).mean
        yield Goal(name, "MAUVE matched", value, 1.0, 1.25, "higher")
    more = 100 * (own.repetition.diversity - other.repetition.diversity)
    yield Goal(name, "Diversity", more, 20.0, 23.0, "higher", "points")
    units = own.compression.units / other.compression.units
    yield Goal(name, "units", units, 0.8, 0.79, "lower")
    if system.latency and baseline.latency:
        pace = system.latency.decode.median / baseline.latency.decode.median
        yield Goal(name, "decode latency", pace, 0.9, 0.9, "lower")
    if system.single and baseline.latency:
        pace = system.single.decode.median / baseline.latency.decode.median
        yield Goal(name, "decode latency, both in single precision", pace, 0.9, 0.9, "lower")
    yield Goal(name, "PPL", own.ppl / other.ppl, 2.3, 2.23, "lower")


def all_goals(
    figures: Mapping[Place, Figures], baseline: str, *, are_set: bool
) -> tuple[Goal, ...]:
    """Compare all greedy systems with the LM without phrases.

    Args:
        figures: By row.
        baseline: The row of the LM without phrases.
        are_set: Whether goals were set for these rows; otherwise they are only compared.

    Returns:
        What each reached; nothing without such a row.
    """
    base = figures.get((baseline, GREEDY))
    if base is None:
        return ()
    return tuple(
        goal if are_set else replace(goal, goal=None, paper=None)
        for (name, decoding), own in figures.items()
        if decoding == GREEDY and name != baseline
        for goal in goals_of(name, own, base)
    )

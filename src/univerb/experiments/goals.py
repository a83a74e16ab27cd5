"""How a system stands to the same LM without phrases, and to what we set out to reach."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from univerb.evaluation.continuations import GREEDY
from univerb.experiments.lab import Figures
from univerb.metrics.mauve import compare

Place = tuple[str, str]
"""The name of a row, and its decoding."""


@dataclass(frozen=True, slots=True)
class Standing:
    """A figure in relation to the LM's without phrases."""

    name: str
    value: str
    goal: str
    paper: str
    is_met: bool

    def __str__(self) -> str:
        verdict = "met" if self.is_met else "missed"
        return f"{self.name} {self.value} (goal {self.goal}: {verdict}; paper {self.paper})"


def standings(system: Figures, baseline: Figures) -> Iterator[Standing]:
    """Compare a system with the LM without phrases, both greedy on the same passages.

    Args:
        system: Its figures.
        baseline: Those of the LM.

    Yields:
        What stands beside a goal, as far as it was measured.
    """
    own, other = system.quality, baseline.quality
    if own.matched and other.matched:
        ratio = compare(own.matched, other.matched).ratio
        value = f"{ratio.value:.2f}x (90 %: {ratio.low:.2f} to {ratio.high:.2f})"
        # Only what is sure counts as above.
        yield Standing("MAUVE matched", value, "above 1.0", "1.25x", ratio.low > 1.0)
    more = 100 * (own.repetition.diversity - other.repetition.diversity)
    yield Standing("Diversity", f"{more:+.1f} points", "+20", "+23", more >= 20.0)
    units = own.compression.units / other.compression.units
    yield Standing("units", f"{units:.2f}x", "0.80x", "0.79x", units <= 0.8)
    if system.latency and baseline.latency:
        pace = system.latency.decode.median / baseline.latency.decode.median
        yield Standing("decode latency", f"{pace:.2f}x", "0.90x", "0.90x", pace <= 0.9)
    ppl = own.ppl / other.ppl
    yield Standing("PPL", f"{ppl:.2f}x", "2.3x", "2.23x", ppl <= 2.3)


def goal_notes(figures: Mapping[Place, Figures], baseline: str) -> list[str]:
    """Say how systems stand to the LM without phrases, in a line each.

    Args:
        figures: By row.
        baseline: The row of the LM without phrases.

    Returns:
        A line for each greedy system; none without such a row.
    """
    base = figures.get((baseline, GREEDY))
    if base is None:
        return []
    return [
        f"{name}, greedy, to {baseline}: {'; '.join(map(str, standings(own, base)))}."
        for (name, decoding), own in figures.items()
        if decoding == GREEDY and name != baseline
    ]

"""What answers were worth, as JSON, Markdown and a plot."""

import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from univerb.applications.citations import Support
from univerb.errors import MissingExtra
from univerb.lab import markdown
from univerb.lab.answers.marker_sheet import VERDICTS, marker_id
from univerb.lab.answers.systems import SYSTEMS, AnswerRecord, Marker
from univerb.lab.metrics.answers import string_match
from univerb.lab.metrics.bootstrap import Interval, difference

_SUPPORTS: tuple[str, ...] = get_args(Support)


def right(record: AnswerRecord, words: int | None = None) -> float:
    """Return the share of what was asked that is in an answer, or in its first words."""
    return string_match(" ".join(record.text.split()[:words]), record.case.right)


@dataclass(frozen=True, slots=True)
class SystemFigures:
    """What the answers of one system to one set of questions are like."""

    name: str
    questions: int
    """That the documents answer."""
    unanswerable: int
    right: float
    """The share of what was asked that its answers have (str-EM)."""
    right_cut: float
    """In as many words as the shortest answer to the question has, whatever the system."""
    beyond: tuple[Interval, ...]
    """`right` above that of each control in as many words."""
    not_found: int
    """Answers that say so, where the documents answer."""
    rejected: int
    """The same, where the documents do not answer."""
    words: float
    """Of an answer."""
    sentences: int
    marked: int
    """Sentences with a marker."""
    supports: Mapping[str, int]
    """Sentences by what univerb itself says of them."""
    words_per_citation: float
    citations: int
    markers: int
    verdicts: Mapping[str, int]
    """Markers by what the judge said; those that it did not see are missing."""
    faults: tuple[str, ...]

    @property
    def supporting(self) -> float | None:
        """The share of judged markers that support their sentence; None if nobody judged."""
        total = sum(self.verdicts.values())
        return self.verdicts.get(VERDICTS[0], 0) / total if total else None

    @classmethod
    def of(
        cls,
        records: Sequence[AnswerRecord],
        controls: Sequence[Sequence[AnswerRecord]],
        shortest: Sequence[int],
        verdicts: Mapping[str, str],
    ) -> "SystemFigures":
        """Sum up the records of a system; controls answer each question in as many words."""
        asked = [n for n, record in enumerate(records) if record.case.right]
        answers = [records[n] for n in asked]
        own = [right(record) for record in answers]
        markers = [marker for record in records for marker in record.markers]
        judged = [verdicts.get(marker_id(marker)) for marker in markers]
        supports = Counter(s for record in answers if record.words for s in record.supports)
        cited = [words for record in records for words in record.cited_words]
        return cls(
            name=records[0].system,
            questions=len(answers),
            unanswerable=len(records) - len(answers),
            right=_mean(own),
            right_cut=_mean(right(records[n], shortest[n]) for n in asked),
            beyond=tuple(difference(own, [right(c[n]) for n in asked]) for c in controls)
            if asked
            else (),
            not_found=sum(not record.words for record in answers),
            rejected=sum(not r.words for r in records if not r.case.right),
            words=_mean(record.words for record in answers),
            sentences=supports.total(),
            marked=supports.total() - supports["unsupported"],
            supports={name: supports[name] for name in _SUPPORTS},
            words_per_citation=_mean(cited),
            citations=len(cited),
            markers=len(markers),
            verdicts=Counter(verdict for verdict in judged if verdict),
            faults=tuple(fault for record in records for fault in record.faults),
        )

    def cells(self) -> dict[str, str]:
        """Return the figures as a row of a table."""
        above = [
            f"{100 * i.value:+.1f} ({100 * i.low:+.1f} to {100 * i.high:+.1f})" for i in self.beyond
        ]
        says = self.name in SYSTEMS
        return {
            "system": self.name,
            "N": str(self.questions),
            "right": f"{self.right:.1%}",
            "cut to the shortest": f"{self.right_cut:.1%}",
            "above leading": above[0] if above else "",
            "above retrieved": above[1] if above else "",
            "words": f"{self.words:.0f}",
            "sentences marked": f"{self.marked / max(self.sentences, 1):.0%} of {self.sentences}",
            "markers that support": self._judged(),
            "words / citation": f"{self.words_per_citation:.1f}",
            # A control has as many words as the system that it is beside, which may be none.
            "not found, rightly": f"{self.rejected} of {self.unanswerable}" if says else "",
            "not found, wrongly": f"{self.not_found} of {self.questions}" if says else "",
            "faults / citations": f"{len(self.faults)} / {self.citations}",
        }

    def _judged(self) -> str:
        if self.supporting is None:
            return ""
        total = sum(self.verdicts.values())
        partly = self.verdicts.get(VERDICTS[1], 0) / total
        of = f"{total}" if total == self.markers else f"{total} judged of {self.markers}"
        return f"{self.supporting:.0%} (partly {partly:.0%}) of {of}"


def _mean(values: Iterable[float]) -> float:
    every = list(values)
    return statistics.fmean(every) if every else 0.0


@dataclass(frozen=True, slots=True)
class AnswersReport:
    """Figures by set of questions and system, and every answer."""

    about: dict[str, Any]
    figures: dict[str, list[SystemFigures]]
    """By set of questions."""
    answers: dict[str, list[AnswerRecord]] = field(repr=False)
    """By set: every answer of the systems, question by question."""

    @property
    def markers(self) -> Iterator[Marker]:
        """All markers of the systems; those of the controls need no judge."""
        for records in self.answers.values():
            for record in records:
                yield from record.markers if record.system in SYSTEMS else ()

    def to_dict(self) -> dict[str, Any]:
        """Return the figures and the answers as JSON can hold them."""
        return {
            "about": self.about,
            "figures": {
                name: [_plain(each) for each in figures] for name, figures in self.figures.items()
            },
            "answers": {
                name: [
                    {
                        "system": record.system,
                        "question": record.case.question,
                        "right": right(record) if record.case.right else None,
                        "text": record.rendered,
                        "supports": record.supports,
                        "markers": [marker_id(marker) for marker in record.markers],
                        "faults": record.faults,
                    }
                    for record in records
                ]
                for name, records in self.answers.items()
            },
        }

    def markdown(self, command: str = "") -> str:
        """Return the report as a page of Markdown."""
        lines = markdown.heading("Answers over documents", command, self.about)
        for name, figures in self.figures.items():
            cells = [each.cells() for each in figures]
            table = markdown.table(list(cells[0]), [list(row.values()) for row in cells])
            supports = markdown.table(
                ("sentences", *_SUPPORTS),
                [(f.name, *(str(f.supports[s]) for s in _SUPPORTS)) for f in figures],
            )
            lines += [f"## {name}", "", *table, "", *supports, ""]
        return "\n".join([*lines, *self._texts()]) + "\n"

    def _texts(self) -> Iterator[str]:
        for name, records in self.answers.items():
            yield f"## What was answered: {name}\n"
            for question, own in _by_question(records).items():
                yield f"* **{markdown.code(question)}**"
                for record in own:
                    mark = (
                        f", right {right(record):.0%}" if record.case.right else ", no answer there"
                    )
                    yield f"    * {record.system}{mark}: {markdown.code(record.rendered)}"
            yield ""


def _by_question(records: Sequence[AnswerRecord]) -> dict[str, list[AnswerRecord]]:
    grouped: dict[str, list[AnswerRecord]] = {}
    for record in records:
        grouped.setdefault(record.case.question, []).append(record)
    return grouped


def _plain(figures: SystemFigures) -> dict[str, Any]:
    names = [name for name in SystemFigures.__slots__ if name != "faults"]
    plain = {name: getattr(figures, name) for name in names}
    plain["beyond"] = [list(interval) for interval in figures.beyond]
    return plain | {"supporting": figures.supporting, "faults": list(figures.faults)}


def plot_answers(path: Path, report: AnswersReport) -> None:
    """Draw how many answers are right and how many sentences are marked, into a PNG file."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra("matplotlib", "plots") from None
    figure = Figure(figsize=(4.4 * len(report.figures), 3.0), layout="constrained")
    panels = figure.subplots(1, len(report.figures), squeeze=False, sharey=True)[0]
    for axis, (name, systems) in zip(panels, report.figures.items(), strict=True):
        places = range(len(systems))
        bars = {
            "right": [100 * each.right for each in systems],
            "leading sentences, as long": [
                100 * (each.right - each.beyond[0].value) if each.beyond else 0.0
                for each in systems
            ],
            "markers that support": [
                float("nan") if each.supporting is None else 100 * each.supporting
                for each in systems
            ],
        }
        for number, (label, values) in enumerate(bars.items()):
            axis.bar([place + 0.27 * (number - 1) for place in places], values, 0.25, label=label)
        axis.set(title=name, ylim=(0, 100), ylabel="%")
        axis.set_xticks(list(places), [each.name for each in systems])
        axis.spines[["top", "right"]].set_visible(False)
    panels[0].legend(fontsize=7, frameon=False)
    figure.savefig(path, dpi=130)

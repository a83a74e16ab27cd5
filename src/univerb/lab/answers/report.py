"""What answers were worth, as JSON, Markdown and a plot."""

import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from univerb.applications.citations import Support
from univerb.errors import MissingExtra
from univerb.lab import markdown
from univerb.lab.answers.marker_sheet import VERDICTS, marker_id
from univerb.lab.answers.systems import LEADING, AnswerRecord, Marker
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
    beyond_leading: Interval
    """`right` above that of the documents' leading sentences in as many words."""
    found: int
    """Answers other than "not found", where the documents answer."""
    rejected: int
    """Answers "not found", where the documents do not answer."""
    words: float
    """Of an answer."""
    sentences: int
    marked: int
    """Sentences with a marker."""
    supports: Mapping[str, int]
    """Sentences by what univerb itself says of them."""
    words_per_citation: float
    citations: int
    verdicts: Mapping[str, int]
    """Markers by what the judge said; empty if nobody judged."""
    faults: tuple[str, ...]

    @property
    def supporting(self) -> float | None:
        """The share of markers that support their sentence; None if nobody judged."""
        total = sum(self.verdicts.values())
        return self.verdicts.get(VERDICTS[0], 0) / total if total else None

    @classmethod
    def of(
        cls,
        records: Sequence[AnswerRecord],
        control: Sequence[AnswerRecord],
        shortest: Sequence[int],
        verdicts: Mapping[str, str],
    ) -> "SystemFigures":
        """Sum up the records of a system; the control has the leading sentences for each."""
        asked = [n for n, record in enumerate(records) if record.case.right]
        answers = [records[n] for n in asked]
        own = [right(record) for record in answers]
        judged = [verdicts.get(marker_id(m)) for record in records for m in record.markers]
        supports = Counter(support for record in answers for support in record.supports)
        cited = [words for record in records for words in record.cited_words]
        return cls(
            name=records[0].system,
            questions=len(answers),
            unanswerable=len(records) - len(answers),
            right=statistics.fmean(own),
            right_cut=statistics.fmean(right(records[n], shortest[n]) for n in asked),
            beyond_leading=difference(own, [right(control[n]) for n in asked]),
            found=sum(record.found for record in answers),
            rejected=sum(not r.found for r in records if not r.case.right),
            words=statistics.fmean(len(record.text.split()) for record in answers),
            sentences=supports.total(),
            marked=supports.total() - supports["unsupported"],
            supports={name: supports[name] for name in _SUPPORTS},
            words_per_citation=statistics.fmean(cited) if cited else 0.0,
            citations=len(cited),
            verdicts=Counter(verdict for verdict in judged if verdict),
            faults=tuple(fault for record in records for fault in record.faults),
        )

    def cells(self) -> dict[str, str]:
        """Return the figures as a row of a table."""
        low, high = self.beyond_leading.low, self.beyond_leading.high
        judged = "" if self.supporting is None else f"{self.supporting:.0%}"
        if judged and (partly := self.verdicts.get(VERDICTS[1])):
            judged += f" (and {partly / sum(self.verdicts.values()):.0%} partly)"
        return {
            "system": self.name,
            "N": str(self.questions),
            "right": f"{self.right:.1%}",
            "cut to the shortest": f"{self.right_cut:.1%}",
            "above leading sentences": f"{100 * self.beyond_leading.value:+.1f} "
            f"({100 * low:+.1f} to {100 * high:+.1f})",
            "words": f"{self.words:.0f}",
            "sentences marked": f"{self.marked / max(self.sentences, 1):.0%} of {self.sentences}",
            "markers that support": judged,
            "words / citation": f"{self.words_per_citation:.1f}",
            "not found, rightly": f"{self.rejected} of {self.unanswerable}",
            "not found, wrongly": f"{self.questions - self.found} of {self.questions}",
            "citations with a fault": f"{len(self.faults)} of {self.citations}",
        }


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
        """All markers of the systems; those of leading sentences need no judge."""
        for records in self.answers.values():
            for record in records:
                yield from record.markers if record.system != LEADING else ()

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
    plain["beyond_leading"] = list(figures.beyond_leading)
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
                100 * (each.right - each.beyond_leading.value) for each in systems
            ],
            "markers that support": [100 * (each.supporting or 0.0) for each in systems],
        }
        for number, (label, values) in enumerate(bars.items()):
            axis.bar([place + 0.27 * (number - 1) for place in places], values, 0.25, label=label)
        axis.set(title=name, ylim=(0, 100), ylabel="%")
        axis.set_xticks(list(places), [each.name for each in systems])
        axis.spines[["top", "right"]].set_visible(False)
    panels[0].legend(fontsize=7, frameon=False)
    figure.savefig(path, dpi=130)

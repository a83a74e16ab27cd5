"""`univerb lab answers`: what answers over documents are worth, and their citations."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from pydantic import Field

from univerb.cli.console import errors, note_untrained, show_warnings
from univerb.cli.flags import Flags, Options, with_flags
from univerb.cli.lab.options import DATA, DataFolder
from univerb.cli.lab.reports import publish
from univerb.cli.loading import load_model
from univerb.cli.options import DECODING, AsJson, TorchFlags, make_folder
from univerb.cli.progress import progress_bars
from univerb.config import GenerationConfig
from univerb.errors import OptionError

if TYPE_CHECKING:
    from univerb.lab.answers.cases import AnswerCase

_ASQA = "asqa/asqa_200_with_docs.json.gz"
SystemName = Literal["quote", "write", "plain"]


class QuestionOptions(Options):
    """The questions, and who answers them."""

    questions: Path | None = None
    """A YAML list of question and answers, asked of --docs. Without it: those of ASQA."""
    docs: tuple[str, ...] = ()
    """Documents for --questions: files or folders. Repeatable; by default the demo's."""
    first: int = Field(default=40, ge=0)
    """Of ASQA's questions; 0-39 are for choices."""
    last: int = Field(default=79, ge=0)
    """The last of them."""
    system: tuple[SystemName, ...] = ("quote", "write", "plain")
    """quote: sentences of the documents; write: the LM with phrases; plain: the LM without.
    Repeatable."""

    def sets(self, data: Path | None) -> "dict[str, list[AnswerCase]]":
        """Read the questions."""
        from univerb.documents.read import read_documents
        from univerb.lab.answers.cases import asqa_cases, own_cases
        from univerb.lab.data import find_data
        from univerb.lab.protocols.asqa_questions import read_questions
        from univerb.lab.speed.workloads import demo_documents

        if self.questions:
            documents = read_documents(*self.docs) if self.docs else demo_documents()
            return {self.questions.stem: own_cases(self.questions, documents)}
        if not (folder := find_data(data)):
            raise OptionError("ASQA needs the folder with the data: --data. Or give --questions.")
        bounds = {"first": self.first, "last": self.last}
        asked = read_questions(folder / _ASQA, documents=None, **bounds)
        return {f"ASQA {self.first}-{self.last}": asqa_cases(asked)}


@with_flags
def answers(
    questions: Annotated[QuestionOptions, Flags("Questions", panels={"first": DATA, "last": DATA})],
    decoding: Annotated[
        GenerationConfig, Flags(DECODING, only=("max_tokens", "temperature", "top_p", "seed"))
    ],
    model: TorchFlags,
    data: DataFolder = None,
    judged: Annotated[
        Path | None,
        typer.Option(help="The sheet of markers, filled in: yes, partly or no for each."),
    ] = None,
    judge: Annotated[str, typer.Option(help="Who filled it in.")] = "",
    out: Annotated[
        Path, typer.Option("-o", "--out", help="Write report, plot and sheet here; resumes.")
    ] = Path("answers"),
    as_json: AsJson = False,
) -> None:
    """Ask questions, and check answers, citations and what they support."""
    show_warnings()
    if bool(judged) != bool(judge):
        raise OptionError(
            "--judged and --judge go together: the sheet, and who filled it in. Give both."
        )
    make_folder("--out", out)
    sets = questions.sets(data)
    from univerb.lab.answers.marker_sheet import read_marker_sheet, write_marker_sheet
    from univerb.lab.answers.report import plot_answers
    from univerb.lab.answers.run import SHEET, measure_answers

    verdicts = read_marker_sheet(judged) if judged else {}
    lm = load_model(**dict(model))
    note_untrained(lm)
    with progress_bars() as tell:
        report = measure_answers(
            lm,
            sets,
            questions.system,
            decoding.options(),
            out,
            verdicts,
            lambda done, total: tell("answers", done, total),
        )
    if judged:
        report.about["markers judged by"] = judge
    else:
        count = write_marker_sheet(out / SHEET, report.markers)
        errors.print(f"{count} markers to judge are in {out / SHEET}. Give it back as --judged.")
    publish(report, "answers", out, as_json)
    plot_answers(out / "answers.png", report)

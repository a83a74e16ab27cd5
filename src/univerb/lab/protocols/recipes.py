"""Every table of the paper by its name, and how it is made for the model at hand."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from univerb.errors import DocumentError, OptionError, did_you_mean
from univerb.lab.judging.entailment import Entailment, load_entailment
from univerb.lab.judging.reader import Reader
from univerb.lab.protocols.asqa_table import asqa_run
from univerb.lab.protocols.experiment import Lab
from univerb.lab.protocols.language import compression_run, language_run
from univerb.lab.protocols.negatives import negatives_run
from univerb.lab.protocols.passages import ACTS, LAWMT, NATURAL, TEST_SETS, WIKITEXT
from univerb.lab.protocols.preference import human_run, judge_run
from univerb.lab.protocols.resources import resources_run
from univerb.lab.tables.comparison import Comparison, compare
from univerb.lab.tables.measured import Run
from univerb.lab.tables.paper import PaperTable, paper_table
from univerb.modeling.dynamic import DynamicLM
from univerb.training.callback import Callback
from univerb.training.config import TrainingConfig

ASQA = "asqa/asqa_200_with_docs.json.gz"
_TEXTS: dict[str, tuple[str, ...]] = {
    "main": (WIKITEXT, NATURAL),
    "main-full": (WIKITEXT, NATURAL),
    "scale-up": (WIKITEXT, NATURAL),
    "real-time": (WIKITEXT, NATURAL),
    "lawmt": (LAWMT, ACTS),
    "lawmt-full": (LAWMT, ACTS),
    "negatives": (NATURAL,),
    "negatives-full": (NATURAL,),
    "negatives-lawmt-full": (LAWMT,),
}
"""The test sets of a table; the first is the paper's."""
_COMPRESSED = {
    "compression": {"": WIKITEXT},
    "compression-lawmt": {"WikiText103": WIKITEXT, "LawMT": LAWMT},
}


class Page(NamedTuple):
    """A table that was made."""

    name: str
    """Of its files."""
    comparison: Comparison


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """What only some tables need."""

    results: Path
    """Where sheets and prompts for judges go."""
    entailment: Callable[[], Entailment] = load_entailment
    """Judges citations; loaded when it is needed."""
    reader: Callable[[], Reader] | None = None
    """Reads answers, for QA-EM and QA-F1."""
    questions: int = 100
    """Of ASQA."""
    test_sets: Sequence[str] = ()
    """Which of a table's, if not all."""
    bare: Callable[[], DynamicLM] | None = None
    """Loads the LM as it was before it was fine-tuned, if it was."""
    judge: str = ""
    """Who gave the replies of table `gpt4`."""
    ablation: TrainingConfig | None = None
    """What the models of the ablation have in common."""
    runs: Path = Path("runs/ablation")
    callback: Callback | None = None


def check_means(names: Sequence[str], means: Means) -> None:
    """Refuse tables that cannot be made, before hours are spent on those before them.

    Args:
        names: Of tables.
        means: What there is.

    Raises:
        OptionError: If a table has no such test set, or trains models and nothing says how.
    """
    for name in names:
        if name in _TEXTS:
            _chosen(name, means.test_sets)
        if name.startswith("negatives") and means.ablation is None:
            raise OptionError(
                f"table {name!r} trains a model for each of its rows. Say how with --ablation "
                "CONFIG, such as configs/default/ablation.yaml."
            )


def make_pages(lab: Lab, name: str, means: Means) -> Iterator[Page]:
    """Make a table for the model at hand.

    Args:
        lab: The model, and how it is measured.
        name: The table's.
        means: What only some tables need.

    Yields:
        The table, for each of its test sets.
    """
    table = paper_table(name)
    for label, run in _runs(lab, table, means):
        yield Page(label, compare(run, table))


def _runs(lab: Lab, table: PaperTable, means: Means) -> Iterator[tuple[str, Run]]:
    name = table.name
    if name in _COMPRESSED:
        yield name, compression_run(lab, table, _COMPRESSED[name])
    elif name == "resources":
        yield name, resources_run(lab, table)
    elif name == "human":
        yield name, human_run(lab, table, means.results / name)
    elif name == "gpt4":
        yield name, judge_run(lab, table, means.results / name, means.judge)
    elif name == "asqa":
        yield name, _asqa(lab, means)
    else:
        for test_set in _chosen(name, means.test_sets):
            label = name if test_set == _TEXTS[name][0] else f"{name}-{test_set}"
            if name.startswith("negatives"):
                yield label, _negatives(lab, table, test_set, means)
            else:
                yield label, language_run(lab, table, test_set)


def _chosen(name: str, wanted: Sequence[str]) -> list[str]:
    """Return the test sets of a table, or those of them that were asked for."""
    own = _TEXTS[name]
    for test_set in wanted:
        if test_set not in TEST_SETS:
            raise OptionError(
                f"there is no test set {test_set!r}. {did_you_mean(test_set, TEST_SETS)}"
            )
    chosen = [test_set for test_set in own if not wanted or test_set in wanted]
    if not chosen:
        raise OptionError(
            f"table {name!r} has no test set {wanted[0]!r}. Choose of {', '.join(own)}."
        )
    return chosen


def _negatives(lab: Lab, table: PaperTable, test_set: str, means: Means) -> Run:
    check_means([table.name], means)
    assert means.ablation is not None
    return negatives_run(lab, table, test_set, means.ablation, means.runs, means.callback)


def _asqa(lab: Lab, means: Means) -> Run:
    path = lab.data / ASQA if lab.data else None
    if path is None or not path.is_file():
        raise DocumentError(
            f"table 'asqa' needs {ASQA!r} in the folder with the data. Name that folder with "
            "--data or UNIVERB_DATA."
        )
    reader = means.reader() if means.reader else None
    return asqa_run(
        lab.lm,
        path,
        means.entailment(),
        limit=means.questions,
        bare=means.bare() if means.bare else None,
        training=lab.training,
        reader=(lambda asked, text: reader.answers([(own, text) for own in asked]))
        if reader
        else None,
        reader_name=reader.name if reader else "",
        folder=lab.folder,
        progress=lambda done, total: lab.tell("asqa", done, total),
    )

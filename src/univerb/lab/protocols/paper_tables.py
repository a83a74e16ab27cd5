"""Every table of the paper by its name, made for the model at hand."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from univerb.entailment.scorers import Entailment, load_entailment
from univerb.errors import DocumentError, OptionError, did_you_mean
from univerb.lab.judging.reader import Reader
from univerb.lab.protocols.asqa_answers import AsqaProtocol
from univerb.lab.protocols.asqa_table import asqa_table
from univerb.lab.protocols.experiment import Experiment
from univerb.lab.protocols.language_tables import compression_table, language_table
from univerb.lab.protocols.negatives_tables import negatives_table
from univerb.lab.protocols.passages import ACTS, COG, LAWMT, NATURAL, RAW, TEST_SETS
from univerb.lab.protocols.preference_tables import human_table, judge_table
from univerb.lab.protocols.resources_table import resources_table
from univerb.lab.tables.paper import PaperTable, paper_table
from univerb.lab.tables.paper_comparison import compare_with_paper
from univerb.lab.tables.table_report import Report
from univerb.lab.tables.table_results import TableResult
from univerb.training.config import TrainingConfig

ASQA = "asqa/asqa_200_with_docs.json.gz"
_TEST_SETS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("main", "main-full", "scale-up", "real-time"), (COG, RAW, NATURAL)),
    **dict.fromkeys(("negatives", "negatives-full"), (COG, RAW, NATURAL)),
    **dict.fromkeys(("lawmt", "lawmt-full"), (LAWMT, ACTS)),
    "negatives-lawmt-full": (LAWMT,),
}
"""The test sets that a table can be made for; the first is the paper's, and the default."""
_COMPRESSION = {
    "compression": {"": COG},
    "compression-lawmt": {"WikiText103": COG, "LawMT": LAWMT},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What only some tables need."""

    results: Path
    """Where sheets and prompts for judges go."""
    entailment: Callable[[], Entailment] = load_entailment
    """Judges citations; loaded when it is needed."""
    reader: Callable[[], Reader] | None = None
    """Reads answers, for QA-EM and QA-F1."""
    questions: int = 100
    """Number of ASQA questions."""
    asqa_file: Path | None = None
    """ASQA's questions, instead of those of the data folder."""
    asqa: AsqaProtocol = AsqaProtocol()
    """The settings of prompts and answers."""
    segment: bool = False
    """Measure a system that reads the prefix with phrases as single vectors, too."""
    test_sets: Sequence[str] = ()
    """These test sets of a table, instead of the paper's."""
    judge: str = ""
    """The model that gave the replies of table `gpt4`."""
    ablation: TrainingConfig | None = None
    """The training settings that all rows of the ablation have in common."""
    runs: Path = Path("runs/ablation")
    """The folder of the ablation's training runs."""


def check_resources(names: Sequence[str], resources: Resources) -> None:
    """Refuse tables that cannot be made, before hours are spent on those before them."""
    for name in names:
        if name in _TEST_SETS:
            _chosen_test_sets(name, resources.test_sets)
        # The frozen regime has no negatives to compare.
        is_possible = resources.ablation is not None and resources.ablation.regime != "frozen"
        if name.startswith("negatives") and not is_possible:
            raise OptionError(
                f"table {name!r} trains a model for each of its rows, with regime full or lora. "
                "Say how with --ablation CONFIG: configs/paper/ablation.yaml, or the small "
                "configs/default/ablation.yaml."
            )


def make_reports(experiment: Experiment, name: str, resources: Resources) -> Iterator[Report]:
    """Make a table for the model at hand, and yield its report for each of its test sets."""
    check_resources([name], resources)
    table = paper_table(name)
    for label, result in _results(experiment, table, resources):
        yield Report(label, compare_with_paper(result, table))


def _results(
    experiment: Experiment, table: PaperTable, resources: Resources
) -> Iterator[tuple[str, TableResult]]:
    name, folder = table.name, resources.results / table.name
    if name in _COMPRESSION:
        yield name, compression_table(experiment, _COMPRESSION[name])
    elif name == "resources":
        yield name, resources_table(experiment, table)
    elif name == "human":
        yield name, human_table(experiment, folder)
    elif name == "gpt4":
        yield name, judge_table(experiment, folder, resources.judge)
    elif name == "asqa":
        yield name, _asqa(experiment, resources)
    else:
        for test_set in _chosen_test_sets(name, resources.test_sets):
            label = name if test_set == _TEST_SETS[name][0] else f"{name}-{test_set}"
            if name.startswith("negatives"):
                assert resources.ablation is not None
                training = (resources.ablation, resources.runs)
                yield label, negatives_table(experiment, table, test_set, *training)
            else:
                segment = resources.segment
                yield label, language_table(experiment, table, test_set, segment=segment)


def _chosen_test_sets(name: str, wanted: Sequence[str]) -> list[str]:
    """Return the wanted test sets of a table; if none is wanted, the paper's."""
    for test_set in wanted:
        if test_set not in TEST_SETS:
            raise OptionError(
                f"there is no test set {test_set!r}. {did_you_mean(test_set, TEST_SETS)}"
            )
    available = _TEST_SETS[name]
    chosen = [test_set for test_set in available if test_set in (wanted or available[:1])]
    if not chosen:
        raise OptionError(
            f"table {name!r} has no test set {wanted[0]!r}. Choose of {', '.join(available)}."
        )
    return chosen


def _asqa(experiment: Experiment, resources: Resources) -> TableResult:
    path = resources.asqa_file or (experiment.data / ASQA if experiment.data else None)
    if path is None or not path.is_file():
        raise DocumentError(
            f"table 'asqa' needs {str(resources.asqa_file or ASQA)!r}. Name the file with "
            "--asqa-file, or the folder with the data with --data or UNIVERB_DATA; `univerb lab "
            "data` says where to get it."
        )
    return asqa_table(
        experiment,
        path,
        resources.entailment(),
        limit=resources.questions,
        protocol=resources.asqa,
        reader=resources.reader() if resources.reader else None,
    )

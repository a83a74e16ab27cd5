"""`univerb lab reproduce`: the paper's tables for the model at hand, beside the paper's values."""

from collections.abc import Iterator
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import transformers
import typer
from pydantic import Field

from univerb._version import __version__
from univerb.cli.console import console, errors, escape, note_untrained, print_json, show_warnings
from univerb.cli.flags import Flags, Options, with_flags
from univerb.cli.lab.options import DATA, DataFolder, LawCorpus, WikiCorpus
from univerb.cli.loading import load_model
from univerb.cli.options import OUTPUT, AsJson, ModelOptions, TorchFlags, make_folder
from univerb.cli.progress import progress_bars
from univerb.entailment.scorers import DEFAULT_SCORER, load_entailment
from univerb.errors import OptionError
from univerb.lab.data import find_data, open_or_build
from univerb.lab.disk_errors import writing
from univerb.lab.judging.reader import load_reader
from univerb.lab.markdown import plain
from univerb.lab.protocols.asqa_answers import AsqaProtocol
from univerb.lab.protocols.experiment import Experiment, Sizes
from univerb.lab.protocols.featuriser import DEFAULT_FEATURISER, Featuriser, load_featuriser
from univerb.lab.protocols.generation_runner import GenerationTask
from univerb.lab.protocols.lm_scorer import TextScorer, load_scorer
from univerb.lab.protocols.paper_tables import Resources, check_resources, make_reports
from univerb.lab.tables.paper import paper_table, paper_tables, table_names
from univerb.lab.tables.table_report import Report
from univerb.modeling.dynamic import DynamicLM
from univerb.modeling.pretrained import dtype_named
from univerb.training.config import read_config

_NAMES = ", ".join(table.name for table in paper_tables())
TABLES = f"{_NAMES}; or table1 to table15; or all."


class SizeOptions(Options):
    """How much is measured."""

    limit: int = Field(default=200, ge=1)
    """Passages for greedy rows."""
    limit_nucleus: int | None = Field(default=None, ge=1)
    """Passages for nucleus rows; by default as many."""
    questions: int = Field(default=100, ge=1)
    """ASQA questions."""
    timed: int = Field(default=20, ge=0)
    """Passages that are timed; 0: none."""
    uncached: int = Field(default=2, ge=0)
    """Timed passages that are timed without a KV cache, too."""
    k: int | None = Field(default=None, ge=1)
    """Chunks to retrieve; by default the paper's number: 32, and 512 for law."""
    stored: bool = False
    """Offer the chunks' phrases that the corpus holds, not all n-grams: faster, not the paper's."""
    segment: bool = False
    """Another row: the atomic system, reading the prefix with phrases as single vectors, too."""
    max_tokens: int = Field(default=128, ge=1)
    """Base tokens to generate."""
    seed: int = Field(default=0, ge=0)
    """Of sampling."""

    def numbers(self) -> Sizes:
        """Return the numbers of passages."""
        return Sizes(self.limit, self.limit_nucleus or self.limit, self.timed, self.uncached)

    def task(self) -> GenerationTask:
        """Return what all systems have in common."""
        offered: Literal["all", "stored"] = "stored" if self.stored else "all"
        return GenerationTask(max_tokens=self.max_tokens, offered=offered, seed=self.seed)


class ScorerOptions(Options):
    """The models that score, and what tables say about them."""

    scorer: str | None = None
    """Of PPL, such as gpt2-large; by default the LM without phrases, before any training."""
    scorer_dtype: str = "float32"
    """float32, bfloat16 or float16."""
    featuriser: str = DEFAULT_FEATURISER
    """Of MAUVE's features: a sentence encoder or a causal LM, such as gpt2-large."""
    nli: str = DEFAULT_SCORER
    """Judges citations, such as google/t5_xxl_true_nli_mixture."""
    reader: str | None = None
    """For QA-EM and QA-F1, such as gaotianyu1350/roberta-large-squad."""
    judge_model: str = ""
    """The model that gave the replies of table gpt4."""
    training: str | None = None
    """What the LM was fine-tuned on, and --transformer, too."""


class PlainOptions(Options):
    """LMs without phrases that have rows of their own."""

    bare: str | None = None
    """The LM as it was before training, if the model does not say itself."""
    transformer: str | None = None
    """An LM that was fine-tuned without phrases: a folder, or a Hub id."""


class ParserName(StrEnum):
    """Ways to find parsed phrases."""

    spacy = "spacy"
    stanza = "stanza"
    rules = "rules"


class ChatName(StrEnum):
    """Whether questions are asked in the chat template."""

    auto = "auto"
    yes = "yes"
    no = "no"


class AsqaOptions(Options):
    """How questions are asked."""

    asqa_file: Path | None = None
    """Questions in ALCE's format, instead of those of the data folder."""
    asqa_range: str = "40-"
    """Numbers of the first and the last question to choose from; 0 to 39 were for development."""
    asqa_documents: int = Field(default=3, ge=1)
    """Documents that the LM is shown."""
    shots: int = Field(default=1, ge=0, le=1)
    """Solved examples before the question: 0 or 1."""
    chat: ChatName = ChatName.auto
    """Ask in the chat template; auto: if the model has one."""
    parser: ParserName = ParserName.spacy
    """What finds parsed phrases."""
    encode_marker: bool = False
    """Make the marker a part of the phrases."""

    def protocol(self, *, segment: bool) -> AsqaProtocol:
        """Return the settings of prompts and answers."""
        begin, dash, end = self.asqa_range.partition("-")
        if not dash or not all(n.isdecimal() and len(n) < 10 for n in (begin, end or "0")):
            raise OptionError(
                f"--asqa-range is {self.asqa_range!r}; give numbers such as 40-199, or 40- for all "
                "from there on."
            )
        chats = {ChatName.auto: None, ChatName.yes: True, ChatName.no: False}
        return AsqaProtocol(
            first=int(begin),
            last=int(end) if end else None,
            documents=self.asqa_documents,
            shots=self.shots,
            chat=chats[self.chat],
            encode_marker=self.encode_marker,
            parser=self.parser,
            decoding={"mode": "atomic", "segment": True} if segment else {},
        )


_test_set = typer.Option(
    help="wikitext-cog, wikitext, wikitext-natural; lawmt, acts. By default the table's own.",
    rich_help_panel=DATA,
)
_ablation = typer.Option(
    help="negatives: training settings, as in configs/paper/ablation.yaml.", rich_help_panel=DATA
)
_out = typer.Option(
    "-o", "--out", help="Folder of the results; a run continues there.", rich_help_panel=OUTPUT
)


@with_flags
def reproduce(
    table: Annotated[list[str], typer.Argument(help=TABLES)],
    model: TorchFlags,
    sizes: Annotated[SizeOptions, Flags("Size")],
    scorers: Annotated[ScorerOptions, Flags("Scorers")],
    plain_lms: Annotated[PlainOptions, Flags("LMs without phrases")],
    asqa: Annotated[AsqaOptions, Flags("ASQA")],
    test_set: Annotated[list[str] | None, _test_set] = None,
    data: DataFolder = None,
    wiki_corpus: WikiCorpus = None,
    law_corpus: LawCorpus = None,
    ablation: Annotated[Path | None, _ablation] = None,
    out: Annotated[Path, _out] = Path("reproduced"),
    as_json: AsJson = False,
) -> None:
    """Make tables of the paper for a model, beside the paper's values, with what compares."""
    show_warnings()
    names = _names(table, has_ablation=ablation is not None)
    make_folder("--out", out / "cache")
    loading: dict[str, Any] = {"device": model.device, "offline": model.offline}
    resources = Resources(
        results=out,
        entailment=partial(load_entailment, scorers.nli, **loading),
        reader=partial(load_reader, scorers.reader, **loading) if scorers.reader else None,
        questions=sizes.questions,
        asqa_file=asqa.asqa_file,
        asqa=asqa.protocol(segment=sizes.segment),
        segment=sizes.segment,
        test_sets=test_set or (),
        judge=scorers.judge_model,
        ablation=read_config(ablation) if ablation else None,
        runs=out / "runs",
    )
    # Refuse what cannot work before the model is loaded.
    check_resources(names, resources)
    folder, corpora = find_data(data), {"wiki": wiki_corpus, "law": law_corpus}
    dtype_named(scorers.scorer_dtype, "--scorer-dtype")
    featuriser = _featuriser(names, scorers, loading)
    lm = load_model(**dict(model))
    note_untrained(lm)
    bare = _bare(lm, model, plain_lms)
    with progress_bars() as progress:
        experiment = Experiment(
            lm=lm,
            scorer=_scorer(bare or lm, scorers, loading),
            featuriser=featuriser,
            data=folder,
            open_corpus=lambda name: open_or_build(lm, name, folder, corpora[name], progress),
            folder=out / "cache",
            sizes=sizes.numbers(),
            task=sizes.task(),
            k=sizes.k,
            training=scorers.training or ("not said" if lm.adapter or lm.trained_from else "none"),
            bare=bare,
            transformer=_load_plain(model, plain_lms.transformer),
            progress=progress,
            facts=_facts(lm),
        )
        reports = [report for name in names for report in _make(experiment, name, resources)]
    _show(reports, out, as_json)


def _bare(lm: DynamicLM, model: ModelOptions, plain_lms: PlainOptions) -> DynamicLM | None:
    """Load the LM as it was before training, if that is another one."""
    if name := plain_lms.bare or lm.trained_from:
        return _load_plain(model, name)
    return load_model(**dict(model) | {"adapter": False}) if model.adapter else None


def _load_plain(model: ModelOptions, name: str | None) -> DynamicLM | None:
    return load_model(**dict(model) | {"name": name, "adapter": False}) if name else None


def _names(typed: list[str], *, has_ablation: bool) -> list[str]:
    """Return the names of tables; `all` leaves out those of negatives without their settings."""
    names = table_names(typed)
    if has_ablation or "all" not in typed:
        return names
    errors.print("[yellow]note:[/] without the tables of negatives: they need --ablation CONFIG.")
    return [name for name in names if not name.startswith("negatives")]


def _scorer(lm: DynamicLM, scorers: ScorerOptions, loading: dict[str, Any]) -> TextScorer:
    """Load the scorer; without a name it is the LM itself, if it has the precision."""
    is_same = str(lm.model.dtype) == f"torch.{scorers.scorer_dtype}"
    if not scorers.scorer and is_same and lm.adapter is None:
        return TextScorer.of(lm)
    name = scorers.scorer or lm.model.name_or_path
    return load_scorer(name, dtype=scorers.scorer_dtype, **loading)


def _featuriser(
    names: list[str], scorers: ScorerOptions, loading: dict[str, Any]
) -> Featuriser | None:
    """Load the featuriser if a table needs one."""
    has_mauve = any("MAUVE" in table.measures for table in map(paper_table, names))
    return load_featuriser(scorers.featuriser, **loading) if has_mauve else None


def _facts(lm: DynamicLM) -> dict[str, str]:
    libraries = f"torch {torch.__version__}, transformers {transformers.__version__}"
    versions = f"univerb {__version__}, {libraries}"
    precision = str(lm.model.dtype).removeprefix("torch.")
    profile = plain(lm.profile.model_dump())
    return {"profile": profile, "precision": precision, "versions": versions}


def _make(experiment: Experiment, name: str, resources: Resources) -> Iterator[Report]:
    """Yield the reports of a table; each is on disk before the next begins."""
    for report in make_reports(experiment, name, resources):
        with writing(resources.results, "Name another --out."):
            problem = report.write(resources.results)
        if problem:
            errors.print(f"[yellow]note:[/] no plot: {escape(problem)}")
        yield report


def _show(reports: list[Report], out: Path, as_json: bool) -> None:
    if as_json:
        print_json({report.name: report.to_dict() for report in reports})
        return
    for report in reports:
        # Not wrapped softly: a table has to know how wide it may be.
        console.print(report.terminal(), soft_wrap=False)
        console.print("\n".join(report.notes), style="dim", markup=False)
    console.print(f"[dim]tables, texts and plots lie in[/] {escape(str(out))}")

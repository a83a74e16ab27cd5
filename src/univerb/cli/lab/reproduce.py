"""`univerb lab reproduce`: the paper's tables for the model at hand, beside the paper's values."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import transformers
import typer
from pydantic import Field

from univerb._version import __version__
from univerb.cli.console import console, errors, escape, note_untrained, print_json, show_warnings
from univerb.cli.flags import Flags, Options, with_flags
from univerb.cli.lab.options import DATA, DataFolder, LawCorpus, WikiCorpus
from univerb.cli.loading import load_model
from univerb.cli.options import OUTPUT, AsJson, TorchFlags, make_folder
from univerb.cli.progress import progress_bars
from univerb.lab.data import find_data, open_or_build
from univerb.lab.disk_errors import writing
from univerb.lab.judging.entailment import DEFAULT_SCORER, load_entailment
from univerb.lab.judging.reader import load_reader
from univerb.lab.markdown import plain
from univerb.lab.protocols.experiment import Experiment, Sizes
from univerb.lab.protocols.generation_runner import GenerationTask
from univerb.lab.protocols.lm_scorer import TextScorer, load_scorer
from univerb.lab.protocols.paper_tables import Resources, check_resources, make_reports
from univerb.lab.tables.paper import paper_tables, table_names
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
    max_tokens: int = Field(default=128, ge=1)
    """Base tokens to generate."""
    seed: int = Field(default=0, ge=0)
    """Of sampling."""


class ScorerOptions(Options):
    """The models that score, and what tables say about them."""

    scorer: str | None = None
    """Of PPL and of MAUVE's features, such as gpt2-large; by default the backbone, untrained."""
    scorer_dtype: str | None = None
    """By default the backbone's."""
    nli: str = DEFAULT_SCORER
    """Judges citations, such as google/t5_xxl_true_nli_mixture."""
    reader: str | None = None
    """For QA-EM and QA-F1, such as gaotianyu1350/roberta-large-squad."""
    judge_model: str = ""
    """The model that gave the replies of table gpt4."""
    training: str | None = None
    """What the LM was fine-tuned on."""


_test_set = typer.Option(
    help="Only these of a table's: wikitext, wikitext-natural, lawmt, acts.", rich_help_panel=DATA
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
    bare = dict(model) | {"adapter": False}
    resources = Resources(
        results=out,
        entailment=partial(load_entailment, scorers.nli, **loading),
        reader=partial(load_reader, scorers.reader, **loading) if scorers.reader else None,
        questions=sizes.questions,
        test_sets=test_set or (),
        bare=partial(load_model, **bare) if model.adapter else None,
        judge=scorers.judge_model,
        ablation=read_config(ablation) if ablation else None,
        runs=out / "runs",
    )
    # Refuse what cannot work before the model is loaded.
    check_resources(names, resources)
    folder, corpora = find_data(data), {"wiki": wiki_corpus, "law": law_corpus}
    if scorers.scorer_dtype:
        dtype_named(scorers.scorer_dtype, "--scorer-dtype")
    lm = load_model(**dict(model))
    note_untrained(lm)
    with progress_bars() as progress:
        experiment = Experiment(
            lm=lm,
            scorer=_scorer(lm, scorers, loading),
            data=folder,
            open_corpus=lambda name: open_or_build(lm, name, folder, corpora[name], progress),
            folder=out / "cache",
            sizes=Sizes(
                sizes.limit, sizes.limit_nucleus or sizes.limit, sizes.timed, sizes.uncached
            ),
            task=GenerationTask(max_tokens=sizes.max_tokens, seed=sizes.seed),
            k=sizes.k,
            training=scorers.training or ("its adapter" if model.adapter else "none"),
            progress=progress,
            facts=_facts(lm),
        )
        reports = [report for name in names for report in _make(experiment, name, resources)]
    _show(reports, out, as_json)


def _names(typed: list[str], *, has_ablation: bool) -> list[str]:
    """Return the names of tables; `all` leaves out those of negatives without their settings."""
    names = table_names(typed)
    if has_ablation or "all" not in typed:
        return names
    errors.print("[yellow]note:[/] without the tables of negatives: they need --ablation CONFIG.")
    return [name for name in names if not name.startswith("negatives")]


def _scorer(lm: DynamicLM, scorers: ScorerOptions, loading: dict[str, Any]) -> TextScorer:
    # A model that was trained would score itself.
    is_original = lm.adapter is None and lm.trained_from is None
    if not scorers.scorer and not scorers.scorer_dtype and is_original:
        return TextScorer.of(lm)
    dtype = scorers.scorer_dtype or str(lm.model.dtype).removeprefix("torch.")
    name = scorers.scorer or lm.trained_from or lm.model.name_or_path
    return load_scorer(name, dtype=dtype, **loading)


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

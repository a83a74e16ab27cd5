"""`univerb lab reproduce`: the paper's tables for the model at hand, beside the paper's values."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from univerb.cli.console import console, errors, escape, note_untrained, print_json, show_warnings
from univerb.cli.flags import with_flags
from univerb.cli.index import told_progress
from univerb.cli.lab.options import DATA, DataFolder, LawCorpus, WikiCorpus
from univerb.cli.loading import load_model
from univerb.cli.options import MODEL, OUTPUT, AsJson, TorchFlags, make_folder
from univerb.errors import OptionError

if TYPE_CHECKING:
    from univerb.corpus.build import OnProgress
    from univerb.lab.protocols.experiment import Experiment
    from univerb.lab.protocols.lm_scorer import TextScorer
    from univerb.lab.protocols.paper_tables import Resources
    from univerb.lab.tables.table_report import Report
    from univerb.modeling.dynamic import DynamicLM

TABLES = (
    "main, human, compression, scale-up, negatives, lawmt, asqa, main-full, negatives-full, "
    "lawmt-full, negatives-lawmt-full, real-time, resources, gpt4, compression-lawmt; table1 to "
    "table15; or all."
)
_option = partial(typer.Option, rich_help_panel=DATA)
_size = partial(typer.Option, min=1, rich_help_panel="Size")
_judge = partial(typer.Option, rich_help_panel="Scorers")
_test_set = _option(help="Of a table's: wikitext, wikitext-natural, lawmt, acts. Repeatable.")
_ablation = _option(help="negatives: training settings, as in configs/default/ablation.yaml.")
_training = _option(help="What the LM was fine-tuned on, for tables to say.", rich_help_panel=MODEL)
_out = _option("-o", "--out", help="Results; a run continues there.", rich_help_panel=OUTPUT)
_nli = _judge(help="Judges citations, such as google/t5_xxl_true_nli_mixture; default: our own.")
_reader = _judge(help="For QA-EM and QA-F1, such as gaotianyu1350/roberta-large-squad.")


@with_flags
def reproduce(
    table: Annotated[list[str], typer.Argument(help=TABLES)],
    model: TorchFlags,
    test_set: Annotated[list[str] | None, _test_set] = None,
    limit: Annotated[int, _size(help="Passages for greedy rows.")] = 200,
    limit_nucleus: Annotated[int | None, _size(help="The same for nucleus rows.")] = None,
    questions: Annotated[int, _size(help="ASQA questions.")] = 100,
    timed: Annotated[int, _size(min=0, help="Passages that are timed; 0: none.")] = 20,
    uncached: Annotated[int, _size(min=0, help="Timed without a KV cache, too.")] = 2,
    k: Annotated[int | None, _size("-k", help="Chunks to retrieve; default: the paper's.")] = None,
    max_tokens: Annotated[int, _size(help="Base tokens to generate.")] = 128,
    seed: Annotated[int, _size(min=0)] = 0,
    data: DataFolder = None,
    wiki_corpus: WikiCorpus = None,
    law_corpus: LawCorpus = None,
    ablation: Annotated[Path | None, _ablation] = None,
    scorer: Annotated[str | None, _judge(help="Of PPL and MAUVE; default: the backbone.")] = None,
    scorer_dtype: Annotated[str | None, _judge(help="Default: the backbone's.")] = None,
    training: Annotated[str | None, _training] = None,
    judge_model: Annotated[str, _judge(help="Gave the replies of table gpt4.")] = "",
    nli: Annotated[str | None, _nli] = None,
    reader: Annotated[str | None, _reader] = None,
    out: Annotated[Path, _out] = Path("reproduced"),
    as_json: AsJson = False,
) -> None:
    """Make tables of the paper for a model, beside the paper's values, with what compares."""
    show_warnings()
    names = _names(table, has_ablation=ablation is not None)
    make_folder("--out", out / "cache")
    from univerb.lab.protocols.experiment import Sizes
    from univerb.lab.protocols.generation_runner import GenerationTask

    loading: dict[str, Any] = {"device": model.device, "offline": model.offline}
    bare = dict(model) | {"adapter": False}
    resources = replace(
        _resources(out, nli, reader, ablation, loading),
        questions=questions,
        test_sets=test_set or (),
        bare=partial(load_model, **bare) if model.adapter else None,
        judge=judge_model,
    )
    _check(names, resources, data, scorer_dtype)
    lm = load_model(**dict(model))
    corpora = {"wiki": wiki_corpus, "law": law_corpus}
    with told_progress() as progress:
        experiment = replace(
            _experiment(lm, _scorer(lm, scorer, scorer_dtype, loading), data, corpora, progress),
            folder=out / "cache",
            sizes=Sizes(limit, limit_nucleus or limit, timed, uncached),
            task=GenerationTask(max_tokens=max_tokens, seed=seed),
            k=k,
            training=training or ("its adapter" if model.adapter else "none"),
        )
        reports = _make(experiment, names, resources)
    _show(reports, out, as_json)


def _names(typed: list[str], *, has_ablation: bool) -> list[str]:
    """Return the names of tables; `all` leaves out those of negatives without their settings."""
    from univerb.lab.tables.paper import table_names

    names = table_names(typed)
    if has_ablation or "all" not in typed:
        return names
    errors.print("[yellow]note:[/] without the tables of negatives: they need --ablation CONFIG.")
    return [name for name in names if not name.startswith("negatives")]


def _resources(
    out: Path, nli: str | None, reader: str | None, ablation: Path | None, loading: dict[str, Any]
) -> "Resources":
    from univerb.lab.judging.entailment import DEFAULT_SCORER, load_entailment
    from univerb.lab.judging.reader import load_reader
    from univerb.lab.protocols.paper_tables import Resources
    from univerb.training.config import read_config

    return Resources(
        results=out,
        entailment=partial(load_entailment, nli or DEFAULT_SCORER, **loading),
        reader=partial(load_reader, reader, **loading) if reader else None,
        ablation=read_config(ablation) if ablation else None,
        runs=out / "runs",
    )


def _check(names: list[str], resources: "Resources", data: Path | None, dtype: str | None) -> None:
    """Refuse what cannot work before the model is loaded."""
    from univerb.lab.data import find_data
    from univerb.lab.protocols.paper_tables import check_resources
    from univerb.modeling.pretrained import dtype_named

    find_data(data)
    check_resources(names, resources)
    if dtype is not None:
        dtype_named(dtype, "--scorer-dtype")


def _scorer(
    lm: "DynamicLM", name: str | None, dtype: str | None, loading: dict[str, Any]
) -> "TextScorer":
    from univerb.lab.protocols.lm_scorer import TextScorer, load_scorer

    if name is None and dtype is None and lm.adapter is None:
        return TextScorer.of(lm)
    dtype = dtype or str(lm.model.dtype).removeprefix("torch.")
    return load_scorer(name or lm.model.name_or_path, dtype=dtype, **loading)


def _experiment(
    lm: "DynamicLM",
    scorer: "TextScorer",
    data: Path | None,
    corpora: dict[str, Path | None],
    progress: "OnProgress",
) -> "Experiment":
    import torch
    import transformers

    from univerb._version import __version__
    from univerb.lab.data import find_data, open_or_build
    from univerb.lab.protocols.experiment import Experiment

    note_untrained(lm)
    versions = (f"{each.__name__} {each.__version__}" for each in (torch, transformers))
    return Experiment(
        lm=lm,
        scorer=scorer,
        data=find_data(data),
        open_corpus=lambda name: open_or_build(lm, name, find_data(data), corpora[name], progress),
        folder=Path("cache"),
        progress=progress,
        facts={
            "profile": ", ".join(f"{k} {v}" for k, v in lm.profile.model_dump().items()),
            "versions": ", ".join((f"univerb {__version__}", *versions)),
        },
    )


def _make(experiment: "Experiment", names: list[str], resources: "Resources") -> "list[Report]":
    """Make reports; each is on disk before the next begins."""
    from univerb.lab.protocols.paper_tables import make_reports

    reports = []
    for name in names:
        for report in make_reports(experiment, name, resources):
            try:
                problem = report.write(resources.results)
            except OSError as error:
                raise OptionError(
                    f"{report.name} cannot be written to {str(resources.results)!r}: "
                    f"{error.strerror}. Name another --out."
                ) from error
            if problem:
                errors.print(f"[yellow]note:[/] no plot: {escape(problem)}")
            reports.append(report)
    return reports


def _show(reports: "list[Report]", out: Path, as_json: bool) -> None:
    if as_json:
        print_json({report.name: report.to_dict() for report in reports})
        return
    for report in reports:
        # Not wrapped softly: a table has to know how wide it may be.
        console.print(report.terminal(), soft_wrap=False)
        console.print("\n".join(report.notes), style="dim", markup=False)
    console.print(f"[dim]tables, texts and plots lie in[/] {escape(str(out))}")

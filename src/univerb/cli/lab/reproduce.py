"""`univerb lab reproduce`: the paper's tables for the model at hand, with its numbers beside."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from univerb.cli.console import (
    console,
    errors,
    escape,
    note_untrained,
    print_json,
    show_warnings,
)
from univerb.cli.index import told_progress
from univerb.cli.loading import load_model
from univerb.cli.options import (
    DATA,
    MODEL,
    OUTPUT,
    Adapter,
    AsJson,
    DataFolder,
    Device,
    Dtype,
    LawCorpus,
    Offline,
    Threads,
    WikiCorpus,
    make_folder,
    write_pages,
)
from univerb.errors import MissingExtra
from univerb.locations import DEFAULT_MODEL

if TYPE_CHECKING:
    from univerb.corpus import Corpus
    from univerb.corpus.build import OnProgress
    from univerb.lab.protocols.experiment import Lab
    from univerb.lab.protocols.recipes import Means, Page
    from univerb.lab.protocols.scorers import TextScorer
    from univerb.modeling.dynamic import DynamicLM

_WIDE = 200
"""Columns of a terminal that has room for a table in the paper's layout."""
SIZE, JUDGES = "Size", "Scorers"


def reproduce(
    table: Annotated[
        list[str],
        typer.Argument(
            help="main, human, compression, scale-up, negatives, lawmt, asqa, main-full, "
            "negatives-full, lawmt-full, negatives-lawmt-full, real-time, resources, gpt4, "
            "compression-lawmt; table1 to table15; or all."
        ),
    ],
    model: Annotated[
        str,
        typer.Option(
            "--model",
            "--backbone",
            help="A folder, a Hub id, or the default.",
            rich_help_panel=MODEL,
        ),
    ] = DEFAULT_MODEL,
    test_set: Annotated[
        list[str] | None,
        typer.Option(
            help="Of those that a table has: wikitext, wikitext-natural, lawmt, acts. Repeatable; "
            "by default all.",
            rich_help_panel=DATA,
        ),
    ] = None,
    limit: Annotated[
        int, typer.Option(min=1, help="Passages for greedy rows.", rich_help_panel=SIZE)
    ] = 200,
    limit_nucleus: Annotated[
        int | None,
        typer.Option(min=1, help="For nucleus rows; by default as many.", rich_help_panel=SIZE),
    ] = None,
    questions: Annotated[int, typer.Option(min=1, help="Of ASQA.", rich_help_panel=SIZE)] = 100,
    timed: Annotated[
        int,
        typer.Option(min=0, help="Passages written with a clock; 0: none.", rich_help_panel=SIZE),
    ] = 20,
    uncached: Annotated[
        int,
        typer.Option(min=0, help="Of these, timed without a KV cache, too.", rich_help_panel=SIZE),
    ] = 2,
    k: Annotated[
        int | None,
        typer.Option(
            "-k",
            min=1,
            help="Chunks to retrieve; by default the paper's: 32, and 512 for law.",
            rich_help_panel=SIZE,
        ),
    ] = None,
    max_tokens: Annotated[
        int, typer.Option(min=1, help="Base tokens to write.", rich_help_panel=SIZE)
    ] = 128,
    seed: Annotated[int, typer.Option(min=0, rich_help_panel=SIZE)] = 0,
    data: DataFolder = None,
    wiki_corpus: WikiCorpus = None,
    law_corpus: LawCorpus = None,
    ablation: Annotated[
        Path | None,
        typer.Option(
            help="negatives: what all runs have in common (configs/default/ablation.yaml).",
            rich_help_panel=DATA,
        ),
    ] = None,
    scorer: Annotated[
        str | None,
        typer.Option(
            help="Of PPL and of MAUVE's features, such as gpt2-large; by default the backbone.",
            rich_help_panel=JUDGES,
        ),
    ] = None,
    scorer_dtype: Annotated[
        str | None,
        typer.Option(
            help="bfloat16 is twice as fast on many CPUs, and tables say so; by default the "
            "backbone's.",
            rich_help_panel=JUDGES,
        ),
    ] = None,
    training: Annotated[
        str | None,
        typer.Option(
            help="What the LM was fine-tuned on, for the tables to say: wikitext-103.",
            rich_help_panel=MODEL,
        ),
    ] = None,
    judge_model: Annotated[
        str,
        typer.Option(help="Who gave the replies of table gpt4.", rich_help_panel=JUDGES),
    ] = "",
    nli: Annotated[
        str | None,
        typer.Option(
            help="Judges citations, such as google/t5_xxl_true_nli_mixture; by default our own.",
            rich_help_panel=JUDGES,
        ),
    ] = None,
    reader: Annotated[
        str | None,
        typer.Option(
            help="Reads answers for QA-EM and QA-F1, such as gaotianyu1350/roberta-large-squad.",
            rich_help_panel=JUDGES,
        ),
    ] = None,
    out: Annotated[
        Path,
        typer.Option(
            "-o",
            "--out",
            help="Write tables, texts and plots here, and go on from what is there.",
            rich_help_panel=OUTPUT,
        ),
    ] = Path("reproduced"),
    adapter: Adapter = False,
    device: Device = "cpu",
    dtype: Dtype = "float32",
    threads: Threads = None,
    offline: Offline = None,
    as_json: AsJson = False,
) -> None:
    """Make tables of the paper for a model, beside the paper's numbers, with what compares."""
    show_warnings()
    from univerb.lab.tables.paper import table_names

    names = _possible(table_names(table), table, ablation is not None)
    make_folder("--out", out / "cache")
    from univerb.lab.data import find_data
    from univerb.lab.judging.entailment import DEFAULT_SCORER, load_entailment
    from univerb.lab.judging.reader import load_reader
    from univerb.lab.protocols.continuations import Task
    from univerb.lab.protocols.experiment import Lab, Sizes
    from univerb.lab.protocols.recipes import Means, check_means
    from univerb.lab.tables.overview import PAGE, overview, read_comparisons
    from univerb.lab.tables.rendering import to_dict
    from univerb.modeling.pretrained import dtype_named
    from univerb.training.config import read_config

    found = find_data(data)
    loading: dict[str, Any] = {"device": device, "offline": offline}
    load = partial(load_model, model, dtype=dtype, threads=threads, **loading)
    means = Means(
        results=out,
        entailment=partial(load_entailment, nli or DEFAULT_SCORER, **loading),
        reader=partial(load_reader, reader, **loading) if reader else None,
        questions=questions,
        test_sets=test_set or (),
        bare=load if adapter else None,
        judge=judge_model,
        ablation=read_config(ablation) if ablation else None,
        runs=out / "runs",
    )
    check_means(names, means)
    if scorer_dtype is not None:
        dtype_named(scorer_dtype, "--scorer-dtype")
    lm = load(adapter=adapter)
    note_untrained(lm)
    corpora = {"wiki": ("wiki", wiki_corpus), "law": ("law", law_corpus)}
    with told_progress() as tell:
        lab = Lab(
            lm=lm,
            scorer=_scorer(lm, scorer, scorer_dtype, loading),
            data=found,
            open_corpus=lambda name: _corpus(lm, found, *corpora[name], tell),
            folder=out / "cache",
            sizes=Sizes(limit, limit_nucleus or limit, timed, uncached),
            task=Task(max_tokens=max_tokens, seed=seed),
            k=k,
            training=training or ("its adapter" if adapter else "none"),
            tell=tell,
            facts=_facts(lm),
        )
        made = list(_made(lab, names, means, out))
    write_pages(out, {PAGE: overview(read_comparisons(out))})
    if as_json:
        print_json({page.name: to_dict(page.comparison) for page in made})
        return
    for page in made:
        _show(page)
    console.print(f"[dim]tables, texts and plots lie in[/] {escape(str(out))}")


def _possible(names: list[str], typed: list[str], has_ablation: bool) -> list[str]:
    """Leave out of `all` what needs a word more."""
    if has_ablation or not set(typed) & {"all"}:
        return names
    errors.print("[yellow]note:[/] without the tables of negatives: they need --ablation CONFIG.")
    return [name for name in names if not name.startswith("negatives")]


def _corpus(
    lm: "DynamicLM", data: Path | None, workload: str, folder: Path | None, tell: "OnProgress"
) -> "Corpus | None":
    """Open the corpus that was named, or build it from the data."""
    from univerb.lab.data import open_or_build

    return open_or_build(lm, workload, data, folder, tell)


def _scorer(
    lm: "DynamicLM", name: str | None, dtype: str | None, loading: dict[str, Any]
) -> "TextScorer":
    from univerb.lab.protocols.scorers import TextScorer, load_scorer

    if name is None and dtype is None and lm.adapter is None:
        return TextScorer.of(lm)
    dtype = dtype or str(lm.model.dtype).removeprefix("torch.")
    return load_scorer(name or lm.model.name_or_path, dtype=dtype, **loading)


def _facts(lm: "DynamicLM") -> dict[str, str]:
    import torch
    import transformers

    from univerb._version import __version__

    profile = ", ".join(f"{name} {value}" for name, value in lm.profile.model_dump().items())
    versions = f"univerb {__version__}, torch {torch.__version__}"
    return {
        "profile": profile,
        "versions": f"{versions}, transformers {transformers.__version__}",
    }


def _made(lab: "Lab", names: list[str], means: "Means", out: Path) -> "Iterator[Page]":
    """Make pages one by one; each is on disk before the next begins."""
    from univerb.lab.protocols.recipes import make_pages

    for name in names:
        for page in make_pages(lab, name, means):
            _write(out, page)
            yield page


def _write(folder: Path, page: "Page") -> None:
    from univerb.lab.tables.plots import plot_comparison
    from univerb.lab.tables.rendering import latex, markdown, to_json

    picture = f"{page.name}.png" if page.comparison.lines else ""
    if picture:
        try:
            plot_comparison(folder / picture, page.comparison)
        except (MissingExtra, OSError) as error:
            # The figures are there, and took long: they are worth more than the picture.
            errors.print(f"[yellow]note:[/] no plot: {escape(str(error))}")
            picture = ""
    pages = {
        f"{page.name}.md": markdown(page.comparison, picture),
        f"{page.name}.json": to_json(page.comparison),
        f"{page.name}.tex": latex(page.comparison),
    }
    write_pages(folder, pages)


def _show(page: "Page") -> None:
    from univerb.lab.tables.rendering import brief, reasons_text, terminal

    sheets = terminal if console.width >= _WIDE else brief
    for own in sheets(page.comparison):
        # Not wrapped softly: a table has to know how wide it may be.
        console.print(own, soft_wrap=False)
    console.print(f"[dim]{escape(reasons_text(page.comparison))}[/]")

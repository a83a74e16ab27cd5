"""`univerb calibrate`: how boldly to use a corpus's phrases, measured on held-out text."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from univerb.cli.adapt import Chunks, Passages, show_calibration
from univerb.cli.console import note_untrained, print_json, show_warnings
from univerb.cli.flags import with_flags
from univerb.cli.loading import load_model
from univerb.cli.options import AsJson, TorchFlags
from univerb.cli.progress import progress_bars


@with_flags
def calibrate(
    corpus: Annotated[Path, typer.Argument(help="The corpus.")],
    docs: Annotated[list[str], typer.Argument(help="Held-out text: files or folders.")],
    model: TorchFlags,
    k: Chunks = 32,
    passages: Passages = 32,
    as_json: AsJson = False,
) -> None:
    """Find phrase_bias (or eagerness) and tolerance on held-out text; keep them with the corpus."""
    from univerb.corpus import open_corpus
    from univerb.documents.read import read_documents

    show_warnings()
    opened = open_corpus(corpus)
    documents = read_documents(*docs)
    lm = load_model(**dict(model))
    note_untrained(lm)
    from univerb.applications.adapt import PASSAGES_PER_DOCUMENT
    from univerb.applications.calibrate import calibrate as run
    from univerb.applications.calibrate import save_profile
    from univerb.applications.coverage import passages_of

    chosen = passages_of(
        documents, lm.tokenizer, limit=passages, per_document=PASSAGES_PER_DOCUMENT
    )
    with progress_bars() as show:
        calibration = run(lm, opened, chosen, k, progress=partial(show, "calibration"))
    save_profile(opened, lm, calibration)
    if as_json:
        print_json(calibration.to_dict())
    else:
        show_calibration(calibration)

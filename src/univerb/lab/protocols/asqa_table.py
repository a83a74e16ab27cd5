"""The paper's ASQA table, filled by a run: answers with citations over three documents."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from univerb._version import __version__
from univerb.documents.sentences import splitter_named
from univerb.errors import OptionError
from univerb.lab.judging.entailment import Entailment
from univerb.lab.protocols.asqa import (
    BARE,
    SYSTEMS,
    WITHOUT,
    AsqaProtocol,
    System,
    answer_all,
    read_items,
    voices,
)
from univerb.lab.protocols.asqa_scores import (
    Judges,
    Reader,
    SystemScores,
    difference,
    score_all,
)
from univerb.lab.tables.measured import Measured, Run, RunRow, Setup
from univerb.lab.tables.paper import Column
from univerb.modeling.dynamic import DynamicLM

ALCE_FILE = "asqa_eval_gtr_top100"
"""The questions and passages that the paper uses; others are another data set."""
LEVEL = 0.9
"""How sure intervals are."""
COMPARED = ("Citation_rec", "Citation_prec", "QA-EM", "QA-F1", "Rouge-L", "str-EM")
"""Measures whose differences to the bare LM are told."""
EXTRA = (
    Column("str-EM", better="higher"),
    Column("Words", decimals=1),
    Column("Cited sentences", "Cited sentences (%)", decimals=1),
    Column("Phrase share", "Phrase share (%)", decimals=1),
)
_OURS = {"ngrams": "w/ n-grams", "parsed": "w/ parsing", "none": "w/o phrases"}
_FROZEN = (
    f"The LM is frozen, so `{WITHOUT.name}` is the text of the `{BARE.name}`, not that of a "
    "fine-tuned LM as in the paper; only its markers stand elsewhere."
)
_MARKERS = (
    f"`{BARE.name}` is judged as it typed its markers. Elsewhere they stand at the end of the "
    "sentence, each once, at most three and only numbers of documents that exist, together with "
    "those of copied phrases; `inline` puts them behind each phrase."
)
_SENTENCES = (
    "Sentences are not NLTK's, as ALCE's are; a marker behind a full stop counts for the sentence "
    "that ends there."
)
_ROUGE = "Rouge-L is the middle of bootstrap means, as rouge-score gives it."


def asqa_run(
    lm: DynamicLM,
    path: Path,
    nli: Entailment,
    *,
    limit: int | None = 100,
    protocol: AsqaProtocol | None = None,
    bare: DynamicLM | None = None,
    training: str = "none",
    reader: Reader | None = None,
    reader_name: str = "",
    sentences: str = "pysbd",
    systems: Sequence[System] = SYSTEMS,
    folder: Path | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> Run:
    """Answer questions of ASQA with and without phrases, and judge the answers.

    Args:
        lm: The model with its encoder and its profile.
        path: The questions, in ALCE's shape.
        nli: Decides whether passages support a sentence.
        limit: At most so many questions, spread evenly over the file; None for all.
        protocol: How they are asked.
        bare: The backbone before training, if `lm` was fine-tuned.
        training: What `lm` was fine-tuned on.
        reader: Finds short answers in an answer, for QA-EM and QA-F1.
        reader_name: Who that is.
        sentences: What splits answers into sentences: `pysbd`, `rules` or `spacy`. ALCE's own, of
            NLTK, needs data that is not on every machine.
        systems: Who answers.
        folder: Keep answers here as they come: a run that was killed goes on.
        progress: Is told how many answers are written or judged, of how many.

    Returns:
        The figures, for the paper's table `asqa`.

    Raises:
        OptionError: If the bare LM or the reader's name is missing.
    """
    _check(lm, bare, training, reader, reader_name)
    how, told = protocol or AsqaProtocol(), progress or (lambda done, total: None)
    judges = Judges(nli, splitter_named(sentences), reader)
    items = read_items(path, limit, how.documents)
    written = len(items) * len(voices(systems, bare is not None))
    whole = written + len(items) * len(systems)
    replies = answer_all(
        lm,
        items,
        how,
        bare=bare,
        systems=systems,
        folder=folder,
        progress=lambda done, _: told(done, whole),
    )
    scores = score_all(items, replies, systems, judges, lambda done, _: told(written + done, whole))
    setup = replace(
        _setup(lm, how, nli, training),
        data="asqa" if ALCE_FILE in path.name else f"asqa, {path.name.split('.')[0]}",
        n=len(items),
        reader=reader_name,
    )
    return Run(
        setup=setup,
        rows=tuple(_row(own, setup, how) for own in scores),
        extra=EXTRA,
        notes=tuple(_notes(scores, nli, is_frozen=bare is None)),
        facts=_facts(lm, how, nli) | {"sentences": sentences},
    )


def _check(
    lm: DynamicLM,
    bare: DynamicLM | None,
    training: str,
    reader: Reader | None,
    reader_name: str,
) -> None:
    if bare is None and (lm.adapter or training != "none"):
        raise OptionError(
            f"{lm.name!r} was fine-tuned, so the bare LM is another model. Give it as `bare`."
        )
    if (reader is None) == bool(reader_name):
        raise OptionError("a reader and its name come together. Give `reader` and `reader_name`.")


def _setup(lm: DynamicLM, how: AsqaProtocol, nli: Entailment, training: str) -> Setup:
    return Setup(
        model=lm.model.name_or_path or lm.name,
        data="asqa",
        n=0,
        seed=how.resolved.seed,
        threads=torch.get_num_threads(),
        timed="",
        training=training,
        encoder=lm.name,
        documents=how.documents,
        shots=how.shots,
        budget=how.resolved.max_tokens,
        device=str(lm.model.device),
        nli=nli.about.name,
    )


def _row(own: SystemScores, setup: Setup, how: AsqaProtocol) -> RunRow:
    decoding = how.resolved
    is_bare = own.system.is_bare
    # What the bare LM has not been, the run's model may have been.
    apart = replace(setup, training="none") if is_bare and setup.training != "none" else None
    return RunRow(
        name=own.system.name,
        cells={name: Measured(value) for name, value in own.means(setup.seed).items()},
        stands_for="TinyLlama" if is_bare else _OURS[own.system.phrases],
        section="" if is_bare else "Ours",
        decoding="nucleus" if decoding.temperature else "greedy",
        setup=apart,
    )


def _notes(scores: Sequence[SystemScores], nli: Entailment, *, is_frozen: bool) -> Iterator[str]:
    yield f"Citations are judged by {nli.about}."
    yield _MARKERS
    if is_frozen:
        yield _FROZEN
    yield _SENTENCES
    yield _ROUGE
    bare = next((own for own in scores if own.system.is_bare), None)
    for own in scores:
        if own.empty:
            count = f"{own.empty} of {len(own.each)} answers are empty"
            yield f"{own.system.name}: {count}; citation scores leave them out, as ALCE's do."
        if bare and own is not bare:
            yield (
                f"{own.system.name} minus {bare.system.name}, with {LEVEL:.0%} intervals of a "
                f"paired bootstrap over questions: {', '.join(_differences(own, bare))}."
            )


def _differences(own: SystemScores, bare: SystemScores) -> Iterator[str]:
    for name in COMPARED:
        ours, theirs = own.values(name), bare.values(name)
        if any(one is not None for one in ours) and any(one is not None for one in theirs):
            value, low, high = difference(ours, theirs, LEVEL)
            yield f"{name} {value:+.2f} ({low:+.2f} to {high:+.2f})"


def _facts(lm: DynamicLM, how: AsqaProtocol, nli: Entailment) -> dict[str, str]:
    shape = {None: "chat template if there is one", True: "chat template", False: "plain"}
    options = {**how.decoding, "cite": how.cite, "encode_marker": how.encode_marker}
    return {
        "univerb": __version__,
        "NLI": f"{nli.about}, entailed from {nli.about.threshold:g} on",
        "prompt": shape[how.chat],
        "phrases": f"n-grams of 2-8 tokens; parsed by {how.parser}",
        "options": ", ".join(f"{name} {value}" for name, value in options.items()),
        "profile": ", ".join(f"{name} {value}" for name, value in lm.profile.model_dump().items()),
    }

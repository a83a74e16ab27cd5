"""The paper's ASQA table: answers with citations over three documents."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from univerb.documents.sentences import splitter_named
from univerb.entailment.scorers import Entailment
from univerb.errors import OptionError
from univerb.lab.judging.reader import Reader
from univerb.lab.markdown import plain
from univerb.lab.metrics.bootstrap import LEVEL, difference
from univerb.lab.protocols.asqa_answers import (
    BARE,
    SYSTEMS,
    WITHOUT,
    AnswerRunner,
    AnswerSystem,
    AsqaAnswer,
    AsqaProtocol,
)
from univerb.lab.protocols.asqa_questions import read_questions
from univerb.lab.protocols.asqa_scoring import (
    Judges,
    SystemScores,
    leading_sentences,
    score_all,
)
from univerb.lab.protocols.experiment import Experiment
from univerb.lab.tables.paper import Column
from univerb.lab.tables.table_results import Setup, SystemRow, TableCell, TableResult
from univerb.modeling.dynamic import DynamicLM
from univerb.modeling.hf_inputs import device_name, short_name

ALCE_FILE = "asqa_eval_gtr_top100"
"""The questions and documents that the paper uses; others are another data set."""
SPLITTER = "pysbd"
"""Splits answers into sentences. ALCE uses NLTK's, which needs data that not every machine has."""
COMPARED = ("Citation_rec", "Citation_prec", "QA-EM", "QA-F1", "Rouge-L", "str-EM")
"""Measures whose differences to the bare LM are noted."""
EXTRA = (
    Column("str-EM", better="higher"),
    Column("Words", decimals=1),
    Column("Cited sentences", "Cited sentences (%)", decimals=1),
    Column("Phrase share", "Phrase share (%)", decimals=1),
)
LEADING = AnswerSystem("leading sentences, cited", "none")
"""A control that needs no LM: the first sentences of documents 1 and 2."""
_PAPER_ROWS = {"ngrams": "w/ n-grams", "parsed": "w/ parsing", "none": "w/o phrases"}
_FROZEN = (
    f"The LM is frozen, so `{WITHOUT.name}` is the text of the `{BARE.name}`, not that of a "
    "fine-tuned LM as in the paper; only its markers stand elsewhere."
)
_NOTES = (
    f"`{BARE.name}` is scored with its markers as typed. Elsewhere they stand at the end of the "
    "sentence, each once, at most three and only numbers of documents that exist, together with "
    "those of copied phrases.",
    "Sentences are not NLTK's, as ALCE's are; a marker behind a full stop counts for the sentence "
    "that ends there.",
    "Rouge-L is the median of bootstrap means, as rouge-score gives it.",
)


def asqa_table(
    experiment: Experiment,
    path: Path,
    nli: Entailment,
    *,
    limit: int | None = 100,
    protocol: AsqaProtocol | None = None,
    reader: Reader | None = None,
    systems: Sequence[AnswerSystem] = SYSTEMS,
) -> TableResult:
    """Answer questions of ASQA with and without phrases, and score the answers.

    Args:
        experiment: The model, what it was trained on, the LM before that, and the folder that
            keeps answers.
        path: The questions, in ALCE's format.
        nli: Decides whether documents support a sentence.
        limit: Maximum number of questions, spread evenly over the file; None for all.
        protocol: The settings of prompts and answers.
        reader: Finds short answers in an answer, for QA-EM and QA-F1.
        systems: The systems that answer.

    Returns:
        The measurements.
    """
    lm, bare, settings = experiment.lm, experiment.bare, protocol or AsqaProtocol()
    if bare is None and experiment.is_tuned:
        raise OptionError(
            f"{lm.name!r} was fine-tuned, so the bare LM is another model. Name it with --bare."
        )
    questions = read_questions(path, limit, settings.documents, settings.first, settings.last)
    runner = AnswerRunner(lm, settings, bare=bare, systems=systems, folder=experiment.folder)
    answers = runner.run(questions, partial(experiment.progress, "asqa: answer"))
    judges = Judges(nli, splitter_named(SPLITTER), reader)
    answers[LEADING.name] = [
        AsqaAnswer({LEADING.markers: leading_sentences(question, judges.split)}, 0.0)
        for question in questions
    ]
    progress = partial(experiment.progress, "asqa: score")
    scores = score_all(questions, answers, (*systems, LEADING), judges, progress)
    setup = Setup(
        model=short_name(lm.model.name_or_path) or lm.name,
        data="asqa" if ALCE_FILE in path.name else f"asqa, {path.name.split('.')[0]}",
        n=len(questions),
        seed=settings.config.seed,
        threads=torch.get_num_threads(),
        timed="",
        training=experiment.training,
        encoder=lm.name,
        documents=settings.documents,
        shots=settings.shots,
        budget=settings.config.max_tokens,
        device=device_name(lm.model.device),
        nli=nli.about.name,
        reader=reader.name if reader else "",
    )
    rows = tuple(_row(each, setup, settings) for each in scores)
    notes = tuple(_notes(scores, nli, is_frozen=bare is None))
    facts = experiment.facts | _facts(settings, nli, lm)
    return TableResult(setup, rows, EXTRA, notes, facts)


def _row(scores: SystemScores, setup: Setup, protocol: AsqaProtocol) -> SystemRow:
    system = scores.system
    if system is LEADING:
        paper_row = section = ""
    elif system.is_bare:
        paper_row, section = "TinyLlama", ""
    else:
        paper_row, section = _PAPER_ROWS[system.phrases], "Ours"
    # The run's model may have been trained, the bare LM was not.
    untrained = replace(setup, training="none") if setup.training != "none" else None
    return SystemRow(
        name=system.name,
        cells={name: TableCell(value) for name, value in scores.means(setup.seed).items()},
        paper_row=paper_row,
        section=section,
        decoding="nucleus" if protocol.config.temperature else "greedy",
        setup=untrained if system.is_bare else None,
    )


def _notes(scores: Sequence[SystemScores], nli: Entailment, *, is_frozen: bool) -> Iterator[str]:
    yield f"Citations are judged by {nli.about}."
    yield from _NOTES
    if is_frozen:
        yield _FROZEN
    bare = next((each for each in scores if each.system.is_bare), None)
    for each in scores:
        name = each.system.name
        if each.empty:
            count = f"{each.empty} of {len(each.answers)} answers are empty"
            yield f"{name}: {count}; citation scores leave them out, as ALCE's do."
        if bare and each is not bare:
            yield (
                f"{name} minus {bare.system.name}, with {LEVEL:.0%} intervals of a paired "
                f"bootstrap over questions: {', '.join(_differences(each, bare))}."
            )


def _differences(scores: SystemScores, bare: SystemScores) -> Iterator[str]:
    for name in COMPARED:
        ours, theirs = scores.values(name), bare.values(name)
        if {*ours} - {None} and {*theirs} - {None}:
            yield f"{name} {difference(ours, theirs)}"


def _facts(protocol: AsqaProtocol, nli: Entailment, lm: DynamicLM) -> dict[str, str]:
    is_chat = lm.has_chat_template if protocol.chat is None else protocol.chat
    options = {**protocol.decoding, "cite": protocol.cite, "encode_marker": protocol.encode_marker}
    last = "the last" if protocol.last is None else f"number {protocol.last}"
    return {
        "NLI": f"{nli.about}, entailed from {nli.about.threshold:g} on",
        "questions": f"spread over those from number {protocol.first} to {last} of the file",
        "prompt": "chat template" if is_chat else "plain",
        "phrases": f"n-grams of 2-8 tokens; parsed by {protocol.parser}",
        "sentences": SPLITTER,
        "options": plain(options),
    }

"""The measurement of `univerb lab answers`."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers

from univerb.lab.answers.cases import AnswerCase
from univerb.lab.answers.report import AnswersReport, SystemFigures
from univerb.lab.answers.systems import SYSTEMS, AnswerRecord, answered, leading
from univerb.lab.protocols.result_cache import ResultCache, results_key
from univerb.modeling.dynamic import DynamicLM

SHEET = "markers.csv"
Progress = Callable[[int, int], object]


def measure_answers(
    lm: DynamicLM,
    sets: Mapping[str, Sequence[AnswerCase]],
    systems: Sequence[str],
    options: Mapping[str, Any],
    folder: Path | None = None,
    verdicts: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> AnswersReport:
    """Let systems answer sets of questions.

    Args:
        lm: The LM and its encoder.
        sets: Questions by the name of their set.
        systems: Names in `SYSTEMS`; the leading sentences come as the last.
        options: Keywords of `univerb.answer` for all of them.
        folder: Answers are kept here as they come.
        verdicts: What a judge says of markers.
        progress: Called after each answer.

    Returns:
        The report, with every answer.
    """
    cache = ResultCache(folder, results_key(lm, None, {"answers": dict(options)}))
    total, done = sum(map(len, sets.values())) * len(systems), 0
    figures, answers = {}, {}
    for name, cases in sets.items():
        by_system: dict[str, list[AnswerRecord]] = {system: [] for system in systems}
        for case in cases:
            for system in systems:
                by_system[system].append(answered(lm, case, system, cache, options))
                done += 1
                if progress:
                    progress(done, total)
        figures[name], answers[name] = _figures(list(by_system.values()), verdicts or {})
    return AnswersReport(_about(lm, options), figures, answers)


def _figures(
    systems: Sequence[Sequence[AnswerRecord]], verdicts: Mapping[str, str]
) -> tuple[list[SystemFigures], list[AnswerRecord]]:
    lengths = [[len(record.text.split()) for record in own] for own in systems]
    shortest = [min(own) for own in zip(*lengths, strict=True)]
    # The control as a row of its own is as long as the first system's answers.
    rows = [*systems, [leading(r.case, n) for r, n in zip(systems[0], lengths[0], strict=True)]]
    figures = [
        SystemFigures.of(
            own,
            [leading(record.case, len(record.text.split())) for record in own],
            shortest,
            verdicts,
        )
        for own in rows
    ]
    return figures, [record for own in zip(*rows, strict=True) for record in own]


def _about(lm: DynamicLM, options: Mapping[str, Any]) -> dict[str, Any]:
    from univerb.retrieval.embedder import default_embedder

    return {
        "model": lm.name,
        "precision": "float32",
        "prompt": "chat template" if lm.has_chat_template else "plain",
        "retrieval": "BM25 and all-MiniLM-L6-v2" if default_embedder() else "BM25",
        "decoding": f"greedy, {dict(options)}" if options else "as `univerb answer` does",
        "systems": ", ".join(SYSTEMS),
        "versions": f"torch {torch.__version__}, transformers {transformers.__version__}",
        "intervals": "90 %, paired bootstrap over questions",
    }

"""The measurement of `univerb lab answers`."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers

import univerb
from univerb.lab.answers.cases import AnswerCase
from univerb.lab.answers.report import AnswersReport, SystemFigures
from univerb.lab.answers.systems import SYSTEMS, AnswerRecord, answered, leading, retrieved
from univerb.lab.protocols.result_cache import ResultCache, results_key, short_hash
from univerb.modeling.dynamic import DynamicLM
from univerb.retrieval.embedder import default_embedder

SHEET = "markers.csv"
CONTROLS = (leading, retrieved)
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
        systems: Names in `SYSTEMS`; the controls come as the last.
        options: Keywords of `univerb.answer` for all of them.
        folder: Answers are kept here as they come.
        verdicts: What a judge says of markers.
        progress: Called after each answer.

    Returns:
        The report, with every answer.
    """
    cache = ResultCache(folder, _key(lm, systems, options))
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
    return AnswersReport(_about(lm, systems, options), figures, answers)


def _figures(
    systems: Sequence[Sequence[AnswerRecord]], verdicts: Mapping[str, str]
) -> tuple[list[SystemFigures], list[AnswerRecord]]:
    # Controls as rows of their own are as long as the first system's answers.
    rows = [*systems, *([make(r.case, r.words) for r in systems[0]] for make in CONTROLS)]
    shortest = [
        min(filter(None, (r.words for r in own)), default=0) for own in zip(*systems, strict=True)
    ]
    figures = [
        SystemFigures.of(
            own, [[make(r.case, r.words) for r in own] for make in CONTROLS], shortest, verdicts
        )
        for own in rows
    ]
    return figures, [record for own in zip(*rows, strict=True) for record in own]


def _key(lm: DynamicLM, systems: Sequence[str], options: Mapping[str, Any]) -> str:
    """Return a hash of all that answers depend on but the question."""
    settings = {name: dict(SYSTEMS[name]) for name in systems}
    embedder = default_embedder()
    means = {"embedder": embedder is not None, "code": product_code(), "answers": dict(options)}
    return results_key(lm, None, means | settings)


def product_code() -> str:
    """Return a hash of the product's source: what another version answered is not this one's."""
    package = Path(univerb.__file__).parent
    files = (path for path in package.rglob("*.py") if path.relative_to(package).parts[0] != "lab")
    return short_hash([path.read_text(encoding="utf-8") for path in sorted(files)])


def _about(lm: DynamicLM, systems: Sequence[str], options: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "model": lm.name,
        "precision": str(lm.model.dtype).removeprefix("torch."),
        "threads": torch.get_num_threads(),
        "prompt": "chat template" if lm.has_chat_template else "plain",
        "retrieval": "BM25 and all-MiniLM-L6-v2" if default_embedder() else "BM25",
        "decoding": dict(options) or "greedy, as `univerb answer` does",
        "systems": ", ".join(systems),
        "code": product_code(),
        "versions": f"torch {torch.__version__}, transformers {transformers.__version__}",
        "intervals": "90 %, paired bootstrap over questions",
    }

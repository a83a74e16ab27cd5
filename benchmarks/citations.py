"""Answers over ASQA questions with their real passages: is every citation what its source says?

    python benchmarks/citations.py      writes benchmarks/results/citations.*

Every span is compared with the passage as it stands in the data, not with what the library kept.
"""

import argparse
import gzip
import json
from collections.abc import Iterator
from typing import Any

import torch
from rich.progress import track
from transformers.utils import logging

import univerb
from report import DATA, machine, need_data, write_report
from univerb.modeling.dynamic import DynamicLM
from univerb.phrase import Document

SYSTEMS: dict[str, dict[str, Any]] = {
    "n-grams, chat": {"phrases": "ngrams"},
    "n-grams, one-shot": {"phrases": "ngrams", "chat": False, "shots": 1},
    "parsed, one-shot": {"phrases": "parsed", "chat": False, "shots": 1},
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--questions", type=int, default=20)
    parser.add_argument("--max-tokens", type=int, default=100)
    arguments = parser.parse_args()
    need_data("asqa")
    torch.set_num_threads(2)
    logging.disable_progress_bar()
    lm = univerb.load()
    report: dict[str, Any] = {}
    for name, options in SYSTEMS.items():
        items = list(questions(arguments.questions))
        rows = [one(lm, *item, arguments.max_tokens, options) for item in track(items, name)]
        report[name] = {"machine": machine(), **summary(rows, arguments.max_tokens, lm)}
        print(name, json.dumps(report[name], indent=2))
        write_report("citations", "Citations on ASQA", "benchmarks/citations.py", report)


def questions(count: int) -> Iterator[tuple[str, list[Document]]]:
    path = DATA / "asqa" / "asqa_200_with_docs.json.gz"
    with gzip.open(path, "rt", encoding="utf-8") as file:
        items = json.load(file)
    for item in items[:count]:
        docs = item["docs"][:3]
        yield (
            item["question"],
            [Document(doc["text"], f"{i} {doc['title']}") for i, doc in enumerate(docs, 1)],
        )


def one(
    lm: DynamicLM,
    question: str,
    documents: list[Document],
    max_tokens: int,
    options: dict[str, Any],
) -> dict[str, Any]:
    answer = univerb.answer(lm, question, documents, max_tokens=max_tokens, **options)
    texts = {document.name: document.text for document in documents}
    found = answer.to_dict()
    exact = [texts[c["document"]][c["start"] : c["end"]] == c["text"] for c in found["citations"]]
    shown = [
        " ".join(found["text"][c["answer_start"] : c["answer_end"]].split())
        == " ".join(c["text"].split())
        for c in found["citations"]
    ]
    return {
        "citations": len(exact),
        "exact": sum(exact),
        "shown": sum(shown),
        "words": sum(len(c["text"].split()) for c in found["citations"]),
        "tokens": answer.generation.stats.base_tokens,
        "phrase_share": answer.generation.stats.phrase_share,
        "passes": answer.generation.stats.steps + 1,
    }


def summary(rows: list[dict[str, Any]], max_tokens: int, lm: DynamicLM) -> dict[str, Any]:
    profile = ", ".join(f"{name} {value}" for name, value in lm.profile.model_dump().items())
    total = {name: sum(row[name] for row in rows) for name in rows[0]}
    return {
        "what": f"{len(rows)} ASQA questions, 3 passages each, greedy, at most {max_tokens} "
        f"tokens, the shipped encoder at its profile: {profile}",
        "questions": len(rows),
        "citations": total["citations"],
        "spans_equal_to_source": total["exact"],
        "spans_equal_to_answer": total["shown"],
        "share_of_answers_with_a_citation": sum(r["citations"] > 0 for r in rows) / len(rows),
        "citations_per_answer": total["citations"] / len(rows),
        "words_per_citation": total["words"] / max(total["citations"], 1),
        "phrase_share": total["phrase_share"] / len(rows),
        "tokens_per_pass": total["tokens"] / total["passes"],
    }


if __name__ == "__main__":
    main()

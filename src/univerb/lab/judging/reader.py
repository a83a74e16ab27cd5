"""An extractive reader: QA-EM and QA-F1 (docs/method.md, Metrics: answers).

ALCE asks RoBERTa-large trained on SQuAD through the question-answering pipeline of transformers,
which version 5 no longer has; the search for the span is that pipeline's.
"""

from collections.abc import Sequence
from typing import NamedTuple

import tokenizers
import torch
from torch import Tensor
from transformers import AutoModelForQuestionAnswering, PreTrainedModel
from transformers import PreTrainedTokenizerFast as HFTokenizer

from univerb.entailment.pair_windows import outputs, pair_windows
from univerb.errors import ModelError
from univerb.locations import locate
from univerb.modeling.hf_inputs import longest_input, short_name, shortened
from univerb.modeling.pretrained import SAFE_FORM, dtype_named, load_pretrained

PAPER_READER = "gaotianyu1350/roberta-large-squad"
"""The reader of the published figures."""
MAX_ANSWER = 15
"""Tokens of an answer."""
QuestionText = tuple[str, str]
"""A question, and the text that may answer it."""

_MAX_LENGTH = 384


class AnswerSpan(NamedTuple):
    """The best answer in one window."""

    start: int
    """Its first token."""
    end: int
    """Its last token."""
    score: float
    """The probability that it begins and ends there."""
    none: float
    """The probability that there is no answer in the window."""


class Reader:
    """Extracts answers.

    A text that is too long is cut into overlapping windows: its best span counts, against the
    lowest score that "no answer" has in any window.

    Args:
        model: An extractive reader, in evaluation mode.
        tokenizer: Its fast tokenizer.
        name: In tables.

    Raises:
        ModelError: If the tokenizer puts nothing before a question that could mean "no answer".
    """

    def __init__(self, model: PreTrainedModel, tokenizer: HFTokenizer, name: str) -> None:
        if tokenizer("a")["input_ids"][0] != tokenizer.cls_token_id:
            raise ModelError(
                f"the tokenizer of {name!r} puts no [CLS] token first, at which a reader says that "
                "there is no answer. Give a reader such as RoBERTa or BERT."
            )
        self.name = name
        """Printed beside every score that comes from it."""
        self._model, self._tokenizer = model, tokenizer
        self._max_length = longest_input(model, tokenizer, _MAX_LENGTH)

    @torch.inference_mode()
    def answers(self, questions: Sequence[QuestionText]) -> list[str]:
        """Return the answer to each question as whole words of its text; empty if there is none."""
        if not questions:
            return []
        # A third for the question at most, and a third that windows have in common.
        third = self._max_length // 3
        cut = [
            (shortened(self._tokenizer, question, third), text or " ")
            for question, text in questions
        ]
        windows = pair_windows(self._tokenizer, cut, "only_second", self._max_length, third)
        spans: dict[int, AnswerSpan] = {}
        for rows, output in outputs(self._model, self._tokenizer, windows):
            logits = torch.stack([output.start_logits, output.end_logits], 1).float().cpu()
            for row, (start, end) in zip(rows, logits, strict=True):
                parts = windows.encodings[row].sequence_ids
                is_text = torch.tensor([part == 1 for part in parts])
                spans[row] = best_span(start[: len(parts)], end[: len(parts)], is_text)
        return [
            _answer(text, [(spans[row], windows.encodings[row]) for row in rows])
            for (_, text), rows in zip(questions, windows.by_pair(), strict=True)
        ]


def load_reader(
    name: str = PAPER_READER,
    *,
    device: str = "cpu",
    dtype: str = "float32",
    offline: bool | None = None,
) -> Reader:
    """Load a folder or Hub id of an extractive question-answering model.

    Raises ModelMissing if it is not on this machine and may not or cannot be downloaded, ModelError
    if it is no such model or cannot be loaded safely.
    """
    weights, where = dtype_named(dtype), locate(name, offline)
    advice = f"Give an extractive question-answering model {SAFE_FORM}"
    model, tokenizer = load_pretrained(
        where, lambda _: AutoModelForQuestionAnswering, advice, dtype=weights, offline=offline
    )
    return Reader(model.to(device), tokenizer, short_name(name))


def best_span(start: Tensor, end: Tensor, is_text: Tensor) -> AnswerSpan:
    """Find the most likely answer of one window.

    `start` and `end` are logits (T,) of the answer's first and last token. Both are independent,
    each among the text's tokens and the window's first one, which stands for no answer. The span
    has at most `MAX_ANSWER` tokens; without any text it is the first token, with score 0.
    """
    is_allowed = is_text.clone()
    is_allowed[0] = True
    begins, ends = (side.masked_fill(~is_allowed, -torch.inf).softmax(-1) for side in (start, end))
    scores = torch.outer(begins * is_text, ends * is_text).triu().tril(MAX_ANSWER - 1)
    first, last = divmod(int(scores.argmax()), len(is_text))
    return AnswerSpan(first, last, float(scores[first, last]), float(begins[0] * ends[0]))


def _answer(text: str, windows: Sequence[tuple[AnswerSpan, tokenizers.Encoding]]) -> str:
    best, encoding = max(windows, key=lambda window: window[0].score)
    if best.start == 0 or min(span.none for span, _ in windows) > best.score:
        return ""
    (begin, _), (_, end) = (_word(encoding, token) for token in (best.start, best.end))
    return text[begin:end]


def _word(encoding: tokenizers.Encoding, token: int) -> tuple[int, int]:
    """Return the characters of the word that a token of the text is in."""
    word = encoding.token_to_word(token)
    # Some tokenizers know no words.
    characters = None if word is None else encoding.word_to_chars(word, 1)
    return characters or encoding.offsets[token]

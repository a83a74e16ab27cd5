"""A model that reads a text and points at the answer to a question: QA-EM and QA-F1 (METHOD C.9).

ALCE asks RoBERTa-large trained on SQuAD through the question-answering pipeline of transformers,
which version 5 no longer has; the search for the span is that pipeline's, written anew.
"""

from collections.abc import Sequence
from typing import NamedTuple

import tokenizers
import torch
from torch import Tensor
from transformers import AutoModelForQuestionAnswering, PreTrainedModel
from transformers import PreTrainedTokenizerFast as HFTokenizer

from univerb.errors import ModelError, OptionError
from univerb.lab.protocols.hf_models import (
    dtype_named,
    load_judge,
    longest_input,
    short_name,
    shortened,
)
from univerb.locations import locate

PAPER_READER = "gaotianyu1350/roberta-large-squad"
"""The reader of the published figures."""
MAX_ANSWER = 15
"""Tokens of an answer."""
Question = tuple[str, str]
"""A question, and the text to look for its answer in."""

_MAX_LENGTH = 384


class Span(NamedTuple):
    """The best place for an answer in one window."""

    start: int
    """Its first token."""
    end: int
    """Its last token."""
    score: float
    """The probability that it begins and ends there."""
    none: float
    """The probability that there is no answer in the window."""


class Reader:
    """Points at answers.

    A text that is too long is cut into overlapping windows: its best span counts, against the
    lowest score that "no answer" has in any window.

    Args:
        model: An extractive reader, in evaluation mode.
        tokenizer: Its fast tokenizer.
        name: What tables call it.
        batch: Windows that are read at a time.

    Raises:
        ModelError: If the tokenizer puts nothing before a question that could mean "no answer".
        OptionError: If batch is not positive.
    """

    def __init__(
        self, model: PreTrainedModel, tokenizer: HFTokenizer, name: str, *, batch: int = 16
    ) -> None:
        if batch < 1:
            raise OptionError(f"batch is {batch}; read at least 1 window at a time.")
        if tokenizer("a")["input_ids"][0] != tokenizer.cls_token_id:
            raise ModelError(
                f"the tokenizer of {name!r} puts no [CLS] token first, at which a reader says that "
                "there is no answer. Give a reader such as RoBERTa or BERT."
            )
        self.name = name
        """Printed beside every score that comes from it."""
        self._model, self._tokenizer, self._batch = model, tokenizer, batch
        self._max_length = longest_input(model, tokenizer, _MAX_LENGTH)

    @torch.inference_mode()
    def answers(self, questions: Sequence[Question]) -> list[str]:
        """Return the answer to each question, as it stands in its text; empty if there is none.

        Args:
            questions: Questions and texts, of any length; an empty text is read as a space.

        Returns:
            The answers, whole words.
        """
        if not questions:
            return []
        windows, encodings, owners = self._windows(questions)
        # Of one length, so that little is padding.
        order = sorted(range(len(owners)), key=lambda i: len(encodings[i]))
        spans: dict[int, Span] = {}
        for begin in range(0, len(order), self._batch):
            rows = order[begin : begin + self._batch]
            inputs = {name: [values[row] for row in rows] for name, values in windows.items()}
            padded = self._tokenizer.pad(inputs, return_tensors="pt").to(self._model.device)
            output = self._model(**padded)
            logits = torch.stack([output.start_logits, output.end_logits], 1).float().cpu()
            for row, (start, end) in zip(rows, logits, strict=True):
                is_text = torch.tensor([part == 1 for part in encodings[row].sequence_ids])
                size = len(is_text)
                spans[row] = best_span(start[:size], end[:size], is_text)
        found: list[list[int]] = [[] for _ in questions]
        for row, owner in enumerate(owners):
            found[owner].append(row)
        return [
            _answer(text, [spans[row] for row in rows], [encodings[row] for row in rows])
            for (_, text), rows in zip(questions, found, strict=True)
        ]

    def _windows(
        self, questions: Sequence[Question]
    ) -> tuple[dict[str, list[list[int]]], list[tokenizers.Encoding], list[int]]:
        """Encode questions; returns the windows, and which question each belongs to."""
        # A third for the question at most, and a third that windows have in common: each goes on.
        part = self._max_length // 3
        encoded = self._tokenizer(
            [shortened(self._tokenizer, question, part) for question, _ in questions],
            [text or " " for _, text in questions],
            truncation="only_second",
            max_length=self._max_length,
            stride=part,
            return_overflowing_tokens=True,
        )
        owners = encoded.pop("overflow_to_sample_mapping")
        return dict(encoded), encoded.encodings, owners


def load_reader(
    name: str = PAPER_READER,
    *,
    device: str = "cpu",
    dtype: str = "float32",
    batch: int = 16,
    offline: bool | None = None,
) -> Reader:
    """Load a reader.

    Args:
        name: A folder or Hub id of an extractive question-answering model.
        device: Where to put it, as torch names devices.
        dtype: float32, bfloat16 or float16.
        batch: Windows that are read at a time.
        offline: Never contact the Hub; by default as the environment says.

    Returns:
        The reader.

    Raises:
        ModelMissing: If it is not on this machine and may not or cannot be downloaded.
        ModelError: If it is no such model, or cannot be loaded safely.
        OptionError: If dtype is unknown.
    """
    weights, where = dtype_named(dtype), locate(name, offline)
    model, tokenizer = load_judge(
        where,
        lambda _: AutoModelForQuestionAnswering,
        "an extractive question-answering model",
        dtype=weights,
        offline=offline,
    )
    return Reader(model.to(device), tokenizer, short_name(name), batch=batch)


def best_span(start: Tensor, end: Tensor, is_text: Tensor) -> Span:
    """Find the most likely answer of one window.

    Begin and end are drawn independently, each among the text's tokens and the first one of the
    window, which stands for no answer.

    Args:
        start: (T,), logits of the answer's first token.
        end: (T,), logits of its last one.
        is_text: (T,), which tokens are the text's.

    Returns:
        The best span of at most `MAX_ANSWER` tokens; at the first token, with score 0, if there is
        no text.
    """
    is_allowed = is_text.clone()
    is_allowed[0] = True
    begins, ends = (side.masked_fill(~is_allowed, -torch.inf).softmax(-1) for side in (start, end))
    scores = torch.outer(begins * is_text, ends * is_text).triu().tril(MAX_ANSWER - 1)
    first, last = divmod(int(scores.argmax()), len(is_text))
    return Span(first, last, float(scores[first, last]), float(begins[0] * ends[0]))


def _answer(text: str, spans: Sequence[Span], encodings: Sequence[tokenizers.Encoding]) -> str:
    number = max(range(len(spans)), key=lambda i: spans[i].score)
    best = spans[number]
    if best.start == 0 or min(own.none for own in spans) > best.score:
        return ""
    encoding = encodings[number]
    (begin, _), (_, end) = (_whole(encoding, token) for token in (best.start, best.end))
    return text[begin:end]


def _whole(encoding: tokenizers.Encoding, token: int) -> tuple[int, int]:
    """Return the characters of the word that a token of the text is in."""
    word = encoding.token_to_word(token)
    # Some tokenizers know no words.
    found = None if word is None else encoding.word_to_chars(word, 1)
    return found or encoding.offsets[token]

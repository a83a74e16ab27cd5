"""Everything that univerb raises on purpose.

UniverbError
  DocumentError      a file or text that cannot be read as a document
  PhraseError        a phrase that cannot join a vocabulary
  VocabularyError    an id or a vocabulary that does not fit
  OptionError        an option out of its range
  PromptError        an empty prompt, or one longer than the context
  ModelError         a backbone that cannot be loaded or wrapped
    ModelMissing     the weights are not on this machine
  CheckpointError    an encoder that is corrupt, too new, or made for another backbone
  CorpusError        a corpus that is missing, busy, too new, or made for another model
    CorruptCorpusError  a corpus whose files are damaged
  WorkerError        a process or machine that died at its work
  TrainingError      a run that cannot go on
  MissingExtra       an optional dependency that is not installed

Each message says what was given, what is allowed and what to do next.
"""

import difflib
from collections.abc import Iterable


class UniverbError(Exception):
    """Base of every error that univerb raises on purpose."""


class DocumentError(UniverbError):
    """A file or text cannot be read as a document."""


class PhraseError(UniverbError):
    """A phrase cannot join a vocabulary."""


class VocabularyError(UniverbError):
    """An id is unknown, or a vocabulary belongs to another model."""


class OptionError(UniverbError, ValueError):
    """An option is out of its range."""


class PromptError(UniverbError, ValueError):
    """A prompt is empty or longer than the context."""


class ModelError(UniverbError):
    """A backbone cannot be loaded or wrapped."""


class ModelMissing(ModelError):
    """The weights are not on this machine."""


class CheckpointError(UniverbError):
    """An encoder checkpoint is corrupt, too new, or made for another backbone."""


class CorpusError(UniverbError):
    """A corpus is missing, busy, too new, or made for another model."""


class CorruptCorpusError(CorpusError):
    """The files of a corpus are damaged."""


class WorkerError(UniverbError):
    """A process or machine died at its work."""


class TrainingError(UniverbError):
    """A run cannot go on: its loss is no number any more."""


class MissingExtra(UniverbError, ImportError):
    """An optional dependency is not installed."""

    def __init__(self, package: str, extra: str) -> None:
        # The arguments as they are: in another process an error is made anew from them.
        super().__init__(package, extra)
        self.package, self.extra = package, extra

    def __str__(self) -> str:
        return (
            f"{self.package!r} is not installed. "
            f"Install it with: pip install 'univerb[{self.extra}]'"
        )


def did_you_mean(name: str, allowed: Iterable[str]) -> str:
    """Return the end of an error message: the nearest allowed name, and all of them."""
    names = sorted(allowed)
    close = difflib.get_close_matches(name, names, n=1)
    hint = f"Did you mean {close[0]!r}? " if close else ""
    return f"{hint}Allowed: {', '.join(names)}."


def first_line(error: Exception) -> str:
    """Return the first line of a library's error message, without a full stop."""
    line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return line[:200].rstrip(".")

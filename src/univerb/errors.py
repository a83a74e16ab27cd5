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
import json
import shlex
import sys
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
        extra = f"univerb[{self.extra}]"
        return f"{self.package!r} is not installed. It is in {extra}: {_install(self.extra)}"


def _install(extra: str) -> str:
    """Return the command that adds an extra to univerb as it is installed here."""
    from importlib.metadata import PackageNotFoundError, distribution
    from urllib.parse import urlsplit
    from urllib.request import url2pathname

    try:
        origin = json.loads(distribution("univerb").read_text("direct_url.json") or "{}")
        folder = url2pathname(urlsplit(origin["url"]).path)
        how = ["-e"] if origin["dir_info"].get("editable") else []
    except (PackageNotFoundError, ValueError, KeyError, AttributeError):  # not from a folder
        return f"pip install 'univerb[{extra}]'"
    # The Python that runs: a checkout's environment need not be the active one.
    return shlex.join([sys.executable, "-m", "pip", "install", *how, f"{folder}[{extra}]"])


def shown(value: object) -> str:
    """Return what was given as a message may show it: whatever it is, and not too long."""
    try:
        text = repr(value)
    except Exception:  # of an object of the user's, or a number of more digits than Python writes
        text = f"<{type(value).__name__}>"
    return text if len(text) <= 80 else f"{text[:80]}…"


def did_you_mean(name: object, allowed: Iterable[str]) -> str:
    """Return the end of an error message: the nearest allowed name, and all of them."""
    names = sorted(allowed)
    close = difflib.get_close_matches(name, names, n=1) if isinstance(name, str) else []
    hint = f"Did you mean {close[0]!r}? " if close else ""
    return f"{hint}Allowed: {', '.join(names)}."


def first_line(error: Exception) -> str:
    """Return the first line of a library's error message, without a full stop."""
    line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return line[:200].rstrip(".")

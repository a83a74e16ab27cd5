"""What was measured for a table, and with which settings, as values that JSON can hold."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path

from univerb.errors import OptionError
from univerb.lab.tables.paper import Column


@dataclass(frozen=True, slots=True)
class TableCell:
    """The value of a cell."""

    value: float
    spread: float | None = None
    """Its standard deviation or half its interval; the table's notes say which."""
    n: int | None = None
    """Number of cases, if not the setup's `n`."""

    def __post_init__(self) -> None:
        if not math.isfinite(self.value) or not math.isfinite(self.spread or 0.0):
            raise OptionError(
                f"A value must be finite, not {self.value} ± {self.spread}. "
                "Leave out the cell of what could not be measured."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Settings that values depend on; an empty text or None: does not apply, or is not known."""

    model: str
    """The backbone: a name, a path or a Hub id, of which the last part counts."""
    data: str
    """Such as `wikitext-103 test`, `lawmt test` or `asqa`; another form of them is another name."""
    n: int
    """Prefixes, questions or cases."""
    seed: int
    threads: int
    timed: str
    """What is inside the timed part: `decode` (prefill too), `retrieve + encode + decode`."""
    scorer: str = ""
    """The model that PPL is of."""
    featuriser: str = ""
    """The model that MAUVE's features are of."""
    training: str = "none"
    """What the LM was fine-tuned on."""
    encoder: str = ""
    retriever: str = ""
    documents: int | None = None
    """Number of documents that are retrieved, or shown."""
    phrases: str = ""
    """Which phrases of these are offered."""
    shots: int | None = None
    prefix: int | None = None
    """Tokens of the prompt."""
    budget: int | None = None
    """Base tokens that are generated."""
    tokenizer: str = ""
    """Whose tokens units are counted against."""
    splitter: str = ""
    """What splits texts into words for Rep-n (`metrics.repetition.words`)."""
    device: str = "cpu"
    kv_cache: bool = True
    nli: str = ""
    reader: str = ""
    judge: str = ""

    def __post_init__(self) -> None:
        # Results are published: they name models, not the folders of a machine.
        for setting in fields(self):
            value = getattr(self, setting.name)
            if isinstance(value, str) and Path(value).is_absolute():
                object.__setattr__(self, setting.name, Path(value).name)


@dataclass(frozen=True, slots=True)
class SystemRow:
    """The measurements of a system."""

    name: str
    cells: Mapping[str, TableCell]
    """By name of column."""
    paper_row: str = ""
    """The name of the paper's row to compare with; empty if the paper has none."""
    section: str = ""
    decoding: str = ""
    setup: Setup | None = None
    """If this row was measured with other settings than the table."""


@dataclass(frozen=True, slots=True)
class TableResult:
    """All measurements for a table."""

    setup: Setup
    rows: tuple[SystemRow, ...]
    extra: tuple[Column, ...] = ()
    """Columns that the paper does not have."""
    notes: tuple[str, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict)
    """More to print about the run: versions, corpus, accuracy of a judge."""

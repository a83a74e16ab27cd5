"""Chat templates, rendered as transformers renders them, without importing it.

A template is a program that came with a model: it runs in jinja2's sandbox, without access to
anything but the messages, and its output is bounded.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn

from univerb.errors import PromptError, first_line

if TYPE_CHECKING:
    from jinja2 import Template

Turn = Mapping[str, str]
"""A message: its role and content."""
_MAX_SOURCE = 1 << 20
_ROOM = 1 << 20
"""Characters that a template may add to the messages."""


class ChatTemplate:
    """A model's way to write messages as one text."""

    def __init__(self, source: str, special: Mapping[str, str], name: str) -> None:
        self._source, self._special, self._name = source, dict(special), name

    def render(self, turns: Sequence[Turn]) -> str:
        """Return messages as text that the model's answer continues."""
        limit = _ROOM + 16 * sum(len(turn["content"]) for turn in turns)
        parts: list[str] = []
        size = 0
        try:
            for part in self._template.generate(
                messages=[dict(turn) for turn in turns], add_generation_prompt=True, **self._special
            ):
                parts.append(part)
                size += len(part)
                if size > limit:
                    raise ValueError(f"it writes more than {limit} characters")
        except Exception as error:  # a template can make anything fail
            raise PromptError(
                f"the chat template of {self._name!r} cannot write this: {first_line(error)}. "
                "Change the messages, or use a plain prompt."
            ) from error
        return "".join(parts)

    @cached_property
    def _template(self) -> "Template":
        from jinja2 import nodes
        from jinja2.ext import Extension, loopcontrols
        from jinja2.parser import Parser
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        class Generation(Extension):
            """Reads {% generation %}, which only marks what the model is to learn."""

            tags = {"generation"}  # noqa: RUF012

            def parse(self, parser: Parser) -> list[nodes.Node]:
                next(parser.stream)
                return parser.parse_statements(("name:endgeneration",), drop_needle=True)

        if len(self._source) > _MAX_SOURCE:
            raise ValueError(f"it has {len(self._source)} characters; at most {_MAX_SOURCE} may be")
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        return environment.from_string(self._source)


def _to_json(
    value: Any,  # noqa: ANN401  (of any type)
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Write JSON plainly: jinja2's own filter is for HTML."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _refuse(reason: object) -> NoReturn:
    """Let a template say what it cannot write."""
    raise ValueError(str(reason))

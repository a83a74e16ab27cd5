"""Flags made from the fields of option classes: name, type, default and help are written once."""

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer
from pydantic import BaseModel, ConfigDict, ValidationError

from univerb.config import Profile, describe
from univerb.errors import OptionError


class Options(BaseModel):
    """A group of flags. A field's docstring is the flag's help, its alias the flag's name."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    def __init__(self, **typed: Any) -> None:  # noqa: ANN401  (checked by pydantic)
        try:
            super().__init__(**typed)
        except ValidationError as error:
            raise OptionError(describe(error, type(self))) from None


@dataclass(frozen=True)
class Flags:
    """Marks a parameter of a verb whose fields are flags: `Annotated[SomeOptions, Flags(…)]`."""

    panel: str
    """The heading of the flags in the verb's help."""
    only: tuple[str, ...] = ()
    """The fields to have, if not all."""
    without: tuple[str, ...] = ()
    """The fields to leave out."""
    panels: Mapping[str, str] = field(default_factory=dict)
    """Other headings, by field."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Other names, by field."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Other defaults, by field."""


class _Group:
    """The flags that stand for one parameter of a verb."""

    def __init__(self, options: type[BaseModel], flags: Flags) -> None:
        self._options, self._flags = options, flags
        self._fields = {
            name: options.model_fields[name]
            for name in flags.only or options.model_fields
            if name not in flags.without
        }

    def parameters(self) -> Iterator[inspect.Parameter]:
        """Yield what typer makes the flags from; None is what was not typed."""
        for name, info in self._fields.items():
            kind, meaning = _parsed_as(info.annotation)
            default = self._default(name)
            flag = self._flag(name).replace("_", "-")
            spelled = f"--{flag}" if len(flag) > 1 else f"-{flag}"
            if meaning is True and default is not False:
                spelled += f"/--no-{flag}"
            option = typer.Option(
                spelled,
                help=" ".join((info.description or "").split()),
                show_default=str(default) if default or type(default) in (int, float) else False,
                rich_help_panel=self._flags.panels.get(name, self._flags.panel),
            )
            yield inspect.Parameter(
                self._flag(name),
                inspect.Parameter.KEYWORD_ONLY,
                default=None,
                annotation=Annotated[kind | None, option],
            )

    def read(self, typed: dict[str, Any]) -> BaseModel:
        """Take the group's flags out of what was typed, and make the options of them."""
        values = dict(self._flags.defaults)
        for name, info in self._fields.items():
            value, (_, meaning) = typed.pop(self._flag(name)), _parsed_as(info.annotation)
            if value not in (None, []):
                values[info.alias or name] = meaning if meaning and value is True else value
        return self._options(**values)

    def _flag(self, name: str) -> str:
        return self._flags.names.get(name) or self._fields[name].alias or name

    def _default(self, name: str) -> Any:  # noqa: ANN401  (of any type)
        if issubclass(self._options, Profile) and name in Profile.model_fields:
            return "as the model's profile says"
        return self._flags.defaults.get(name, self._fields[name].default)


def _parsed_as(annotation: Any) -> tuple[Any, Any]:  # noqa: ANN401  (a type)
    """Return the type that a flag is parsed as and, for a switch, what it means when typed."""
    alternatives = [kind for kind in get_args(annotation) if kind is not NoneType]
    if NoneType in get_args(annotation):
        (annotation,) = alternatives
    if annotation is bool:
        return bool, True
    if get_origin(annotation) is Literal and len(get_args(annotation)) == 1:
        return bool, get_args(annotation)[0]
    return (list[str] if get_origin(annotation) in (list, tuple) else annotation), None


def with_flags(verb: Callable[..., None]) -> Callable[..., None]:
    """Give a verb a flag for each field of its parameters that are marked with `Flags`."""
    parameters: list[inspect.Parameter] = []
    groups: dict[str, _Group] = {}
    for name, hint in get_type_hints(verb, include_extras=True).items():
        marks = getattr(hint, "__metadata__", ())
        if marks and isinstance(marks[0], Flags):
            groups[name] = _Group(get_args(hint)[0], marks[0])
            parameters += groups[name].parameters()
        elif name != "return":
            parameter = inspect.signature(verb).parameters[name]
            kind = inspect.Parameter.KEYWORD_ONLY
            parameters.append(parameter.replace(annotation=hint, kind=kind))

    @functools.wraps(verb)
    def run(**typed: Any) -> None:  # noqa: ANN401  (what typer parsed)
        options = {name: group.read(typed) for name, group in groups.items()}
        verb(**typed, **options)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run

"""Settings from the environment: one frozen struct for each program, with every field documented and typed.

A field is read from the variable with its name in upper case, or from the variables that `setting(…)` names. The first
variable that is set wins.
"""

from collections.abc import Mapping
from enum import Enum
from functools import cache
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from portside.kernel.errors import UserMistake

S = TypeVar("S", bound=msgspec.Struct)
_TRUE_WORDS = frozenset({"true", "yes", "on"})
_FALSE_WORDS = frozenset({"false", "no", "off"})


class SettingDoc(msgspec.Struct, frozen=True):
    """A setting as the reference pages show it."""

    names: tuple[str, ...]
    type: str
    default: Any
    description: str


def setting(description: str, *names: str) -> msgspec.Meta:
    """Describe a setting, and name the environment variables that it is read from."""
    return msgspec.Meta(description=description, extra={"names": names})


def split_names(text: str | None) -> list[str]:
    """Return the parts of a value that lists names, separated by commas; none for an empty value."""
    return [name.strip() for name in (text or "").split(",") if name.strip()]


def list_names(kind: type[msgspec.Struct], field: str) -> tuple[str, ...]:
    """Return the environment names of a field, the preferred one first."""
    return _describe_fields(kind)[field].names


def describe(kind: type[msgspec.Struct]) -> list[SettingDoc]:
    """List the settings of a program in the order they are declared."""
    return list(_describe_fields(kind).values())


@cache
def _describe_fields(kind: type[msgspec.Struct]) -> dict[str, SettingDoc]:
    hints = get_type_hints(kind, include_extras=True)
    return {field.name: _describe_field(kind, field, hints[field.name]) for field in msgspec.structs.fields(kind)}


def _describe_field(kind: type[msgspec.Struct], field: msgspec.structs.FieldInfo, hint: Any) -> SettingDoc:
    annotations = getattr(hint, "__metadata__", ())
    meta = next((item for item in annotations if item.description and item.extra is not None), None)
    if meta is None:
        raise TypeError(
            f"setting {kind.__name__}.{field.name} is not documented; annotate it with setting(description)"
        )

    return SettingDoc(
        names=meta.extra["names"] or (field.name.upper(),),
        type=_describe_type(hint),
        default=None if field.default is msgspec.NODEFAULT else field.default,
        description=meta.description,
    )


def _describe_type(hint: Any) -> str:
    """Return a type as the reference pages show it: the values of a choice, or the type's name, without None."""
    if hasattr(hint, "__metadata__"):
        return _describe_type(hint.__origin__)
    if get_origin(hint) is Literal:
        return ", ".join(str(value) for value in get_args(hint))
    if isinstance(hint, type) and issubclass(hint, Enum):
        return ", ".join(str(member.value) for member in hint)

    members = [member for member in get_args(hint) if member is not type(None)]
    if not members:
        return str(hint.__name__)

    return " or ".join(_describe_type(member) for member in members)


def load_settings(kind: type[S], environ: Mapping[str, str], **overrides: Any) -> S:
    """Read a settings struct; `overrides`, the options of a command, win if they are not None.

    Raises UserMistake, which names the bad variable or option.
    """
    values, origins = _collect_values(kind, environ, overrides)
    for field in msgspec.structs.fields(kind):
        if field.required and field.name not in values:
            raise UserMistake(f"setting {list_names(kind, field.name)[0]}: not set, and there is no default")

    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as exc:
        path = str(exc).rsplit("$.", 1)[-1].rstrip("`")
        reason = str(exc).rsplit(" - at", 1)[0]
        if "matching regex" in reason:
            # The description says what is expected in words; a regular expression would not help the reader.
            reason = f"this value does not have the right form. {_describe_fields(kind)[path].description}"

        origin = origins.get(path, f"setting {path.upper()}")
        raise UserMistake(f"{origin}: {reason}") from exc


def _collect_values(
    kind: type[msgspec.Struct], environ: Mapping[str, str], overrides: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the values of the fields that are set, and where each comes from, as an error names it."""
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}

    for field in msgspec.structs.fields(kind):
        for name in list_names(kind, field.name):
            if environ.get(name, "") != "":
                values[field.name] = environ[name]
                origins[field.name] = f"setting {name}"
                break

    for name, value in overrides.items():
        if value is not None:
            # An option of a command, with the name of its field.
            values[name] = value
            origins[name] = f"--{name.replace('_', '-')}"

    for name, value in values.items():
        is_word = isinstance(value, str) and value.lower() in _TRUE_WORDS | _FALSE_WORDS
        if is_word and _is_bool(kind, name):
            values[name] = value.lower() in _TRUE_WORDS

    return values, origins


def _is_bool(kind: type[msgspec.Struct], name: str) -> bool:
    return get_type_hints(kind)[name] is bool

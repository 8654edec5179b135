"""Checks that what a peer sent has the types that annotations of messages name.

A frame may hold anything that msgpack can. What is annotated as `Any` may be anything; all else is checked before it is
used, so that a peer with a fault fails its own call and nothing behind it.
"""

from collections.abc import Callable
from dataclasses import is_dataclass
from functools import cache
from itertools import product
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

INTEGER_BITS = 64
"""Larger integers are possible in users' values alone."""
TypeCheck = Callable[[Any], bool]
_CLASSES = {
    str: frozenset({str}),
    bytes: frozenset({bytes}),
    bool: frozenset({bool}),
    int: frozenset({int}),
    # JavaScript sends 1.0 as 1.
    float: frozenset({float, int}),
    NoneType: frozenset({NoneType}),
}


@cache
def build_type_check(annotation: Any) -> TypeCheck:
    """Return a function that tells whether decoded msgpack has a type. Tuples arrive as lists, dataclasses as maps."""
    if annotation is Any:
        return _accept

    classes = _find_classes(annotation)
    if classes is not None:
        return _check_integer(classes) if int in classes else lambda value: type(value) in classes

    if is_dataclass(annotation):
        return lambda value: type(value) is dict

    return _check_parts(annotation)


def _accept(_value: Any) -> bool:
    return True


def _check_parts(annotation: Any) -> TypeCheck:
    """Return the check of a type whose values have parts."""
    origin = get_origin(annotation) or annotation
    arguments = get_args(annotation)
    if origin in (Union, UnionType):
        checks = [build_type_check(argument) for argument in arguments]
        return lambda value: any(check(value) for check in checks)

    if origin is dict:
        return _check_dict(build_type_check(arguments[1]))

    if origin is list:
        return _check_list(build_type_check(arguments[0]))

    if issubclass(origin, tuple):
        # The parts of a named tuple are annotated like fields.
        return _check_tuple(arguments or tuple(get_type_hints(origin).values()))

    raise TypeError(f"there is no check for {annotation}")


def _find_classes(annotation: Any) -> frozenset[type] | None:
    """Return the classes that a value may have, or None if its class does not decide."""
    if get_origin(annotation) is Literal:
        return frozenset(map(type, get_args(annotation)))

    if get_origin(annotation) not in (Union, UnionType):
        return _CLASSES.get(annotation)

    choices = [_find_classes(argument) for argument in get_args(annotation)]
    return None if None in choices else frozenset[type]().union(*filter(None, choices))


def _check_integer(classes: frozenset[type]) -> TypeCheck:
    def check(value: Any) -> bool:
        return type(value) in classes and (type(value) is not int or value.bit_length() <= INTEGER_BITS)

    return check


def _check_dict(check_value: TypeCheck) -> TypeCheck:
    if check_value is _accept:
        return lambda value: type(value) is dict

    return lambda value: type(value) is dict and all(map(check_value, value.values()))


def _check_list(check_item: TypeCheck) -> TypeCheck:
    if check_item is _accept:
        return lambda value: type(value) is list

    return lambda value: type(value) is list and all(map(check_item, value))


def _check_tuple(parts: tuple[Any, ...]) -> TypeCheck:
    if parts[-1] is Ellipsis:
        return _check_list(build_type_check(parts[0]))

    # Rows are checked often: one look-up of all their classes is quicker than a call for each part.
    classes = [_find_classes(part) for part in parts]
    if None not in classes:
        signatures = frozenset(product(*filter(None, classes)))
        return lambda value: type(value) is list and tuple(map(type, value)) in signatures

    checks = [build_type_check(part) for part in parts]
    return lambda value: (
        type(value) is list
        and len(value) == len(checks)
        and all(check(part) for check, part in zip(checks, value, strict=True))
    )

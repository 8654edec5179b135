"""Objects of Kubernetes with places for values, written once: filled in by Python, or printed as templates for Helm.

A tree is made of dictionaries, lists and scalars, and of the nodes below. `fill` gives the plain objects for a document
of values; `print_template` gives a template that Helm fills with the same result. What cannot be said in both ways is
not a node.
"""

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]
DEFAULT_NAMESPACE = "portside"
_PLAIN_KEY = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*")
_FUNCTIONS: Mapping[str, Callable[[int, int], int]] = {
    "sub": lambda first, second: first - second,
    "mul": lambda first, second: first * second,
    "div": lambda first, second: first // second,
    "max": max,
}


@dataclass(frozen=True)
class Scope:
    """The document of values, and the elements of the lists that an `Each` goes through, by their names."""

    values: Json
    items: Mapping[str, Any] = field(default_factory=dict)


class Expression(ABC):
    """Something that has one value for a document of values."""

    @abstractmethod
    def evaluate(self, scope: Scope) -> Any:
        """Return the value."""

    @abstractmethod
    def to_helm(self) -> str:
        """Return the same in Helm's language."""


@dataclass(frozen=True)
class Value(Expression):
    """A value by its path, such as `ingress.className`."""

    path: str

    def evaluate(self, scope: Scope) -> Any:
        """Return the value at the path."""
        value: Any = scope.values
        for name in self.path.split("."):
            value = value[name]

        return value

    def to_helm(self) -> str:
        """Return the path from the root, which is the same inside of `range` and `with`."""
        return f"$.Values.{self.path}"


@dataclass(frozen=True)
class Structure(Value):
    """A list or an object of the values, which is taken as it is."""


@dataclass(frozen=True)
class Namespace(Expression):
    """The namespace of the platform, which Helm also knows as that of the release."""

    def evaluate(self, scope: Scope) -> Any:
        """Return the value, or the default."""
        return scope.values["namespace"] or DEFAULT_NAMESPACE

    def to_helm(self) -> str:
        """Return the value, or that of the release."""
        return "(default $.Release.Namespace $.Values.namespace)"


@dataclass(frozen=True)
class Item(Expression):
    """The element of the list that an `Each` goes through."""

    name: str

    def evaluate(self, scope: Scope) -> Any:
        """Return the element."""
        return scope.items[self.name]

    def to_helm(self) -> str:
        """Return the variable."""
        return f"${self.name}"


@dataclass(frozen=True)
class Text(Expression):
    """Texts and values, one after the other."""

    parts: tuple[str | Expression, ...]

    def evaluate(self, scope: Scope) -> str:
        """Return the text."""
        return "".join(_to_text(_evaluate(part, scope)) for part in self.parts)

    def to_helm(self) -> str:
        """Return a `printf`."""
        pattern = "".join(part.replace("%", "%%") if isinstance(part, str) else "%v" for part in self.parts)
        arguments = [part.to_helm() for part in self.parts if isinstance(part, Expression)]
        return f"(printf {' '.join([json.dumps(pattern), *arguments])})"


@dataclass(frozen=True)
class Image(Expression):
    """The image at a path of the values, with the registry that stands before every image."""

    path: str

    def evaluate(self, scope: Scope) -> str:
        """Return the name of the image."""
        image = Value(self.path).evaluate(scope)
        registry = scope.values["imageRegistry"]
        return f"{registry}/{image}" if registry else image

    def to_helm(self) -> str:
        """Return both names with a slash, which is taken away where there is no registry."""
        return f'(trimPrefix "/" (printf "%v/%v" (default "" $.Values.imageRegistry) $.Values.{self.path}))'


@dataclass(frozen=True)
class CommaSeparated(Expression):
    """Texts, and then the elements of a list of the values, in one text."""

    texts: tuple[str | Expression, ...]
    more: Value

    def evaluate(self, scope: Scope) -> str:
        """Return the text."""
        texts = [_evaluate(text, scope) for text in self.texts]
        return ",".join([*texts, *self.more.evaluate(scope)])

    def to_helm(self) -> str:
        """Return a `join`."""
        texts = " ".join(_print_argument(text) for text in self.texts)
        items = f"(concat (list {texts}) {self.more.to_helm()})" if self.texts else self.more.to_helm()
        return f'(join "," {items})'


@dataclass(frozen=True)
class JsonText(Expression):
    """A list or an object of the values as a text in JSON."""

    path: str

    def evaluate(self, scope: Scope) -> str:
        """Return the text as Go writes it: fields in order of their names, and no sign that HTML knows."""
        value = Value(self.path).evaluate(scope)
        text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        for sign in "<>&":
            text = text.replace(sign, f"\\u{ord(sign):04x}")

        return text

    def to_helm(self) -> str:
        """Return a `toJson`."""
        return f"(toJson $.Values.{self.path})"


@dataclass(frozen=True)
class Computed(Expression):
    """A whole number: `sub`, `mul`, `div` or `max` of two."""

    function: str
    first: int | Expression
    second: int | Expression

    def evaluate(self, scope: Scope) -> int:
        """Return the number."""
        return _FUNCTIONS[self.function](_evaluate(self.first, scope), _evaluate(self.second, scope))

    def to_helm(self) -> str:
        """Return the call of the function, which has the same name."""
        return f"({self.function} {_print_argument(self.first)} {_print_argument(self.second)})"


@dataclass(frozen=True)
class All(Expression):
    """Whether every one of several expressions is true; empty texts, lists and objects are not."""

    expressions: tuple[Expression, ...]

    def evaluate(self, scope: Scope) -> bool:
        """Return whether they are."""
        return all(expression.evaluate(scope) for expression in self.expressions)

    def to_helm(self) -> str:
        """Return an `and`."""
        return f"(and {' '.join(expression.to_helm() for expression in self.expressions)})"


@dataclass(frozen=True)
class Either(Expression):
    """Whether at least one of several expressions is true."""

    expressions: tuple[Expression, ...]

    def evaluate(self, scope: Scope) -> bool:
        """Return whether one is."""
        return any(expression.evaluate(scope) for expression in self.expressions)

    def to_helm(self) -> str:
        """Return an `or`."""
        return f"(or {' '.join(expression.to_helm() for expression in self.expressions)})"


@dataclass(frozen=True)
class Not(Expression):
    """Whether an expression is not true."""

    expression: Expression

    def evaluate(self, scope: Scope) -> bool:
        """Return whether it is not."""
        return not self.expression.evaluate(scope)

    def to_helm(self) -> str:
        """Return a `not`."""
        return f"(not {self.expression.to_helm()})"


@dataclass(frozen=True)
class Differs(Expression):
    """Whether two texts are different."""

    first: Expression
    second: Expression

    def evaluate(self, scope: Scope) -> bool:
        """Return whether they are."""
        return bool(self.first.evaluate(scope) != self.second.evaluate(scope))

    def to_helm(self) -> str:
        """Return an `ne`."""
        return f"(ne {self.first.to_helm()} {self.second.to_helm()})"


@dataclass(frozen=True)
class When:
    """A field or an element that exists only if an expression is true."""

    condition: Expression
    node: Any


@dataclass(frozen=True)
class Each:
    """The elements that are made of each element of a list of the values."""

    items: Value
    name: str
    nodes: tuple[Any, ...]


@dataclass(frozen=True)
class Extended:
    """An object or a list, and what the values add to it."""

    own: Any
    more: Structure


@dataclass(frozen=True)
class Joined:
    """Several objects of the values as one; they have no field in common."""

    structures: tuple[Structure, ...]


def fill(node: Any, scope: Scope) -> Any:
    """Return the plain form of a tree for a document of values."""
    match node:
        case Expression():
            return node.evaluate(scope)
        case dict():
            fields = {key: _find_node(child, scope) for key, child in node.items()}
            return {key: fill(child, scope) for key, child in fields.items() if child is not _ABSENT}
        case list():
            return [element for child in node for element in fill_elements(child, scope)]
        case Extended():
            own = fill(node.own, scope)
            more = node.more.evaluate(scope)
            return {**own, **more} if isinstance(own, dict) else [*own, *more]
        case Joined():
            return {key: value for structure in node.structures for key, value in structure.evaluate(scope).items()}
        case _:
            return node


def fill_elements(node: Any, scope: Scope) -> Iterator[Any]:
    """Return what stands in a list in place of a node: nothing, one element or several."""
    if isinstance(node, When):
        if node.condition.evaluate(scope):
            yield from fill_elements(node.node, scope)
    elif isinstance(node, Each):
        for item in node.items.evaluate(scope):
            inner = Scope(scope.values, {**scope.items, node.name: item})
            yield from (element for child in node.nodes for element in fill_elements(child, inner))
    else:
        yield fill(node, scope)


_ABSENT = object()


def _find_node(node: Any, scope: Scope) -> Any:
    """Return a field without its conditions, or _ABSENT if one is not true."""
    while isinstance(node, When):
        if not node.condition.evaluate(scope):
            return _ABSENT
        node = node.node

    return node


def _evaluate(part: Any, scope: Scope) -> Any:
    return part.evaluate(scope) if isinstance(part, Expression) else part


def _to_text(value: Any) -> str:
    return json.dumps(value) if isinstance(value, bool) else str(value)


def print_template(documents: list[Any]) -> str:
    """Return a template for Helm that gives these documents."""
    lines = [line for document in documents for line in _print_element(document, _print_document)]
    return "\n".join(lines) + "\n"


def _print_element(node: Any, print_plain: Callable[[Any], Iterator[str]]) -> Iterator[str]:
    """Print an element of a list, or a document, with the conditions and loops around it."""
    if isinstance(node, When):
        yield f"{{{{- if {node.condition.to_helm()} }}}}"
        yield from _print_element(node.node, print_plain)
        yield "{{- end }}"
    elif isinstance(node, Each):
        yield f"{{{{- range ${node.name} := {node.items.to_helm()} }}}}"
        for child in node.nodes:
            yield from _print_element(child, print_plain)
        yield "{{- end }}"
    else:
        yield from print_plain(node)


def _print_document(node: Any) -> Iterator[str]:
    yield "---"
    yield from _print_block(node, 0)


def _print_block(node: Any, indent: int) -> Iterator[str]:
    """Print an object or a list, each line with this indent."""
    if isinstance(node, Extended):
        yield from _print_block(node.own, indent)
        yield from _print_block(Joined((node.more,)), indent)
    elif isinstance(node, Joined):
        for structure in node.structures:
            yield f"{{{{- with {structure.to_helm()} }}}}"
            yield f"{' ' * indent}{{{{- toYaml . | nindent {indent} }}}}"
            yield "{{- end }}"
    elif isinstance(node, Structure):
        yield f"{' ' * indent}{{{{- toYaml {node.to_helm()} | nindent {indent} }}}}"
    elif isinstance(node, dict):
        for key, child in node.items():
            yield from _print_field(key, child, indent)
    else:
        for child in node:
            yield from _print_element(child, lambda plain: _print_marked(plain, indent))


def _print_field(key: str, node: Any, indent: int) -> Iterator[str]:
    name = key if _PLAIN_KEY.fullmatch(key) else json.dumps(key)
    if isinstance(node, When):
        yield f"{{{{- if {node.condition.to_helm()} }}}}"
        yield from _print_field(key, node.node, indent)
        yield "{{- end }}"
    elif _is_block(node):
        yield f"{' ' * indent}{name}:"
        yield from _print_block(node, indent + 2)
    else:
        yield f"{' ' * indent}{name}: {_print_scalar(node)}"


def _print_marked(node: Any, indent: int) -> Iterator[str]:
    """Print an element of a list after its mark."""
    if not _is_block(node):
        yield f"{' ' * indent}- {_print_scalar(node)}"
        return

    first, *others = _print_block(node, indent + 2)
    if first.lstrip().startswith("{{"):
        raise ValueError(f"the first field of an element must always exist: {first}")

    yield f"{' ' * indent}- {first[indent + 2 :]}"
    yield from others


def _is_block(node: Any) -> bool:
    return isinstance(node, (Extended, Joined, Structure)) or (isinstance(node, (dict, list)) and bool(node))


def _print_scalar(node: Any) -> str:
    if isinstance(node, Expression):
        return f"{{{{ {node.to_helm()} | quote }}}}"

    text = json.dumps(node)
    if "{{" in text:
        raise ValueError(f"Helm would read this text as a template: {text}")

    return text


def _print_argument(part: str | int | Expression) -> str:
    return part.to_helm() if isinstance(part, Expression) else json.dumps(part)

"""Fills in the templates of a Helm chart: the few words of its language that ours use, and an error for the rest."""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

_ACTION = re.compile(r"\{\{(-?) *(.*?) *(-?)\}\}", re.DOTALL)
_TOKEN = re.compile(r'\s*("(?:[^"\\]|\\.)*"|\(|\)|\||-?\d+|\$?[A-Za-z0-9_.$]+)')
_LOOP = re.compile(r"\$(\w+) := (.*)")


class UnknownTemplate(Exception):
    """The template has something that this renderer does not know."""


def _print_formatted(pattern: str, *arguments: Any) -> str:
    given = iter(arguments)

    def replace(match: re.Match[str]) -> str:
        if match.group() == "%%":
            return "%"
        if match.group() == "%v":
            return _to_text(next(given))
        raise UnknownTemplate(f"printf {match.group()}")

    return re.sub("%.", replace, pattern)


def _to_text(value: Any) -> str:
    return json.dumps(value) if isinstance(value, bool) else "" if value is None else str(value)


def _to_yaml(value: Any) -> str:
    return str(yaml.safe_dump(value, default_flow_style=False)).strip("\n")


def _to_json(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return text.replace("<", r"\u003c").replace(">", r"\u003e").replace("&", r"\u0026")


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "quote": lambda value: json.dumps(_to_text(value)),
    "default": lambda default, value=None: value or default,
    "printf": _print_formatted,
    "toYaml": _to_yaml,
    "toJson": _to_json,
    "nindent": lambda count, text: "\n" + "\n".join(" " * count + line for line in text.split("\n")),
    "join": lambda separator, items: separator.join(items),
    "concat": lambda *lists: [item for items in lists for item in items],
    "list": lambda *items: list(items),
    "trimPrefix": lambda prefix, text: text.removeprefix(prefix),
    "and": lambda *values: next((value for value in values if not value), values[-1]),
    "or": lambda *values: next((value for value in values if value), values[-1]),
    "not": lambda value: not value,
    "ne": lambda first, second: first != second,
    "max": max,
    "mul": lambda first, second: int(first) * int(second),
    "div": lambda first, second: int(first) // int(second),
    "sub": lambda first, second: int(first) - int(second),
}


@dataclass
class Block:
    """What stands between an `if`, `range` or `with`, and its `end`; the whole template has no keyword."""

    keyword: str = ""
    argument: str = ""
    parts: list["str | Block"] = field(default_factory=list)


def render_chart(chart: Path, values: dict[str, Any], namespace: str) -> list[dict[str, Any]]:
    """Return the objects of a chart, as `helm template --namespace` prints them."""
    defaults = yaml.safe_load((chart / "values.yaml").read_text("utf-8"))
    root = {"Values": merge_values(defaults, values), "Release": {"Namespace": namespace, "Name": "portside"}}
    texts = [_render(path.read_text("utf-8"), root) for path in sorted((chart / "templates").glob("*.yaml"))]
    return [manifest for text in texts for manifest in yaml.safe_load_all(text) if manifest is not None]


def merge_values(defaults: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """Return the values as Helm joins them: objects field by field, and null removes one."""
    merged = dict(defaults)
    for name, value in values.items():
        if value is None:
            merged.pop(name, None)
        elif isinstance(value, dict) and isinstance(defaults.get(name), dict):
            merged[name] = merge_values(defaults[name], value)
        else:
            merged[name] = value

    return merged


def _render(template: str, root: dict[str, Any]) -> str:
    return "".join(_fill(_parse(template), {"$": root, ".": root}))


def _parse(template: str) -> Block:
    stack = [Block()]
    position = 0
    trims = False
    for match in _ACTION.finditer(template):
        text = template[position : match.start()]
        text = text.lstrip() if trims else text
        stack[-1].parts.append(text.rstrip() if match[1] else text)
        position = match.end()
        trims = bool(match[3])

        keyword, _, argument = match[2].partition(" ")
        if keyword in {"if", "range", "with"}:
            block = Block(keyword, argument)
            stack[-1].parts.append(block)
            stack.append(block)
        elif keyword == "end":
            stack.pop()
        elif keyword in {"else", "define", "template", "include", "block", "break", "continue"}:
            raise UnknownTemplate(match[2])
        else:
            stack[-1].parts.append(Block("print", match[2]))

    if len(stack) != 1:
        raise UnknownTemplate(f"{stack[-1].keyword} without end")

    stack[0].parts.append(template[position:].lstrip() if trims else template[position:])
    return stack[0]


def _fill(block: Block, variables: dict[str, Any]) -> Iterator[str]:
    for part in block.parts:
        if isinstance(part, str):
            yield part
        elif part.keyword == "print":
            yield _to_text(_evaluate(part.argument, variables))
        elif part.keyword == "if":
            if _evaluate(part.argument, variables):
                yield from _fill(part, variables)
        elif part.keyword == "with":
            value = _evaluate(part.argument, variables)
            if value:
                yield from _fill(part, {**variables, ".": value})
        else:
            loop = _LOOP.fullmatch(part.argument)
            if loop is None:
                raise UnknownTemplate(f"range {part.argument}")
            for item in _evaluate(loop[2], variables):
                yield from _fill(part, {**variables, f"${loop[1]}": item, ".": item})


def _evaluate(text: str, variables: dict[str, Any]) -> Any:
    tokens = _TOKEN.findall(text)
    if "".join(tokens) != re.sub(r'("(?:[^"\\]|\\.)*")|\s', r"\1", text):
        raise UnknownTemplate(text)

    value, rest = _read_pipeline(tokens, variables)
    if rest:
        raise UnknownTemplate(text)

    return value


def _read_pipeline(tokens: list[str], variables: dict[str, Any]) -> tuple[Any, list[str]]:
    value, tokens = _read_command(tokens, variables, [])
    while tokens and tokens[0] == "|":
        value, tokens = _read_command(tokens[1:], variables, [value])

    return value, tokens


def _read_command(tokens: list[str], variables: dict[str, Any], last: list[Any]) -> tuple[Any, list[str]]:
    name = tokens[0]
    if name not in FUNCTIONS:
        if last:
            raise UnknownTemplate(name)
        value, tokens = _read_operand(tokens, variables)
        if tokens and tokens[0] not in {"|", ")"}:
            raise UnknownTemplate(" ".join(tokens))
        return value, tokens

    tokens = tokens[1:]
    arguments: list[Any] = []
    while tokens and tokens[0] not in {"|", ")"}:
        value, tokens = _read_operand(tokens, variables)
        arguments.append(value)

    return FUNCTIONS[name](*arguments, *last), tokens


def _read_operand(tokens: list[str], variables: dict[str, Any]) -> tuple[Any, list[str]]:
    token, rest = tokens[0], tokens[1:]
    if token == "(":
        value, rest = _read_pipeline(rest, variables)
        if not rest or rest[0] != ")":
            raise UnknownTemplate("( without )")
        return value, rest[1:]
    if token.startswith('"') or token.lstrip("-").isdigit():
        return json.loads(token), rest
    if token in variables:
        return variables[token], rest
    if token.startswith("$."):
        value = variables["$"]
        for name in token[2:].split("."):
            value = value.get(name)
        return value, rest

    raise UnknownTemplate(token)

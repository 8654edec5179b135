"""Checks how many parameters functions have, and looks for names that say nothing. Exits 1 if it finds a problem."""

import ast
import sys
from pathlib import Path

PARAMETERS = 5
EMPTY_NAMES = {"utils", "util", "helpers", "common", "models", "base", "misc"}
# What a query returns or a caller passes is a thing: its name is a noun.
PARTICIPLES = {
    "found",
    "given",
    "made",
    "known",
    "held",
    "wanted",
    "shown",
    "named",
    "kept",
    "written",
    "chosen",
    "asked",
    "meant",
}
NO_VERB = "does not say what it does; name it with a verb, or make it a property"
ROOT = Path(__file__).parents[1]


def main() -> int:
    over: list[str] = []
    for file in source_files("src"):
        name = file.relative_to(ROOT)
        text = file.read_text("utf-8")

        if file.stem in EMPTY_NAMES:
            over.append(f"{name}: a module called {file.stem} says nothing")

        for node in ast.walk(ast.parse(text)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                over += [f"{name}:{node.lineno}: {problem}" for problem in (*parameters_over(node), *empty_names(node))]

    for file in (*source_files("tests"), *source_files("bench"), *source_files("scripts")):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and not is_verb(node.name):
                over.append(f"{file.relative_to(ROOT)}:{node.lineno}: {node.name} {NO_VERB}")

    print("\n".join(over))
    return 1 if over else 0


def source_files(folder: str) -> list[Path]:
    """Return the files of a folder that people wrote."""
    return sorted(file for file in (ROOT / folder).rglob("*.py") if "node_modules" not in file.parts)


def parameters_over(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    if any("click." in ast.unparse(decorator) for decorator in node.decorator_list):
        return []

    names = [a.arg for a in (*node.args.posonlyargs, *node.args.args) if a.arg not in {"self", "cls"}]
    return [f"{node.name} has {len(names)} positional parameters"] if len(names) > PARAMETERS else []


def is_verb(function: str) -> bool:
    """Return whether the name of a function may say what it does; `parent_of` says what it returns."""
    return not function.endswith("_of") or function.endswith("_as_of")


def empty_names(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    """Return what is wrong with the name of a function, and with those of its values."""
    problems = []
    if not is_verb(node.name):
        problems.append(f"{node.name} {NO_VERB}")

    values = {each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
    problems += [f"the value {value} in {node.name} needs a noun" for value in sorted(values & PARTICIPLES)]
    return problems


if __name__ == "__main__":
    sys.exit(main())

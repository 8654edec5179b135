"""Checks how many parameters functions have, and for module names that say nothing. Exits 1 if it finds a problem."""

import ast
import sys
from pathlib import Path

PARAMETERS = 5
EMPTY_NAMES = {"utils", "util", "helpers", "common", "models", "base", "misc"}
ROOT = Path(__file__).parents[1]


def main() -> int:
    over: list[str] = []
    for file in sorted((ROOT / "src").rglob("*.py")):
        if file.name.endswith("_pb2.py"):
            # Generated.
            continue

        name = file.relative_to(ROOT)
        text = file.read_text("utf-8")

        if file.stem in EMPTY_NAMES:
            over.append(f"{name}: a module called {file.stem} says nothing")

        for node in ast.walk(ast.parse(text)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                over += [f"{name}:{node.lineno}: {problem}" for problem in parameters_over(node)]

    print("\n".join(over))
    return 1 if over else 0


def parameters_over(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    if any("click." in ast.unparse(decorator) for decorator in node.decorator_list):
        return []

    names = [a.arg for a in (*node.args.posonlyargs, *node.args.args) if a.arg not in {"self", "cls"}]
    return [f"{node.name} has {len(names)} positional parameters"] if len(names) > PARAMETERS else []


if __name__ == "__main__":
    sys.exit(main())

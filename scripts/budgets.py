"""Checks size budgets: lines of files and functions, parameters, empty module names. Exits 1 if one is exceeded."""

import ast
import sys
from pathlib import Path

FILE_LINES, FUNCTION_LINES, PARAMETERS = 600, 40, 5
LONG_FUNCTIONS_SHARE = 0.05
EMPTY_NAMES = {"utils", "util", "helpers", "common", "models", "base", "misc"}
ROOT = Path(__file__).parents[1]


def main() -> int:
    over: list[str] = []
    functions = long = 0
    for file in sorted((ROOT / "src").rglob("*.py")):
        if file.name.endswith("_pb2.py"):
            # Generated.
            continue
        name, text = file.relative_to(ROOT), file.read_text("utf-8")
        if file.stem in EMPTY_NAMES:
            over.append(f"{name}: a module called {file.stem} says nothing")
        if (lines := text.count("\n")) > FILE_LINES:
            over.append(f"{name}: {lines} lines, {FILE_LINES} are allowed")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                functions += 1
                long += (node.end_lineno or 0) - node.lineno + 1 > FUNCTION_LINES
                over += [f"{name}:{node.lineno}: {problem}" for problem in parameters_over(node)]
    if functions and long / functions > LONG_FUNCTIONS_SHARE:
        over.append(f"{long} of {functions} functions have more than {FUNCTION_LINES} lines")
    print("\n".join(over))
    return 1 if over else 0


def parameters_over(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    if any("click." in ast.unparse(decorator) for decorator in node.decorator_list):
        return []
    names = [a.arg for a in (*node.args.posonlyargs, *node.args.args) if a.arg not in {"self", "cls"}]
    return [f"{node.name} has {len(names)} positional parameters"] if len(names) > PARAMETERS else []


if __name__ == "__main__":
    sys.exit(main())

"""Checks what the host of the repository reads: workflows, updates of dependencies, forms of issues.

Schemas say whether a file has the form that it must have. zizmor says whether a workflow is safe: rights, pinned
actions, values of strangers in commands. Neither reaches a network. Exits 1 on a problem.
"""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
GITHUB = ROOT / ".github"
BIN = Path(sys.executable).parent


def main() -> int:
    workflows = sorted((GITHUB / "workflows").glob("*.yml"))
    forms = [file for file in sorted((GITHUB / "ISSUE_TEMPLATE").glob("*.yml")) if file.name != "config.yml"]

    results = [
        check_schema("vendor.github-workflows", workflows),
        check_schema("vendor.dependabot", [GITHUB / "dependabot.yml"]),
        check_schema("vendor.github-issue-forms", forms),
        check_schema("vendor.github-issue-config", [GITHUB / "ISSUE_TEMPLATE" / "config.yml"]),
        run("zizmor", "--offline", "--no-progress", "--quiet", str(GITHUB)),
    ]

    return 0 if all(results) else 1


def check_schema(schema: str, files: list[Path]) -> bool:
    """Compare files with a schema that the checker brings along."""
    return run("check-jsonschema", "--quiet", "--builtin-schema", schema, *map(str, files))


def run(program: str, *arguments: str) -> bool:
    """Run a program of the environment; return whether it found nothing, and print what it found."""
    result = subprocess.run([str(BIN / program), *arguments], capture_output=True, text=True, check=False)

    if result.returncode != 0:
        print(result.stdout + result.stderr)

    return result.returncode == 0


if __name__ == "__main__":
    sys.exit(main())

"""Run the tests and show what no test executes.

    .venv/bin/python scripts/measure_coverage.py [arguments of scripts/test]
    .venv/bin/python scripts/measure_coverage.py --report    show the results of the last run again

Of Python lines and branches, by package and by file; of SQL the functions and the named queries; of the executor of
JavaScript graphs the lines of its TypeScript. `.coverage/` gets the results, and pages that show each line.

tests/measured.py measures each process of this checkout's interpreter that descends from this one: the tests, and the
commands, servers, listeners and executors that they start. It cannot see into the interpreters of
projects' environments, containers, browsers and the Postgres of platforms that bring their own.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from coverage import Coverage
from source_maps import SourceMap

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "portside"
RESULTS = ROOT / ".coverage"
DATA = RESULTS / "data"
NODE = RESULTS / "node"
PAGES = RESULTS / "html"
EXECUTOR_JS = ROOT / "executor-js"
BUILT = SOURCE / "executor_js"
START = Path(sysconfig.get_path("purelib")) / "portside_coverage.pth"
# Smaller files are thin by chance.
MIN_STATEMENTS = 20
SHOWN_FILES = 25
# Lines that no test can execute.
EXCLUDED = [r"if TYPE_CHECKING:", r"^\s*\.\.\.$", r'if __name__ == "__main__":', r"@overload"]
_FUNCTION = re.compile(r"^create (?:or replace )?(function|view) (\w+)", re.MULTILINE)
_QUERY = re.compile(r"^-- name: *(\w+) *$", re.MULTILINE)
_COMMENT = re.compile(r"--[^\n]*")
_WORD = re.compile(r"\w+")


def main(arguments: list[str]) -> int:
    """Run the tests, print the summary and return the exit code of the tests."""
    code = 0

    if arguments != ["--report"]:
        shutil.rmtree(RESULTS, ignore_errors=True)
        DATA.mkdir(parents=True)
        code = run_tests(arguments)

    print_python(report_python())
    print_sql()
    print_typescript()
    print_limits()

    return code


def run_tests(arguments: list[str]) -> int:
    """Run the tests with all processes measured, and return their exit code."""
    file = str(ROOT / "tests" / "measured.py")
    given = (os.getpid(), str(SOURCE), str(RESULTS))
    environment = {**os.environ, "PORTSIDE_COVERAGE": str(RESULTS), "NODE_V8_COVERAGE": str(NODE)}

    # Each interpreter of the checkout executes this line at its start.
    START.write_text(
        f"import sys; measured = {{'__name__': 'measured'}}; "
        f"exec(compile(open({file!r}).read(), {file!r}, 'exec'), measured); measured['begin'](*{given!r})\n"
    )

    try:
        return subprocess.run(["sh", "scripts/test", *arguments], cwd=ROOT, env=environment, check=False).returncode
    finally:
        START.unlink()


# Python


class Counts(NamedTuple):
    """Statements and branches of some code, and how many of each were executed."""

    statements: int = 0
    executed: int = 0
    branches: int = 0
    taken: int = 0

    @classmethod
    def of(cls, summary: Mapping[str, int]) -> "Counts":
        return cls(
            statements=summary["num_statements"],
            executed=summary["covered_lines"],
            branches=summary["num_branches"],
            taken=summary["covered_branches"],
        )

    @classmethod
    def sum(cls, counts: Iterable["Counts"]) -> "Counts":
        return cls(*(sum(column) for column in zip(*counts, strict=True)))

    @property
    def percent(self) -> float:
        """The share of statements and branches together."""
        return percent(self.executed + self.taken, self.statements + self.branches)


def report_python() -> dict[str, Any]:
    """Combine what the processes saved, write the pages, and return the report of coverage."""
    coverage = Coverage(data_file=str(DATA / "python"), branch=True, config_file=False)
    coverage.set_option("report:exclude_also", EXCLUDED)

    if any(DATA.glob("python.*")):
        coverage.combine([str(DATA)])
    else:
        coverage.load()

    # A file that no process imported is in no data.
    coverage.get_data().touch_files([str(path) for path in SOURCE.rglob("*.py")])
    coverage.save()

    coverage.html_report(directory=str(PAGES), title="Portside", show_contexts=False)
    report = RESULTS / "python.json"
    coverage.json_report(outfile=str(report))

    return json.loads(report.read_text())  # type: ignore[no-any-return]


def print_python(report: dict[str, Any]) -> None:
    """Print the packages, and their files of which the least was executed."""
    files = {
        path_in_source(Path(name)): Counts.of(entry["summary"])
        for name, entry in report["files"].items()
        if entry["summary"]["num_statements"]
    }

    packages: dict[str, list[Counts]] = defaultdict(list)
    for path, counts in files.items():
        packages[path.parts[0] if len(path.parts) > 1 else "(top)"].append(counts)

    print("\nPython            lines        %   branches        %")
    rows = {name: Counts.sum(counts) for name, counts in sorted(packages.items())}
    for name, each in {**rows, "all": Counts.sum(files.values())}.items():
        lines = f"{each.statements:10} {percent(each.executed, each.statements):8.1f}"
        print(f"  {name:12} {lines} {each.branches:10} {percent(each.taken, each.branches):8.1f}")

    print(f"\nThe {SHOWN_FILES} files of which the least was executed, lines and branches together")
    large = [(path, counts) for path, counts in files.items() if counts.statements >= MIN_STATEMENTS]
    for path, each in sorted(large, key=lambda item: item[1].percent)[:SHOWN_FILES]:
        print(f"  {each.percent:5.1f} %  {each.statements - each.executed:4} lines missed  {path}")


def path_in_source(path: Path) -> Path:
    return (ROOT / path).relative_to(SOURCE)


def percent(part: int, whole: int) -> float:
    return 100.0 * part / whole if whole else 100.0


# SQL


class Statement(NamedTuple):
    """A function, a view or a named query, with the file that has it."""

    kind: str
    name: str
    path: Path
    text: str

    @property
    def words(self) -> set[str]:
        return set(_WORD.findall(_COMMENT.sub("", self.text)))


def print_sql() -> None:
    """Print the named queries that nothing executed, and the functions that nothing called."""
    queries = {f"{query.path.parts[0]} {query.name}": query for query in find_queries()}
    used = {line.removeprefix("portside.").replace(".", "/") for line in read_lines("queries")}
    unused = [query for key, query in queries.items() if key not in used]
    print(f"\nNamed queries: {len(queries)}, not executed by any test: {len(unused)}")
    print_statements(unused)

    functions = [each for each in find_functions() if each.kind == "function"]
    called = find_called_functions([query for key, query in queries.items() if key in used])
    uncalled = [function for function in functions if function.name not in called]
    print(f"\nSQL functions: {len(functions)}, not called by any test: {len(uncalled)}")
    print_statements(uncalled)


def find_queries() -> Iterator[Statement]:
    for path in sorted(SOURCE.glob("*/sql/*.sql")):
        yield from find_statements(path, _QUERY, kind="query")


def find_functions() -> Iterator[Statement]:
    """The functions and views of all packages."""
    for path in sorted([*SOURCE.glob("*/functions/*.sql"), *SOURCE.glob("*/migrations/*.sql")]):
        yield from find_statements(path, _FUNCTION)


def find_statements(path: Path, pattern: re.Pattern[str], kind: str = "") -> Iterator[Statement]:
    """Yield what a file defines; each definition reaches to the next one."""
    text = path.read_text("utf-8")
    marks = list(pattern.finditer(text))
    for mark, following in zip_longest(marks, marks[1:]):
        until = following.start() if following else len(text)
        yield Statement(kind or mark[1], mark[mark.lastindex or 1], path_in_source(path), text[mark.end() : until])


def find_called_functions(used: list[Statement]) -> set[str]:
    """Return the names of the functions that tests called.

    Postgres counts calls, but not those of a simple function in SQL that it merges into the statement around it. So one
    of those counts if a statement that was executed has its name: a query, a migration, or a function that was called.
    """
    parts = list(find_functions())
    called = set(read_lines("functions"))
    mergeable = {each.name for each in parts if each.kind == "view" or "plpgsql" not in each.text}

    # Tables use functions for defaults, columns and indexes.
    tables = [path.read_text("utf-8") for path in SOURCE.glob("*/migrations/*.sql")]
    words = {word for query in used for word in query.words} | set(_WORD.findall(_COMMENT.sub("", "".join(tables))))

    is_growing = True
    while is_growing:
        found = called | (mergeable & words)
        words |= {word for each in parts if each.name in found for word in each.words}
        is_growing = found != called
        called = found

    return called


def print_statements(statements: list[Statement]) -> None:
    by_path: dict[Path, list[str]] = defaultdict(list)
    for each in statements:
        by_path[each.path].append(each.name)

    for path, names in sorted(by_path.items()):
        print(f"  {path}: {', '.join(names)}")


def read_lines(name: str) -> set[str]:
    path = RESULTS / name
    return set(path.read_text().splitlines()) if path.exists() else set()


# TypeScript


def print_typescript() -> None:
    """Print for each source file of the executor of JavaScript graphs how many of its lines were executed."""
    if not NODE.is_dir() or not (BUILT / "main.mjs").exists():
        print("\nTypeScript of executor-js: no test started it")
        return

    maps = source_maps()
    executed: dict[Path, dict[int, bool]] = defaultdict(dict)
    for profile in NODE.glob("*.json"):
        for script in json.loads(profile.read_text("utf-8"))["result"]:
            bundle = Path(script["url"].removeprefix("file://"))
            if bundle.name in maps and is_build(bundle):
                for path, line, was_executed in maps[bundle.name].lines(script["functions"]):
                    executed[path][line] = executed[path].get(line, False) or was_executed

    print("\nTypeScript of executor-js, lines executed")

    for path in sorted((EXECUTOR_JS / "src").glob("*.ts")):
        lines = executed.get(path, {})
        missed = [line for line, was_executed in sorted(lines.items()) if not was_executed]
        share = f"{percent(len(lines) - len(missed), len(lines)):5.1f} %" if lines else "no code"
        print(f"  {share:8} {path.name:20} {f'missed: {ranges(missed)}' if missed else ''}")

    both = [was_executed for lines in executed.values() for was_executed in lines.values()]
    print(f"  {percent(sum(both), len(both)):5.1f} %  all")


def source_maps() -> dict[str, SourceMap]:
    """Build the executor again with source maps, and return them for the files that it has in common with the build."""
    folder = RESULTS / "executor-js"
    subprocess.run(["node", "build.mjs", str(folder), "--source-maps"], cwd=EXECUTOR_JS, check=True)
    bundles = [path for path in folder.glob("*.mjs") if path.read_bytes() == (BUILT / path.name).read_bytes()]
    return {path.name: SourceMap(path, Path(f"{path}.map"), EXECUTOR_JS / "src") for path in bundles}


def is_build(bundle: Path) -> bool:
    """Whether a file that Node executed is the build of this checkout, or a copy."""
    try:
        return bundle.read_bytes() == (BUILT / bundle.name).read_bytes()
    except OSError:
        return False


def ranges(numbers: list[int]) -> str:
    """Write numbers as ranges: 3-5, 9."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][-1] + 1:
            found[-1].append(number)
        else:
            found.append([number])

    return ", ".join(f"{each[0]}-{each[-1]}" if len(each) > 1 else str(each[0]) for each in found)


def print_limits() -> None:
    """Print what the figures leave out, and where the pages are."""
    started = read_lines("started")
    lost = len(started - read_lines("saved"))
    print(f"""
{len(started)} Python processes were measured. The lines of {lost} are missing: they were killed, or took
another user's rights.
Not followed: executors and builds in environments of projects, containers, the console in browsers, JavaScript graphs
of deployments, and SQL functions in the Postgres of platforms that bring their own.
Each line: {PAGES / "index.html"}""")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

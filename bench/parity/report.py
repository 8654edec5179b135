"""Writes docs/parity.md from a comparison."""

import tomllib
from pathlib import Path

from bench.parity.compare import EXPLAINED, Verdict

PAGE = Path(__file__).parents[2] / "docs" / "parity.md"
HEAD = """# Parity with the reference server

Written by `make parity`; do not edit. The same scripted requests were sent to the public development server and to
Portside, on the same graphs. The comparison covers status, headers that clients read, JSON shape and values, and the
sequence of events. It ignores ids, times, versions and the wording of errors. The scripts are in
`bench/parity/scripts`, the reference's responses in `bench/parity/recorded`, the explanations in
`bench/parity/explained.toml`.

Reference: langgraph-api {version}, recorded on {recorded_on}.

"""
KINDS = """Kinds: *clearer* returns more information, *better* does not copy a defect, *liberal* accepts requests that
the reference refuses, *stricter* refuses requests that the reference accepts and then ignores or fails on, *product* is
a fact about the other product, *choice* is a free choice, *later* waits for an issue of its own, *open* is a difference
that should go away.
"""


def write(verdict: Verdict, about: dict[str, str]) -> None:
    """Write the page."""
    PAGE.write_text(
        HEAD.format(**about)
        + "\n".join((*_counts(verdict), *_table(verdict), *_describe_decisions(), *_open(verdict))),
        "utf-8",
    )


def _counts(verdict: Verdict) -> list[str]:
    rows = ["| requests about | the same | explained | open | unexplained |", "|---|---|---|---|---|"]
    rows += [f"| {script} | {' | '.join(map(str, counts))} |" for script, counts in sorted(verdict.by_script.items())]
    total = f"{verdict.same} | {verdict.explained} | {verdict.open} | {len(verdict.unexplained)}"
    return [*rows, f"| **all** | {total} |", "", KINDS]


def _table(verdict: Verdict) -> list[str]:
    rows = ["## Explained differences", "", "| kind | where | what | why | places |", "|---|---|---|---|---|"]
    for entry in sorted(verdict.table, key=lambda entry: entry.kind):
        where, what = (", ".join(f"`{item}`" for item in items) for items in (entry.steps, entry.paths))
        rows.append(f"| {entry.kind} | {where} | {what} | {entry.why} | {entry.used} |")

    return [*rows, ""]


def _describe_decisions() -> list[str]:
    entries = tomllib.loads(EXPLAINED.read_text("utf-8"))["decided"]
    rows = [f"| {entry['about']} | {entry['reference']} | {entry['ours']} | {entry['why']} |" for entry in entries]
    head = [
        "## Decided without a script",
        "",
        "The scripts have no authentication. These differences were decided separately.",
    ]

    return [*head, "", "| about | reference | ours | why |", "|---|---|---|---|", *rows, ""]


def _open(verdict: Verdict) -> list[str]:
    if not verdict.unexplained:
        return []

    rows = [f"- `{difference}`" for differences in verdict.unexplained.values() for difference in differences]
    return ["## Unexplained differences", "", *rows, ""]

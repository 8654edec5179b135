"""Compares an agent server with the reference development server and the bare graph. Run it with `make bench`.

The reference keeps everything in memory; ours writes to Postgres. `BENCH_REFERENCE=0` skips the reference, and
`BENCH_THREADS=0` the searches among many threads.
"""

import asyncio
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

from bench.agent_server import PROJECT, ROOT, Server, measure, ours
from bench.claims import measure_claims
from bench.client import Figures
from bench.front import measure_front
from bench.reference import reference_process, reference_version
from bench.threads import CLIENTS, THREADS, measure_searches


def main() -> None:
    columns: dict[str, Figures] = {"bare graph": bare_graph()}
    with ours() as (server, cold_start_s):
        through_front = asyncio.run(measure_front(server.port))
        columns["portside"] = {"cold_start_s": cold_start_s, **asyncio.run(measure(server))}

    with ours(WORKERS="2") as (server, cold_start_s):
        columns["two workers"] = {"cold_start_s": cold_start_s, **asyncio.run(measure(server))}

    if os.environ.get("BENCH_REFERENCE") != "0":
        began = time.perf_counter()
        with reference_process(PROJECT) as running:
            cold_start_s = time.perf_counter() - began
            figures = asyncio.run(measure(Server(running.port, running.pid)))

        columns["reference"] = {"cold_start_s": cold_start_s, **figures}

    show(columns)
    tables = {"claims behind a backlog": measure_claims()}
    if through_front:
        tables["GET /ok directly and through the front"] = through_front

    if THREADS:
        tables[f"searches among {THREADS} threads, {CLIENTS} clients"] = measure_searches()

    for name, table in tables.items():
        show_table(name, table)

    save({"where": where(), "agent server": columns, "ratios": ratios(columns), **tables})


def bare_graph() -> Figures:
    """Measure the graph without a server, in a process of its own."""
    command = [sys.executable, str(Path(__file__).parent / "bare.py")]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def ratios(columns: dict[str, Figures]) -> dict[str, Figures]:
    """Return our figures divided by those of each other column, where both have one."""
    mine = columns["portside"]
    return {
        f"portside / {other}": {
            name: mine[name] / theirs for name, theirs in figures.items() if theirs and name in mine
        }
        for other, figures in columns.items()
        if other != "portside"
    }


def show(columns: dict[str, Figures]) -> None:
    """Print the columns side by side, with their ratios."""
    compared = ratios(columns)
    names = dict.fromkeys(name for figures in columns.values() for name in figures)
    heads = [*columns, *(name.replace("portside ", "") for name in compared)]
    print(f"{'':<28}" + "".join(f"{head:>14}" for head in heads))

    for name in names:
        figures = [figures.get(name) for figures in (*columns.values(), *compared.values())]
        print(f"{name:<28}" + "".join(f"{'-':>14}" if one is None else f"{one:14.2f}" for one in figures))


def show_table(name: str, table: dict[str, Figures]) -> None:
    """Print a table with one line for each row."""
    print(f"\n{name:<44}" + "".join(f"{head:>10}" for head in next(iter(table.values()))))
    for row, figures in table.items():
        print(f"{row:<44}" + "".join(f"{figure:10.2f}" for figure in figures.values()))


def where() -> dict[str, str | int | None]:
    """Return the commit and the machine."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    return {
        "commit": commit or "unknown",
        "reference": reference_version(),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "load_of_others_at_the_end": round(os.getloadavg()[2], 1),
    }


def save(found: dict[str, object]) -> None:
    """Write everything to one file, named after the commit."""
    results = ROOT / "bench" / "results"
    results.mkdir(exist_ok=True)
    (results / f"{where()['commit']}.json").write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()

"""`python -m bench.parity`: performs the scripts against the reference and against ours, and compares.

Exits 1 when a difference is not explained. `--recorded` takes the reference's answers from the recording instead of
installing it; `--ours URL` and `--reference URL` speak to servers that run already.
"""

import argparse
import asyncio
import contextlib
import datetime as dt
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager

from bench.parity import recordings, report
from bench.parity.compare import Verdict, compare
from bench.parity.perform import Record, perform
from bench.parity.servers import our_server_alone, reference_server
from bench.reference import reference_version


def main() -> int:
    options = _options()
    reference, about = recordings.read_record() if options.recorded else _ask_reference(options)
    with _server(options.ours, our_server_alone) as url:
        ours = asyncio.run(perform(url, options.only))

    if options.only:
        reference = {script: scenes for script, scenes in _only(reference, options.only).items() if scenes}

    verdict = compare(reference, ours)
    _print(verdict)

    if not options.only and (options.report or not options.recorded):
        report.write(verdict, about)

    return 1 if verdict.unexplained else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.parity", description=__doc__)
    parser.add_argument("--recorded", action="store_true", help="compare with the recording")
    parser.add_argument("--report", action="store_true", help="write docs/parity.md from the recording as well")
    parser.add_argument("--only", default="", help="only scenes whose script.scene holds this text; writes nothing")
    parser.add_argument("--ours", default="", help="the address of a server of ours that runs already")
    parser.add_argument("--reference", default="", help="the address of a reference server that runs already")

    return parser.parse_args()


def _ask_reference(options: argparse.Namespace) -> tuple[dict[str, Record], dict[str, str]]:
    with _server(options.reference, reference_server) as url:
        record = asyncio.run(perform(url, options.only))

    about = {"version": reference_version(), "recorded_on": dt.datetime.now(dt.UTC).date().isoformat()}
    if not options.only:
        recordings.write(record, about)

    return record, about


def _server(url: str, start: Callable[[], AbstractContextManager[str]]) -> AbstractContextManager[str]:
    return contextlib.nullcontext(url) if url else start()


def _only(record: dict[str, Record], text: str) -> dict[str, Record]:
    return {
        script: {scene: steps for scene, steps in scenes.items() if text in f"{script}.{scene}"}
        for script, scenes in record.items()
    }


def _print(verdict: Verdict) -> None:
    for differences in verdict.unexplained.values():
        for difference in differences:
            print(difference)

    for entry in verdict.table:
        if not entry.used:
            print(f"not needed any more: {entry.steps} {entry.paths}")

    print(verdict)


if __name__ == "__main__":
    sys.exit(main())

"""`make coverage` follows processes that are forked or end at once, named queries, and sources of a bundle."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import coverage

from tests import measured

ROOT = Path(__file__).parents[2]
PROGRAM = """
import os, sys
sys.path.insert(0, sys.argv[1])
import followed
pid = os.fork()
if pid == 0:
    followed.in_the_child()
    os._exit(0)
os.waitpid(pid, 0)
os.execv(sys.executable, [sys.executable, "-c", "pass"])
"""
FOLLOWED = """def in_the_child():
    from portside.alerts.sql import sql
    assert sql.lock_alerts.sql
    assert sql.open_alerts.text


def nowhere():
    pass
"""


def test_forked_and_replaced_processes_leave_their_lines_and_queries(tmp_path) -> None:
    results = tmp_path / "results"
    (results / "data").mkdir(parents=True)
    module = tmp_path / "followed.py"
    module.write_text(FOLLOWED)

    given = (os.getpid(), str(tmp_path), str(results))
    start = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from tests import measured; measured.begin(*{given!r})"

    subprocess.run([sys.executable, "-c", start + PROGRAM, str(tmp_path)], check=True)

    data = coverage.Coverage(data_file=str(results / "data" / "python"), config_file=False)
    data.combine([str(results / "data")])
    assert sorted(data.get_data().lines(str(module)) or []) == [1, 2, 3, 4, 7]
    assert (results / measured.QUERIES).read_text().splitlines() == ["portside.alerts lock_alerts"]
    started, saved = ((results / name).read_text().split() for name in (measured.STARTED, measured.SAVED))
    assert len(started) == 2 and sorted(started) == sorted(saved)


def test_process_of_another_run_is_not_measured(tmp_path) -> None:
    start = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from tests import measured; "
    start += f"measured.begin(1, 'nowhere', {str(tmp_path)!r}); sys.exit('coverage' in sys.modules)"

    subprocess.run([sys.executable, "-c", start], check=True)

    assert list(tmp_path.iterdir()) == []


def test_counts_of_a_bundle_lead_to_the_lines_of_its_sources(tmp_path) -> None:
    bundle = tmp_path / "main.mjs"
    # The second line begins at offset 11; in UTF-16 the emoji counts twice.
    bundle.write_text('a = "🦆";\nif (a) { b; }\n', "utf-8")

    # Line 1 of the bundle is line 1 of the source; in line 2 column 0 is line 2, and column 9 is line 3.
    content = {"sources": ["src/main.ts"], "mappings": "AAAA;AACA,SACA"}
    (tmp_path / "main.mjs.map").write_text(json.dumps(content))
    source = tmp_path / "src" / "main.ts"
    whole = {"startOffset": 0, "endOffset": 25, "count": 1}
    branch = {"startOffset": 17, "endOffset": 23, "count": 0}

    lines = (
        _source_maps()
        .SourceMap(bundle, tmp_path / "main.mjs.map", tmp_path / "src")
        .lines([{"ranges": [whole, branch]}])
    )

    assert list(lines) == [(source, 1, True), (source, 2, True), (source, 3, False)]


def _source_maps() -> Any:
    spec = importlib.util.spec_from_file_location("source_maps_script", ROOT / "scripts" / "source_maps.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

"""The audit of the pinned dependencies: its verdict for each output of the tool."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "audit.py"
FINE = {"name": "fine", "version": "1.0", "vulns": []}
BAD = {"name": "bad", "version": "2.0", "vulns": [{"id": "PYSEC-1", "fix_versions": ["2.1"]}]}
UNMENDED = {"name": "worse", "version": "3.0", "vulns": [{"id": "PYSEC-2", "fix_versions": []}]}
UNKNOWN = {"name": "own", "skip_reason": "not found"}


@pytest.fixture
def audit() -> Any:
    spec = importlib.util.spec_from_file_location("audit", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_vulnerable_package_fails_with_its_name_and_the_way_out(audit: Any, capsys: pytest.CaptureFixture[str]):
    assert audit.show([FINE, BAD, UNMENDED, UNKNOWN]) == 1
    output = capsys.readouterr().out
    assert "bad 2.0: PYSEC-1, fixed in 2.1" in output
    assert "worse 3.0: PYSEC-2, fixed in no version yet" in output
    assert "no advisories for own" in output
    assert "3 packages looked up, 2 of them vulnerable" in output


def test_without_one_it_passes(audit: Any):
    assert audit.show([FINE, UNKNOWN]) == 0


def test_it_asks_for_every_pinned_package(audit: Any, monkeypatch: pytest.MonkeyPatch):
    asked: list[list[str]] = []

    def ask(pins: list[str], _within_s: float) -> list[dict[str, Any]]:
        asked.append(pins)
        return [FINE]

    monkeypatch.setattr(audit, "ask", ask)
    monkeypatch.setattr(sys, "argv", ["audit.py"])
    assert audit.main() == 0
    (first,), everything = asked
    assert first == everything[0]
    locked = SCRIPT.parents[1].joinpath("requirements.lock").read_text("utf-8")
    assert len(everything) == locked.count("\n    # via") > 100
    assert any(pin.startswith("cryptography==") for pin in everything)
    assert all(" " not in pin for pin in everything)


def test_without_time_nothing_fails_and_it_is_said():
    done = subprocess.run([sys.executable, SCRIPT, "0"], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, "skipped" in done.stdout) == (0, True)

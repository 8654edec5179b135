"""The gate fails for a pin with a known vulnerability, and for a pin that nobody looked up."""

import importlib.util
from datetime import date
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
LOCK = ["jinja2==3.1.2 \\", "    --hash=sha256:00", "    # via x", "uvloop==0.22.1 ; sys_platform != 'win32' \\"]


@pytest.fixture(scope="module")
def audit() -> ModuleType:
    spec = importlib.util.spec_from_file_location("audit_script", ROOT / "scripts" / "audit.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)

    spec.loader.exec_module(module)
    return module


def test_snapshot_has_every_pin(audit: ModuleType):
    pins = audit.read_pins(line for lock in audit.LOCKS for line in lock.read_text("utf-8").splitlines())
    assert len(pins) > 100
    assert audit.check_snapshot(audit.read_snapshot(ROOT / "scripts" / "advisories.json"), pins) == 0


@pytest.mark.parametrize(
    ("known", "findings", "status", "says"),
    [
        ({"jinja2": "3.1.2", "uvloop": "0.22.1"}, [], 0, "3 days ago"),
        (
            {"jinja2": "3.1.2", "uvloop": "0.22.1"},
            [("jinja2", "X-1", ["3.1.3"])],
            1,
            "jinja2 3.1.2: X-1, fixed in 3.1.3",
        ),
        ({"jinja2": "3.1.1", "uvloop": "0.22.1"}, [("jinja2", "X-1", [])], 1, "does not have jinja2==3.1.2"),
        ({"jinja2": "3.1.2"}, [], 1, "does not have uvloop==0.22.1"),
    ],
)
def test_snapshot_decides_without_a_network(
    audit: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    known: dict[str, str],
    findings: list[Any],
    status: int,
    says: str,
):
    monkeypatch.setattr(audit, "_today", lambda: date(2026, 3, 2))
    path = tmp_path / "advisories.json"
    audit.write_snapshot(path, audit.Audit("2026-02-27", known, [audit.Finding(*each) for each in findings]))
    assert audit.check_snapshot(audit.read_snapshot(path), audit.read_pins(LOCK)) == status
    assert says in capsys.readouterr().out


@pytest.mark.parametrize(
    ("known", "findings", "status"),
    [
        ({"jinja2": "3.1.2", "uvloop": "0.22.1"}, [], 0),
        ({"jinja2": "3.1.2"}, [], 1),
        ({"jinja2": "3.1.2", "uvloop": "0.22.1"}, [("uvloop", "X-1", [])], 1),
    ],
)
def test_snapshot_decides_about_pins_that_the_index_did_not_answer_for(
    audit: ModuleType, known: dict[str, str], findings: list[Any], status: int
):
    answered = audit.Audit("2026-01-02", {"jinja2": "3.1.2"}, [])
    snapshot = audit.Audit("2026-01-01", known, [audit.Finding(*each) for each in findings])
    assert audit.check_audit(answered, audit.read_pins(LOCK), snapshot) == status


def test_database_tells_which_versions_are_affected(audit: ModuleType, tmp_path: Path):
    def affected(version: str, *events: dict[str, str], **more: Any) -> list[str]:
        ranges = [{"type": "ECOSYSTEM", "events": list(events)}, {"type": "GIT", "events": [{"introduced": "0"}]}]
        advisory = {"id": "X-1", "affected": [{"package": {"name": "Jinja2"}, "ranges": ranges}], **more}
        (tmp_path / "vulns" / "jinja2").mkdir(parents=True, exist_ok=True)
        (tmp_path / "vulns" / "jinja2" / "X-1.yaml").write_text(yaml.safe_dump(advisory))

        found = audit.audit_with_database(tmp_path, {"jinja2": version, "uvloop": "1"}).findings
        return [f"{each.name} {each.id} {each.fix_versions}" for each in found]

    assert affected("3.1.2", {"introduced": "0"}, {"fixed": "3.1.3"}) == ["jinja2 X-1 ['3.1.3']"]
    assert affected("3.1.3", {"introduced": "0"}, {"fixed": "3.1.3"}) == []
    assert affected("3.1.10", {"introduced": "3.1.9"}, {"fixed": "3.1.11"}) == ["jinja2 X-1 ['3.1.11']"]
    assert affected("3.1.8", {"introduced": "3.1.9"}) == []
    assert affected("3.1.8", {"introduced": "0"}, {"last_affected": "3.1.8"}) == ["jinja2 X-1 []"]
    assert affected("3.1.9", {"introduced": "0"}, {"last_affected": "3.1.8"}) == []
    assert affected("not a version", {"introduced": "3.1.9"}) == ["jinja2 X-1 []"]

    assert affected("3.1.2", {"introduced": "0"}, withdrawn="2024-01-01T00:00:00Z") == []

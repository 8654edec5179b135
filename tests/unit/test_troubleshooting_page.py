"""The page about problems mentions everything that the doctor and alerts can name, and no error that does not exist."""

import re
from pathlib import Path

from portside.alerts.rules import RULES
from portside.operate import machine_checks, service_checks

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "troubleshooting.md").read_text("utf-8")
# The name that a finding begins with, where it is written out.
FINDING = re.compile(r'\b(?:fault|warning|fine|level|_check_program|Finding)\(\s*"([a-z-]+)"')


def list_findings() -> set[str]:
    names: set[str] = set()
    for module in (machine_checks, service_checks):
        names |= set(FINDING.findall(Path(module.__file__).read_text("utf-8")))

    return names


def test_page_mentions_every_check_of_the_doctor():
    findings = list_findings()
    assert len(findings) > 30
    names = {*machine_checks.CHECKS, *service_checks.SERVICE_CHECKS, *findings, "settings", "front", "listener-key"}
    assert {name for name in names if f"`{name}`" not in PAGE} == set()


def test_page_mentions_every_alert():
    assert {name for name in RULES if f"`{name}`" not in PAGE} == set()


def test_page_names_errors_with_their_status():
    reference = (DOCS / "reference" / "errors.md").read_text("utf-8")
    errors = set(re.findall(r"^\| `(\w+)` \| (\d+) \|", reference, re.MULTILINE))
    rows = re.findall(r"^\| (\d{3}) (`[^|]+?`) (?:in a browser )?\|", PAGE, re.MULTILINE)
    mentions = [(code, status) for status, codes in rows for code in re.findall(r"`(\w+)`", codes)]

    assert len(mentions) > 15
    assert [mention for mention in mentions if mention not in errors] == []

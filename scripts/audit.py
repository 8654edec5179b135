"""Looks whether a pinned dependency is known to be vulnerable: `audit.py [seconds]`, 600 where it is not said.

The tool is pip-audit, which asks for the advisories of one package after the other and keeps the answers for a while.
What is found fails the gate. Where there are no advisories to be had, or not in time, that is said and nothing fails: a
machine without the network can build as well.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "requirements.lock"
CACHE = ROOT / ".venv" / ".audit"
COMMAND = (
    sys.executable, "-m", "pip_audit", "--disable-pip", "--no-deps", "--format", "json", "--progress-spinner", "off",
    "--timeout", "5", "--cache-dir", str(CACHE),
)  # fmt: skip


def main() -> int:
    deadline = time.monotonic() + float(sys.argv[1] if len(sys.argv) > 1 else 600)
    pins = [line.split(";")[0].strip(" \\") for line in LOCK.read_text("utf-8").splitlines() if line[:1].isalnum()]
    for names in (pins[:1], pins):
        # One is asked for first: where nobody knows that, nobody is asked for the rest.
        try:
            report = ask(names, deadline - time.monotonic())
        except subprocess.TimeoutExpired:
            print("  skipped: the advisories did not come in time; make audit waits longer")
            return 0
        if report is None or all("skip_reason" in found for found in report):
            print("  skipped: there are no advisories to be had from here")
            return 0
    return tell(report)


def ask(pins: list[str], within_s: float) -> list[dict[str, Any]] | None:
    """Return what is known of some pinned packages; None where nobody answers. Raises TimeoutExpired."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as wanted:
        wanted.write("\n".join(pins))
        wanted.flush()
        command = [*COMMAND, "--requirement", wanted.name]
        done = subprocess.run(command, capture_output=True, text=True, timeout=max(within_s, 0.1), check=False)
    try:
        dependencies: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
    except ValueError:
        return None
    return dependencies


def tell(report: list[dict[str, Any]]) -> int:
    """Print what is known of the packages; return 1 where one of them is vulnerable."""
    vulnerable = [found for found in report if found.get("vulns")]
    for found in vulnerable:
        for known in found["vulns"]:
            fixed = ", ".join(known["fix_versions"]) or "no version yet"
            print(f"  {found['name']} {found['version']}: {known['id']}, mended in {fixed}")
    unknown = [found["name"] for found in report if "skip_reason" in found]
    if unknown:
        print(f"  nothing is known of {', '.join(unknown)}")
    print(f"  {len(report) - len(unknown)} packages looked up, {len(vulnerable)} of them vulnerable")
    return 1 if vulnerable else 0


if __name__ == "__main__":
    sys.exit(main())

"""Checks whether a pinned dependency has a known vulnerability: `audit.py [seconds]`; the default is 600.

pip-audit requests the advisories of one package after the other, and caches them. A vulnerability fails the gate. If
the advisories cannot be reached in time, the script says so and succeeds: a machine without network can build, too.
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
        # One package is tried first: if its advisories cannot be reached, the others cannot either.
        try:
            report = ask(names, deadline - time.monotonic())
        except subprocess.TimeoutExpired:
            print("  skipped: the advisories did not arrive in time; make audit waits longer")
            return 0
        if report is None or all("skip_reason" in found for found in report):
            print("  skipped: the advisories cannot be reached from here")
            return 0
    return show(report)


def ask(pins: list[str], within_s: float) -> list[dict[str, Any]] | None:
    """Return the advisories of pinned packages; None if they cannot be reached. Raises TimeoutExpired."""
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


def show(report: list[dict[str, Any]]) -> int:
    """Print the vulnerable packages; return 1 if there is one."""
    vulnerable = [found for found in report if found.get("vulns")]
    for found in vulnerable:
        for known in found["vulns"]:
            fixed = ", ".join(known["fix_versions"]) or "no version yet"
            print(f"  {found['name']} {found['version']}: {known['id']}, fixed in {fixed}")
    unknown = [found["name"] for found in report if "skip_reason" in found]
    if unknown:
        print(f"  no advisories for {', '.join(unknown)}")
    print(f"  {len(report) - len(unknown)} packages looked up, {len(vulnerable)} of them vulnerable")
    return 1 if vulnerable else 0


if __name__ == "__main__":
    sys.exit(main())

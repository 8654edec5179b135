"""Checks whether a pinned dependency has a known vulnerability: `audit.py [--within S] [--write] [--database FOLDER]`.

pip-audit requests the advisories of one package after the other, and caches them. Where they cannot be reached in
time, `advisories.json` decides: a dated snapshot that says which pins were checked, and what was found. It also decides
about single pins that the index did not answer for. A vulnerable pin fails the gate either way; without advisories, so
does a pin that the snapshot does not have. `--write` renews the snapshot.

`--database` reads the advisories from a copy of the Python Packaging Advisory Database instead, for machines that reach
nothing: a folder with its YAML files, or its git directory.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

ROOT = Path(__file__).parents[1]
LOCKS = (ROOT / "requirements.lock", ROOT / "docs" / "requirements.lock")
SNAPSHOT = ROOT / "scripts" / "advisories.json"
CACHE = ROOT / ".venv" / ".audit"
COMMAND = (
    sys.executable,
    "-m",
    "pip_audit",
    "--disable-pip",
    "--no-deps",
    "--format",
    "json",
    "--progress-spinner",
    "off",
    "--timeout",
    "5",
    "--cache-dir",
    str(CACHE),
)
_PIN = re.compile(r"^(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^]]*\])?==(?P<version>[^ ;\\]+)")
Pins = Mapping[str, str]


class Finding(NamedTuple):
    """An advisory that a pinned version is affected by, and the versions that are not any more."""

    name: str
    id: str
    fix_versions: list[str]


class Audit(NamedTuple):
    """The pins whose advisories were read on a day, and what was found."""

    as_of: str
    pins: dict[str, str]
    findings: list[Finding]


def main() -> int:
    options = _options()
    pins = read_pins(line for lock in LOCKS for line in lock.read_text("utf-8").splitlines())

    database = options.database
    audit = ask(pins, options.within) if database is None else audit_with_database(database, pins)
    if audit is None:
        return check_snapshot(read_snapshot(SNAPSHOT), pins)

    if options.write:
        write_snapshot(SNAPSHOT, audit)

    return check_audit(audit, pins, read_snapshot(SNAPSHOT))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--within", type=float, default=600.0, help="seconds to wait for the advisories")
    parser.add_argument("--write", action="store_true", help="write the snapshot")
    parser.add_argument("--database", type=Path, help="a copy of the Python Packaging Advisory Database")
    return parser.parse_args()


def read_pins(lines: Iterable[str]) -> dict[str, str]:
    """Return the versions of the packages in a lock file, by their names."""
    found = (match for line in lines if (match := _PIN.match(line)))
    return {str(canonicalize_name(match["name"])): match["version"] for match in found}


# The advisories of the package index


def ask(pins: Pins, within_s: float) -> Audit | None:
    """Return the advisories of the package index; None if they cannot be reached in time."""
    deadline = time.monotonic() + within_s
    names = sorted(pins)
    report: list[dict[str, Any]] = []

    for asked in (names[:1], names):
        # One package is tried first: if its advisories cannot be reached, the others cannot either.
        try:
            answer = _run_pip_audit({name: pins[name] for name in asked}, deadline - time.monotonic())
        except subprocess.TimeoutExpired:
            print("  the advisories did not arrive in time; make audit waits longer")
            return None

        if answer is None or all("skip_reason" in found for found in answer):
            print("  the advisories cannot be reached from here")
            return None

        report = answer

    known = {str(canonicalize_name(each["name"])): each["version"] for each in report if "skip_reason" not in each}
    findings = [
        Finding(str(canonicalize_name(each["name"])), advisory["id"], list(advisory["fix_versions"]))
        for each in report
        for advisory in each.get("vulns", ())
    ]

    return Audit(_today().isoformat(), known, findings)


def _run_pip_audit(pins: Pins, within_s: float) -> list[dict[str, Any]] | None:
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as wanted:
        wanted.write("".join(f"{name}=={version}\n" for name, version in pins.items()))
        wanted.flush()
        command = [*COMMAND, "--requirement", wanted.name]
        done = subprocess.run(command, capture_output=True, text=True, timeout=max(within_s, 0.1), check=False)

    try:
        dependencies: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
    except ValueError:
        return None

    return dependencies


# A copy of the advisory database


def audit_with_database(folder: Path, pins: Pins) -> Audit:
    """Return what a copy of the advisory database says about the pins."""
    if (folder / "HEAD").is_file() or (folder / ".git").exists():
        as_of, texts = _read_git(folder, pins)
    else:
        as_of, texts = _read_folder(folder, pins)

    findings = [finding for text in texts for finding in find_in_advisory(yaml.safe_load(text), pins)]
    return Audit(as_of, dict(pins), findings)


def _read_git(folder: Path, pins: Pins) -> tuple[str, Iterator[str]]:
    def git(*arguments: str) -> str:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True)
        return done.stdout

    as_of = git("log", "-1", "--format=%cs").strip()
    paths = git("ls-tree", "-r", "--name-only", "HEAD", "vulns").splitlines()
    wanted = [path for path in paths if _parse_package(path) in pins]

    return as_of, (git("show", f"HEAD:{path}") for path in wanted)


def _read_folder(folder: Path, pins: Pins) -> tuple[str, Iterator[str]]:
    paths = sorted(folder.glob("vulns/*/*.yaml"))
    newest = max((path.stat().st_mtime for path in paths), default=0.0)
    as_of = datetime.fromtimestamp(newest, UTC).date().isoformat()
    return as_of, (path.read_text("utf-8") for path in paths if _parse_package(path.as_posix()) in pins)


def _parse_package(path: str) -> str:
    parts = path.split("/")
    return str(canonicalize_name(parts[-2])) if path.endswith(".yaml") and len(parts) > 1 else ""


def find_in_advisory(advisory: Mapping[str, Any], pins: Pins) -> Iterator[Finding]:
    """Yield the pins that an advisory affects."""
    if advisory.get("withdrawn"):
        return

    for affected in advisory.get("affected", ()):
        name = str(canonicalize_name(affected["package"]["name"]))
        if name not in pins:
            continue

        ranges = [each["events"] for each in affected.get("ranges", ()) if each.get("type") == "ECOSYSTEM"]
        listed = {str(version) for version in affected.get("versions", ())}
        if pins[name] in listed or any(is_affected(pins[name], events) for events in ranges):
            fixed = [str(event["fixed"]) for events in ranges for event in events if "fixed" in event]
            yield Finding(name, str(advisory["id"]), fixed)


def is_affected(version: str, events: Iterable[Mapping[str, Any]]) -> bool:
    """Whether a version is in a range of an advisory; a version that cannot be compared counts as affected."""
    is_inside = False
    try:
        own = Version(version)
        for event in events:
            if "introduced" in event and (event["introduced"] == "0" or own >= Version(str(event["introduced"]))):
                is_inside = True

            if "fixed" in event and own >= Version(str(event["fixed"])):
                is_inside = False

            if "last_affected" in event and own > Version(str(event["last_affected"])):
                is_inside = False
    except InvalidVersion:
        return True

    return is_inside


# The snapshot


def read_snapshot(path: Path) -> Audit:
    """Return the snapshot."""
    content = json.loads(path.read_text("utf-8"))
    return Audit(content["as_of"], content["pins"], [Finding(*found) for found in content["findings"]])


def write_snapshot(path: Path, audit: Audit) -> None:
    """Write the snapshot, in an order that shows what changed."""
    content = {"as_of": audit.as_of, "findings": sorted(audit.findings), "pins": dict(sorted(audit.pins.items()))}
    path.write_text(json.dumps(content, indent=2) + "\n", "utf-8")


def check_snapshot(snapshot: Audit, pins: Pins) -> int:
    """Print what the snapshot says about the pins; return 1 for a vulnerable or an unknown pin."""
    age = (_today() - date.fromisoformat(snapshot.as_of)).days
    print(f"  checked against the snapshot of {snapshot.as_of}, {age} days ago; newer advisories are not in it")
    unknown = {f"{name}=={version}" for name, version in pins.items() if snapshot.pins.get(name) != version}
    failed = show(snapshot, pins)

    if unknown:
        print(
            f"  the snapshot does not have {', '.join(sorted(unknown))}: run scripts/audit.py --write where the "
            "advisories can be reached, or with --database"
        )

    return 1 if failed or unknown else 0


def check_audit(audit: Audit, pins: Pins, snapshot: Audit) -> int:
    """Print what the advisories say; the snapshot decides about pins that the index did not answer for."""
    skipped = {name: version for name, version in pins.items() if audit.pins.get(name) != version}
    failed = show(audit, pins)
    return check_snapshot(snapshot, skipped) or failed if skipped else failed


def show(audit: Audit, pins: Pins) -> int:
    """Print the vulnerable pins; return 1 if there is one."""
    looked_up = {name for name, version in pins.items() if audit.pins.get(name) == version}
    findings = [found for found in audit.findings if found.name in looked_up]
    for found in findings:
        fixed = ", ".join(found.fix_versions) or "no version yet"
        print(f"  {found.name} {pins[found.name]}: {found.id}, fixed in {fixed}")

    vulnerable = len({found.name for found in findings})
    print(f"  {len(looked_up)} of {len(pins)} packages looked up, {vulnerable} of them vulnerable")
    return 1 if findings else 0


def _today() -> date:
    return datetime.now(UTC).date()


if __name__ == "__main__":
    sys.exit(main())

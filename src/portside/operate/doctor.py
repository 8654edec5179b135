"""The doctor: examines an installation part by part, and says of each problem what to do about it.

It works whether or not the platform runs, and changes nothing. The checks are in `machine_checks.py` and
`service_checks.py`; a check that fails itself becomes a warning.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable

from portside.kernel.timeouts import timeout
from portside.operate.findings import Check, Diagnosis, ExaminedInstallation, Finding, fault, warning
from portside.operate.machine_checks import CHECKS
from portside.operate.service_checks import SERVICE_CHECKS

CHECK_WITHIN_S = 60.0
# Parts of the platform that several checks look at.
PARTS = frozenset({"postgres", "listener", "front"})


async def examine(installation: ExaminedInstallation, *, skipped: frozenset[str] = frozenset()) -> Diagnosis:
    """Run all checks but those that are skipped by name."""
    findings: list[Finding] = []
    if installation.problem is not None:
        findings.append(fault("settings", installation.problem, "correct the variable or the option that it names"))

    for name, check in CHECKS.items():
        if name not in skipped:
            await _run(name, asyncio.to_thread(_collect_sync, check, installation, findings), findings)

    for name, service_check in SERVICE_CHECKS.items():
        if name not in skipped:
            await _run(name, _collect(service_check(installation), findings), findings)

    findings = _drop_repeated(findings)
    # A check that found something wrong ends with what is well all the same.
    wrong = {finding.check for finding in findings if finding.level != "ok"}
    findings = [
        finding
        for finding in findings
        if finding.check not in skipped and (finding.level != "ok" or finding.check not in wrong)
    ]

    levels = [finding.level for finding in findings]
    return Diagnosis(findings, faults=levels.count("fault"), warnings=levels.count("warning"))


def _drop_repeated(findings: list[Finding]) -> list[Finding]:
    """Return one fault of each part that is down: the platform reports it, and the checks notice it themselves."""
    distinct: list[Finding] = []
    down: set[str] = set()
    for finding in findings:
        is_down = finding.check in PARTS and finding.level == "fault"
        if not is_down or finding.check not in down:
            distinct.append(finding)

        if is_down:
            down.add(finding.check)

    return distinct


def _collect_sync(check: Check, installation: ExaminedInstallation, into: list[Finding]) -> None:
    into.extend(check(installation))


async def _collect(check: AsyncIterator[Finding], into: list[Finding]) -> None:
    async for finding in check:
        into.append(finding)  # noqa: PERF401 - what was found before a failure stays


async def _run(name: str, checking: Awaitable[None], into: list[Finding]) -> None:
    """Await a check; one that fails or takes too long adds a warning to what it has found by then."""
    try:
        async with timeout(CHECK_WITHIN_S):
            await checking
    except Exception as exc:  # noqa: BLE001 - reported, and the other checks continue
        # A TimeoutError has no text.
        reason = f"{type(exc).__name__}: {exc}".removesuffix(": ")
        into.append(warning(name, f"this could not be examined: {reason}", "examine it by hand"))

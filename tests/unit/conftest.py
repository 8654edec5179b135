"""What all unit tests have in common."""

import pytest

from portside.kernel import transient_errors
from portside.kernel.transient_errors import OutageLog


@pytest.fixture(autouse=True)
def _outages_are_logged_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Log each failure of an outage by itself: a line that is held for a second would be in the log of another test."""
    monkeypatch.setattr(transient_errors, "_outages", OutageLog(every_s=0.0))

"""Logs contain no secrets, and each event is one line."""

import json
import re
import subprocess
import sys
import unicodedata

import pytest

from portside.kernel import logs
from portside.kernel.escaping import escape_controls

PROGRAM = """
import logging, sys
from portside.kernel.logs import configure_logs, get_logger
configure_logs(level="INFO", as_json={as_json})
log = get_logger("package")
api_key = "hunter2"
log.info("said", api_key=api_key, x_token="hunter2", client_secret="hunter2",
         headers={{"X-Api-Key": "hunter2", "Authorization": "hunter2", "Accept": "all"}},
         sent=[{{"password": "hunter2"}}], pair=({{"password": "hunter2"}}, 1), plain="seen")
log.debug("whispered")
logging.getLogger("elsewhere").warning("from the standard library")
def fail():
    secret = "hunter2"
    raise ValueError("broken")
try:
    fail()
except ValueError:
    log.exception("failed")
"""


HOSTILE = r"""
import logging
from portside.kernel.logs import configure_logs, get_logger, listen_to_logs
configure_logs(level="INFO", as_json={as_json})
log = get_logger("package")
evil = "\x1b]0;owned\x07\x9b2J\n2030-01-01T00:00:00Z [info     ] forged\u202e"
class Odd:
    def __repr__(self):
        return evil
received = []
with listen_to_logs(lambda event: received.append(str(event["event"]))):
    log.info(evil, path=evil, odd=Odd(), nested={{evil: [evil, (evil,)]}})
    logging.getLogger("elsewhere").warning("said %s", evil)
    for logger in (log, logging.getLogger("elsewhere")):
        try:
            raise ValueError(evil)
        except ValueError:
            logger.exception("failed")
assert len(received) == 4 and not any("\x1b" in text for text in received)
"""


def run_program(program: str = PROGRAM, *, as_json: bool) -> str:
    """Run in a separate process, because logging is configured for a whole process."""
    done = subprocess.run(
        [sys.executable, "-c", program.format(as_json=as_json)], capture_output=True, text=True, check=True, timeout=300
    )
    assert done.stdout == "", "standard output belongs to the program"
    return done.stderr


@pytest.mark.parametrize("as_json", [True, False])
def test_secrets_and_local_variables_stay_out_of_the_log(as_json: bool) -> None:  # noqa: FBT001
    text = run_program(as_json=as_json)
    assert "hunter2" not in text, text
    for seen in ("seen", "from the standard library", "ValueError: broken", "Accept"):
        assert seen in text

    assert "whispered" not in text


HEARD = """
from portside.kernel.logs import configure_logs, get_logger, listen_to_logs
configure_logs(as_json={as_json})
received = []
with listen_to_logs(received.append):
    get_logger("package").info("said", api_key="hunter2", nested=[{{"password": "hunter2"}}], plain="seen")
(event,) = received
assert "hunter2" not in str(event) and event["plain"] == "seen", event
"""


def test_listeners_to_the_log_hear_no_secret() -> None:
    assert "hunter2" not in run_program(HEARD, as_json=True)


def test_json_logs_have_one_object_per_line() -> None:
    lines = [json.loads(line) for line in run_program(as_json=True).splitlines()]
    assert [line["event"] for line in lines] == ["said", "from the standard library", "failed"]
    assert all(line["level"] and line["timestamp"] for line in lines)
    assert lines[0]["headers"] == {"X-Api-Key": "[hidden]", "Authorization": "[hidden]", "Accept": "all"}


def test_log_line_that_cannot_be_written_is_dropped() -> None:
    """Standard error is redirected to a full disk."""
    program = """
from portside.kernel.logs import configure_logs, get_logger
configure_logs()
for number in range(1000):
    get_logger("test").error("the disk is full", number=number, text="x" * 1000)
print("still here")
"""

    with open("/dev/full", "w") as full:  # noqa: PTH123 - a device
        done = subprocess.run(
            [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=full, text=True, check=False, timeout=300
        )

    assert done.stdout == "still here\n"


@pytest.mark.parametrize("as_json", [True, False])
def test_control_characters_in_logs_are_escaped(as_json: bool) -> None:  # noqa: FBT001
    text = run_program(HOSTILE, as_json=as_json)
    assert r"\x1b]0;owned\x07\x9b2J\n2030-01-01" in text.replace("\\\\", "\\")
    lines = text.splitlines()

    # Decoded, as a reader of JSON logs sees it.
    shown = [str(value) for line in lines for value in json.loads(line).values()] if as_json else lines
    for line in shown:
        assert not any(unicodedata.category(character) in {"Cc", "Cf"} for character in line.replace("\n", "")), line

    assert not any(line.startswith("2030") for value in shown for line in value.splitlines())


def test_stack_is_escaped_once_and_keeps_its_lines(monkeypatch) -> None:
    calls: list[str] = []

    def escape(text: str, *, keep_newlines: bool = False) -> str:
        calls.append(text)
        return escape_controls(text, keep_newlines=keep_newlines)

    monkeypatch.setattr(logs, "escape_controls", escape)
    stack = "File a\n\x1b[0m in b"
    escaped = logs._escape_controls(None, "info", {"event": "said", "stack": stack})
    assert escaped == {"event": "said", "stack": "  File a\n  \\x1b[0m in b"}
    assert calls.count(stack) == 1


REQUESTS = r"""
import structlog
from portside.kernel.logs import configure_logs, get_logger, listen_to_logs, log_request
configure_logs(level="INFO", as_json={as_json})
log = get_logger("package")
structlog.contextvars.bind_contextvars(request_id="r-1")
for path in ("/threads/a-b/state", "/a b", "/a=b", "/a'b", "/\x1b]0;owned", "/\u00e9", "/", "/{{x}}"):
    log.info("request", method="GET", path=path, status=200, ms=0.4)
    log_request("GET", path, 200, ms=0.4, request_id="r-1", more={{}})
log.info("request", method="GET", path="/", status=404, ms=1000.0, headers={{"x-a": "b"}})
log_request("GET", "/", 404, ms=1000.0, request_id="r-1", more={{"headers": {{"x-a": "b"}}}})
received = []
with listen_to_logs(received.append):
    log_request("GET", "/heard", 200, ms=0.4, request_id="r-1", more={{}})
assert [event["path"] for event in received] == ["/heard"]
with structlog.testing.capture_logs() as captured:
    log_request("GET", "/captured", 200, ms=0.4, request_id="r-1", more={{}})
assert [event["path"] for event in captured] == ["/captured"]
configure_logs(level="WARNING", as_json={as_json})
log_request("GET", "/not-logged", 200, ms=0.4, request_id="r-1", more={{}})
"""


@pytest.mark.parametrize("as_json", [False, True])
def test_request_is_logged_as_any_other_event(as_json):
    times = re.compile(r"\d{4}-\d\d-\d\dT[0-9:.]+Z")
    lines = [times.sub("T", line) for line in run_program(REQUESTS, as_json=as_json).splitlines()]
    assert len(lines) == 19
    same = [json.loads(line) for line in lines] if as_json else lines
    assert same[0:18:2] == same[1:18:2]
    assert "/heard" in lines[18]

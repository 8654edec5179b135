import json
import subprocess
import sys

import pytest

PROGRAM = """
import logging, sys
from portside.kernel.logs import configure_logs, get_logger
configure_logs(level="INFO", as_json={as_json})
log = get_logger("room")
api_key = "hunter2"
log.info("said", api_key=api_key, x_token="hunter2", headers={{"X-Api-Key": "hunter2", "Accept": "all"}},
         sent=[{{"password": "hunter2"}}], plain="seen")
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


def logged(*, as_json: bool) -> str:
    """A process of its own: the configuration is for the whole process."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(as_json=as_json)], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "", "standard output belongs to the program"
    return done.stderr


@pytest.mark.parametrize("as_json", [True, False])
def test_secrets_and_local_variables_stay_out_of_the_log(as_json: bool) -> None:  # noqa: FBT001
    text = logged(as_json=as_json)
    assert "hunter2" not in text, text
    for seen in ("seen", "from the standard library", "ValueError: broken", "Accept"):
        assert seen in text
    assert "whispered" not in text


def test_json_logs_are_one_object_a_line() -> None:
    lines = [json.loads(line) for line in logged(as_json=True).splitlines()]
    assert [line["event"] for line in lines] == ["said", "from the standard library", "failed"]
    assert all(line["level"] and line["timestamp"] for line in lines)
    assert lines[0]["headers"] == {"X-Api-Key": "[hidden]", "Accept": "all"}

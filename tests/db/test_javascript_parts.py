"""Neither the code of a project nor a client that leaves ends the JavaScript executor.

The tests themselves are in parts.ts, runs.ts and outgoing.ts of tests/js, because they call parts of the executor.
"""

from pathlib import Path

import pytest

from tests.javascript import build_bundle, run_command

pytestmark = pytest.mark.timeout(600)


@pytest.mark.parametrize("script", ["parts", "runs", "outgoing"])
async def test_parts_of_the_executor(tmp_path: Path, script: str):
    bundle = await build_bundle(script, tmp_path)
    output = await run_command("node", "--test", "--test-timeout=60000", bundle.name, cwd=bundle.parent, NO_COLOR="1")
    assert "fail 0" in output
    assert "pass 0" not in output

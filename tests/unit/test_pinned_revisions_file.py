"""The file of revisions that threads continue with."""

from pathlib import Path
from uuid import uuid4

from structlog.testing import capture_logs

from portside.agent.executors.pinned import RevisionsFile
from portside.agent.problems import PROBLEMS
from portside.kernel.codec import dump_api


def test_file_that_cannot_be_read_is_logged_once_until_that_changes(tmp_path: Path):
    path, revision_id = tmp_path / "revisions.json", uuid4()
    readable = dump_api([{"id": revision_id, "config": "c", "python": "p", "known_graphs": "k"}])
    file = RevisionsFile(path)
    contents = [readable, b"", b"", b"[1]", b"[1]", readable, b"", readable]
    with capture_logs() as logged:
        for content in contents:
            path.write_bytes(content)
            # The last revisions that were read stay.
            assert list(file.read()) == [revision_id]
    assert [each["event"] for each in logged] == ["the file of pinned revisions cannot be read"] * 3
    assert "revisions of threads" not in str(PROBLEMS)

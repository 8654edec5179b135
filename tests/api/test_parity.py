"""Our server against recorded responses of the reference server: every difference needs an explanation.

`make parity` records again; see bench/parity.
"""

from pathlib import Path

import pytest
from bench.parity import recordings
from bench.parity.compare import compare
from bench.parity.perform import perform
from bench.reference import QUIET

from tests.servers import PARITY_PROJECT, agent_server


@pytest.mark.timeout(900)
async def test_no_unexplained_difference_from_the_reference(module_database: str, tmp_path: Path):
    reference, _ = recordings.read_record()
    settings = {"N_JOBS_PER_WORKER": "10", **QUIET}
    with agent_server(module_database, tmp_path, project=str(PARITY_PROJECT), **settings) as server:
        verdict = compare(reference, await perform(server.url))

    open_ones = [str(difference) for found in verdict.unexplained.values() for difference in found]
    assert open_ones == [], "\n".join([str(verdict), *open_ones])

"""Every constant that is documented for LangGraph's agent server, with its default.

One has no counterpart: there is no gRPC server that could be slow to start.
"""

from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest

from portside.agent.runs.requests import RunIds, build_admission
from portside.agent.settings import AgentSettings
from portside.agent.streams.bus import MESSAGE_LIMIT_BYTES
from portside.agent.types.assistants import Assistant
from portside.agent.types.runs import RunCreate
from portside.agent.types.states import HistoryQuery, HistorySearch
from portside.kernel.db import STATEMENT_TIMEOUT_S
from portside.kernel.errors import UserMistake
from portside.kernel.http.server import KEEP_ALIVE_S
from portside.kernel.migrations import LOCK_TIMEOUT_S
from portside.kernel.settings import list_names, load_settings

MINUTE_S = 60


@pytest.mark.parametrize(
    ("actual", "documented"),
    [
        (STATEMENT_TIMEOUT_S, 15 * MINUTE_S),
        (AgentSettings().resumable_stream_ttl_seconds, 2 * MINUTE_S),
        (AgentSettings().bg_job_shutdown_grace_period_secs, 3 * MINUTE_S),
        (KEEP_ALIVE_S, 75),
        (LOCK_TIMEOUT_S, 60),
        (HistoryQuery().limit, 1),
        (HistorySearch().limit, 1),
        # Above it a message is not skipped but goes without its events, which are read from Postgres then.
        (MESSAGE_LIMIT_BYTES, 128 * 1024 * 1024),
    ],
)
def test_constants_of_the_servers_table(actual: float, documented: float) -> None:
    assert actual == documented


def test_default_multitask_strategy_is_enqueue() -> None:
    moment = datetime.now(UTC)
    assistant = Assistant(
        assistant_id=uuid4(),
        graph_id="agent",
        config={},
        context={},
        metadata={},
        name="agent",
        description=None,
        created_at=moment,
        updated_at=moment,
        version=1,
    )

    body = RunCreate(assistant_id="agent")
    assert build_admission(assistant, body, RunIds(uuid4(), uuid4(), ""), is_stateless=True).strategy == "enqueue"


@pytest.mark.parametrize(
    ("name", "default", "given", "read"),
    [
        ("N_JOBS_PER_WORKER", 10, "3", 3),
        ("BG_JOB_ISOLATED_LOOPS", False, "true", True),
        ("BG_JOB_TIMEOUT_SECS", 86_400, "30", 30),
        ("BG_JOB_MAX_RETRIES", 3, "0", 0),
        ("BG_JOB_SHUTDOWN_GRACE_PERIOD_SECS", 180, "3600", 3600),
        ("RESUMABLE_STREAM_TTL_SECONDS", 120, "1", 1),
        ("PORTSIDE_TIER", "all", "queue", "queue"),
    ],
)
def test_settings_of_the_background(name: str, default: Any, given: str, read: Any) -> None:
    field = next(field for field in AgentSettings.__struct_fields__ if list_names(AgentSettings, field)[0] == name)
    assert getattr(AgentSettings(), field) == default
    assert getattr(load_settings(AgentSettings, {name: given}), field) == read


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("N_JOBS_PER_WORKER", "0"),
        ("BG_JOB_TIMEOUT_SECS", "0"),
        ("BG_JOB_MAX_RETRIES", "-1"),
        ("BG_JOB_SHUTDOWN_GRACE_PERIOD_SECS", "3601"),
        ("PORTSIDE_TIER", "web"),
    ],
)
def test_a_setting_without_sense_is_named(name: str, given: str) -> None:
    with pytest.raises(UserMistake, match=name):
        load_settings(AgentSettings, {name: given})


def test_server_without_a_queue_has_no_slots() -> None:
    assert AgentSettings(n_jobs_per_worker=4).slots == 4
    assert AgentSettings(n_jobs_per_worker=4, tier="queue").slots == 4
    assert AgentSettings(n_jobs_per_worker=4, tier="api").slots == 0

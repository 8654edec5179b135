"""Answers to interrupts that are not open any more."""

from uuid import uuid4

import pytest

from portside.agent.a2a.params import AgentMessage, SendParams
from portside.agent.a2a.rpc import UnsupportedOperation
from portside.agent.a2a.service import _answer_interrupts
from portside.agent.threads import records
from portside.agent.types.runs import RunCreate
from portside.agent.types.threads import ThreadCreate
from portside.kernel.db import Database


async def test_answer_to_a_thread_without_open_interrupt_is_refused(db: Database) -> None:
    idle = (await records.create_thread(db, ThreadCreate())).thread_id
    body = RunCreate(assistant_id="echo")
    send = SendParams(message=AgentMessage(message_id="m", role="user", parts=[]))
    for thread_id in (idle, uuid4()):
        with pytest.raises(UnsupportedOperation, match="answered by another message"):
            await _answer_interrupts(db, body, send, [{"kind": "text", "text": "yes"}], thread_id)

    assert body.command is None


async def test_answer_names_its_interrupt_and_starts_no_run_beside_another_one(db: Database) -> None:
    """Of two answers that arrive together, the later one must not answer the next question."""
    thread_id = (await records.create_thread(db, ThreadCreate())).thread_id
    interrupts = {"task": [{"id": "i1", "value": "Shall I?"}]}
    await db.pool.execute("update threads set status = 'interrupted', interrupts = $1", interrupts)

    body = RunCreate(assistant_id="echo")
    send = SendParams(message=AgentMessage(message_id="m", role="user", parts=[]))
    await _answer_interrupts(db, body, send, [{"kind": "text", "text": "yes"}], thread_id)
    assert body.command is not None
    assert body.command.resume == {"i1": "yes"}
    assert (body.multitask_strategy, body.strict_resume) == ("reject", True)

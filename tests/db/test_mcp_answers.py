"""Answers to questions over MCP that arrive while the server that holds the call looks for them."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from portside.agent.access.service import Access
from portside.agent.app import SCHEMA
from portside.agent.assistants.records import Assistants
from portside.agent.checkpoints.writer import CheckpointWriter
from portside.agent.config import load_config
from portside.agent.local_graphs import LocalGraphs, PostgresSaver
from portside.agent.mcp.elicitation import CALL_METADATA, Question, Questions, first_question
from portside.agent.queue.worker import Intake
from portside.agent.runs.service import Awaited, Runs
from portside.agent.settings import AgentSettings
from portside.agent.types.access import ANYONE
from portside.agent.types.runs import RunCreate
from portside.agent.webhooks.policy import WebhookPolicy, Webhooks
from portside.executor.load import load_graphs
from portside.kernel.codec import load
from portside.kernel.db import Database
from portside.kernel.ids import uuid7
from portside.kernel.reconcile import Driver
from tests.servers import PROJECTS

ACCEPTED = {"action": "accept", "content": {"answer": "yes"}}


class AnsweredInBetween(Questions):
    """Takes the answer, and executes its run to the end, just before a look at the question."""

    is_answered = False

    async def _open_interrupt(self, question: Question) -> Any:
        if not self.is_answered:
            self.is_answered = True
            await self.answer(ANYONE, question, ACCEPTED, "request")
            await self._runs.result(question.thread_id, question.answered_by)

        return await super()._open_interrupt(question)


@pytest.fixture
async def questions(agent_databases: Callable[[], Awaitable[str]]) -> AsyncIterator[AnsweredInBetween]:
    connect = partial(Database.connect, url := await agent_databases(), schema=SCHEMA)
    db = await connect()
    graphs = load_graphs(load_config(PROJECTS / "tools" / "langgraph.json").project)
    engine = await LocalGraphs.start(graphs, connect, make_saver=partial(PostgresSaver, writer=CheckpointWriter(db)))
    assistants = Assistants(db, engine.facts)

    await assistants.create_system_assistants()
    settings = AgentSettings(database_url=url)
    runs = Runs(db, assistants, engine, settings, intake=Intake(asyncio.Event()), webhooks=Webhooks(WebhookPolicy()))
    runs.worker.start(Driver([]))
    yield AnsweredInBetween(db, runs, Access(db, assistants))
    await runs.worker.drain(5.0)
    await engine.close()
    await db.close()


async def test_answer_between_two_polls_is_found(questions: AnsweredInBetween) -> None:
    runs = questions._runs
    body = RunCreate(
        assistant_id="approval", input={"text": "draft"}, metadata=dict(CALL_METADATA), on_not_exist="create"
    )
    asked = (await runs.create(uuid7(), body, "request", awaited=Awaited.END)).run
    found = first_question(asked, load(await runs.result(asked.thread_id, asked.run_id)))
    assert found is not None

    question, _ = found
    run = await questions.wait(question)
    assert run is not None
    assert run.run_id == question.answered_by

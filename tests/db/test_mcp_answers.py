"""Answers to questions over MCP that arrive while the server that holds the call looks for them."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any
from uuid import UUID

import pytest

from portside.agent.access.service import Access
from portside.agent.app import SCHEMA
from portside.agent.assistants.records import Assistants
from portside.agent.checkpoints.writer import CheckpointWriter
from portside.agent.config import load_config
from portside.agent.local_graphs import LocalGraphs, PostgresSaver
from portside.agent.mcp.elicitation import CALL_METADATA, Question, Questions, first_question
from portside.agent.queue.worker import Intake
from portside.agent.runs.errors import RunNotFound
from portside.agent.runs.service import Awaited, Runs
from portside.agent.settings import AgentSettings
from portside.agent.types.access import ANYONE
from portside.agent.types.runs import RunCreate, RunListQuery
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


async def ask(runs: Runs, **metadata: Any) -> Question:
    """Run a graph up to its question."""
    body = RunCreate(assistant_id="approval", input={"text": "draft"}, metadata=metadata, on_not_exist="create")
    asked = (await runs.create(uuid7(), body, "request", awaited=Awaited.END)).run
    found = first_question(asked, load(await runs.result(asked.thread_id, asked.run_id)))
    assert found is not None
    return found[0]


async def list_run_ids(questions: Questions, question: Question) -> set[UUID]:
    runs = await questions._runs.list(question.thread_id, RunListQuery())
    return {run.run_id for run in runs}


@pytest.mark.parametrize("answer", [ACCEPTED, {"action": "decline"}, None])
async def test_question_of_a_run_that_is_no_tool_call_is_not_answered(
    questions: AnsweredInBetween, answer: Any
) -> None:
    """A client makes up the id: the thread of another protocol is neither resumed nor deleted."""
    questions.is_answered = True
    question = await ask(questions._runs)
    await questions.answer(ANYONE, question, answer, "request")
    assert await list_run_ids(questions, question) == {question.asked_by}


async def test_answer_that_is_sent_twice_starts_one_run(questions: AnsweredInBetween) -> None:
    questions.is_answered = True
    question = await ask(questions._runs, **CALL_METADATA)
    for _ in range(2):
        await questions.answer(ANYONE, question, ACCEPTED, "request")

    await questions._runs.result(question.thread_id, question.answered_by)
    await questions.answer(ANYONE, question, ACCEPTED, "request")
    assert await list_run_ids(questions, question) == {question.asked_by, question.answered_by}


async def test_refused_question_takes_the_thread_of_its_call_along(questions: AnsweredInBetween) -> None:
    questions.is_answered = True
    question = await ask(questions._runs, **CALL_METADATA)
    await questions.answer(ANYONE, question, {"action": "decline"}, "request")
    with pytest.raises(RunNotFound):
        await questions._runs.get(question.thread_id, question.asked_by)

    assert await questions.wait(question) is None


async def test_answer_between_two_polls_is_found(questions: AnsweredInBetween) -> None:
    question = await ask(questions._runs, **CALL_METADATA)
    run = await questions.wait(question)
    assert run is not None
    assert run.run_id == question.answered_by

"""The methods of the protocol, in both versions (contract: section 10).

A call is answered at once (`Answer`), when a run is over (`Waiting`), or with a stream (`Stream`). What fails is told
by its code in any of them.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from portside.agent.a2a.agents import Agents
from portside.agent.a2a.conversations import Tools
from portside.agent.a2a.dialects import MODERN, OLD, Dialect
from portside.agent.a2a.envelopes import BadCall, Request, answer, event, refuse
from portside.agent.a2a.errors import (
    CallFailed,
    NoMethod,
    NoPush,
    NotCancelable,
    Unsupported,
    WrongVersion,
    failure_of,
)
from portside.agent.a2a.listing import list_tasks
from portside.agent.a2a.params import Configuration, Listing, Named, Scope, Send, read_params
from portside.agent.a2a.sending import Asker, Sending, Started, read_task_id
from portside.agent.a2a.streaming import outcome, spoken, with_good_news
from portside.agent.a2a.tasks import ACTIVE, TERMINAL, Standing, Tasks, Wish
from portside.agent.access.service import Access
from portside.agent.assistants.descriptions import Descriptions
from portside.agent.assistants.records import Assistants
from portside.agent.config import AgentConfig
from portside.agent.runs.errors import NothingToCancel
from portside.agent.runs.service import FROM_THE_START, Runs
from portside.agent.settings import AgentSettings
from portside.agent.sql import sql
from portside.agent.threads.states import States
from portside.agent.types.access import Caller
from portside.kernel.db import Database
from portside.kernel.errors import PortsideError
from portside.kernel.logs import get_logger

log = get_logger(__name__)
VERSIONS = frozenset({"", "0.3", "1.0"})
STREAMING = frozenset({"message/stream", "tasks/resubscribe", "SendStreamingMessage", "SubscribeToTask"})
PUSH = "pushnotificationconfig"

Plain = dict[str, Any]


class Asking(NamedTuple):
    """One call: who calls which agent, in which version of the protocol, with what."""

    asker: Asker
    dialect: Dialect
    request: Request
    base_url: str
    scope: Scope | None


class Answer(NamedTuple):
    """What is answered at once."""

    body: bytes


class Waiting(NamedTuple):
    """What is answered when a run is over."""

    body: Awaitable[bytes]


class Stream(NamedTuple):
    """What is answered bit by bit."""

    events: AsyncIterator[bytes]


class Incoming(msgspec.Struct, frozen=True):
    """What comes in over HTTP: the body, which agent it is for, and what headers say."""

    body: bytes
    agent: str
    request_id: str
    base_url: str
    version: str = ""
    scope: Scope | None = None


class Services(NamedTuple):
    """What calls are answered by."""

    db: Database
    runs: Runs
    access: Access
    assistants: Assistants
    descriptions: Descriptions
    states: States


Reply = Answer | Waiting | Stream
Method = Callable[[Asking], Awaitable[Reply]]


class A2A:
    """Answers calls."""

    def __init__(self, services: Services, settings: AgentSettings, config: AgentConfig) -> None:
        db, runs, access = services.db, services.runs, services.access
        self._db, self._runs, self._access = db, runs, access
        self._agents = Agents(services.assistants, services.descriptions, config.auth.openapi)
        self._tasks = Tasks(db, runs, services.states, Tools(settings.a2a_allowed_tool_call_results))
        self._sending = Sending(db, runs, access, self._agents, self._tasks)
        old: Mapping[str, Method] = {
            "message/send": self._send,
            "message/stream": self._stream,
            "tasks/get": self._get,
            "tasks/list": self._list,
            "tasks/cancel": self._cancel,
            "tasks/resubscribe": self._resubscribe,
            "agent/getAuthenticatedExtendedCard": self._card,
        }
        modern: Mapping[str, Method] = {
            "SendMessage": self._send,
            "SendStreamingMessage": self._stream,
            "GetTask": self._get,
            "ListTasks": self._list,
            "CancelTask": self._cancel,
            "SubscribeToTask": self._resubscribe,
            "GetExtendedAgentCard": self._card,
        }
        self._methods = {name: (OLD, method) for name, method in old.items()}
        self._methods |= {name: (MODERN, method) for name, method in modern.items()}

    async def card(self, caller: Caller, name: str, base_url: str) -> Plain:
        """Return the card of an assistant. Raises Invalid, AssistantNotFound, GraphFailed, and what access refuses."""
        agent = await self._agents.find(name)
        await self._access.see_assistant(caller, "read", agent.assistant_id, {"metadata": {}})
        return await self._agents.card(agent, base_url)

    async def call(self, caller: Caller, incoming: Incoming, request: Request) -> Reply:
        """Answer a call. Raises what HTTP says better: that the caller is not let in, or that the server failed."""
        dialect, method = self._methods.get(request.method, (_dialect(incoming.version), None))
        try:
            if not _is_spoken(incoming.version):
                raise WrongVersion
            if method is None:
                raise _unknown(request.method)
            asker = Asker(caller, await self._agents.find(incoming.agent), incoming.request_id)
            return await method(Asking(asker, dialect, request, incoming.base_url, incoming.scope))
        except PortsideError as exc:
            return _failed(request, dialect, failure_of(exc))
        except CallFailed as exc:
            return _failed(request, dialect, exc)

    async def _send(self, asking: Asking) -> Reply:
        send = read_params(asking.request.params, Send)
        configuration = send.configuration or Configuration()
        blocks = configuration.blocking is not False and not configuration.return_immediately
        started = await self._start(asking, send, is_streamed=False, is_resumable=not blocks)
        wish = _wish(asking, configuration.history_length, configuration.history_scope or send.history_scope)
        if not blocks:
            return Answer(answer(asking.request.id, asking.dialect.sent(await self._shown(asking, started, wish))))

        async def whole() -> bytes:
            await self._runs.result(started.thread_id, started.made.run.run_id)
            return answer(asking.request.id, asking.dialect.sent(await self._shown(asking, started, wish)))

        return Waiting(_told(asking, whole()))

    async def _stream(self, asking: Asking) -> Reply:
        send = read_params(asking.request.params, Send)
        configuration = send.configuration or Configuration()
        started = await self._start(asking, send, is_streamed=True, is_resumable=True)
        run = started.made.run
        standing = Standing(started.thread_id, started.start, run.run_id, "submitted", run.created_at, is_last=False)
        wish = _wish(asking, configuration.history_length, configuration.history_scope or send.history_scope)
        return Stream(self._follow(asking, standing, self._runs.events(started.made), wish))

    async def _get(self, asking: Asking) -> Reply:
        named = read_params(asking.request.params, Named)
        standing = await self._find(asking, named, "read")
        task = await self._task(asking, standing, _wish(asking, named.history_length, named.history_scope))
        return Answer(answer(asking.request.id, asking.dialect.task(with_good_news(standing, task))))

    async def _cancel(self, asking: Asking) -> Reply:
        named = read_params(asking.request.params, Named)
        standing = await self._find(asking, named, "update")
        if standing.state in TERMINAL:
            raise NotCancelable
        if standing.state in ACTIVE:
            try:
                await self._runs.cancel(standing.thread_id, standing.run_id, "interrupt")
            except NothingToCancel:
                raise NotCancelable from None
        elif not await self._close(standing):
            raise NotCancelable

        async def whole() -> bytes:
            await self._runs.result(standing.thread_id, standing.run_id)
            now = await self._tasks.find(asking.asker.agent.assistant_id, standing.thread_id, standing.start)
            if now.state != "canceled":
                raise NotCancelable
            return answer(asking.request.id, asking.dialect.task(await self._task(asking, now, _wish(asking))))

        return Waiting(_told(asking, whole()))

    async def _close(self, standing: Standing) -> bool:
        values = {"thread_id": standing.thread_id, "run_id": standing.run_id, "is_superseded": False}
        return await self._db.fetchval(sql.a2a_close_task, **values) is not None

    async def _resubscribe(self, asking: Asking) -> Reply:
        named = read_params(asking.request.params, Named)
        standing = await self._find(asking, named, "read")
        if standing.state in TERMINAL:
            raise Unsupported("The task is over: nothing follows")
        names = (standing.thread_id, standing.run_id)
        source = await self._runs.follow(*names, after=FROM_THE_START, modes=frozenset({"messages"}))
        return Stream(self._follow(asking, standing, source, _wish(asking)))

    async def _list(self, asking: Asking) -> Reply:
        asked = read_params(asking.request.params, Listing)
        value: Plain = {"metadata": {}, "limit": asked.page_size, "offset": 0}
        allowed = await self._access.may(asking.asker.caller, "threads", "search", value)
        page = await list_tasks(self._db, asking.asker.agent, asked, allowed)
        wish = _wish(asking, asked.history_length or 0, asked.history_scope)
        with_artifacts = bool(asked.include_artifacts)
        shown = [
            await self._tasks.show(asking.asker.agent.assistant_id, standing, wish, with_artifacts=with_artifacts)
            for standing in page.standings
        ]
        counts = {"totalSize": page.total, "pageSize": page.size, "nextPageToken": page.next_token}
        tasks = [asking.dialect.task(task) for task in shown]
        return Answer(answer(asking.request.id, {"tasks": tasks, **counts}))

    async def _card(self, asking: Asking) -> Reply:
        card = await self.card(asking.asker.caller, str(asking.asker.agent.assistant_id), asking.base_url)
        return Answer(answer(asking.request.id, card))

    async def _start(self, asking: Asking, send: Send, *, is_streamed: bool, is_resumable: bool) -> Started:
        awaited: Any = "events" if is_streamed else "end"
        return await self._sending.start(asking.asker, send, awaited=awaited, is_resumable=is_resumable)

    async def _find(self, asking: Asking, named: Named, action: str) -> Standing:
        thread_id, start = read_task_id(named.id)
        await self._access.see_thread(asking.asker.caller, action, thread_id)
        return await self._tasks.find(asking.asker.agent.assistant_id, thread_id, start)

    async def _shown(self, asking: Asking, started: Started, wish: Wish) -> Plain:
        names = (started.thread_id, started.made.run.run_id, started.start)
        standing = await self._tasks.after(asking.asker.agent.assistant_id, *names)
        return await self._task(asking, standing, wish)

    async def _task(self, asking: Asking, standing: Standing, wish: Wish) -> Plain:
        return await self._tasks.show(asking.asker.agent.assistant_id, standing, wish)

    async def _follow(
        self, asking: Asking, standing: Standing, source: AsyncIterator[bytes], wish: Wish
    ) -> AsyncIterator[bytes]:
        """Yield the events of a task up to where it stops, and what fails on the way."""
        request, dialect = asking.request, asking.dialect
        try:
            yield event(answer(request.id, dialect.event(await self._task(asking, standing, wish))))
            if standing.state in ACTIVE:
                async for told in spoken(source, standing):
                    yield event(answer(request.id, dialect.event(told)))
                await self._runs.result(standing.thread_id, standing.run_id)
            names = (standing.thread_id, standing.run_id, standing.start)
            now = await self._tasks.after(asking.asker.agent.assistant_id, *names)
            for told in outcome(now, await self._task(asking, now, Wish(length=0))):
                yield event(answer(request.id, dialect.event(told)))
        except Exception as exc:  # noqa: BLE001 - the answer has begun: its last event says what went wrong
            yield event(refuse(request.id, _late(exc), with_details=dialect.is_modern))


async def _told(asking: Asking, work: Awaitable[bytes]) -> bytes:
    """Return what came of work, or of its failure: the answer has begun."""
    try:
        return await work
    except Exception as exc:  # noqa: BLE001 - the answer has begun: it says what went wrong
        return refuse(asking.request.id, _late(exc), with_details=asking.dialect.is_modern)


def _late(exc: Exception) -> CallFailed:
    if isinstance(exc, CallFailed):
        return exc
    if isinstance(exc, PortsideError) and exc.status < 500:
        try:
            return failure_of(exc)
        except PortsideError:
            return CallFailed(exc.message)
    log.exception("a call of the A2A protocol failed", exc_info=exc)
    return CallFailed("Internal error")


def refuse_call(incoming: Incoming, bad: BadCall) -> bytes:
    """Encode the refusal of what is no call."""
    return refuse(bad.id, bad.failure, with_details=_dialect(incoming.version).is_modern)


def _failed(request: Request, dialect: Dialect, failure: CallFailed) -> Reply:
    body = refuse(request.id, failure, with_details=dialect.is_modern)
    return Stream(_once(event(body))) if request.method in STREAMING else Answer(body)


async def _once(chunk: bytes) -> AsyncIterator[bytes]:
    yield chunk


def _dialect(version: str) -> Dialect:
    """Return the version that is spoken where no method tells."""
    return MODERN if version.startswith("1.") else OLD


def _unknown(method: str) -> CallFailed:
    return NoPush() if PUSH in method.lower() else NoMethod(f"Method not found: {method[:100]}")


def _is_spoken(version: str) -> bool:
    return ".".join(version.split(".")[:2]) in VERSIONS


def _wish(asking: Asking, length: int | None = None, scope: Scope | None = None) -> Wish:
    return Wish(length, (scope or asking.scope) == "task")

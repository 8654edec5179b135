"""The checkpointer: langgraph's `BaseCheckpointSaver` on our own pool, one statement for each call.

A saver belongs to the event loop of its database. Calls from other loops and, for the synchronous methods, from other
threads are carried out there; what runs put goes to the stage, which writes it on a loop of its own choice. Each step
stores only the channels it changed (see the migration for the layout).
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from inspect import signature
from random import getrandbits
from typing import Any, TypeVar
from uuid import UUID

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
)
from langgraph.checkpoint.serde.base import SerializerProtocol

from portside.agent.checkpoints.rows import (
    Rows,
    checkpoint_rows,
    filter_json,
    read_tuple,
    thread_of,
    write_rows,
)
from portside.agent.checkpoints.sealing import sealed_rows
from portside.agent.checkpoints.serde import make_serde
from portside.agent.checkpoints.staging import Holder, Stage
from portside.agent.encryption.vault import Vault
from portside.agent.sql import sql
from portside.kernel.db import Database, Record, Session

PAGE = 100
DURABILITY = "__pregel_durability"

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
Named = tuple[str, str, str | None]
"""A thread, a namespace, and a checkpoint's id unless it is the latest."""
_told: ContextVar[tuple[Named, Record | None] | None] = ContextVar("told", default=None)


def _declared(method: F) -> F:
    """Let the method say its signature: langgraph asks in every run, and working it out is 4 % of a short one."""
    method.__dict__["__signature__"] = signature(method)
    return method


class PostgresSaver(BaseCheckpointSaver[str]):
    """Keeps checkpoints in Postgres. Make it on the event loop that its database was connected on.

    Without a stage it has one on that database and loop.
    """

    def __init__(
        self,
        db: Session,
        *,
        serde: SerializerProtocol | None = None,
        vault: Vault | None = None,
        stage: Stage | None = None,
    ) -> None:
        super().__init__(serde=serde or make_serde())
        self.vault = vault
        self.stage = stage or Stage(db)
        self._db = db
        self._loop = asyncio.get_running_loop()

    @property
    def database(self) -> Database:
        """The database that checkpoints are kept in. Raises TypeError inside a transaction."""
        if not isinstance(self._db, Database):
            raise TypeError("this saver is inside a transaction already")
        return self._db

    def get_next_version(self, current: str | None, channel: None) -> str:  # noqa: ARG002 - the base class's signature
        """Return a later version of a channel. The random tail keeps two branches of a thread from sharing one."""
        number = int(str(current).split(".", 1)[0]) + 1 if current else 1
        return f"{number:010d}.{getrandbits(32):08x}"

    @contextmanager
    def told(self, config: RunnableConfig, row: Record | None) -> Iterator[None]:
        """Answer for what a config names with what was read of it already; None where nothing is there."""
        token = _told.set((_named(config), row))
        try:
            yield
        finally:
            _told.reset(token)

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return the checkpoint a config names, or the latest of its namespace, or None."""
        told = _told.get()
        row = told[1] if told and told[0] == _named(config) else await self._at_home(self._read(config))
        return read_tuple(self.serde, row) if row else None

    async def _read(self, config: RunnableConfig) -> Record | None:
        thread_id, checkpoint_ns, checkpoint_id = _named(config)
        if hold := self.stage.find(thread_id):
            if hold.is_empty(checkpoint_ns):
                return None
            await hold.settle()
        try:
            return await self._db.fetchrow(
                sql.read_checkpoint,
                thread_id=thread_id,
                checkpoint_ns=checkpoint_ns,
                checkpoint_id=checkpoint_id,
            )
        except Exception as exc:
            # The graph cannot tell this from a mistake of its own; whoever executes it can.
            if hold:
                hold.failure = hold.failure or exc
            raise

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 - the base class's name
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """Yield checkpoints, newest first; `filter` is matched against their metadata."""
        configurable = config.get("configurable", {}) if config else {}
        bounds = {
            "thread_id": thread_of(config) if config else None,
            "checkpoint_ns": configurable.get("checkpoint_ns"),
            "checkpoint_id": configurable.get("checkpoint_id") or None,
            "before": before["configurable"].get("checkpoint_id") if before else None,
            "filter": filter_json(filter) if filter else None,
        }
        cursor: dict[str, str | None] = {"after_id": None, "after_thread": None, "after_ns": None}
        while limit is None or limit > 0:
            count = PAGE if limit is None else min(limit, PAGE)
            rows = await self._at_home(self._db.fetch(sql.list_checkpoints, **bounds, **cursor, count=count))
            for row in rows:
                yield read_tuple(self.serde, row)
            if len(rows) < count:
                return
            limit = None if limit is None else limit - count
            last = rows[-1]
            cursor = {
                "after_id": last["checkpoint_id"], "after_thread": last["thread_id"], "after_ns": last["checkpoint_ns"]
            }  # fmt: skip

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint and the values that changed; return the config that names it."""
        await self._put(config, checkpoint_rows(self.serde, config, checkpoint, metadata, new_versions))
        place = {"thread_id": thread_of(config), "checkpoint_ns": config["configurable"].get("checkpoint_ns", "")}
        return {"configurable": {**place, "checkpoint_id": checkpoint["id"]}}

    @_declared
    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Store what a task wrote, pending until its step is over."""
        await self._put(config, write_rows(self.serde, config, writes, (task_id, task_path)))

    async def _put(self, config: RunnableConfig, rows: Rows) -> None:
        if self.vault is not None:
            # Reading it back is the database's codec's to do.
            rows = await sealed_rows(self.vault, rows)
        thread_id, maker = thread_of(config), _maker(config)
        hold = self.stage.find(thread_id)
        # A node that was left behind in its thread may still write when another run has the thread.
        if hold is None or not hold.is_for(maker):
            await self.stage.write(thread_id, rows, by=maker)
            return
        await hold.put(config["configurable"].get("checkpoint_ns", ""), rows)
        if config["configurable"].get(DURABILITY) == "sync":
            await hold.settle()

    async def adelete_thread(self, thread_id: str) -> None:
        """Delete all that a thread remembers."""
        await self._at_home(self._db.execute(sql.delete_checkpoints_of_threads, thread_ids=[str(thread_id)]))

    async def adelete_for_runs(self, run_ids: Sequence[str], *, thread_id: str | None = None) -> None:
        """Delete what these runs left. Name the thread, and copies of it are spared.

        Channels kept as a chain of writes (langgraph's DeltaChannel) lose what the deleted runs added to the chain.
        """
        ids = [str(run_id) for run_id in run_ids]
        await self._at_home(self._db.execute(sql.delete_checkpoints_of_runs, run_ids=ids, thread_id=thread_id))

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy the whole history of a thread, checkpoint ids included, to one that has none."""
        copied = self._db.execute(sql.copy_checkpoints, source=str(source_thread_id), target=str(target_thread_id))
        await self._at_home(copied)

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Drop history: `keep_latest` leaves the latest checkpoint of each namespace, `delete` leaves nothing."""
        queries = {"keep_latest": sql.keep_latest_checkpoints, "delete": sql.delete_checkpoints_of_threads}
        if strategy not in queries:
            raise ValueError(f"unknown strategy {strategy!r}: give one of {', '.join(queries)}")
        await self._at_home(
            self._db.execute(queries[strategy], thread_ids=[str(thread_id) for thread_id in thread_ids])
        )

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Do as `aget_tuple`, from another thread."""
        return self._wait(self.aget_tuple(config))

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 - the base class's name
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Do as `alist`, from another thread; everything is read at once."""

        async def collect() -> Sequence[CheckpointTuple]:
            return [found async for found in self.alist(config, filter=filter, before=before, limit=limit)]

        return iter(self._wait(collect()))

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Do as `aput`, from another thread."""
        return self._wait(self.aput(config, checkpoint, metadata, new_versions))

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Do as `aput_writes`, from another thread."""
        self._wait(self.aput_writes(config, writes, task_id, task_path))

    def delete_thread(self, thread_id: str) -> None:
        """Do as `adelete_thread`, from another thread."""
        self._wait(self.adelete_thread(thread_id))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Do as `adelete_for_runs`, from another thread."""
        self._wait(self.adelete_for_runs(run_ids))

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Do as `acopy_thread`, from another thread."""
        self._wait(self.acopy_thread(source_thread_id, target_thread_id))

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Do as `aprune`, from another thread."""
        self._wait(self.aprune(thread_ids, strategy=strategy))

    async def _at_home(self, call: Coroutine[Any, Any, T]) -> T:
        """Await a call on the database's own loop; user code may run this saver on another."""
        if asyncio.get_running_loop() is self._loop:
            return await call
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call, self._loop))

    def _wait(self, call: Coroutine[Any, Any, T]) -> T:
        """Block this thread until the call is done. Raises RuntimeError on the loop that would have to do it."""
        try:
            here: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            here = None
        if here is self._loop:
            call.close()
            raise RuntimeError(
                "a synchronous call to the checkpointer would block the event loop that has to answer it; "
                "in async code use ainvoke, astream, aget_state and so on"
            )
        return asyncio.run_coroutine_threadsafe(call, self._loop).result()


def _named(config: RunnableConfig) -> Named:
    place = config.get("configurable", {})
    return thread_of(config), place.get("checkpoint_ns", ""), place.get("checkpoint_id") or None


def _maker(config: RunnableConfig) -> Holder | None:
    """Return the attempt of a run that a graph is executed by; people, and users' own graphs, write without one."""
    run_id, attempt = config["configurable"].get("run_id"), config.get("metadata", {}).get("run_attempt")
    return _holder(str(run_id), attempt) if isinstance(attempt, int) else None


@lru_cache(maxsize=64)
def _holder(run_id: str, attempt: int) -> Holder | None:
    try:
        return Holder(UUID(run_id), attempt)
    except ValueError:
        return None

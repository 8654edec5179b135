"""The checkpointer that graphs use: it converts checkpoints to rows and back, and a backend stores the rows.

Each step stores only the channels that it changed.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from inspect import signature
from random import getrandbits
from typing import TYPE_CHECKING, Any, TypeVar

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
)
from langgraph.checkpoint.serde.base import SerializerProtocol

from portside.executor.checkpoints.backend import CheckpointBackend, CheckpointQuery, Rows
from portside.executor.checkpoints.pieces import MIN_BYTES, ValuePieces
from portside.executor.checkpoints.rows import (
    Encoding,
    JsonValues,
    build_checkpoint_rows,
    build_write_rows,
    dump_filter,
    get_thread_id,
    read_tuple,
    read_values,
)
from portside.executor.checkpoints.serde import SafeSerializer, make_serde

if TYPE_CHECKING:
    from langgraph.checkpoint.base import DeltaChannelHistory

PAGE = 100
DURABILITY = "__pregel_durability"
# The source of a checkpoint whose run was deleted: it stays only for the channels that are stored as changes.
DELETED = "deleted"

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
CheckpointName = tuple[str, str, str | None]
"""A thread, a namespace, and a checkpoint's id unless it is the latest."""
_preloaded: ContextVar[tuple[CheckpointName, Any] | None] = ContextVar("preloaded_checkpoint", default=None)
_is_for_json: ContextVar[bool] = ContextVar("is_for_json", default=False)
_is_replaying: ContextVar[bool] = ContextVar("is_replaying", default=False)


def _store_signature(method: F) -> F:
    """Store the method's signature on it: langgraph inspects it in every run, which is 4 % of a short one."""
    method.__dict__["__signature__"] = signature(method)
    return method


class Checkpointer(BaseCheckpointSaver[str]):
    """Encodes checkpoints to rows and decodes them; a backend stores them.

    Make it on an event loop: the synchronous methods, which other threads call, are executed there.
    """

    def __init__(self, backend: CheckpointBackend, *, serde: SerializerProtocol | None = None) -> None:
        super().__init__(serde=serde or make_serde())
        self.backend = backend
        self.pieces = ValuePieces()
        self._loop = asyncio.get_running_loop()

    def within(self, backend: CheckpointBackend) -> "Checkpointer":
        """Return a checkpointer with the same serializer and another backend, such as one inside a transaction."""
        return Checkpointer(backend, serde=self.serde)

    def get_next_version(self, current: str | None, channel: None) -> str:  # noqa: ARG002 - the base class's signature
        """Return the next version of a channel. The random suffix keeps two branches of a thread from sharing one."""
        number = int(str(current).split(".", 1)[0]) + 1 if current else 1
        return f"{number:010d}.{getrandbits(32):08x}"

    @contextmanager
    def remembering(self, thread_id: str) -> Iterator[None]:
        """Remember the values of a thread while a run writes to it; the next run reads them again."""
        self.pieces.run_values[thread_id] = {}
        try:
            yield
        finally:
            self.pieces.run_values.pop(thread_id, None)

    @contextmanager
    def preloaded(self, config: RunnableConfig, row: Any) -> Iterator[None]:
        """Return this row for the checkpoint that a config names, instead of reading it; None for no checkpoint."""
        token = _preloaded.set((_get_name(config), row))
        try:
            yield
        finally:
            _preloaded.reset(token)

    @contextmanager
    def reading_for_json(self, *, is_for_json: bool) -> Iterator[None]:
        """Read values that are only encoded as JSON: messages may be the dicts that their JSON has."""
        token = _is_for_json.set(is_for_json)
        try:
            yield
        finally:
            _is_for_json.reset(token)

    def _make_json_values(self) -> JsonValues | None:
        return JsonValues(self.serde) if _is_for_json.get() and isinstance(self.serde, SafeSerializer) else None

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return the checkpoint that a config names, or the latest of its namespace, or None."""
        preloaded = _preloaded.get()
        if preloaded is not None and preloaded[0] == _get_name(config):
            row = preloaded[1]
            return read_tuple(self.serde, row, self._make_json_values()) if row else None

        row = await self.backend.read(*_get_name(config))
        if row is None or (row["metadata"].get("source") == DELETED and not _is_replaying.get()):
            return None

        checkpoint_tuple = read_tuple(self.serde, row)
        if any(len(data) >= MIN_BYTES for data in row["value_datas"] or ()):
            # Remembered now, before the graph can change the objects.
            self.pieces.remember(row["thread_id"], row["checkpoint_ns"], read_values(row, checkpoint_tuple))

        return checkpoint_tuple

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, "DeltaChannelHistory"]:
        """Return the changes of channels that are stored as such, also those of deleted runs."""
        with _replaying():
            return await super().aget_delta_channel_history(config=config, channels=channels)

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, "DeltaChannelHistory"]:
        """Return the same from another thread."""
        with _replaying():
            return super().get_delta_channel_history(config=config, channels=channels)

    def get_long_lists(self, config: RunnableConfig, values: dict[str, Any]) -> dict[str, str]:
        """Return the versions of those values of a run that are long lists in its last checkpoint, by their keys."""
        return self.pieces.get_long_lists(get_thread_id(config), values)

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
        query = CheckpointQuery(
            thread_id=get_thread_id(config) if config else None,
            checkpoint_ns=configurable.get("checkpoint_ns"),
            checkpoint_id=configurable.get("checkpoint_id") or None,
            before=before["configurable"].get("checkpoint_id") if before else None,
            filter=dump_filter(filter) if filter else None,
        )

        json_values = self._make_json_values()
        while limit is None or limit > 0:
            count = PAGE if limit is None else min(limit, PAGE)
            rows = await self.backend.list(query._replace(page_size=count))
            for row in rows:
                yield read_tuple(self.serde, row, json_values)

            if len(rows) < count:
                return

            limit = None if limit is None else limit - count
            last = rows[-1]
            query = query._replace(
                after_id=last["checkpoint_id"], after_thread=last["thread_id"], after_ns=last["checkpoint_ns"]
            )

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint and the values that changed; return the config that names it."""
        await self._put(
            config,
            build_checkpoint_rows(Encoding(self.serde, self.pieces), config, checkpoint, metadata, new_versions),
        )

        checkpoint_ns = config["configurable"].get("checkpoint_ns", "")
        names = {"thread_id": get_thread_id(config), "checkpoint_ns": checkpoint_ns, "checkpoint_id": checkpoint["id"]}
        return {"configurable": names}

    @_store_signature
    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Store the writes of a task; they are pending until its step ends."""
        # Encrypted writes are whole: they are decrypted as one.
        encoding = Encoding(self.serde, self.pieces, cuts_writes=not self.backend.is_encrypted)
        await self._put(config, build_write_rows(encoding, config, writes, (task_id, task_path)))

    async def _put(self, config: RunnableConfig, rows: Rows) -> None:
        configurable = config["configurable"]
        run_id = configurable.get("run_id")
        attempt = config.get("metadata", {}).get("run_attempt")

        await self.backend.put(
            get_thread_id(config),
            configurable.get("checkpoint_ns", ""),
            rows,
            # None for state updates of clients, and for graphs that user code runs by itself.
            run=(str(run_id), attempt) if isinstance(attempt, int) else None,
            is_awaited=configurable.get(DURABILITY) == "sync",
        )

    async def adelete_thread(self, thread_id: str) -> None:
        """Delete all checkpoints of a thread."""
        self.pieces.forget(str(thread_id))
        await self.backend.delete_threads([str(thread_id)])

    async def adelete_for_runs(self, run_ids: Sequence[str], *, thread_id: str | None = None) -> None:
        """Delete the checkpoints of these runs; with a thread id, those of copies of the thread stay.

        Channels that are stored as a chain of writes (langgraph's DeltaChannel) keep what the deleted runs added to it.
        """
        if thread_id is not None:
            self.pieces.forget(thread_id)
        await self.backend.delete_runs([str(run_id) for run_id in run_ids], thread_id)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy the whole history of a thread, with its checkpoint ids, to a thread without checkpoints."""
        await self.backend.copy_thread(str(source_thread_id), str(target_thread_id))

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Delete history: `keep_latest` keeps the latest checkpoint of each namespace, `delete` keeps nothing."""
        prunes = {"keep_latest": self.backend.keep_latest, "delete": self.backend.delete_threads}
        if strategy not in prunes:
            raise ValueError(f"unknown strategy {strategy!r}: give one of {', '.join(prunes)}")

        pruned_ids = [str(thread_id) for thread_id in thread_ids]
        for thread_id in pruned_ids:
            self.pieces.forget(thread_id)

        await prunes[strategy](pruned_ids)

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Call `aget_tuple` from another thread."""
        return self._wait(self.aget_tuple(config))

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 - the base class's name
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Call `alist` from another thread, and read all checkpoints at once."""

        async def collect() -> Sequence[CheckpointTuple]:
            return [checkpoint async for checkpoint in self.alist(config, filter=filter, before=before, limit=limit)]

        return iter(self._wait(collect()))

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Call `aput` from another thread."""
        return self._wait(self.aput(config, checkpoint, metadata, new_versions))

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Call `aput_writes` from another thread."""
        self._wait(self.aput_writes(config, writes, task_id, task_path))

    def delete_thread(self, thread_id: str) -> None:
        """Call `adelete_thread` from another thread."""
        self._wait(self.adelete_thread(thread_id))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Call `adelete_for_runs` from another thread."""
        self._wait(self.adelete_for_runs(run_ids))

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Call `acopy_thread` from another thread."""
        self._wait(self.acopy_thread(source_thread_id, target_thread_id))

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Call `aprune` from another thread."""
        self._wait(self.aprune(thread_ids, strategy=strategy))

    def _wait(self, call: Coroutine[Any, Any, T]) -> T:
        """Block this thread until the call is done. Raises RuntimeError on the loop that has to execute it."""
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


@contextmanager
def _replaying() -> Iterator[None]:
    """Read checkpoints of deleted runs, which are hidden otherwise."""
    token = _is_replaying.set(True)
    try:
        yield
    finally:
        _is_replaying.reset(token)


def _get_name(config: RunnableConfig) -> CheckpointName:
    names = config.get("configurable", {})
    return get_thread_id(config), names.get("checkpoint_ns", ""), names.get("checkpoint_id") or None

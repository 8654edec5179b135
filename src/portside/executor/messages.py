"""The messages between an agent server and an executor process, by the methods that they belong to.

The server says hello first, then the executor with its graphs, or with the reason why they do not load. Then the server
calls `execute` and the operations on graphs (`requests` has their bodies); the executor calls back for checkpoints,
store items and the server's own API. A message is sent as a map of its fields (`link`), on one machine and between
machines alike. A reader ignores fields that it does not know, so that either side may be newer, and refuses those that
have another type. An incompatible change raises PROTOCOL.
"""

from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from typing import Any, NamedTuple, TypeVar, get_type_hints

from portside.executor.link import CallFailed
from portside.executor.requests import GraphFacts
from portside.executor.type_checks import TypeCheck, build_type_check

PROTOCOL = 1
MAIN_SCOPE = 0
"""The scope of checkpoints outside of a transaction."""
LOG_LINE = "\x1e"
"""The first character of a line on an executor's standard error that holds a log record as JSON."""
M = TypeVar("M")

EXECUTE = "execute"
CHECKPOINTS_PUT = "checkpoints.put"
CHECKPOINTS = "checkpoints"
STORE_BATCH = "store.batch"
HTTP_REQUEST = "http.request"
HTTP_DRAIN = "http.drain"
"""From the server, with the number of an exchange: wait until all was read that has arrived of the response."""
RETIRE = "retire"
LEASES = "leases"
"""From the server: the ends of its leases of the runs that it called for."""
TRACES_REFUSED = "traces.refused"
"""The tracing platform refuses the traces of the executor."""
LEASE_LOST = "lease_lost"
"""The code of the error of a run that the executor stopped, because the server did not renew the lease in time."""
CACHE_READ = "cache.read"
"""With a key: the JSON of the entry and its age in seconds, or None."""
CACHE_WRITE = "cache.write"
"""With a key, JSON, and how many seconds it lasts."""
AUTHENTICATE = "auth.authenticate"
AUTHORIZE = "auth.authorize"
APP_START = "app.start"
APP_STOP = "app.stop"
APP_DOCUMENT = "app.document"
APP_REQUEST = "app.request"
APP_SERVER_ROUTE = "app.server_route"
"""A request of the application to the server's own routes."""
APP_AUTHENTICATE = "app.authenticate"
APP_USER = "app.user"
"""The type of a message, before those of ASGI, that tells the application whom the server's route authenticated."""
ENCRYPTION = "encryption"
EMBED = "embed"
"""With texts, and whether they are a query: their vectors."""
UPDATE_STATE = "update_state"
CREATE_STATE = "create_state"


@dataclass(slots=True, kw_only=True)
class ServerHello:
    """The facts that an executor needs before it imports the project.

    The server of an executor on another machine takes `is_encrypted` and `store_ttl` from it: all else is in the
    configuration file there. Variables never go to another machine.
    """

    protocol: int
    file: str
    """The project's configuration file."""
    graphs: dict[str, dict[str, Any]]
    """The location and the description of each graph."""
    dependencies: list[str]
    env: dict[str, str]
    loops: int
    """How many event loops execute graphs."""
    serde: dict[str, Any] = field(default_factory=dict)
    """The classes that the deserializer of checkpoints may make, as fields of `SerdeRules`."""
    is_encrypted: bool = False
    """Whether the server encrypts what it stores."""
    store_ttl: dict[str, Any] | None = None
    """How long items of the store live, as langgraph's `TTLConfig`."""
    log_level: str = "INFO"
    handlers: dict[str, Any] | None = None
    """What to import instead of the graphs: the locations of the project's handlers by their kinds."""


@dataclass(slots=True, kw_only=True)
class ExecutorHello:
    """The description of an executor and its graphs; or why the project does not load, for the user."""

    protocol: int
    language: str
    pid: int
    graphs: dict[str, GraphFacts] = field(default_factory=dict)
    libraries: dict[str, str] = field(default_factory=dict)
    """Versions by the names of packages."""
    failure: str | None = None
    executor_id: str = ""
    """Of an executor on another machine: a name that no other has. Its second connection ends the first."""
    slots: int = 0
    """How many runs it executes at once; 0 is no limit."""
    host: str = ""
    """The machine that it runs on, for people."""
    revision: str | None = None
    """The revision of the project, if it is known."""
    handlers: dict[str, Any] = field(default_factory=dict)
    """Facts about the project's handlers, by their kinds."""
    clock_s: float = 0.0
    """Its monotonic clock when it sent this. The server states the ends of leases by it; 0 if it watches no leases."""


@dataclass(slots=True, kw_only=True)
class GraphCall:
    """A call of the server to graphs. Calls of the graph to the server name the number of this call."""

    request: Any
    """One of `requests`."""
    call: int = 0
    timeout_s: float = 0.0
    """Of a run. The items of its answer are lists of events, each a name and its JSON."""
    scope: int = 0
    """Of a change: the transaction that its checkpoints are written in."""
    is_unfollowed: bool = False
    """Nobody follows the run, and nobody may ask for its events later: they may wait for a moment."""
    leased_until: float = 0.0
    """Of a run: the end of the server's lease, by the executor's clock; 0 if the server does not know that clock."""


@dataclass(slots=True, kw_only=True)
class Leases:
    """New ends of the leases of runs. A run without a new one is stopped, because another server may have it."""

    leases: list[tuple[int, float]]
    """The number of each call, and the end of its run's lease by the executor's clock, in seconds."""


@dataclass(slots=True, kw_only=True)
class Retirement:
    """The executor asks for no more calls: its session ends after the last one, because it is to be replaced."""

    reason: str = ""


@dataclass(slots=True, kw_only=True)
class GoAway:
    """Between machines: the sender ends the connection. How an executor ended, or that the server stops."""

    reason: str
    is_planned: bool
    """The executor ended on purpose, with no call under way."""


@dataclass(slots=True, kw_only=True)
class CheckpointPut:
    """Rows of checkpoints to store, by their tables; each has the columns that `checkpoints/rows.py` names."""

    call: int
    scope: int
    thread_id: str
    checkpoint_ns: str
    run: tuple[str, int] | None
    is_awaited: bool
    checkpoints: list[tuple[Any, ...]]
    values: list[tuple[Any, ...]]
    pieces: list[tuple[Any, ...]]
    writes: list[tuple[Any, ...]]
    size: int


@dataclass(slots=True, kw_only=True)
class CheckpointCall:
    """Another operation of `CheckpointBackend`, with its arguments in order."""

    call: int
    scope: int
    operation: str
    arguments: list[Any]


@dataclass(slots=True, kw_only=True)
class StoreBatch:
    """Operations on the store: the kind of each, and the JSON of its fields."""

    call: int
    ops: list[tuple[str, bytes]]


@dataclass(slots=True, kw_only=True)
class HttpRequest:
    """A request to the server's own API, made by the code that one of the server's calls runs.

    The first item of the answer is the status and the headers, the others are pieces of the body. An `exchange` other
    than 0 is the caller's number for it, with which the server may call HTTP_DRAIN.
    """

    call: int
    method: str
    path: str
    raw_path: bytes
    query: bytes
    headers: list[tuple[bytes, bytes]]
    body: bytes
    exchange: int = 0


@dataclass(slots=True, kw_only=True)
class SentUser:
    """A user whom the project's authentication returned, or whom the server knows."""

    fields: bytes
    """By `values`."""
    handle: int = 0
    """The number of the object that authentication returned, which stays in the executor; 0 if it returned none."""
    is_studio: bool = False
    is_nobody: bool = False
    """Whether it is what Starlette calls an unauthenticated user."""


@dataclass(slots=True, kw_only=True)
class Authenticated:
    """The user that the project's authentication returned."""

    identity: str
    display_name: str
    permissions: list[str]
    user: Any
    """A `SentUser`."""


@dataclass(slots=True, kw_only=True)
class Authorization:
    """A question to the authorization handlers.

    The answer is the fields of the value that they changed, None if none, the names of those that they removed, and a
    filter: as `read_result` returns it, or the handler's own if the facts say that the server reads it.
    """

    user: Any
    """A `SentUser`, or None."""
    permissions: list[str]
    resource: str
    action: str
    value: bytes
    """By `values`."""


@dataclass(slots=True, kw_only=True)
class EncryptionCall:
    """A call of an encryption handler: its operation, whom or what it is about, the context, and the value.

    Context and value are by `values`, as is the answer.
    """

    operation: str
    about: Any
    """A `SentUser` or None for `context`; else the model and the field of the value."""
    metadata: bytes
    value: bytes | None = None


@dataclass(slots=True, kw_only=True)
class Pong:
    """The answer to a ping: for how many seconds a node has blocked its graph loop (the longest-blocked one)."""

    blocked_s: float = 0.0
    memory_bytes: int = 0
    clock_s: float = 0.0
    """The monotonic clock of the executor."""


class _Field(NamedTuple):
    name: str
    is_required: bool
    has_type: TypeCheck


def read(message: type[M], body: Any) -> M:
    """Make a message of a body. Raises CallFailed if the body is no map, or a field is missing or has another type."""
    if type(body) is not dict:
        raise CallFailed("malformed", f"{message.__name__} is not a map")

    arguments: dict[str, Any] = {}
    missing_names: list[str] = []
    for item in _list_fields(message):  # type: ignore[arg-type]
        if item.name in body:
            value = arguments[item.name] = body[item.name]
            if not item.has_type(value):
                raise CallFailed("malformed", f"{item.name} of {message.__name__} has another type")
        elif item.is_required:
            missing_names.append(item.name)

    if missing_names:
        raise CallFailed("malformed", f"{message.__name__} lacks {', '.join(missing_names)}")

    return message(**arguments)


@cache
def _list_fields(message: Any) -> list[_Field]:
    annotations = get_type_hints(message)

    return [
        _Field(
            name=item.name,
            is_required=item.default is MISSING and item.default_factory is MISSING,
            has_type=build_type_check(annotations[item.name]),
        )
        for item in fields(message)
    ]


def expect(annotation: Any, value: Any) -> Any:
    """Return what a peer sent if it has a type. Raises CallFailed."""
    if not build_type_check(annotation)(value):
        raise CallFailed("malformed", f"what the peer sent is not of the type {annotation}")

    return value


def check_protocol(hello: Any, *, sender: str, receiver: str) -> None:
    """Refuse a peer of another protocol version, and name the side to upgrade. Raises CallFailed."""
    version = hello.get("protocol") if type(hello) is dict else None
    if version == PROTOCOL:
        return

    is_newer = type(version) is int and version > PROTOCOL
    older = receiver if is_newer else sender
    raise CallFailed(
        "protocol",
        f"{sender} speaks version {version!r} of the protocol, and {receiver} version {PROTOCOL}: upgrade {older}",
    )

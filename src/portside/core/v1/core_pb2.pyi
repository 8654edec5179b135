from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Frames(_message.Message):
    __slots__ = ("frames",)
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    frames: _containers.RepeatedCompositeFieldContainer[Frame]
    def __init__(self, frames: _Optional[_Iterable[_Union[Frame, _Mapping]]] = ...) -> None: ...

class Frame(_message.Message):
    __slots__ = ("call", "server_hello", "executor_hello", "begin", "item", "result", "error", "cancel", "ping", "pong", "go_away")
    CALL_FIELD_NUMBER: _ClassVar[int]
    SERVER_HELLO_FIELD_NUMBER: _ClassVar[int]
    EXECUTOR_HELLO_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    ITEM_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    PING_FIELD_NUMBER: _ClassVar[int]
    PONG_FIELD_NUMBER: _ClassVar[int]
    GO_AWAY_FIELD_NUMBER: _ClassVar[int]
    call: int
    server_hello: ServerHello
    executor_hello: ExecutorHello
    begin: Call
    item: Item
    result: Result
    error: Error
    cancel: Cancel
    ping: Ping
    pong: Pong
    go_away: GoAway
    def __init__(self, call: _Optional[int] = ..., server_hello: _Optional[_Union[ServerHello, _Mapping]] = ..., executor_hello: _Optional[_Union[ExecutorHello, _Mapping]] = ..., begin: _Optional[_Union[Call, _Mapping]] = ..., item: _Optional[_Union[Item, _Mapping]] = ..., result: _Optional[_Union[Result, _Mapping]] = ..., error: _Optional[_Union[Error, _Mapping]] = ..., cancel: _Optional[_Union[Cancel, _Mapping]] = ..., ping: _Optional[_Union[Ping, _Mapping]] = ..., pong: _Optional[_Union[Pong, _Mapping]] = ..., go_away: _Optional[_Union[GoAway, _Mapping]] = ...) -> None: ...

class Value(_message.Message):
    __slots__ = ("msgpack",)
    MSGPACK_FIELD_NUMBER: _ClassVar[int]
    msgpack: bytes
    def __init__(self, msgpack: _Optional[bytes] = ...) -> None: ...

class Names(_message.Message):
    __slots__ = ("names",)
    NAMES_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, names: _Optional[_Iterable[str]] = ...) -> None: ...

class ServerHello(_message.Message):
    __slots__ = ("protocol", "file", "graphs", "dependencies", "env", "loops", "serde", "is_encrypted", "store_ttl", "log_level")
    class GraphsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: GraphSource
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[GraphSource, _Mapping]] = ...) -> None: ...
    class EnvEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    GRAPHS_FIELD_NUMBER: _ClassVar[int]
    DEPENDENCIES_FIELD_NUMBER: _ClassVar[int]
    ENV_FIELD_NUMBER: _ClassVar[int]
    LOOPS_FIELD_NUMBER: _ClassVar[int]
    SERDE_FIELD_NUMBER: _ClassVar[int]
    IS_ENCRYPTED_FIELD_NUMBER: _ClassVar[int]
    STORE_TTL_FIELD_NUMBER: _ClassVar[int]
    LOG_LEVEL_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    file: str
    graphs: _containers.MessageMap[str, GraphSource]
    dependencies: _containers.RepeatedScalarFieldContainer[str]
    env: _containers.ScalarMap[str, str]
    loops: int
    serde: Value
    is_encrypted: bool
    store_ttl: Value
    log_level: str
    def __init__(self, protocol: _Optional[int] = ..., file: _Optional[str] = ..., graphs: _Optional[_Mapping[str, GraphSource]] = ..., dependencies: _Optional[_Iterable[str]] = ..., env: _Optional[_Mapping[str, str]] = ..., loops: _Optional[int] = ..., serde: _Optional[_Union[Value, _Mapping]] = ..., is_encrypted: _Optional[bool] = ..., store_ttl: _Optional[_Union[Value, _Mapping]] = ..., log_level: _Optional[str] = ...) -> None: ...

class GraphSource(_message.Message):
    __slots__ = ("path", "description")
    PATH_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    path: str
    description: str
    def __init__(self, path: _Optional[str] = ..., description: _Optional[str] = ...) -> None: ...

class ExecutorHello(_message.Message):
    __slots__ = ("protocol", "language", "pid", "graphs", "libraries", "failure", "executor_id", "slots", "host", "revision", "clock_s")
    class GraphsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: GraphFacts
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[GraphFacts, _Mapping]] = ...) -> None: ...
    class LibrariesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    GRAPHS_FIELD_NUMBER: _ClassVar[int]
    LIBRARIES_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    EXECUTOR_ID_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    CLOCK_S_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    language: str
    pid: int
    graphs: _containers.MessageMap[str, GraphFacts]
    libraries: _containers.ScalarMap[str, str]
    failure: str
    executor_id: str
    slots: int
    host: str
    revision: str
    clock_s: float
    def __init__(self, protocol: _Optional[int] = ..., language: _Optional[str] = ..., pid: _Optional[int] = ..., graphs: _Optional[_Mapping[str, GraphFacts]] = ..., libraries: _Optional[_Mapping[str, str]] = ..., failure: _Optional[str] = ..., executor_id: _Optional[str] = ..., slots: _Optional[int] = ..., host: _Optional[str] = ..., revision: _Optional[str] = ..., clock_s: _Optional[float] = ...) -> None: ...

class GraphFacts(_message.Message):
    __slots__ = ("description", "is_factory", "is_fixed", "language")
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    IS_FACTORY_FIELD_NUMBER: _ClassVar[int]
    IS_FIXED_FIELD_NUMBER: _ClassVar[int]
    LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    description: str
    is_factory: bool
    is_fixed: bool
    language: str
    def __init__(self, description: _Optional[str] = ..., is_factory: _Optional[bool] = ..., is_fixed: _Optional[bool] = ..., language: _Optional[str] = ...) -> None: ...

class Call(_message.Message):
    __slots__ = ("method", "graph", "checkpoint_put", "checkpoint_call", "store_batch", "http_request", "retirement", "leases", "other")
    METHOD_FIELD_NUMBER: _ClassVar[int]
    GRAPH_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_PUT_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_CALL_FIELD_NUMBER: _ClassVar[int]
    STORE_BATCH_FIELD_NUMBER: _ClassVar[int]
    HTTP_REQUEST_FIELD_NUMBER: _ClassVar[int]
    RETIREMENT_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    OTHER_FIELD_NUMBER: _ClassVar[int]
    method: str
    graph: GraphCall
    checkpoint_put: CheckpointPut
    checkpoint_call: CheckpointCall
    store_batch: StoreBatch
    http_request: HttpRequest
    retirement: Retirement
    leases: Leases
    other: Value
    def __init__(self, method: _Optional[str] = ..., graph: _Optional[_Union[GraphCall, _Mapping]] = ..., checkpoint_put: _Optional[_Union[CheckpointPut, _Mapping]] = ..., checkpoint_call: _Optional[_Union[CheckpointCall, _Mapping]] = ..., store_batch: _Optional[_Union[StoreBatch, _Mapping]] = ..., http_request: _Optional[_Union[HttpRequest, _Mapping]] = ..., retirement: _Optional[_Union[Retirement, _Mapping]] = ..., leases: _Optional[_Union[Leases, _Mapping]] = ..., other: _Optional[_Union[Value, _Mapping]] = ...) -> None: ...

class Item(_message.Message):
    __slots__ = ("events", "head", "body", "other")
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    OTHER_FIELD_NUMBER: _ClassVar[int]
    events: Events
    head: ResponseHead
    body: bytes
    other: Value
    def __init__(self, events: _Optional[_Union[Events, _Mapping]] = ..., head: _Optional[_Union[ResponseHead, _Mapping]] = ..., body: _Optional[bytes] = ..., other: _Optional[_Union[Value, _Mapping]] = ...) -> None: ...

class Result(_message.Message):
    __slots__ = ("outcome", "json", "changed", "drawing", "schemas", "subgraphs", "other")
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    JSON_FIELD_NUMBER: _ClassVar[int]
    CHANGED_FIELD_NUMBER: _ClassVar[int]
    DRAWING_FIELD_NUMBER: _ClassVar[int]
    SCHEMAS_FIELD_NUMBER: _ClassVar[int]
    SUBGRAPHS_FIELD_NUMBER: _ClassVar[int]
    OTHER_FIELD_NUMBER: _ClassVar[int]
    outcome: Outcome
    json: bytes
    changed: ChangedState
    drawing: Drawing
    schemas: Schemas
    subgraphs: SubgraphSchemas
    other: Value
    def __init__(self, outcome: _Optional[_Union[Outcome, _Mapping]] = ..., json: _Optional[bytes] = ..., changed: _Optional[_Union[ChangedState, _Mapping]] = ..., drawing: _Optional[_Union[Drawing, _Mapping]] = ..., schemas: _Optional[_Union[Schemas, _Mapping]] = ..., subgraphs: _Optional[_Union[SubgraphSchemas, _Mapping]] = ..., other: _Optional[_Union[Value, _Mapping]] = ...) -> None: ...

class Error(_message.Message):
    __slots__ = ("code", "message", "fields")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    FIELDS_FIELD_NUMBER: _ClassVar[int]
    code: str
    message: str
    fields: Value
    def __init__(self, code: _Optional[str] = ..., message: _Optional[str] = ..., fields: _Optional[_Union[Value, _Mapping]] = ...) -> None: ...

class Cancel(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Ping(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Pong(_message.Message):
    __slots__ = ("blocked_s", "memory_bytes", "clock_s")
    BLOCKED_S_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    CLOCK_S_FIELD_NUMBER: _ClassVar[int]
    blocked_s: float
    memory_bytes: int
    clock_s: float
    def __init__(self, blocked_s: _Optional[float] = ..., memory_bytes: _Optional[int] = ..., clock_s: _Optional[float] = ...) -> None: ...

class GoAway(_message.Message):
    __slots__ = ("reason", "is_planned")
    REASON_FIELD_NUMBER: _ClassVar[int]
    IS_PLANNED_FIELD_NUMBER: _ClassVar[int]
    reason: str
    is_planned: bool
    def __init__(self, reason: _Optional[str] = ..., is_planned: _Optional[bool] = ...) -> None: ...

class GraphCall(_message.Message):
    __slots__ = ("run", "description", "state_read", "history_read", "state_change", "state_creation", "call", "timeout_s", "scope", "is_unfollowed", "leased_until")
    RUN_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    STATE_READ_FIELD_NUMBER: _ClassVar[int]
    HISTORY_READ_FIELD_NUMBER: _ClassVar[int]
    STATE_CHANGE_FIELD_NUMBER: _ClassVar[int]
    STATE_CREATION_FIELD_NUMBER: _ClassVar[int]
    CALL_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    IS_UNFOLLOWED_FIELD_NUMBER: _ClassVar[int]
    LEASED_UNTIL_FIELD_NUMBER: _ClassVar[int]
    run: RunRequest
    description: DescriptionRequest
    state_read: StateRead
    history_read: HistoryRead
    state_change: StateChange
    state_creation: StateCreation
    call: int
    timeout_s: float
    scope: int
    is_unfollowed: bool
    leased_until: float
    def __init__(self, run: _Optional[_Union[RunRequest, _Mapping]] = ..., description: _Optional[_Union[DescriptionRequest, _Mapping]] = ..., state_read: _Optional[_Union[StateRead, _Mapping]] = ..., history_read: _Optional[_Union[HistoryRead, _Mapping]] = ..., state_change: _Optional[_Union[StateChange, _Mapping]] = ..., state_creation: _Optional[_Union[StateCreation, _Mapping]] = ..., call: _Optional[int] = ..., timeout_s: _Optional[float] = ..., scope: _Optional[int] = ..., is_unfollowed: _Optional[bool] = ..., leased_until: _Optional[float] = ...) -> None: ...

class Leases(_message.Message):
    __slots__ = ("leases",)
    LEASES_FIELD_NUMBER: _ClassVar[int]
    leases: _containers.RepeatedCompositeFieldContainer[Lease]
    def __init__(self, leases: _Optional[_Iterable[_Union[Lease, _Mapping]]] = ...) -> None: ...

class Lease(_message.Message):
    __slots__ = ("call", "until")
    CALL_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    call: int
    until: float
    def __init__(self, call: _Optional[int] = ..., until: _Optional[float] = ...) -> None: ...

class RunRequest(_message.Message):
    __slots__ = ("graph_id", "input", "command", "config", "context", "stream_modes", "stream_subgraphs", "interrupt_before", "interrupt_after", "durability", "strict_resume", "tracer", "attempt", "is_ephemeral", "resume", "is_suspect", "max_event_bytes")
    GRAPH_ID_FIELD_NUMBER: _ClassVar[int]
    INPUT_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    STREAM_MODES_FIELD_NUMBER: _ClassVar[int]
    STREAM_SUBGRAPHS_FIELD_NUMBER: _ClassVar[int]
    INTERRUPT_BEFORE_FIELD_NUMBER: _ClassVar[int]
    INTERRUPT_AFTER_FIELD_NUMBER: _ClassVar[int]
    DURABILITY_FIELD_NUMBER: _ClassVar[int]
    STRICT_RESUME_FIELD_NUMBER: _ClassVar[int]
    TRACER_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    IS_EPHEMERAL_FIELD_NUMBER: _ClassVar[int]
    RESUME_FIELD_NUMBER: _ClassVar[int]
    IS_SUSPECT_FIELD_NUMBER: _ClassVar[int]
    MAX_EVENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    graph_id: str
    input: Value
    command: Value
    config: Value
    context: Value
    stream_modes: _containers.RepeatedScalarFieldContainer[str]
    stream_subgraphs: bool
    interrupt_before: Value
    interrupt_after: Value
    durability: str
    strict_resume: bool
    tracer: Value
    attempt: int
    is_ephemeral: bool
    resume: bool
    is_suspect: bool
    max_event_bytes: int
    def __init__(self, graph_id: _Optional[str] = ..., input: _Optional[_Union[Value, _Mapping]] = ..., command: _Optional[_Union[Value, _Mapping]] = ..., config: _Optional[_Union[Value, _Mapping]] = ..., context: _Optional[_Union[Value, _Mapping]] = ..., stream_modes: _Optional[_Iterable[str]] = ..., stream_subgraphs: _Optional[bool] = ..., interrupt_before: _Optional[_Union[Value, _Mapping]] = ..., interrupt_after: _Optional[_Union[Value, _Mapping]] = ..., durability: _Optional[str] = ..., strict_resume: _Optional[bool] = ..., tracer: _Optional[_Union[Value, _Mapping]] = ..., attempt: _Optional[int] = ..., is_ephemeral: _Optional[bool] = ..., resume: _Optional[bool] = ..., is_suspect: _Optional[bool] = ..., max_event_bytes: _Optional[int] = ...) -> None: ...

class Events(_message.Message):
    __slots__ = ("events",)
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[Event]
    def __init__(self, events: _Optional[_Iterable[_Union[Event, _Mapping]]] = ...) -> None: ...

class Event(_message.Message):
    __slots__ = ("event", "data")
    EVENT_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    event: str
    data: bytes
    def __init__(self, event: _Optional[str] = ..., data: _Optional[bytes] = ...) -> None: ...

class Outcome(_message.Message):
    __slots__ = ("values", "row_values", "long_values", "interrupts", "has_next", "error", "is_refused")
    VALUES_FIELD_NUMBER: _ClassVar[int]
    ROW_VALUES_FIELD_NUMBER: _ClassVar[int]
    LONG_VALUES_FIELD_NUMBER: _ClassVar[int]
    INTERRUPTS_FIELD_NUMBER: _ClassVar[int]
    HAS_NEXT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    IS_REFUSED_FIELD_NUMBER: _ClassVar[int]
    values: bytes
    row_values: bytes
    long_values: Value
    interrupts: Value
    has_next: bool
    error: RunError
    is_refused: bool
    def __init__(self, values: _Optional[bytes] = ..., row_values: _Optional[bytes] = ..., long_values: _Optional[_Union[Value, _Mapping]] = ..., interrupts: _Optional[_Union[Value, _Mapping]] = ..., has_next: _Optional[bool] = ..., error: _Optional[_Union[RunError, _Mapping]] = ..., is_refused: _Optional[bool] = ...) -> None: ...

class RunError(_message.Message):
    __slots__ = ("error", "message")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    error: str
    message: str
    def __init__(self, error: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class DescriptionRequest(_message.Message):
    __slots__ = ("graph_id", "config", "context", "xray", "namespace", "recurse")
    GRAPH_ID_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    XRAY_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    RECURSE_FIELD_NUMBER: _ClassVar[int]
    graph_id: str
    config: Value
    context: Value
    xray: Value
    namespace: str
    recurse: bool
    def __init__(self, graph_id: _Optional[str] = ..., config: _Optional[_Union[Value, _Mapping]] = ..., context: _Optional[_Union[Value, _Mapping]] = ..., xray: _Optional[_Union[Value, _Mapping]] = ..., namespace: _Optional[str] = ..., recurse: _Optional[bool] = ...) -> None: ...

class Drawing(_message.Message):
    __slots__ = ("nodes", "edges")
    NODES_FIELD_NUMBER: _ClassVar[int]
    EDGES_FIELD_NUMBER: _ClassVar[int]
    nodes: Value
    edges: Value
    def __init__(self, nodes: _Optional[_Union[Value, _Mapping]] = ..., edges: _Optional[_Union[Value, _Mapping]] = ...) -> None: ...

class Schemas(_message.Message):
    __slots__ = ("input_schema", "output_schema", "state_schema", "config_schema", "context_schema")
    INPUT_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    STATE_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    CONFIG_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    input_schema: Value
    output_schema: Value
    state_schema: Value
    config_schema: Value
    context_schema: Value
    def __init__(self, input_schema: _Optional[_Union[Value, _Mapping]] = ..., output_schema: _Optional[_Union[Value, _Mapping]] = ..., state_schema: _Optional[_Union[Value, _Mapping]] = ..., config_schema: _Optional[_Union[Value, _Mapping]] = ..., context_schema: _Optional[_Union[Value, _Mapping]] = ...) -> None: ...

class SubgraphSchemas(_message.Message):
    __slots__ = ("schemas",)
    class SchemasEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Schemas
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Schemas, _Mapping]] = ...) -> None: ...
    SCHEMAS_FIELD_NUMBER: _ClassVar[int]
    schemas: _containers.MessageMap[str, Schemas]
    def __init__(self, schemas: _Optional[_Mapping[str, Schemas]] = ...) -> None: ...

class StateRead(_message.Message):
    __slots__ = ("graph_id", "config", "checkpoint", "subgraphs", "without_checkpoint", "select")
    GRAPH_ID_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    SUBGRAPHS_FIELD_NUMBER: _ClassVar[int]
    WITHOUT_CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    SELECT_FIELD_NUMBER: _ClassVar[int]
    graph_id: str
    config: Value
    checkpoint: Value
    subgraphs: bool
    without_checkpoint: Value
    select: Names
    def __init__(self, graph_id: _Optional[str] = ..., config: _Optional[_Union[Value, _Mapping]] = ..., checkpoint: _Optional[_Union[Value, _Mapping]] = ..., subgraphs: _Optional[bool] = ..., without_checkpoint: _Optional[_Union[Value, _Mapping]] = ..., select: _Optional[_Union[Names, _Mapping]] = ...) -> None: ...

class HistoryRead(_message.Message):
    __slots__ = ("graph_id", "config", "limit", "before", "filter", "select")
    GRAPH_ID_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    SELECT_FIELD_NUMBER: _ClassVar[int]
    graph_id: str
    config: Value
    limit: int
    before: Value
    filter: Value
    select: Names
    def __init__(self, graph_id: _Optional[str] = ..., config: _Optional[_Union[Value, _Mapping]] = ..., limit: _Optional[int] = ..., before: _Optional[_Union[Value, _Mapping]] = ..., filter: _Optional[_Union[Value, _Mapping]] = ..., select: _Optional[_Union[Names, _Mapping]] = ...) -> None: ...

class StateChange(_message.Message):
    __slots__ = ("graph_id", "config", "values", "as_node")
    GRAPH_ID_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    AS_NODE_FIELD_NUMBER: _ClassVar[int]
    graph_id: str
    config: Value
    values: Value
    as_node: str
    def __init__(self, graph_id: _Optional[str] = ..., config: _Optional[_Union[Value, _Mapping]] = ..., values: _Optional[_Union[Value, _Mapping]] = ..., as_node: _Optional[str] = ...) -> None: ...

class StateCreation(_message.Message):
    __slots__ = ("graph_id", "config", "supersteps")
    GRAPH_ID_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    SUPERSTEPS_FIELD_NUMBER: _ClassVar[int]
    graph_id: str
    config: Value
    supersteps: Value
    def __init__(self, graph_id: _Optional[str] = ..., config: _Optional[_Union[Value, _Mapping]] = ..., supersteps: _Optional[_Union[Value, _Mapping]] = ...) -> None: ...

class ChangedState(_message.Message):
    __slots__ = ("checkpoint", "values", "has_next", "interrupts", "row_values", "long_values")
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    HAS_NEXT_FIELD_NUMBER: _ClassVar[int]
    INTERRUPTS_FIELD_NUMBER: _ClassVar[int]
    ROW_VALUES_FIELD_NUMBER: _ClassVar[int]
    LONG_VALUES_FIELD_NUMBER: _ClassVar[int]
    checkpoint: Value
    values: bytes
    has_next: bool
    interrupts: Value
    row_values: bytes
    long_values: Value
    def __init__(self, checkpoint: _Optional[_Union[Value, _Mapping]] = ..., values: _Optional[bytes] = ..., has_next: _Optional[bool] = ..., interrupts: _Optional[_Union[Value, _Mapping]] = ..., row_values: _Optional[bytes] = ..., long_values: _Optional[_Union[Value, _Mapping]] = ...) -> None: ...

class Retirement(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class CheckpointPut(_message.Message):
    __slots__ = ("call", "scope", "thread_id", "checkpoint_ns", "run", "is_awaited", "checkpoints", "values", "pieces", "writes", "size")
    CALL_FIELD_NUMBER: _ClassVar[int]
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    THREAD_ID_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_NS_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    IS_AWAITED_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    PIECES_FIELD_NUMBER: _ClassVar[int]
    WRITES_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    call: int
    scope: int
    thread_id: str
    checkpoint_ns: str
    run: RunAttempt
    is_awaited: bool
    checkpoints: _containers.RepeatedCompositeFieldContainer[CheckpointRow]
    values: _containers.RepeatedCompositeFieldContainer[ValueRow]
    pieces: _containers.RepeatedCompositeFieldContainer[PieceRow]
    writes: _containers.RepeatedCompositeFieldContainer[WriteRow]
    size: int
    def __init__(self, call: _Optional[int] = ..., scope: _Optional[int] = ..., thread_id: _Optional[str] = ..., checkpoint_ns: _Optional[str] = ..., run: _Optional[_Union[RunAttempt, _Mapping]] = ..., is_awaited: _Optional[bool] = ..., checkpoints: _Optional[_Iterable[_Union[CheckpointRow, _Mapping]]] = ..., values: _Optional[_Iterable[_Union[ValueRow, _Mapping]]] = ..., pieces: _Optional[_Iterable[_Union[PieceRow, _Mapping]]] = ..., writes: _Optional[_Iterable[_Union[WriteRow, _Mapping]]] = ..., size: _Optional[int] = ...) -> None: ...

class RunAttempt(_message.Message):
    __slots__ = ("run_id", "attempt")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    attempt: int
    def __init__(self, run_id: _Optional[str] = ..., attempt: _Optional[int] = ...) -> None: ...

class CheckpointRow(_message.Message):
    __slots__ = ("c_thread", "c_ns", "c_id", "c_parent", "c_metadata", "c_kind", "c_body", "c_channels", "c_versions")
    C_THREAD_FIELD_NUMBER: _ClassVar[int]
    C_NS_FIELD_NUMBER: _ClassVar[int]
    C_ID_FIELD_NUMBER: _ClassVar[int]
    C_PARENT_FIELD_NUMBER: _ClassVar[int]
    C_METADATA_FIELD_NUMBER: _ClassVar[int]
    C_KIND_FIELD_NUMBER: _ClassVar[int]
    C_BODY_FIELD_NUMBER: _ClassVar[int]
    C_CHANNELS_FIELD_NUMBER: _ClassVar[int]
    C_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    c_thread: str
    c_ns: str
    c_id: str
    c_parent: str
    c_metadata: str
    c_kind: str
    c_body: bytes
    c_channels: str
    c_versions: str
    def __init__(self, c_thread: _Optional[str] = ..., c_ns: _Optional[str] = ..., c_id: _Optional[str] = ..., c_parent: _Optional[str] = ..., c_metadata: _Optional[str] = ..., c_kind: _Optional[str] = ..., c_body: _Optional[bytes] = ..., c_channels: _Optional[str] = ..., c_versions: _Optional[str] = ...) -> None: ...

class ValueRow(_message.Message):
    __slots__ = ("v_thread", "v_ns", "v_channel", "v_version", "v_kind", "v_data", "v_pieces", "v_shared")
    V_THREAD_FIELD_NUMBER: _ClassVar[int]
    V_NS_FIELD_NUMBER: _ClassVar[int]
    V_CHANNEL_FIELD_NUMBER: _ClassVar[int]
    V_VERSION_FIELD_NUMBER: _ClassVar[int]
    V_KIND_FIELD_NUMBER: _ClassVar[int]
    V_DATA_FIELD_NUMBER: _ClassVar[int]
    V_PIECES_FIELD_NUMBER: _ClassVar[int]
    V_SHARED_FIELD_NUMBER: _ClassVar[int]
    v_thread: str
    v_ns: str
    v_channel: str
    v_version: str
    v_kind: str
    v_data: bytes
    v_pieces: str
    v_shared: str
    def __init__(self, v_thread: _Optional[str] = ..., v_ns: _Optional[str] = ..., v_channel: _Optional[str] = ..., v_version: _Optional[str] = ..., v_kind: _Optional[str] = ..., v_data: _Optional[bytes] = ..., v_pieces: _Optional[str] = ..., v_shared: _Optional[str] = ...) -> None: ...

class PieceRow(_message.Message):
    __slots__ = ("p_thread", "p_series", "p_number", "p_leaves", "p_data")
    P_THREAD_FIELD_NUMBER: _ClassVar[int]
    P_SERIES_FIELD_NUMBER: _ClassVar[int]
    P_NUMBER_FIELD_NUMBER: _ClassVar[int]
    P_LEAVES_FIELD_NUMBER: _ClassVar[int]
    P_DATA_FIELD_NUMBER: _ClassVar[int]
    p_thread: str
    p_series: int
    p_number: int
    p_leaves: int
    p_data: bytes
    def __init__(self, p_thread: _Optional[str] = ..., p_series: _Optional[int] = ..., p_number: _Optional[int] = ..., p_leaves: _Optional[int] = ..., p_data: _Optional[bytes] = ...) -> None: ...

class WriteRow(_message.Message):
    __slots__ = ("w_thread", "w_ns", "w_checkpoint", "w_task", "w_idx", "w_path", "w_run", "w_channel", "w_kind", "w_data", "w_pieces", "w_shared")
    W_THREAD_FIELD_NUMBER: _ClassVar[int]
    W_NS_FIELD_NUMBER: _ClassVar[int]
    W_CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    W_TASK_FIELD_NUMBER: _ClassVar[int]
    W_IDX_FIELD_NUMBER: _ClassVar[int]
    W_PATH_FIELD_NUMBER: _ClassVar[int]
    W_RUN_FIELD_NUMBER: _ClassVar[int]
    W_CHANNEL_FIELD_NUMBER: _ClassVar[int]
    W_KIND_FIELD_NUMBER: _ClassVar[int]
    W_DATA_FIELD_NUMBER: _ClassVar[int]
    W_PIECES_FIELD_NUMBER: _ClassVar[int]
    W_SHARED_FIELD_NUMBER: _ClassVar[int]
    w_thread: str
    w_ns: str
    w_checkpoint: str
    w_task: str
    w_idx: int
    w_path: str
    w_run: str
    w_channel: str
    w_kind: str
    w_data: bytes
    w_pieces: str
    w_shared: str
    def __init__(self, w_thread: _Optional[str] = ..., w_ns: _Optional[str] = ..., w_checkpoint: _Optional[str] = ..., w_task: _Optional[str] = ..., w_idx: _Optional[int] = ..., w_path: _Optional[str] = ..., w_run: _Optional[str] = ..., w_channel: _Optional[str] = ..., w_kind: _Optional[str] = ..., w_data: _Optional[bytes] = ..., w_pieces: _Optional[str] = ..., w_shared: _Optional[str] = ...) -> None: ...

class CheckpointCall(_message.Message):
    __slots__ = ("call", "scope", "operation", "arguments")
    CALL_FIELD_NUMBER: _ClassVar[int]
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    call: int
    scope: int
    operation: str
    arguments: Value
    def __init__(self, call: _Optional[int] = ..., scope: _Optional[int] = ..., operation: _Optional[str] = ..., arguments: _Optional[_Union[Value, _Mapping]] = ...) -> None: ...

class StoreBatch(_message.Message):
    __slots__ = ("call", "ops")
    CALL_FIELD_NUMBER: _ClassVar[int]
    OPS_FIELD_NUMBER: _ClassVar[int]
    call: int
    ops: _containers.RepeatedCompositeFieldContainer[StoreOp]
    def __init__(self, call: _Optional[int] = ..., ops: _Optional[_Iterable[_Union[StoreOp, _Mapping]]] = ...) -> None: ...

class StoreOp(_message.Message):
    __slots__ = ("kind", "fields")
    KIND_FIELD_NUMBER: _ClassVar[int]
    FIELDS_FIELD_NUMBER: _ClassVar[int]
    kind: str
    fields: bytes
    def __init__(self, kind: _Optional[str] = ..., fields: _Optional[bytes] = ...) -> None: ...

class HttpRequest(_message.Message):
    __slots__ = ("call", "method", "path", "raw_path", "query", "headers", "body", "exchange")
    CALL_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    RAW_PATH_FIELD_NUMBER: _ClassVar[int]
    QUERY_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    EXCHANGE_FIELD_NUMBER: _ClassVar[int]
    call: int
    method: str
    path: str
    raw_path: bytes
    query: bytes
    headers: _containers.RepeatedCompositeFieldContainer[Header]
    body: bytes
    exchange: int
    def __init__(self, call: _Optional[int] = ..., method: _Optional[str] = ..., path: _Optional[str] = ..., raw_path: _Optional[bytes] = ..., query: _Optional[bytes] = ..., headers: _Optional[_Iterable[_Union[Header, _Mapping]]] = ..., body: _Optional[bytes] = ..., exchange: _Optional[int] = ...) -> None: ...

class ResponseHead(_message.Message):
    __slots__ = ("status", "headers")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    status: int
    headers: _containers.RepeatedCompositeFieldContainer[Header]
    def __init__(self, status: _Optional[int] = ..., headers: _Optional[_Iterable[_Union[Header, _Mapping]]] = ...) -> None: ...

class Header(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: bytes
    value: bytes
    def __init__(self, name: _Optional[bytes] = ..., value: _Optional[bytes] = ...) -> None: ...
